//! What a broker can say about itself. Plain values: reading them changes nothing.

use nexo_core::config::QueueConfig;
use nexo_core::queue::Queue;
use nexo_types::{Millis, QueueId, QueueName, Timestamp};

use crate::memory_high::MemoryState;
use crate::schedules::ScheduleStats;
use crate::system::ProcessStats;

/// Figures of one queue.
#[derive(Clone, Debug)]
pub struct QueueStats {
    /// The queue.
    pub id: QueueId,
    /// What it is called.
    pub name: QueueName,
    /// What it is told to be.
    pub config: QueueConfig,
    /// When it was created.
    pub created_at: Timestamp,
    /// Messages that could be delivered now.
    pub ready: u64,
    /// Messages with a consumer.
    pub leased: u64,
    /// Messages whose time has not come.
    pub delayed: u64,
    /// Messages that wait for an earlier one of their group.
    pub grouped: u64,
    /// Bytes of the bodies of all of these.
    pub bytes: u64,
    /// Consumers that are subscribed or wait for a message.
    pub consumers: u64,
    /// Messages ever pushed.
    pub pushed: u64,
    /// Deliveries ever made.
    pub delivered: u64,
    /// Deliveries of a message that had been delivered before.
    pub redelivered: u64,
    /// Messages ever acknowledged.
    pub acked: u64,
    /// Messages ever moved to the dead-letter queue.
    pub dead_lettered: u64,
    /// Messages whose time to live ended here.
    pub expired: u64,
    /// Messages dropped because the queue was full.
    pub overflowed: u64,
    /// Messages lost because the disk did not give their bytes back.
    pub damaged: u64,
    /// Pushes recognised as repetitions.
    pub duplicates: u64,
    /// Messages pushed a second, lately.
    pub push_rate: f64,
    /// Messages delivered a second, lately.
    pub deliver_rate: f64,
    /// Messages acknowledged a second, lately.
    pub ack_rate: f64,
    /// Messages delivered again a second, lately.
    pub redeliver_rate: f64,
    /// Age of the oldest message that could be delivered now.
    pub oldest_age: Millis,
    /// How long messages lately waited between being ready and being delivered, in milliseconds.
    pub average_wait_ms: f64,
}

impl QueueStats {
    pub(crate) fn new(queue: &Queue, now: Timestamp) -> Self {
        let figures = queue.figures(now);
        let totals = figures.totals;
        Self {
            id: queue.id(),
            name: queue.name().clone(),
            config: queue.config().clone(),
            created_at: queue.created_at(),
            ready: figures.ready,
            leased: figures.leased,
            delayed: figures.delayed,
            grouped: figures.grouped,
            bytes: figures.bytes,
            consumers: figures.consumers,
            pushed: totals.pushed,
            delivered: totals.delivered,
            redelivered: totals.redelivered,
            acked: totals.acked,
            dead_lettered: totals.dead_lettered,
            expired: totals.expired,
            overflowed: totals.overflowed,
            damaged: totals.damaged,
            duplicates: figures.duplicates,
            push_rate: figures.push_rate,
            deliver_rate: figures.deliver_rate,
            ack_rate: figures.ack_rate,
            redeliver_rate: figures.redeliver_rate,
            oldest_age: figures.oldest_age,
            average_wait_ms: figures.average_wait_ms,
        }
    }
}

/// Whether the broker can take and confirm messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It can.
    Ok,
    /// It can, but something that was confirmed is lost, or nearly was.
    Degraded {
        /// In words for whoever has to look into it.
        reason: String,
    },
    /// It confirms what it has, and takes no more until there is memory. That goes by itself when messages are taken out.
    MemoryHigh {
        /// In words for whoever has to look into it.
        reason: String,
    },
    /// Not until there is room on the disk. Messages can be taken out, and that may make room.
    DiskFull {
        /// In words for whoever has to make room.
        reason: String,
    },
    /// It cannot, and this is why.
    Unhealthy {
        /// In words for whoever has to mend it.
        reason: String,
    },
}

impl Health {
    /// Whether clients can be served. A broker that is short of memory can: publishers wait until consumers have made room, and
    /// to send those elsewhere would leave it as it is.
    #[must_use]
    pub const fn can_serve(&self) -> bool {
        match self {
            Self::Ok | Self::Degraded { .. } | Self::MemoryHigh { .. } => true,
            Self::DiskFull { .. } | Self::Unhealthy { .. } => false,
        }
    }

    /// What is wrong, if anything.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Ok => None,
            Self::Degraded { reason }
            | Self::MemoryHigh { reason }
            | Self::DiskFull { reason }
            | Self::Unhealthy { reason } => Some(reason),
        }
    }
}

/// Figures of the whole broker.
#[derive(Clone, Debug)]
pub struct BrokerStats {
    /// Whether it can take and confirm messages.
    pub health: Health,
    /// How many queues there are.
    pub queues: u64,
    /// Messages found since the start to be lost to damage, in all queues.
    pub damaged_messages: u64,
    /// More may be lost than that: nothing tells how many were in a part of the log that cannot be read.
    pub damaged_uncounted: bool,
    /// Bytes of messages held in memory.
    pub message_memory_bytes: u64,
    /// The memory watermark, and whether it is passed.
    pub memory: MemoryState,
    /// Bytes of the disk that must stay free.
    pub disk_free_min: u64,
    /// Whether the disk has no room, or less than must stay free.
    pub disk_alarm: bool,
    /// Free bytes on the disk that holds the data, or 0 where the system does not say.
    pub disk_free_bytes: u64,
    /// Memory that messages on their way in take.
    pub intake_bytes: u64,
    /// Events that were dropped because too many waited to be published, or a queue could take none.
    pub events_dropped: u64,
    /// The same of the firehose's copies.
    pub traces_dropped: u64,
    /// Schedules, and what has come of them since the start.
    pub schedules: ScheduleStats,
    /// What the operating system says about the process.
    pub process: ProcessStats,
    /// The log's own figures.
    pub log: nexo_log::LogStats,
}
