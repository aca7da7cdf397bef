//! A store in memory that behaves like a disk: what is not synced can be lost, from any byte on.
//!
//! It is bytes, and reads them back as a log does: each frame has a length and a checksum, and the first that does not verify
//! ends the log. One frame holds one write.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use nexo_types::{LogIndex, RaftGroupId};

use super::directory::{Directory, records_of};
use super::record::GroupRecord;
use super::{GroupStore, Mark, Recovered, StoreError};
use crate::entry::{Entry, EntryId, Payload, Snapshot};
use crate::group::Write;

/// What a power cut leaves of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Nothing.
    Unsynced,
    /// So many bytes of it, which may end in the middle of a frame.
    After(usize),
    /// All of it, with the last byte changed.
    Torn,
}

/// A log of groups in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    bytes: Vec<u8>,
    synced: usize,
    /// The bytes there is room for, if they are few.
    room: Option<usize>,
    groups: BTreeMap<RaftGroupId, Directory<Place>>,
}

/// Where a record lies, and the data beside it.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    record: (usize, usize),
    data: (usize, usize),
}

const HEADER_BYTES: usize = 8;

impl MemoryStore {
    /// Everything that was appended is synced.
    pub fn sync(&mut self) {
        self.synced = self.bytes.len();
    }

    /// Everything up to a mark is synced.
    pub fn sync_to(&mut self, mark: Mark) {
        self.synced = self.synced.max((mark.0 as usize).min(self.bytes.len()));
    }

    /// Where the next write begins.
    #[must_use]
    pub fn end(&self) -> Mark {
        Mark(self.bytes.len() as u64)
    }

    /// From now on there is room for so many bytes more, or for any.
    pub fn set_room(&mut self, room: Option<usize>) {
        self.room = room;
    }

    /// The power fails and comes back.
    pub fn cut(&mut self, cut: Cut) {
        match cut {
            Cut::Unsynced => self.bytes.truncate(self.synced),
            Cut::After(kept) => self.bytes.truncate(self.synced.saturating_add(kept).min(self.bytes.len())),
            Cut::Torn => {
                if self.bytes.len() > self.synced
                    && let Some(last) = self.bytes.last_mut()
                {
                    *last ^= 0x55;
                }
            }
        }
        self.reopen();
    }

    /// Builds the directory from the bytes, and cuts off what does not verify.
    fn reopen(&mut self) {
        self.groups.clear();
        let mut at = 0;
        while let Some(next) = self.read_frame(at) {
            at = next;
        }
        self.bytes.truncate(at);
        // What is found counts from now on, so it must not be lost by the next power cut.
        self.synced = at;
    }

    /// Takes the frame at a place into the directory; gives back where it ends.
    fn read_frame(&mut self, at: usize) -> Option<usize> {
        let header: [u8; HEADER_BYTES] = self.bytes.get(at..at + HEADER_BYTES)?.try_into().ok()?;
        let [a, b, c, d, e, f, g, h] = header;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        let start = at + HEADER_BYTES;
        let body = self.bytes.get(start..start.checked_add(len)?)?;
        if len < 4 || crc32c::crc32c(body) != u32::from_le_bytes([e, f, g, h]) {
            return None;
        }
        let group = RaftGroupId(u32::from_le_bytes(body[..4].try_into().ok()?));
        let mut places = Vec::new();
        let mut from = start + 4;
        while from < start + len {
            let (record, next) = self.part(from)?;
            let (data, next) = self.part(next)?;
            places.push(Place { record, data });
            from = next;
        }
        for place in places {
            let record = GroupRecord::decode(&self.slice(place.record)).ok()?;
            let fits = self.groups.entry(group).or_default().note(&record, place);
            debug_assert!(fits, "{record:?} does not fit");
        }
        Some(start + len)
    }

    /// A part with its length before it: where it lies, and where it ends.
    fn part(&self, at: usize) -> Option<((usize, usize), usize)> {
        let len: [u8; 4] = self.bytes.get(at..at + 4)?.try_into().ok()?;
        let start = at + 4;
        let end = start + u32::from_le_bytes(len) as usize;
        Some(((start, end), end))
    }

    fn slice(&self, (start, end): (usize, usize)) -> Bytes {
        Bytes::copy_from_slice(&self.bytes[start..end])
    }

    fn entry(&self, group: RaftGroupId, id: EntryId, place: Place) -> Result<Entry, StoreError> {
        match GroupRecord::decode(&self.slice(place.record)) {
            Ok(GroupRecord::Entry(found, payload)) if found == id => {
                let payload = match payload {
                    Payload::Data(_) => Payload::Data(self.slice(place.data)),
                    other => other,
                };
                Ok(Entry { id, payload })
            }
            other => Err(StoreError::Damaged { group, fact: format!("{other:?} in place of {id:?}") }),
        }
    }

    fn directory(&self, group: RaftGroupId) -> Option<&Directory<Place>> {
        self.groups.get(&group)
    }
}

fn put_part(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

impl GroupStore for MemoryStore {
    fn append(&mut self, group: RaftGroupId, write: &Write) -> Result<Mark, StoreError> {
        let mut body = group.0.to_le_bytes().to_vec();
        let (before, after) = records_of(write);
        let put = |body: &mut Vec<u8>, record: &GroupRecord, data: &[u8]| {
            put_part(body, &record.encode());
            put_part(body, data);
        };
        before.iter().for_each(|record| put(&mut body, record, &[]));
        for entry in &write.entries {
            let data = match &entry.payload {
                Payload::Data(data) => data.clone(),
                Payload::Blank | Payload::Change(_) => Bytes::new(),
            };
            put(&mut body, &GroupRecord::Entry(entry.id, entry.payload.clone()), &data);
        }
        after.iter().for_each(|record| put(&mut body, record, &[]));
        let len = HEADER_BYTES + body.len();
        if let Some(room) = &mut self.room {
            *room = room.checked_sub(len).ok_or_else(|| StoreError::Full("no space left".to_owned()))?;
        }
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        self.bytes.extend_from_slice(&body);
        let end = self.read_frame(at);
        debug_assert_eq!(end, Some(self.bytes.len()), "what is written can be read");
        Ok(self.end())
    }

    fn synced(&self) -> Mark {
        Mark(self.synced as u64)
    }

    fn read(
        &self,
        group: RaftGroupId,
        range: Range<LogIndex>,
        bytes_max: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        let found = self.directory(group).and_then(|directory| directory.range(&range));
        let Some(found) = found else { return Err(StoreError::NoEntry { group, index: range.start }) };
        let mut entries = Vec::new();
        let mut bytes = 0usize;
        for (id, place) in found {
            let entry = self.entry(group, id, place)?;
            bytes = bytes.saturating_add(entry.payload.len());
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    fn snapshot(&self, group: RaftGroupId) -> Result<Option<Snapshot>, StoreError> {
        let Some(place) = self.directory(group).and_then(|directory| directory.snapshot_at) else {
            return Ok(None);
        };
        match GroupRecord::decode(&self.slice(place.record)) {
            Ok(GroupRecord::Installed(snapshot) | GroupRecord::Taken(snapshot)) => Ok(Some(snapshot)),
            other => Err(StoreError::Damaged { group, fact: format!("{other:?} in place of a snapshot") }),
        }
    }

    fn groups(&self) -> Vec<RaftGroupId> {
        self.groups.keys().copied().collect()
    }

    fn recover(&self, group: RaftGroupId) -> Result<Recovered, StoreError> {
        let Some(directory) = self.directory(group) else { return Ok(Recovered::default()) };
        let behind = directory.snapshot.index.next()..directory.end();
        let entries =
            if behind.is_empty() { Vec::new() } else { self.read(group, behind.clone(), usize::MAX)? };
        Ok(Recovered {
            hard_state: directory.hard_state,
            snapshot: directory.snapshot,
            members: directory.members.clone(),
            purged: directory.purged,
            terms: directory.ids().take_while(|id| id.index < behind.start).collect(),
            entries,
        })
    }
}
