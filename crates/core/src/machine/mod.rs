//! What all state machines have in common.
//!
//! A machine *decides* what a command comes to, and changes nothing. What it decided is written down, and then it
//! *applies* the records, which is the only way its durable state changes: the same records in the same order give the
//! same state, after a crash, on a follower and in a test. A *snapshot* stands for all records before it. Recovery,
//! checkpoints, timers and the tests of this file's neighbour `check` work with this trait, whatever the machine.
//!
//! [`Queue`](crate::queue::Queue), [`Topology`](crate::topology::Topology) and [`Jobs`](crate::jobs::Jobs) are some of them. Where every message counts, the
//! broker calls the methods of a queue that a command stands for directly, and does without the command.

#[cfg(test)]
pub(crate) mod check;

use std::fmt;

use bytes::Bytes;
use nexo_types::Timestamp;

use crate::message::Durability;
use crate::queue::{ChunkId, ChunkSlice};
use crate::wire::WireError;

/// A state machine: see the file.
pub trait Machine: Sized {
    /// What somebody, or time, wants of it.
    type Command;
    /// What whoever gave the command is told.
    type Answer;
    /// One thing that happened to it.
    type Record: Clone + fmt::Debug + PartialEq;
    /// What applying a record gives back.
    type Applied;
    /// What must come into memory before a record can be applied. Only a replay meets it: a decision names nothing that
    /// is not in memory.
    type Missing: fmt::Debug;
    /// Its durable state in plain words, for comparing one machine with another.
    type Outline: fmt::Debug + PartialEq;

    /// Decides what a command comes to at `now`. Nothing changes.
    fn decide(&self, now: Timestamp, command: &Self::Command) -> Decision<Self::Record, Self::Answer>;

    /// Applies a record. One that is replayed is durable.
    ///
    /// # Errors
    /// If something must come into memory first. What was done before that is not done twice.
    fn apply(
        &mut self,
        record: &Self::Record,
        durability: Durability,
    ) -> Result<Self::Applied, Self::Missing>;

    /// The bytes to write down.
    fn encode(record: &Self::Record) -> Bytes;

    /// Reads a record back. Messages are not read so: some lie beside the record, in its frame.
    ///
    /// # Errors
    /// If the bytes are not a record.
    fn decode(bytes: &[u8]) -> Result<Self::Record, WireError>;

    /// Time passes: what follows from that alone, without a record, happens, as far as `max` allows. Says whether there is
    /// more of it.
    fn advance_time(&mut self, now: Timestamp, max: usize) -> bool {
        let _ = (now, max);
        false
    }

    /// When it next needs attention without being asked, if ever.
    fn next_deadline(&self, now: Timestamp) -> Option<Timestamp> {
        let _ = now;
        None
    }

    /// Begins a snapshot, and gives back its head. `known` are the chunks that earlier snapshots wrote; `stale` those of
    /// them that are to be written again although they have not changed.
    fn begin_snapshot(&mut self, known: impl Iterator<Item = ChunkId>, stale: &[ChunkId]) -> Bytes;

    /// The next chunks of the snapshot, as many as one hold of a lock should encode. `None` if the snapshot has been
    /// cancelled, or none was begun.
    fn next_chunks(&mut self, chunks_max: usize, items_max: usize) -> Option<ChunkSlice>;

    /// Whether this chunk has changed since the last snapshot was begun.
    fn has_chunk_changed(&self, chunk: ChunkId) -> bool {
        let _ = chunk;
        false
    }

    /// The snapshot that was begun comes to nothing. `taken` are the chunks that [`Self::next_chunks`] gave for it.
    fn abandon_snapshot(&mut self, taken: &[ChunkId]) {
        let _ = taken;
    }

    /// The broker's time that a record carries, if it carries one. No later record may carry an earlier one, and a start begins
    /// its clock behind the latest.
    ///
    /// What the calendar says is another time, and is not told here. Schedules follow the wall clock wherever somebody sets it,
    /// back too, so the times in their records may fall; and a date that was wrong once must not hold leases up ever after.
    fn time_of(record: &Self::Record) -> Option<Timestamp> {
        let _ = record;
        None
    }

    /// The machine in the state of a snapshot, whose chunks come in the order of their numbers.
    ///
    /// # Errors
    /// If the bytes are not a snapshot.
    fn restore<'a>(head: &[u8], chunks: impl Iterator<Item = &'a [u8]>) -> Result<Self, WireError>;

    /// Its durable state at `now`.
    fn outline(&self, now: Timestamp) -> Self::Outline;
}

/// What a command comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Decision<R, A> {
    /// To be written down as far as they are durable, and applied, in this order.
    pub steps: Vec<Step<R>>,
    /// For whoever gave the command, once what was written down is safe.
    pub answer: A,
}

/// A record, and whether it must be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<R> {
    /// What happens.
    pub record: R,
    /// Whether it outlives a restart.
    pub durability: Durability,
}

impl<R, A> Decision<R, A> {
    /// Records that are all written down, or all not.
    pub(crate) fn of(records: impl IntoIterator<Item = R>, durable: bool, answer: A) -> Self {
        let durability = if durable { Durability::Durable } else { Durability::Transient };
        Self { steps: records.into_iter().map(|record| Step { record, durability }).collect(), answer }
    }
}
