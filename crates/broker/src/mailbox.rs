//! Where a consumer finds its messages. Filled by whoever pushes or by the timer, emptied by the consumer's task.
//!
//! A batch whose messages must first be read from the log keeps its place, so that a consumer gets messages in
//! the order in which they were handed to it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::{FixedState, RandomState};
use hashbrown::HashMap;
use nexo_core::queue::{Allowance, Handed, SettleMode};
use nexo_core::rare::Empty;
use nexo_types::ConsumerId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::journal::{Journal, TicketError, Written};
use crate::owed::{OwedClock, SocketState};

/// What messages count for among the bytes that their consumer may hold.
pub(crate) fn charged(messages: &[Handed]) -> u64 {
    messages.iter().map(|message| u64::from(message.charged)).sum()
}

/// Messages handed to one consumer and not yet taken by it.
#[derive(Debug)]
pub(crate) struct Mailbox {
    consumer: ConsumerId,
    settle: SettleMode,
    socket: Arc<SocketState>,
    inner: Mutex<Inner>,
    wake: Notify,
    allowance: Option<Arc<Allowance>>,
}

#[derive(Debug, Default)]
struct Inner {
    batches: VecDeque<HandedBatch>,
    next: u64,
    closed: bool,
    owed: OwedClock,
}

#[derive(Debug)]
struct HandedBatch {
    number: u64,
    whole: bool,
    /// What must be safe before the consumer may see it.
    rests_on: Written,
    messages: Vec<Handed>,
}

impl HandedBatch {
    fn is_free(&self, journal: &dyn Journal) -> bool {
        self.whole && (self.rests_on.is_nothing() || journal.is_safe(self.rests_on))
    }
}

impl Mailbox {
    pub(crate) fn new(
        consumer: ConsumerId,
        settle: SettleMode,
        socket: Arc<SocketState>,
        allowance: Option<Arc<Allowance>>,
    ) -> Self {
        Self { consumer, settle, socket, inner: Mutex::default(), wake: Notify::new(), allowance }
    }

    /// Notes that messages of so many bytes were passed on. `true` if the queue should look at the consumer again.
    pub(crate) fn passed_on(&self, bytes: u64) -> bool {
        bytes > 0 && self.allowance.as_ref().is_some_and(|allowance| allowance.passed_on(bytes))
    }

    /// Whether what is put in has left its queue, or does when it has been read.
    pub(crate) const fn settle(&self) -> SettleMode {
        self.settle
    }

    /// Whose it is.
    pub(crate) const fn consumer(&self) -> ConsumerId {
        self.consumer
    }

    /// Messages that could be taken now.
    pub(crate) fn len(&self, journal: &dyn Journal) -> usize {
        let inner = self.inner.lock();
        inner
            .batches
            .iter()
            .take_while(|batch| batch.is_free(journal))
            .map(|batch| batch.messages.len())
            .sum()
    }

    /// Whether no more messages will come.
    pub(crate) fn is_closed(&self) -> bool {
        self.inner.lock().closed
    }

    /// Puts messages in. If some must be read from the log first, gives back a number and a copy: the reader
    /// calls [`Self::fill`] with them. The consumer does not see them before what they rest on is safe.
    pub(crate) fn put(&self, messages: Vec<Handed>, rests_on: Written) -> Option<(u64, Vec<Handed>)> {
        if let Some(allowance) = &self.allowance {
            allowance.report();
        }
        let whole = messages.iter().all(|message| message.payload.is_some());
        let cold = (!whole).then(|| messages.clone());
        let number = {
            let mut inner = self.inner.lock();
            let number = inner.next;
            inner.next += 1;
            if inner.batches.is_empty() {
                inner.owed.start(&self.socket);
            }
            inner.batches.push_back(HandedBatch { number, whole, rests_on, messages });
            number
        };
        if whole {
            self.wake.notify_one();
        }
        cold.map(|messages| (number, messages))
    }

    /// Replaces a batch by the same messages with their bytes, less those that could not be read. `false` if the batch
    /// was given back meanwhile.
    pub(crate) fn fill(&self, number: u64, messages: Vec<Handed>) -> bool {
        let mut inner = self.inner.lock();
        let batch = inner.batches.iter_mut().find(|batch| batch.number == number);
        let found = batch.map(|batch| {
            let before = charged(&batch.messages);
            batch.messages = messages;
            batch.whole = true;
            (before, charged(&batch.messages))
        });
        // Before the consumer can take them: it must not pass on more than they count for.
        if let (Some((before, now)), Some(allowance)) = (found, &self.allowance) {
            allowance.recharge(before, now);
        }
        drop(inner);
        self.wake.notify_one();
        found.is_some()
    }

    /// What is there now, in order.
    pub(crate) fn take(&self, journal: &dyn Journal) -> Vec<Handed> {
        let mut inner = self.inner.lock();
        let mut taken = Vec::new();
        while inner.batches.front().is_some_and(|batch| batch.is_free(journal))
            && let Some(mut batch) = inner.batches.pop_front()
        {
            if taken.is_empty() {
                taken = batch.messages;
            } else {
                taken.append(&mut batch.messages);
            }
        }
        if inner.batches.is_empty() && !taken.is_empty() {
            inner.owed.stop(&self.socket);
        }
        taken
    }

    /// Waits for messages; `None` once the mailbox is closed and empty.
    pub(crate) async fn next(&self, journal: &dyn Journal) -> Option<Vec<Handed>> {
        loop {
            let taken = self.take(journal);
            if !taken.is_empty() {
                return Some(taken);
            }
            if self.is_closed_and_empty() {
                return None;
            }
            self.stirred(journal).await;
        }
    }

    /// Has the consumer look again.
    pub(crate) fn stir(&self) {
        self.wake.notify_one();
    }

    /// Resolves when there may be something new. Who is woken while nobody waits is woken as soon as somebody does.
    pub(crate) async fn stirred(&self, journal: &dyn Journal) {
        if journal.releases_early() {
            self.wake.notified().await;
            return;
        }
        let front = self.inner.lock().batches.front().filter(|batch| batch.whole).map(|batch| batch.rests_on);
        let Some(rests_on) = front.filter(|rests_on| !rests_on.is_nothing()) else {
            self.wake.notified().await;
            return;
        };
        let safe = tokio::select! {
            () = self.wake.notified() => return,
            safe = journal.wait(rests_on) => safe,
        };
        match safe {
            Ok(()) => {}
            // Nobody has seen them, and nobody will.
            Err(TicketError::Lost) => drop(self.drain()),
            // Whether they are safe will not be known.
            Err(TicketError::Log(_)) => self.wake.notified().await,
        }
    }

    /// No more messages will come.
    pub(crate) fn close(&self) {
        self.inner.lock().closed = true;
        self.wake.notify_one();
    }

    /// Everything the consumer never took, whether it could be read or not.
    pub(crate) fn drain(&self) -> Vec<Handed> {
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.batches.drain(..).flat_map(|batch| batch.messages).collect()
    }

    /// Notes whether the consumer takes more, where no socket tells.
    pub(crate) fn set_taking(&self, taking: bool) {
        self.socket.set_stalled(!taking);
    }

    /// For how long, since `then`, messages lay here that the consumer could have taken.
    pub(crate) fn owed_since(&self, then: Instant) -> Duration {
        self.inner.lock().owed.since(then, &self.socket)
    }

    /// Whether messages are on their way from the log, or wait for what they rest on to be safe.
    pub(crate) fn is_waiting_for_log(&self, journal: &dyn Journal) -> bool {
        self.inner.lock().batches.iter().any(|batch| !batch.is_free(journal))
    }

    fn is_closed_and_empty(&self) -> bool {
        let inner = self.inner.lock();
        inner.closed && inner.batches.is_empty()
    }
}

/// The mailboxes of a queue's consumers. Their ids are ours, so no client can make them collide.
#[derive(Debug, Default)]
pub(crate) struct Mailboxes(pub(crate) HashMap<ConsumerId, Arc<Mailbox>, FixedState>);

impl Empty for Mailboxes {
    const EMPTY: &'static Self = &Self(HashMap::with_hasher(FixedState::with_seed(0)));
}

/// What each consumer gets: turns in several rounds become one batch in its mailbox.
#[derive(Default)]
pub(crate) struct Deliveries {
    pub(crate) batches: Vec<(Arc<Mailbox>, Vec<Handed>)>,
    places: HashMap<ConsumerId, usize, RandomState>,
}

impl Deliveries {
    pub(crate) fn add(
        &mut self,
        consumer: ConsumerId,
        mailboxes: &Mailboxes,
        messages: impl Iterator<Item = Handed>,
    ) {
        // One consumer in a row needs no looking up.
        let place = match self.batches.last() {
            Some((mailbox, _)) if mailbox.consumer() == consumer => Some(self.batches.len() - 1),
            _ => self.places.get(&consumer).copied(),
        };
        let place = match (place, mailboxes.0.get(&consumer)) {
            (Some(place), _) => place,
            (None, Some(mailbox)) => {
                self.places.insert(consumer, self.batches.len());
                self.batches.push((Arc::clone(mailbox), Vec::new()));
                self.batches.len() - 1
            }
            // A consumer without a mailbox has left, and its messages come back with its leases.
            (None, None) => return messages.for_each(drop),
        };
        self.batches[place].1.extend(messages);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use bytes::Bytes;
    use nexo_core::queue::Outgoing;
    use nexo_log::disk::MemoryDisk;
    use nexo_log::{Log, LogOptions};
    use nexo_types::{Offset, Priority, Timestamp};

    use super::*;
    use crate::journal::LocalJournal;

    /// Enough that the two threads meet.
    const ROUNDS: u64 = 200_000;

    fn unread(offset: u64) -> Handed {
        Handed {
            offset: Offset(offset),
            attempts: 1,
            enqueued_at: Timestamp(0),
            until: None,
            granted_at: Timestamp(0),
            priority: Priority(0),
            charged: 1,
            payload: None,
        }
    }

    /// The consumer may be on another thread, and quick. (What it passes on is checked where it is counted.)
    #[test]
    fn what_was_read_counts_in_full_before_the_consumer_can_pass_it_on() {
        let log = Log::open(Arc::new(MemoryDisk::new()), LogOptions::default()).unwrap().0;
        let journal = LocalJournal::new(log);
        let outgoing = Arc::new(Outgoing::new(1 << 30));
        let allowance = Arc::new(Allowance::new(1 << 30, Arc::clone(&outgoing)));
        let mailbox =
            Mailbox::new(ConsumerId(1), SettleMode::Manual, Arc::default(), Some(Arc::clone(&allowance)));
        let passed_on = thread::scope(|scope| {
            let consumer = scope.spawn(|| {
                let mut passed_on = 0;
                while passed_on < ROUNDS {
                    let taken = mailbox.take(&journal);
                    mailbox.passed_on(charged(&taken));
                    passed_on += taken.len() as u64;
                }
                passed_on
            });
            for offset in (0..ROUNDS).take_while(|_| !consumer.is_finished()) {
                allowance.take(1);
                let (number, mut read) = mailbox.put(vec![unread(offset)], Written::NOTHING).unwrap();
                read[0].complete(Bytes::from_static(&[0; 1000]));
                assert!(mailbox.fill(number, read));
            }
            consumer.join().unwrap()
        });
        assert_eq!((passed_on, outgoing.bytes()), (ROUNDS, 0), "nothing is counted for ever");
    }
}
