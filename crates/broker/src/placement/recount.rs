//! Counting again what is alive, where the messages that are left are known and those that have left are not.

use nexo_core::queue::Queue;

use super::{Alive, Copies, Place, Placement};

impl Placement {
    /// Counts what is in the queue. Bytes of messages that are not in memory are a share of those of many.
    pub(crate) fn recount(&mut self, queue: &Queue) {
        let mut there: Vec<(u64, u64, u64)> = Vec::new();
        queue.durable_messages(|first, messages, bytes| there.push((first.0, messages, bytes)));
        self.count_again(there.into_iter());
    }

    /// These are all that are left: the first of some side by side, how many, and their bytes.
    pub(super) fn count_again(&mut self, there: impl Iterator<Item = (u64, u64, u64)>) {
        let mut extents: Vec<Alive> = vec![Alive::default(); self.extents.len()];
        let mut copies = Copies::default();
        for (first, messages, bytes) in there {
            let (mut at, end) = (first, first + messages);
            let mut left = (messages, bytes);
            while at < end {
                let (place, until) = self.locate(at, end);
                let count = until - at;
                let share = (u128::from(left.1) * u128::from(count) / u128::from(left.0.max(1))) as u64;
                left = (left.0 - count, left.1 - share);
                match place {
                    Place::Extent(index) => {
                        extents[index].add(count, share);
                    }
                    Place::Copies(index) => {
                        let segment = self.copies.targets[index].segment;
                        for offset in at..until {
                            copies.add(segment, offset, share / count);
                        }
                    }
                    Place::Nowhere => debug_assert!(false, "message {at} lies nowhere"),
                }
                at = until;
            }
        }
        let mut extents = extents.into_iter();
        for extent in &mut self.extents {
            extent.alive = extents.next().unwrap_or_default();
        }
        self.extents.retain(|extent| extent.alive.messages > 0);
        if !self.copies.is_unused() {
            self.copies.take();
        }
        if !copies.targets.is_empty() {
            *self.copies = copies;
        }
    }

    /// How many messages are alive in each segment, for comparing two ways of counting.
    pub(crate) fn messages_by_segment(&self) -> std::collections::BTreeMap<nexo_types::SegmentId, u64> {
        let mut sums = std::collections::BTreeMap::new();
        for extent in &self.extents {
            *sums.entry(extent.segment).or_default() += extent.alive.messages;
        }
        for copies in &self.copies.targets {
            debug_assert_eq!(
                copies.offsets.len(),
                copies.alive.messages,
                "a set of copies has what is alive"
            );
            *sums.entry(copies.segment).or_default() += copies.alive.messages;
        }
        sums
    }
}
