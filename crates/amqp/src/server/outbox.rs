//! Publishes on their way to their queues: collected while a read is worked through, then pushed as one batch per queue.
//! Larger ones that go to several queues are collected in one batch for all of these (`fanout.rs`).

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use nexo_broker::{
    Alarm, Broker, Draft, Evenness, NewMessage, Pacing, PackedBatch, PushError, QueueError, Refused,
    Settling, SharedPush, Written, share_queues_max,
};
use nexo_types::{QueueId, QueueName, limits};

use super::fanout::{Fanout, Fanouts};
use super::pace::{Pushed, RATION_BYTES, RATION_MESSAGES};
use super::publish::for_target;
use super::routing::Target;

/// Queues that are waited for after one flush: each wait is short, and there may be thousands of queues.
const UNEVEN_MAX: usize = 4;

/// What is pushed before others have their turn: so many queues …
const SLICE_QUEUES: usize = 256;
/// … or so many bytes.
const SLICE_BYTES: usize = 4 << 20;

/// Publishes that wait.
#[derive(Debug)]
pub(super) struct Outbox {
    batches: Vec<QueueBatch>,
    places: HashMap<QueueId, usize, foldhash::fast::FixedState>,
    last: usize,
    /// Publishes to be confirmed, by channel.
    runs: Vec<Run>,
    written: Written,
    /// When it was first looked where a publish goes that goes nowhere.
    look: Option<Written>,
    refused: Vec<Publisher>,
    dead_letters: Vec<Settling>,
    messages: usize,
    bytes: usize,
    fanouts: Fanouts,
    /// A queue was locked for too long for the last attempt.
    is_busy: bool,
    /// If the disk was behind at the last attempt: for which queue, or `None` if several share the message.
    refusing: Option<Option<QueueName>>,
    pushed: Pushed,
}

#[derive(Debug)]
struct QueueBatch {
    target: Arc<Target>,
    packed: VecDeque<PackedBatch>,
    /// Of each message in them.
    publishers: Vec<Publisher>,
    /// How large the last packed batch was: the next one is likely to be like it.
    bytes_expected: usize,
    count_expected: usize,
}

impl QueueBatch {
    fn new(target: Arc<Target>) -> Self {
        Self { target, packed: VecDeque::new(), publishers: Vec::new(), bytes_expected: 0, count_expected: 0 }
    }

    fn add(&mut self, message: &Draft<'_>) {
        let packed = match self.packed.back_mut().filter(|packed| packed.has_room(message)) {
            Some(packed) => packed,
            None => {
                let (bytes, count) = (self.bytes_expected, self.count_expected);
                self.packed.push_back(PackedBatch::new(message.durability, bytes, count));
                self.packed.back_mut().expect("one was just added")
            }
        };
        packed.push(message);
    }

    /// Notes what the queue did not take of a packed batch whose first publisher is at `first`. Answers which messages came
    /// when the log had run full in between: they are to be tried by themselves, and then it is known what becomes of
    /// them.
    fn refuse(
        &self,
        first: usize,
        refused: Vec<Refused>,
        publishers: &mut Vec<Publisher>,
    ) -> Vec<(Publisher, NewMessage)> {
        let mut late = Vec::new();
        for Refused { at, message, error } in refused {
            let publisher = self.publishers[first + at];
            match error {
                PushError::Unavailable { .. } => {
                    late.push((publisher, message));
                    continue;
                }
                PushError::Full { .. } | PushError::BodyTooLarge { .. } | PushError::TimeTooLong { .. } => {}
            }
            publishers.push(publisher);
        }
        late
    }

    /// Puts messages back before all others; of those, the publishers begin at `rest`.
    fn try_again(&mut self, late: Vec<(Publisher, NewMessage)>, rest: usize) {
        let later = std::mem::take(&mut self.packed);
        let mut publishers = Vec::with_capacity(self.publishers.len());
        for (publisher, message) in late {
            publishers.push(publisher);
            self.add(&message.as_draft());
        }
        publishers.extend_from_slice(&self.publishers[rest..]);
        self.publishers = publishers;
        self.packed.extend(later);
    }

    /// A little more than was needed last time, so that like loads fit.
    fn expect_another(&mut self, packed: &PackedBatch) {
        if packed.is_of_received() {
            return;
        }
        self.bytes_expected = packed.bytes() + packed.bytes() / 8;
        self.count_expected = packed.len() + packed.len() / 8;
    }
}

/// Who published a message: the channel, and the publish's number there, 0 if it is not to be confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Publisher {
    pub(super) serial: u64,
    pub(super) tag: u64,
}

impl Publisher {
    /// In place of a number: the answer to its commit stands for it.
    pub(super) const COMMITTED: u64 = u64::MAX;
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
    /// Some of it went nowhere, which was found in a look that began then.
    pub(super) look: Option<Written>,
    pub(super) runs: Vec<Run>,
    pub(super) refused: Vec<Publisher>,
    /// Messages that full queues refused, on their way to where dead letters go.
    pub(super) dead_letters: Vec<Settling>,
    pub(super) pushed: Pushed,
}

/// A queue went while a message for it was on its way: that is as if it had gone before, and the message goes nowhere. In a cluster
/// that it went may be lost with a leader, so it is told when it is certain. If the queue is there again, nobody knows which one was
/// meant: `false`, and the publish is refused.
fn went_nowhere(look: &mut Option<Written>, target: &Target, broker: &Broker) -> bool {
    let began = broker.begin_look();
    if broker.is_replicated() && broker.queue(target.queue.name()).is_some() {
        return false;
    }
    note_look(look, began);
    true
}

/// Something was not there, in a look that began then. What it rests on is what all looks rest on.
fn note_look(look: &mut Option<Written>, began: Written) {
    *look = Some(look.map_or(began, |before| before.and(began)));
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            batches: Vec::new(),
            places: HashMap::default(),
            last: 0,
            runs: Vec::new(),
            written: Written::NOTHING,
            look: None,
            refused: Vec::new(),
            dead_letters: Vec::new(),
            messages: 0,
            bytes: 0,
            fanouts: Fanouts::default(),
            is_busy: false,
            refusing: None,
            pushed: Pushed::default(),
        }
    }
}

impl Outbox {
    /// Adds a message for all its queues.
    pub(super) fn add_all(&mut self, targets: &[Arc<Target>], message: &Draft<'_>, publisher: Publisher) {
        if self.fanouts.takes(targets, message) {
            self.fanouts.add(targets, message, publisher);
            return;
        }
        for target in targets {
            self.add(target, &for_target(*message, target), publisher);
        }
    }

    /// Adds a message for several queues that is packed already, and that all of them take in this form.
    pub(super) fn add_shared(&mut self, targets: &[Arc<Target>], packed: PackedBatch, publisher: Publisher) {
        self.fanouts.add_packed(targets, packed, publisher);
    }

    /// Whether packed batches can be added: what waits for many queues is not overtaken.
    pub(super) fn takes_packed(&self) -> bool {
        self.fanouts.is_empty()
    }

    /// Adds a message that is packed already, if [packed batches are taken](Self::takes_packed).
    pub(super) fn add_packed(&mut self, target: &Arc<Target>, packed: PackedBatch, publisher: Publisher) {
        debug_assert!(self.takes_packed() && packed.len() == 1, "one message, in its turn");
        self.messages += 1;
        self.bytes += packed.bytes();
        let batch = self.batch_for(target);
        batch.packed.push_back(packed);
        batch.publishers.push(publisher);
    }

    fn add(&mut self, target: &Arc<Target>, message: &Draft<'_>, publisher: Publisher) {
        self.messages += 1;
        self.bytes += copy_bytes(message);
        let batch = self.batch_for(target);
        batch.add(message);
        batch.publishers.push(publisher);
    }

    fn batch_for(&mut self, target: &Arc<Target>) -> &mut QueueBatch {
        let id = target.queue.id();
        let is_last = self.batches.get(self.last).is_some_and(|batch| batch.target.queue.id() == id);
        if !is_last {
            self.last = *self.places.entry(id).or_insert_with(|| {
                self.batches.push(QueueBatch::new(Arc::clone(target)));
                self.batches.len() - 1
            });
        }
        &mut self.batches[self.last]
    }

    /// Notes a publish that is to be confirmed.
    pub(super) fn confirm(&mut self, channel: u16, serial: u64, tag: u64) {
        match self.runs.iter_mut().find(|run| run.serial == serial) {
            Some(run) => run.last = tag,
            None => self.runs.push(Run { channel, serial, first: tag, last: tag }),
        }
    }

    /// A publish goes nowhere, as was found in a look that began then. In a cluster that is told when it is certain.
    pub(super) fn goes_nowhere(&mut self, began: Written) {
        note_look(&mut self.look, began);
    }

    /// When such a look began, if there was one and nothing else is here.
    pub(super) fn take_look(&mut self) -> Option<Written> {
        self.look.take()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages == 0 && self.runs.is_empty() && self.fanouts.is_empty()
    }

    /// Whether it should be flushed before more comes in.
    pub(super) fn is_full(&self) -> bool {
        self.messages + self.fanouts.messages() >= limits::PUSH_BATCH_MAX / 2
            || self.bytes + self.fanouts.bytes() >= SLICE_BYTES
            || self.fanouts.is_full()
    }

    /// Whether it holds what a connection that is rationed may publish at once.
    pub(super) const fn holds_ration(&self) -> bool {
        self.messages + self.fanouts.messages() >= RATION_MESSAGES
            || self.bytes + self.fanouts.bytes() >= RATION_BYTES
    }

    /// Whether a queue was too busy for the last attempt.
    pub(super) const fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// For which queue the disk was behind at the last attempt, if it was.
    pub(super) fn refusing(&self) -> Option<Option<QueueName>> {
        self.refusing.clone()
    }

    /// How many messages wait here, and their bytes.
    pub(super) const fn waiting(&self) -> (usize, usize) {
        (self.messages + self.fanouts.messages(), self.bytes + self.fanouts.bytes())
    }

    /// Pushes as much as should be done at once, and says what came of everything when nothing is left. Answers why not,
    /// if there is an alarm; what was not pushed then stays for the next attempt.
    pub(super) fn flush_slice(&mut self, broker: &Broker, pacing: Pacing) -> Result<Option<Flushed>, Alarm> {
        let (mut queues, mut bytes) = (0, 0);
        self.is_busy = false;
        self.refusing = None;
        if !self.push_batches(broker, &mut queues, &mut bytes, pacing)? {
            return Ok(None);
        }
        while let Some(mut fanout) = self.fanouts.pop() {
            let pushed = self.push_fanout(&mut fanout, broker, &mut queues, &mut bytes, pacing);
            if !matches!(pushed, Ok(true)) {
                self.fanouts.put_back(fanout);
                return pushed.map(|_| None);
            }
        }
        Ok(Some(self.finish()))
    }

    /// Pushes a message to all its queues, or some. `false` if others should have their turn before the rest.
    fn push_fanout(
        &mut self,
        fanout: &mut Fanout,
        broker: &Broker,
        queues: &mut usize,
        bytes: &mut usize,
        pacing: Pacing,
    ) -> Result<bool, Alarm> {
        while !fanout.sharing.is_empty() {
            if *queues >= SLICE_QUEUES || *bytes >= SLICE_BYTES {
                return Ok(false);
            }
            let messages = fanout.messages(broker);
            let count = fanout.sharing.len().min(share_queues_max(messages.bytes()));
            *queues += count;
            *bytes += messages.bytes();
            let handles: Vec<_> = fanout.sharing.iter().take(count).map(|target| &target.queue).collect();
            match broker.push_shared(&handles, &messages, pacing) {
                Ok(pushed) => {
                    self.pushed.bytes += messages.bytes();
                    let of_each = messages.len();
                    for (target, pushed) in fanout.sharing.drain(..count).zip(pushed) {
                        match pushed {
                            SharedPush::Taken { written, evenness } => {
                                self.pushed.note(&target, of_each, evenness);
                                self.written = self.written.and(written);
                            }
                            SharedPush::Alone => fanout.alone.push_back(target),
                            SharedPush::Gone => {
                                if !went_nowhere(&mut self.look, &target, broker) {
                                    self.refused.extend_from_slice(&fanout.publishers);
                                }
                            }
                        }
                    }
                }
                Err(QueueError::Busy { .. }) => {
                    self.is_busy = true;
                    self.refusing = Some(None);
                    return Ok(false);
                }
                Err(QueueError::Alarm(alarm)) => return Err(alarm),
                Err(error @ (QueueError::NotFound { .. } | QueueError::Unavailable { .. })) => {
                    tracing::warn!(%error, queues = count, "publishes are refused");
                    self.refused.extend_from_slice(&fanout.publishers);
                    fanout.sharing.drain(..count);
                }
            }
        }
        while let Some(target) = fanout.alone.pop_front() {
            let packed = fanout.messages(broker).to_packed();
            self.messages += packed.len();
            let batch = self.batch_for(&target);
            batch.packed.push_back(packed);
            batch.publishers.extend_from_slice(&fanout.publishers);
            if !self.push_batches(broker, queues, bytes, pacing)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Pushes what is packed. `false` if others should have their turn before the rest.
    fn push_batches(
        &mut self,
        broker: &Broker,
        queues: &mut usize,
        bytes: &mut usize,
        pacing: Pacing,
    ) -> Result<bool, Alarm> {
        for batch in self.batches.iter_mut().filter(|batch| !batch.packed.is_empty()) {
            if *queues >= SLICE_QUEUES || *bytes >= SLICE_BYTES {
                return Ok(false);
            }
            *queues += 1;
            let mut done = 0;
            while let Some(packed) = batch.packed.pop_front() {
                batch.expect_another(&packed);
                let (count, packed_bytes) = (packed.len(), packed.bytes());
                *bytes += packed_bytes;
                let mut packed = Some(packed);
                match batch.target.queue.push_packed(&mut packed, pacing) {
                    Ok(pushed) => {
                        self.pushed.bytes += packed_bytes;
                        self.pushed.note(&batch.target, count, pushed.evenness);
                        self.written = self.written.and(pushed.written);
                        self.dead_letters.extend(pushed.dead_letters);
                        let late = batch.refuse(done, pushed.refused, &mut self.refused);
                        if !late.is_empty() {
                            self.messages -= count - late.len();
                            batch.try_again(late, done + count);
                            done = 0;
                            continue;
                        }
                    }
                    Err(QueueError::NotFound { .. }) => {
                        if !went_nowhere(&mut self.look, &batch.target, broker) {
                            self.refused.extend_from_slice(&batch.publishers[done..done + count]);
                        }
                    }
                    Err(error @ (QueueError::Alarm(_) | QueueError::Busy { .. })) => {
                        batch.packed.extend(packed);
                        batch.packed.rotate_right(1);
                        batch.publishers.drain(..done);
                        if let QueueError::Alarm(alarm) = error {
                            return Err(alarm);
                        }
                        self.refusing = Some(Some(batch.target.queue.name().clone()));
                        return Ok(false);
                    }
                    Err(QueueError::Unavailable { reason }) => {
                        tracing::warn!(queue = %batch.target.queue.name().in_full(), reason, "publishes are refused");
                        self.refused.extend_from_slice(&batch.publishers[done..done + count]);
                    }
                }
                done += count;
                self.messages -= count;
            }
            batch.publishers.clear();
        }
        self.bytes = 0;
        self.forget_many();
        Ok(true)
    }

    /// A few batches keep their room; a channel that publishes to thousands of queues does not.
    fn forget_many(&mut self) {
        if self.batches.len() > 64 {
            self.batches.clear();
            self.places.clear();
            self.last = 0;
        }
    }

    /// Everything is pushed: says what came of it.
    fn finish(&mut self) -> Flushed {
        let written = std::mem::replace(&mut self.written, Written::NOTHING);
        let look = self.look.take();
        let (runs, refused) = (std::mem::take(&mut self.runs), std::mem::take(&mut self.refused));
        let (dead_letters, pushed) =
            (std::mem::take(&mut self.dead_letters), std::mem::take(&mut self.pushed));
        Flushed { written, look, runs, refused, dead_letters, pushed }
    }
}

impl Pushed {
    /// Notes messages that a queue has taken.
    fn note(&mut self, target: &Target, messages: usize, evenness: Evenness) {
        self.messages += messages;
        self.uneven |= evenness != Evenness::Even;
        if evenness == Evenness::Pause && self.pauses.len() < UNEVEN_MAX {
            self.pauses.push(target.queue.clone());
        }
    }
}

/// What a copy of a message takes, near enough.
pub(super) const fn copy_bytes(message: &Draft<'_>) -> usize {
    message.body.len() + message.properties.len() + message.address.len() + 64
}
