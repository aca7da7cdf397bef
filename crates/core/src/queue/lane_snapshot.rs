//! The lanes of a queue as bytes: for each lane and block of offsets which messages wait. Bodies and the rest are in the log.

use nexo_types::{Priority, Timestamp};

use super::blocks::Block;
use super::lane::{Lane, Stretch};
use super::lanes::Lanes;
use super::run::Run;
use super::snapshot::StoredIn;
use crate::offsets::{OffsetSet, PackedOffsets};
use crate::wire::{Reader, WireError, Writer};

impl Lanes {
    /// Writes all durable messages down.
    pub(super) fn encode(&self, out: &mut Writer) {
        let blocks: u64 = self.lanes().iter().map(|lane| lane.blocks.iter().count() as u64).sum();
        out.u64(blocks);
        for lane in self.lanes() {
            let mut sets = durable_by_block(lane).into_iter();
            for block in lane.blocks.iter() {
                out.u8(lane.priority.0);
                out.u64(block.bytes);
                out.u64(block.expires_at.0);
                sets.next().unwrap_or_default().encode(out);
            }
            debug_assert!(sets.next().is_none(), "every message is in a block");
        }
    }

    /// Reads back what [`Self::encode`] wrote; everything is paged. Up to version 1 of a head it is not by block, and says
    /// where each part was stored, which `stored` is told.
    pub(super) fn decode(
        input: &mut Reader<'_>,
        version: u64,
        stored: &mut dyn FnMut(StoredIn<'_>),
    ) -> Result<Self, WireError> {
        let mut lanes = Self::default();
        for _ in 0..input.u64()? {
            let priority = Priority(input.u8()?);
            let file = if version == 1 { Some(input.u32()?) } else { None };
            let bytes = input.u64()?;
            let expires_at = Timestamp(input.u64()?);
            let offsets = OffsetSet::decode(input)?;
            if offsets.is_empty() {
                return Err(WireError::Range);
            }
            if let Some(file) = file {
                stored(StoredIn { offsets: &offsets, bytes, file });
            }
            lanes.add_paged(priority, &offsets, bytes, expires_at);
        }
        lanes.note_restored();
        Ok(lanes)
    }

    /// Adds messages that are not in memory at the back of their lane.
    fn add_paged(&mut self, priority: Priority, offsets: &OffsetSet, bytes: u64, expires_at: Timestamp) {
        let mut left = (offsets.len(), bytes);
        let parts = by_block(offsets.ranges().iter().copied());
        let lane = self.lane_for(priority, offsets.len(), bytes);
        for part in parts {
            // A part of what was written together is taken to have its share of the bytes.
            let share = (u128::from(left.1) * u128::from(part.len()) / u128::from(left.0.max(1))) as u64;
            left = (left.0 - part.len(), left.1 - share);
            let first = part.first().map_or(0, |first| first.0);
            lane.blocks.add(first, part.len(), share, expires_at);
            let mut packed = PackedOffsets::default();
            part.ranges().iter().for_each(|(first, len)| packed.push_range(*first, *len));
            let run = Box::new(Run { offsets: packed, bytes: share, expires_at });
            lane.insert(lane.stretches.len(), Stretch::Paged(run));
        }
    }
}

/// The durable messages of a lane, each block apart.
fn durable_by_block(lane: &Lane) -> Vec<OffsetSet> {
    let ranges = lane.stretches.iter().flat_map(|stretch| {
        let (resident, run) = match stretch {
            Stretch::Resident(resident) => (Some(resident), None),
            Stretch::Paged(run) => (None, Some(run)),
        };
        let entries = resident.into_iter().flat_map(|resident| &resident.entries);
        let durable = entries.filter(|entry| entry.is_durable()).map(|entry| (entry.offset.0, 1));
        durable.chain(run.into_iter().flat_map(|run| run.offsets.ranges()))
    });
    by_block(ranges)
}

fn by_block(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<OffsetSet> {
    let mut blocks: Vec<(u64, OffsetSet)> = Vec::new();
    for (mut first, mut len) in ranges {
        while len > 0 {
            let number = Block::number_of(first);
            let part = len.min(Block::end_of(number) - first);
            match blocks.last_mut() {
                Some((last, set)) if *last == number => set.push_range(first, part),
                _ => {
                    let mut set = OffsetSet::default();
                    set.push_range(first, part);
                    blocks.push((number, set));
                }
            }
            (first, len) = (first + part, len - part);
        }
    }
    blocks.into_iter().map(|(_, set)| set).collect()
}
