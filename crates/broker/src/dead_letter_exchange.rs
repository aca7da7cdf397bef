//! Dead letters that go to an exchange: routed like a publish, and moved to all queues in one frame.

use std::sync::Arc;

use nexo_core::batch::MessageBatch;
use nexo_core::config::DeadLetters;
use nexo_core::draft::PackedBatch;
use nexo_core::message::{Durability, NewMessage, StoredMessage};
use nexo_core::queue::{Admission, Dying};
use nexo_core::record::{Leave, Record};
use nexo_core::shared_messages::SharedMessages;
use nexo_log::{Claim, Patience, Urgency};
use nexo_types::{ExchangeName, Offset, Position, Timestamp};

use crate::error::QueueError;
use crate::fetch::Fetched;
use crate::journal::{Encoded, ProposeError};
use crate::property_codec::{DeadLetter, DeathInfo};
use crate::queue_cell::{CellGuard, QueueCell};
use crate::share::{SHARE_BYTES_MIN, STORE_PLACE};
use crate::shared::Shared;

impl Shared {
    /// Sends dead messages to their queue's dead-letter exchange, or lets them go if it has none.
    pub(crate) fn dead_letter_to_exchange(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        target: &DeadLetters,
        dying: &[(Offset, Dying)],
        read: &Fetched,
    ) -> Result<(), QueueError> {
        for (offset, dying) in dying {
            let message = read.found.get(offset).and_then(|payload| StoredMessage::parse(payload).ok());
            let is_damaged = message.is_none() && *target != DeadLetters::Nowhere;
            let (dead_letter, queues) = match (target, message) {
                (DeadLetters::Exchange { exchange, routing_key }, Some(message)) => {
                    let at = self.clock.now();
                    let routing_key = routing_key.as_ref();
                    let (queue, codecs) = (&cell.name, &self.options.codecs);
                    let note = DeathInfo { queue, reason: dying.reason, at, exchange, routing_key, codecs };
                    self.address(message, &note)
                }
                _ => (None, Vec::new()),
            };
            let why = match (is_damaged, queues.is_empty()) {
                (true, _) => Leave::Damaged,
                (false, true) => dying.reason.into(),
                (false, false) => Leave::DeadLettered,
            };
            let has_left = self
                .deliver_dead_letter(cell, (*offset, why), dying, dead_letter.as_ref(), &queues)
                .map_err(|error| self.refused(&error))?;
            if is_damaged && has_left {
                self.note_damaged_dead_letter(cell, *offset);
            }
        }
        Ok(())
    }

    /// The message as it will be, and the queues it goes to.
    fn address(
        &self,
        message: StoredMessage,
        note: &DeathInfo<'_>,
    ) -> (Option<NewMessage>, Vec<Arc<QueueCell>>) {
        let codecs = &self.options.codecs;
        let DeadLetter { message, routing_keys } = codecs.dead_letter(message, note);
        let keys: Vec<&[u8]> = routing_keys.iter().map(|key| &key[..]).collect();
        let mut ids = Vec::new();
        let routes = self.catalog.exchanges.routes();
        let exchange: &ExchangeName = note.exchange;
        let headers = codecs.header_source(&message.properties);
        let routed = routes.route(exchange, &keys, &*headers, &mut ids);
        drop(headers);
        if let Err(error) = routed {
            // RabbitMQ lets a message go whose dead-letter exchange is not there.
            tracing::debug!(queue = %note.queue.in_full(), %error, "dead letters have nowhere to go");
        }
        let mut queues: Vec<Arc<QueueCell>> =
            ids.into_iter().filter_map(|id| self.catalog.get_id(id)).collect();
        queues.retain(|queue| !codecs.is_cycle(&message, &queue.name));
        (Some(message), queues)
    }

    /// Moves one message to any number of queues, its own among them, in one frame. `false` if it has left already.
    fn deliver_dead_letter(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        (offset, why): (Offset, Leave),
        dying: &Dying,
        dead_letter: Option<&NewMessage>,
        queues: &[Arc<QueueCell>],
    ) -> Result<bool, ProposeError> {
        let mut cells: Vec<Arc<QueueCell>> = queues.to_vec();
        cells.push(Arc::clone(cell));
        cells.sort_unstable_by_key(|cell| cell.id);
        cells.dedup_by_key(|cell| cell.id);
        let mut states: Vec<CellGuard<'_>> = cells.iter().map(|cell| cell.state.lock()).collect();
        let now = self.clock.now();
        let place = |id| cells.iter().position(|cell| cell.id == id).expect("all queues are locked");
        let from = place(cell.id);
        if states[from].deleted || states[from].queue.dying(offset).is_none() {
            return Ok(false);
        }
        let Some(leave) = states[from].queue.decide_dead_letter(now, offset, why) else { return Ok(false) };
        let targets = queues.iter().map(|queue| place(queue.id)).filter(|at| !states[*at].deleted);
        let targets: Vec<usize> = targets.collect();
        let (moves, shared) = self.dead_letter_records(&mut states, &targets, dead_letter, now);
        let mut entries: Vec<Encoded> = Vec::new();
        let is_written = |messages: &&SharedMessages| messages.durability() == Durability::Durable;
        entries.extend(shared.iter().filter(is_written).map(Encoded::store));
        for (at, record, durability) in &moves {
            if *durability == Durability::Durable && states[*at].durable {
                entries.push(Encoded::new(cells[*at].id, record));
            }
        }
        if dying.durability == Durability::Durable && states[from].durable {
            entries.push(Encoded::new(cell.id, &leave));
        }
        let mut position = Position::default();
        if !entries.is_empty() {
            // A copy brings in more than it frees: on a full disk it waits.
            let claim = if moves.is_empty() { Claim::Reserved } else { Claim::Normal };
            let proposed = self.propose(&entries, Urgency::Written, claim, Patience::Refuse)?;
            position = proposed.at;
            for state in &mut states {
                self.note_proposed(state, proposed);
            }
        }
        self.apply(&mut states[from], position, &leave);
        for (at, record, _) in &moves {
            self.apply(&mut states[*at], position, record);
        }
        let aftermaths: Vec<_> =
            cells.iter().zip(&mut states).map(|(cell, state)| self.follow_up(cell, state, now)).collect();
        drop(states);
        for (cell, aftermath) in cells.iter().zip(aftermaths) {
            self.finish(cell, aftermath);
        }
        Ok(true)
    }

    /// What each target has to write down and apply, and the dead letter if several of them share it.
    fn dead_letter_records(
        &self,
        states: &mut [CellGuard<'_>],
        targets: &[usize],
        dead_letter: Option<&NewMessage>,
        now: Timestamp,
    ) -> (Vec<(usize, Record, Durability)>, Option<SharedMessages>) {
        let Some(dead_letter) = dead_letter else { return (Vec::new(), None) };
        let mut moves = Vec::new();
        let mut shared: Option<SharedMessages> = None;
        let shares = targets.len() > 1 && dead_letter.body.len() >= SHARE_BYTES_MIN;
        for at in targets {
            let state = &states[*at];
            let mut message = self.options.codecs.for_queue(dead_letter, state.queue.config());
            if !state.durable {
                message.durability = Durability::Transient;
            }
            let plan = state.queue.decide_push(now, std::slice::from_ref(&message), Admission::Forced);
            moves.extend(plan.reserve.map(|record| (*at, record, Durability::Durable)));
            for (durability, mut batch) in plan.batches {
                if shares {
                    batch = self.share_batch(batch, durability, &mut shared);
                }
                moves.push((*at, Record::Messages(batch), durability));
            }
        }
        (moves, shared)
    }

    /// The same batch with the messages of the first one, if they are the same.
    pub(crate) fn share_batch(
        &self,
        batch: MessageBatch,
        durability: Durability,
        shared: &mut Option<SharedMessages>,
    ) -> MessageBatch {
        let Some(first) = batch.items().first().copied() else { return batch };
        let messages = shared.get_or_insert_with(|| {
            SharedMessages::new(PackedBatch::reopen(&batch, durability), &self.shared_memory)
        });
        let is_same = batch.items().len() == messages.len()
            && batch
                .items()
                .iter()
                .zip(messages.stored())
                .all(|(item, stored)| batch.payload(item) == stored);
        if is_same { messages.batch(STORE_PLACE, first.offset, first.enqueued_at) } else { batch }
    }
}
