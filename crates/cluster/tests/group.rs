//! One group of three nodes: who leads, what is committed, and what waits for the disk.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use bytes::Bytes;
use common::{Cluster, GROUP, Member};
use nexo_cluster::store::{Cut, GroupStore};
use nexo_cluster::{
    Body, Change, EntryId, Event, Membership, Message, Payload, Refused, Rejected, Role, Snapshot,
};
use nexo_types::limits::RAFT_UNCOMMITTED_BYTES_MAX;
use nexo_types::{LogIndex, NodeId, Term};

fn all(data: &[&'static str]) -> Vec<Bytes> {
    data.iter().map(|data| Bytes::from_static(data.as_bytes())).collect()
}

#[test]
fn the_first_in_line_leads_and_what_it_proposes_is_committed_everywhere() {
    let mut cluster = Cluster::new(3, 1);
    assert_eq!(cluster.elect(), 1);
    cluster.propose(1, "a");
    cluster.propose(1, "b");
    cluster.settle();
    cluster.ticks(4);
    for id in 1..=3 {
        assert_eq!(cluster.member(id).committed(), all(&["a", "b"]), "node {id}");
    }
    let refused = cluster.group(2).propose(Bytes::from_static(b"c"));
    assert_eq!(refused, Err(Refused::NotLeader { leader: Some(NodeId(1)) }));
}

#[test]
fn a_follower_confirms_nothing_before_its_sync() {
    let mut cluster = Cluster::new(3, 1);
    cluster.elect();
    cluster.member(2).syncs = false;
    cluster.member(3).syncs = false;
    cluster.propose(1, "a");
    cluster.settle();
    assert_eq!(cluster.member(1).committed(), all(&[]), "one sync is no majority of three");
    cluster.member(3).sync();
    cluster.settle();
    assert_eq!(cluster.member(1).committed(), all(&["a"]));
}

#[test]
fn a_leader_counts_itself_only_after_its_own_sync() {
    let mut cluster = Cluster::new(3, 1);
    cluster.elect();
    cluster.cut_off.insert(NodeId(3));
    cluster.member(1).syncs = false;
    cluster.propose(1, "a");
    cluster.settle();
    assert_eq!(cluster.member(1).committed(), all(&[]));
    cluster.member(1).sync();
    cluster.settle();
    assert_eq!(cluster.member(1).committed(), all(&["a"]));
}

#[test]
fn a_vote_leaves_after_its_sync_and_is_remembered() {
    let mut cluster = Cluster::new(3, 1);
    cluster.elect();
    cluster.ticks(2);
    cluster.cut_off.insert(NodeId(1));
    cluster.member(2).syncs = false;
    cluster.member(3).syncs = false;
    cluster.ticks(60);
    assert_eq!(cluster.leader(), None, "nobody can promise a vote, so nobody is elected");
    // Whoever voted and loses that by a power cut has told nobody.
    cluster.member(3).restart(Cut::Unsynced);
    cluster.member(2).syncs = true;
    cluster.member(3).syncs = true;
    cluster.settle();
    let leader = cluster.elect();
    assert!(leader != 1);
    let term = cluster.group(leader).term();
    let vote = cluster.member(3).store.recover(GROUP).unwrap().hard_state;
    assert_eq!((vote.term, vote.vote), (term, Some(NodeId(leader))));
}

#[test]
fn a_leader_that_is_cut_off_steps_down_and_its_proposals_are_unknown() {
    let mut cluster = Cluster::new(3, 1);
    cluster.elect();
    cluster.propose(1, "a");
    cluster.settle();
    cluster.cut_off.insert(NodeId(1));
    cluster.propose(1, "lost");
    cluster.settle();
    let leader = cluster.elect();
    assert!(leader != 1);
    cluster.propose(leader, "b");
    cluster.ticks(30);
    assert_ne!(cluster.group(1).role(), Role::Leader, "it heard of no majority");
    let told = cluster.member(1).events.iter().any(|(_, event)| matches!(event, Event::Deposed { .. }));
    assert!(told);
    cluster.cut_off.clear();
    cluster.ticks(40);
    for id in 1..=3 {
        assert_eq!(cluster.member(id).committed(), all(&["a", "b"]), "node {id}");
    }
}

#[test]
fn a_leader_whose_process_is_gone_is_replaced_at_once() {
    let mut cluster = Cluster::new(3, 1);
    assert_eq!(cluster.elect(), 1);
    cluster.cut_off.insert(NodeId(1));
    for id in 2..=3 {
        cluster.group(id).lost_contact(NodeId(1));
        assert_eq!(cluster.group(id).leader(), None);
    }
    cluster.ticks(3);
    assert_eq!(cluster.leader(), Some(2), "150 ms are enough for the first in line");
}

#[test]
fn the_next_in_line_takes_over_if_the_first_may_not() {
    let mut cluster = Cluster::new(3, 1);
    assert_eq!(cluster.elect(), 1);
    cluster.cut_off.insert(NodeId(2));
    cluster.propose(1, "a");
    cluster.settle();
    cluster.cut_off = [NodeId(1)].into();
    cluster.group(2).lost_contact(NodeId(1));
    cluster.group(3).lost_contact(NodeId(1));
    cluster.ticks(7);
    assert_eq!(cluster.leader(), Some(3), "node 2 lacks an entry");
}

#[test]
fn who_stands_last_in_line_leaves_it_to_the_others() {
    let mut cluster = Cluster::new(3, 1);
    assert_eq!(cluster.elect(), 1);
    // As a node does whose disk is damaged.
    cluster.group(2).set_rank(usize::MAX);
    cluster.cut_off.insert(NodeId(1));
    cluster.group(2).lost_contact(NodeId(1));
    cluster.group(3).lost_contact(NodeId(1));
    cluster.ticks(7);
    assert_eq!(cluster.leader(), Some(3));
}

#[test]
fn who_alone_has_lost_contact_deposes_nobody() {
    let mut cluster = Cluster::new(3, 1);
    assert_eq!(cluster.elect(), 1);
    let term = cluster.group(1).term();
    for lost in [NodeId(3), NodeId(1)] {
        cluster.group(2).lost_contact(lost);
        cluster.ticks(30);
    }
    assert_eq!((cluster.leader(), cluster.group(1).term()), (Some(1), term));
    assert_eq!(cluster.group(2).leader(), Some(NodeId(1)), "it hears of it and follows again");
}

#[test]
fn a_proposal_of_a_lost_leader_that_a_majority_has_is_committed_by_the_next() {
    let mut cluster = Cluster::new(3, 1);
    cluster.elect();
    cluster.cut_off.insert(NodeId(3));
    cluster.propose(1, "a");
    // It arrives at node 2 and is synced there; its answer never comes.
    let out = cluster.group(1).take_output();
    for (to, message) in out.messages {
        if to == NodeId(2) {
            cluster.group(2).receive(NodeId(1), message).unwrap();
        }
    }
    cluster.cut_off = [NodeId(1)].into();
    assert_eq!(cluster.elect(), 2, "node 3 lacks an entry");
    cluster.ticks(4);
    assert_eq!(cluster.member(2).committed(), all(&["a"]));
    assert_eq!(cluster.member(3).committed(), all(&["a"]));
}

#[test]
fn leadership_is_handed_over_without_an_election_timeout() {
    let mut cluster = Cluster::new(3, 1);
    cluster.elect();
    assert_eq!(cluster.group(1).hand_over(NodeId(9)), Err(Refused::NotVoter(NodeId(9))));
    cluster.group(1).hand_over(NodeId(3)).unwrap();
    assert_eq!(cluster.group(1).propose(Bytes::from_static(b"x")), Err(Refused::HandingOver));
    cluster.settle();
    assert_eq!(cluster.leader(), Some(3));
    assert_eq!(cluster.group(1).leader(), Some(NodeId(3)));
}

#[test]
fn a_leader_that_is_no_voter_any_more_hands_over() {
    let mut cluster = Cluster::new(3, 1);
    cluster.elect();
    // Node 1 removes node 2, which alone has heard of it, and is elected before it is committed.
    cluster.cut_off.insert(NodeId(3));
    cluster.member(2).syncs = false;
    cluster.group(1).change_members(Change::Remove(NodeId(2))).unwrap();
    cluster.settle();
    cluster.cut_off = [NodeId(1)].into();
    cluster.member(2).syncs = true;
    assert_eq!(cluster.elect(), 2, "node 3 lacks an entry");
    cluster.ticks(4);
    assert!(!cluster.group(2).members().contains(NodeId(2)));
    assert!(cluster.group(2).propose(Bytes::from_static(b"a")).is_err(), "nobody would hear of it");
    cluster.cut_off.clear();
    cluster.ticks(60);
    let leader = cluster.elect();
    assert_ne!(leader, 2, "it is no member");
    let change = cluster.group(leader).change_members(Change::AddLearner(NodeId(2)));
    assert!(change.is_ok(), "members can change again: {change:?}");
}

#[test]
fn a_check_of_leadership_needs_a_majority() {
    let mut cluster = Cluster::new(3, 1);
    cluster.elect();
    let check = cluster.group(1).check_leadership().unwrap();
    let passed = |cluster: &mut Cluster, check| {
        let events = &cluster.member(1).events;
        events.iter().any(|(_, event)| *event == Event::LeadershipChecked { check })
    };
    cluster.settle();
    assert!(passed(&mut cluster, check));
    cluster.cut_off.insert(NodeId(1));
    let check = cluster.group(1).check_leadership().unwrap();
    cluster.settle();
    assert!(!passed(&mut cluster, check), "another may lead by now");
}

#[test]
fn a_new_node_learns_from_a_snapshot_and_then_votes() {
    let mut cluster = Cluster::new(3, 1);
    cluster.elect();
    cluster.propose(1, "a");
    cluster.settle();
    cluster.members.insert(NodeId(4), Member::empty(4, 1));
    cluster.group(1).change_members(Change::AddLearner(NodeId(4))).unwrap();
    let second = cluster.group(1).change_members(Change::Remove(NodeId(3)));
    assert_eq!(second, Err(Refused::ChangePending));
    cluster.ticks(4);
    let wanted = |(_, event): &(_, Event)| matches!(event, Event::SnapshotWanted);
    assert!(cluster.member(1).events.iter().any(wanted));
    let last = EntryId::new(cluster.group(1).term(), cluster.group(1).applied());
    let members = cluster.group(1).members().clone();
    let data = Bytes::from_static(b"state");
    cluster.group(1).offer_snapshot(Snapshot { last, members, data: data.clone() });
    cluster.ticks(8);
    let restored = cluster.member(4).events.iter().find_map(|(_, event)| match event {
        Event::Restored(snapshot) => Some(snapshot.data.clone()),
        _ => None,
    });
    assert_eq!(restored, Some(data));
    cluster.group(1).change_members(Change::AddVoter(NodeId(4))).unwrap();
    cluster.ticks(4);
    cluster.group(1).change_members(Change::Remove(NodeId(2))).unwrap();
    cluster.ticks(4);
    assert_eq!(cluster.group(1).change_members(Change::Remove(NodeId(1))), Err(Refused::BadChange));
    cluster.cut_off.insert(NodeId(2));
    cluster.propose(1, "b");
    cluster.ticks(4);
    assert_eq!(cluster.member(4).committed(), all(&["b"]));
    let expected = Membership::of([1, 3, 4].map(NodeId));
    assert_eq!(cluster.group(4).members(), &expected);
    // It knows them after a restart as well.
    cluster.member(4).restart(Cut::Unsynced);
    cluster.ticks(4);
    assert_eq!(cluster.group(4).members(), &expected);
}

#[test]
fn a_single_voter_leads_at_once_and_is_as_careful() {
    let mut cluster = Cluster::new(1, 1);
    cluster.group(1).campaign();
    cluster.settle();
    assert_eq!(cluster.leader(), Some(1));
    cluster.member(1).syncs = false;
    cluster.propose(1, "a");
    cluster.settle();
    assert_eq!(cluster.member(1).committed(), all(&[]));
    cluster.member(1).sync();
    cluster.settle();
    assert_eq!(cluster.member(1).committed(), all(&["a"]));
}

#[test]
fn what_is_proposed_before_anything_else_happens_is_one_message() {
    let mut cluster = Cluster::new(3, 1);
    cluster.elect();
    let (before, term) = (cluster.group(1).last(), cluster.group(1).term());
    for (number, data) in ["a", "b", "c"].into_iter().enumerate() {
        let id = cluster.group(1).propose(Bytes::from_static(data.as_bytes()));
        assert_eq!(id, Ok(EntryId::new(term, LogIndex(before.0 + 1 + number as u64))));
    }
    assert_eq!(cluster.group(1).last().0, before.0 + 3);
    assert_eq!(cluster.group(1).term_of(LogIndex(before.0 + 3)), Some(term));
    let output = cluster.group(1).take_output();
    let sent: Vec<&Body> =
        output.messages.iter().filter(|(to, _)| *to == NodeId(2)).map(|(_, message)| &message.body).collect();
    let [Body::Append { entries, .. }] = sent[..] else { panic!("{sent:?}") };
    assert_eq!(entries.len(), 3);
    assert_eq!(output.writes.iter().map(|write| write.entries.len()).sum::<usize>(), 3);
}

#[test]
fn proposals_that_wait_to_be_given_on_count_as_uncommitted() {
    let mut cluster = Cluster::new(3, 1);
    cluster.elect();
    let large = Bytes::from(vec![0; RAFT_UNCOMMITTED_BYTES_MAX / 2]);
    cluster.group(1).propose(large.clone()).unwrap();
    cluster.group(1).propose(large).unwrap();
    assert_eq!(cluster.group(1).propose(Bytes::from_static(b"a")), Err(Refused::Busy));
    cluster.settle();
    cluster.group(1).propose(Bytes::from_static(b"a")).unwrap();
}

#[test]
fn a_single_voter_is_alone_until_a_change_is_proposed() {
    let mut cluster = Cluster::new(1, 1);
    cluster.elect();
    assert!(cluster.group(1).is_alone());
    cluster.members.insert(NodeId(2), Member::empty(2, 1));
    cluster.group(1).change_members(Change::AddLearner(NodeId(2))).unwrap();
    assert!(!cluster.group(1).is_alone(), "it may bring a voter");
    cluster.settle();
    assert!(cluster.group(1).is_alone(), "a learner has no vote");
    let mut three = Cluster::new(3, 1);
    three.elect();
    assert!(!three.group(1).is_alone());
}

#[test]
fn the_only_member_keeps_no_bytes_and_a_learner_gets_them_from_its_disk() {
    let mut cluster = Cluster::new(1, 1);
    cluster.elect();
    let first = cluster.group(1).propose_stored(3).unwrap();
    cluster.group(1).propose_stored(3).unwrap();
    cluster.settle();
    let stored = |cluster: &mut Cluster| {
        let told = cluster.member(1).events.iter().filter_map(|(_, event)| match event {
            Event::Committed { entry, proposed_here } => Some((entry.clone(), *proposed_here)),
            _ => None,
        });
        told.filter(|(entry, _)| entry.payload == Payload::Stored).collect::<Vec<_>>()
    };
    let told = stored(&mut cluster);
    assert_eq!((told.len(), told[0].0.id), (2, first));
    assert!(told.iter().all(|(entry, proposed_here)| entry.payload.is_empty() && *proposed_here));
    cluster.members.insert(NodeId(2), Member::empty(2, 1));
    cluster.group(1).change_members(Change::AddLearner(NodeId(2))).unwrap();
    assert!(!cluster.group(1).is_only_member());
    let members = Membership { voters: [NodeId(1)].into(), learners: [NodeId(2)].into() };
    // The state before the two: what the learner needs besides is on the disk of the first node only.
    let last = EntryId::new(first.term, LogIndex(first.index.0 - 1));
    cluster.group(1).offer_snapshot(Snapshot { last, members, data: Bytes::new() });
    cluster.member(1).reads_as = Some(Bytes::from_static(b"abc"));
    cluster.ticks(12);
    assert_eq!(cluster.member(2).committed(), all(&["abc", "abc"]));
    cluster.propose(1, "d");
    cluster.ticks(4);
    assert_eq!(cluster.member(2).committed(), all(&["abc", "abc", "d"]));
}

#[test]
fn a_single_voter_tells_a_learner_nothing_of_a_term_that_it_may_forget() {
    let mut cluster = Cluster::new(1, 1);
    cluster.elect();
    cluster.members.insert(NodeId(2), Member::empty(2, 1));
    cluster.group(1).change_members(Change::AddLearner(NodeId(2))).unwrap();
    cluster.settle();
    let last = EntryId::new(cluster.group(1).term(), cluster.group(1).applied());
    let members = cluster.group(1).members().clone();
    cluster.group(1).offer_snapshot(Snapshot { last, members, data: Bytes::new() });
    cluster.ticks(8);
    assert_eq!(cluster.group(2).leader(), Some(NodeId(1)));
    let before = cluster.group(2).term();
    cluster.member(1).restart(Cut::Unsynced);
    cluster.member(1).syncs = false;
    cluster.ticks(30);
    assert_eq!(cluster.group(1).role(), Role::Leader, "of itself alone");
    assert_eq!(cluster.group(2).term(), before);
    cluster.member(1).sync();
    cluster.settle();
    assert!(cluster.group(2).term() > before);
}

#[test]
fn entries_that_are_gone_from_memory_are_fetched_for_a_slow_follower() {
    let mut cluster = Cluster::new(3, 1);
    cluster.elect();
    cluster.cut_off.insert(NodeId(3));
    let large = Bytes::from(vec![7; 900_000]);
    for _ in 0..12 {
        cluster.group(1).propose(large.clone()).unwrap();
        cluster.settle();
    }
    cluster.cut_off.clear();
    cluster.ticks(20);
    assert_eq!(cluster.member(3).committed(), vec![large; 12]);
}

#[test]
fn what_no_sound_peer_sends_is_rejected_and_harms_nobody() {
    let mut cluster = Cluster::new(3, 1);
    cluster.elect();
    let term = cluster.group(1).term();
    let heartbeat = Body::Heartbeat { commit: LogIndex(900), check: None };
    let told = cluster.group(2).receive(NodeId(1), Message { term, body: heartbeat });
    let last = cluster.group(2).last();
    assert_eq!(told, Err(Rejected::LostEntries { claimed: LogIndex(900), last }));
    let confirm = Body::Appended { last: LogIndex(900), commit: LogIndex(1) };
    let told = cluster.group(1).receive(NodeId(2), Message { term, body: confirm });
    let unsent = Rejected::Unsent { from: NodeId(2), claimed: LogIndex(900), last: cluster.group(1).last() };
    assert_eq!(told, Err(unsent));
    let later = EntryId::new(Term(term.0 + 1), last);
    let append = Body::Append { after: later, commit: last, entries: vec![] };
    let told = cluster.group(2).receive(NodeId(1), Message { term, body: append });
    assert_eq!(told, Err(Rejected::BadTerms));
    let own = cluster.group(2).receive(NodeId(2), Message { term, body: Body::TimeoutNow });
    assert_eq!(own, Err(Rejected::OwnMessage));
    cluster.propose(1, "a");
    cluster.settle();
    assert_eq!(cluster.member(1).committed(), all(&["a"]));
}

#[test]
fn a_node_that_lost_what_it_promised_is_not_opened() {
    use nexo_cluster::{Group, GroupOptions, OpenError};
    let mut cluster = Cluster::new(3, 1);
    cluster.elect();
    cluster.propose(1, "a");
    cluster.ticks(4);
    let mut recovered = cluster.member(2).store.recover(GROUP).unwrap();
    recovered.entries.pop();
    let options = GroupOptions { id: GROUP, node: NodeId(2), rank: 1, seed: 7 };
    let refused = Group::open(options, recovered).unwrap_err();
    assert!(matches!(refused, OpenError::LostEntries { .. }), "{refused}");
}
