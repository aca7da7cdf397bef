//! Moving messages from one queue to another: dead letters out, and back again. A move is one frame in the log,
//! so that a message is in one queue or in the other whenever the process dies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use nexo_core::config::{DeadLetters, QueueConfig};
use nexo_core::message::{Durability, NewMessage, Origin, StoredMessage};
use nexo_core::offsets::OffsetSet;
use nexo_core::queue::{Admission, Death, Dying, Handed};
use nexo_core::record::{Leave, Record};
use nexo_log::{Claim, Patience, Urgency};
use nexo_types::{Offset, QueueName, Timestamp};

use crate::error::QueueError;
use crate::fetch::{Fetched, Retry};
use crate::journal::{Encoded, ProposeError};
use crate::queue_cell::{CellState, QueueCell};
use crate::request::{Redrive, Settle};
use crate::shared::Shared;
use crate::workers::Work;

/// Messages moved under one hold of two locks, and written as one frame.
const MOVE_BATCH: usize = 256;
/// Bytes of them, so that they fit into one frame.
const MOVE_BYTES: usize = 1024 * 1024;

/// Messages of one queue that are moved before it is another queue's turn.
const DEAD_LETTER_SLICE: usize = 1024;

/// A message on its way: what it will be there, and the record by which it leaves here.
struct Moving {
    message: NewMessage,
    leave: Record,
}

/// A step of a redrive.
#[derive(Debug)]
pub(crate) struct RedrivePart {
    pub(crate) moved: u64,
    /// Messages that cannot go anywhere, of this step and those before.
    pub(crate) passed: Vec<Offset>,
    /// How many of this step may not go where they came from.
    pub(crate) refused: u64,
}

/// Which messages a redrive is about.
struct Wanted {
    before: Offset,
    only: Option<OffsetSet>,
    skip: OffsetSet,
}

impl Wanted {
    fn wants(&self, offset: Offset) -> bool {
        offset < self.before
            && !self.skip.contains(offset)
            && self.only.as_ref().is_none_or(|only| only.contains(offset))
    }
}

impl Shared {
    /// Moves some of what has died in a queue; the rest when other queues have had their turn.
    pub(crate) fn dead_letter_slice(self: &Arc<Self>, cell: &Arc<QueueCell>) {
        // What could not be moved is told, and tried again.
        let _ = self.dead_letter_next(cell, DEAD_LETTER_SLICE);
        if !cell.state.lock().pending_deaths.0.is_empty() {
            let (shared, cell) = (Arc::clone(self), Arc::clone(cell));
            self.workers.spawn(Work::Move, move || shared.dead_letter_slice(&cell));
        }
    }

    /// Moves all that has died in a queue: for whoever waits until that is done.
    ///
    /// # Errors
    /// If some cannot be moved now; it is tried again.
    pub(crate) fn dead_letter_pending(self: &Arc<Self>, cell: &Arc<QueueCell>) -> Result<(), QueueError> {
        self.dead_letter_next(cell, usize::MAX)
    }

    /// One job at a time, so that dead letters keep the order of their deaths.
    fn dead_letter_next(self: &Arc<Self>, cell: &Arc<QueueCell>, max: usize) -> Result<(), QueueError> {
        let _one_at_a_time = cell.dead_lettering.lock();
        let mut deaths: Vec<Death> = {
            let mut state = cell.state.lock();
            let count = state.pending_deaths.0.len().min(max);
            state.pending_deaths.0.drain(..count).collect()
        };
        // Between a death and its note here maintenance may have noted it too.
        let mut seen = BTreeSet::new();
        deaths.retain(|death| seen.insert(death.offset));
        self.dead_letter_all(cell, &deaths)
    }

    /// Moves dead messages to the dead-letter queue. What cannot be moved now stays as it is, and maintenance
    /// tries again. What cannot be read is passed over, and holds up nothing else.
    fn dead_letter_all(self: &Arc<Self>, cell: &Arc<QueueCell>, deaths: &[Death]) -> Result<(), QueueError> {
        let mut rest = deaths;
        let mut unread = 0;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(self.part_len(cell, rest));
            rest = after;
            let mut moved = self.dead_letter_part(cell, part);
            while matches!(moved, Err(QueueError::Busy { .. })) && !self.stopping.load(Ordering::Relaxed) {
                // Without any queue's lock. Those that were moved before it are not found dying again.
                self.journal.wait_for_room();
                moved = self.dead_letter_part(cell, part);
            }
            match moved {
                Ok(passed) => unread += passed,
                Err(error) => {
                    tracing::warn!(queue = %cell.name.in_full(), %error, "dead letters cannot be moved now");
                    self.maintenance.note_stuck(cell);
                    return Err(error);
                }
            }
        }
        if unread == 0 {
            return Ok(());
        }
        // Where they lie has been told, once. Maintenance comes back often, but the disk is asked only when it is time.
        self.maintenance.note_stuck(cell);
        Err(QueueError::Unavailable {
            reason: format!("{unread} dead letters cannot be read from the log now"),
        })
    }

    /// How many of these are moved in one frame: few enough in number and in bytes, but at least one.
    fn part_len(&self, cell: &QueueCell, deaths: &[Death]) -> usize {
        let state = cell.state.lock();
        let mut bytes = 0;
        let fits = |death: &&Death| {
            bytes += state.queue.dying(death.offset).map_or(0, |dying| dying.stored_bytes as usize);
            bytes <= MOVE_BYTES
        };
        deaths.iter().take(MOVE_BATCH).take_while(fits).count().max(1)
    }

    /// Says how many were passed over because they cannot be read now.
    fn dead_letter_part(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        deaths: &[Death],
    ) -> Result<usize, QueueError> {
        let (name, target, mut dying) = {
            let state = cell.state.lock();
            if state.deleted {
                return Ok(0);
            }
            let name = state.queue.config().dead_letter_queue_of(&cell.name);
            let dying: Vec<(Offset, Dying)> = deaths
                .iter()
                .filter_map(|death| Some((death.offset, state.queue.dying(death.offset)?)))
                .collect();
            (name, state.queue.config().dead_letters.clone(), dying)
        };
        let name = name.map_err(|error| QueueError::Unavailable { reason: error.to_string() })?;
        if target == DeadLetters::Nowhere {
            // Nobody needs their bytes.
            return self.dead_letter_to_exchange(cell, &target, &dying, &Fetched::default()).map(|()| 0);
        }
        let read = self.fetch_dying(cell, &mut dying);
        let unread = read.unreadable.len();
        if dying.is_empty() {
            return Ok(unread);
        }
        let Some(name) = name else {
            return self.dead_letter_to_exchange(cell, &target, &dying, &read).map(|()| unread);
        };
        let target = self.dead_letter_queue(&name)?;
        self.with_both(cell, &target, |from, to, now| {
            let mut moving = Vec::new();
            for (offset, _) in &dying {
                // Somebody may have acknowledged it meanwhile, or moved it.
                let Some(dying) = from.queue.dying(*offset) else { continue };
                let payload = read.found.get(offset);
                let message = payload.and_then(|bytes| dead_letter(&cell.name, *offset, &dying, bytes, now));
                let why = if message.is_some() { Leave::DeadLettered } else { Leave::Damaged };
                if let Some(leave) = from.queue.decide_dead_letter(now, *offset, why) {
                    match message {
                        Some(message) => moving.push(Moving { message, leave }),
                        None => {
                            let (claim, patience) = (Claim::Reserved, Patience::RefuseLast);
                            self.commit(from, &[leave], Urgency::Lazy, claim, patience)?;
                            self.note_damaged_dead_letter(cell, *offset);
                        }
                    }
                }
            }
            self.move_all(from, to, moving, now)
        })?
        .map_err(|error| self.refused(&error))?;
        Ok(unread)
    }

    /// A dead letter has left its queue because it is damaged.
    pub(crate) fn note_damaged_dead_letter(&self, cell: &QueueCell, offset: Offset) {
        tracing::error!(queue = %cell.name.in_full(), %offset, "a dead letter is damaged on disk and is dropped");
        self.note_damaged(1);
    }

    /// The stored forms of messages that are about to be moved; only damaged ones are missing. Those that the disk does
    /// not give back now are taken out of `dying`.
    fn fetch_dying(&self, cell: &QueueCell, dying: &mut Vec<(Offset, Dying)>) -> Fetched {
        let cold = dying.iter().filter(|(_, dying)| dying.payload.is_none());
        let cold = cold.map(|(offset, dying)| (dying.priority, *offset)).collect();
        let mut read = self.fetch(cell, cold, Retry::WhenDue);
        let unreadable: BTreeSet<Offset> = read.unreadable.iter().copied().collect();
        dying.retain(|(offset, _)| !unreadable.contains(offset));
        read.found.extend(dying.iter().filter_map(|(offset, dying)| Some((*offset, dying.payload.clone()?))));
        read
    }

    /// Writes one frame that takes messages out of one queue and puts them into another, and applies it.
    fn move_all(
        &self,
        from: &mut CellState,
        to: &mut CellState,
        moving: Vec<Moving>,
        now: Timestamp,
    ) -> Result<(), ProposeError> {
        if moving.is_empty() {
            return Ok(());
        }
        let (mut messages, leaves): (Vec<NewMessage>, Vec<Record>) =
            moving.into_iter().map(|one| (one.message, one.leave)).unzip();
        let left_durable = messages.iter().any(|message| message.durability == Durability::Durable);
        if !to.durable {
            for message in &mut messages {
                message.durability = Durability::Transient;
            }
        }
        let plan = to.queue.decide_push(now, &messages, Admission::Forced);
        let mut entries = Vec::new();
        let reserve = plan.reserve.as_ref().filter(|_| to.durable);
        entries.extend(reserve.map(|record| Encoded::new(to.queue.id(), record)));
        let batches: Vec<(Durability, Record)> = plan
            .batches
            .into_iter()
            .map(|(durability, batch)| (durability, Record::Messages(batch)))
            .collect();
        for (durability, record) in &batches {
            if *durability == Durability::Durable {
                entries.push(Encoded::new(to.queue.id(), record));
            }
        }
        if left_durable && from.durable {
            entries.extend(leaves.iter().map(|record| Encoded::new(from.queue.id(), record)));
        }
        let at = if entries.is_empty() {
            nexo_types::Position::default()
        } else {
            // A copy brings in more than it frees: on a full disk it waits, and leaves the rest to acknowledgements.
            let appended = self.propose(&entries, Urgency::Written, Claim::Normal, Patience::Refuse)?;
            self.note_proposed(to, appended);
            self.note_proposed(from, appended);
            appended.at
        };
        if let Some(record) = &plan.reserve {
            self.apply(to, at, record);
        }
        for (_, record) in &batches {
            self.apply(to, at, record);
        }
        for record in &leaves {
            self.apply(from, at, record);
        }
        Ok(())
    }

    /// The dead-letter queue of this name, created if it is needed for the first time.
    fn dead_letter_queue(self: &Arc<Self>, name: &QueueName) -> Result<Arc<QueueCell>, QueueError> {
        if let Some(cell) = self.catalog.get(name) {
            return Ok(cell);
        }
        let changing = self.catalog.change();
        if let Some(cell) = self.catalog.get(name) {
            return Ok(cell);
        }
        self.add_queue(changing, name, &QueueConfig::for_dead_letters(), Durability::Durable, None)
    }

    /// Takes the next messages of a dead-letter queue and sends them where they belong. `None` when there are
    /// no more of those that were there when the redrive began and have not been `passed` over.
    pub(crate) fn redrive_part(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        redrive: &Redrive,
        before: Offset,
        max: usize,
        mut passed: Vec<Offset>,
    ) -> Result<Option<RedrivePart>, QueueError> {
        let only: Option<OffsetSet> =
            (!redrive.offsets.is_empty()).then(|| redrive.offsets.iter().copied().collect());
        let skip: OffsetSet = passed.iter().copied().collect();
        let wanted = Wanted { before, only, skip };
        let taken = self.take_for_redrive(cell, max.min(MOVE_BATCH), &wanted)?;
        if taken.is_empty() {
            return Ok(None);
        }
        let cold = taken.iter().filter(|one| one.payload.is_none());
        let mut payloads =
            self.fetch(cell, cold.map(|one| (one.priority, one.offset)).collect(), Retry::AtOnce).found;
        payloads.extend(taken.iter().filter_map(|one| Some((one.offset, one.payload.clone()?))));
        let mut by_target: BTreeMap<QueueName, Vec<(&Handed, StoredMessage)>> = BTreeMap::new();
        for one in &taken {
            let message = payloads.get(&one.offset).and_then(|bytes| StoredMessage::parse(bytes).ok());
            let target = message.as_ref().and_then(|message| {
                redrive.target.clone().or_else(|| message.origin.as_ref().map(|origin| origin.queue.clone()))
            });
            match (message, target) {
                (Some(message), Some(target)) => by_target.entry(target).or_default().push((one, message)),
                _ => passed.push(one.offset),
            }
        }
        let (mut moved, mut refused) = (0, 0);
        let mut failed = None;
        for (name, messages) in by_target {
            if !redrive.gate.lets(&name) {
                refused += messages.len() as u64;
                passed.extend(messages.iter().map(|(one, _)| one.offset));
                continue;
            }
            for part in by_bytes(&messages) {
                match self.redrive_to(cell, &name, part) {
                    Ok(()) => moved += part.len() as u64,
                    Err(QueueError::NotFound { .. }) => passed.extend(part.iter().map(|(one, _)| one.offset)),
                    Err(error) => failed = Some(error),
                }
            }
        }
        // Those that were moved are not leased any more and are passed over here.
        let mut is_back = self.put_back(cell, &taken);
        while matches!(is_back, Err(QueueError::Busy { .. })) && !self.stopping.load(Ordering::Relaxed) {
            self.journal.wait_for_room();
            is_back = self.settle_again(cell);
        }
        is_back?;
        match failed {
            // Some were moved before the disk fell behind; the rest comes with the next part.
            Some(QueueError::Busy { .. }) if moved > 0 => Ok(Some(RedrivePart { moved, passed, refused })),
            Some(error) => Err(error),
            None => Ok(Some(RedrivePart { moved, passed, refused })),
        }
    }

    fn take_for_redrive(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        max: usize,
        wanted: &Wanted,
    ) -> Result<Vec<Handed>, QueueError> {
        let only = wanted.only.as_ref();
        loop {
            let (taken, page) = self
                .with(cell, |state, now| {
                    let page = match only {
                        Some(only) => only.iter().find_map(|offset| state.queue.find_ready(offset).flatten()),
                        None => None,
                    };
                    if page.is_some() {
                        return Ok((Vec::new(), page));
                    }
                    match state.queue.decide_take(now, max, |offset| wanted.wants(offset)) {
                        Some(record) => {
                            let (_, applied) = self.commit(
                                state,
                                &[record],
                                Urgency::Lazy,
                                Claim::Normal,
                                Patience::Refuse,
                            )?;
                            Ok((applied.into_iter().flat_map(|applied| applied.handed).collect(), None))
                        }
                        None if only.is_some() => Ok((Vec::new(), None)),
                        None => Ok((Vec::new(), state.queue.head_page())),
                    }
                })?
                .map_err(|error: ProposeError| Self::unavailable(&error))?;
            let Some(page) =
                page.filter(|page| page.offsets.first().is_some_and(|first| first < wanted.before))
            else {
                return Ok(taken);
            };
            self.load_now(cell, &page)?;
        }
    }

    /// Reads a page on this thread.
    pub(crate) fn load_now(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        page: &nexo_core::queue::PageRequest,
    ) -> Result<(), QueueError> {
        let (page, entries) = self
            .read_page(cell, page)
            .map_err(|error| QueueError::Unavailable { reason: error.to_string() })?;
        self.with(cell, |state, _| self.take_page(state, page.segment, &page.request, entries))
    }

    fn redrive_to(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        name: &QueueName,
        messages: &[(&Handed, StoredMessage)],
    ) -> Result<(), QueueError> {
        let target = self.catalog.get(name).ok_or_else(|| QueueError::NotFound { name: name.clone() })?;
        if target.id == cell.id {
            return Err(QueueError::Unavailable {
                reason: format!("queue '{name}' cannot be redriven to itself; name another queue"),
            });
        }
        self.with_both(cell, &target, |from, to, now| {
            let moving = messages.iter().filter_map(|(one, message)| {
                let leave = from.queue.decide_move(now, one.offset)?;
                Some(Moving { message: message.clone().into_moved(None), leave })
            });
            let moving = moving.collect();
            self.move_all(from, to, moving, now)
        })?
        .map_err(|error| Self::unavailable(&error))
    }

    /// Gives back what was taken and is still held, as if it had never been taken.
    fn put_back(self: &Arc<Self>, cell: &Arc<QueueCell>, taken: &[Handed]) -> Result<(), QueueError> {
        let receipts: Vec<(Offset, u32)> = taken.iter().map(|one| (one.offset, one.attempts)).collect();
        // They have no lease that could end: if they cannot go back now, maintenance sees to it that they do.
        cell.state.lock().unsettled.keep(&receipts, Settle::Undelivered, None);
        self.settle_again(cell)
    }
}

/// Messages in parts that fit into one frame each.
fn by_bytes<'a, 'b>(messages: &'a [(&'b Handed, StoredMessage)]) -> Vec<&'a [(&'b Handed, StoredMessage)]> {
    let mut parts = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, (_, message)) in messages.iter().enumerate() {
        let size = message.body.len() + message.properties.bytes.len();
        if at > start && bytes + size > MOVE_BYTES {
            parts.push(&messages[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += size;
    }
    parts.push(&messages[start..]);
    parts
}

/// The message as it will be in the dead-letter queue.
fn dead_letter(
    queue: &QueueName,
    offset: Offset,
    dying: &Dying,
    payload: &Bytes,
    now: Timestamp,
) -> Option<NewMessage> {
    let message = StoredMessage::parse(payload).ok()?;
    let origin = Origin {
        reason: dying.reason,
        queue: queue.clone(),
        offset,
        attempts: dying.attempts,
        at: now,
        enqueued_at: dying.enqueued_at,
    };
    Some(message.into_moved(Some(origin)))
}
