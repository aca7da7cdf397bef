//! Pushing messages to several queues at once: they are written down in one frame and stored once.
//!
//! All queues have them or none, wherever the power goes. Queues are locked in the order of their ids, and no lock is held
//! while the disk is waited for: an append that would wait is refused, and its caller tries again. (A frame that is larger than
//! a segment waits until its file is made, as always.)

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nexo_core::draft::PackedBatch;
use nexo_core::message::Durability;
use nexo_core::queue::PackedPlan;
use nexo_core::record::Record;
use nexo_core::shared_messages::SharedMessages;
use nexo_log::{Claim, Patience, Urgency};
use nexo_types::Position;

use crate::broker::Broker;
use crate::commit::Confirm;
use crate::error::QueueError;
use crate::flow::{Evenness, Pacing};
use crate::follow_up::Aftermath;
use crate::handle::QueueHandle;
use crate::journal::{Encoded, Proposed, Written};
use crate::queue_cell::{CellGuard, QueueCell};
use crate::rebuild::replaced;
use crate::shared::Shared;

/// Queues that share one frame. Their locks are held together while messages are copied to the log's buffer; beyond this
/// they are written again, for the next queues.
const SHARE_QUEUES_MAX: usize = 512;
/// Queues are locked for microseconds. One that is locked for longer has a push that waits for the disk, and those that are
/// locked already must not wait with it.
const LOCK_WAIT_MAX: Duration = Duration::from_millis(5);
/// The messages are the first entry of the frame.
pub(crate) const STORE_PLACE: u64 = 0;
/// What the batch of a queue takes in such a frame, and some more: queue, offsets, moment.
const SHARE_ENTRY_BYTES: usize = 32;

/// Messages of at least this size are worth sharing. For smaller ones the batches of all queues would soon be longer than the
/// message, and whoever reads it back for one queue reads them too. (RabbitMQ keeps bodies below 4 KiB in each queue.)
pub const SHARE_BYTES_MIN: usize = 4 << 10;

/// How many queues may share messages of so many bytes: their batches take no more room than the messages.
#[must_use]
pub fn share_queues_max(bytes: usize) -> usize {
    (bytes / SHARE_ENTRY_BYTES).clamp(2, SHARE_QUEUES_MAX)
}

/// What came of sharing, for one queue.
#[derive(Debug)]
pub enum SharedPush {
    /// It has the messages.
    Taken {
        /// What to wait for before anybody is told.
        written: Written,
        /// Whether its consumers are served, or the publisher should wait for [`QueueHandle::until_even`].
        evenness: Evenness,
    },
    /// It must look at each message, and has none yet: push them to it by themselves.
    Alone,
    /// It has been deleted.
    Gone,
}

/// A queue that takes part.
struct Member<'a> {
    /// Its place among those that were named.
    place: usize,
    cell: &'a Arc<QueueCell>,
    state: CellGuard<'a>,
    plan: PackedPlan,
    urgency: Urgency,
}

impl Broker {
    /// Takes messages that will be [pushed](Self::push_shared) to several queues.
    #[must_use]
    pub fn share(&self, packed: PackedBatch) -> SharedMessages {
        SharedMessages::new(packed, &self.shared.shared_memory)
    }

    /// Pushes messages to several queues, at most [`share_queues_max`]; does not wait for the disk. Says for each what
    /// came of it.
    ///
    /// # Errors
    /// If nothing was taken by any of them. [`QueueError::Busy`] if the disk is behind, or one of the queues is busy for long:
    /// it may be tried again soon.
    pub fn push_shared(
        &self,
        queues: &[&QueueHandle],
        messages: &SharedMessages,
        pacing: Pacing,
    ) -> Result<Vec<SharedPush>, QueueError> {
        let count = messages.len();
        let cells: Vec<&Arc<QueueCell>> = queues.iter().map(|queue| &queue.cell).collect();
        let pushed = self
            .shared
            .off_runtime_if_oversize(messages.bytes(), || self.shared.push_shared(&cells, messages, pacing));
        match &pushed {
            Ok(pushed) => {
                let taken = pushed.iter().filter(|push| matches!(push, SharedPush::Taken { .. })).count();
                let gone = pushed.iter().filter(|push| matches!(push, SharedPush::Gone)).count();
                self.count(|traffic| traffic.pushed(taken * count, gone * count));
            }
            // It is tried again.
            Err(QueueError::Alarm(_) | QueueError::Busy { .. }) => {}
            Err(QueueError::NotFound { .. } | QueueError::Unavailable { .. }) => {
                self.count(|traffic| traffic.pushed(0, queues.len() * count));
            }
        }
        pushed
    }
}

impl Shared {
    /// Memory of the messages in all queues. What queues share is counted once.
    pub(crate) fn message_memory_bytes(&self) -> u64 {
        let in_queues = u64::try_from(self.memory_bytes.load(Ordering::Relaxed)).unwrap_or(0);
        in_queues.saturating_add(self.shared_memory.bytes())
    }

    fn push_shared(
        self: &Arc<Self>,
        cells: &[&Arc<QueueCell>],
        messages: &SharedMessages,
        pacing: Pacing,
    ) -> Result<Vec<SharedPush>, QueueError> {
        self.refuse_pushes()?;
        let asked = messages.durability();
        // When memory is short, transient messages go to the log.
        let messages = if self.under_pressure() {
            &messages.clone().into_durable(&self.shared_memory)
        } else {
            messages
        };
        let mut outcomes: Vec<SharedPush> = cells.iter().map(|_| SharedPush::Alone).collect();
        let mut order: Vec<usize> = (0..cells.len()).collect();
        order.sort_unstable_by_key(|place| cells[*place].id);
        // A queue that is named twice would be locked twice. It takes the second copy by itself.
        order.dedup_by_key(|place| cells[*place].id);
        let mut members: Vec<Member<'_>> = Vec::with_capacity(order.len());
        let latest = Instant::now() + LOCK_WAIT_MAX;
        for place in order {
            let cell = cells[place];
            let Some(state) = cell.state.try_lock_until(latest) else {
                return Err(QueueError::Busy { reason: format!("others hold queue '{}'", cell.name) });
            };
            if state.replaced {
                return Err(replaced(&cell.name));
            }
            if state.deleted {
                outcomes[place] = SharedPush::Gone;
                continue;
            }
            // A message of a queue that does not survive a restart is transient, and its stored form says so.
            let is_fit = asked == Durability::Transient || cell.is_durable();
            if let Some(plan) = state.queue.decide_shared(messages).filter(|_| is_fit) {
                let is_awaited = asked == Durability::Durable;
                let confirm = if is_awaited { Confirm::AsQueue } else { Confirm::Lazily };
                let urgency = self.urgency(&state, confirm);
                members.push(Member { place, cell, state, plan, urgency });
            }
        }
        let now = self.clock.now();
        let batch = |member: &Member<'_>| messages.batch(STORE_PLACE, member.plan.first, now);
        let batches: Vec<Record> = members.iter().map(batch).map(Record::Messages).collect();
        let proposed = self.propose_shared(&members, messages, &batches)?;
        let at = proposed.map_or(Position::default(), |proposed| proposed.at);
        let around = self.surroundings();
        let mut aftermaths: Vec<(&Arc<QueueCell>, Aftermath)> = Vec::with_capacity(members.len());
        for (member, batch) in members.into_iter().zip(&batches) {
            let Member { place, cell, mut state, plan, urgency } = member;
            let was_ahead = state.is_ahead(around);
            let evenness = state.pushed(was_ahead, around, messages.len() as u64, pacing);
            for record in plan.reserve.iter().chain([batch]) {
                self.apply(&mut state, at, record);
            }
            let mut written = Written::NOTHING;
            if let Some(proposed) = proposed {
                self.note_proposed(&mut state, proposed);
                if messages.durability() == Durability::Durable {
                    written = proposed.written.with(urgency);
                    state.last_change = state.last_change.and(written);
                }
            }
            outcomes[place] = SharedPush::Taken { written, evenness };
            aftermaths.push((cell, self.follow_up(cell, &mut state, now)));
        }
        // Only now: this may take a queue's lock, and the order of locks is that of ids.
        for (cell, aftermath) in aftermaths {
            self.finish(cell, aftermath);
        }
        Ok(outcomes)
    }

    /// Writes down what its members need of it, if anything.
    fn propose_shared(
        &self,
        members: &[Member<'_>],
        messages: &SharedMessages,
        batches: &[Record],
    ) -> Result<Option<Proposed>, QueueError> {
        let mut entries: Vec<Encoded> = Vec::with_capacity(members.len() + 1);
        if messages.durability() == Durability::Durable && !members.is_empty() {
            entries.push(Encoded::store(messages));
            let members = members.iter().zip(batches);
            entries.extend(members.map(|(member, batch)| Encoded::new(member.cell.id, batch)));
        }
        for member in members.iter().filter(|member| member.state.durable) {
            entries.extend(member.plan.reserve.iter().map(|record| Encoded::new(member.cell.id, record)));
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let urgency = members.iter().map(|member| member.urgency).max().unwrap_or(Urgency::Lazy);
        let proposed = self.propose(&entries, urgency, Claim::Normal, Patience::Refuse);
        let proposed = proposed.map_err(|error| match members.first() {
            Some(member) => self.refused_for(&member.cell.name, &error),
            None => self.refused(&error),
        })?;
        Ok(Some(proposed))
    }
}
