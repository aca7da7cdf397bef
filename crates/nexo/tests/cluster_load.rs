//! Nodes come, go, are restarted and are killed while clients publish: everything that was confirmed is there afterwards.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;
#[path = "common/nodes.rs"]
mod nodes;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::eventually;
use futures_util::StreamExt;
use lapin::options::*;
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use nodes::{Cluster, insist, push_until};
use parking_lot::Mutex;
use rustix::process::Signal;

/// Lets some messages be confirmed.
fn pause() {
    std::thread::sleep(Duration::from_millis(800));
}

/// Publishes over every node that runs now, while something happens to the cluster. Gives back what was confirmed.
fn under_load(cluster: &mut Cluster, part: &str, what: impl FnOnce(&mut Cluster)) -> BTreeSet<String> {
    /// Those who publish would go on for ever if what happens fails.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    let ways: Vec<(String, String)> =
        cluster.running().map(|node| (format!("{part}-{}", node.name), node.server().url())).collect();
    std::thread::scope(|scope| {
        let is_over = &is_over;
        let pushers: Vec<_> =
            ways.iter().map(|(name, url)| scope.spawn(move || push_until(is_over, name, url))).collect();
        let over = Over(is_over);
        pause();
        what(cluster);
        pause();
        drop(over);
        pushers.into_iter().flat_map(|pusher| pusher.join().unwrap()).collect()
    })
}

/// Whether all of these are in the queue.
#[track_caller]
fn assert_there(cluster: &Cluster, confirmed: &BTreeSet<String>) {
    assert!(confirmed.len() > 10, "only {} pushes were confirmed", confirmed.len());
    let mut found = BTreeSet::new();
    loop {
        let popped = insist(cluster.follower().server(), &["pop", "work", "--max", "100", "--ack"]);
        if popped.is_empty() {
            break;
        }
        found.extend(popped.lines().map(str::to_owned));
    }
    let lost: Vec<&String> = confirmed.difference(&found).collect();
    assert!(lost.is_empty(), "{lost:?} of {} are lost", confirmed.len());
}

fn three() -> Cluster {
    let cluster = Cluster::start(&["a", "b", "c"]);
    cluster.follower().server().ok(&["queue", "create", "work"]);
    cluster
}

#[test]
fn two_nodes_are_added_and_two_others_leave() {
    let mut cluster = three();
    let confirmed = under_load(&mut cluster, "1", |cluster| {
        cluster.add("d");
        cluster.add("e");
        cluster.until_in_step(5);
        for name in ["a", "b"] {
            let through = cluster.running().find(|node| node.name == "d").unwrap().server();
            insist(through, &["cluster", "remove", name, "--yes"]);
            cluster.node_mut(name).kill();
            cluster.nodes.retain(|node| node.name != name);
        }
        cluster.until_in_step(3);
    });
    assert_there(&cluster, &confirmed);
    let groups = cluster.follower().server().json(&["cluster", "groups"]);
    assert_eq!(groups[0]["voters"].as_array().unwrap().len(), 3, "{groups:?}");
}

#[test]
fn two_of_three_are_restarted_at_once() {
    let mut cluster = three();
    let mut confirmed = under_load(&mut cluster, "1", |cluster| {
        // The leader is one of them.
        let leader = cluster.leader();
        let other = cluster.follower().name;
        for name in [leader, other] {
            cluster.node(name).server().signal(Signal::TERM);
        }
        for name in [leader, other] {
            cluster.node_mut(name).server.take().unwrap().wait();
        }
        for name in [leader, other] {
            cluster.restart(name);
        }
        cluster.until_in_step(3);
    });
    confirmed.extend(under_load(&mut cluster, "2", |_| {}));
    assert_there(&cluster, &confirmed);
}

#[test]
fn all_three_are_killed_at_once() {
    let mut cluster = three();
    let mut confirmed = under_load(&mut cluster, "1", |cluster| {
        for node in &cluster.nodes {
            node.server().signal(Signal::KILL);
        }
        for name in ["a", "b", "c"] {
            cluster.node_mut(name).kill();
        }
        cluster.restart_all();
        cluster.until_in_step(3);
    });
    confirmed.extend(under_load(&mut cluster, "2", |_| {}));
    assert_there(&cluster, &confirmed);
}

#[test]
fn a_node_that_was_wiped_comes_back_as_another() {
    let mut cluster = three();
    let confirmed = under_load(&mut cluster, "1", |cluster| {
        let wiped = cluster.leader();
        cluster.node_mut(wiped).kill();
        let (data, address) = (cluster.node(wiped).data.clone(), cluster.node(wiped).address.to_string());
        std::fs::remove_dir_all(&data).unwrap();
        insist(cluster.follower().server(), &["cluster", "remove", wiped, "--yes"]);
        let others: Vec<String> = cluster.running().map(|node| node.address.to_string()).collect();
        let join = others.join(",");
        let args = ["--node", wiped, "--cluster", &address, "--join", &join].map(str::to_owned);
        let server = cluster.serve(&data, &args);
        cluster.node_mut(wiped).server = Some(server);
        cluster.until_in_step(3);
    });
    assert_there(&cluster, &confirmed);
}

/// A publisher and a consumer over AMQP. They go on through any node that takes them when their connection ends.
#[derive(Default)]
struct Traffic {
    urls: Mutex<Vec<String>>,
    confirmed: Mutex<BTreeSet<String>>,
    consumed: Mutex<BTreeSet<String>>,
    /// The longest time between two confirms.
    longest_gap: Mutex<Duration>,
    no_more_published: AtomicBool,
    no_more_consumed: AtomicBool,
}

impl Traffic {
    /// A client gives a broker that does not answer so long.
    const CLIENT_PATIENCE: Duration = Duration::from_secs(5);

    /// Nodes are reached there from now on.
    fn follow(&self, cluster: &Cluster) {
        *self.urls.lock() = cluster.running().map(|node| node.server().amqp_url()).collect();
    }

    async fn connect(&self, turn: usize) -> Option<(Connection, Channel)> {
        let url = {
            let urls = self.urls.lock();
            urls[turn % urls.len()].clone()
        };
        let connected = async {
            let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            let options = QueueDeclareOptions::durable();
            channel.queue_declare("work".into(), options, FieldTable::default()).await?;
            lapin::Result::Ok((connection, channel))
        };
        let connected = tokio::time::timeout(Self::CLIENT_PATIENCE, connected).await;
        if !matches!(connected, Ok(Ok(_))) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        connected.ok()?.ok()
    }

    async fn publish(&self) {
        let (mut number, mut last) = (0, Instant::now());
        for turn in 0.. {
            let connected = self.connect(turn).await;
            while let Some((_, channel)) = &connected {
                if self.no_more_published.load(Ordering::Relaxed) {
                    return;
                }
                // What was not confirmed is published again.
                let body = format!("message {number}");
                if !is_confirmed(channel, &body).await {
                    break;
                }
                self.confirmed.lock().insert(body);
                let gap = last.elapsed();
                let mut longest = self.longest_gap.lock();
                *longest = gap.max(*longest);
                (number, last) = (number + 1, Instant::now());
            }
        }
    }

    async fn consume(&self) {
        for turn in 1.. {
            let Some((_connection, channel)) = self.connect(turn).await else { continue };
            let options = BasicConsumeOptions::default();
            let consumer = channel.basic_consume("work".into(), "".into(), options, FieldTable::default());
            let Ok(mut consumer) = consumer.await else { continue };
            loop {
                if self.no_more_consumed.load(Ordering::Relaxed) {
                    return;
                }
                let delivery = match tokio::time::timeout(Duration::from_millis(100), consumer.next()).await {
                    Ok(Some(Ok(delivery))) => delivery,
                    Ok(Some(Err(_)) | None) => break,
                    Err(_) => continue,
                };
                let body = String::from_utf8(delivery.data.clone()).unwrap();
                self.consumed.lock().insert(body);
                if delivery.ack(BasicAckOptions::default()).await.is_err() {
                    break;
                }
            }
        }
    }

    /// Waits until some more is confirmed, and consumed.
    #[track_caller]
    fn goes_on(&self, when: &str) {
        let done = || (self.confirmed.lock().len(), self.consumed.lock().len());
        let before = done();
        eventually(&format!("clients go on {when}"), || {
            let now = done();
            now.0 > before.0 + 20 && now.1 > before.1 + 20
        });
    }
}

async fn is_confirmed(channel: &Channel, body: &str) -> bool {
    let published = async {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        let properties = properties.with_delivery_mode(2);
        channel.basic_publish("".into(), "work".into(), options, body.as_bytes(), properties).await?.await
    };
    let confirmed = tokio::time::timeout(Traffic::CLIENT_PATIENCE, published).await;
    matches!(confirmed, Ok(Ok(Confirmation::Ack(None))))
}

#[test]
fn all_nodes_are_restarted_in_turn() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let clients = tokio::runtime::Runtime::new().unwrap();
    let traffic = Arc::new(Traffic::default());
    traffic.follow(&cluster);
    let (publisher, consumer) = (Arc::clone(&traffic), Arc::clone(&traffic));
    let publishing = clients.spawn(async move { publisher.publish().await });
    let consuming = clients.spawn(async move { consumer.consume().await });
    traffic.goes_on("at the beginning");
    for name in ["a", "b", "c"] {
        let ended = cluster.node_mut(name).server.take().unwrap().stop();
        assert_eq!(ended.code(), Some(0), "node '{name}'");
        traffic.goes_on(&format!("without node '{name}'"));
        cluster.restart(name);
        traffic.follow(&cluster);
        cluster.until_in_step(3);
        traffic.goes_on(&format!("when node '{name}' is back"));
    }
    traffic.no_more_published.store(true, Ordering::Relaxed);
    clients.block_on(publishing).unwrap();
    let lost = || traffic.confirmed.lock().difference(&traffic.consumed.lock()).count();
    eventually("all that was confirmed is consumed", || lost() == 0);
    traffic.no_more_consumed.store(true, Ordering::Relaxed);
    clients.block_on(consuming).unwrap();
    // Another node leads within a second. Machines may be busy.
    let longest = *traffic.longest_gap.lock();
    assert!(longest < Duration::from_secs(20), "nothing was confirmed for {longest:?}");
}
