//! A consumer that stays until it says otherwise.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use nexo_core::message::StoredMessage;
use nexo_core::queue::{
    Access, Allowance, ConsumerRefusal, Handed, Queue, ReturnCause, SettleMode, SharedCredit, Terms,
};
use nexo_core::record::Record;
use nexo_types::{ConsumerId, Offset, Protocol, QueueId, Timestamp, limits};

use crate::commit::{Committed, Confirm};
use crate::delivery::Delivery;
use crate::error::{PopError, QueueError, SubscribeError};
use crate::handle::SETTLE_SLICE;
use crate::journal::ProposeError;
use crate::mailbox::{Mailbox, charged};
use crate::owed::SocketState;
use crate::queue_cell::{CellState, QueueCell};
use crate::request::Settle;
use crate::shared::Shared;
use crate::workers::Work;

/// How long somebody who does not want to wait waits for the disk.
const LOG_READ_MAX: Duration = Duration::from_secs(30);

/// What a message of a single answer may take besides what is wanted of it, near enough: the rest goes back.
const PULLED_OVERHEAD_BYTES: u64 = 512;

/// A consumer of one queue. Dropping it ends the subscription; what it holds comes back at once unless the
/// subscription was asked to keep its leases.
#[derive(Debug)]
pub struct Subscription {
    shared: Arc<Shared>,
    cell: Arc<QueueCell>,
    mailbox: Arc<Mailbox>,
    id: ConsumerId,
    kind: Kind,
    /// Whose deliveries these are.
    protocol: Option<Protocol>,
    /// Bytes that were taken and may not have been passed on yet.
    taken_bytes: u64,
}

/// What becomes of things when a subscription ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A consumer: what it holds comes back, and a queue that lives for its consumers may go.
    Lasting,
    /// A consumer whose leases outlive it.
    KeepingLeases,
    /// A single pull: its leases outlive it, and nobody takes it for a consumer.
    Pull,
}

/// What the broker keeps of a consumer, besides what its queue knows.
struct Place {
    kind: Kind,
    socket: Arc<SocketState>,
    /// Bytes that it may hold; `None` for any number.
    allowance: Option<Arc<Allowance>>,
}

impl Subscription {
    /// Adds a consumer to a queue, perhaps with a limit that it shares with others, and a socket of which is known whether it
    /// takes more.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        cell: &Arc<QueueCell>,
        kind: Kind,
        (limit, socket): (Option<Arc<SharedCredit>>, Arc<SocketState>),
        (terms, credit): (Terms, u32),
    ) -> Result<Self, SubscribeError> {
        let place = Place { kind, socket, allowance: Some(Self::allowance(shared)) };
        let add = |queue: &mut Queue, id| queue.add_consumer(id, terms, credit, limit);
        Self::begin(shared, cell, place, terms.settle, add)?
            .map_err(|refusal| SubscribeError::new(&cell.name, refusal))
    }

    /// Adds a consumer in the place of this one, which ends. What had been handed to it and never reached its consumer goes
    /// back. Nobody comes between the two: an exclusive consumer stays exclusive, and a queue that lives for its consumers
    /// stays.
    pub(crate) fn replace(
        self,
        (limit, socket): (Option<Arc<SharedCredit>>, Arc<SocketState>),
        (terms, credit): (Terms, u32),
    ) -> Result<Self, SubscribeError> {
        let (shared, cell) = (&self.shared, &self.cell);
        let place = Place { kind: self.kind, socket, allowance: Some(Self::allowance(shared)) };
        let replace = |queue: &mut Queue, id| queue.replace_consumer(self.id, id, terms, limit);
        let next = Self::begin(shared, cell, place, terms.settle, replace)?;
        let next = next.map_err(|refusal| SubscribeError::new(&cell.name, refusal))?.counting(self.protocol);
        drop(self);
        next.add_credit(credit);
        Ok(next)
    }

    /// Takes up to `max` messages for a single answer, of which so many bytes are wanted.
    pub(crate) fn pull(
        shared: &Arc<Shared>,
        cell: &Arc<QueueCell>,
        terms: Terms,
        max: u32,
        bytes_max: Option<usize>,
    ) -> Result<Self, PopError> {
        let allowance = bytes_max.map(|bytes| {
            let bytes = bytes as u64 + u64::from(max) * PULLED_OVERHEAD_BYTES;
            Arc::new(Allowance::new(bytes, Arc::clone(&shared.dispatch.outgoing)))
        });
        let terms = Terms { access: Access::Pull, ..terms };
        let place = Place { kind: Kind::Pull, socket: Arc::default(), allowance };
        let add = |queue: &mut Queue, id| queue.add_consumer(id, terms, max, None);
        Self::begin(shared, cell, place, terms.settle, add)?.map_err(|refusal| match refusal {
            ConsumerRefusal::TooManyInFlight { max } => {
                PopError::TooManyInFlight { name: cell.name.clone(), max }
            }
            ConsumerRefusal::InExclusiveUse => unreachable!("an exclusive consumer does not mind a pull"),
        })
    }

    /// Takes one message, however many are in flight.
    pub(crate) fn pull_one(
        shared: &Arc<Shared>,
        cell: &Arc<QueueCell>,
        terms: Terms,
    ) -> Result<Self, QueueError> {
        let terms = Terms { access: Access::Pull, in_flight: None, ..terms };
        let allowance = Some(Self::allowance(shared));
        let place = Place { kind: Kind::Pull, socket: Arc::default(), allowance };
        let add = |queue: &mut Queue, id| queue.add_consumer(id, terms, 1, None);
        Ok(Self::begin(shared, cell, place, terms.settle, add)?.expect("such a pull is never refused"))
    }

    fn allowance(shared: &Shared) -> Arc<Allowance> {
        Arc::new(Allowance::new(limits::CONSUMER_BYTES_MAX, Arc::clone(&shared.dispatch.outgoing)))
    }

    fn begin(
        shared: &Arc<Shared>,
        cell: &Arc<QueueCell>,
        Place { kind, socket, allowance }: Place,
        settle: SettleMode,
        add: impl FnOnce(&mut Queue, ConsumerId) -> Result<(), ConsumerRefusal>,
    ) -> Result<Result<Self, ConsumerRefusal>, QueueError> {
        let id = shared.dispatch.new_consumer_id();
        let mailbox = Arc::new(Mailbox::new(id, settle, socket, allowance.clone()));
        let added = shared.with(cell, |state, _| {
            add(&mut state.queue, id)?;
            state.mailboxes.0.insert(id, Arc::clone(&mailbox));
            if let Some(allowance) = allowance {
                state.queue.set_allowance(id, allowance);
            }
            Ok(())
        })?;
        let (shared, cell) = (Arc::clone(shared), Arc::clone(cell));
        Ok(added.map(|()| Self { shared, cell, mailbox, id, kind, protocol: None, taken_bytes: 0 }))
    }

    /// Counts deliveries for `protocol`.
    pub(crate) fn counting(mut self, protocol: Option<Protocol>) -> Self {
        self.protocol = protocol;
        self
    }

    /// Who this is.
    #[must_use]
    pub const fn id(&self) -> ConsumerId {
        self.id
    }

    /// Whose consumer it is.
    pub(crate) fn queue(&self) -> QueueId {
        self.cell.id
    }

    /// The next messages, as soon as there are any; `None` once the queue is deleted or rebuilt, or the broker stops. Whoever asks
    /// has passed on what came before, as far as the bytes that a consumer may hold are concerned.
    pub async fn next(&mut self) -> Option<Vec<Delivery>> {
        self.mailbox.set_taking(true);
        loop {
            let handed = self.next_taken().await?;
            let deliveries = self.open(handed);
            if !deliveries.is_empty() {
                // Until it asks again it is busy with these.
                self.mailbox.set_taking(false);
                return Some(deliveries);
            }
        }
    }

    /// As [`Self::next`], for whoever passes messages on in the form in which they are stored. All of them have it.
    pub async fn next_handed(&mut self) -> Option<Vec<Handed>> {
        loop {
            let taken = self.next_taken().await?;
            let handed = self.in_time(taken);
            if !handed.is_empty() {
                return Some(handed);
            }
        }
    }

    async fn next_taken(&mut self) -> Option<Vec<Handed>> {
        if self.mailbox.passed_on(std::mem::take(&mut self.taken_bytes)) {
            self.add_credit(0);
        }
        let taken = self.mailbox.next(&*self.shared.journal).await?;
        self.taken_bytes = charged(&taken);
        Some(taken)
    }

    /// The messages that are here now, as they are stored.
    pub(crate) fn take_handed(&self) -> Vec<Handed> {
        self.in_time(self.mailbox.take(&*self.shared.journal))
    }

    /// The messages that are here now.
    pub(crate) fn take(&self) -> Vec<Delivery> {
        self.open(self.mailbox.take(&*self.shared.journal))
    }

    /// Waits for messages that only have to be read from the log, or handed out: a backlog may be on disk only, and
    /// whoever asks for what is there waits for the disk, within reason. Nothing is taken before that: a caller that gives up leaves
    /// everything in the mailbox.
    pub(crate) async fn take_with_log(&self, max: usize) -> Vec<Delivery> {
        self.wait_for_log(max).await;
        self.take()
    }

    /// Waits for as many messages, if they only have to be read from the log or handed out.
    pub(crate) async fn wait_for_log(&self, max: usize) {
        let read = async {
            loop {
                let journal = &*self.shared.journal;
                let reading = self.mailbox.is_waiting_for_log(journal) || {
                    let state = self.cell.state.lock();
                    // What cannot be read now may take for ever.
                    let is_stuck = self.shared.unreadable.is_postponed(self.cell.id);
                    (state.paging || state.unfinished) && !state.deleted && !is_stuck
                };
                if self.mailbox.len(journal) >= max || !reading || self.mailbox.is_closed() {
                    return;
                }
                self.mailbox.stirred(journal).await;
            }
        };
        // After that, what has been read is better than nothing.
        let _ = tokio::time::timeout(LOG_READ_MAX, read).await;
    }

    /// Ends the subscription, and gives what had been handed to it by then; nothing is handed to it afterwards. What must
    /// first be read from the log is waited for, within reason.
    pub async fn close(mut self) -> Vec<Handed> {
        let left = self.shared.with(&self.cell, |state, now| {
            self.leave(state, now);
            self.mailbox.close();
        });
        let mut rest = Vec::new();
        // A queue that is gone has drained the mailbox.
        if left.is_ok() {
            let collect = async {
                while let Some(handed) = self.next_handed().await {
                    rest.extend(handed);
                }
            };
            let _ = tokio::time::timeout(LOG_READ_MAX, collect).await;
        }
        rest
    }

    /// From now on the queue does not know this consumer. Called under its lock.
    fn leave(&self, state: &mut CellState, now: Timestamp) {
        state.queue.remove_consumer(self.id);
        state.mailboxes.0.remove(&self.id);
        state.last_used = now;
    }

    /// Asks for this many more messages.
    pub fn add_credit(&self, credit: u32) {
        // A queue that was deleted has no more to give.
        let _ = self.shared.with(&self.cell, |state, _| state.queue.add_credit(self.id, credit));
    }

    /// Asks for no more messages than these.
    pub(crate) fn stop_credit(&self) {
        let _ = self.shared.with(&self.cell, |state, _| state.queue.set_credit(self.id, 0));
    }

    /// Leaves in `taken` only what fits into `bytes_max`, but at least one message; the rest goes back as if it had
    /// never been taken.
    pub(crate) fn put_back_beyond(&self, taken: &mut Vec<Delivery>, bytes_max: usize) {
        let mut bytes = 0;
        let fits = |delivery: &Delivery| {
            bytes += delivery.message.body.len() + delivery.message.properties.bytes.len();
            bytes <= bytes_max
        };
        let kept = taken.iter().map(fits).take_while(|fits| *fits).count().max(1);
        if kept >= taken.len() {
            return;
        }
        let rest: Vec<(Offset, u32)> = taken.drain(kept..).map(|one| (one.offset, one.attempt)).collect();
        let _ = self.shared.with(&self.cell, |state, now| {
            let (_, plan) = state.queue.decide_return(now, &rest, ReturnCause::Undelivered);
            self.give_back(state, &plan.records, plan.durable, (&rest, Settle::Undelivered));
        });
    }

    /// What was read too late has gone back to the queue: its lease has ended, and somebody else may have it.
    fn in_time(&self, mut handed: Vec<Handed>) -> Vec<Handed> {
        let now = self.shared.clock.now();
        let before = handed.len();
        handed.retain(|one| one.payload.is_some() && one.until.is_none_or(|until| until > now));
        if handed.len() < before {
            self.add_credit((before - handed.len()) as u32);
        }
        self.shared.count(self.protocol, |traffic| traffic.delivered(handed.len()));
        handed
    }

    fn open(&self, handed: Vec<Handed>) -> Vec<Delivery> {
        let handed = self.in_time(handed);
        let mut deliveries = Vec::with_capacity(handed.len());
        deliveries.extend(handed.into_iter().filter_map(|one| delivery(&self.shared, &self.cell, one)));
        deliveries
    }
}

/// A message in the form its consumer sees.
pub(crate) fn delivery(shared: &Shared, cell: &QueueCell, handed: Handed) -> Option<Delivery> {
    let payload = handed.payload?;
    let message = match StoredMessage::parse(&payload) {
        Ok(message) => message,
        Err(error) => {
            tracing::error!(queue = %cell.name.in_full(), offset = %handed.offset, %error, "a stored message cannot be read");
            return None;
        }
    };
    Some(Delivery {
        queue: cell.id,
        queue_name: cell.name.clone(),
        offset: handed.offset,
        attempt: handed.attempts,
        enqueued_at: handed.enqueued_at,
        lease_until: handed.until,
        granted_at: handed.granted_at,
        codec: shared.options.codecs.of(message.properties.format),
        message,
    })
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let ended = self.shared.with(&self.cell, |state, now| {
            // What is in the mailbox never reached the consumer, so it does not count as an attempt.
            let unseen: Vec<(Offset, u32)> =
                self.mailbox.drain().iter().map(|handed| (handed.offset, handed.attempts)).collect();
            state.queue.give_back_credit(self.id, unseen.len() as u32);
            self.leave(state, now);
            let (_, plan) = state.queue.decide_return(now, &unseen, ReturnCause::Undelivered);
            self.give_back(state, &plan.records, plan.durable, (&unseen, Settle::Undelivered));
            if self.kind != Kind::Lasting {
                return Vec::new();
            }
            let mut held = state.queue.held_by(self.id);
            if !held.is_empty() {
                // What could not be given back yet will be, as unseen; somebody else may have it by then.
                let unseen: BTreeSet<Offset> = unseen.iter().map(|(offset, _)| *offset).collect();
                held.retain(|(offset, _)| !unseen.contains(offset));
            }
            held
        });
        let Ok(held) = ended else { return };
        // Each slice under a lock of its own: it may have held a million.
        for slice in held.chunks(SETTLE_SLICE) {
            let returned = self.shared.with(&self.cell, |state, now| {
                let (_, plan) = state.queue.decide_return(now, slice, ReturnCause::SessionEnd);
                self.give_back(state, &plan.records, plan.durable, (slice, Settle::Requeue));
                plan.deaths
            });
            let Ok(deaths) = returned else { return };
            self.shared.dead_letter_soon(&self.cell, deaths);
        }
        if self.kind != Kind::Pull && self.cell.state.lock().is_left_alone() {
            let (shared, cell) = (Arc::clone(&self.shared), Arc::clone(&self.cell));
            let delete = move || shared.delete_unused(&cell, |state, _| state.is_left_alone());
            self.shared.workers.spawn(Work::Chore, delete);
        }
    }
}

impl Subscription {
    fn give_back(
        &self,
        state: &mut CellState,
        records: &[Record],
        durable: bool,
        (held, what): (&[(Offset, u32)], Settle),
    ) {
        let committed = self.shared.commit_verdict(state, records, durable, Confirm::Lazily);
        if let Err(error) = committed.and_then(Committed::whole) {
            // They stay leased until there is room; a lease of a connection has no end of its own.
            let (queue, messages) = (self.cell.name.in_full(), held.len());
            if error == ProposeError::Busy {
                let unwritten_bytes = self.shared.journal.unwritten_bytes();
                tracing::debug!(%queue, messages, unwritten_bytes, "messages of a consumer that left are returned soon: the disk is behind");
            } else {
                tracing::warn!(%queue, messages, %error, "messages of a consumer that left cannot be returned now; it is tried again");
            }
            state.unsettled.keep(held, what, None);
            self.shared.maintenance.note_stuck(&self.cell);
        }
    }
}
