//! The bytes of what is stored of a group. They stand at the head of a frame, and say what the frame is to its group.
//!
//! An entry's data is not in here: it lies beside, in the same frame.

use bytes::Bytes;
use nexo_types::{NodeId, Term, varint};

use crate::entry::{EntryId, HardState, Payload, Snapshot};
use crate::wire::{Input, WireError, put_payload, put_snapshot};

/// The version in which records are written.
const VERSION: u8 = 1;

const ENTRY: u8 = 1;
const HARD_STATE: u8 = 2;
const INSTALLED: u8 = 3;
const TAKEN: u8 = 4;
const PURGED: u8 = 5;

/// Something that is stored of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupRecord {
    /// An entry, in place of all from its index on. `Payload::Data` stands for what lies beside it, and is empty here.
    Entry(EntryId, Payload),
    /// In place of the one before.
    HardState(HardState),
    /// A state in place of the whole log.
    Installed(Snapshot),
    /// A state of the node's own.
    Taken(Snapshot),
    /// Entries up to this one are gone.
    Purged(EntryId),
}

const BESIDE: u8 = 0xff;

impl GroupRecord {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        match self {
            Self::Entry(id, payload) => {
                out.push(ENTRY);
                put_id(&mut out, *id);
                match payload {
                    Payload::Data(_) | Payload::Stored => out.push(BESIDE),
                    Payload::Blank | Payload::Change(_) => put_payload(&mut out, payload),
                }
            }
            Self::HardState(state) => {
                out.push(HARD_STATE);
                for number in [state.term.0, state.vote.map_or(0, |node| node.0), state.commit.0] {
                    varint::put(&mut out, number);
                }
            }
            Self::Installed(snapshot) => {
                out.push(INSTALLED);
                put_snapshot(&mut out, snapshot);
            }
            Self::Taken(snapshot) => {
                out.push(TAKEN);
                put_snapshot(&mut out, snapshot);
            }
            Self::Purged(id) => {
                out.push(PURGED);
                put_id(&mut out, *id);
            }
        }
        out
    }

    /// Reads one.
    ///
    /// # Errors
    /// If the bytes are none, or of a later version.
    pub fn decode(bytes: &Bytes) -> Result<Self, WireError> {
        let mut input = Input::of(bytes);
        match input.byte()? {
            VERSION => {}
            later => return Err(WireError::LaterVersion(later)),
        }
        let record = match input.byte()? {
            ENTRY => {
                let id = input.id()?;
                if input.rest == [BESIDE] {
                    return Ok(Self::Entry(id, Payload::Data(Bytes::new())));
                }
                Self::Entry(id, input.payload()?)
            }
            HARD_STATE => {
                let term = Term(input.number()?);
                let vote = Some(NodeId(input.number()?)).filter(|node| node.0 != 0);
                Self::HardState(HardState { term, vote, commit: input.index()? })
            }
            INSTALLED => Self::Installed(input.snapshot()?),
            TAKEN => Self::Taken(input.snapshot()?),
            PURGED => Self::Purged(input.id()?),
            value => return Err(WireError::Unknown { what: "record of a group", value }),
        };
        match input.rest.len() {
            0 => Ok(record),
            count => Err(WireError::LeftOver(count)),
        }
    }
}

fn put_id(out: &mut Vec<u8>, id: EntryId) {
    varint::put(out, id.term.0);
    varint::put(out, id.index.0);
}

#[cfg(test)]
mod tests {
    use nexo_types::LogIndex;

    use super::*;
    use crate::membership::{Change, Membership};

    #[test]
    fn the_bytes_of_version_1_stay_as_they_are() {
        let id = EntryId::new(Term(3), LogIndex(200));
        let data = Bytes::from_static(b"s");
        let snapshot = Snapshot { last: id, members: Membership::of([NodeId(1)]), data };
        let state = HardState { term: Term(3), vote: Some(NodeId(2)), commit: LogIndex(9) };
        let cases: [(GroupRecord, &[u8]); 7] = [
            (GroupRecord::Entry(id, Payload::Data(Bytes::new())), &[1, 1, 3, 0xc8, 1, 0xff]),
            (GroupRecord::Entry(id, Payload::Blank), &[1, 1, 3, 0xc8, 1, 0, 0]),
            (GroupRecord::Entry(id, Payload::Change(Change::AddVoter(NodeId(7)))), &[1, 1, 3, 0xc8, 1, 2, 7]),
            (GroupRecord::HardState(state), &[1, 2, 3, 2, 9]),
            (GroupRecord::Installed(snapshot.clone()), &[1, 3, 3, 0xc8, 1, 1, 1, 0, 1, b's']),
            (GroupRecord::Taken(snapshot), &[1, 4, 3, 0xc8, 1, 1, 1, 0, 1, b's']),
            (GroupRecord::Purged(id), &[1, 5, 3, 0xc8, 1]),
        ];
        for (record, bytes) in cases {
            assert_eq!(record.encode(), bytes, "{record:?}");
            assert_eq!(GroupRecord::decode(&bytes.to_vec().into()), Ok(record));
        }
        let later = GroupRecord::decode(&vec![2, 1].into()).unwrap_err();
        assert_eq!(later, WireError::LaterVersion(2));
    }
}
