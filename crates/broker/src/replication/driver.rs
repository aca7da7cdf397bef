//! The thread that brings time, messages and syncs to the group.
//!
//! The *driver* is woken by messages of other nodes, by proposals that somebody waits for, by syncs, and by every tick. What
//! it has to send goes out without the lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nexo_cluster::wire::encode_envelope;
use nexo_cluster::{Message, TICK};
use nexo_log::{LogHealth, decode_entries};
use nexo_types::NodeId;

use super::GROUP;
use super::state::Replica;
use crate::threads::Threads;

const DRIVER: &str = "nexo-raft";
/// A log that fails or has ended is looked at again after this.
const FAILED_WAIT: Duration = Duration::from_millis(200);

/// Starts the thread. It ends when the replica is stopped.
pub(super) fn start(replica: &Arc<Replica>, threads: &Threads) -> std::io::Result<()> {
    let waker = Arc::clone(&replica.waker);
    replica.log.on_synced(Box::new(move || waker.synced()));
    let weak = Arc::downgrade(replica);
    threads.spawn(DRIVER, move || drive(&weak))?;
    Ok(())
}

fn drive(weak: &Weak<Replica>) {
    let mut next_tick = Instant::now() + TICK.as_duration();
    loop {
        let Some(replica) = weak.upgrade() else { return };
        replica.waker.sleep_until(next_tick);
        let mut state = replica.state.lock();
        if state.is_stopping {
            return;
        }
        if state.has_failed {
            drop(state);
            std::thread::sleep(FAILED_WAIT);
            continue;
        }
        if let LogHealth::Failed { reason } = replica.log.health() {
            tracing::error!(%reason, "the log has failed: this node takes no part in the cluster any more");
            replica.fail(&mut state);
            continue;
        }
        replica.take_messages(&mut state);
        replica.settle(&mut state);
        replica.note_synced(&mut state);
        let now = Instant::now();
        if now >= next_tick {
            // A thread that was held up does not make up for it: that would be an election for nothing.
            next_tick = now + TICK.as_duration();
            replica.tick(&mut state);
        }
        replica.check_leadership(&mut state);
        replica.write_more(&mut state);
        let wanted = replica.take_fetches(&mut state);
        let outgoing = std::mem::take(&mut state.outgoing);
        let told = std::mem::take(&mut state.told);
        let followed = std::mem::take(&mut state.followed);
        let wants_state = std::mem::take(&mut state.snapshot_wanted);
        let installs = state.installing.is_some();
        drop(state);
        replica.send_all(outgoing);
        // Whoever waited may have gone.
        told.into_iter().for_each(|teller| drop(teller.send(Ok(()))));
        if let Some(tell) = replica.on_followed.get() {
            for data in followed {
                // It was read before it was written down.
                tell(&decode_entries(&data).unwrap_or_default());
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

impl Replica {
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
        state.is_stopping = true;
        state.pending.clear();
        state.told.drain(..).for_each(|teller| drop(teller.send(Ok(()))));
        state.waiters.take_all().for_each(drop);
        state.checks.fail();
        drop(state);
        self.waker.wake();
    }
}
