//! The bytes of messages between nodes. Nothing that comes from a network is parsed by anything else.
//!
//! A message is a version, a kind and numbers; entries and snapshots bring bytes with a length before them. No length is
//! believed: memory is taken for what is there. Fields are only ever added at the end of a kind, under a higher version.

use bytes::Bytes;
use nexo_types::limits::{
    RAFT_MEMBERS_MAX, RAFT_MESSAGE_BYTES_MAX, RAFT_MESSAGE_ENTRIES_MAX, RAFT_NUMBER_MAX,
};
use nexo_types::{LogIndex, NodeId, RaftGroupId, Term, varint};
use thiserror::Error;

use crate::entry::{EntryId, GroupEntry, Payload, Snapshot};
use crate::membership::{Change, Membership};
use crate::message::{Ballot, Body, Message};

/// The version that this build speaks.
pub const VERSION: u8 = 1;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// They end in the middle of something, or a length is wrong.
    #[error("the message ends too soon")]
    Short,
    /// They go on behind the message.
    #[error("the message has {0} bytes too many")]
    LeftOver(usize),
    /// A later release wrote it.
    #[error("the message is of version {0}; this build of Nexo knows versions up to {VERSION}")]
    LaterVersion(u8),
    /// A number that stands for nothing.
    #[error("{value} is no {what}")]
    Unknown {
        /// What was expected.
        what: &'static str,
        /// What was found.
        value: u8,
    },
    /// A number that no sound peer sends.
    #[error("{0} is out of range")]
    Range(&'static str),
}

const APPEND: u8 = 1;
const APPENDED: u8 = 2;
const APPEND_REFUSED: u8 = 3;
const VOTE: u8 = 4;
const VOTED: u8 = 5;
const HEARTBEAT: u8 = 6;
const HEARTBEAT_HEARD: u8 = 7;
const INSTALL: u8 = 8;
const TIMEOUT_NOW: u8 = 9;

const BLANK: u8 = 0;
const DATA: u8 = 1;
const ADD_VOTER: u8 = 2;
const ADD_LEARNER: u8 = 3;
const REMOVE: u8 = 4;

/// Messages of groups, packed for one peer: what is sent at a time travels together, whatever the number of groups.
pub fn encode_envelope<'a>(messages: impl IntoIterator<Item = (RaftGroupId, &'a Message)>) -> Vec<u8> {
    let mut out = vec![VERSION];
    for (group, message) in messages {
        let body = encode(message);
        // The group and the length are two numbers of at most ten bytes.
        out.reserve(body.len() + 20);
        varint::put(&mut out, u64::from(group.0));
        varint::put(&mut out, body.len() as u64);
        out.extend_from_slice(&body);
    }
    out
}

/// Takes an envelope apart.
///
/// # Errors
/// If the bytes are none. Then nothing in it counts.
pub fn decode_envelope(bytes: &Bytes) -> Result<Vec<(RaftGroupId, Message)>, WireError> {
    let mut input = Input::of(bytes);
    input.version()?;
    let mut messages = Vec::new();
    while !input.rest.is_empty() {
        let group = u32::try_from(input.number()?).map_err(|_| WireError::Range("the group"))?;
        messages.push((RaftGroupId(group), decode(&input.bytes()?)?));
    }
    Ok(messages)
}

/// The bytes of a message.
#[must_use]
pub fn encode(message: &Message) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + data_bytes(&message.body));
    out.push(VERSION);
    let kind_at = out.len();
    out.push(0);
    varint::put(&mut out, message.term.0);
    out[kind_at] = put_body(&mut out, &message.body);
    out
}

/// The most that entries of a message take, so that its bytes are not moved while it is written.
fn data_bytes(body: &Body) -> usize {
    match body {
        // A term, a kind and a length stand before the data.
        Body::Append { entries, .. } => entries.iter().map(|entry| entry.payload.len() + 21).sum(),
        Body::Install(snapshot) => snapshot.data.len() + 20 * RAFT_MEMBERS_MAX,
        _ => 0,
    }
}

fn put_body(out: &mut Vec<u8>, body: &Body) -> u8 {
    match body {
        Body::Append { after, commit, entries } => {
            put_id(out, *after);
            varint::put(out, commit.0);
            varint::put(out, entries.len() as u64);
            entries.iter().for_each(|entry| put_entry(out, entry));
            APPEND
        }
        Body::Appended { last, commit } => {
            varint::put(out, last.0);
            varint::put(out, commit.0);
            APPENDED
        }
        Body::AppendRefused { at, hint, commit } => {
            varint::put(out, at.0);
            put_id(out, *hint);
            varint::put(out, commit.0);
            APPEND_REFUSED
        }
        Body::Vote { ballot, last, commit } => {
            out.push(ballot_byte(*ballot));
            put_id(out, *last);
            put_id(out, *commit);
            VOTE
        }
        Body::Voted { ballot, granted, commit } => {
            out.push(ballot_byte(*ballot));
            out.push(u8::from(*granted));
            put_id(out, *commit);
            VOTED
        }
        Body::Heartbeat { commit, check } => {
            varint::put(out, commit.0);
            put_check(out, *check);
            HEARTBEAT
        }
        Body::HeartbeatHeard { commit, check } => {
            varint::put(out, commit.0);
            put_check(out, *check);
            HEARTBEAT_HEARD
        }
        Body::Install(snapshot) => {
            put_snapshot(out, snapshot);
            INSTALL
        }
        Body::TimeoutNow => TIMEOUT_NOW,
    }
}

/// Reads a message. Data in it shares the bytes it came in.
///
/// # Errors
/// If the bytes are none.
pub fn decode(bytes: &Bytes) -> Result<Message, WireError> {
    if bytes.len() > RAFT_MESSAGE_BYTES_MAX {
        return Err(WireError::Range("the message's length"));
    }
    let mut input = Input::of(bytes);
    input.version()?;
    let kind = input.byte()?;
    let term = Term(input.number()?);
    if term.0 == 0 {
        // The library takes a message without a term for one of its own.
        return Err(WireError::Range("the term"));
    }
    let body = take_body(&mut input, kind)?;
    match input.rest.len() {
        0 => Ok(Message { term, body }),
        count => Err(WireError::LeftOver(count)),
    }
}

fn take_body(input: &mut Input<'_>, kind: u8) -> Result<Body, WireError> {
    Ok(match kind {
        APPEND => {
            let after = input.id()?;
            let commit = input.index()?;
            let count = input.number()? as usize;
            // An entry takes three bytes at least.
            if count > RAFT_MESSAGE_ENTRIES_MAX || count > input.rest.len() / 3 {
                return Err(WireError::Short);
            }
            let mut entries = Vec::with_capacity(count);
            let mut index = after.index;
            for _ in 0..count {
                index = index.next();
                let term = Term(input.number()?);
                entries.push(GroupEntry { id: EntryId::new(term, index), payload: input.payload()? });
            }
            if index.0 > RAFT_NUMBER_MAX {
                return Err(WireError::Range("the index"));
            }
            Body::Append { after, commit, entries }
        }
        APPENDED => Body::Appended { last: input.index()?, commit: input.index()? },
        APPEND_REFUSED => {
            Body::AppendRefused { at: input.index()?, hint: input.id()?, commit: input.index()? }
        }
        VOTE => Body::Vote { ballot: input.ballot()?, last: input.id()?, commit: input.id()? },
        VOTED => Body::Voted { ballot: input.ballot()?, granted: input.flag()?, commit: input.id()? },
        HEARTBEAT => Body::Heartbeat { commit: input.index()?, check: input.check()? },
        HEARTBEAT_HEARD => Body::HeartbeatHeard { commit: input.index()?, check: input.check()? },
        INSTALL => Body::Install(input.snapshot()?),
        TIMEOUT_NOW => Body::TimeoutNow,
        value => return Err(WireError::Unknown { what: "kind of message", value }),
    })
}

const fn ballot_byte(ballot: Ballot) -> u8 {
    match ballot {
        Ballot::Pre => 0,
        Ballot::Real => 1,
        Ballot::Transfer => 2,
    }
}

fn put_id(out: &mut Vec<u8>, id: EntryId) {
    varint::put(out, id.term.0);
    varint::put(out, id.index.0);
}

fn put_check(out: &mut Vec<u8>, check: Option<u64>) {
    out.push(u8::from(check.is_some()));
    if let Some(check) = check {
        varint::put(out, check);
    }
}

fn put_entry(out: &mut Vec<u8>, entry: &GroupEntry) {
    varint::put(out, entry.id.term.0);
    put_payload(out, &entry.payload);
}

/// A payload, with its kind before it. The log of groups has it in the same form.
pub(crate) fn put_payload(out: &mut Vec<u8>, payload: &Payload) {
    let (kind, node) = match payload {
        Payload::Blank => (BLANK, 0),
        Payload::Data(data) => {
            out.push(DATA);
            varint::put(out, data.len() as u64);
            out.extend_from_slice(data);
            return;
        }
        Payload::Stored => unreachable!("what only this disk has is in no message"),
        Payload::Change(Change::AddVoter(node)) => (ADD_VOTER, node.0),
        Payload::Change(Change::AddLearner(node)) => (ADD_LEARNER, node.0),
        Payload::Change(Change::Remove(node)) => (REMOVE, node.0),
    };
    out.push(kind);
    varint::put(out, node);
}

/// A snapshot. The log of groups has it in the same form.
pub(crate) fn put_snapshot(out: &mut Vec<u8>, snapshot: &Snapshot) {
    put_id(out, snapshot.last);
    for nodes in [&snapshot.members.voters, &snapshot.members.learners] {
        varint::put(out, nodes.len() as u64);
        nodes.iter().for_each(|node| varint::put(out, node.0));
    }
    varint::put(out, snapshot.data.len() as u64);
    out.extend_from_slice(&snapshot.data);
}

/// What is left to read.
pub(crate) struct Input<'a> {
    whole: &'a Bytes,
    pub(crate) rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) fn of(whole: &'a Bytes) -> Self {
        Self { whole, rest: whole }
    }

    fn version(&mut self) -> Result<(), WireError> {
        match self.byte()? {
            VERSION => Ok(()),
            0 => Err(WireError::Range("the version")),
            later => Err(WireError::LaterVersion(later)),
        }
    }

    pub(crate) fn byte(&mut self) -> Result<u8, WireError> {
        varint::take_byte(&mut self.rest).ok_or(WireError::Short)
    }

    /// A number of a sensible size.
    pub(crate) fn number(&mut self) -> Result<u64, WireError> {
        match varint::take(&mut self.rest) {
            Some(number) if number <= RAFT_NUMBER_MAX => Ok(number),
            Some(_) => Err(WireError::Range("a number")),
            None => Err(WireError::Short),
        }
    }

    pub(crate) fn index(&mut self) -> Result<LogIndex, WireError> {
        self.number().map(LogIndex)
    }

    pub(crate) fn id(&mut self) -> Result<EntryId, WireError> {
        Ok(EntryId { term: Term(self.number()?), index: self.index()? })
    }

    fn flag(&mut self) -> Result<bool, WireError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(WireError::Unknown { what: "flag", value }),
        }
    }

    fn check(&mut self) -> Result<Option<u64>, WireError> {
        Ok(if self.flag()? { Some(self.number()?) } else { None })
    }

    fn ballot(&mut self) -> Result<Ballot, WireError> {
        Ok(match self.byte()? {
            0 => Ballot::Pre,
            1 => Ballot::Real,
            2 => Ballot::Transfer,
            value => return Err(WireError::Unknown { what: "ballot", value }),
        })
    }

    pub(crate) fn node(&mut self) -> Result<NodeId, WireError> {
        match self.number()? {
            0 => Err(WireError::Range("a node")),
            node => Ok(NodeId(node)),
        }
    }

    /// Bytes with their length before them.
    pub(crate) fn bytes(&mut self) -> Result<Bytes, WireError> {
        let len = self.number()?;
        let (bytes, rest) = usize::try_from(len)
            .ok()
            .and_then(|len| self.rest.split_at_checked(len))
            .ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(self.whole.slice_ref(bytes))
    }

    pub(crate) fn payload(&mut self) -> Result<Payload, WireError> {
        Ok(match self.byte()? {
            BLANK => match self.byte()? {
                0 => Payload::Blank,
                _ => return Err(WireError::Range("a node")),
            },
            DATA => {
                let data = self.bytes()?;
                if data.is_empty() {
                    return Err(WireError::Range("the length of data"));
                }
                Payload::Data(data)
            }
            ADD_VOTER => Payload::Change(Change::AddVoter(self.node()?)),
            ADD_LEARNER => Payload::Change(Change::AddLearner(self.node()?)),
            REMOVE => Payload::Change(Change::Remove(self.node()?)),
            value => return Err(WireError::Unknown { what: "kind of entry", value }),
        })
    }

    pub(crate) fn snapshot(&mut self) -> Result<Snapshot, WireError> {
        let last = self.id()?;
        let mut members = Membership::default();
        for nodes in [&mut members.voters, &mut members.learners] {
            let count = self.number()?;
            if count > RAFT_MEMBERS_MAX as u64 {
                return Err(WireError::Range("the number of members"));
            }
            for _ in 0..count {
                if !nodes.insert(self.node()?) {
                    return Err(WireError::Range("a member"));
                }
            }
        }
        if !members.is_sound() || last.index.0 == 0 {
            return Err(WireError::Range("a snapshot"));
        }
        Ok(Snapshot { last, members, data: self.bytes()? })
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
