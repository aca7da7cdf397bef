//! Nodes come, go, are restarted and are killed while clients publish: everything that was confirmed is there afterwards.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;
#[path = "common/nodes.rs"]
mod nodes;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nodes::{Cluster, insist, push_until};
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
