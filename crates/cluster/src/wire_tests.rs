//! Whatever is written is read back, and whatever is read does no harm.

use nexo_types::limits::RAFT_APPEND_BYTES_MAX;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

use super::*;

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..300u64, 0..=RAFT_NUMBER_MAX, Just(RAFT_NUMBER_MAX)]
}

fn index() -> impl Strategy<Value = LogIndex> {
    number().prop_map(LogIndex)
}

fn id() -> impl Strategy<Value = EntryId> {
    (number(), index()).prop_map(|(term, index)| EntryId::new(Term(term), index))
}

fn node() -> impl Strategy<Value = NodeId> {
    (1..=RAFT_NUMBER_MAX).prop_map(NodeId)
}

fn payload() -> impl Strategy<Value = Payload> {
    prop_oneof![
        Just(Payload::Blank),
        vec(any::<u8>(), 1..200).prop_map(|data| Payload::Data(data.into())),
        node().prop_map(|node| Payload::Change(Change::AddVoter(node))),
        node().prop_map(|node| Payload::Change(Change::AddLearner(node))),
        node().prop_map(|node| Payload::Change(Change::Remove(node))),
    ]
}

fn append() -> impl Strategy<Value = Body> {
    let after = (number(), 0..RAFT_NUMBER_MAX / 2);
    (after, index(), vec((number(), payload()), 0..20)).prop_map(|((term, index), commit, payloads)| {
        let after = EntryId::new(Term(term), LogIndex(index));
        let numbered = payloads.into_iter().zip(index + 1..);
        let entries = numbered.map(|((term, payload), index)| GroupEntry {
            id: EntryId::new(Term(term), LogIndex(index)),
            payload,
        });
        Body::Append { after, commit, entries: entries.collect() }
    })
}

fn snapshot() -> impl Strategy<Value = Snapshot> {
    let members = btree_set(node(), 1..RAFT_MEMBERS_MAX).prop_flat_map(|all| (1..=all.len(), Just(all)));
    (number(), 1..=RAFT_NUMBER_MAX, members, vec(any::<u8>(), 0..200)).prop_map(
        |(term, index, (voters, all), data)| {
            let last = EntryId::new(Term(term), LogIndex(index));
            let voters_of = all.iter().copied().take(voters).collect();
            let learners = all.into_iter().skip(voters).collect();
            Snapshot { last, members: Membership { voters: voters_of, learners }, data: data.into() }
        },
    )
}

fn ballot() -> impl Strategy<Value = Ballot> {
    prop_oneof![Just(Ballot::Pre), Just(Ballot::Real), Just(Ballot::Transfer)]
}

fn message() -> impl Strategy<Value = Message> {
    let check = || proptest::option::of(number());
    let body = prop_oneof![
        append(),
        (index(), index()).prop_map(|(last, commit)| Body::Appended { last, commit }),
        (index(), id(), index()).prop_map(|(at, hint, commit)| Body::AppendRefused { at, hint, commit }),
        (ballot(), id(), id()).prop_map(|(ballot, last, commit)| Body::Vote { ballot, last, commit }),
        (ballot(), any::<bool>(), id()).prop_map(|(ballot, granted, commit)| Body::Voted {
            ballot,
            granted,
            commit
        }),
        (index(), check()).prop_map(|(commit, check)| Body::Heartbeat { commit, check }),
        (index(), check()).prop_map(|(commit, check)| Body::HeartbeatHeard { commit, check }),
        snapshot().prop_map(Body::Install),
        Just(Body::TimeoutNow),
    ];
    (1..=RAFT_NUMBER_MAX, body).prop_map(|(term, body)| Message { term: Term(term), body })
}

proptest! {
    #[test]
    fn every_message_reads_back_as_it_was_written(message in message()) {
        prop_assert_eq!(decode(&encode(&message).into()), Ok(message));
    }

    #[test]
    fn an_envelope_keeps_messages_in_order(all in vec((any::<u32>(), message()), 0..8)) {
        let all: Vec<_> = all.into_iter().map(|(group, message)| (RaftGroupId(group), message)).collect();
        let bytes = encode_envelope(all.iter().map(|(group, message)| (*group, message)));
        prop_assert_eq!(decode_envelope(&bytes.into()), Ok(all));
    }

    #[test]
    fn a_message_that_is_cut_off_or_goes_on_is_refused(message in message(), cut in any::<prop::sample::Index>()) {
        let mut bytes = encode(&message);
        let short = bytes[..cut.index(bytes.len())].to_vec();
        prop_assert!(decode(&short.into()).is_err());
        bytes.push(0);
        prop_assert_eq!(decode(&bytes.into()), Err(WireError::LeftOver(1)));
    }

    /// Whatever survives is a message that could have been written: it reads back.
    #[test]
    fn changed_bytes_never_panic(message in message(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut bytes = encode(&message);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(other) = decode(&bytes.into()) {
            prop_assert_eq!(decode(&encode(&other).into()), Ok(other));
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..300), kind in 0..12u8) {
        let _ = decode_envelope(&bytes.clone().into());
        let mut framed = vec![VERSION, kind];
        framed.extend_from_slice(&bytes);
        let _ = decode(&framed.into());
    }
}

#[test]
fn a_length_that_is_not_there_takes_no_memory() {
    let mut bytes = vec![VERSION, APPEND, 1, 1, 1, 1];
    varint::put(&mut bytes, RAFT_MESSAGE_ENTRIES_MAX as u64);
    assert_eq!(decode(&bytes.into()), Err(WireError::Short));
    let mut bytes = vec![VERSION, INSTALL, 1, 1, 1, 1, 9, 0];
    varint::put(&mut bytes, RAFT_NUMBER_MAX);
    assert_eq!(decode(&bytes.into()), Err(WireError::Short));
}

#[test]
fn as_many_small_entries_as_a_leader_sends_at_once_are_read() {
    let entries = (2..).take(RAFT_APPEND_BYTES_MAX).map(|index| GroupEntry {
        id: EntryId::new(Term(1), LogIndex(index)),
        payload: Payload::Data(Bytes::from_static(b"x")),
    });
    let after = EntryId::new(Term(1), LogIndex(1));
    let body = Body::Append { after, commit: LogIndex(1), entries: entries.collect() };
    let message = Message { term: Term(1), body };
    assert!(decode(&encode(&message).into()) == Ok(message));
}

#[test]
fn a_later_version_is_refused_by_name() {
    let mut bytes = encode(&Message { term: Term(1), body: Body::TimeoutNow });
    bytes[0] = VERSION + 1;
    let refusal = decode(&bytes.into()).unwrap_err();
    assert_eq!(refusal.to_string(), "the message is of version 2; this build of Nexo knows versions up to 1");
}

#[test]
fn a_message_without_a_term_is_refused() {
    assert_eq!(decode(&vec![VERSION, TIMEOUT_NOW, 0].into()), Err(WireError::Range("the term")));
}

/// The bytes of each kind, which must not change under version 1.
#[test]
fn the_bytes_of_version_1_stay_as_they_are() {
    let after = EntryId::new(Term(2), LogIndex(3));
    let entries = vec![
        GroupEntry { id: EntryId::new(Term(2), LogIndex(4)), payload: Payload::Blank },
        GroupEntry {
            id: EntryId::new(Term(4), LogIndex(5)),
            payload: Payload::Data(Bytes::from_static(b"hi")),
        },
        GroupEntry {
            id: EntryId::new(Term(4), LogIndex(6)),
            payload: Payload::Change(Change::Remove(NodeId(7))),
        },
    ];
    let message = Message { term: Term(4), body: Body::Append { after, commit: LogIndex(3), entries } };
    assert_eq!(encode(&message), [1, 1, 4, 2, 3, 3, 3, 2, 0, 0, 4, 1, 2, b'h', b'i', 4, 4, 7]);
    let body = Body::Vote { ballot: Ballot::Transfer, last: after, commit: after };
    assert_eq!(encode(&Message { term: Term(5), body }), [1, 4, 5, 2, 2, 3, 2, 3]);
    let body = Body::Heartbeat { commit: LogIndex(300), check: Some(9) };
    assert_eq!(encode(&Message { term: Term(5), body }), [1, 6, 5, 0xac, 2, 1, 9]);
    let members = Membership::of([NodeId(1), NodeId(2)]).after(Change::AddLearner(NodeId(3)));
    let body = Body::Install(Snapshot { last: after, members, data: Bytes::from_static(b"s") });
    assert_eq!(encode(&Message { term: Term(5), body }), [1, 8, 5, 2, 3, 2, 1, 2, 1, 3, 1, b's']);
}
