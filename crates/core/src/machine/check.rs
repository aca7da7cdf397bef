//! What must hold for every machine, whatever it is: a decision changes nothing; a replay of all records, and a snapshot
//! with the records after it, give the state that the machine has itself; on every node the same records give the same
//! snapshot, to the byte; the times of its records do not fall; and what is due has been done when it has been asked for.

use std::collections::BTreeMap;

use bytes::Bytes;
use nexo_types::{Millis, Timestamp};

use super::{Machine, Step};
use crate::message::Durability;
use crate::queue::ChunkId;

/// What a test must know of a machine besides.
pub(crate) trait Checked: Machine {
    /// Reads a record back, with messages too.
    fn read_back(record: &Self::Record, bytes: Bytes) -> Self::Record;

    /// Brings into memory what applying a record lacks, as recovery does.
    fn supply(&mut self, missing: Self::Missing, log: &[Self::Record]);

    /// Something happens that is not the same on every node and no part of its state: memory is short.
    fn disturb(&mut self) {}

    /// What has it do, a part at a time, what time has brought and needs records. `None` if there is nothing of that kind.
    fn due(&self, now: Timestamp) -> Option<Self::Command> {
        let _ = now;
        None
    }

    /// What comes from outside, and is not in the log, when the machine is made or restored.
    fn prepare(&mut self);

    /// What is left of its state by a restart, to compare with.
    fn durable(&self, now: Timestamp) -> Self::Outline {
        self.outline(now)
    }
}

/// A machine, and everything that would be on disk.
struct Bench<M: Checked, F: Fn() -> M> {
    fresh: F,
    machine: M,
    /// Another node, which applies the same records.
    follower: M,
    now: Timestamp,
    /// The latest time that a record carries.
    latest: Timestamp,
    log: Vec<M::Record>,
    chunks: BTreeMap<ChunkId, Bytes>,
    saved: Option<(Bytes, BTreeMap<ChunkId, Bytes>, usize)>,
}

/// Gives a machine these commands, each after a time.
pub(crate) fn check<M: Checked>(fresh: impl Fn() -> M, commands: Vec<(Millis, M::Command)>) {
    let (mut machine, mut follower) = (fresh(), fresh());
    machine.prepare();
    follower.prepare();
    let (log, chunks) = (Vec::new(), BTreeMap::new());
    let latest = Timestamp(0);
    let mut bench = Bench { fresh, machine, follower, now: START, latest, log, chunks, saved: None };
    for (number, (wait, command)) in commands.into_iter().enumerate() {
        bench.now = bench.now.plus(wait);
        bench.advance_time();
        if number % 3 == 1 {
            bench.follower.disturb();
        }
        bench.obey(&command);
        if number % 4 == 3 {
            bench.do_what_is_due();
        }
        if number % 5 == 3 {
            bench.save();
        }
        if number % 7 == 6 {
            bench.compare();
        }
    }
    bench.compare();
}

pub(crate) const START: Timestamp = Timestamp(1_000_000);
/// No test has as much to do at one moment.
const DUE_ROUNDS_MAX: usize = 10_000;

impl<M: Checked, F: Fn() -> M> Bench<M, F> {
    fn advance_time(&mut self) {
        while self.machine.advance_time(self.now, 3) {}
        while self.follower.advance_time(self.now, 2) {}
    }

    /// As a timer does, which then sleeps until the next deadline: one that has passed already would keep it awake.
    fn do_what_is_due(&mut self) {
        for round in 0.. {
            assert!(round < DUE_ROUNDS_MAX, "what is due comes to an end");
            // Time brings a bounded number of things at once, and the next when these are done.
            self.advance_time();
            let Some(command) = self.machine.due(self.now) else { break };
            if self.obey(&command) == 0 {
                break;
            }
        }
        self.advance_time();
        if let Some(next) = self.machine.next_deadline(self.now) {
            assert!(
                next > self.now,
                "a deadline has passed although everything is done: {next} at {}",
                self.now
            );
        }
    }

    /// Gives back how many records that took.
    fn obey(&mut self, command: &M::Command) -> usize {
        let before = self.machine.outline(self.now);
        let decision = self.machine.decide(self.now, command);
        assert_eq!(self.machine.outline(self.now), before, "a decision changes nothing");
        let records = decision.steps.len();
        for Step { record, durability } in decision.steps {
            if let Some(time) = M::time_of(&record) {
                let allowed = self.latest..=self.now;
                assert!(allowed.contains(&time), "{time} is not in {allowed:?}: {record:?}");
                self.latest = time;
            }
            if durability == Durability::Durable {
                // What is replayed has been through bytes.
                let read = M::read_back(&record, M::encode(&record));
                assert_eq!(read, record, "a record reads back as it was written");
                self.log.push(read);
            }
            let applied = self.machine.apply(&record, durability);
            while let Err(missing) = self.follower.apply(&record, durability) {
                self.follower.supply(missing, &self.log);
            }
            assert!(applied.is_ok(), "a decision names only what is in memory");
        }
        records
    }

    /// Takes a snapshot, of what has changed since the one before.
    fn save(&mut self) {
        let known: Vec<ChunkId> = self.chunks.keys().copied().collect();
        let stale: Vec<ChunkId> = known.iter().copied().step_by(3).collect();
        let head = self.machine.begin_snapshot(known.iter().copied(), &stale);
        assert_eq!(self.follower.begin_snapshot(known.into_iter(), &stale), head, "every node has the same");
        loop {
            let slice = self.machine.next_chunks(1, usize::MAX).expect("nothing cancels it");
            let followers = self.follower.next_chunks(1, usize::MAX).expect("nothing cancels it");
            assert_eq!(followers.chunks, slice.chunks, "every node has the same");
            for (chunk, bytes) in slice.chunks {
                if bytes.is_empty() {
                    self.chunks.remove(&chunk);
                } else {
                    self.chunks.insert(chunk, bytes);
                }
            }
            if !slice.more {
                break;
            }
        }
        self.saved = Some((head, self.chunks.clone(), self.log.len()));
    }

    fn compare(&self) {
        let durable = self.machine.durable(self.now);
        let mut replayed = (self.fresh)();
        replayed.prepare();
        self.apply_from(&mut replayed, 0);
        assert_eq!(replayed.durable(self.now), durable, "a replay gives the same state");
        let Some((head, chunks, records)) = &self.saved else { return };
        let mut restored = M::restore(head, chunks.values().map(|bytes| &bytes[..])).unwrap();
        restored.prepare();
        self.apply_from(&mut restored, *records);
        assert_eq!(restored.durable(self.now), durable, "a snapshot and the records after it do, too");
    }

    fn apply_from(&self, machine: &mut M, from: usize) {
        for (index, record) in self.log.iter().enumerate().skip(from) {
            while let Err(missing) = machine.apply(record, Durability::Durable) {
                machine.supply(missing, &self.log[..=index]);
            }
        }
        while machine.advance_time(self.now, 3) {}
    }
}
