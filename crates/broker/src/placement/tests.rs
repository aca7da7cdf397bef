//! A placement beside a queue, against a naive count: random pushes, deliveries, settlements, purges, copies, paging and
//! restarts, by a replay of everything and by a snapshot with the records after it.

use nexo_core::batch::{self, BatchKind};
use nexo_core::config::QueueConfig;
use nexo_core::machine::Machine;
use nexo_core::message::{Durability, NewMessage};
use nexo_core::offsets::OffsetSet;
use nexo_core::queue::{Admission, ChunkId, MessageEntry, NeedsPage, Queue, QueueCommand, ReturnCause};
use nexo_core::record::{Leave, Record};
use nexo_types::{GroupId, Millis, Offset, Position, Priority, QueueId, QueueName, SegmentId, Timestamp};
use proptest::prelude::*;

use super::*;

/// Records that share a segment.
const SEGMENT_RECORDS: u32 = 5;

#[derive(Clone, Debug)]
enum Op {
    Push {
        count: u8,
        priority: u8,
        bytes: u16,
        delay: u8,
        group: Option<u8>,
        durable: bool,
    },
    Take(usize),
    Settle(u8),
    Return(u8),
    Purge,
    Clear,
    Wait(u8),
    PageOut,
    /// Everything in one of the segments is copied forward, or only every second message.
    Copy {
        segment: u32,
        all: bool,
    },
    Checkpoint,
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (1u8..6, 0u8..3, 0u16..300, 0u8..60, prop::option::weighted(0.2, 0u8..2), prop::bool::weighted(0.8)).prop_map(
            |(count, priority, bytes, delay, group, durable)| Op::Push {
                count,
                priority,
                bytes,
                delay: if delay < 40 { 0 } else { delay },
                // A group whose head is transient is another group after a restart.
                group: group.filter(|_| durable),
                durable,
            }
        ),
        5 => (1usize..8).prop_map(Op::Take),
        5 => any::<u8>().prop_map(Op::Settle),
        2 => any::<u8>().prop_map(Op::Return),
        1 => Just(Op::Purge),
        1 => Just(Op::Clear),
        3 => (0u8..50).prop_map(Op::Wait),
        2 => Just(Op::PageOut),
        5 => (any::<u32>(), any::<bool>()).prop_map(|(segment, all)| Op::Copy { segment, all }),
        2 => Just(Op::Checkpoint),
        2 => Just(Op::Restart),
    ]
}

struct Saved {
    head: bytes::Bytes,
    chunks: BTreeMap<ChunkId, bytes::Bytes>,
    placement: Vec<u8>,
    records: usize,
}

/// A queue, its placement, and a log that knows where everything was written.
struct Rig {
    queue: Queue,
    placement: Placement,
    now: Timestamp,
    log: Vec<(Position, Record)>,
    /// Where each message was last written, and in which batch.
    written: BTreeMap<Offset, (SegmentId, MessageBatch)>,
    /// What the log was told.
    accounted: BTreeMap<SegmentId, i64>,
    chunks: BTreeMap<ChunkId, bytes::Bytes>,
    saved: Option<Saved>,
}

fn queue() -> Queue {
    let name = QueueName::new("q").unwrap();
    Queue::new(QueueId(1), name, QueueConfig::default(), Timestamp(1000))
}

fn account(accounted: &mut BTreeMap<SegmentId, i64>) -> impl FnMut(SegmentId, i64) {
    |segment, bytes| *accounted.entry(segment).or_default() += bytes
}

impl Rig {
    fn new() -> Self {
        Self {
            queue: queue(),
            placement: Placement::default(),
            now: Timestamp(1000),
            log: Vec::new(),
            written: BTreeMap::new(),
            accounted: BTreeMap::new(),
            chunks: BTreeMap::new(),
            saved: None,
        }
    }

    fn write(&mut self, record: &Record) -> Position {
        let count = self.log.len() as u32;
        let at = Position { segment: SegmentId(1 + count / SEGMENT_RECORDS), byte: count };
        if let Record::Messages(batch) = record {
            for item in batch.items() {
                self.written.insert(item.offset, (at.segment, batch.clone()));
            }
        }
        self.log.push((at, record.clone()));
        at
    }

    fn obey(&mut self, command: &QueueCommand) {
        for step in self.queue.decide(self.now, command).steps {
            let is_durable = step.durability == Durability::Durable;
            let at = if is_durable { self.write(&step.record) } else { Position::default() };
            let applied = self.queue.apply(&step.record).expect("a decision names what is in memory");
            let removed = applied.removed.is_some();
            self.placement.follow(&mut self.queue, at, removed, account(&mut self.accounted));
        }
    }

    fn read(written: &BTreeMap<Offset, (SegmentId, MessageBatch)>, offset: Offset) -> MessageEntry {
        let batch = &written[&offset].1;
        MessageEntry::from_batch(batch, batch.find(offset).unwrap()).unwrap()
    }

    /// All that is not in memory and comes next, read from where the placement says.
    fn page_in(&mut self) {
        while let Some(page) = self.queue.head_page() {
            let page = self.placement.place(&page);
            let read = |offset: Offset| {
                assert_eq!(self.written[&offset].0, page.segment, "a page lies in one segment");
                Self::read(&self.written, offset)
            };
            let entries = page.request.offsets.iter().map(read).collect();
            assert!(self.queue.page_in(&page.request, entries, self.now));
        }
    }

    fn some_held(&self, pick: u8) -> Vec<(Offset, u32)> {
        let outline = self.queue.outline(self.now);
        let held = outline.messages.iter().filter(|(offset, _)| self.queue.is_held(**offset));
        let held: Vec<_> = held.map(|(offset, state)| (*offset, state.attempts)).collect();
        held.iter().copied().skip(usize::from(pick) % (held.len() + 1)).take(3).collect()
    }

    fn copy(&mut self, segment: SegmentId, all: bool) {
        let mut from = Offset(0);
        let mut alive = Vec::new();
        while let Some(part) = self.placement.next_part(segment, from, 3) {
            let (start, end) = (Offset(part.start), Offset(part.end));
            let mut found = self.queue.loose_in(start, end);
            found.extend(self.queue.in_lanes(start, end));
            let here = found.into_iter().map(|(_, offset)| offset);
            alive.extend(here.filter(|offset| self.placement.segment_of(*offset) == segment));
            from = end;
        }
        alive.sort_unstable();
        let lies_there = |offset: &Offset| self.written[offset].0 == segment;
        let expected: Vec<Offset> =
            self.queue.outline(self.now).messages.into_keys().filter(lies_there).collect();
        assert_eq!(alive, expected, "all that is alive in a segment is found");
        let copied = alive.into_iter().enumerate().filter(|(at, _)| all || at % 2 == 0);
        let messages: Vec<_> = copied
            .map(|(_, offset)| {
                let entry = Self::read(&self.written, offset);
                (offset, entry.enqueued_at, entry.payload.unwrap())
            })
            .collect();
        for batch in batch::relocate(&messages) {
            let at = self.write(&Record::Messages(batch.clone()));
            self.placement.relocate(&batch, at, account(&mut self.accounted));
        }
    }

    fn checkpoint(&mut self) {
        let known: Vec<ChunkId> = self.chunks.keys().copied().collect();
        let head = self.queue.begin_snapshot(known.into_iter(), &[]);
        for (chunk, bytes) in self.queue.next_chunks(usize::MAX, usize::MAX).unwrap().chunks {
            if bytes.is_empty() {
                self.chunks.remove(&chunk);
            } else {
                self.chunks.insert(chunk, bytes);
            }
        }
        let placement = self.placement.encode();
        self.saved = Some(Saved { head, chunks: self.chunks.clone(), placement, records: self.log.len() });
    }

    /// Applies all records from this one on, as recovery does.
    fn replay(&self, queue: &mut Queue, placement: &mut Placement, from: usize) {
        for (at, record) in &self.log[from..] {
            if let Record::Messages(batch) = record
                && batch.kind() == BatchKind::Relocated
            {
                placement.replay_copies(queue, batch, *at);
                continue;
            }
            let applied = loop {
                match queue.apply(record) {
                    Ok(applied) => break applied,
                    Err(NeedsPage(page)) => {
                        let page = placement.place(&page);
                        let read = |offset| Self::read(&self.written, offset);
                        let entries = page.request.offsets.iter().map(read).collect();
                        assert!(queue.page_in(&page.request, entries, Timestamp(0)));
                    }
                }
            };
            placement.follow(queue, *at, applied.removed.is_some(), |_, _| ());
        }
    }

    fn restart(&mut self) {
        let (mut all, mut placed) = (queue(), Placement::default());
        self.replay(&mut all, &mut placed, 0);
        self.check(&all, &placed);
        if let Some(saved) = &self.saved {
            let chunks = saved.chunks.values().map(|bytes| &bytes[..]);
            all = Queue::restore(&saved.head, chunks).unwrap();
            placed = Placement::decode(&saved.placement).unwrap();
            assert_eq!(placed.encode(), saved.placement, "it reads back as it was written");
            self.replay(&mut all, &mut placed, saved.records);
            self.check(&all, &placed);
        }
        all.finish_recovery();
        (self.queue, self.placement) = (all, placed);
        self.chunks = self.saved.as_ref().map(|saved| saved.chunks.clone()).unwrap_or_default();
        self.accounted.clear();
        for (segment, bytes) in self.placement.bytes_by_segment() {
            account(&mut self.accounted)(segment, bytes as i64);
        }
    }

    /// Counts again, from where each message that is in the queue was last written.
    fn check(&self, queue: &Queue, placement: &Placement) {
        let mut messages: BTreeMap<SegmentId, u64> = BTreeMap::new();
        let mut bytes: BTreeMap<SegmentId, u64> = BTreeMap::new();
        for offset in queue.outline(self.now).messages.into_keys() {
            let segment = self.written[&offset].0;
            assert_eq!(placement.segment_of(offset), segment, "where message {offset} lies is known");
            *messages.entry(segment).or_default() += 1;
            *bytes.entry(segment).or_default() += u64::from(Self::read(&self.written, offset).stored_bytes);
        }
        assert_eq!(placement.messages_by_segment(), messages, "messages are counted");
        let mut counted: BTreeMap<SegmentId, u64> = BTreeMap::new();
        for (segment, bytes) in placement.bytes_by_segment() {
            *counted.entry(segment).or_default() += bytes;
        }
        assert_eq!(counted, bytes, "bytes are counted");
        let last = placement.extents.windows(2).all(|pair| pair[0].end <= pair[1].first);
        assert!(last, "extents do not overlap");
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Push { count, priority, bytes, delay, group, durable } => {
                let message = NewMessage {
                    priority: Priority(*priority),
                    delay: Millis((*delay).into()),
                    group: group.map(|id| GroupId::new(&id.to_string()).unwrap()),
                    durability: if *durable { Durability::Durable } else { Durability::Transient },
                    ..NewMessage::new(vec![1; usize::from(*bytes)])
                };
                let messages = vec![message; usize::from(*count)];
                self.obey(&QueueCommand::Push(messages, Admission::Checked));
            }
            Op::Take(max) => {
                self.page_in();
                self.obey(&QueueCommand::Take(*max));
            }
            Op::Settle(pick) => self.obey(&QueueCommand::Ack(self.some_held(*pick))),
            Op::Return(pick) => {
                let cause = ReturnCause::Nack(Some(Millis((*pick % 40).into())));
                self.obey(&QueueCommand::Return(self.some_held(*pick), cause));
            }
            Op::Purge => self.obey(&QueueCommand::Purge),
            Op::Clear => self.obey(&QueueCommand::Clear),
            Op::Wait(ms) => {
                self.now = self.now.plus(Millis((*ms).into()));
                while self.queue.advance_time(self.now, 10) {}
                self.obey(&QueueCommand::Due(10));
            }
            Op::PageOut => self.queue.page_out(u64::MAX),
            Op::Copy { segment, all } => {
                // Copying is for sealed segments; the last one is still being written.
                let sealed = self.log.len() as u32 / SEGMENT_RECORDS;
                if sealed > 0 {
                    self.copy(SegmentId(1 + segment % sealed), *all);
                }
            }
            Op::Checkpoint => self.checkpoint(),
            Op::Restart => self.restart(),
        }
        self.check(&self.queue, &self.placement);
        let mut accounted = self.accounted.clone();
        for (segment, bytes) in self.placement.bytes_by_segment() {
            *accounted.entry(segment).or_default() -= bytes as i64;
        }
        assert!(accounted.values().all(|left| *left == 0), "the log was told all: {accounted:?}");
        let before = self.placement.messages_by_segment();
        self.placement.recount(&self.queue);
        assert_eq!(self.placement.messages_by_segment(), before, "counting again comes to the same");
        // Bytes of what is not in memory are shares then.
        self.accounted.clear();
        self.placement = restored(&self.placement, &self.queue, &self.written);
        for (segment, bytes) in self.placement.bytes_by_segment() {
            account(&mut self.accounted)(segment, bytes as i64);
        }
    }
}

/// The placement as an earlier version would have written it, read back.
fn restored(
    placement: &Placement,
    queue: &Queue,
    written: &BTreeMap<Offset, (SegmentId, MessageBatch)>,
) -> Placement {
    let mut old = OldPlaces::default();
    queue.durable_messages(|first, count, _| {
        for offset in first.0..first.0 + count {
            let entry = Rig::read(written, Offset(offset));
            old.add(nexo_core::queue::StoredIn {
                offsets: &OffsetSet::one(Offset(offset)),
                bytes: entry.stored_bytes.into(),
                file: written[&Offset(offset)].0.0,
            });
        }
    });
    let read = old.into_placement();
    assert_eq!(read.messages_by_segment(), placement.messages_by_segment());
    read
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 5_000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_alive_in_each_segment_is_known(ops in prop::collection::vec(op(), 1..60)) {
        let mut rig = Rig::new();
        for op in &ops {
            rig.step(op);
        }
        rig.step(&Op::Restart);
    }
}

#[test]
fn a_later_version_is_refused_by_name() {
    let error = Placement::decode(&[9, 1, 2, 3]).unwrap_err();
    assert!(error.to_string().contains("version 9"), "{error}");
    let mut placement = Placement::default();
    let change = UsageChange { first: Offset(5), messages: 10, bytes_each: 40, way: Way::In };
    placement.join(change, SegmentId(3), &mut Deltas::new(|_, _| ()));
    placement.copies.add(SegmentId(4), 2, 40);
    let bytes = placement.encode();
    assert_eq!(Placement::decode(&bytes).unwrap().encode(), bytes);
    for cut in 0..bytes.len() {
        assert!(Placement::decode(&bytes[..cut]).is_err(), "{cut} bytes");
    }
}

/// A backlog costs no more for being strewn: what is copied of it is two bytes a message at most, and less where it is dense.
#[test]
fn extents_are_as_many_as_segments() {
    let (mut placement, mut queue) = (Placement::default(), queue());
    let mut at = Position { segment: SegmentId(1), byte: 0 };
    for batch in 0..100 {
        at.segment = SegmentId(1 + batch / 10);
        let plan = queue.decide_push(Timestamp(1000), &vec![NewMessage::new("x"); 100], Admission::Checked);
        for (_, batch) in plan.batches {
            queue.apply(&Record::Messages(batch)).unwrap();
            placement.follow(&mut queue, at, false, |_, _| ());
        }
    }
    assert_eq!(placement.extents.len(), 10);
    queue.page_out(u64::MAX);
    let why = Leave::Acked;
    let picks = vec![nexo_core::record::Pick { lane: Priority(0), offsets: (0..1500).map(Offset).collect() }];
    let drop = Record::Drop { picks, why, at: Timestamp(1000) };
    while let Err(NeedsPage(page)) = queue.apply(&drop) {
        let page = placement.place(&page).request;
        let entries = page.offsets.iter().map(|offset| MessageEntry::lost(offset, page.lane)).collect();
        assert!(queue.page_in(&page, entries, Timestamp(0)));
    }
    placement.follow(&mut queue, at, false, |_, _| ());
    assert_eq!(placement.extents.len(), 9, "what is empty is gone");
    assert_eq!(placement.extents[0].alive.messages, 500);
}

#[test]
fn a_purge_tells_of_no_segment_that_it_is_empty_while_something_is_held() {
    let extent = |first, segment| Extent {
        first,
        end: first + 10,
        segment: SegmentId(segment),
        alive: Alive { messages: 10, bytes: 1000 },
    };
    let mut placement = Placement { extents: vec![extent(0, 3), extent(10, 4)], ..Placement::default() };
    let mut alive: BTreeMap<SegmentId, i64> = [(SegmentId(3), 1000), (SegmentId(4), 1000)].into();
    let mut deltas = Deltas::new(|segment, bytes| {
        let bytes_alive = alive.entry(segment).or_default();
        *bytes_alive += bytes;
        assert!(*bytes_alive > 0, "{segment} holds a message");
    });
    placement.keep_only([(Offset(5), 100), (Offset(15), 100)].into_iter(), &mut deltas);
    deltas.finish();
    assert_eq!(alive, [(SegmentId(3), 100), (SegmentId(4), 100)].into());
}
