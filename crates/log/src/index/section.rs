//! One lane's part of a segment's index: which frames hold which offsets.
//!
//! Entries are differences in variable-length numbers, a few bytes each, in blocks of at most 128. A block's
//! head says which offsets it covers, so that a search decodes only the blocks it needs. Offsets of a lane
//! normally rise with the position; where old messages were copied forward they do not, and then every head is
//! looked at.

use nexo_types::Offset;

use nexo_types::varint;

/// Entries in one block.
const BLOCK_ENTRIES_MAX: u32 = 128;
/// A block head on disk.
pub(crate) const BLOCK_HEAD_BYTES: usize = 28;
/// The most that one entry takes: the four numbers of [`SectionBuilder::flush`].
pub(crate) const ENTRY_BYTES_MAX: usize = 5 + 2 * varint::BYTES_MAX + 5;

/// A frame that holds messages of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRef {
    /// Where in the segment the frame starts.
    pub byte: u32,
    /// The lowest of its offsets in the lane.
    pub first: Offset,
    /// The highest.
    pub last: Offset,
    /// How many messages of the lane it holds.
    pub count: u32,
}

impl FrameRef {
    fn overlaps(&self, first: Offset, last: Offset) -> bool {
        self.first <= last && first <= self.last
    }
}

#[derive(Clone, Copy, Debug)]
struct BlockHead {
    data_at: u32,
    byte: u32,
    min: Offset,
    max: Offset,
    entries: u32,
}

/// A section that still grows.
#[derive(Debug, Default)]
pub(crate) struct SectionBuilder {
    heads: Vec<BlockHead>,
    data: Vec<u8>,
    /// The latest frame is kept apart: more messages of the same lane may follow in the same frame.
    open: Option<FrameRef>,
    previous_byte: u32,
    previous_last: Offset,
}

/// A section read back from a footer.
#[derive(Debug)]
pub(crate) struct Section {
    heads: Vec<BlockHead>,
    data: Box<[u8]>,
    rising: bool,
}

impl SectionBuilder {
    /// Adds a frame and says by how much the section may have grown.
    pub(crate) fn add(&mut self, frame: FrameRef) -> usize {
        if let Some(open) = self.open.as_mut().filter(|open| open.byte == frame.byte) {
            open.first = open.first.min(frame.first);
            open.last = open.last.max(frame.last);
            open.count = open.count.saturating_add(frame.count);
            return 0;
        }
        let before = self.data.len() + self.heads.len() * BLOCK_HEAD_BYTES;
        if let Some(open) = self.open.replace(frame) {
            self.flush(open);
            // The room for the open entry was counted when it came; now its true size is known.
            let grown = self.data.len() + self.heads.len() * BLOCK_HEAD_BYTES - before;
            debug_assert!(grown <= BLOCK_HEAD_BYTES + ENTRY_BYTES_MAX, "an entry is longer than foretold");
            grown
        } else {
            BLOCK_HEAD_BYTES + ENTRY_BYTES_MAX
        }
    }

    fn flush(&mut self, frame: FrameRef) {
        match self.heads.last_mut().filter(|head| head.entries < BLOCK_ENTRIES_MAX) {
            Some(head) => {
                head.min = head.min.min(frame.first);
                head.max = head.max.max(frame.last);
                head.entries += 1;
            }
            None => {
                let data_at = self.data.len() as u32;
                let (byte, min, max) = (frame.byte, frame.first, frame.last);
                if self.heads.is_empty() {
                    // Most lanes have few messages in a segment.
                    self.heads.reserve_exact(1);
                }
                self.heads.push(BlockHead { data_at, byte, min, max, entries: 1 });
                self.previous_byte = byte;
                self.previous_last = Offset(0);
            }
        }
        varint::put(&mut self.data, u64::from(frame.byte - self.previous_byte));
        varint::put(&mut self.data, varint::zigzag(frame.first.0.wrapping_sub(self.previous_last.0) as i64));
        varint::put(&mut self.data, frame.last.0 - frame.first.0);
        varint::put(&mut self.data, u64::from(frame.count));
        self.previous_byte = frame.byte;
        self.previous_last = frame.last;
    }

    pub(crate) fn find(&self, first: Offset, last: Offset, max: usize) -> Vec<FrameRef> {
        let mut found = search(&self.heads, &self.data, is_rising(&self.heads), first, last, max)
            .expect("an index in memory is well-formed");
        if found.len() < max {
            found.extend(self.open.filter(|open| open.overlaps(first, last)));
        }
        found
    }

    /// Appends the section as the footer holds it: the number of blocks, the heads, the entries.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> u32 {
        let mut whole = Self {
            heads: self.heads.clone(),
            data: self.data.clone(),
            open: None,
            previous_byte: self.previous_byte,
            previous_last: self.previous_last,
        };
        if let Some(open) = self.open {
            whole.flush(open);
        }
        for head in &whole.heads {
            out.extend_from_slice(&head.data_at.to_le_bytes());
            out.extend_from_slice(&head.byte.to_le_bytes());
            out.extend_from_slice(&head.min.0.to_le_bytes());
            out.extend_from_slice(&head.max.0.to_le_bytes());
            out.extend_from_slice(&head.entries.to_le_bytes());
        }
        out.extend_from_slice(&whole.data);
        whole.heads.len() as u32
    }
}

impl Section {
    /// Takes a section with this many blocks apart; `None` if it is malformed.
    pub(crate) fn decode(bytes: &[u8], blocks: u32) -> Option<Self> {
        let heads_len = (blocks as usize).checked_mul(BLOCK_HEAD_BYTES)?;
        let (mut heads_bytes, data) = bytes.split_at_checked(heads_len)?;
        let mut heads = Vec::with_capacity(blocks as usize);
        while let Some((head, rest)) = heads_bytes.split_first_chunk::<BLOCK_HEAD_BYTES>() {
            heads.push(BlockHead::decode(head)?);
            heads_bytes = rest;
        }
        let rising = is_rising(&heads);
        Some(Self { heads, data: data.into(), rising })
    }

    /// Frames that overlap an offset range, in order, at most `max`; `None` if the section is malformed.
    pub(crate) fn find(&self, first: Offset, last: Offset, max: usize) -> Option<Vec<FrameRef>> {
        search(&self.heads, &self.data, self.rising, first, last, max)
    }

    /// What it costs to keep this section in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.heads.len() * size_of::<BlockHead>() + self.data.len()
    }
}

impl BlockHead {
    fn decode(bytes: &[u8; BLOCK_HEAD_BYTES]) -> Option<Self> {
        let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Self {
            data_at: u32_at(0)?,
            byte: u32_at(4)?,
            min: Offset(u64_at(8)?),
            max: Offset(u64_at(16)?),
            entries: u32_at(24)?,
        })
    }
}

fn is_rising(heads: &[BlockHead]) -> bool {
    heads.windows(2).all(|pair| pair[0].max <= pair[1].min)
}

fn search(
    heads: &[BlockHead],
    data: &[u8],
    rising: bool,
    first: Offset,
    last: Offset,
    max: usize,
) -> Option<Vec<FrameRef>> {
    let mut found = Vec::new();
    let start = if rising { heads.partition_point(|head| head.max < first) } else { 0 };
    for head in &heads[start..] {
        if found.len() >= max || (rising && head.min > last) {
            break;
        }
        if head.min > last || head.max < first {
            continue;
        }
        collect(head, data, first, last, max, &mut found)?;
    }
    Some(found)
}

fn collect(
    head: &BlockHead,
    data: &[u8],
    first: Offset,
    last: Offset,
    max: usize,
    found: &mut Vec<FrameRef>,
) -> Option<()> {
    let mut rest = data.get(head.data_at as usize..)?;
    let mut byte = head.byte;
    let mut previous_last = 0u64;
    for _ in 0..head.entries {
        byte = byte.checked_add(u32::try_from(varint::take(&mut rest)?).ok()?)?;
        let lowest = previous_last.wrapping_add(varint::unzigzag(varint::take(&mut rest)?) as u64);
        previous_last = lowest.checked_add(varint::take(&mut rest)?)?;
        let count = u32::try_from(varint::take(&mut rest)?).ok()?;
        let frame = FrameRef { byte, first: Offset(lowest), last: Offset(previous_last), count };
        if frame.overlaps(first, last) {
            found.push(frame);
            if found.len() >= max {
                break;
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(byte: u32, first: u64, last: u64) -> FrameRef {
        FrameRef { byte, first: Offset(first), last: Offset(last), count: (last - first + 1) as u32 }
    }

    fn both(frames: &[FrameRef]) -> (SectionBuilder, Section) {
        let mut builder = SectionBuilder::default();
        for frame in frames {
            builder.add(*frame);
        }
        let mut bytes = Vec::new();
        let blocks = builder.encode(&mut bytes);
        let section = Section::decode(&bytes, blocks).unwrap();
        (builder, section)
    }

    #[test]
    fn a_search_finds_the_frames_of_a_range_in_many_blocks() {
        let frames: Vec<_> =
            (0..1000).map(|i| frame(4096 + i * 50, u64::from(i) * 10, u64::from(i) * 10 + 9)).collect();
        let (builder, section) = both(&frames);
        for (first, last) in [(0, 0), (995, 1005), (5000, 5999), (9999, 20_000), (10_000, 20_000)] {
            let (first, last) = (Offset(first), Offset(last));
            let want: Vec<_> = frames.iter().copied().filter(|f| f.overlaps(first, last)).collect();
            assert_eq!(builder.find(first, last, usize::MAX), want);
            assert_eq!(section.find(first, last, usize::MAX), Some(want.clone()));
            assert_eq!(section.find(first, last, 2), Some(want[..want.len().min(2)].to_vec()));
        }
    }

    #[test]
    fn messages_copied_forward_are_found_although_offsets_fall() {
        let frames: Vec<_> = (0..500)
            .map(|i| frame(4096 + i * 50, u64::from(i * 7919 % 500), u64::from(i * 7919 % 500)))
            .collect();
        let (builder, section) = both(&frames);
        let want: Vec<_> = frames.iter().copied().filter(|f| f.overlaps(Offset(40), Offset(60))).collect();
        assert_eq!(builder.find(Offset(40), Offset(60), usize::MAX), want);
        assert_eq!(section.find(Offset(40), Offset(60), usize::MAX), Some(want));
    }

    #[test]
    fn offsets_up_to_the_largest_number_come_back() {
        let frames = [frame(1, u64::MAX - 1, u64::MAX), frame(2, 0, 0), frame(3, u64::MAX, u64::MAX)];
        let (builder, section) = both(&frames);
        assert_eq!(builder.find(Offset(0), Offset(u64::MAX), 9), frames);
        assert_eq!(section.find(Offset(0), Offset(u64::MAX), 9), Some(frames.to_vec()));
    }
}
