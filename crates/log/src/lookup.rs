//! Finding frames: by lane and offset through the index, or one after the other from a position on.

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;

use nexo_types::{Offset, Position, QueueId, SegmentId};

use crate::damage::LostCount;
use crate::entry::Frame;
use crate::error::{Damage, ReadError};
use crate::header::{HEADER_BYTES, Seal};
use crate::index::cache::Cached;
use crate::index::footer::Directory;
use crate::index::section::Section;
use crate::index::{FrameRef, LaneKey};
use crate::read::{self, Found};
use crate::recovery;
use crate::scan;
use crate::segment::{Index, Segment};
use crate::shared::LogInner;

/// Read at once when frames are read one after the other.
const REPLAY_BYTES: usize = 1024 * 1024;

/// Where a search in an index has to go on.
enum Search {
    Done(Vec<FrameRef>),
    OnDisk(Seal),
}

impl LogInner {
    /// A segment that holds frames or will.
    pub(crate) fn segment(&self, id: SegmentId) -> Result<Arc<Segment>, ReadError> {
        if let Some(segment) = self.segments.read().get(&id) {
            return Ok(segment.clone());
        }
        if id > self.written.get().segment {
            return Err(ReadError::NoFrame { at: Position { segment: id, byte: 0 } });
        }
        Err(ReadError::Retired { segment: id })
    }

    pub(crate) fn frames_of(
        &self,
        id: SegmentId,
        lane: LaneKey,
        offsets: &RangeInclusive<Offset>,
        max: usize,
    ) -> Result<Vec<FrameRef>, ReadError> {
        let segment = self.segment(id)?;
        let (first, last) = (*offsets.start(), *offsets.end());
        let search = segment.with_index(|index| match index {
            Index::Memory(index) | Index::Rebuilt(index) => Search::Done(index.find(lane, first, last, max)),
            Index::Sealed(seal) => Search::OnDisk(*seal),
        });
        let seal = match search {
            Search::Done(found) => return Ok(found),
            Search::OnDisk(seal) => seal,
        };
        match self.search_footer(&segment, &seal, lane, first, last, max) {
            Err(ReadError::Damaged { at, fact }) => {
                self.note_damaged_footer(at, fact);
                self.rebuild_index(&segment, seal.frames_end)?;
                Ok(segment.with_index(|index| match index {
                    Index::Memory(index) | Index::Rebuilt(index) => index.find(lane, first, last, max),
                    Index::Sealed(_) => Vec::new(),
                }))
            }
            other => other,
        }
    }

    /// Makes an index from the frames. Those that are damaged are in none, so nobody would come upon them: that is noted here.
    fn rebuild_index(&self, segment: &Segment, frames_end: u32) -> Result<(), ReadError> {
        let bytes = read_whole(segment)?;
        let bytes = &bytes[..bytes.len().min(frames_end as usize)];
        let scan = scan::scan(bytes, segment.header.salt, frames_end);
        for broken in &scan.damage {
            self.note_damage(segment, broken.at, broken.fact)?;
        }
        segment.with_index(|index| *index = Index::Rebuilt(Box::new(scan.index)));
        Ok(())
    }

    fn search_footer(
        &self,
        segment: &Segment,
        seal: &Seal,
        lane: LaneKey,
        first: Offset,
        last: Offset,
        max: usize,
    ) -> Result<Vec<FrameRef>, ReadError> {
        let cached = self.footers.lock().section(segment.id(), lane);
        let section = match cached {
            Some(section) => section,
            None => match self.read_section(segment, seal, lane)? {
                Some(section) => section,
                None => return Ok(Vec::new()),
            },
        };
        section
            .find(first, last, max)
            .ok_or_else(|| footer_damage(segment, seal.directory_at, "a section is malformed"))
    }

    fn read_section(
        &self,
        segment: &Segment,
        seal: &Seal,
        lane: LaneKey,
    ) -> Result<Option<Arc<Section>>, ReadError> {
        let Some(place) = self.directory(segment, seal)?.find(lane) else { return Ok(None) };
        let bytes = read::read_bytes(segment, place.at, place.len as usize)?;
        if bytes.len() != place.len as usize || crc32c::crc32c(&bytes) != place.crc {
            return Err(footer_damage(segment, place.at, "the checksum of a section does not match"));
        }
        let section = Section::decode(&bytes, place.blocks)
            .ok_or_else(|| footer_damage(segment, place.at, "a section is malformed"))?;
        let section = Arc::new(section);
        self.footers.lock().put(segment.id(), Some(lane), Cached::Section(section.clone()));
        Ok(Some(section))
    }

    fn directory(&self, segment: &Segment, seal: &Seal) -> Result<Arc<Directory>, ReadError> {
        if let Some(directory) = self.footers.lock().directory(segment.id()) {
            return Ok(directory);
        }
        let bytes = read::read_bytes(segment, seal.directory_at, seal.directory_len as usize)?;
        let directory = Some(bytes.to_vec())
            .filter(|bytes| bytes.len() == seal.directory_len as usize)
            .and_then(|bytes| Directory::new(bytes, seal.directory_crc))
            .ok_or_else(|| {
                footer_damage(segment, seal.directory_at, "the checksum of the directory does not match")
            })?;
        let directory = Arc::new(directory);
        self.footers.lock().put(segment.id(), None, Cached::Directory(directory.clone()));
        Ok(directory)
    }

    /// Visits every frame from `from` on. Damage is reported, set aside and passed over.
    pub(crate) fn replay(
        &self,
        from: Position,
        visit: &mut dyn FnMut(Frame) -> ControlFlow<()>,
    ) -> Result<Vec<Damage>, ReadError> {
        let end = self.state.lock().appended_end;
        let mut damage = Vec::new();
        let segments: Vec<_> = {
            let segments = self.segments.read();
            segments.range(from.segment..=end.segment).map(|(_, segment)| segment.clone()).collect()
        };
        for segment in segments {
            let start = if segment.id() == from.segment { from.byte.max(HEADER_BYTES) } else { HEADER_BYTES };
            if self.replay_segment(&segment, start, visit, &mut damage)?.is_break() {
                break;
            }
        }
        Ok(damage)
    }

    fn replay_segment(
        &self,
        segment: &Segment,
        start: u32,
        visit: &mut dyn FnMut(Frame) -> ControlFlow<()>,
        damage: &mut Vec<Damage>,
    ) -> Result<ControlFlow<()>, ReadError> {
        let frames_end = segment.frames_end();
        let mut window = Window { bytes: bytes::Bytes::new(), at: start };
        let mut at = start;
        while at < frames_end {
            let found = if segment.position(at) < self.written.get() {
                window.find(segment, at)
            } else {
                self.find(segment.position(at))
            };
            match found {
                Ok(Found::Frame(frame)) => {
                    at = frame.end.byte;
                    if visit(frame).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Ok(Found::Other { end }) => at = end,
                Ok(Found::End) => break,
                Err(ReadError::Damaged { fact, .. }) => {
                    let met = self.note_damage(segment, at, fact)?;
                    at = met.end.max(at + 1);
                    damage.push(met);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The latest readable manifest before `at`.
    pub(crate) fn manifest_before(&self, at: Position) -> Option<(Position, bytes::Bytes)> {
        let mut segments: Vec<Arc<Segment>> =
            self.segments.read().range(..=at.segment).map(|(_, segment)| segment.clone()).collect();
        while let Some(segment) = segments.pop() {
            let end = if segment.id() == at.segment { at.byte } else { segment.frames_end() };
            if let Some(found) = recovery::last_manifest_in(&segment, end) {
                return Some(found);
            }
        }
        None
    }

    /// How many messages of each queue lie in frames from `from` to `to`, as far as the index of the segment is
    /// whole and can be read.
    pub(crate) fn messages_between(
        &self,
        segment: &Segment,
        from: u32,
        to: u32,
    ) -> Option<Vec<(QueueId, u64)>> {
        let mut lost = LostCount::default();
        let here = |frame: &FrameRef| from <= frame.byte && frame.byte < to;
        let mut note = |(queue, _): LaneKey, frames: Vec<FrameRef>| {
            lost.add(queue, frames.iter().filter(|frame| here(frame)).map(|f| u64::from(f.count)).sum());
        };
        let (first, last) = (Offset(0), Offset(u64::MAX));
        let seal = segment.with_index(|index| match index {
            Index::Sealed(seal) => Some(*seal).filter(|seal| seal.index_is_whole),
            // It was made from the frames that can be read.
            Index::Memory(_) | Index::Rebuilt(_) => None,
        })?;
        for key in self.directory(segment, &seal).ok()?.keys() {
            let section = self.read_section(segment, &seal, key).ok()??;
            note(key, section.find(first, last, usize::MAX)?);
        }
        Some(lost.into_vec())
    }
}

/// The part of a segment file that a replay has read ahead.
struct Window {
    bytes: bytes::Bytes,
    at: u32,
}

impl Window {
    fn find(&mut self, segment: &Segment, byte: u32) -> Result<Found, ReadError> {
        if let Some(found) = self.find_here(segment, byte) {
            return found;
        }
        self.bytes = match read::read_bytes(segment, byte, REPLAY_BYTES) {
            // What cannot be read may lie behind this frame.
            Err(ReadError::Io { .. }) => return read::found_in_file(segment, byte),
            read => read?,
        };
        self.at = byte;
        // A frame longer than the window, or a damaged one, is read by itself.
        self.find_here(segment, byte).unwrap_or_else(|| read::found_in_file(segment, byte))
    }

    fn find_here(&self, segment: &Segment, byte: u32) -> Option<Result<Found, ReadError>> {
        let skip = byte.checked_sub(self.at)? as usize;
        let rest = self.bytes.get(skip..)?;
        let len = crate::frame::check(rest, segment.header.salt, byte).ok()?.len;
        Some(read::decode(segment, byte, &self.bytes.slice(skip..skip + len)))
    }
}

fn read_whole(segment: &Segment) -> Result<Vec<u8>, ReadError> {
    read::whole_file(&*segment.file, segment.file_bytes())
        .map_err(|error| ReadError::Io { segment: segment.id(), reason: error.to_string().into() })
}

fn footer_damage(segment: &Segment, at: u32, fact: &'static str) -> ReadError {
    if segment.is_retired() {
        return ReadError::Retired { segment: segment.id() };
    }
    ReadError::Damaged { at: segment.position(at), fact }
}
