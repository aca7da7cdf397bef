//! A move of dead letters that somebody waits for: who is told that a message was rejected must find it where it went,
//! after a crash as well.

use std::sync::Arc;

use nexo_core::queue::Death;
use nexo_log::Urgency;
use nexo_types::Offset;
use tokio::sync::oneshot;

use crate::alarms::{Alarm, Resource};
use crate::error::QueueError;
use crate::journal::Written;
use crate::queue_cell::QueueCell;
use crate::shared::Shared;
use crate::workers::Work;

/// Dead letters on their way out of a queue.
#[derive(Debug)]
pub(crate) struct DeadLetterMove {
    cell: Arc<QueueCell>,
    deaths: Vec<Death>,
    urgency: Urgency,
    /// Everything that was written down when it began.
    begun: Written,
    /// What comes of the attempt under way, if there is one.
    done: Option<oneshot::Receiver<Result<(), QueueError>>>,
}

impl Shared {
    /// Begins to move dead letters on a worker. It goes on whether or not anybody waits for it.
    pub(crate) fn begin_move(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        deaths: Vec<Death>,
        urgency: Urgency,
    ) -> DeadLetterMove {
        let begun = self.journal.so_far(urgency);
        let done = Some(self.try_move(cell, &deaths));
        DeadLetterMove { cell: Arc::clone(cell), deaths, urgency, begun, done }
    }

    fn try_move(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        deaths: &[Death],
    ) -> oneshot::Receiver<Result<(), QueueError>> {
        cell.state.lock().pending_deaths.0.extend(deaths);
        let (shared, moved) = (Arc::clone(self), Arc::clone(cell));
        self.begin_on_worker(Work::Move, move || shared.dead_letter_pending(&moved))
    }
}

impl DeadLetterMove {
    /// Waits until they are as safe where they went as their queue promises. When that has failed, the next call tries
    /// again.
    ///
    /// # Errors
    /// If some could not be moved now, with those; it is tried again, but nobody may be told that it is done.
    pub(crate) async fn wait(&mut self, shared: &Arc<Shared>) -> Result<(), (QueueError, Vec<Offset>)> {
        let (mut outcome, mut left) = self.attempt(shared).await;
        if !left.is_empty() && outcome.is_ok() && shared.refuse_if_stopping().is_ok() {
            // Another move took them along and failed. What is in the way may be gone by now, and if not, it is known
            // what that is.
            (outcome, left) = self.attempt(shared).await;
        }
        if !left.is_empty() {
            return Err((self.refusal(shared, outcome, left.len()), left));
        }
        let all = || self.deaths.iter().map(|death| death.offset);
        // What moved them lies before this, in the log.
        let written = self.begun.and(shared.journal.so_far(self.urgency));
        shared.wait_for(written).await.map_err(|error| (error, all().collect()))
    }

    /// Waits for the attempt under way, or for a new one. Gives back what came of it, and those that are still here.
    async fn attempt(&mut self, shared: &Arc<Shared>) -> (Result<(), QueueError>, Vec<Offset>) {
        let done = self.done.take().unwrap_or_else(|| shared.try_move(&self.cell, &self.deaths));
        // Without an answer the broker is stopping, and what was not moved is still marked.
        let outcome = done.await.unwrap_or(Ok(()));
        let state = self.cell.state.lock();
        let all = self.deaths.iter().map(|death| death.offset);
        (outcome, all.filter(|offset| state.queue.dying(*offset).is_some()).collect())
    }

    fn refusal(&self, shared: &Shared, outcome: Result<(), QueueError>, left: usize) -> QueueError {
        let reason = format!("{left} dead letters of queue '{}' cannot be moved now", self.cell.name);
        // Somebody else may have tried to move them, and found no room.
        let full = match outcome {
            Err(QueueError::Alarm(Alarm { reason, .. })) => Some(reason),
            Ok(()) | Err(_) => shared.want_of_space(),
        };
        match full {
            Some(why) => {
                let reason = format!("{reason}: {why}");
                QueueError::Alarm(Alarm { resource: Resource::Disk, reason })
            }
            None => QueueError::Unavailable { reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nexo_core::config::{Fate, QueueConfig};
    use nexo_core::message::NewMessage;
    use nexo_log::disk::{CutMode, MemoryDisk};
    use nexo_types::{Millis, QueueName};

    use super::*;
    use crate::broker::Broker;
    use crate::commit::Confirm;
    use crate::handle::decide_settle;
    use crate::options::BrokerOptions;
    use crate::request::{PopRequest, Settle};

    /// A message that died is a dead letter whenever the process ends, and a purge does not take it.
    #[tokio::test]
    async fn what_died_before_a_crash_is_moved_after_it() {
        let disk = Arc::new(MemoryDisk::new());
        let broker = Broker::open_on(disk.clone(), BrokerOptions::new("memory")).unwrap();
        let queue = QueueName::new("q").unwrap();
        let config = QueueConfig { on_expiry: Fate::DeadLetter, ..QueueConfig::default() };
        broker.create_queue(&queue, config).await.unwrap();
        broker.push(&queue, vec![NewMessage::new("rejected")]).await.unwrap();
        let request = PopRequest { max: 1, wait: Millis::ZERO, visibility: None, bytes_max: None };
        let held = broker.pop(&queue, request).await.unwrap();
        let held = [(held[0].offset, held[0].attempt)];
        let cell = broker.shared.catalog.get(&queue).unwrap();
        // Nobody moves dead letters meanwhile.
        let held_up = HeldUp::new(&cell);
        broker
            .push(&queue, vec![NewMessage { ttl: Some(Millis(50)), ..NewMessage::new("expired") }])
            .await
            .unwrap();
        broker.queue(&queue).unwrap().settle(&held, Settle::Reject).unwrap();
        while cell.state.lock().queue.deaths().len() < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        broker.purge(&queue).await.unwrap();
        assert_eq!(cell.state.lock().queue.deaths().len(), 2, "what died is not purged");
        broker.push(&queue, vec![NewMessage::new("synced")]).await.unwrap();
        let crashed = disk.after_power_cut(CutMode::Drop, 0);
        drop(held_up);
        broker.shutdown().await;
        let broker = Broker::open_on(Arc::new(crashed), BrokerOptions::new("memory")).unwrap();
        let cell = broker.shared.catalog.get(&queue).unwrap();
        let dead = QueueName::new("q_dlq").unwrap();
        while broker.queue(&dead).map_or(0, |dead| dead.counts().0) < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert_eq!((cell.state.lock().queue.len(), broker.queue(&dead).unwrap().counts().0), (1, 2));
        broker.shutdown().await;
    }

    /// Holds up all who would move dead letters of a queue, until it is dropped.
    struct HeldUp(Option<std::sync::mpsc::Sender<()>>, Option<std::thread::JoinHandle<()>>);

    impl HeldUp {
        fn new(cell: &Arc<QueueCell>) -> Self {
            let (release, released) = std::sync::mpsc::channel::<()>();
            let (locked, is_locked) = std::sync::mpsc::channel();
            let moving = Arc::clone(cell);
            let thread = std::thread::spawn(move || {
                let _held = moving.dead_lettering.lock();
                locked.send(()).unwrap();
                let _ = released.recv();
            });
            is_locked.recv().unwrap();
            Self(Some(release), Some(thread))
        }
    }

    impl Drop for HeldUp {
        fn drop(&mut self) {
            drop(self.0.take());
            self.1.take().unwrap().join().unwrap();
        }
    }

    #[tokio::test]
    async fn messages_that_wait_to_be_moved_leave_memory_and_are_read_again() {
        const COUNT: u64 = 12;
        let broker = Broker::open_on(Arc::new(MemoryDisk::new()), BrokerOptions::new("memory")).unwrap();
        let queue = QueueName::new("q").unwrap();
        let config = QueueConfig { on_expiry: Fate::DeadLetter, ..QueueConfig::default() };
        broker.create_queue(&queue, config).await.unwrap();
        let cell = broker.shared.catalog.get(&queue).unwrap();
        let held_up = HeldUp::new(&cell);
        let body = |number: u64| format!("{number}{}", "x".repeat(1 << 20));
        for number in 0..COUNT {
            let message = NewMessage { ttl: Some(Millis(1)), ..NewMessage::new(body(number)) };
            broker.push(&queue, vec![message]).await.unwrap();
        }
        while cell.state.lock().queue.deaths().len() < COUNT as usize {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let taken = cell.state.lock().queue.memory_bytes();
        assert!(taken < 5 << 20, "{taken} bytes in memory");
        cell.state.lock().queue.page_out(u64::MAX);
        let taken = cell.state.lock().queue.memory_bytes();
        assert!(taken < 1 << 20, "{taken} bytes in memory when it is short");
        drop(held_up);
        let dead = QueueName::new("q_dlq").unwrap();
        while broker.queue(&dead).map_or(0, |dead| dead.counts().0) < COUNT {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let request =
            PopRequest { max: COUNT as usize, wait: Millis::ZERO, visibility: None, bytes_max: None };
        let moved = broker.pop(&dead, request).await.unwrap();
        let moved: BTreeSet<&[u8]> = moved.iter().map(|one| &one.message.body[..]).collect();
        let bodies: Vec<String> = (0..COUNT).map(body).collect();
        assert!(moved == bodies.iter().map(String::as_bytes).collect(), "each is whole");
        assert_eq!(cell.state.lock().queue.len(), 0);
        broker.shutdown().await;
    }

    /// Another one took these dead letters along and found no room; by now there is some.
    #[tokio::test]
    async fn what_somebody_else_could_not_move_is_tried_again() {
        let broker = Broker::open_on(Arc::new(MemoryDisk::new()), BrokerOptions::new("memory")).unwrap();
        let queue = QueueName::new("q").unwrap();
        let config = QueueConfig { max_attempts: Some(5), ..QueueConfig::default() };
        broker.create_queue(&queue, config).await.unwrap();
        broker.push(&queue, vec![NewMessage::new("x")]).await.unwrap();
        let request = PopRequest { max: 1, wait: Millis::ZERO, visibility: None, bytes_max: None };
        let held = broker.pop(&queue, request).await.unwrap();
        let shared = &broker.shared;
        let cell = shared.catalog.get(&queue).unwrap();
        let held = [(held[0].offset, held[0].attempt)];
        let deaths = {
            let mut state = cell.state.lock();
            let plan = decide_settle(&state.queue, shared.clock.now(), &held, Settle::Reject).0;
            shared.commit_verdict(&mut state, &plan.records, plan.durable, Confirm::Lazily).unwrap();
            plan.deaths
        };
        assert_eq!(deaths.len(), 1);
        let (send, done) = oneshot::channel();
        send.send(Ok(())).unwrap();
        let urgency = Urgency::Synced;
        let mut moving = DeadLetterMove {
            cell: Arc::clone(&cell),
            deaths,
            urgency,
            begun: Written::NOTHING,
            done: Some(done),
        };
        moving.wait(shared).await.unwrap();
        let dead = broker.queue(&QueueName::new("q_dlq").unwrap()).unwrap();
        assert_eq!((dead.counts().0, cell.state.lock().queue.len()), (1, 0));
        broker.shutdown().await;
    }
}
