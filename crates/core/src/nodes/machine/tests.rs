//! Nodes over any changes: the same records give the same nodes, and no id is given twice.

use nexo_types::{Millis, NodeId, NodeName, limits};
use proptest::prelude::*;

use super::*;
use crate::machine::check::{Checked, START, check};
use crate::nodes::{JoinId, NodeAddress};

impl Checked for Nodes {
    fn read_back(_: &NodeRecord, bytes: Bytes) -> NodeRecord {
        <Self as Machine>::decode(&bytes).unwrap()
    }

    fn supply(&mut self, missing: Infallible, _: &[NodeRecord]) {
        match missing {}
    }

    fn prepare(&mut self) {}
}

fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

fn at(text: &str) -> NodeAddress {
    NodeAddress::new(text).unwrap()
}

fn add(text: &str, address: &str, join: u128) -> NodeChange {
    NodeChange::Add { name: name(text), address: at(address), join: JoinId(join) }
}

/// Makes a change, which is not refused.
fn make(nodes: &mut Nodes, change: &NodeChange) -> ClusterNode {
    let (records, node) = nodes.decide_change(START, change).unwrap();
    records.iter().for_each(|record| nodes.apply_record(record));
    node
}

fn a_change() -> impl Strategy<Value = NodeChange> {
    let a_name = || prop::sample::select(vec!["a", "b", "c"]).prop_map(name);
    let an_address = || prop::sample::select(vec!["h:1", "h:2", "h:3", "[::1]:4"]).prop_map(at);
    prop_oneof![
        4 => (a_name(), an_address(), 0..3u128)
            .prop_map(|(name, address, join)| NodeChange::Add { name, address, join: JoinId(join) }),
        2 => (a_name(), an_address()).prop_map(|(name, address)| NodeChange::SetAddress { name, address }),
        2 => a_name().prop_map(|name| NodeChange::Remove { name }),
        2 => (a_name(), 1..8u64, an_address(), 0..3u128).prop_map(|(name, id, address, join)| {
            NodeChange::Replace { name, id: NodeId(id), address, join: JoinId(join) }
        }),
    ]
}

proptest! {
    #[test]
    fn records_and_snapshots_give_the_same_nodes(
        changes in prop::collection::vec((0..5u64, a_change()), 0..40),
    ) {
        check(Nodes::new, changes.into_iter().map(|(wait, change)| (Millis(wait), change)).collect());
    }

    #[test]
    fn no_id_is_given_twice_and_names_and_addresses_are_unique(
        changes in prop::collection::vec(a_change(), 0..40),
    ) {
        let (mut nodes, mut given) = (Nodes::new(), Vec::new());
        for change in changes {
            let Ok((records, _)) = nodes.decide_change(START, &change) else { continue };
            for record in &records {
                if let NodeRecord::Added(node) = record {
                    prop_assert!(!given.contains(&node.id));
                    given.push(node.id);
                }
                nodes.apply_record(record);
            }
            for (index, node) in nodes.iter().enumerate() {
                for other in nodes.iter().skip(index + 1) {
                    prop_assert!(node.name != other.name && node.address != other.address);
                }
            }
        }
    }
}

#[test]
fn a_node_that_asks_again_is_the_same_and_one_with_other_data_is_not() {
    let mut nodes = Nodes::new();
    assert_eq!(make(&mut nodes, &add("a", "h:1", 7)).id, NodeId(1));
    assert_eq!(make(&mut nodes, &add("b", "h:2", 8)).id, NodeId(2));
    assert_eq!(make(&mut nodes, &add("b", "h:2", 8)).id, NodeId(2));
    let moved = make(&mut nodes, &add("b", "h:3", 8));
    assert_eq!((moved.id, nodes.by_id(NodeId(2)).unwrap().address.as_str()), (NodeId(2), "h:3"));
    let refused = nodes.decide_change(START, &add("b", "h:3", 9)).unwrap_err();
    assert_eq!(refused, NodeError::NameTaken { name: name("b") });
    let refused = nodes.decide_change(START, &add("c", "h:1", 9)).unwrap_err();
    assert_eq!(refused.to_string(), "node 'a' has the address h:1 already; each node needs one of its own");
}

#[test]
fn a_removed_node_comes_back_as_another() {
    let mut nodes = Nodes::new();
    make(&mut nodes, &add("a", "h:1", 7));
    make(&mut nodes, &NodeChange::Remove { name: name("a") });
    assert!(nodes.is_empty());
    let restored = Nodes::from_snapshot(&nodes.snapshot()).unwrap();
    assert_eq!(restored, nodes, "what is gone is remembered in the next id");
    assert_eq!(make(&mut nodes, &add("a", "h:1", 7)).id, NodeId(2));
    let refused = nodes.decide_change(START, &NodeChange::Remove { name: name("x") }).unwrap_err();
    assert_eq!(refused, NodeError::NoSuchNode { name: name("x") });
}

#[test]
fn a_node_that_lost_its_data_comes_back_in_its_own_place() {
    let mut nodes = Nodes::new();
    make(&mut nodes, &add("a", "h:1", 7));
    make(&mut nodes, &add("b", "h:2", 8));
    let replace =
        |join| NodeChange::Replace { name: name("b"), id: NodeId(2), address: at("h:2"), join: JoinId(join) };
    assert_eq!(make(&mut nodes, &replace(9)).id, NodeId(3));
    assert_eq!(nodes.iter().map(|node| node.id.0).collect::<Vec<_>>(), [1, 3]);
    // It asks again, and is the same.
    assert_eq!(make(&mut nodes, &replace(9)).id, NodeId(3));
    // What was left behind of the one before is refused, and so is one that was removed.
    let refused = nodes.decide_change(START, &replace(10)).unwrap_err();
    assert_eq!(refused, NodeError::NameTaken { name: name("b") });
    make(&mut nodes, &NodeChange::Remove { name: name("b") });
    let refused = nodes.decide_change(START, &replace(9)).unwrap_err();
    assert_eq!(refused, NodeError::NoSuchNode { name: name("b") });
}

#[test]
fn there_are_so_many_nodes_and_no_more() {
    let mut nodes = Nodes::new();
    for number in 1..=limits::RAFT_MEMBERS_MAX {
        make(&mut nodes, &add(&format!("n{number}"), &format!("h:{number}"), 1));
    }
    let refused = nodes.decide_change(START, &add("more", "h:999", 1)).unwrap_err();
    assert_eq!(refused, NodeError::TooMany { max: limits::RAFT_MEMBERS_MAX });
}

#[test]
fn what_a_later_version_wrote_is_refused_by_name() {
    let mut bytes = Nodes::new().snapshot().to_vec();
    assert!(Nodes::from_snapshot(&bytes).is_ok());
    // Behind the mark of a version.
    bytes[2] += 1;
    let refused = Nodes::from_snapshot(&bytes).unwrap_err().to_string();
    assert!(refused.contains("the snapshot of nodes"), "{refused}");
    let record = NodeRecord::Removed { id: NodeId(3) }.encode();
    for cut in 0..record.len() {
        assert!(NodeRecord::decode(&record[..cut]).is_err());
    }
}
