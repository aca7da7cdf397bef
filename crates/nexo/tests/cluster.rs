//! Three real nodes on loopback: any of them takes any client, and what was confirmed survives the loss of a leader.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;
#[path = "common/nodes.rs"]
mod nodes;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Server, eventually};
use lapin::options::*;
use lapin::types::FieldTable;
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use nodes::{Cluster, Node, insist, push_until};
use rustix::process::Signal;
use serde_json::Value;

/// Takes all messages out of a queue.
fn take_all(through: &Server, queue: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    loop {
        let popped = insist(through, &["pop", queue, "--max", "100", "--ack"]);
        if popped.is_empty() {
            return found;
        }
        found.extend(popped.lines().map(str::to_owned));
    }
}

#[test]
fn any_node_takes_any_client() {
    let cluster = Cluster::start(&["a", "b", "c"]);
    for node in &cluster.nodes {
        node.server().ok(&["queue", "create", node.name]);
    }
    for (node, other) in cluster.nodes.iter().zip(cluster.nodes.iter().cycle().skip(1)) {
        node.server().ok(&["push", other.name, node.name]);
    }
    for (node, other) in cluster.nodes.iter().zip(cluster.nodes.iter().cycle().skip(1)) {
        let third = cluster.nodes.iter().find(|it| it.name != node.name && it.name != other.name).unwrap();
        assert_eq!(
            third.server().ok(&["pop", other.name, "--wait", "5s", "--ack"]),
            format!("{}\n", node.name)
        );
    }
    let queues = |node: &Node| {
        let listed: Vec<Value> = node.server().json(&["queue", "list"]);
        listed.iter().map(|queue| queue["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for node in &cluster.nodes {
        assert_eq!(queues(node), ["a", "b", "c"], "over node '{}'", node.name);
        let (status, body) = node.server().get("/health/ready");
        assert_eq!(status, 200, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_amqp_client_of_a_follower_publishes_and_consumes() {
    let cluster = Cluster::start(&["a", "b", "c"]);
    let (follower, leader) = (cluster.follower(), cluster.leader());
    let connect = async |node: &Node| {
        let connection =
            Connection::connect(&node.server().amqp_url(), ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        (connection, channel)
    };
    let (_there, channel) = connect(follower).await;
    channel
        .queue_declare("mail".into(), QueueDeclareOptions::durable(), FieldTable::default())
        .await
        .unwrap();
    for number in 0..100 {
        let body = format!("message {number}");
        let published = channel.basic_publish(
            "".into(),
            "mail".into(),
            BasicPublishOptions::default(),
            body.as_bytes(),
            BasicProperties::default().with_delivery_mode(2),
        );
        assert_eq!(published.await.unwrap().await.unwrap(), Confirmation::Ack(None));
    }
    let (_here, channel) = connect(cluster.node(leader)).await;
    for number in 0..100 {
        let got = channel.basic_get("mail".into(), BasicGetOptions { no_ack: true }).await.unwrap().unwrap();
        assert_eq!(got.delivery.data, format!("message {number}").as_bytes());
    }
    let (_, metrics) = follower.server().get("/metrics");
    assert!(metrics.lines().any(|line| line == "nexo_cluster_leading 0"), "{metrics}");
    let forwarded =
        metrics.lines().find_map(|line| line.strip_prefix("nexo_cluster_forwarded_connections_total "));
    assert!(forwarded.is_some_and(|count| count.parse::<u64>().unwrap() > 0), "{metrics}");
}

#[test]
fn what_was_confirmed_survives_the_loss_of_the_leader() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let leader = cluster.leader();
    cluster.follower().server().ok(&["queue", "create", "work"]);
    let is_over = AtomicBool::new(false);
    let confirmed = std::thread::scope(|scope| {
        let pushers: Vec<_> = cluster
            .nodes
            .iter()
            .map(|node| {
                let (is_over, name, url) = (&is_over, node.name, node.server().url());
                scope.spawn(move || push_until(is_over, name, &url))
            })
            .collect();
        std::thread::sleep(Duration::from_secs(2));
        cluster.node(leader).server().signal(Signal::KILL);
        std::thread::sleep(Duration::from_secs(4));
        is_over.store(true, Ordering::Relaxed);
        pushers.into_iter().flat_map(|pusher| pusher.join().unwrap()).collect::<BTreeSet<String>>()
    });
    cluster.node_mut(leader).kill();
    assert!(confirmed.len() > 10, "only {} pushes were confirmed", confirmed.len());
    let next = cluster.leader();
    assert_ne!(next, leader);
    let through = cluster.follower().server();
    let found = take_all(through, "work");
    let lost: Vec<&String> = confirmed.difference(&found).collect();
    assert!(lost.is_empty(), "{lost:?} of {} are lost", confirmed.len());

    // The one that was lost comes back, follows, and has what came meanwhile.
    insist(through, &["push", "work", "while it was away"]);
    let words = format!("node '{leader}' cannot be reached");
    eventually(&words, || cluster.follower().risk().contains(&words));
    cluster.restart(leader);
    cluster.until_in_step(3);
    insist(cluster.node(leader).server(), &["cluster", "transfer", leader]);
    assert_eq!(cluster.leader(), leader);
    assert_eq!(
        insist(cluster.node(leader).server(), &["pop", "work", "--wait", "5s", "--ack"]),
        "while it was away\n"
    );
}

#[test]
fn a_leader_that_is_stopped_hands_over_first() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    cluster.follower().server().ok(&["queue", "create", "work"]);
    let leader = cluster.leader();
    let mut server = cluster.node_mut(leader).server.take().unwrap();
    let ended = server.stop();
    assert_eq!(ended.code(), Some(0));
    assert_ne!(cluster.leader(), leader);
    insist(cluster.follower().server(), &["push", "work", "x"]);
    cluster.restart(leader);
    cluster.until_in_step(3);
}

#[test]
fn all_nodes_are_killed_at_once_and_come_back() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    cluster.follower().server().ok(&["queue", "create", "work"]);
    let bodies: Vec<String> = (0..50).map(|number| format!("m{number}")).collect();
    let input = bodies.iter().map(|body| format!("{body}\n")).collect::<String>();
    cluster.follower().server().run_with_input(&["push", "work", "--stdin"], input).ok();
    for node in &cluster.nodes {
        node.server().signal(Signal::KILL);
    }
    for name in ["a", "b", "c"] {
        cluster.node_mut(name).kill();
    }
    // The first waits for another before it is of any use, but starts.
    cluster.restart_all();
    cluster.until_in_step(3);
    let popped = insist(cluster.follower().server(), &["pop", "work", "--max", "100", "--ack"]);
    assert_eq!(popped.lines().collect::<Vec<_>>(), bodies);
}

/// Has a node lead. On a busy machine another may be quicker, and is told by name; then it is tried again.
fn lead(cluster: &Cluster, name: &str, is_over: &AtomicBool) {
    for _ in 0..20 {
        let told = insist(cluster.node(name).server(), &["cluster", "transfer", name]);
        if told == format!("node '{name}' leads\n") {
            return;
        }
    }
    // Those who push would go on for ever.
    is_over.store(true, Ordering::Relaxed);
    panic!("node '{name}' does not lead");
}

#[test]
fn leadership_moves_under_load_and_nothing_is_lost() {
    let cluster = Cluster::start(&["a", "b", "c"]);
    cluster.follower().server().ok(&["queue", "create", "work"]);
    let is_over = AtomicBool::new(false);
    let confirmed = std::thread::scope(|scope| {
        let pushers: Vec<_> = cluster
            .nodes
            .iter()
            .map(|node| {
                let (is_over, name, url) = (&is_over, node.name, node.server().url());
                scope.spawn(move || push_until(is_over, name, &url))
            })
            .collect();
        for name in ["b", "c", "a", "c", "b", "a", "b", "c", "a", "b"] {
            lead(&cluster, name, &is_over);
            std::thread::sleep(Duration::from_millis(200));
        }
        is_over.store(true, Ordering::Relaxed);
        pushers.into_iter().flat_map(|pusher| pusher.join().unwrap()).collect::<BTreeSet<String>>()
    });
    assert!(confirmed.len() > 10, "only {} pushes were confirmed", confirmed.len());
    let found = take_all(cluster.follower().server(), "work");
    let lost: Vec<&String> = confirmed.difference(&found).collect();
    assert!(lost.is_empty(), "{lost:?} of {} are lost", confirmed.len());
    cluster.until_in_step(3);
}

#[test]
fn the_management_port_of_a_follower_answers_for_the_whole() {
    let cluster = Cluster::start(&["a", "b", "c"]);
    let follower = cluster.follower().server();
    follower.ok(&["exchange", "declare", "news", "--type", "topic"]);
    let listed = cluster.node(cluster.leader()).server().json(&["exchange", "list"]);
    assert!(listed.iter().any(|exchange| exchange["name"] == "news"), "{listed:?}");
    // A user that was made through one node is let in by all.
    follower.ok(&["user", "add", "ann", "--new-password", "secret of ann", "--tag", "administrator"]);
    for node in &cluster.nodes {
        // Those who follow hear of her a moment later.
        eventually("ann is let in", || {
            let mut status = node.server().command(&["--user", "ann", "cluster", "nodes"]);
            status.env("NEXO_PASSWORD", "secret of ann");
            let shown = common::Process::spawn(&mut status).finish();
            shown.code == Some(0) && shown.stdout.lines().count() == 4
        });
    }
}
