//! Messages that a replay needs and that do not lie where it looks for them.
//!
//! A replay that begins at an earlier checkpoint meets messages whose segment has been given up since. Either they were
//! copied forward, and the copy is further on in the log. Or they have left their queue, and the log tells that further on:
//! until then an entry without bytes stands for each. What stands there at the end is lost.
//!
//! A replay may meet any number of them, so they are kept as ranges, and forgotten when they leave their queue: there are
//! never more than entries in the queue. Copies are looked for in the index of the log, one page at a time, rather than
//! remembered.

use std::collections::BTreeMap;

use nexo_core::offsets::OffsetSet;
use nexo_core::queue::{MessageEntry, NeedsPage, PageRequest, Queue};
use nexo_core::record::{Leave, Pick, Record};
use nexo_log::ReadError;
use nexo_types::{Offset, Position, Priority, QueueId, SegmentId, Timestamp};

use crate::paging;
use crate::placement::PlacedPage;
use crate::recovery::Rebuilt;
use crate::stored::Stored;

/// Offsets of a segment that is lost whose messages are dropped at a time.
const LOST_PART_OFFSETS: u64 = 4096;

/// Those of all queues, while the log is replayed.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    offsets: BTreeMap<(QueueId, Priority), Ranges>,
    /// From where on the log is replayed.
    from: Position,
}

/// Offsets that come in any order, mostly next to each other: the first of each range, and its last.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Unread {
    /// For a replay from there on.
    pub(crate) fn since(from: Position) -> Self {
        Self { from, ..Self::default() }
    }

    /// Applies a record, reading messages into memory where it needs them.
    ///
    /// # Errors
    /// If the log cannot be read now, or makes no sense.
    pub(crate) fn apply(
        &mut self,
        log: Stored<'_>,
        rebuilt: &mut Rebuilt,
        at: Position,
        record: &Record,
    ) -> Result<(), String> {
        let Rebuilt { queue, placement, .. } = rebuilt;
        let id = queue.id();
        let removed = loop {
            let page = match queue.apply(record) {
                Ok(applied) => break applied.removed.is_some(),
                Err(NeedsPage(page)) => placement.place(&page),
            };
            let mut entries = paging::read_page(log, id, &page).map_err(|error| error.to_string())?;
            self.read_copies(log, id, &page, &mut entries).map_err(|error| error.to_string())?;
            let lost = entries.iter().filter(|entry| entry.payload.is_none()).map(|entry| entry.offset);
            let mut lost = lost.peekable();
            if lost.peek().is_some() {
                let ranges = self.offsets.entry((id, page.request.lane)).or_default();
                lost.for_each(|offset| ranges.insert(offset));
            }
            if !queue.page_in(&page.request, entries, Timestamp(0)) {
                let first = page.request.offsets.first();
                return Err(format!("messages {first:?} are not where they should be"));
            }
        };
        placement.follow(queue, at, removed, |_, _| ());
        self.forget(queue, record);
        Ok(())
    }

    /// Forgets those that a record has taken out of their queue.
    fn forget(&mut self, queue: &Queue, record: &Record) {
        let id = queue.id();
        let of_queue = (id, Priority(0))..=(id, Priority(u8::MAX));
        if self.offsets.range(of_queue.clone()).next().is_none() {
            return;
        }
        match record {
            Record::Settle { offsets, .. } => {
                for (_, ranges) in self.offsets.range_mut(of_queue.clone()) {
                    offsets.iter().for_each(|offset| ranges.remove(offset));
                }
            }
            Record::Drop { picks, .. } => {
                for pick in picks {
                    if let Some(ranges) = self.offsets.get_mut(&(id, pick.lane)) {
                        pick.offsets.iter().for_each(|offset| ranges.remove(offset));
                    }
                }
            }
            Record::Purge { .. } => {
                // What is leased stays.
                for (_, ranges) in self.offsets.range_mut(of_queue.clone()) {
                    let left: Vec<Offset> = ranges.iter().filter(|offset| queue.is_held(*offset)).collect();
                    *ranges = Ranges::default();
                    left.into_iter().for_each(|offset| ranges.insert(offset));
                }
            }
            Record::Clear { .. } | Record::Delete => {
                self.offsets.range_mut(of_queue.clone()).for_each(|(_, ranges)| *ranges = Ranges::default());
            }
            Record::Create { .. }
            | Record::Configure { .. }
            | Record::Messages(_)
            | Record::Lease { .. }
            | Record::Extend { .. }
            | Record::Die { .. }
            | Record::Return { .. }
            | Record::Reserve { .. } => return,
        }
        let empty = self.offsets.range(of_queue).filter(|(_, ranges)| ranges.0.is_empty());
        for lane in empty.map(|(lane, _)| *lane).collect::<Vec<_>>() {
            self.offsets.remove(&lane);
        }
    }

    /// Drops those that are still in their queue when all records have been applied. Says how many.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub(crate) fn drop_from(&mut self, log: Stored<'_>, rebuilt: &mut Rebuilt) -> Result<u64, String> {
        let id = rebuilt.queue.id();
        let lanes = self.offsets.range((id, Priority(0))..=(id, Priority(u8::MAX)));
        let picks: Vec<Pick> =
            lanes.map(|((_, lane), ranges)| Pick { lane: *lane, offsets: ranges.iter().collect() }).collect();
        let before = damaged(&rebuilt.queue);
        let drop = Record::Drop { picks, why: Leave::Damaged, at: Timestamp(0) };
        self.apply(log, rebuilt, Position::default(), &drop)?;
        Ok(damaged(&rebuilt.queue) - before)
    }

    /// Drops what can be dropped of the messages in a segment that is not there. Says how many, and how many are left.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub(crate) fn drop_segment(
        &mut self,
        log: Stored<'_>,
        rebuilt: &mut Rebuilt,
        segment: SegmentId,
    ) -> Result<(u64, u64), String> {
        let before = damaged(&rebuilt.queue);
        let mut later = 0;
        let mut from = Offset(0);
        while let Some(part) = rebuilt.placement.next_part(segment, from, LOST_PART_OFFSETS) {
            let (start, end) = (Offset(part.start), Offset(part.end));
            from = end;
            let Rebuilt { queue, placement, .. } = &*rebuilt;
            let here = |offset: &Offset| placement.segment_of(*offset) == segment;
            let mut lanes: BTreeMap<Priority, Vec<Offset>> = BTreeMap::new();
            for (lane, offset) in queue.in_lanes(start, end).into_iter().filter(|(_, offset)| here(offset)) {
                lanes.entry(lane).or_default().push(offset);
            }
            let loose = queue.loose_in(start, end).into_iter().map(|(_, offset)| offset).filter(here);
            let (held, waiting): (Vec<Offset>, Vec<Offset>) =
                loose.partition(|offset| queue.is_held(*offset));
            later += waiting.len() as u64;
            let (why, at) = (Leave::Damaged, Timestamp(0));
            let of_lane = |(lane, offsets): (Priority, Vec<Offset>)| Pick {
                lane,
                offsets: offsets.into_iter().collect(),
            };
            let picks = lanes.into_iter().map(of_lane).collect();
            self.apply(log, rebuilt, Position::default(), &Record::Drop { picks, why, at })?;
            let offsets = held.into_iter().collect();
            self.apply(log, rebuilt, Position::default(), &Record::Settle { offsets, why, at })?;
            // What is before the lost ones was read.
            rebuilt.queue.page_out(u64::MAX);
        }
        Ok((damaged(&rebuilt.queue) - before, later))
    }

    /// Replaces entries without bytes by copies that lie further on in the log. All of a page lay in one segment, so
    /// copies of them take no more memory than that.
    fn read_copies(
        &self,
        log: Stored<'_>,
        id: QueueId,
        page: &PlacedPage,
        entries: &mut [MessageEntry],
    ) -> Result<(), ReadError> {
        if entries.iter().all(|entry| entry.payload.is_some()) {
            return Ok(());
        }
        // Copies within the page's own segment have been found.
        let segments = log.log.segments().into_iter().map(|segment| segment.id);
        let segments = segments.filter(|segment| *segment >= self.from.segment && *segment != page.segment);
        for segment in segments {
            let missing = entries.iter().filter(|entry| entry.payload.is_none());
            let mut offsets: OffsetSet = missing.map(|entry| entry.offset).collect();
            while !offsets.is_empty() {
                let request = PageRequest { lane: page.request.lane, offsets };
                let placed = PlacedPage { segment, request };
                let copies = paging::read_page(log, id, &placed)?;
                // The first of them, as many as fit; those that are not there among them.
                let Some(looked_at) = copies.last().map(|copy| copy.offset) else { break };
                for copy in copies.into_iter().filter(|copy| copy.payload.is_some()) {
                    if let Ok(at) = entries.binary_search_by_key(&copy.offset, |entry| entry.offset) {
                        entries[at] = copy;
                    }
                }
                offsets = placed.request.offsets.iter().filter(|offset| *offset > looked_at).collect();
            }
        }
        Ok(())
    }
}

fn damaged(queue: &Queue) -> u64 {
    queue.figures(Timestamp(0)).totals.damaged
}

impl Ranges {
    fn insert(&mut self, Offset(offset): Offset) {
        let before = self.0.range(..=offset).next_back().map(|(first, last)| (*first, *last));
        if before.is_some_and(|(_, last)| last >= offset) {
            return;
        }
        let first = before.filter(|(_, last)| last + 1 == offset).map_or(offset, |(first, _)| first);
        let last = self.0.remove(&(offset + 1)).unwrap_or(offset);
        self.0.insert(first, last);
    }

    fn remove(&mut self, Offset(offset): Offset) {
        let around = self.0.range(..=offset).next_back().map(|(first, last)| (*first, *last));
        let Some((first, last)) = around.filter(|(_, last)| *last >= offset) else { return };
        if first < offset {
            self.0.insert(first, offset - 1);
        } else {
            self.0.remove(&first);
        }
        if offset < last {
            self.0.insert(offset + 1, last);
        }
    }

    fn iter(&self) -> impl Iterator<Item = Offset> {
        self.0.iter().flat_map(|(first, last)| (*first..=*last).map(Offset))
    }
}

#[cfg(test)]
mod tests {
    use nexo_core::config::QueueConfig;

    use super::*;

    #[test]
    fn offsets_side_by_side_are_one_range_in_whatever_order_they_come() {
        let mut ranges = Ranges::default();
        let mut rng = fastrand::Rng::with_seed(7);
        let mut offsets: Vec<u64> = (100..10_100).filter(|offset| offset % 1000 != 0).collect();
        rng.shuffle(&mut offsets);
        // Some are met twice.
        for offset in offsets.iter().chain(&offsets[..500]) {
            ranges.insert(Offset(*offset));
        }
        offsets.sort_unstable();
        assert_eq!(ranges.iter().map(|Offset(offset)| offset).collect::<Vec<_>>(), offsets);
        assert_eq!(ranges.0.len(), 11, "{ranges:?}");
    }

    #[test]
    fn offsets_that_are_taken_out_leave_nothing_behind() {
        let mut ranges = Ranges::default();
        let mut rng = fastrand::Rng::with_seed(8);
        let mut offsets: Vec<u64> = (100..1_100).collect();
        offsets.iter().for_each(|offset| ranges.insert(Offset(*offset)));
        rng.shuffle(&mut offsets);
        // One that is not there, at either end and twice.
        for offset in [99, 1_100, 1_100] {
            ranges.remove(Offset(offset));
        }
        while let Some(offset) = offsets.pop() {
            ranges.remove(Offset(offset));
            ranges.remove(Offset(offset));
            let mut left = offsets.clone();
            left.sort_unstable();
            assert_eq!(ranges.iter().map(|Offset(offset)| offset).collect::<Vec<_>>(), left);
        }
        assert!(ranges.0.is_empty());
    }

    /// However long a replay is, it remembers no more of what it could not read than the queue has.
    #[test]
    fn what_has_left_its_queue_is_forgotten() {
        let (at, id) = (Timestamp(0), QueueId(1));
        let queue = Queue::new(id, nexo_types::QueueName::new("q").unwrap(), QueueConfig::default(), at);
        let lost = |unread: &Unread| unread.offsets.values().flat_map(Ranges::iter).count();
        let met = || {
            let mut unread = Unread::default();
            for lane in [Priority(0), Priority(4)] {
                let ranges = unread.offsets.entry((id, lane)).or_default();
                (0..100).for_each(|offset| ranges.insert(Offset(2 * offset + u64::from(lane.0 > 0))));
            }
            unread.offsets.entry((QueueId(2), Priority(0))).or_default().insert(Offset(7));
            assert_eq!(lost(&unread), 201);
            unread
        };
        let some: OffsetSet = (0..100).map(Offset).collect();
        let why = Leave::Acked;
        let mut unread = met();
        unread.forget(&queue, &Record::Settle { offsets: some.clone(), why, at });
        assert_eq!(lost(&unread), 101);
        let pick = Pick { lane: Priority(4), offsets: (100..300).map(Offset).collect() };
        unread.forget(&queue, &Record::Drop { picks: vec![pick], why, at });
        assert_eq!(lost(&unread), 51);
        for gone in [Record::Purge { before: Offset(200), at }, Record::Clear { before: Offset(200), at }] {
            let mut unread = met();
            unread.forget(&queue, &gone);
            assert_eq!((lost(&unread), unread.offsets.len()), (1, 1), "only what is another queue's");
        }
    }
}
