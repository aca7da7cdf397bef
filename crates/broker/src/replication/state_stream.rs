//! The bytes of a whole state on its way to a node that is too far behind: parts, each with its length before it.
//!
//! First comes what it is the state of, then each machine and each queue with its chunks, then the bodies of that queue's
//! messages, then the end. The other side answers with one part: that all is there, or why it is not.

use bytes::Bytes;
use nexo_cluster::{EntryId, Membership};
use nexo_core::queue::ChunkId;
use nexo_types::{LogIndex, NodeId, Offset, QueueId, Term, Timestamp, varint};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::handle::NodeStream;
use crate::transplant::StoredBody;

const VERSION: u8 = 1;
/// A part is never longer. The longest are heads of queues with very long backlogs, and messages.
const PART_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Memory is taken for what has come, not for what was announced.
const READ_BYTES: usize = 1024 * 1024;

const BEGIN: u8 = 1;
const MACHINE: u8 = 2;
const QUEUE: u8 = 3;
const CHUNK: u8 = 4;
const BODIES: u8 = 5;
const END: u8 = 6;
const STAGED: u8 = 7;
const FAILED: u8 = 8;

/// What a state is the state of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StateHead {
    /// The last entry that is in it.
    pub(super) last: EntryId,
    /// The members as of that.
    pub(super) members: Membership,
    /// Names this transfer. The leader's word for it names the same.
    pub(super) token: u64,
    /// Ids of queues below this have been given out.
    pub(super) next_queue: u64,
    /// No record in it carries a later time.
    pub(super) time: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Begin(StateHead),
    /// A machine that is not a queue: its id, and the head of its snapshot.
    Machine(QueueId, Bytes),
    /// The same of a queue.
    Queue(QueueId, Bytes),
    /// A chunk of the machine or queue before.
    Chunk(ChunkId, Bytes),
    /// Messages of the queue before.
    Bodies(Vec<StoredBody>),
    End,
    Staged,
    Failed(String),
}

impl Part {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 4];
        match self {
            Self::Begin(head) => {
                out.extend([BEGIN, VERSION]);
                let StateHead { last, members, token, next_queue, time } = head;
                for number in [last.term.0, last.index.0, *token, *next_queue, time.0] {
                    varint::put(&mut out, number);
                }
                for nodes in [&members.voters, &members.learners] {
                    varint::put(&mut out, nodes.len() as u64);
                    nodes.iter().for_each(|node| varint::put(&mut out, node.0));
                }
            }
            Self::Machine(id, head) | Self::Queue(id, head) => {
                out.push(if matches!(self, Self::Machine(..)) { MACHINE } else { QUEUE });
                varint::put(&mut out, id.0);
                out.extend_from_slice(head);
            }
            Self::Chunk(id, bytes) => {
                out.push(CHUNK);
                varint::put(&mut out, id.0);
                out.extend_from_slice(bytes);
            }
            Self::Bodies(bodies) => {
                out.push(BODIES);
                for StoredBody { offset, enqueued_at, payload } in bodies {
                    for number in [offset.0, enqueued_at.0, payload.len() as u64] {
                        varint::put(&mut out, number);
                    }
                    out.extend_from_slice(payload);
                }
            }
            Self::End => out.push(END),
            Self::Staged => out.push(STAGED),
            Self::Failed(reason) => {
                out.push(FAILED);
                out.extend_from_slice(reason.as_bytes());
            }
        }
        let len = (out.len() - 4) as u32;
        out[..4].copy_from_slice(&len.to_le_bytes());
        out
    }

    /// How much of a state it brings.
    pub(super) fn state_bytes(&self) -> u64 {
        let bytes = match self {
            Self::Machine(_, bytes) | Self::Queue(_, bytes) | Self::Chunk(_, bytes) => bytes.len(),
            Self::Bodies(bodies) => bodies.iter().map(|body| body.payload.len()).sum(),
            Self::Begin(_) | Self::End | Self::Staged | Self::Failed(_) => 0,
        };
        bytes as u64
    }

    /// Reads a part, without its length.
    pub(super) fn decode(bytes: &Bytes) -> Result<Self, String> {
        let malformed = || "a part of the state makes no sense".to_owned();
        let (&kind, rest) = bytes.split_first().ok_or_else(malformed)?;
        let mut input = rest;
        let slice = |of: &[u8]| bytes.slice_ref(of);
        Ok(match kind {
            BEGIN => Self::Begin(take_head(&mut input)?),
            MACHINE | QUEUE => {
                let id = QueueId(varint::take(&mut input).ok_or_else(malformed)?);
                if kind == MACHINE { Self::Machine(id, slice(input)) } else { Self::Queue(id, slice(input)) }
            }
            CHUNK => {
                let id = ChunkId(varint::take(&mut input).ok_or_else(malformed)?);
                Self::Chunk(id, slice(input))
            }
            BODIES => {
                let mut bodies = Vec::new();
                while !input.is_empty() {
                    bodies.push(take_body(&mut input, bytes).ok_or_else(malformed)?);
                }
                Self::Bodies(bodies)
            }
            END => Self::End,
            STAGED => Self::Staged,
            FAILED => Self::Failed(String::from_utf8_lossy(rest).into_owned()),
            _ => return Err(malformed()),
        })
    }
}

fn take_head(input: &mut &[u8]) -> Result<StateHead, String> {
    match varint::take_byte(input) {
        Some(VERSION) => {}
        Some(later) => {
            return Err(format!(
                "the state is of version {later}; this build of Nexo knows version {VERSION}"
            ));
        }
        None => return Err("the state has no beginning".into()),
    }
    let mut take = || varint::take(input).ok_or_else(|| "the state's beginning is cut off".to_owned());
    let last = EntryId::new(Term(take()?), LogIndex(take()?));
    let (token, next_queue, time) = (take()?, take()?, Timestamp(take()?));
    let mut members = Membership::default();
    for nodes in [&mut members.voters, &mut members.learners] {
        for _ in 0..take()? {
            nodes.insert(NodeId(take()?));
        }
    }
    Ok(StateHead { last, members, token, next_queue, time })
}

fn take_body(input: &mut &[u8], whole: &Bytes) -> Option<StoredBody> {
    let offset = Offset(varint::take(input)?);
    let enqueued_at = Timestamp(varint::take(input)?);
    let len = usize::try_from(varint::take(input)?).ok()?;
    let (payload, rest) = input.split_at_checked(len)?;
    *input = rest;
    Some(StoredBody { offset, enqueued_at, payload: whole.slice_ref(payload) })
}

/// Sends a part.
pub(super) async fn send(stream: &mut dyn NodeStream, part: &Part) -> Result<(), String> {
    stream.write_all(&part.encode()).await.map_err(|error| error.to_string())
}

/// The next part.
pub(super) async fn receive(stream: &mut dyn NodeStream) -> Result<Part, String> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).await.map_err(|error| error.to_string())?;
    let len = u32::from_le_bytes(len) as usize;
    if len > PART_BYTES_MAX {
        return Err(format!("a part of {len} bytes is announced"));
    }
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let have = bytes.len();
        bytes.resize(len.min(have + READ_BYTES), 0);
        stream.read_exact(&mut bytes[have..]).await.map_err(|error| error.to_string())?;
    }
    Part::decode(&bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Vec<Part> {
        let body = |offset, payload: &'static [u8]| StoredBody {
            offset: Offset(offset),
            enqueued_at: Timestamp(77),
            payload: Bytes::from_static(payload),
        };
        vec![
            Part::Begin(StateHead {
                last: EntryId::new(Term(3), LogIndex(900)),
                members: Membership { voters: [1, 2].map(NodeId).into(), learners: [NodeId(5)].into() },
                token: u64::MAX,
                next_queue: 12,
                time: Timestamp(1_000_000),
            }),
            Part::Machine(QueueId(u64::MAX), Bytes::from_static(b"head")),
            Part::Queue(QueueId(7), Bytes::new()),
            Part::Chunk(ChunkId(1 << 63), Bytes::from_static(b"chunk")),
            Part::Bodies(vec![body(5, b"five"), body(600, b"")]),
            Part::End,
            Part::Staged,
            Part::Failed("no room".into()),
        ]
    }

    #[tokio::test]
    async fn parts_come_as_they_were_sent() {
        let (mut one, mut other) = tokio::io::duplex(64);
        let sending = tokio::spawn(async move {
            for part in parts() {
                send(&mut one, &part).await.unwrap();
            }
        });
        for part in parts() {
            assert_eq!(receive(&mut other).await, Ok(part));
        }
        sending.await.unwrap();
        assert!(receive(&mut other).await.is_err(), "there are no more");
    }

    #[test]
    fn a_part_that_is_cut_off_is_refused_or_is_another() {
        for part in parts() {
            let bytes = part.encode();
            for end in 4..bytes.len() {
                // Heads and chunks have no end of their own; a machine refuses what it cannot read.
                let _ = Part::decode(&Bytes::copy_from_slice(&bytes[4..end]));
            }
        }
        assert!(Part::decode(&Bytes::from_static(&[1, 2])).unwrap_err().contains("version 2"));
        assert!(Part::decode(&Bytes::from_static(&[99])).is_err());
    }
}
