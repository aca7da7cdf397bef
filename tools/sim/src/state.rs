//! The state of one group: the broker's real machines, and the messages in them. It changes by records alone.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use nexo_core::batch::{MessageBatch, relocate};
use nexo_core::config::{Backoff, DeadLetters, Fate, Overflow, QueueConfig};
use nexo_core::message::{NewMessage, Origin, StoredMessage};
use nexo_core::queue::{Applied, MessageEntry, NeedsPage, Outline, Queue};
use nexo_core::record::Record;
use nexo_log::{Entry, EntryKind, EntryRef, decode_entries, encode_entries};
use nexo_types::{Millis, Offset, QueueId, QueueName, Timestamp, varint};

use crate::machines::Machines;

/// Messages may be delivered as soon as their push is committed.
pub(crate) const PLAIN: QueueId = QueueId(1);
/// Messages are in groups, so a delivery waits for its lease, too.
pub(crate) const GROUPED: QueueId = QueueId(2);
/// Messages have priorities and lifetimes, and become dead letters: after three attempts, a rejection, their lifetime, or
/// because the queue is full.
pub(crate) const RICH: QueueId = QueueId(3);
/// Where these go.
pub(crate) const DEAD: QueueId = QueueId(4);
/// The time of a proposal.
pub(crate) const TIME: QueueId = QueueId(101);

/// How long a message stays with a consumer.
pub(crate) const VISIBILITY: Millis = Millis(2_000);

/// A record of one of the machines.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "few are there at a time, and nearly all are of queues")]
pub(crate) enum AnyRecord {
    Queue(QueueId, Record),
    Machine(QueueId, Bytes),
}

/// See the file.
#[derive(Debug)]
pub(crate) struct State {
    queues: BTreeMap<QueueId, Queue>,
    pub(crate) machines: Machines,
    /// The stored forms of messages, as a log has them.
    bodies: BTreeMap<(QueueId, Offset), (Timestamp, Bytes)>,
    /// The time of the last proposal: it never goes back.
    pub(crate) time: Timestamp,
}

impl State {
    pub(crate) fn new() -> Self {
        let names = [(PLAIN, "plain"), (GROUPED, "grouped"), (RICH, "rich"), (DEAD, "dead")];
        let queues = names.map(|(id, name)| (id, Queue::new(id, name_of(name), config_of(id), Timestamp(0))));
        let machines = Machines::new();
        Self { queues: queues.into(), machines, bodies: BTreeMap::new(), time: Timestamp(0) }
    }

    pub(crate) fn queue(&self, id: QueueId) -> &Queue {
        &self.queues[&id]
    }

    pub(crate) fn queue_mut(&mut self, id: QueueId) -> &mut Queue {
        self.queues.get_mut(&id).expect("all queues are there from the beginning")
    }

    pub(crate) fn queue_ids(&self) -> Vec<QueueId> {
        self.queues.keys().copied().collect()
    }

    /// Applies what an entry of the log says.
    pub(crate) fn apply_data(&mut self, data: &Bytes) {
        for entry in decode_entries(data).expect("an entry holds what was proposed") {
            self.apply_entry(&entry);
        }
    }

    /// Applies the part of it that is about queues.
    pub(crate) fn apply_queues(&mut self, data: &Bytes) {
        for entry in decode_entries(data).expect("an entry holds what was proposed") {
            if !Machines::owns(entry.queue) {
                self.apply_entry(&entry);
            }
        }
    }

    fn apply_entry(&mut self, entry: &Entry) {
        match entry.queue {
            TIME => self.time = time_in(entry),
            id if self.machines.apply(id, &entry.payload) => {}
            id => {
                let record = match entry.kind {
                    EntryKind::Messages => Record::Messages(batch_of(entry.payload.clone())),
                    _ => Record::decode(&entry.payload).expect("a record"),
                };
                self.apply_to_queue(id, &record);
            }
        }
    }

    pub(crate) fn apply(&mut self, record: &AnyRecord) -> Applied {
        match record {
            AnyRecord::Queue(id, record) => self.apply_to_queue(*id, record),
            AnyRecord::Machine(id, bytes) => {
                assert!(self.machines.apply(*id, bytes), "a machine that there is");
                Applied::default()
            }
        }
    }

    fn apply_to_queue(&mut self, id: QueueId, record: &Record) -> Applied {
        if let Record::Messages(batch) = record {
            self.keep(id, batch);
        }
        loop {
            match self.queue_mut(id).apply(record) {
                Ok(applied) => return applied,
                Err(missing) => self.supply(id, &missing),
            }
        }
    }

    fn keep(&mut self, id: QueueId, batch: &MessageBatch) {
        for item in batch.items() {
            self.bodies.insert((id, item.offset), (item.enqueued_at, batch.payload(item)));
        }
    }

    /// Brings into memory what a queue lacks.
    fn supply(&mut self, id: QueueId, NeedsPage(page): &NeedsPage) {
        let found = page.offsets.iter().map(|offset| {
            let (at, payload) = self.bodies.get(&(id, offset)).expect("a message that waits is stored");
            (offset, *at, payload.clone())
        });
        let found: Vec<_> = found.collect();
        let mut entries = Vec::new();
        for batch in relocate(&found) {
            for item in batch.items() {
                entries.push(MessageEntry::from_batch(&batch, item).expect("a stored message"));
            }
        }
        assert!(self.queue_mut(id).page_in(page, entries, Timestamp(0)), "it was asked for");
    }

    /// Brings the first messages into memory, so that they can be handed out.
    pub(crate) fn page_in_head(&mut self, id: QueueId) {
        while let Some(page) = self.queue(id).head_page() {
            self.supply(id, &NeedsPage(page));
        }
    }

    /// What a message says: its number.
    pub(crate) fn number_of(&self, id: QueueId, offset: Offset) -> Option<u64> {
        self.bodies.get(&(id, offset)).map(|(_, payload)| number_in(payload))
    }

    /// A message that may not be delivered again, as it goes into the queue of dead letters.
    pub(crate) fn dead_letter(&self, id: QueueId, offset: Offset, now: Timestamp) -> Option<NewMessage> {
        let dying = self.queue(id).dying(offset)?;
        let (_, payload) = self.bodies.get(&(id, offset)).expect("a message that dies is stored");
        let origin = Origin {
            reason: dying.reason,
            queue: self.queue(id).name().clone(),
            offset,
            attempts: dying.attempts,
            at: now,
            enqueued_at: dying.enqueued_at,
        };
        Some(StoredMessage::parse(payload).expect("a stored message").into_moved(Some(origin)))
    }

    /// The numbers of all messages in a queue, by offset.
    pub(crate) fn waiting(&self, id: QueueId) -> BTreeMap<Offset, u64> {
        let mut all = BTreeMap::new();
        self.queue(id).durable_messages(|first, count, _| {
            for offset in (first.0..first.0 + count).map(Offset) {
                let number = self.number_of(id, offset).expect("a message that waits is stored");
                all.insert(offset, number);
            }
        });
        all
    }

    /// All of it: the machines' snapshots and the messages that are left, the same on every node, to the byte.
    pub(crate) fn snapshot(&mut self) -> Bytes {
        let mut out = Vec::new();
        put(&mut out, &self.time.0.to_le_bytes());
        self.machines.snapshot(&mut out);
        for id in self.queue_ids() {
            let whole = self.queue(id).whole_snapshot();
            put(&mut out, &whole.head);
            varint::put(&mut out, whole.chunks.len() as u64);
            whole.chunks.iter().for_each(|chunk| put(&mut out, chunk));
            let left = self.waiting(id);
            self.bodies.retain(|(queue, offset), _| *queue != id || left.contains_key(offset));
            varint::put(&mut out, left.len() as u64);
            for offset in left.keys() {
                let (at, payload) = &self.bodies[&(id, *offset)];
                varint::put(&mut out, offset.0);
                varint::put(&mut out, at.0);
                put(&mut out, payload);
            }
        }
        out.into()
    }

    /// The state of a snapshot. No bytes are the state in the beginning.
    pub(crate) fn restore(bytes: &Bytes) -> Self {
        let mut state = Self::new();
        if bytes.is_empty() {
            return state;
        }
        let mut rest = &bytes[..];
        let time = take(&mut rest);
        state.time = Timestamp(u64::from_le_bytes(time.try_into().expect("eight bytes")));
        state.machines = Machines::restore(&mut rest);
        for id in state.queue_ids() {
            let head = take(&mut rest);
            let chunks: Vec<&[u8]> = (0..number(&mut rest)).map(|_| take(&mut rest)).collect();
            let queue = Queue::restore(head, chunks.into_iter()).expect("a snapshot");
            state.queues.insert(id, queue);
            for _ in 0..number(&mut rest) {
                let (offset, at) = (Offset(number(&mut rest)), Timestamp(number(&mut rest)));
                state.bodies.insert((id, offset), (at, Bytes::copy_from_slice(take(&mut rest))));
            }
        }
        state
    }

    /// In what two states differ, in words.
    pub(crate) fn difference(&self, other: &Self, now: Timestamp) -> String {
        let mut told: Vec<String> =
            self.machines.difference(&other.machines, now).into_iter().map(str::to_owned).collect();
        for id in self.queue_ids() {
            let (mine, others) = (self.queue(id).outline(now), other.queue(id).outline(now));
            if mine.next_offset != others.next_offset || mine.totals != others.totals {
                let figures = |outline: &Outline| (outline.next_offset, outline.totals);
                told.push(format!("queue {id}: {:?} and {:?}", figures(&mine), figures(&others)));
            }
            if self.queue(id).whole_snapshot() != other.queue(id).whole_snapshot() {
                told.push(format!("queue {id}: other bytes"));
            }
            if mine.dedup != others.dedup {
                told.push(format!("queue {id}: other deduplication ids"));
            }
            let offsets: BTreeSet<Offset> =
                mine.messages.keys().chain(others.messages.keys()).copied().collect();
            for offset in offsets {
                let (here, there) = (mine.messages.get(&offset), others.messages.get(&offset));
                if here != there {
                    told.push(format!("offset {offset} of queue {id}: {here:?} and {there:?}"));
                }
            }
        }
        told.truncate(4);
        told.join("; ")
    }

    /// What time alone brings happens.
    pub(crate) fn advance_time(&mut self, now: Timestamp) {
        for queue in self.queues.values_mut() {
            while queue.advance_time(now, 10_000) {}
        }
    }
}

fn name_of(name: &str) -> QueueName {
    QueueName::new(name).expect("a name")
}

/// What a queue is told to be.
pub(crate) fn config_of(id: QueueId) -> QueueConfig {
    let plain = QueueConfig {
        visibility: VISIBILITY,
        max_attempts: None,
        dedup_window: Millis::from_secs(7 * 86_400),
        ..QueueConfig::default()
    };
    if id != RICH {
        return plain;
    }
    QueueConfig {
        max_attempts: Some(3),
        dead_letters: DeadLetters::Queue(name_of("dead")),
        on_expiry: Fate::DeadLetter,
        on_overflow: Fate::DeadLetter,
        overflow: Overflow::DropOldest,
        max_messages: Some(25),
        retry: Backoff::Fixed { delay: Millis(300) },
        ..plain
    }
}

pub(crate) fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    varint::put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(crate) fn number(rest: &mut &[u8]) -> u64 {
    varint::take(rest).expect("a snapshot is read as it was written")
}

pub(crate) fn take<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let len = number(rest) as usize;
    let (bytes, after) = rest.split_at(len);
    *rest = after;
    bytes
}

fn batch_of(bytes: Bytes) -> MessageBatch {
    MessageBatch::decode_in(bytes, |_| None).expect("a batch")
}

fn time_in(entry: &Entry) -> Timestamp {
    Timestamp(varint::take(&mut &entry.payload[..]).expect("a time"))
}

/// The number that a stored message says.
pub(crate) fn number_in(payload: &Bytes) -> u64 {
    let message = StoredMessage::parse(payload).expect("a stored message");
    u64::from_le_bytes(message.body[..8].try_into().expect("eight bytes"))
}

/// The bytes of a proposal.
pub(crate) fn encode(now: Timestamp, records: &[AnyRecord]) -> Bytes {
    let mut time = Vec::new();
    varint::put(&mut time, now.0);
    let mut payloads = vec![(TIME, EntryKind::Record, Bytes::from(time))];
    payloads.extend(records.iter().map(|record| match record {
        AnyRecord::Queue(id, record @ Record::Messages(_)) => (*id, EntryKind::Messages, record.encode()),
        AnyRecord::Queue(id, record) => (*id, EntryKind::Record, record.encode()),
        AnyRecord::Machine(id, bytes) => (*id, EntryKind::Record, bytes.clone()),
    }));
    let entries: Vec<EntryRef<'_>> = payloads
        .iter()
        .map(|(queue, kind, payload)| EntryRef { queue: *queue, kind: *kind, spans: &[], payload })
        .collect();
    encode_entries(&entries)
}

/// What the books want to know of a proposal: its time, and the messages that it pushes.
pub(crate) fn look_into(data: &Bytes) -> (Timestamp, Vec<(QueueId, Offset, u64)>) {
    let mut time = Timestamp(0);
    let mut pushed = Vec::new();
    for entry in decode_entries(data).expect("an entry holds what was proposed") {
        match (entry.queue, entry.kind) {
            (TIME, _) => time = time_in(&entry),
            (queue, EntryKind::Messages) => {
                let batch = batch_of(entry.payload);
                let items = batch.items().iter();
                pushed.extend(items.map(|item| (queue, item.offset, number_in(&batch.payload(item)))));
            }
            _ => {}
        }
    }
    (time, pushed)
}
