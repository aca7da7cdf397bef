//! The durable state of a queue in plain words, for comparing one queue with another: a queue with what its
//! records rebuild, a node with its follower, the engine with a naive model.

use std::collections::BTreeMap;

use nexo_types::{DedupId, Offset, Priority, Timestamp};

use super::compact::Delayed;
use super::{Queue, Totals};
use crate::config::QueueConfig;
use crate::message::DeathReason;
use crate::record::LeasePhase;

/// All of a queue's durable state that others can see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// What it is told to be.
    pub config: QueueConfig,
    /// The offset that the next message gets.
    pub next_offset: Offset,
    /// What has happened to it.
    pub totals: Totals,
    /// Its durable messages.
    pub messages: BTreeMap<Offset, MessageState>,
    /// Deduplication ids it remembers.
    pub dedup: BTreeMap<DedupId, (Timestamp, Offset)>,
}

/// The state of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageState {
    /// How urgent it is.
    pub priority: Priority,
    /// How often it has been delivered.
    pub attempts: u32,
    /// Where it is.
    pub stage: Stage,
}

/// Where a message is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It can be delivered.
    Ready,
    /// It cannot be delivered before this moment.
    Delayed(Timestamp),
    /// It is with a consumer.
    Leased {
        /// When it comes back.
        until: Option<Timestamp>,
        /// What it waits for.
        phase: LeasePhase,
        /// Why it waits to be dead-lettered, if it does.
        dying: Option<DeathReason>,
    },
    /// It may not be delivered again, and waits to be dead-lettered.
    Dying(DeathReason),
    /// Another message of its group is before it.
    Grouped,
}

impl Queue {
    /// The durable state at `now`.
    #[must_use]
    pub fn outline(&self, now: Timestamp) -> Outline {
        let mut messages = BTreeMap::new();
        let mut add = |entry: &super::MessageEntry, stage: Stage| {
            if entry.is_durable() {
                let state = MessageState { priority: entry.priority, attempts: entry.attempts, stage };
                let twice = messages.insert(entry.offset, state);
                assert!(twice.is_none(), "message {} is in two places", entry.offset);
            }
        };
        for entry in self.lanes.resident() {
            add(entry, Stage::Ready);
        }
        for entry in self.returned.iter() {
            add(&entry.entry(), Stage::Ready);
        }
        for (entry, reason) in self.dying.values() {
            add(entry, Stage::Dying(*reason));
        }
        for Delayed(entry) in self.delayed.iter() {
            let entry = entry.entry();
            let due = entry.ready_at.min(entry.expires_at);
            add(&entry, if due <= now { Stage::Ready } else { Stage::Delayed(entry.ready_at) });
        }
        for lease in self.leased.iter() {
            add(&lease.entry, Stage::Leased { until: lease.until(), phase: lease.phase, dying: lease.dying });
        }
        for entry in self.groups.values().flatten() {
            add(entry, Stage::Grouped);
        }
        for (priority, _, ranges) in self.lanes.runs() {
            for offset in ranges.into_iter().flatten() {
                let state = MessageState { priority, attempts: 0, stage: Stage::Ready };
                let twice = messages.insert(Offset(offset), state);
                assert!(twice.is_none(), "message {offset} is in two places");
            }
        }
        let remembered = self.dedup.iter().filter(|(_, until, _)| *until > now);
        Outline {
            config: self.config().clone(),
            next_offset: self.next_offset,
            totals: self.totals,
            messages,
            dedup: remembered.map(|(id, until, offset)| (id.clone(), (until, offset))).collect(),
        }
    }
}
