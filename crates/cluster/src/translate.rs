//! Between our types and the library's. Bytes of its own encoding are only ever made here, of values that were checked, and
//! read by the library alone.
#![allow(clippy::field_reassign_with_default, reason = "the library's types have private fields")]

use bytes::Bytes;
use nexo_types::{LogIndex, NodeId, Term, varint};
use protobuf::Message as _;
use raft::CAMPAIGN_TRANSFER;
use raft::eraftpb::{
    ConfChange, ConfChangeType, ConfState, Entry as RaftEntry, EntryType, HardState as RaftHardState,
    Message as RaftMessage, MessageType, Snapshot as RaftSnapshot,
};

use crate::entry::{EntryId, GroupEntry, HardState, Payload, Snapshot};
use crate::membership::{Change, Membership};
use crate::message::{Ballot, Body, Message};
use crate::wire::{Input, put_payload};

pub(crate) fn change_in(change: Change) -> ConfChange {
    let mut out = ConfChange::default();
    out.set_change_type(match change {
        Change::AddVoter(_) => ConfChangeType::AddNode,
        Change::AddLearner(_) => ConfChangeType::AddLearnerNode,
        Change::Remove(_) => ConfChangeType::RemoveNode,
    });
    out.node_id = change.node().0;
    out
}

/// A change as an entry. The library has it in its own form in `data`, we have it in ours in `context`.
fn put_change(out: &mut RaftEntry, change: Change) {
    out.set_entry_type(EntryType::EntryConfChange);
    let bytes = change_in(change).write_to_bytes();
    out.data = bytes.expect("two numbers can be encoded").into();
    let mut context = Vec::new();
    put_payload(&mut context, &Payload::Change(change));
    out.context = context.into();
}

/// What the library carries along with an entry of which only the disk has the bytes.
const STORED: &[u8] = &[1];

/// Whether only the disk has the bytes of this entry.
pub(crate) fn is_stored(entry: &RaftEntry) -> bool {
    entry.data.is_empty() && entry.get_entry_type() == EntryType::EntryNormal && !entry.context.is_empty()
}

/// A proposal: the library gives it its name.
pub(crate) fn proposal_in(payload: Payload) -> RaftEntry {
    let mut out = RaftEntry::default();
    match payload {
        Payload::Blank => {}
        Payload::Data(data) => out.data = data,
        Payload::Stored => out.context = Bytes::from_static(STORED),
        Payload::Change(change) => put_change(&mut out, change),
    }
    out
}

pub(crate) fn entry_in(entry: GroupEntry) -> RaftEntry {
    let mut out = proposal_in(entry.payload);
    out.term = entry.id.term.0;
    out.index = entry.id.index.0;
    out
}

pub(crate) fn entry_out(entry: &RaftEntry) -> GroupEntry {
    let id = EntryId::new(Term(entry.term), LogIndex(entry.index));
    let payload = match entry.get_entry_type() {
        EntryType::EntryNormal if is_stored(entry) => Payload::Stored,
        EntryType::EntryNormal if entry.data.is_empty() => Payload::Blank,
        EntryType::EntryNormal => Payload::Data(entry.data.clone()),
        EntryType::EntryConfChange => {
            Input::of(&entry.context).payload().expect("the context is written with the entry")
        }
        EntryType::EntryConfChangeV2 => unreachable!("members change one at a time"),
    };
    GroupEntry { id, payload }
}

pub(crate) fn hard_state_in(state: &HardState) -> RaftHardState {
    let mut out = RaftHardState::default();
    out.term = state.term.0;
    out.vote = state.vote.map_or(0, |node| node.0);
    out.commit = state.commit.0;
    out
}

pub(crate) fn hard_state_out(state: &RaftHardState) -> HardState {
    let vote = (state.vote != 0).then_some(NodeId(state.vote));
    HardState { term: Term(state.term), vote, commit: LogIndex(state.commit) }
}

pub(crate) fn members_in(members: &Membership) -> ConfState {
    let mut out = ConfState::default();
    out.voters = members.voters.iter().map(|node| node.0).collect();
    out.learners = members.learners.iter().map(|node| node.0).collect();
    out
}

fn members_out(state: &ConfState) -> Membership {
    let nodes = |ids: &[u64]| ids.iter().copied().map(NodeId).collect();
    Membership { voters: nodes(&state.voters), learners: nodes(&state.learners) }
}

pub(crate) fn snapshot_in(snapshot: Snapshot) -> RaftSnapshot {
    let mut out = RaftSnapshot::default();
    let meta = out.mut_metadata();
    meta.set_conf_state(members_in(&snapshot.members));
    meta.index = snapshot.last.index.0;
    meta.term = snapshot.last.term.0;
    out.data = snapshot.data;
    out
}

pub(crate) fn snapshot_out(snapshot: &RaftSnapshot) -> Snapshot {
    let meta = snapshot.get_metadata();
    Snapshot {
        last: EntryId::new(Term(meta.term), LogIndex(meta.index)),
        members: members_out(meta.get_conf_state()),
        data: snapshot.data.clone(),
    }
}

fn check_in(check: Option<u64>) -> Bytes {
    let mut out = Vec::new();
    if let Some(check) = check {
        varint::put(&mut out, check);
    }
    out.into()
}

/// The number of a check of leadership, from what the library carries along with it.
pub(crate) fn check_out(context: &[u8]) -> Option<u64> {
    varint::take(&mut &*context)
}

/// What a check of leadership carries along.
pub(crate) fn check_context(check: u64) -> Vec<u8> {
    check_in(Some(check)).to_vec()
}

pub(crate) fn message_in(from: NodeId, to: NodeId, message: Message) -> RaftMessage {
    let mut out = RaftMessage::default();
    out.from = from.0;
    out.to = to.0;
    out.term = message.term.0;
    let kind = match message.body {
        Body::Append { after, commit, entries } => {
            out.index = after.index.0;
            out.log_term = after.term.0;
            out.commit = commit.0;
            out.entries = entries.into_iter().map(entry_in).collect::<Vec<_>>().into();
            MessageType::MsgAppend
        }
        Body::Appended { last, commit } => {
            out.index = last.0;
            out.commit = commit.0;
            MessageType::MsgAppendResponse
        }
        Body::AppendRefused { at, hint, commit } => {
            out.reject = true;
            out.index = at.0;
            out.reject_hint = hint.index.0;
            out.log_term = hint.term.0;
            out.commit = commit.0;
            MessageType::MsgAppendResponse
        }
        Body::Vote { ballot, last, commit } => {
            out.index = last.index.0;
            out.log_term = last.term.0;
            out.commit = commit.index.0;
            out.commit_term = commit.term.0;
            match ballot {
                Ballot::Pre => MessageType::MsgRequestPreVote,
                Ballot::Real => MessageType::MsgRequestVote,
                Ballot::Transfer => {
                    out.context = Bytes::from_static(CAMPAIGN_TRANSFER);
                    MessageType::MsgRequestVote
                }
            }
        }
        Body::Voted { ballot, granted, commit } => {
            out.reject = !granted;
            out.commit = commit.index.0;
            out.commit_term = commit.term.0;
            match ballot {
                Ballot::Pre => MessageType::MsgRequestPreVoteResponse,
                Ballot::Real | Ballot::Transfer => MessageType::MsgRequestVoteResponse,
            }
        }
        Body::Heartbeat { commit, check } => {
            out.commit = commit.0;
            out.context = check_in(check);
            MessageType::MsgHeartbeat
        }
        Body::HeartbeatHeard { commit, check } => {
            out.commit = commit.0;
            out.context = check_in(check);
            MessageType::MsgHeartbeatResponse
        }
        Body::Install(snapshot) => {
            out.set_snapshot(snapshot_in(snapshot));
            MessageType::MsgSnapshot
        }
        Body::TimeoutNow => MessageType::MsgTimeoutNow,
    };
    out.set_msg_type(kind);
    out
}

/// What the library wants to be sent, and to whom. `None` for what it would forward on behalf of others: we do not.
pub(crate) fn message_out(message: &RaftMessage) -> Option<(NodeId, Message)> {
    let commit = LogIndex(message.commit);
    let commit_id = EntryId::new(Term(message.commit_term), commit);
    let named = EntryId::new(Term(message.log_term), LogIndex(message.index));
    let body = match message.get_msg_type() {
        MessageType::MsgAppend => {
            let entries = message.entries.iter().map(entry_out).collect();
            Body::Append { after: named, commit, entries }
        }
        MessageType::MsgAppendResponse if message.reject => {
            let hint = EntryId::new(Term(message.log_term), LogIndex(message.reject_hint));
            Body::AppendRefused { at: named.index, hint, commit }
        }
        MessageType::MsgAppendResponse => Body::Appended { last: named.index, commit },
        MessageType::MsgRequestPreVote => Body::Vote { ballot: Ballot::Pre, last: named, commit: commit_id },
        MessageType::MsgRequestVote => {
            let transfer = message.context == CAMPAIGN_TRANSFER;
            let ballot = if transfer { Ballot::Transfer } else { Ballot::Real };
            Body::Vote { ballot, last: named, commit: commit_id }
        }
        MessageType::MsgRequestPreVoteResponse => {
            Body::Voted { ballot: Ballot::Pre, granted: !message.reject, commit: commit_id }
        }
        MessageType::MsgRequestVoteResponse => {
            Body::Voted { ballot: Ballot::Real, granted: !message.reject, commit: commit_id }
        }
        MessageType::MsgHeartbeat => Body::Heartbeat { commit, check: check_out(&message.context) },
        MessageType::MsgHeartbeatResponse => {
            Body::HeartbeatHeard { commit, check: check_out(&message.context) }
        }
        MessageType::MsgSnapshot => Body::Install(snapshot_out(message.get_snapshot())),
        MessageType::MsgTimeoutNow => Body::TimeoutNow,
        MessageType::MsgHup
        | MessageType::MsgBeat
        | MessageType::MsgPropose
        | MessageType::MsgUnreachable
        | MessageType::MsgSnapStatus
        | MessageType::MsgCheckQuorum
        | MessageType::MsgTransferLeader
        | MessageType::MsgReadIndex
        | MessageType::MsgReadIndexResp => return None,
    };
    Some((NodeId(message.to), Message { term: Term(message.term), body }))
}
