//! A leader gives a node that is too far behind its whole state.
//!
//! For the moment in which the state is looked at nothing is proposed; it is sent while the broker goes on. Segments are kept
//! meanwhile, and so are the entries behind that state. When the other has all of it, the leader gives its word for it: a message
//! of the group, after which the other goes on from there.
//!
//! A node that was elected and does not serve yet does that as well: if its majority needs the node that is behind, nothing is
//! committed before that one has a state. It loads what is committed, as for a checkpoint, and sends that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nexo_cluster::{EntryId, Membership, Role as GroupRole, Snapshot};
use nexo_core::queue::ChunkId;
use nexo_types::{NodeId, Term};
use parking_lot::MutexGuard;

use super::state::{Memory, Replica};
use super::state_stream::{Part, StateHead, receive, send};
use crate::error::QueueError;
use crate::machine_cell::WholeMachine;
use crate::shared::Shared;
use crate::transplant::FrozenQueue;

/// A state that is not committed after this is not sent now.
const COMMIT_WAIT_MAX: Duration = Duration::from_secs(2);
/// So long the other may take to make it its own.
const INSTALL_WAIT_MAX: Duration = Duration::from_secs(60);
/// So long the other may take for one part, or to sync the last ones. One that hangs must not keep segments for ever, nor others
/// waiting.
const PART_WAIT_MAX: Duration = Duration::from_secs(60);

/// When a state could not be sent to a node it is tried again after this, at first and at last: the group asks several times a
/// second, and each try holds up everybody for a moment.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A node that was elected sends its state if it still cannot commit anything after so many ticks: 600 ms.
const WAITING_TICKS_MIN: u32 = 12;

/// So long is waited for a queue's lock while nothing is proposed. Whoever has it may himself be waiting to propose something.
const LOCK_WAIT_MAX: Duration = Duration::from_millis(500);

/// A state at one moment.
struct Frozen {
    head: StateHead,
    machines: Vec<WholeMachine>,
    queues: Vec<FrozenQueue>,
}

/// To whom a state could not be sent, and when it is tried again.
#[derive(Debug, Default)]
pub(super) struct FailedSends(BTreeMap<NodeId, (Instant, Duration)>);

impl FailedSends {
    /// Whether a node has its turn.
    fn may_try(&self, node: NodeId, now: Instant) -> bool {
        self.0.get(&node).is_none_or(|(from, _)| now >= *from)
    }

    fn note(&mut self, node: NodeId, has_failed: bool, now: Instant) {
        if !has_failed {
            self.0.remove(&node);
            return;
        }
        let pause = self.0.get(&node).map_or(PAUSE_MIN, |(_, pause)| (*pause * 2).min(PAUSE_MAX));
        self.0.insert(node, (now + pause, pause));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// A state is being sent to a node. Nothing of that stays when this ends, in whatever way.
struct Sending<'a> {
    replica: &'a Replica,
    to: NodeId,
    has_failed: bool,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        let mut state = self.replica.state.lock();
        state.sending = None;
        state.pinned = None;
        state.failed_sends.note(self.to, self.has_failed, Instant::now());
        state.group.withdraw_snapshot();
    }
}

/// Nothing is proposed while this is there.
struct Pause<'a>(&'a Replica);

impl<'a> Pause<'a> {
    fn begin(replica: &'a Replica) -> Self {
        replica.state.lock().is_paused = true;
        Self(replica)
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_paused = false;
    }
}

impl Replica {
    /// A follower needs a whole state.
    pub(super) fn send_states(&self) {
        let to = {
            let mut state = self.state.lock();
            // Who is elected can commit in a moment, if not for the node that is behind. Who builds its memory serves in another.
            let can_tell = match state.memory {
                Memory::Serving(_) => true,
                Memory::Following => state.waiting_ticks >= WAITING_TICKS_MIN,
                Memory::Promoted(_) | Memory::Deposed => false,
            };
            if state.sending.is_some() || !can_tell || state.group.role() != GroupRole::Leader {
                return;
            }
            let purged = state.group.purged().index;
            let behind = state.group.progress().filter(|(_, matched)| *matched < purged);
            let now = Instant::now();
            let behind = behind.map(|(node, _)| node).filter(|node| state.failed_sends.may_try(*node, now));
            let behind: Vec<NodeId> = behind.collect();
            // One that cannot be reached must not keep all others waiting.
            let next = behind.iter().find(|node| state.sent_last.is_none_or(|last| **node > last));
            let Some(to) = next.or(behind.first()).copied() else { return };
            state.sending = Some(to);
            state.sent_last = Some(to);
            to
        };
        if let Some(hook) = self.on_send_state.get() {
            hook(to);
        }
    }
}

impl Replica {
    /// Another one gives its own state by now.
    fn refuse_unless_elected_in(&self, term: Term) -> Result<(), String> {
        let state = self.state.lock();
        if state.group.role() == GroupRole::Leader && state.group.term() == term {
            Ok(())
        } else {
            Err("this node leads no more".into())
        }
    }
}

/// What is done with the other node, which may be asleep.
async fn within<T>(time: Duration, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let done = tokio::time::timeout(time, work).await;
    done.unwrap_or_else(|_| Err(format!("the other node does nothing for {} s", time.as_secs())))
}

impl Shared {
    /// Sends the whole state to a node. On a thread of its own.
    pub(super) fn send_state(self: &Arc<Self>, replica: &Arc<Replica>, to: NodeId) {
        let (shared, of) = (Arc::clone(self), Arc::clone(replica));
        let spawned = self.threads.spawn("nexo-raft-state", move || {
            let began = Instant::now();
            let mut sending = Sending { replica: &of, to, has_failed: true };
            tracing::info!(%to, "a node is too far behind, and is sent the whole state");
            match shared.send_state_to(&of, to) {
                Ok(bytes) => {
                    tracing::info!(%to, bytes, took_ms = began.elapsed().as_millis(), "the whole state was sent");
                    let mut state = of.state.lock();
                    state.snapshots_sent += 1;
                    state.snapshot_bytes_sent += bytes;
                    sending.has_failed = false;
                }
                Err(error) => tracing::warn!(%to, %error, "the whole state could not be sent; it is tried again"),
            }
        });
        if spawned.is_err() {
            replica.state.lock().sending = None;
        }
    }

    fn send_state_to(self: &Arc<Self>, replica: &Arc<Replica>, to: NodeId) -> Result<u64, String> {
        let (runtime, open) = replica.open_stream.get().ok_or("no stream can be opened")?;
        let mut stream = runtime.block_on(open(to)).map_err(|error| error.to_string())?;
        // Before the look: what is alive then stays readable.
        let _reading = Reading::begin(self);
        // Before the look, too: who is deposed in the middle of it has thrown a part away.
        let term = replica.state.lock().group.term();
        let frozen = self.freeze(replica)?;
        let head = frozen.head.clone();
        let mut bytes = 0;
        let mut put = |part: Part| {
            bytes += part.state_bytes();
            replica.refuse_unless_elected_in(term)?;
            runtime.block_on(within(PART_WAIT_MAX, send(&mut *stream, &part)))
        };
        put(Part::Begin(frozen.head))?;
        for (id, head, chunks) in frozen.machines {
            put(Part::Machine(id, head))?;
            chunks.into_iter().try_for_each(|(id, chunk)| put(Part::Chunk(id, chunk)))?;
        }
        for queue in frozen.queues {
            put(Part::Queue(queue.id, queue.snapshot.head.clone()))?;
            // All chunks of a queue that is restored count as changed, whichever they are.
            let chunks = queue.snapshot.chunks.iter();
            chunks.cloned().try_for_each(|chunk| put(Part::Chunk(ChunkId(0), chunk)))?;
            let mut export = queue.export(self).map_err(|error| error.to_string())?;
            loop {
                let batch = export.next_batch().map_err(|error| error.to_string())?;
                if batch.is_empty() {
                    break;
                }
                put(Part::Bodies(batch))?;
            }
        }
        put(Part::End)?;
        match runtime.block_on(within(PART_WAIT_MAX, receive(&mut *stream)))? {
            Part::Staged => {}
            Part::Failed(reason) => return Err(format!("the other node says: {reason}")),
            _ => return Err("the other node does not answer as it should".into()),
        }
        self.give_word(replica, to, &head)?;
        Ok(bytes)
    }

    /// The state as it is now, when all of it is committed.
    fn freeze(self: &Arc<Self>, replica: &Replica) -> Result<Frozen, String> {
        if replica.state.lock().memory == Memory::Following {
            return self.freeze_followed(replica);
        }
        // Not while nothing is proposed: a checkpoint that is being written may take long.
        let checkpoint = self.maintenance.begin_checkpoint();
        let _paused = Pause::begin(replica);
        let end = Instant::now() + COMMIT_WAIT_MAX;
        let (last, members) = loop {
            {
                let mut state = replica.state.lock();
                if !matches!(state.memory, Memory::Serving(_)) {
                    return Err("this node leads no more".into());
                }
                let last = state.places.last();
                if state.pending.is_empty() && state.group.applied() == last.index {
                    state.pinned = Some(last.index);
                    break (last, state.members_at(last.index));
                }
            }
            replica.waker.wake();
            if Instant::now() > end {
                return Err("what was proposed is not committed in time".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        self.freeze_memory(last, members, &checkpoint)
    }

    /// The state that is committed, on a node that was elected and does not serve yet.
    fn freeze_followed(self: &Arc<Self>, replica: &Replica) -> Result<Frozen, String> {
        let _loading = self.maintenance.begin_loading();
        if replica.state.lock().memory != Memory::Following || !self.load_followed() {
            return Err("what is committed cannot be loaded now".into());
        }
        if replica.state.lock().memory != Memory::Following {
            return Err("this node is about to serve".into());
        }
        let checkpoint = self.maintenance.begin_checkpoint();
        let (last, members) = {
            let mut state = replica.state.lock();
            let index = state.loaded.0;
            let last = state.places.id_of(index).ok_or("what is committed is not known any more")?;
            state.pinned = Some(index);
            (last, state.members_at(index))
        };
        self.freeze_memory(last, members, &checkpoint)
    }

    /// What is in memory, which is the state as of this entry.
    fn freeze_memory(
        self: &Arc<Self>,
        last: EntryId,
        members: Membership,
        _no_other_snapshot: &MutexGuard<'_, ()>,
    ) -> Result<Frozen, String> {
        let machines = self.whole_machines()?;
        let mut cells = {
            // Whoever has proposed a queue has put it there before he lets go of this.
            let _changing = self.catalog.change();
            self.catalog.all()
        };
        cells.sort_unstable_by_key(|cell| cell.id);
        let frozen = cells.iter().map(|cell| FrozenQueue::of(cell, LOCK_WAIT_MAX));
        let queues: Result<Vec<Option<FrozenQueue>>, QueueError> = frozen.collect();
        let queues = queues.map_err(|error| error.to_string())?.into_iter().flatten().collect();
        let token = last.index.0 ^ (u64::from(std::process::id()) << 40) ^ (last.term.0 << 56);
        let (next_queue, time) = (self.catalog.next_queue(), self.clock.now());
        Ok(Frozen { head: StateHead { last, members, token, next_queue, time }, machines, queues })
    }

    /// The other has everything: the group tells it so, and it goes on from there.
    fn give_word(&self, replica: &Replica, to: NodeId, head: &StateHead) -> Result<(), String> {
        let data = Bytes::copy_from_slice(&head.token.to_le_bytes());
        let snapshot = Snapshot { last: head.last, members: head.members.clone(), data };
        let end = Instant::now() + INSTALL_WAIT_MAX;
        replica.state.lock().group.offer_snapshot(snapshot);
        loop {
            {
                let state = replica.state.lock();
                if state.group.leader() != Some(replica.node) {
                    return Err("this node leads no more".into());
                }
                let matched = state.group.progress().find(|(node, _)| *node == to).map(|(_, index)| index);
                if matched.is_none_or(|matched| matched >= head.last.index) {
                    return Ok(());
                }
            }
            replica.waker.wake();
            if Instant::now() > end {
                return Err("the other node has not made it its own in time".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// No segment is given up while this is there.
struct Reading(Arc<Shared>);

impl Reading {
    fn begin(shared: &Arc<Shared>) -> Self {
        shared.maintenance.begin_reading();
        Self(Arc::clone(shared))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.maintenance.end_reading();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_takes_no_state_is_asked_less_and_less_often() {
        let (one, other) = (NodeId(1), NodeId(2));
        let (mut failed, now) = (FailedSends::default(), Instant::now());
        failed.note(one, true, now);
        assert!(!failed.may_try(one, now) && failed.may_try(one, now + PAUSE_MIN));
        assert!(failed.may_try(other, now), "others have their turn");
        failed.note(one, true, now);
        assert!(!failed.may_try(one, now + PAUSE_MIN) && failed.may_try(one, now + PAUSE_MIN * 2));
        for _ in 0..20 {
            failed.note(one, true, now);
        }
        assert!(failed.may_try(one, now + PAUSE_MAX), "never longer than that");
        failed.note(one, false, now);
        assert!(failed.may_try(one, now));
    }
}
