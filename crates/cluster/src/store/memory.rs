//! A store in memory that behaves like a disk: what is not synced can be lost, from any byte on.
//!
//! It is bytes, and reads them back as a log does. Each frame has a length, a checksum, and says up to where the log was synced
//! when it was written. The first frame that does not verify ends the log, unless a later one says that it was synced: then it is
//! damaged, and nothing is read any more. So damage is told from a torn write for all but the last sync before a crash, as in
//! `nexo-log`. One frame holds one write.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use bytes::Bytes;
use nexo_types::{LogIndex, RaftGroupId};

use super::directory::{Directory, records_of};
use super::record::GroupRecord;
use super::{GroupStore, Mark, Recovered, StoreError};
use crate::entry::{EntryId, GroupEntry, Payload, Snapshot};
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

/// What goes wrong with bytes that were synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// A bit is another.
    Flip(u8),
    /// So many bytes are zeros, as if a block had never been written.
    Zero(usize),
}

/// A log of groups in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    bytes: Vec<u8>,
    synced: usize,
    /// Ends of frames that are not synced, and what they say of those before.
    proofs: VecDeque<(usize, usize)>,
    /// Up to where synced frames say that all was synced.
    proven: usize,
    /// Whether any byte was harmed: without that none has to be verified again.
    is_harmed: bool,
    /// Where the last opening found damage.
    damaged_at: Option<usize>,
    /// The bytes there is room for, if they are few.
    room: Option<usize>,
    groups: BTreeMap<RaftGroupId, Directory<Place>>,
}

/// Where a record lies, and the data beside it.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    frame: usize,
    record: (usize, usize),
    data: (usize, usize),
}

/// Length, checksum, and up to where all was synced.
const HEADER_BYTES: usize = 16;
/// The checksum covers what is behind it.
const SUMMED_FROM: usize = 8;

impl MemoryStore {
    /// Everything that was appended is synced.
    pub fn sync(&mut self) {
        self.sync_to(self.end());
    }

    /// Everything up to a mark is synced.
    pub fn sync_to(&mut self, mark: Mark) {
        self.synced = self.synced.max((mark.0 as usize).min(self.bytes.len()));
        while let Some((_, proof)) = self.proofs.front().filter(|(end, _)| *end <= self.synced) {
            self.proven = self.proven.max(*proof);
            self.proofs.pop_front();
        }
    }

    /// Up to where damage is noticed: frames that are synced themselves say that all before this was.
    #[must_use]
    pub const fn proven(&self) -> usize {
        self.proven
    }

    /// Harms bytes from `at` on, as far as that is noticed.
    pub fn harm(&mut self, at: usize, harm: Harm) {
        let end = match harm {
            Harm::Flip(_) => at + 1,
            Harm::Zero(len) => at.saturating_add(len),
        };
        let Some(bytes) = self.bytes.get_mut(at..end.min(self.proven)) else { return };
        match harm {
            Harm::Flip(bit) => bytes.iter_mut().for_each(|byte| *byte ^= 1 << (bit % 8)),
            Harm::Zero(_) => bytes.fill(0),
        }
        self.is_harmed = true;
    }

    /// Goes on with what lies before the damage that was found, as if nothing had been behind it. Nobody may do that whose
    /// word counts: this is for trying what comes of it.
    pub fn ignore_damage(&mut self) {
        if let Some(at) = self.damaged_at.take() {
            self.bytes.truncate(at);
            self.reopen();
        }
    }

    /// Whether bytes were harmed.
    #[must_use]
    pub const fn is_harmed(&self) -> bool {
        self.is_harmed
    }

    /// Does not verify what is read from now on. This is for trying what comes of it, too.
    pub const fn ignore_checksums(&mut self) {
        self.is_harmed = false;
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

    /// Opens the store again, as a start does: builds the directory from the bytes, and cuts off what does not verify and is not
    /// known to have been synced. [`MemoryStore::cut`] has done that, but bytes may have been harmed since.
    pub fn reopen(&mut self) {
        self.groups.clear();
        self.proofs.clear();
        self.proven = 0;
        self.damaged_at = None;
        let mut at = 0;
        while let Some((next, proof)) = self.read_frame(at) {
            self.proven = self.proven.max(proof);
            at = next;
        }
        if self.proof_behind(at) > at {
            self.damaged_at = Some(at);
            return;
        }
        self.bytes.truncate(at);
        // What is found counts from now on, so it must not be lost by the next power cut.
        self.synced = at;
    }

    /// The most that any frame behind this place says to have been synced.
    fn proof_behind(&self, at: usize) -> usize {
        (at + 1..self.bytes.len()).filter_map(|at| self.verify(at)).map(|(_, proof)| proof).max().unwrap_or(0)
    }

    /// Where the frame at a place ends, and what it says to have been synced before it. `None` if it is none.
    fn verify(&self, at: usize) -> Option<(usize, usize)> {
        let header: &[u8; HEADER_BYTES] = self.bytes.get(at..)?.first_chunk()?;
        let [a, b, c, d, e, f, g, h, proof @ ..] = *header;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        let end = at.checked_add(HEADER_BYTES)?.checked_add(len)?;
        let summed = self.bytes.get(at + SUMMED_FROM..end)?;
        let sum = u32::from_le_bytes([e, f, g, h]);
        let proof = usize::try_from(u64::from_le_bytes(proof)).ok()?;
        (len >= 4 && crc32c::crc32c(summed) == sum).then_some((end, proof))
    }

    /// Takes the frame at a place into the directory; gives back where it ends, and what it says to have been synced.
    fn read_frame(&mut self, at: usize) -> Option<(usize, usize)> {
        let (end, proof) = self.verify(at)?;
        let start = at + HEADER_BYTES;
        let group = RaftGroupId(u32::from_le_bytes(self.bytes[start..start + 4].try_into().ok()?));
        let mut from = start + 4;
        while from < end {
            let (record, next) = self.part(from)?;
            let (data, next) = self.part(next)?;
            from = next;
            let place = Place { frame: at, record, data };
            let record = GroupRecord::decode(&self.slice(place.record)).ok()?;
            let fits = self.groups.entry(group).or_default().note(&record, place);
            debug_assert!(fits, "{record:?} does not fit");
        }
        Some((end, proof))
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

    /// Whether what lies at a place can be read.
    fn check(&self, group: RaftGroupId, place: Place) -> Result<(), StoreError> {
        let is_damaged = self.is_harmed && self.verify(place.frame).is_none();
        self.check_opening(group)?;
        match is_damaged {
            true => Err(damaged(group, place.frame)),
            false => Ok(()),
        }
    }

    /// Whether everything could be read when the store was opened.
    fn check_opening(&self, group: RaftGroupId) -> Result<(), StoreError> {
        self.damaged_at.map_or(Ok(()), |at| Err(damaged(group, at)))
    }

    fn entry(&self, group: RaftGroupId, id: EntryId, place: Place) -> Result<GroupEntry, StoreError> {
        self.check(group, place)?;
        match GroupRecord::decode(&self.slice(place.record)) {
            Ok(GroupRecord::Entry(found, payload)) if found == id => {
                let payload = match payload {
                    Payload::Data(_) => Payload::Data(self.slice(place.data)),
                    other => other,
                };
                Ok(GroupEntry { id, payload })
            }
            other => Err(StoreError::Damaged { group, fact: format!("{other:?} in place of {id:?}") }),
        }
    }

    fn directory(&self, group: RaftGroupId) -> Option<&Directory<Place>> {
        self.groups.get(&group)
    }
}

fn damaged(group: RaftGroupId, at: usize) -> StoreError {
    StoreError::Damaged { group, fact: format!("the frame at {at} does not verify") }
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
                // Who proposes so keeps the bytes himself, and nobody does over a store in memory.
                Payload::Blank | Payload::Stored | Payload::Change(_) => Bytes::new(),
            };
            put(&mut body, &GroupRecord::Entry(entry.id, entry.payload.clone()), &data);
        }
        after.iter().for_each(|record| put(&mut body, record, &[]));
        let len = HEADER_BYTES + body.len();
        if let Some(room) = &mut self.room {
            *room = room.checked_sub(len).ok_or_else(|| StoreError::Full("no space left".to_owned()))?;
        }
        let at = self.bytes.len();
        let proof = self.synced;
        self.bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c(&(proof as u64).to_le_bytes()), &body);
        self.bytes.extend_from_slice(&sum.to_le_bytes());
        self.bytes.extend_from_slice(&(proof as u64).to_le_bytes());
        self.bytes.extend_from_slice(&body);
        let end = self.read_frame(at);
        debug_assert_eq!(end, Some((self.bytes.len(), proof)), "what is written can be read");
        self.proofs.push_back((self.bytes.len(), proof));
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
    ) -> Result<Vec<GroupEntry>, StoreError> {
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
            return self.check_opening(group).map(|()| None);
        };
        self.check(group, place)?;
        match GroupRecord::decode(&self.slice(place.record)) {
            Ok(GroupRecord::Installed(snapshot) | GroupRecord::Taken(snapshot)) => Ok(Some(snapshot)),
            other => Err(StoreError::Damaged { group, fact: format!("{other:?} in place of a snapshot") }),
        }
    }

    fn groups(&self) -> Vec<RaftGroupId> {
        self.groups.keys().copied().collect()
    }

    fn recover(&self, group: RaftGroupId) -> Result<Recovered, StoreError> {
        self.check_opening(group)?;
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
