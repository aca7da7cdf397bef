//! The power is cut at every operation of the disk while nodes of a cluster come, move and go: what was answered is there, what was
//! asked for and not answered is there as a whole or not at all, and no id is given twice.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;

use common::*;
use nexo_broker::cluster_nodes::{JoinId, NodeAddress, NodeChange, Nodes};
use nexo_broker::{Broker, BrokerOptions, NewMessage, NodeChangeError, QueueConfig};
use nexo_log::disk::FaultyDisk;
use nexo_types::{NodeId, NodeName};

fn options() -> BrokerOptions {
    BrokerOptions { segment_bytes: 16 * 1024, ..BrokerOptions::new("faulty") }
}

fn add(text: &str, port: u16) -> NodeChange {
    let address = NodeAddress::new(&format!("{text}.example:{port}")).unwrap();
    NodeChange::Add { name: NodeName::new(text).unwrap(), address, join: JoinId(port.into()) }
}

fn remove(text: &str) -> NodeChange {
    NodeChange::Remove { name: NodeName::new(text).unwrap() }
}

fn steps() -> Vec<NodeChange> {
    let moved = NodeAddress::new("b.example:9").unwrap();
    vec![
        add("a", 1),
        add("b", 2),
        add("c", 3),
        NodeChange::SetAddress { name: NodeName::new("b").unwrap(), address: moved },
        remove("c"),
        add("c", 4),
        remove("a"),
        add("d", 5),
    ]
}

/// What a run was told: the nodes as answered, and as they are if what was asked for last has come to be.
struct Told {
    answered: Vec<(NodeId, String)>,
    asked: Vec<(NodeId, String)>,
    given: u64,
    steps: usize,
}

fn shown(nodes: &Nodes) -> Vec<(NodeId, String)> {
    nodes.iter().map(|node| (node.id, format!("{} at {}", node.name, node.address))).collect()
}

/// By the rules alone.
fn after(known: &[(NodeId, String)], change: &NodeChange, given: &mut u64) -> Vec<(NodeId, String)> {
    let mut nodes = known.to_vec();
    let is = |text: &str, name: &NodeName| text.starts_with(&format!("{name} at "));
    match change {
        NodeChange::Add { name, address, .. } => {
            *given += 1;
            nodes.push((NodeId(*given), format!("{name} at {address}")));
        }
        NodeChange::SetAddress { name, address } => {
            let node = nodes.iter_mut().find(|(_, text)| is(text, name)).unwrap();
            node.1 = format!("{name} at {address}");
        }
        NodeChange::Remove { name } => nodes.retain(|(_, text)| !is(text, name)),
        NodeChange::Replace { name, address, .. } => {
            nodes.retain(|(_, text)| !is(text, name));
            *given += 1;
            nodes.push((NodeId(*given), format!("{name} at {address}")));
        }
    }
    nodes
}

async fn run(disk: &FaultyDisk) -> Told {
    let mut told = Told { answered: Vec::new(), asked: Vec::new(), given: 0, steps: 0 };
    let Ok(broker) = Broker::open_on(Arc::new(disk.clone()), options()) else { return told };
    // The script ends where the power goes.
    let _ = script(&broker, &mut told).await;
    broker.shutdown().await;
    told
}

async fn script(broker: &Broker, told: &mut Told) -> Result<(), ()> {
    let filler = name("filler");
    broker.create_queue(&filler, QueueConfig::default()).await.map_err(|_| ())?;
    for change in steps() {
        told.asked = after(&told.answered, &change, &mut told.given);
        let node = broker.change_nodes(&change).await.map_err(|_| ())?;
        assert!(node.id.0 <= told.given, "ids count up by one");
        told.answered = told.asked.clone();
        told.steps += 1;
        assert_eq!(shown(&broker.nodes()), told.answered);
        // Enough to fill segments, so that there are checkpoints in between.
        let message = NewMessage::new("x".repeat(3000));
        broker.push(&filler, vec![message]).await.map_err(|_| ())?;
    }
    Ok(())
}

async fn check(told: &Told, disk: FaultyDisk, what: &str) {
    let broker = Broker::open_on(Arc::new(disk), options()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = shown(&broker.nodes());
    assert!(found == told.answered || found == told.asked, "{what}: {found:?} after {:?}", told.answered);
    let answered = told.answered.iter().map(|(id, _)| id.0).max().unwrap_or(0);
    if let Ok(next) = broker.change_nodes(&add("later", 77)).await {
        assert!(next.id.0 > answered && next.id.0 <= told.given + 1, "{what}: {} is given", next.id);
    }
    broker.shutdown().await;
}

#[test]
fn what_was_answered_is_there_wherever_the_power_goes() {
    let expect = |told: &Told| {
        assert_eq!(told.steps, steps().len(), "the script does what it should");
        let names: Vec<&str> = told.answered.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(names, ["b at b.example:9", "c at c.example:4", "d at d.example:5"]);
    };
    cut_power_everywhere(&run, expect, &check);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_outlive_restarts_and_a_removed_one_is_another_when_it_comes_back() {
    let disk = FaultyDisk::new();
    let open = || Broker::open_on(Arc::new(disk.clone()), options()).unwrap();
    let broker = open();
    assert!(broker.nodes().is_empty());
    assert_eq!(broker.change_nodes(&add("a", 1)).await.unwrap().id, NodeId(1));
    assert_eq!(broker.change_nodes(&add("a", 1)).await.unwrap().id, NodeId(1), "it asks again");
    let other_data = NodeChange::Add {
        name: NodeName::new("a").unwrap(),
        address: NodeAddress::new("a.example:1").unwrap(),
        join: JoinId(99),
    };
    let refused = broker.change_nodes(&other_data).await.unwrap_err();
    assert!(matches!(refused, NodeChangeError::Refused(_)), "{refused}");
    broker.change_nodes(&remove("a")).await.unwrap();
    broker.shutdown().await;
    let broker = open();
    assert!(broker.nodes().is_empty());
    assert_eq!(broker.change_nodes(&other_data).await.unwrap().id, NodeId(2));
    broker.shutdown().await;
    let broker = open();
    assert_eq!(shown(&broker.nodes()), [(NodeId(2), "a at a.example:1".to_owned())]);
    broker.shutdown().await;
}
