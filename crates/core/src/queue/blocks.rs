//! What a snapshot says of the messages of a lane besides their offsets: for each *block* of offsets how many bytes they
//! take, and when the first of them may end its life.
//!
//! It is kept as messages come and go, whether they are in memory or not. So a snapshot has the same bytes wherever the
//! same records were applied, whatever was read back or let go meanwhile.

use std::collections::VecDeque;

use nexo_types::{Offset, Timestamp};

use super::entry::MessageEntry;

/// Offsets that share a block. The first message of a block tells its number, so this is not part of the format. The
/// more, the less memory a backlog of many priorities takes; but what may have ended its life is looked for by block.
const BLOCK_OFFSETS: u64 = if cfg!(test) { 8 } else { 256 * 1024 };

/// The blocks of a lane that have durable messages, by rising number.
#[derive(Debug, Default)]
pub(super) struct Blocks(VecDeque<Block>);

/// The durable messages of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    number: u64,
    messages: u64,
    pub(super) bytes: u64,
    /// No message of it ends its life before this. Some that did may have left.
    pub(super) expires_at: Timestamp,
}

impl Block {
    pub(super) const fn number_of(offset: u64) -> u64 {
        offset / BLOCK_OFFSETS
    }

    /// The first offset behind it.
    pub(super) const fn end_of(number: u64) -> u64 {
        number.saturating_add(1).saturating_mul(BLOCK_OFFSETS)
    }
}

impl Blocks {
    /// A message joins at the back of the lane.
    pub(super) fn push(&mut self, entry: &MessageEntry) {
        if entry.is_durable() {
            self.add(entry.offset.0, 1, entry.stored_bytes.into(), entry.expires_at);
        }
    }

    /// Messages of one block join at the back; this is the first of them.
    pub(super) fn add(&mut self, first: u64, messages: u64, bytes: u64, expires_at: Timestamp) {
        let number = Block::number_of(first);
        match self.0.back_mut() {
            Some(block) if block.number == number => {
                block.messages += messages;
                block.bytes += bytes;
                block.expires_at = block.expires_at.min(expires_at);
            }
            _ => {
                if self.0.capacity() == 0 {
                    // Most lanes are short.
                    self.0.reserve_exact(1);
                }
                self.0.push_back(Block { number, messages, bytes, expires_at });
            }
        }
    }

    /// A message leaves the lane.
    pub(super) fn remove(&mut self, entry: &MessageEntry) {
        if !entry.is_durable() {
            return;
        }
        let Some(at) = self.find(entry.offset) else {
            debug_assert!(false, "message {} is in a block", entry.offset);
            return;
        };
        let block = &mut self.0[at];
        block.messages -= 1;
        block.bytes = block.bytes.saturating_sub(entry.stored_bytes.into());
        if block.messages == 0 {
            self.0.remove(at);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.0.iter()
    }

    /// How many messages are in it.
    pub(super) fn messages(&self) -> u64 {
        self.0.iter().map(|block| block.messages).sum()
    }

    fn find(&self, offset: Offset) -> Option<usize> {
        let number = Block::number_of(offset.0);
        // Nearly always the first.
        if self.0.front()?.number == number {
            return Some(0);
        }
        self.0.binary_search_by_key(&number, |block| block.number).ok()
    }
}
