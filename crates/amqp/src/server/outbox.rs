//! Publishes on their way to their queues: collected while a read is worked through, then pushed as one batch per queue.

use std::sync::Arc;

use hashbrown::HashMap;
use nexo_broker::{Broker, Health, NewMessage, PushError, QueueError, Written};
use nexo_types::{QueueId, limits};

use super::routing::Target;

/// Publishes that wait.
#[derive(Debug)]
pub(super) struct Outbox {
    batches: Vec<QueueBatch>,
    places: HashMap<QueueId, usize, foldhash::fast::FixedState>,
    last: usize,
    /// Publishes to be confirmed, by channel.
    runs: Vec<Run>,
    written: Written,
    refused: Vec<Publisher>,
    dead: Vec<(Arc<Target>, NewMessage)>,
    messages: usize,
}

#[derive(Debug)]
struct QueueBatch {
    target: Arc<Target>,
    messages: Vec<NewMessage>,
    publishers: Vec<Publisher>,
}

/// Who published a message: the channel, and the publish's number there, 0 if it is not to be confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Publisher {
    pub(super) serial: u64,
    pub(super) tag: u64,
}

/// Publishes of one channel with numbers that follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) channel: u16,
    pub(super) serial: u64,
    pub(super) first: u64,
    pub(super) last: u64,
}

/// What came of a flush.
#[derive(Debug)]
pub(super) struct Flushed {
    pub(super) written: Written,
    pub(super) runs: Vec<Run>,
    pub(super) refused: Vec<Publisher>,
    /// Messages that a full queue refused and that are dead letters now.
    pub(super) dead: Vec<(Arc<Target>, NewMessage)>,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            batches: Vec::new(),
            places: HashMap::default(),
            last: 0,
            runs: Vec::new(),
            written: Written::NOTHING,
            refused: Vec::new(),
            dead: Vec::new(),
            messages: 0,
        }
    }
}

impl Outbox {
    pub(super) fn add(&mut self, target: &Arc<Target>, message: NewMessage, publisher: Publisher) {
        let id = target.queue.id();
        let is_last = self.batches.get(self.last).is_some_and(|batch| batch.target.queue.id() == id);
        if !is_last {
            self.last = *self.places.entry(id).or_insert_with(|| {
                let target = Arc::clone(target);
                self.batches.push(QueueBatch { target, messages: Vec::new(), publishers: Vec::new() });
                self.batches.len() - 1
            });
        }
        let batch = &mut self.batches[self.last];
        batch.messages.push(message);
        batch.publishers.push(publisher);
        self.messages += 1;
    }

    /// Notes a publish that is to be confirmed.
    pub(super) fn confirm(&mut self, channel: u16, serial: u64, tag: u64) {
        match self.runs.iter_mut().find(|run| run.serial == serial) {
            Some(run) => run.last = tag,
            None => self.runs.push(Run { channel, serial, first: tag, last: tag }),
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.messages == 0 && self.runs.is_empty()
    }

    /// Whether it should be flushed before more comes in.
    pub(super) const fn is_full(&self) -> bool {
        self.messages >= limits::PUSH_BATCH_MAX / 2
    }

    /// Pushes everything. Answers why not, if the disk is full; what was not pushed then stays for the next attempt.
    pub(super) fn flush(&mut self) -> Result<Flushed, String> {
        for batch in &mut self.batches {
            while !batch.messages.is_empty() {
                let before = batch.messages.len();
                match batch.target.queue.push(&batch.messages) {
                    Ok(pushed) => {
                        self.written = self.written.and(pushed.written);
                        let late = batch.refuse(pushed.refused, &mut self.refused, &mut self.dead);
                        batch.keep(&late);
                    }
                    // The queue went while the message was on its way, as if it had gone before.
                    Err(QueueError::NotFound { .. }) => batch.keep(&[]),
                    Err(QueueError::DiskFull { reason }) => return Err(reason),
                    Err(QueueError::Unavailable { reason }) => {
                        tracing::warn!(queue = %batch.target.queue.name(), reason, "publishes are refused");
                        self.refused.extend_from_slice(&batch.publishers);
                        batch.keep(&[]);
                    }
                }
                self.messages -= before - batch.messages.len();
            }
        }
        // A few batches keep their room; a channel that publishes to thousands of queues does not.
        if self.batches.len() > 64 {
            self.batches.clear();
            self.places.clear();
            self.last = 0;
        }
        let written = std::mem::replace(&mut self.written, Written::NOTHING);
        let (runs, refused) = (std::mem::take(&mut self.runs), std::mem::take(&mut self.refused));
        Ok(Flushed { written, runs, refused, dead: std::mem::take(&mut self.dead) })
    }
}

impl QueueBatch {
    /// Notes what a queue did not take. Answers which messages came when the log had run full in between: they are to
    /// be tried by themselves, and then it is known what becomes of them.
    fn refuse(
        &self,
        refused: Vec<(usize, PushError)>,
        publishers: &mut Vec<Publisher>,
        dead: &mut Vec<(Arc<Target>, NewMessage)>,
    ) -> Vec<usize> {
        let mut late = Vec::new();
        for (at, error) in refused {
            match error {
                PushError::Unavailable { .. } => {
                    late.push(at);
                    continue;
                }
                PushError::Full { .. } if self.target.traits.buries_refused => {
                    dead.push((Arc::clone(&self.target), self.messages[at].clone()));
                }
                PushError::Full { .. } | PushError::BodyTooLarge { .. } | PushError::TimeTooLong { .. } => {}
            }
            publishers.push(self.publishers[at]);
        }
        late
    }

    /// Leaves only the messages in these places, which ascend.
    fn keep(&mut self, places: &[usize]) {
        for (to, from) in places.iter().enumerate() {
            self.messages.swap(to, *from);
            self.publishers.swap(to, *from);
        }
        self.messages.truncate(places.len());
        self.publishers.truncate(places.len());
    }
}

/// Why publishers must wait, if they must.
pub(super) fn disk_is_full(broker: &Broker) -> Option<String> {
    match broker.health() {
        Health::DiskFull { reason } => Some(reason),
        Health::Ok | Health::Unhealthy { .. } => None,
    }
}
