//! A placement as bytes. A checkpoint writes it beside the snapshot of its queue, as of the same moment. It is this node's
//! own: another node has the same queue somewhere else.

use nexo_core::queue::StoredIn;
use nexo_types::{SegmentId, varint};
use thiserror::Error;

use super::{Alive, CopiedTo, Copies, Extent, OffsetBlocks, Placement};

/// The version in which it is written.
const VERSION: u64 = 1;

/// Bytes that are no placement for this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum PlacementError {
    #[error(
        "the placement of a queue is of version {version}; this build of Nexo knows versions up to {VERSION}"
    )]
    Version { version: u64 },
    #[error("the bytes of a queue's placement make no sense")]
    Unreadable,
}

impl Placement {
    /// All that a snapshot holds of it. To copy it takes far less time than to encode it, which needs no lock then.
    pub(crate) fn copy(&self) -> Self {
        let mut copy = Self { extents: self.extents.clone(), ..Self::default() };
        if !self.copies.targets.is_empty() {
            *copy.copies = self.copies.clone();
        }
        copy
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(8 + self.extents.len() * 16);
        varint::put(&mut out, VERSION);
        varint::put(&mut out, self.extents.len() as u64);
        let mut end = 0;
        for extent in &self.extents {
            varint::put(&mut out, extent.first - end);
            varint::put(&mut out, extent.end - extent.first);
            end = extent.end;
            varint::put(&mut out, extent.segment.0.into());
            varint::put(&mut out, extent.alive.messages);
            varint::put(&mut out, extent.alive.bytes);
        }
        let mut targets: Vec<&CopiedTo> = self.copies.targets.iter().collect();
        targets.sort_unstable_by_key(|copies| copies.segment);
        varint::put(&mut out, targets.len() as u64);
        for copies in targets {
            varint::put(&mut out, copies.segment.0.into());
            varint::put(&mut out, copies.alive.bytes);
            let (mut ranges, mut count, mut end) = (Vec::new(), 0, 0);
            for (first, len) in copies.offsets.ranges() {
                varint::put(&mut ranges, first - end);
                varint::put(&mut ranges, len);
                (count, end) = (count + 1, first + len);
            }
            varint::put(&mut out, count);
            out.extend_from_slice(&ranges);
        }
        out
    }

    /// Reads back what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// If it is of a later version, or the bytes are no placement.
    pub(crate) fn decode(mut bytes: &[u8]) -> Result<Self, PlacementError> {
        match varint::take(&mut bytes) {
            Some(VERSION) => decode_rest(bytes).ok_or(PlacementError::Unreadable),
            Some(version) if version > VERSION => Err(PlacementError::Version { version }),
            Some(_) | None => Err(PlacementError::Unreadable),
        }
    }
}

fn decode_rest(mut bytes: &[u8]) -> Option<Placement> {
    let rest = &mut bytes;
    let mut placement = Placement::default();
    let mut end = 0u64;
    for _ in 0..varint::take(rest)? {
        let (first, behind) = take_range(rest, end)?;
        end = behind;
        let segment = take_segment(rest)?;
        let alive = take_alive(varint::take(rest)?, varint::take(rest)?)?;
        (alive.messages <= end - first).then_some(())?;
        placement.extents.push(Extent { first, end, segment, alive });
    }
    placement.extents.shrink_to_fit();
    let mut copies = Copies::default();
    for _ in 0..varint::take(rest)? {
        let segment = take_segment(rest)?;
        let bytes = varint::take(rest)?;
        let mut offsets = OffsetBlocks::default();
        let mut end = 0u64;
        for _ in 0..varint::take(rest)? {
            let (first, behind) = take_range(rest, end)?;
            end = behind;
            for offset in first..end {
                offsets.insert(offset);
            }
        }
        copies.last = copies.last.max(offsets.last()?);
        let alive = take_alive(offsets.len(), bytes)?;
        copies.targets.push(CopiedTo { segment, offsets, alive });
    }
    if !copies.targets.is_empty() {
        *placement.copies = copies;
    }
    rest.is_empty().then_some(placement)
}

/// A range that begins no sooner than the one before ended, and is not empty.
fn take_range(rest: &mut &[u8], end: u64) -> Option<(u64, u64)> {
    let first = end.checked_add(varint::take(rest)?)?;
    let behind = first.checked_add(varint::take(rest)?)?;
    (first < behind).then_some((first, behind))
}

fn take_segment(rest: &mut &[u8]) -> Option<SegmentId> {
    Some(SegmentId(u32::try_from(varint::take(rest)?).ok()?))
}

/// There are no places where nothing is alive.
fn take_alive(messages: u64, bytes: u64) -> Option<Alive> {
    (messages > 0 && bytes >= messages).then_some(Alive { messages, bytes })
}

/// What a snapshot of an earlier version says about where its messages lie.
#[derive(Debug, Default)]
pub(crate) struct OldPlaces {
    parts: Vec<OldPart>,
}

/// Messages side by side that lie in one segment.
#[derive(Clone, Copy, Debug)]
struct OldPart {
    first: u64,
    messages: u64,
    bytes: u64,
    segment: SegmentId,
}

impl OldPlaces {
    pub(crate) fn add(&mut self, stored: StoredIn<'_>) {
        let mut left = (stored.offsets.len(), stored.bytes);
        for (first, messages) in stored.offsets.ranges().iter().copied() {
            let bytes = (u128::from(left.1) * u128::from(messages) / u128::from(left.0.max(1))) as u64;
            left = (left.0 - messages, left.1 - bytes);
            self.parts.push(OldPart { first, messages, bytes, segment: SegmentId(stored.file) });
        }
    }

    /// The placement that this comes to. A message that lies in a later segment than one that was pushed after it must
    /// have been copied there; the others make extents.
    pub(crate) fn into_placement(mut self) -> Placement {
        self.parts.sort_unstable_by_key(|part| part.first);
        let mut placement = Placement::default();
        let mut lowest = SegmentId(u32::MAX);
        let mut pushed = Vec::with_capacity(self.parts.len());
        for part in self.parts.into_iter().rev() {
            if part.segment <= lowest {
                lowest = part.segment;
                pushed.push(part);
            } else {
                for offset in part.first..part.first + part.messages {
                    placement.copies.add(part.segment, offset, part.bytes / part.messages.max(1));
                }
            }
        }
        for part in pushed.into_iter().rev() {
            let end = part.first + part.messages;
            match placement.extents.last_mut() {
                Some(last) if last.segment == part.segment => last.end = end,
                _ => placement.extents.push(Extent {
                    first: part.first,
                    end,
                    segment: part.segment,
                    alive: Alive::default(),
                }),
            }
            if let Some(last) = placement.extents.last_mut() {
                last.alive.add(part.messages, part.bytes);
            }
        }
        placement.extents.shrink_to_fit();
        placement
    }
}
