//! What a power cut leaves of a store is a prefix of what was written, and all that was synced.
#![allow(clippy::unwrap_used, reason = "a test may")]

use bytes::Bytes;
use nexo_cluster::store::{Cut, GroupStore, Harm, Mark, MemoryStore, Recovered, StoreError, first_write};
use nexo_cluster::{
    Change, EntryId, GroupEntry, HardState, Membership, Payload, Snapshot, Write, WriteNumber,
};
use nexo_types::{LogIndex, NodeId, RaftGroupId, Term};

const ONE: RaftGroupId = RaftGroupId(1);
const TWO: RaftGroupId = RaftGroupId(2);

fn id(term: u64, index: u64) -> EntryId {
    EntryId::new(Term(term), LogIndex(index))
}

fn write() -> Write {
    Write {
        number: WriteNumber(0),
        installed: None,
        taken: None,
        purged: None,
        entries: Vec::new(),
        hard_state: None,
        is_urgent: true,
    }
}

fn entries(term: u64, indexes: std::ops::RangeInclusive<u64>) -> Write {
    let entry = |index| {
        let data = format!("term {term}, entry {index}").into_bytes();
        GroupEntry { id: id(term, index), payload: Payload::Data(data.into()) }
    };
    Write { entries: indexes.map(entry).collect(), ..write() }
}

fn snapshot(term: u64, index: u64) -> Snapshot {
    let members = Membership::of([1, 2, 3].map(NodeId));
    Snapshot { last: id(term, index), members, data: Bytes::from_static(b"state") }
}

/// Two groups in turn: entries, some of which take the place of others, votes, members, snapshots.
fn story() -> Vec<(RaftGroupId, Write)> {
    let members = Membership::of([1, 2, 3].map(NodeId));
    let vote = HardState { term: Term(3), vote: Some(NodeId(2)), commit: LogIndex(4) };
    let change = GroupEntry { id: id(3, 6), payload: Payload::Change(Change::AddLearner(NodeId(4))) };
    vec![
        (ONE, first_write(members.clone())),
        (TWO, first_write(members)),
        (ONE, entries(2, 2..=6)),
        (TWO, entries(2, 2..=3)),
        (ONE, Write { hard_state: Some(vote), ..write() }),
        (ONE, entries(3, 4..=5)),
        (ONE, Write { entries: vec![change], ..write() }),
        (TWO, Write { taken: Some(snapshot(2, 3)), purged: Some(id(2, 2)), ..write() }),
        (TWO, entries(4, 4..=4)),
        (ONE, Write { installed: Some(snapshot(5, 20)), ..write() }),
        (ONE, entries(5, 21..=22)),
        (TWO, entries(4, 5..=6)),
    ]
}

fn state(store: &MemoryStore) -> (Recovered, Recovered, Option<Snapshot>) {
    (store.recover(ONE).unwrap(), store.recover(TWO).unwrap(), store.snapshot(TWO).unwrap())
}

#[test]
fn a_power_cut_at_any_byte_leaves_a_prefix_with_all_that_was_synced() {
    let story = story();
    for synced in 0..=story.len() {
        let mut store = MemoryStore::default();
        // What is stored after each of the writes, and where it ends.
        let mut states = vec![(Mark(0), state(&store))];
        for (number, (group, write)) in story.iter().enumerate() {
            if number == synced {
                store.sync();
            }
            let end = store.append(*group, write).unwrap();
            states.push((end, state(&store)));
        }
        if synced == story.len() {
            store.sync();
        }
        let (from, to) = (store.synced().0, store.end().0);
        for kept in 0..=to - from {
            let mut cut = store.clone();
            cut.cut(Cut::After(kept as usize));
            let expected = states.iter().rev().find(|(end, _)| end.0 <= from + kept).unwrap();
            assert_eq!(state(&cut), expected.1, "{synced} writes were synced, and {kept} bytes more");
        }
        let mut torn = store.clone();
        torn.cut(Cut::Torn);
        let whole = synced == story.len();
        assert_eq!(state(&torn), states[states.len() - if whole { 1 } else { 2 }].1);
    }
}

#[test]
fn an_entry_takes_the_place_of_all_from_its_index_on() {
    let mut store = MemoryStore::default();
    for (group, write) in &story()[..6] {
        store.append(*group, write).unwrap();
    }
    let found = store.read(ONE, LogIndex(2)..LogIndex(9), usize::MAX).unwrap();
    let ids: Vec<EntryId> = found.iter().map(|entry| entry.id).collect();
    assert_eq!(ids, [id(2, 2), id(2, 3), id(3, 4), id(3, 5)]);
    assert_eq!(store.read(ONE, LogIndex(2)..LogIndex(9), 1).unwrap().len(), 1, "one at least");
    let gone = store.read(ONE, LogIndex(1)..LogIndex(2), usize::MAX);
    assert_eq!(gone, Err(StoreError::NoEntry { group: ONE, index: LogIndex(1) }));
}

#[test]
fn a_full_disk_takes_nothing_and_goes_on_when_there_is_room() {
    let mut store = MemoryStore::default();
    for (group, write) in &story()[..3] {
        store.append(*group, write).unwrap();
    }
    let before = state(&store);
    store.set_room(Some(20));
    assert!(matches!(store.append(ONE, &entries(2, 7..=9)), Err(StoreError::Full(_))));
    assert_eq!(state(&store), before);
    store.set_room(None);
    store.append(ONE, &entries(2, 7..=9)).unwrap();
    assert_eq!(store.recover(ONE).unwrap().entries.len(), 8);
}

#[test]
fn damage_to_what_was_synced_is_never_taken_for_the_end_of_the_log() {
    let mut store = MemoryStore::default();
    for (group, write) in &story() {
        store.append(*group, write).unwrap();
        store.sync();
    }
    let proven = store.proven();
    let last = story().len() - 1;
    assert!(proven > 0 && (proven as u64) < store.synced().0, "of the last of {last} syncs nobody knows");
    let entries = |store: &MemoryStore| store.read(TWO, LogIndex(3)..LogIndex(9), usize::MAX);
    let whole = entries(&store).unwrap();
    for at in 0..proven {
        for harm in [Harm::Flip((at % 8) as u8), Harm::Zero(100)] {
            let mut harmed = store.clone();
            harmed.harm(at, harm);
            // While it is open: all is as it was, or it cannot be read.
            match entries(&harmed) {
                Ok(entries) => assert_eq!(entries, whole, "{harm:?} at {at}"),
                Err(error) => assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}"),
            }
            harmed.cut(Cut::Unsynced);
            for group in [ONE, TWO] {
                let opened = harmed.recover(group);
                assert!(matches!(opened, Err(StoreError::Damaged { .. })), "{harm:?} at {at}: {opened:?}");
            }
        }
    }
    store.cut(Cut::Unsynced);
    assert_eq!(store.proven(), proven, "what is whole is opened");
    assert_eq!(entries(&store).unwrap(), whole);
}
