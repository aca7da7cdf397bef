//! Lists for those who look after the broker: queues, exchanges and bindings as they are now. What is listed may not be safe
//! yet, and may be gone a moment later.

use nexo_core::message::Durability;
use nexo_core::topology::{Binding, Destination, ExchangeSpec, Topology};
use nexo_types::{ConsumerId, ExchangeName, QueueKind, QueueName};

use crate::broker::Broker;
use crate::request::SessionId;
use crate::stats::QueueStats;

/// One queue in a list.
#[derive(Clone, Debug)]
pub struct QueueRow {
    /// Its settings and figures.
    pub stats: QueueStats,
    /// In whose words it was asked for.
    pub kind: QueueKind,
    /// Whether it survives a restart.
    pub durability: Durability,
    /// The connection that alone may use it.
    pub owner: Option<SessionId>,
    /// Who gets everything, where only one consumer may.
    pub active_consumer: Option<ConsumerId>,
    /// Memory that it takes, near enough.
    pub memory_bytes: u64,
}

/// How many objects there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Queues.
    pub queues: usize,
    /// Exchanges, the default ones among them.
    pub exchanges: usize,
    /// Bindings, without those of the default exchange.
    pub bindings: usize,
}

/// Messages of all queues together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageTotals {
    /// Messages that could be delivered now.
    pub ready: u64,
    /// Messages with a consumer.
    pub leased: u64,
    /// Messages whose time has not come.
    pub delayed: u64,
    /// Messages behind another of their group.
    pub grouped: u64,
    /// Deliveries of a message that had been delivered before, of the queues that are there.
    pub redelivered: u64,
}

/// Which bindings to list.
#[derive(Clone, Copy, Debug)]
pub enum BindingsOf<'a> {
    /// All of them, without those of the default exchange.
    All,
    /// Those that lead from an exchange.
    Source(&'a ExchangeName),
    /// Those that lead to a queue or an exchange.
    Destination(&'a Destination),
}

impl Broker {
    /// The names of all queues, sorted.
    #[must_use]
    pub fn queue_names(&self) -> Vec<QueueName> {
        let cells = self.shared.catalog.all();
        let mut names: Vec<QueueName> = cells.iter().map(|cell| cell.name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// One queue as a list shows it, if it is there.
    #[must_use]
    pub fn queue_row(&self, name: &QueueName) -> Option<QueueRow> {
        let cell = self.shared.catalog.get(name)?;
        let now = self.shared.clock.now();
        let (stats, active_consumer, memory_bytes) = {
            let state = cell.state.lock();
            if state.deleted {
                return None;
            }
            let queue = &state.queue;
            (QueueStats::new(queue, now), queue.consumers().1, queue.figures(now).memory_bytes)
        };
        let kind = self.shared.options.codecs.kind(name, stats.config.base());
        let (durability, owner) = (cell.durability, cell.owner);
        Some(QueueRow { stats, kind, durability, owner, active_consumer, memory_bytes })
    }

    /// How many objects there are.
    #[must_use]
    pub fn object_counts(&self) -> ObjectCounts {
        let count = |topology: &Topology| {
            // Each virtual host has a default exchange besides.
            (topology.exchanges().count() + topology.vhosts().count(), topology.binding_count())
        };
        let (exchanges, bindings) = self.shared.catalog.exchanges.look(count);
        ObjectCounts { queues: self.shared.catalog.len(), exchanges, bindings }
    }

    /// Sums over all queues.
    #[must_use]
    pub fn message_totals(&self) -> MessageTotals {
        let now = self.shared.clock.now();
        let mut sum = MessageTotals::default();
        for cell in self.shared.catalog.all() {
            let state = cell.state.lock();
            if state.deleted {
                continue;
            }
            let figures = state.queue.figures(now);
            sum.ready += figures.ready;
            sum.leased += figures.leased;
            sum.delayed += figures.delayed;
            sum.grouped += figures.grouped;
            sum.redelivered += figures.totals.redelivered;
        }
        sum
    }

    /// All exchanges but the default one, by name.
    #[must_use]
    pub fn exchanges(&self) -> Vec<(ExchangeName, ExchangeSpec)> {
        let own = |topology: &Topology| {
            topology.exchanges().map(|(name, spec)| (name.clone(), spec.clone())).collect()
        };
        self.shared.catalog.exchanges.look(own)
    }

    /// What an exchange is told to be, if there is one of this name. The default exchange is not among them.
    #[must_use]
    pub fn exchange(&self, name: &ExchangeName) -> Option<ExchangeSpec> {
        self.shared.catalog.exchanges.look(|topology| topology.spec(name).cloned())
    }

    /// Bindings in the order in which they were made, by source; at most `max`.
    #[must_use]
    pub fn bindings(&self, of: BindingsOf<'_>, max: usize) -> Vec<Binding> {
        self.shared.catalog.exchanges.look(|topology| match of {
            BindingsOf::All => topology.bindings().take(max).cloned().collect(),
            BindingsOf::Source(name) => topology.bindings_from(name).take(max).cloned().collect(),
            BindingsOf::Destination(to) => topology.bindings_to(to).take(max).cloned().collect(),
        })
    }
}
