//! The disk of one of three real nodes is damaged: it comes back by itself as a new node with what the others have, and nothing is lost.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;
#[path = "common/nodes.rs"]
mod nodes;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use common::{PATIENCE, eventually};
use nodes::{Cluster, insist};

const COUNT: usize = 600;

fn body(number: usize) -> String {
    format!("{number:05}-{}", "x".repeat(4_000))
}

/// Three nodes with small segments, and messages in several of them.
fn filled() -> Cluster {
    let cluster = Cluster::start(&["a", "b", "c"]);
    cluster.follower().server().ok(&["queue", "create", "work"]);
    push(&cluster, 0..COUNT);
    cluster.until_in_step(3);
    cluster
}

fn push(cluster: &Cluster, numbers: std::ops::Range<usize>) {
    let input = numbers.map(|number| format!("{}\n", body(number))).collect::<String>();
    cluster.follower().server().run_with_input(&["push", "work", "--stdin"], input).ok();
}

/// Takes messages out of the queue until all are there.
fn take(cluster: &Cluster, count: usize) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let end = Instant::now() + PATIENCE;
    while found.len() < count {
        assert!(Instant::now() < end, "{} of {count} messages have come", found.len());
        let popped = insist(cluster.follower().server(), &["pop", "work", "--max", "100", "--ack"]);
        found.extend(popped.lines().map(str::to_owned));
    }
    found
}

/// In which file a message lies, and where.
fn find(data: &Path, text: &str) -> (PathBuf, u64) {
    for entry in fs::read_dir(data.join("segments")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(text.len()).position(|window| window == text.as_bytes()) {
            return (path, at as u64);
        }
    }
    panic!("{text} is in no segment of {}", data.display());
}

/// The number of a node, which it has as long as its data.
fn id_of(cluster: &Cluster, name: &str) -> u64 {
    // It may be about to start anew itself.
    let other = cluster.running().find(|node| node.name != name).unwrap();
    let nodes = other.server().json(&["cluster", "nodes"]);
    nodes.iter().find(|node| node["name"] == name).unwrap()["id"].as_u64().unwrap()
}

#[test]
fn a_follower_whose_disk_is_damaged_comes_back_by_itself() {
    let mut cluster = filled();
    let harmed = cluster.follower().name;
    let data = cluster.node(harmed).data.clone();
    let mut count = COUNT;
    for (round, harm) in ["flip", "zero", "delete"].into_iter().enumerate() {
        let before = id_of(&cluster, harmed);
        cluster.node_mut(harmed).kill();
        // A message that it has acknowledged, in the segment that a start reads, and behind which there are others.
        let (path, at) = find(&data, &body(count - 40));
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        match harm {
            "flip" => file.write_all_at(b"!", at + 1_000).unwrap(),
            "zero" => file.write_all_at(&[0; 4096], at).unwrap(),
            _ => fs::remove_file(&path).unwrap(),
        }
        // The others go on without it.
        push(&cluster, count..count + 100);
        count += 100;
        cluster.restart(harmed);
        cluster.until_in_step(3);
        let after = id_of(&cluster, harmed);
        assert!(after > before, "{harm}: it came back as node {after}, and was node {before}");
        assert!(data.join("set-aside/segments").exists(), "{harm}: what was damaged is kept");
        assert_eq!(after, 4 + round as u64);
    }
    insist(cluster.node(harmed).server(), &["cluster", "transfer", harmed]);
    assert_eq!(take(&cluster, count), (0..count).map(body).collect::<BTreeSet<_>>());
}

#[test]
fn a_leader_that_meets_damage_hands_over_and_comes_back_by_itself() {
    let mut cluster = filled();
    let harmed = cluster.leader();
    let data = cluster.node(harmed).data.clone();
    // A start leaves messages on the disk, and ports that are given stay the same when it starts itself anew.
    cluster.node_mut(harmed).server.take().unwrap().stop();
    let [grpc, http] = nexo_harness::free_addresses::<2>().unwrap().map(|address| address.to_string());
    let args = ["--grpc", &grpc, "--http", &http].map(str::to_owned);
    let server = cluster.serve(&data, &args);
    cluster.node_mut(harmed).server = Some(server);
    cluster.until_in_step(3);
    eventually("it leads", || {
        insist(cluster.node(harmed).server(), &["cluster", "transfer", harmed]);
        cluster.leader() == harmed
    });
    let before = id_of(&cluster, harmed);
    for number in [250, 400] {
        let (path, at) = find(&data, &body(number));
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0; 512], at + 1_000).unwrap();
    }
    assert_eq!(take(&cluster, COUNT), (0..COUNT).map(body).collect::<BTreeSet<_>>());
    eventually("it has come back as another", || id_of(&cluster, harmed) > before);
    cluster.until_in_step(3);
    let leader = cluster.leader();
    assert_ne!(leader, harmed);
    let shown = cluster.node(leader).server().json(&["queue", "show", "work"]);
    assert_eq!(shown[0]["stats"]["damaged"], 0, "{shown:?}");
}
