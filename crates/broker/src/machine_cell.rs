//! A state machine that is not a queue, of which there is one: behind a lock, with its records in the journal and its
//! snapshot in checkpoints. What is here holds for any machine that is in memory as a whole: exchanges and bindings
//! (`exchanges.rs`), users (`access_cell.rs`), policies (`policies.rs`), schedules (`schedules.rs`) and job queues (`jobs/`).
//! `machines.rs` has the list of them.

use std::collections::BTreeSet;
use std::convert::Infallible;

use nexo_core::machine::{Machine, Step};
use nexo_core::message::Durability;
use nexo_core::queue::ChunkId;
use nexo_log::{Claim, EntryKind, EntryRef, Patience, Urgency};
use nexo_types::{Position, QueueId, Timestamp};

use crate::journal::{Encoded, ProposeError, Proposed, Written};
use crate::manifest::{Demand, Snapshot};
use crate::ordered_mutex::{OrderedMutex, Rank};
use crate::shared::Shared;
use crate::snapshots::{SLICE_CHUNKS, SLICE_MESSAGES, note_chunks};

/// A machine, its lock, and what is known of its records and snapshots.
#[derive(Debug)]
pub(crate) struct MachineCell<M> {
    /// Its records and snapshots are written under this id, which no queue has.
    id: QueueId,
    state: OrderedMutex<State<M>>,
}

#[derive(Debug)]
struct State<M> {
    machine: M,
    /// The latest change that was written down, which may not be safe yet.
    last_change: Written,
    /// It has changed since the snapshot.
    dirty: bool,
    snapshot: Snapshot,
}

impl<M> From<Replayed<M>> for State<M> {
    fn from(Replayed { machine, snapshot }: Replayed<M>) -> Self {
        Self { machine, last_change: Written::NOTHING, dirty: true, snapshot }
    }
}

/// A change that was written down, if it had to be, and applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changed {
    /// Its frame.
    pub(crate) at: Position,
    /// What to wait for before anybody is told.
    pub(crate) written: Written,
}

/// All of a machine at one moment: its id, and the head and the chunks of a snapshot.
pub(crate) type WholeMachine = (QueueId, bytes::Bytes, Vec<(ChunkId, bytes::Bytes)>);

/// What two machines are to do.
type BothSteps<A, B> = (Vec<Step<<A as Machine>::Record>>, Vec<Step<<B as Machine>::Record>>);

impl<M: Machine<Missing = Infallible>> State<M> {
    /// Applies steps, of which those that are durable have been proposed.
    fn take(&mut self, steps: &[Step<M::Record>], proposed: Proposed) {
        if steps.iter().any(|step| step.durability == Durability::Durable) {
            self.last_change = proposed.written.with(Urgency::Synced);
            self.dirty = true;
        }
        for step in steps {
            let Ok(_) = self.machine.apply(&step.record, step.durability);
        }
    }
}

/// What is written down of steps.
fn payloads_of<M: Machine>(steps: &[Step<M::Record>]) -> Vec<bytes::Bytes> {
    let durable = steps.iter().filter(|step| step.durability == Durability::Durable);
    durable.map(|step| M::encode(&step.record)).collect()
}

/// What brings in more than it frees leaves the rest of a full disk, and of a busy one, to others.
const fn patience_of(claim: Claim) -> Patience {
    match claim {
        Claim::Normal => Patience::Refuse,
        Claim::Reserved | Claim::Checkpoint => Patience::RefuseLast,
    }
}

impl<M: Machine<Missing = Infallible>> MachineCell<M> {
    /// What was in the log, with its latest snapshot.
    pub(crate) fn new(id: QueueId, rank: Rank, restored: Replayed<M>) -> Self {
        Self { id, state: OrderedMutex::new(rank, restored.into()) }
    }

    /// A record of it, as an entry of a frame.
    const fn entry<'a>(&self, payload: &'a [u8]) -> EntryRef<'a> {
        EntryRef { queue: self.id, kind: EntryKind::Record, spans: &[], payload }
    }

    /// Looks at it, and at the latest change that was written down.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&M, Written) -> R) -> R {
        let state = self.state.lock();
        look(&state.machine, state.last_change)
    }

    /// Changes it without writing that down.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut M) -> R) -> R {
        change(&mut self.state.lock().machine)
    }

    /// The latest change that was written down.
    pub(crate) fn last_change(&self) -> Written {
        self.state.lock().last_change
    }

    /// Its latest snapshot.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.state.lock().snapshot.clone()
    }

    /// All of it as it is now: its id, the head and the chunks of a snapshot. No other snapshot may be under way.
    ///
    /// # Errors
    /// If the machine gives none.
    pub(crate) fn whole(&self) -> Result<WholeMachine, String> {
        let mut state = self.state.lock();
        let State { machine, snapshot, dirty, .. } = &mut *state;
        let known: Vec<ChunkId> = snapshot.chunks.keys().copied().collect();
        let head = machine.begin_snapshot(known.iter().copied(), &known);
        let (mut taken, mut chunks) = (Vec::new(), Vec::new());
        let is_whole = loop {
            let Some(slice) = machine.next_chunks(SLICE_CHUNKS, SLICE_MESSAGES) else { break false };
            for (id, bytes) in slice.chunks {
                taken.push(id);
                if !bytes.is_empty() {
                    chunks.push((id, bytes));
                }
            }
            if !slice.more {
                break true;
            }
        };
        // It was not written down.
        machine.abandon_snapshot(&taken);
        *dirty = true;
        is_whole.then_some((self.id, head, chunks)).ok_or_else(|| "a machine gives no snapshot now".into())
    }

    /// Applies a record that another node has written down. `applied` sees the machine afterwards, under its lock.
    ///
    /// # Errors
    /// If the bytes are not a record.
    pub(crate) fn follow(&self, payload: &[u8], applied: impl FnOnce(&M)) -> Result<(), String> {
        let record = M::decode(payload).map_err(|error| error.to_string())?;
        let mut state = self.state.lock();
        let Ok(_) = state.machine.apply(&record, Durability::Durable);
        applied(&state.machine);
        Ok(())
    }

    /// Has another in its place, which `adapt` sees together with the one there was.
    pub(crate) fn replace(&self, mut restored: Replayed<M>, adapt: impl FnOnce(&M, &mut M)) {
        let mut state = self.state.lock();
        adapt(&state.machine, &mut restored.machine);
        *state = restored.into();
    }
}

impl Shared {
    /// Decides, writes down and applies a change of a machine, with records of queues in the same frame. `applied` sees the
    /// machine afterwards, under its lock, if it has changed. Where nothing is written down, the caller waits for the latest
    /// change before it: that everything is as asked for, or could be done, may be due to one that is not safe yet.
    ///
    /// # Errors
    /// If the log does not take it; then nothing has changed. It does not wait for room: it is busy.
    pub(crate) fn change_machine<M: Machine<Missing = Infallible>, E>(
        &self,
        cell: &MachineCell<M>,
        beside: &[Encoded],
        decide: impl FnOnce(&M) -> Result<Vec<Step<M::Record>>, E>,
        urgency: Urgency,
        claim: Claim,
        applied: impl FnOnce(&M),
    ) -> Result<Result<Changed, E>, ProposeError> {
        let decide = |machine: &mut M| decide(machine);
        self.change_advanced(cell, beside, decide, urgency, claim, |machine, _| applied(machine))
    }

    /// The same. Before it decides, `decide` may have time pass for the machine.
    pub(crate) fn change_advanced<M: Machine<Missing = Infallible>, E>(
        &self,
        cell: &MachineCell<M>,
        beside: &[Encoded],
        decide: impl FnOnce(&mut M) -> Result<Vec<Step<M::Record>>, E>,
        urgency: Urgency,
        claim: Claim,
        applied: impl FnOnce(&mut M, Proposed),
    ) -> Result<Result<Changed, E>, ProposeError> {
        let mut state = cell.state.lock();
        let steps = match decide(&mut state.machine) {
            Ok(steps) => steps,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let payloads = payloads_of::<M>(&steps);
        let mut proposed = Proposed { at: Position::default(), written: state.last_change };
        if !payloads.is_empty() || !beside.is_empty() {
            let own = payloads.iter().map(|payload| cell.entry(payload));
            let entries: Vec<EntryRef<'_>> = beside.iter().map(Encoded::as_entry).chain(own).collect();
            proposed = self.journal.propose(&entries, urgency, claim, patience_of(claim))?;
        }
        if !steps.is_empty() {
            state.take(&steps, proposed);
            applied(&mut state.machine, proposed);
        }
        Ok(Ok(Changed { at: proposed.at, written: proposed.written }))
    }

    /// Decides, writes down and applies changes of two machines in one frame: a crash leaves both of them or none. The first is
    /// locked before the second, so nobody may hold the second while he waits for the first.
    ///
    /// # Errors
    /// As [`Self::change_machine`]. Something must be written down of one of them at least.
    pub(crate) fn change_both<A, B, E>(
        &self,
        (first, second): (&MachineCell<A>, &MachineCell<B>),
        decide: impl FnOnce(&A, &B) -> Result<BothSteps<A, B>, E>,
        urgency: Urgency,
        claim: Claim,
        applied: impl FnOnce(&A),
    ) -> Result<Result<Changed, E>, ProposeError>
    where
        A: Machine<Missing = Infallible>,
        B: Machine<Missing = Infallible>,
    {
        let (mut one, mut other) = (first.state.lock(), second.state.lock());
        let (steps, other_steps) = match decide(&one.machine, &other.machine) {
            Ok(steps) => steps,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let (payloads, other_payloads) = (payloads_of::<A>(&steps), payloads_of::<B>(&other_steps));
        let others = other_payloads.iter().map(|payload| second.entry(payload));
        let entries: Vec<EntryRef<'_>> =
            payloads.iter().map(|payload| first.entry(payload)).chain(others).collect();
        let proposed = self.journal.propose(&entries, urgency, claim, patience_of(claim))?;
        one.take(&steps, proposed);
        other.take(&other_steps, proposed);
        applied(&one.machine);
        Ok(Ok(Changed { at: proposed.at, written: proposed.written }))
    }

    /// The latest snapshot of a machine, of which is written what has changed, and what does not meet the demand.
    pub(crate) fn snapshot_machine<M: Machine<Missing = Infallible>>(
        &self,
        cell: &MachineCell<M>,
        demand: Demand<'_>,
    ) -> Result<Snapshot, ProposeError> {
        loop {
            let (at, head, was_dirty, again) = {
                let mut state = cell.state.lock();
                let State { machine, snapshot, dirty, .. } = &mut *state;
                let again: BTreeSet<ChunkId> = snapshot
                    .chunks
                    .iter()
                    .filter(|(id, chunk)| !chunk.will_do(demand) && !machine.has_chunk_changed(**id))
                    .map(|(id, _)| *id)
                    .collect();
                if !*dirty && snapshot.head_will_do(demand) && again.is_empty() {
                    return Ok(snapshot.clone());
                }
                let was_dirty = std::mem::replace(dirty, false);
                let stale: Vec<ChunkId> = again.iter().copied().collect();
                let head = machine.begin_snapshot(snapshot.chunks.keys().copied(), &stale);
                (self.state_position(), head, was_dirty, again)
            };
            let mut taken = Vec::new();
            let next = || cell.state.lock().machine.next_chunks(SLICE_CHUNKS, SLICE_MESSAGES);
            let written = self.write_chunks(cell.id, next, &mut taken);
            let written = written.and_then(|chunks| Ok((chunks, self.write_parts(cell.id, &head)?)));
            let mut state = cell.state.lock();
            match written {
                Ok((Some(chunks), head)) => {
                    let snapshot = &mut state.snapshot;
                    snapshot.at = at;
                    snapshot.head_copy = if was_dirty { Vec::new() } else { snapshot.kept_head(demand) };
                    snapshot.head = head;
                    note_chunks(snapshot, chunks, &again, demand);
                    return Ok(snapshot.clone());
                }
                outcome => {
                    state.machine.abandon_snapshot(&taken);
                    state.dirty = true;
                    outcome?;
                }
            }
        }
    }
}

/// A machine that is being rebuilt from its snapshot and the records after it.
#[derive(Debug)]
pub(crate) struct Replayed<M> {
    pub(crate) machine: M,
    pub(crate) snapshot: Snapshot,
}

impl<M: Machine<Missing = Infallible>> Replayed<M> {
    /// One that nothing has happened to.
    pub(crate) fn new(machine: M) -> Self {
        Self { machine, snapshot: Snapshot::default() }
    }

    /// Takes the state of a snapshot.
    ///
    /// # Errors
    /// If head and chunks are none.
    pub(crate) fn load(
        &mut self,
        head: &[u8],
        chunks: &[bytes::Bytes],
        snapshot: Snapshot,
    ) -> Result<(), String> {
        self.machine = restored(head, chunks)?;
        self.snapshot = snapshot;
        Ok(())
    }

    /// Takes a whole state that no checkpoint knows: the next one has to write all of these chunks.
    ///
    /// # Errors
    /// If head and chunks are none.
    pub(crate) fn load_whole(
        &mut self,
        head: &[u8],
        chunks: &[bytes::Bytes],
        ids: &[ChunkId],
    ) -> Result<(), String> {
        self.load(head, chunks, Snapshot::default())?;
        self.machine.abandon_snapshot(ids);
        Ok(())
    }

    /// Applies a record that lies at `at`, unless it is in the snapshot. Gives back the time that it carries.
    ///
    /// # Errors
    /// If the bytes are not a record.
    pub(crate) fn replay(
        &mut self,
        at: Position,
        payload: &bytes::Bytes,
    ) -> Result<Option<Timestamp>, String> {
        let record = M::decode(payload).map_err(|error| error.to_string())?;
        if at >= self.snapshot.at {
            let Ok(_) = self.machine.apply(&record, Durability::Durable);
        }
        Ok(M::time_of(&record))
    }
}

/// A machine in the state of its snapshot.
///
/// # Errors
/// If the bytes are not a snapshot.
pub(crate) fn restored<M: Machine>(head: &[u8], chunks: &[bytes::Bytes]) -> Result<M, String> {
    let restored = M::restore(head, chunks.iter().map(|chunk| &chunk[..]));
    restored.map_err(|error| format!("a snapshot cannot be read: {error}"))
}
