//! Many groups on three nodes: leaders spread, and what idle groups cost.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use std::collections::BTreeMap;
use std::time::Instant;

use common::Cluster;
use nexo_cluster::{Role, TICK};
use nexo_types::NodeId;

/// 16 for data and one for the catalog.
const GROUPS: u32 = 17;

#[test]
fn every_node_leads_its_share() {
    let mut cluster = Cluster::new(3, GROUPS);
    cluster.ticks(30);
    let mut shares: BTreeMap<NodeId, u32> = BTreeMap::new();
    for (id, member) in &cluster.members {
        let leads = member.node.groups().filter(|(_, group)| group.role() == Role::Leader).count();
        shares.insert(*id, leads as u32);
    }
    assert_eq!(shares.values().sum::<u32>(), GROUPS);
    assert!(shares.values().all(|share| (5..=6).contains(share)), "{shares:?}");
}

/// Between two nodes there are two envelopes each way and heartbeat, whatever the number of groups: the heartbeats of what
/// the one leads, and the answers to the other's.
#[test]
fn heartbeats_of_idle_groups_travel_together() {
    let mut cluster = Cluster::new(3, GROUPS);
    cluster.ticks(60);
    let (envelopes, bytes) = (cluster.envelopes, cluster.bytes);
    let seconds = 60;
    let begun = Instant::now();
    cluster.ticks((seconds * 1_000 / TICK.0) as usize);
    let each_second = (cluster.envelopes - envelopes) / seconds;
    let kilobytes = (cluster.bytes - bytes) / seconds / 1_000;
    // Six directions, ten heartbeats a second, two envelopes.
    assert_eq!(each_second, 120);
    let micros = begun.elapsed().as_micros() as u64 / seconds / 3;
    println!("idle, {GROUPS} groups, 3 nodes: {each_second} envelopes and {kilobytes} kB a second in all;");
    println!("each node takes {micros} µs of a processor a second");
    assert!(kilobytes < 50, "{kilobytes} kB");
}
