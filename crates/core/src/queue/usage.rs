//! Which durable messages join a queue and leave it: for whoever stores them, and must know when nobody needs them any more.

use nexo_types::Offset;

use super::Queue;

/// Changes for which room is kept. A record mostly makes one.
const KEPT: usize = 4;

/// Durable messages side by side and of one size that have joined the queue, or left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageChange {
    /// The first of them.
    pub first: Offset,
    /// How many.
    pub messages: u32,
    /// What each of them is taken to cost on disk.
    pub bytes_each: u32,
    /// Which way.
    pub way: Way,
}

/// Which way messages have gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// They are in the queue now.
    In,
    /// They have left it for good.
    Out,
}

impl UsageChange {
    /// The offset behind the last of them.
    #[must_use]
    pub const fn end(&self) -> Offset {
        Offset(self.first.0 + self.messages as u64)
    }
}

impl Queue {
    /// Says what has joined and left since this was last asked. What a purge, a clearing or a deletion took out is not in it:
    /// after these only [`Self::held`] are left, of what there was before.
    pub fn drain_usage(&mut self, each: impl FnMut(UsageChange)) {
        self.usage.iter().copied().for_each(each);
        self.usage.clear();
        if self.usage.capacity() > KEPT {
            self.usage.shrink_to(KEPT);
        }
    }

    pub(super) fn note_usage(&mut self, offset: Offset, bytes: u32, way: Way) {
        match self.usage.last_mut() {
            Some(last) if last.end() == offset && last.bytes_each == bytes && last.way == way => {
                last.messages += 1;
            }
            _ => {
                if self.usage.capacity() == 0 {
                    // One at a time is the rule, and every queue keeps this room.
                    self.usage.reserve_exact(1);
                }
                self.usage.push(UsageChange { first: offset, messages: 1, bytes_each: bytes, way });
            }
        }
    }
}
