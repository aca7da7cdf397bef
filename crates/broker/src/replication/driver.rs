//! The thread that brings time, messages and syncs to the group.
//!
//! The *driver* is woken by messages of other nodes, by proposals that somebody waits for, by syncs, and by every tick. Small work
//! is done without it, by whoever brings it ([`Replica::advance`]); one thread at a time has the *turn*. What is to be sent goes
//! out without the group's lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nexo_cluster::wire::encode_envelope;
use nexo_cluster::{Message, TICK};
use nexo_log::{LogHealth, decode_entries};
use nexo_types::NodeId;

use super::GROUP;
use super::journal::ADVANCE_BYTES_MAX;
use super::state::{Inbox, Memory, Replica, State};
use super::state_lock::StateGuard;
use crate::threads::Threads;

const DRIVER: &str = "nexo-raft";
/// A log that fails or has ended is looked at again after this.
const FAILED_WAIT: Duration = Duration::from_millis(200);

/// Starts the thread. It ends when the replica is stopped.
pub(super) fn start(replica: &Arc<Replica>, threads: &Threads) -> std::io::Result<()> {
    let waker = Arc::clone(&replica.waker);
    replica.log.on_synced(Box::new(move || waker.synced()));
    let weak = Arc::downgrade(replica);
    let own = threads.clone();
    threads.spawn(DRIVER, move || {
        let _end = FailIfPanicking(&weak);
        drive(&weak, &own);
    })?;
    Ok(())
}

fn drive(weak: &Weak<Replica>, threads: &Threads) {
    let mut next_tick = Instant::now() + TICK.as_duration();
    loop {
        let Some(replica) = weak.upgrade() else { return };
        replica.waker.sleep_until(next_tick);
        let turn = replica.turn.lock();
        let mut state = replica.state.lock();
        if state.is_stopping {
            return;
        }
        if state.has_failed {
            drop(state);
            drop(turn);
            *replica.inbox.lock() = Inbox::default();
            std::thread::sleep(FAILED_WAIT);
            continue;
        }
        if state.is_broken {
            threads.note_panic(DRIVER);
            replica.fail(&mut state);
            continue;
        }
        if let LogHealth::Failed { reason } = replica.log.health() {
            tracing::error!(%reason, "the log has failed: this node takes no part in the cluster any more");
            replica.fail(&mut state);
            continue;
        }
        replica.take_input(&mut state);
        let now = Instant::now();
        if now >= next_tick {
            // A thread that was held up does not make up for it: that would be an election for nothing.
            next_tick = now + TICK.as_duration();
            replica.tick(&mut state);
        }
        replica.check_leadership(&mut state);
        replica.write_more(&mut state);
        let wanted = replica.take_fetches(&mut state);
        let followed = std::mem::take(&mut state.followed);
        let wants_state = std::mem::take(&mut state.snapshot_wanted);
        let installs = state.installing.is_some();
        let stale = std::mem::take(&mut state.stale);
        replica.let_out(state);
        drop(turn);
        drop(stale);
        if let Some(tell) = replica.on_followed.get() {
            for (index, data) in followed {
                // It was read before it was written down.
                tell(index, &decode_entries(&data).unwrap_or_default());
            }
        }
        replica.read_fetches(wanted);
        if wants_state {
            replica.send_states();
        }
        if installs {
            replica.tell_change();
        }
    }
}

/// Whoever proposed something may be the one who sends it: if that ends by a panic he never applies what others will commit.
struct BreakIfPanicking<'a> {
    replica: &'a Replica,
    /// A task that ends by a panic may give something back: that panic is no concern of the group.
    was_panicking: bool,
}

impl Drop for BreakIfPanicking<'_> {
    fn drop(&mut self) {
        if !self.was_panicking && std::thread::panicking() {
            self.replica.state.lock().note_broken();
            self.replica.waker.wake();
        }
    }
}

/// Nobody else ends a node whose driver is gone.
struct FailIfPanicking<'a>(&'a Weak<Replica>);

impl Drop for FailIfPanicking<'_> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(replica) = self.0.upgrade()
        {
            replica.fail(&mut replica.state.lock());
        }
    }
}

impl Replica {
    /// Brings to the group what has come, and sends what it says, on the thread of whoever brought it: to wake another one for that
    /// takes longer than the work, and every message waits for it three times. If somebody else is at it, or more is to be done
    /// than that, the driver is woken. Never waits for the disk.
    pub(super) fn advance(&self) {
        if self.inbox.lock().bytes > ADVANCE_BYTES_MAX {
            return self.waker.wake();
        }
        let Some(turn) = self.turn.try_lock() else { return self.waker.wake() };
        // Its holder may be about to append a message larger than a segment.
        let Some(mut state) = self.state.try_lock() else {
            drop(turn);
            return self.waker.wake();
        };
        if state.takes_no_part() || !state.is_started {
            return;
        }
        if state.is_behind() {
            // What waits for room may be larger than a segment, which is written with a wait for the disk.
            return self.waker.wake();
        }
        self.take_input(&mut state);
        self.check_leadership(&mut state);
        if state.has_work_left() {
            self.waker.wake();
        }
        self.let_out(state);
        drop(turn);
    }

    /// What has come of others, what was proposed, and what is synced.
    fn take_input(&self, state: &mut State) {
        self.take_messages(state);
        self.settle(state);
        self.watch_disk(state);
        self.note_synced(state);
    }

    /// Sends what there is to send, and tells those who wait, without the lock. Whoever calls this holds the turn, so messages
    /// leave in the order in which the group gave them out.
    fn let_out(&self, mut state: StateGuard<'_>) {
        let outgoing = std::mem::take(&mut state.outgoing);
        let told = std::mem::take(&mut state.told);
        drop(state);
        let _broken = BreakIfPanicking { replica: self, was_panicking: std::thread::panicking() };
        self.send_all(outgoing);
        // Whoever waited may have gone.
        told.into_iter().for_each(|teller| drop(teller.send(Ok(()))));
    }

    /// Sends messages, those for one node together.
    fn send_all(&self, messages: Vec<(NodeId, Message)>) {
        let Some(send) = self.send.get() else { return };
        let mut by_node: BTreeMap<NodeId, Vec<Message>> = BTreeMap::new();
        for (to, message) in messages {
            by_node.entry(to).or_default().push(message);
        }
        for (to, messages) in by_node {
            // One envelope has a bound, and entries are most of it.
            for message in messages {
                send(to, encode_envelope([(GROUP, &message)]));
            }
        }
    }

    /// Ends the threads. What is not committed stays so.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.is_stopping, true) {
            // Who asks later must not take what was never committed for safe.
            self.end_term(&mut state);
            state.memory = Memory::Deposed;
        }
        drop(state);
        self.waker.wake();
    }
}
