//! The tags of consumers that have a queue for themselves: exclusive ones, and the active one where only one is served. Lists of
//! queues show them, so all consumers are gone through once for a list, and only if a queue of it has such a consumer.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;

use nexo_broker::{OpenConsumer, QueueRow};
use nexo_types::{ConsumerId, QueueName};

use super::Api;

/// The consumers that are there, when somebody has asked.
#[derive(Debug, Default)]
pub(super) struct ConsumerTags {
    known: OnceCell<Known>,
}

#[derive(Debug, Default)]
struct Known {
    by_id: HashMap<ConsumerId, Arc<OpenConsumer>>,
    exclusive: HashMap<QueueName, Arc<OpenConsumer>>,
}

impl Known {
    fn of(api: &Api) -> Self {
        let mut known = Self::default();
        for connection in api.broker.open_connections().all() {
            for consumer in connection.channels().iter().flat_map(|channel| channel.consumers()) {
                if consumer.is_exclusive {
                    known.exclusive.insert(consumer.queue.clone(), Arc::clone(&consumer));
                }
                if let Some(id) = consumer.id {
                    known.by_id.insert(id, consumer);
                }
            }
        }
        known
    }
}

impl ConsumerTags {
    /// The tag of the consumer that no other may join.
    pub(super) fn exclusive(&self, api: &Api, row: &QueueRow) -> Option<String> {
        // An exclusive consumer is the only one.
        let may_be = row.stats.consumers == 1 && !row.stats.config.single_active_consumer;
        let known = may_be.then(|| self.known(api))?;
        known.exclusive.get(&row.stats.name).map(|consumer| tag_of(consumer))
    }

    /// The tag of the consumer that gets everything, where only one does.
    pub(super) fn active(&self, api: &Api, row: &QueueRow) -> Option<String> {
        let active = row.active_consumer?;
        self.known(api).by_id.get(&active).map(|consumer| tag_of(consumer))
    }

    fn known(&self, api: &Api) -> &Known {
        self.known.get_or_init(|| Known::of(api))
    }
}

fn tag_of(consumer: &OpenConsumer) -> String {
    String::from_utf8_lossy(&consumer.tag).into_owned()
}
