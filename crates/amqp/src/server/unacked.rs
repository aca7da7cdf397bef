//! What a channel has delivered and its client has not settled, by delivery tag.
//!
//! Messages that were delivered one after the other mostly stand one after the other in their queue too. So they are kept in runs
//! of up to 64: the tag finds the run by search, and one that is settled out of order is a bit that is gone. A run that is used up
//! stays until the row is tidied.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use nexo_broker::Settle;
use nexo_types::Offset;

use super::settle::BySource;
use super::source::Source;

/// Messages that were delivered one after the other.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// The delivery tag of the first; the others follow it.
    pub(super) tag: u64,
    pub(super) source: Arc<Source>,
    /// The offset of the first; the others follow it.
    pub(super) offset: Offset,
    pub(super) attempt: u32,
    pub(super) since: Instant,
    /// Which of them are held: bit 0 is the first.
    mask: u64,
}

impl Held {
    /// A single message.
    pub(super) const fn one(
        tag: u64,
        source: Arc<Source>,
        offset: Offset,
        attempt: u32,
        since: Instant,
    ) -> Self {
        Self { tag, source, offset, attempt, since, mask: 1 }
    }

    /// How many messages that are.
    pub(super) const fn count(&self) -> usize {
        self.mask.count_ones() as usize
    }

    /// Their places in the queue.
    pub(super) fn offsets(&self) -> impl Iterator<Item = Offset> + use<> {
        let (first, mask) = (self.offset.0, self.mask);
        ones(mask).map(move |bit| Offset(first + u64::from(bit)))
    }

    /// The tag of the first one that is held, if one is.
    const fn first_tag(&self) -> u64 {
        self.tag + self.mask.trailing_zeros() as u64
    }

    /// The tag of the last one that is held, if one is.
    const fn last_tag(&self) -> u64 {
        self.tag + (u64::BITS - 1 - (self.mask | 1).leading_zeros()) as u64
    }

    /// The bit of a message that is held.
    fn bit_of(&self, tag: u64) -> Option<u64> {
        let bit = tag.checked_sub(self.tag).filter(|bit| *bit < u64::BITS.into())?;
        (self.mask >> bit & 1 == 1).then_some(bit)
    }

    /// Takes in a message that was delivered right after the last one, if it is of the same kind.
    #[inline]
    fn extend(
        &mut self,
        tag: u64,
        source: &Arc<Source>,
        offset: Offset,
        attempt: u32,
        since: Instant,
    ) -> bool {
        let bit = tag.wrapping_sub(self.tag);
        let follows = bit < u64::BITS.into()
            && offset.0.wrapping_sub(self.offset.0) == bit
            && attempt == self.attempt
            && since == self.since
            && Arc::ptr_eq(source, &self.source);
        if follows {
            self.mask |= 1 << bit;
        }
        follows
    }

    /// Splits off those up to a tag.
    fn split_up_to(&mut self, last: u64) -> Self {
        let bits = last.saturating_sub(self.tag).saturating_add(1);
        let up_to = if bits >= u64::BITS.into() { u64::MAX } else { (1 << bits) - 1 };
        let taken = Self { mask: self.mask & up_to, ..self.clone() };
        self.mask &= !up_to;
        taken
    }
}

/// The bits that are set, lowest first.
fn ones(mut mask: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (mask != 0).then(|| mask.trailing_zeros())?;
        mask &= mask - 1;
        Some(bit)
    })
}

/// All of them, oldest first. Dropping it gives them back to their queues.
#[derive(Debug, Default)]
pub(super) struct Unacked {
    row: VecDeque<Held>,
    held: usize,
}

impl Unacked {
    /// Notes a message that was delivered after all others.
    #[inline]
    pub(super) fn push(
        &mut self,
        tag: u64,
        source: &Arc<Source>,
        offset: Offset,
        attempt: u32,
        since: Instant,
    ) {
        self.held += 1;
        if !self.row.back_mut().is_some_and(|last| last.extend(tag, source, offset, attempt, since)) {
            self.row.push_back(Held::one(tag, Arc::clone(source), offset, attempt, since));
        }
    }

    /// Takes out one.
    pub(super) fn take(&mut self, tag: u64) -> Option<Held> {
        let run = self.run_of(tag)?;
        let bit = self.row[run].bit_of(tag)?;
        let held = &mut self.row[run];
        held.mask &= !(1 << bit);
        let one = Held { tag, offset: Offset(held.offset.0 + bit), mask: 1, ..held.clone() };
        self.held -= 1;
        self.tidy();
        Some(one)
    }

    /// The last one that is meant by all up to this one, which must be there itself; tag 0 means all there are.
    pub(super) fn last_up_to(&self, tag: u64) -> Option<u64> {
        if tag == 0 {
            return Some(self.row.back().map_or(0, Held::last_tag));
        }
        self.row[self.run_of(tag)?].bit_of(tag).map(|_| tag)
    }

    /// Takes out those up to `last`, but hardly more than `max` of them: there may be millions. Says whether more are left.
    pub(super) fn take_some_up_to(&mut self, last: u64, max: usize) -> (Vec<Held>, bool) {
        let (mut taken, mut count) = (Vec::new(), 0);
        while count < max
            && let Some(first) = self.row.front_mut().filter(|first| first.first_tag() <= last)
        {
            let some =
                if first.last_tag() > last { Some(first.split_up_to(last)) } else { self.row.pop_front() };
            let Some(some) = some else { break };
            count += some.count();
            taken.push(some);
            self.trim();
        }
        self.held -= count;
        let more = self.row.front().is_some_and(|first| first.first_tag() <= last);
        // Not while more are taken out, which would look at all of them each time.
        if !more {
            self.tidy();
        }
        (taken, more)
    }

    /// Puts messages back that were taken out: their settling was undone.
    pub(super) fn put_back(&mut self, held: Vec<Held>) {
        let mut all: Vec<Held> =
            std::mem::take(&mut self.row).into_iter().chain(held).flat_map(singles).collect();
        all.sort_by_key(|one| one.tag);
        self.held = 0;
        for Held { tag, source, offset, attempt, since, .. } in all {
            self.push(tag, &source, offset, attempt, since);
        }
    }

    /// How many messages there are.
    pub(super) const fn len(&self) -> usize {
        self.held
    }

    /// All of them, in runs.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.row.iter().filter(|held| held.mask != 0)
    }

    /// The run that has a tag, if one has it.
    fn run_of(&self, tag: u64) -> Option<usize> {
        if self.row.front().is_some_and(|first| first.bit_of(tag).is_some()) {
            return Some(0);
        }
        // Where each message is a run of its own, as with many priorities, the tag says which one.
        let guess = usize::try_from(tag.checked_sub(self.row.front()?.tag)?).ok()?;
        if self.row.get(guess).is_some_and(|held| held.bit_of(tag).is_some()) {
            return Some(guess);
        }
        self.row.partition_point(|held| held.tag <= tag).checked_sub(1)
    }

    /// Has the row begin with something.
    fn trim(&mut self) {
        while self.row.front().is_some_and(|held| held.mask == 0) {
            self.row.pop_front();
        }
    }

    fn tidy(&mut self) {
        self.trim();
        if self.row.len() > 64 && self.held < self.row.len() / 2 {
            self.row.retain(|held| held.mask != 0);
        }
    }
}

/// Each message by itself.
fn singles(held: Held) -> impl Iterator<Item = Held> {
    ones(held.mask).map(move |bit| {
        let bit = u64::from(bit);
        Held { tag: held.tag + bit, offset: Offset(held.offset.0 + bit), mask: 1, ..held.clone() }
    })
}

impl Drop for Unacked {
    fn drop(&mut self) {
        let mut groups = BySource::default();
        for held in self.iter() {
            groups.add(held);
        }
        groups.settle_eventually(Settle::Requeue);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use nexo_broker::{Broker, BrokerOptions, QueueConfig};
    use nexo_log::disk::FaultyDisk;
    use nexo_types::QueueName;
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;

    use super::super::arguments::QueueKind;
    use super::*;

    /// Something that a channel does.
    #[derive(Clone, Debug)]
    enum Act {
        /// Messages are delivered from a source, behind a gap of offsets, for the so-and-so-manieth time, at a moment.
        Deliver { source: usize, gap: u64, count: u64, attempt: u32, moment: u64 },
        /// The client settles one, as a part of all tags.
        Take(u64),
        /// Or all up to one, some at a time.
        TakeUpTo(u64, usize),
        /// What was taken last comes back.
        PutBack,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            4 => (0..2usize, 0..3u64, 1..150u64, 1..3u32, 0..2u64).prop_map(|(source, gap, count, attempt, moment)| {
                Act::Deliver { source, gap, count, attempt, moment }
            }),
            6 => any::<u64>().prop_map(Act::Take),
            3 => (any::<u64>(), 1..200usize).prop_map(|(tag, max)| Act::TakeUpTo(tag, max)),
            1 => Just(Act::PutBack),
        ]
    }

    /// What is known of a message: its source, its offset, its attempt.
    type Known = (u64, Offset, u32);

    fn known(held: &[Held]) -> BTreeMap<u64, Known> {
        let all = held.iter().cloned().flat_map(singles);
        all.map(|one| (one.tag, (one.source.id, one.offset, one.attempt))).collect()
    }

    /// Two sources of a broker that nobody else uses.
    fn sources() -> [Arc<Source>; 2] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let broker = Broker::open_on(Arc::new(FaultyDisk::new()), BrokerOptions::new("memory")).unwrap();
        let name = QueueName::new("q").unwrap();
        runtime.block_on(broker.create_queue(&name, QueueConfig::default())).unwrap();
        let queue = broker.queue(&name).unwrap();
        [1, 2].map(|id| Arc::new(Source::new(id, 1, queue.clone(), QueueKind::Classic)))
    }

    #[test]
    fn held_messages_are_those_of_a_plain_map() {
        let (sources, began) = (sources(), Instant::now());
        let mut runner = TestRunner::new(ProptestConfig { cases: 128, ..ProptestConfig::default() });
        let acts = proptest::collection::vec(act(), 1..40);
        runner.run(&acts, |acts| compare(&sources, began, acts)).unwrap();
    }

    fn compare(sources: &[Arc<Source>; 2], began: Instant, acts: Vec<Act>) -> Result<(), TestCaseError> {
        let (mut unacked, mut model) = (Unacked::default(), BTreeMap::<u64, Known>::new());
        let (mut next_tag, mut next_offset, mut taken) = (1, 0, Vec::new());
        for act in acts {
            match act {
                Act::Deliver { source, gap, count, attempt, moment } => {
                    next_offset += gap;
                    for _ in 0..count {
                        let (source, offset) = (&sources[source], Offset(next_offset));
                        let since = began + Duration::from_millis(moment);
                        unacked.push(next_tag, source, offset, attempt, since);
                        model.insert(next_tag, (source.id, offset, attempt));
                        (next_tag, next_offset) = (next_tag + 1, next_offset + 1);
                    }
                }
                Act::Take(tag) => {
                    let tag = tag % (next_tag + 2);
                    let one = unacked.take(tag);
                    let expected: BTreeMap<u64, Known> = model.remove_entry(&tag).into_iter().collect();
                    prop_assert_eq!(known(one.as_slice()), expected);
                    taken = Vec::from_iter(one);
                }
                Act::TakeUpTo(tag, max) => {
                    let tag = tag % (next_tag + 2);
                    let Some(last) = unacked.last_up_to(tag) else {
                        prop_assert!(tag != 0 && !model.contains_key(&tag));
                        continue;
                    };
                    let (some, more) = unacked.take_some_up_to(last, max);
                    let rest = model.split_off(&(last + 1));
                    let mut up_to = std::mem::replace(&mut model, rest);
                    let some_known = known(&some);
                    prop_assert!(some_known.len() < max + 64, "hardly more than asked for");
                    prop_assert!(!more || some_known.len() >= max);
                    for (tag, one) in &some_known {
                        prop_assert_eq!(up_to.pop_first(), Some((*tag, *one)), "the oldest first");
                    }
                    prop_assert_eq!(more, !up_to.is_empty());
                    model.append(&mut up_to);
                    taken = some;
                }
                Act::PutBack => {
                    model.extend(known(&taken));
                    unacked.put_back(std::mem::take(&mut taken));
                }
            }
            prop_assert_eq!(unacked.len(), model.len());
        }
        let all: Vec<Held> = unacked.iter().cloned().collect();
        prop_assert_eq!(known(&all), model);
        Ok(())
    }

    #[test]
    fn messages_that_follow_each_other_are_one_run() {
        let [source, _] = sources();
        let (mut unacked, since) = (Unacked::default(), Instant::now());
        for tag in 1..=1_000 {
            unacked.push(tag, &source, Offset(tag + 41), 1, since);
        }
        assert_eq!(unacked.iter().count(), 1_000usize.div_ceil(64));
    }
}
