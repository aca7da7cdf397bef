//! Settings that queues share: applications make thousands of queues that are told to be the same.

use std::collections::VecDeque;
use std::sync::Arc;

use nexo_core::config::QueueConfig;
use nexo_core::queue::Queue;

/// Settings that are remembered. Each is compared with those of a new queue, so they are few.
const REMEMBERED_MAX: usize = 16;

/// The settings of the queues that were made last.
#[derive(Debug, Default)]
pub(crate) struct SharedConfigs(VecDeque<Arc<QueueConfig>>);

impl SharedConfigs {
    /// Has a queue share its settings with an earlier one that has the same.
    pub(crate) fn share(&mut self, queue: &mut Queue) {
        if let Some(known) = self.0.iter().position(|known| queue.share_config(known)) {
            // Those used last are in front, and the last of all is forgotten first.
            if let Some(config) = self.0.remove(known) {
                self.0.push_front(config);
            }
            return;
        }
        self.0.truncate(REMEMBERED_MAX - 1);
        self.0.push_front(Arc::clone(queue.shared_config()));
    }
}

#[cfg(test)]
mod tests {
    use nexo_types::{Millis, QueueId, QueueName, Timestamp};

    use super::*;

    fn queue(number: u64, ttl: Option<Millis>) -> Queue {
        let name = QueueName::new(&format!("q{number}")).unwrap();
        Queue::new(QueueId(number), name, QueueConfig { ttl, ..QueueConfig::default() }, Timestamp(0))
    }

    #[test]
    fn queues_with_the_same_settings_share_them() {
        let mut configs = SharedConfigs::default();
        let (mut one, mut same, mut other) = (queue(1, None), queue(2, None), queue(3, Some(Millis(5))));
        for queue in [&mut one, &mut same, &mut other] {
            configs.share(queue);
        }
        assert!(Arc::ptr_eq(one.shared_config(), same.shared_config()));
        assert_eq!(other.config().ttl, Some(Millis(5)));
    }

    #[test]
    fn only_some_settings_are_remembered() {
        let mut configs = SharedConfigs::default();
        for number in 0..100 {
            configs.share(&mut queue(number, Some(Millis(number))));
        }
        assert_eq!(configs.0.len(), REMEMBERED_MAX);
        let (mut last, mut again) = (queue(200, Some(Millis(99))), queue(201, Some(Millis(99))));
        configs.share(&mut last);
        configs.share(&mut again);
        assert!(Arc::ptr_eq(last.shared_config(), again.shared_config()));
    }

    #[test]
    fn settings_that_were_used_lately_are_remembered() {
        let mut configs = SharedConfigs::default();
        let mut make = |number: u64, ttl: u64| {
            let mut queue = queue(number, Some(Millis(ttl)));
            configs.share(&mut queue);
            queue
        };
        for ttl in 0..REMEMBERED_MAX as u64 {
            make(ttl, ttl);
        }
        // The last one made, then the oldest: the former must not be the next that is forgotten.
        let recent = make(100, REMEMBERED_MAX as u64 - 1);
        make(101, 0);
        make(102, 1000);
        let again = make(103, REMEMBERED_MAX as u64 - 1);
        assert!(Arc::ptr_eq(recent.shared_config(), again.shared_config()));
    }
}
