//! Snapshots as checkpoints of the first version had them: one run of bytes with everything in it. They are read, not
//! written; the next checkpoint writes the queue in the present form.

use nexo_types::{DedupId, GroupId, Offset, Timestamp};

use super::snapshot::{LEASED, SnapshotError, WAITING};
use super::{Entry, Queue};
use crate::wire::{Reader, WireError};

const BEHIND: u8 = 2;

impl Queue {
    /// A queue in the state of a snapshot of the first version.
    ///
    /// # Errors
    /// If the bytes are not a snapshot.
    pub fn restore_v1(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let mut input = Reader::new(bytes);
        let mut queue = Self::restore_head(&mut input)?;
        queue.restore_loose_v1(&mut input)?;
        for _ in 0..input.u64()? {
            let id = DedupId::new(input.text()?).map_err(|_| WireError::BadName)?;
            let until = Timestamp(input.u64()?);
            let offset = Offset(input.u64()?);
            queue.touch(offset);
            queue.dedup.insert(id, offset, until);
        }
        input.finish()?;
        Ok(queue)
    }

    fn restore_loose_v1(&mut self, input: &mut Reader<'_>) -> Result<(), WireError> {
        let mut names = Vec::new();
        for _ in 0..input.u64()? {
            names.push(GroupId::new(input.text()?).map_err(|_| WireError::BadName)?);
        }
        for _ in 0..input.u64()? {
            let stage = input.u8()?;
            let mut entry = Entry::decode_fields(input)?;
            if let Some(index) = input.optional()? {
                let index = usize::try_from(index).map_err(|_| WireError::Range)?;
                entry.group = Some(names.get(index).ok_or(WireError::Range)?.clone());
            }
            self.touch(entry.offset);
            match stage {
                // Heads of groups come before those behind them.
                WAITING | BEHIND => self.restore_waiting(entry),
                LEASED => self.restore_leased(entry, input)?,
                value => return Err(WireError::Unknown { what: "stage of a message", value }),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{ChunkId, MessageState, Outline, Stage};
    use crate::record::Phase;

    /// Written by the first version: eight messages, of which two are leased, one is delayed, one has a deduplication id,
    /// and three are in two groups.
    const WRITTEN_BY_V1: &str = "07036f6c64c0843db0ea0100060000000000e0a7120000010000000000000000000008000802000000000000\
         01000342ffffffffffffffffff0102010102010201610162060005038020210000c0843dc0843dffffffffffffffffff010100070380\
         20210000c0843dc0843dffffffffffffffffff01020003038020210000c0843dc8ab3dffffffffffffffffff01000102038020210901\
         c0843dc0843dffffffffffffffffff0100f1ee3e01c0843d0100038020210001c0843dc0843dffffffffffffffffff0100f1ee3e01c0\
         843d0206038020210000c0843dc0843dffffffffffffffffff010101046f6e6365a0ac4f04";

    fn bytes() -> Vec<u8> {
        let digits: Vec<u8> = WRITTEN_BY_V1.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    fn check(outline: &Outline) {
        let leased = Stage::Leased { until: Some(Timestamp(1_030_000)), phase: Phase::Done };
        let expected = [
            (0, 1, leased),
            (0, 0, Stage::Ready),
            (9, 1, leased),
            (0, 0, Stage::Delayed(Timestamp(1_005_000))),
            (0, 0, Stage::Ready),
            (0, 0, Stage::Ready),
            (0, 0, Stage::Grouped),
            (0, 0, Stage::Ready),
        ];
        let state = |(priority, attempts, stage)| MessageState {
            priority: nexo_types::Priority(priority),
            attempts,
            stage,
        };
        let found: Vec<MessageState> = outline.messages.values().cloned().collect();
        assert_eq!(found, expected.map(state));
        let id = DedupId::new("once").unwrap();
        assert_eq!(outline.dedup[&id], (Timestamp(1_300_000), Offset(4)));
        assert_eq!((outline.next_offset, outline.totals.pushed, outline.totals.delivered), (Offset(8), 8, 2));
    }

    #[test]
    fn a_snapshot_of_the_first_version_is_read_and_written_anew() {
        let now = Timestamp(1_000_000);
        let mut queue = Queue::restore_v1(&bytes()).unwrap();
        queue.check_invariants();
        check(&queue.outline(now));
        assert!(queue.has_changed_chunks(), "no chunk of it is written");
        let head = queue.begin_snapshot(std::iter::empty(), &[]);
        let slice = queue.next_chunks(usize::MAX, usize::MAX).unwrap();
        assert_eq!(slice.chunks.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [ChunkId(0), ChunkId(1)]);
        let again = Queue::restore(&head, slice.chunks.iter().map(|(_, bytes)| &bytes[..])).unwrap();
        again.check_invariants();
        check(&again.outline(now));
    }

    #[test]
    fn a_snapshot_that_was_cut_short_is_refused() {
        let whole = bytes();
        for len in 0..whole.len() {
            assert!(Queue::restore_v1(&whole[..len]).is_err());
        }
    }
}
