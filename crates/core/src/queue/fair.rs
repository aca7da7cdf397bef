//! Fair shares: where groups are tenants of one queue, one that sends very many messages must not make the others wait.
//!
//! A message gets its priority when it is pushed, by how many messages of its group are in the queue: the first has the
//! highest, and each doubling costs one level. So the tenth message of a group is served with the tenth ones of all
//! others, whoever has ten thousand behind it. The decision is in the record, as every decision is; the counts are not
//! durable, and begin anew after a restart.

use std::collections::BTreeMap;

use nexo_types::{GroupId, Priority};

use super::{MessageEntry, Queue};
use crate::config::GroupMode;
use crate::message::NewMessage;

/// The priority of the first message of a group. Twenty doublings are a million messages; all beyond are served last.
const FIRST: u8 = 20;
/// The priority of a message without a group, once there are groups: that of one with some hundred before it.
const UNGROUPED: u8 = 10;

/// How many messages each group has in the queue. A group with none is not here.
#[derive(Debug, Default)]
pub(super) struct Tenants(BTreeMap<GroupId, u64>);

impl Tenants {
    pub(super) fn of<'a>(messages: impl Iterator<Item = &'a GroupId>) -> Self {
        let mut tenants = Self::default();
        for tenant in messages {
            tenants.add(tenant);
        }
        tenants
    }

    pub(super) fn add(&mut self, tenant: &GroupId) {
        match self.0.get_mut(tenant) {
            Some(count) => *count += 1,
            None => {
                self.0.insert(tenant.clone(), 1);
            }
        }
    }

    /// What was pushed before a restart may leave without having been counted.
    pub(super) fn remove(&mut self, tenant: &GroupId) {
        if let Some(count) = self.0.get_mut(tenant) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(tenant);
            }
        }
    }

    fn count(&self, tenant: &GroupId) -> u64 {
        self.0.get(tenant).copied().unwrap_or(0)
    }
}

impl Queue {
    /// In a queue that groups share, the group of a message says whose it is and not where its place is.
    pub(super) fn note_tenant(&self, entry: &mut MessageEntry) {
        if self.config.groups == GroupMode::Fair {
            entry.is_tenant = entry.named_group.is_some();
        }
    }

    /// The messages of a push with the priorities that their groups leave them; `None` if all stay as they are. A message
    /// that says how urgent it is stays so.
    pub(super) fn levelled(&self, messages: &[NewMessage]) -> Option<Vec<NewMessage>> {
        let any = !self.tenants.0.is_empty() || messages.iter().any(|message| message.group.is_some());
        if self.config.groups != GroupMode::Fair || !any {
            return None;
        }
        let mut new: BTreeMap<&GroupId, u64> = BTreeMap::new();
        let mut levelled = Vec::with_capacity(messages.len());
        for message in messages {
            let priority = match &message.group {
                _ if message.priority != Priority(0) => message.priority,
                None => Priority(UNGROUPED),
                Some(group) => {
                    let new = new.entry(group).or_default();
                    let count = self.tenants.count(group) + *new;
                    *new += 1;
                    let doublings = u8::try_from(u64::BITS - count.leading_zeros()).unwrap_or(u8::MAX);
                    Priority(FIRST.saturating_sub(doublings))
                }
            };
            levelled.push(NewMessage { priority, ..message.clone() });
        }
        Some(levelled)
    }
}

#[cfg(test)]
mod tests {
    use nexo_types::{ConsumerId, Offset, QueueId, QueueName, Timestamp};

    use super::*;
    use crate::batch::MessageBatch;
    use crate::config::QueueConfig;
    use crate::offsets::OffsetSet;
    use crate::queue::{Admission, Terms};
    use crate::record::Record;

    const NOW: Timestamp = Timestamp(1000);

    struct Fair {
        queue: Queue,
        log: Vec<Record>,
        /// Where messages are read back from.
        store: BTreeMap<Offset, MessageBatch>,
    }

    impl Fair {
        fn new(groups: GroupMode) -> Self {
            let config = QueueConfig { groups, ..QueueConfig::default() };
            let name = QueueName::new("q").unwrap();
            Self { queue: Queue::new(QueueId(1), name, config, NOW), log: Vec::new(), store: BTreeMap::new() }
        }

        fn apply(&mut self, record: Record) {
            self.queue.apply(&record).unwrap();
            self.log.push(record);
        }

        fn push(&mut self, group: Option<&str>, count: usize) {
            let group = group.map(|group| GroupId::new(group).unwrap());
            let messages = vec![NewMessage { group, ..NewMessage::new("x") }; count];
            for (_, batch) in self.queue.decide_push(NOW, &messages, Admission::Checked).batches {
                self.store.extend(batch.items().iter().map(|item| (item.offset, batch.clone())));
                self.apply(Record::Messages(batch));
            }
        }

        /// Takes this many messages and finishes them.
        fn work(&mut self, count: u32) -> Vec<u64> {
            let consumer = ConsumerId(self.log.len() as u64);
            self.queue.add_consumer(consumer, Terms::default(), count, None).unwrap();
            let mut done = Vec::new();
            loop {
                if let Some(dispatch) = self.queue.decide_dispatch(NOW, 1000) {
                    let handed = self.queue.commit_dispatch(&dispatch).unwrap();
                    self.log.push(dispatch.record);
                    let held: Vec<(Offset, u32)> =
                        handed.iter().map(|one| (one.offset, one.attempts)).collect();
                    done.extend(held.iter().map(|(offset, _)| offset.0));
                    for record in self.queue.decide_ack(NOW, &held).records {
                        self.apply(record);
                    }
                } else if let Some(page) =
                    self.queue.wanted_pages(|ranges| OffsetSet::from_ranges(ranges)).into_iter().next()
                {
                    let read = |offset| {
                        let batch = &self.store[&offset];
                        MessageEntry::from_batch(batch, batch.find(offset).unwrap()).unwrap()
                    };
                    let entries = page.offsets.iter().map(read).collect();
                    assert!(self.queue.page_in(&page, entries, NOW));
                } else {
                    break;
                }
            }
            self.queue.remove_consumer(consumer);
            done
        }
    }

    #[test]
    fn a_quiet_group_does_not_wait_for_a_noisy_one() {
        let mut fair = Fair::new(GroupMode::Fair);
        fair.push(Some("noisy"), 2000);
        fair.push(Some("quiet"), 2);
        assert_eq!(fair.work(4), [0, 2000, 1, 2001], "one of each in turn, then the rest of the noisy one");
        fair.push(Some("quiet"), 1);
        assert_eq!(fair.work(1), [2002]);
        fair.push(None, 1);
        assert!(fair.work(1100).contains(&2003), "a message without a group waits for some, not for all");
    }

    #[test]
    fn a_group_that_has_worked_off_its_messages_is_quiet_again() {
        let mut fair = Fair::new(GroupMode::Fair);
        fair.push(Some("a"), 100);
        fair.work(100);
        fair.push(Some("b"), 3);
        fair.push(Some("a"), 1);
        assert_eq!(fair.work(2), [100, 103]);
        assert_eq!(fair.work(9), [101, 102]);
        assert!(fair.queue.tenants.0.is_empty());
    }

    #[test]
    fn without_groups_order_is_that_of_arrival() {
        let mut fair = Fair::new(GroupMode::Fair);
        fair.push(None, 3);
        assert_eq!(fair.work(3), [0, 1, 2]);
        assert_eq!(fair.queue.levelled(&[NewMessage::new("x")]), None);
        let mut ordered = Fair::new(GroupMode::Ordered);
        ordered.push(Some("a"), 2);
        assert_eq!(ordered.work(1), [0]);
        assert_eq!(
            ordered.queue.figures(NOW).ready,
            1,
            "the next of an ordered group was not leveled, but released"
        );
    }

    #[test]
    fn records_and_snapshots_rebuild_what_the_counts_decided() {
        let mut fair = Fair::new(GroupMode::Fair);
        fair.push(Some("noisy"), 20);
        fair.push(Some("quiet"), 2);
        fair.work(5);
        fair.push(Some("noisy"), 3);
        let expected = fair.queue.outline(NOW);
        let mut replayed = Fair::new(GroupMode::Fair);
        for record in &fair.log {
            replayed.queue.apply(record).unwrap();
        }
        assert_eq!(replayed.queue.outline(NOW), expected);
        let restored = fair.queue.restored();
        assert_eq!(restored.outline(NOW), expected);
        fair.apply(Record::Purge { before: fair.queue.next_offset(), at: NOW });
        assert!(fair.queue.tenants.0.is_empty());
    }
}
