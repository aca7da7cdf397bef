//! Reading single messages whose bytes were let go: leased, returned, delayed or dying ones. Where a message lies its queue's
//! placement says; the index of that segment says in which frame. May wait for the disk.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use nexo_log::ReadError;
use nexo_types::{Millis, Offset, Position, Priority, QueueId, SegmentId, Timestamp};

use crate::frame_batches::batches_of;
use crate::queue_cell::QueueCell;
use crate::shared::Shared;

/// A message that was copied forward while it was looked for is looked for again, so often.
const FETCH_TRIES: usize = 5;

/// Messages of a lane that are no further apart are looked up in the index together.
const NEAR_OFFSETS: u64 = 256;

/// Messages by the segment in which they lie.
pub(crate) type Places = BTreeMap<SegmentId, Vec<(Priority, Offset)>>;

/// What came of reading messages of a queue.
#[derive(Debug, Default)]
pub(crate) struct Fetched {
    pub(crate) found: BTreeMap<Offset, Bytes>,
    /// Their bytes are there and wrong: they are lost. None on a node whose others have them.
    pub(crate) damaged: Vec<Offset>,
    /// The disk would not say; another time it may.
    pub(crate) unreadable: Vec<Offset>,
    /// When it may be asked again.
    pub(crate) retry_after: Millis,
}

/// What came of reading messages at certain places.
#[derive(Debug, Default)]
pub(crate) struct Read {
    /// When each was pushed, and its stored form.
    pub(crate) found: BTreeMap<Offset, (Timestamp, Bytes)>,
    pub(crate) damaged: Vec<Offset>,
    pub(crate) unreadable: Vec<Offset>,
    /// They do not lie there.
    pub(crate) gone: Vec<Offset>,
    pub(crate) retry_after: Millis,
}

/// Whether a place that could not be read lately is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    AtOnce,
    /// Only when it is time to try again. Until then its messages are unreadable.
    WhenDue,
}

impl Shared {
    /// Reads messages that are leased or about to be moved. Maintenance may copy one forward and give up its segment
    /// between the moment its place was looked up and the read: then its new place is asked for.
    pub(crate) fn fetch(&self, cell: &QueueCell, wanted: Vec<(Priority, Offset)>, retry: Retry) -> Fetched {
        let mut fetched = self.fetch_here(cell, wanted, retry);
        if !fetched.damaged.is_empty() && self.keeps_damaged() {
            let segment = cell.state.lock().placement.segment_of(fetched.damaged[0]);
            let at = Position { segment, byte: 0 };
            fetched.retry_after = fetched.retry_after.max(self.note_unreadable(at, "messages are damaged"));
            fetched.unreadable.append(&mut fetched.damaged);
        }
        fetched
    }

    fn fetch_here(&self, cell: &QueueCell, mut wanted: Vec<(Priority, Offset)>, retry: Retry) -> Fetched {
        let mut fetched = Fetched::default();
        let mut tried: BTreeMap<Offset, SegmentId> = BTreeMap::new();
        for _ in 0..FETCH_TRIES {
            if wanted.is_empty() {
                return fetched;
            }
            let mut places = Places::new();
            {
                let state = cell.state.lock();
                for (lane, offset) in &wanted {
                    let segment = state.placement.segment_of(*offset);
                    match tried.insert(*offset, segment) {
                        // It has been settled, and nobody needs it.
                        Some(_) if !state.queue.is_held(*offset) => {}
                        // It has not been copied forward, so its segment was not given up: it is lost.
                        Some(before) if before == segment => fetched.damaged.push(*offset),
                        Some(_) | None => places.entry(segment).or_default().push((*lane, *offset)),
                    }
                }
            }
            let read = self.read(cell.id, &places, retry);
            fetched.found.extend(read.found.into_iter().map(|(offset, (_, payload))| (offset, payload)));
            fetched.damaged.extend(read.damaged);
            fetched.unreadable.extend(read.unreadable);
            fetched.retry_after = fetched.retry_after.max(read.retry_after);
            let gone: BTreeSet<Offset> = read.gone.into_iter().collect();
            wanted.retain(|(_, offset)| gone.contains(offset));
        }
        fetched.unreadable.extend(wanted.into_iter().map(|(_, offset)| offset));
        fetched
    }

    /// The stored forms of messages of a queue, as far as they can be read.
    pub(crate) fn read_payloads(
        &self,
        cell: &QueueCell,
        wanted: &[(Priority, Offset)],
    ) -> BTreeMap<Offset, Bytes> {
        if wanted.is_empty() {
            return BTreeMap::new();
        }
        let mut places = Places::new();
        let state = cell.state.lock();
        for (lane, offset) in wanted {
            places.entry(state.placement.segment_of(*offset)).or_default().push((*lane, *offset));
        }
        drop(state);
        let read = self.read_places(cell.id, &places);
        read.found.into_iter().map(|(offset, (_, payload))| (offset, payload)).collect()
    }

    /// Reads messages at these places.
    pub(crate) fn read_places(&self, queue: QueueId, places: &Places) -> Read {
        self.read(queue, places, Retry::AtOnce)
    }

    fn read(&self, queue: QueueId, places: &Places, retry: Retry) -> Read {
        let mut read = Read::default();
        for (segment, messages) in places {
            self.read_segment(queue, *segment, messages, retry, &mut read);
        }
        read
    }

    fn read_segment(
        &self,
        queue: QueueId,
        segment: SegmentId,
        messages: &[(Priority, Offset)],
        retry: Retry,
        read: &mut Read,
    ) {
        let frames = match self.frames_with(queue, segment, messages) {
            Ok(frames) => frames,
            Err(ReadError::Io { segment, reason }) => {
                // The index of the segment.
                let at = Position { segment, byte: 0 };
                read.retry_after = read.retry_after.max(self.note_unreadable(at, &reason));
                read.unreadable.extend(messages.iter().map(|(_, offset)| *offset));
                return;
            }
            Err(_) => {
                read.gone.extend(messages.iter().map(|(_, offset)| *offset));
                return;
            }
        };
        self.unreadable.clear(Position { segment, byte: 0 });
        let mut damaged: BTreeSet<Offset> = BTreeSet::new();
        let mut unreadable: BTreeSet<Offset> = BTreeSet::new();
        let is_time =
            |byte: &u32| retry == Retry::AtOnce || self.unreadable.is_time(Position { segment, byte: *byte });
        let starts: Vec<u32> = frames.keys().copied().filter(is_time).collect();
        let later = frames.iter().filter(|(byte, _)| starts.binary_search(byte).is_err());
        unreadable.extend(later.flat_map(|(_, offsets)| offsets));
        for (frame, byte) in self.log.read_frames(segment, &starts).into_iter().zip(&starts) {
            let offsets = &frames[byte];
            match frame {
                Ok(frame) => {
                    self.unreadable.clear(frame.at);
                    for batch in batches_of(&frame, queue) {
                        for item in offsets.iter().filter_map(|offset| batch.find(*offset)) {
                            // Copied, so that one message does not keep a whole read buffer.
                            let payload = Bytes::copy_from_slice(&batch.payload(item));
                            read.found.insert(item.offset, (item.enqueued_at, payload));
                        }
                    }
                    damaged.extend(offsets);
                }
                Err(ReadError::Retired { .. } | ReadError::NoFrame { .. }) => {}
                Err(error @ ReadError::Damaged { .. }) => {
                    tracing::error!(%error, "a frame of the log is damaged");
                    damaged.extend(offsets);
                }
                Err(error @ ReadError::Io { .. }) => {
                    let delay = self.note_unreadable(Position { segment, byte: *byte }, &error.to_string());
                    read.retry_after = read.retry_after.max(delay);
                    unreadable.extend(offsets);
                }
            }
        }
        for (_, offset) in messages.iter().filter(|(_, offset)| !read.found.contains_key(offset)) {
            if unreadable.contains(offset) {
                read.unreadable.push(*offset);
            } else if damaged.contains(offset) {
                read.damaged.push(*offset);
            } else {
                read.gone.push(*offset);
            }
        }
    }

    /// The frames of a segment that may hold these messages, and which each may hold.
    fn frames_with(
        &self,
        queue: QueueId,
        segment: SegmentId,
        messages: &[(Priority, Offset)],
    ) -> Result<BTreeMap<u32, Vec<Offset>>, ReadError> {
        let mut lanes: BTreeMap<Priority, Vec<Offset>> = BTreeMap::new();
        for (lane, offset) in messages {
            lanes.entry(*lane).or_default().push(*offset);
        }
        let mut found: BTreeMap<u32, Vec<Offset>> = BTreeMap::new();
        for (lane, mut offsets) in lanes {
            offsets.sort_unstable();
            // Where what is wanted lies far apart, most frames in between hold nothing of it.
            for near in offsets.chunk_by(|one, next| next.0 - one.0 <= NEAR_OFFSETS) {
                let (Some(first), Some(last)) = (near.first(), near.last()) else { continue };
                for frame in self.stored().frames_of(segment, queue, lane, *first..=*last)? {
                    let from = near.partition_point(|offset| *offset < frame.first);
                    let to = near.partition_point(|offset| *offset <= frame.last);
                    if from < to {
                        found.entry(frame.byte).or_default().extend(&near[from..to]);
                    }
                }
            }
        }
        Ok(found)
    }
}
