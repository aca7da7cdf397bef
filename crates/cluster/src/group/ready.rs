//! Takes from the library what has come of the inputs, and sorts it: to store, to send now, to send after a sync, to tell.

use nexo_types::{LogIndex, NodeId, Term};
use raft::eraftpb::{Entry as RaftEntry, Message as RaftMessage};
use raft::{Ready, StateRole};

use super::{Event, Group, Unsynced, Write, WriteNumber, empty_write};
use crate::entry::{EntryId, Payload};
use crate::message::{Body, Message};
use crate::translate::{check_out, entry_out, hard_state_out, message_out, snapshot_out};

impl Group {
    pub(super) fn collect(&mut self) {
        self.flush();
        while self.raw.has_ready() {
            let ready = self.raw.ready();
            self.take(ready);
        }
        self.settle();
    }

    fn take(&mut self, mut ready: Ready) {
        let number = ready.number();
        let now = ready.take_messages();
        let after_sync = ready.take_persisted_messages();
        let mut write = empty_write();
        let mut installed = None;
        if !ready.snapshot().is_empty() {
            self.tell_role();
            let snapshot = snapshot_out(ready.snapshot());
            self.members = snapshot.members.clone();
            self.raw.mut_store().restore(snapshot.last);
            self.output.events.push(Event::Restored(snapshot.clone()));
            installed = Some(snapshot.last.index);
            write.installed = Some(snapshot);
        }
        write.entries = ready.entries().iter().map(entry_out).collect();
        self.raw.mut_store().append(ready.entries());
        write.hard_state = ready.hs().map(hard_state_out);
        write.is_urgent = ready.must_sync();
        let promises = ready.must_sync() && ready.hs().is_some();
        let committed = ready.take_committed_entries();
        let checks: Vec<u64> =
            ready.take_read_states().iter().filter_map(|state| check_out(&state.request_ctx)).collect();
        self.raw.advance_append_async(ready);

        let after_sync = self.outgoing(&after_sync);
        let number_of_write = self.give_write(write, Some(number), after_sync);
        if let Some(index) = installed {
            self.installing = Some((number_of_write, index));
        }
        if promises {
            // A term or a vote. A leader's messages need not wait for its entries, but they tell of its term: a single voter
            // that forgot it could lead twice in the same term, and its learners would not tell the two apart.
            self.fence = number_of_write;
        }
        let now = self.outgoing(&now);
        if self.fence > self.synced {
            let waiting = self.unsynced.iter_mut().find(|write| write.number == self.fence);
            waiting.expect("a write that is not synced").messages.extend(now);
        } else {
            self.output.messages.extend(now);
        }
        self.tell_committed(&committed);
        self.tell_role();
        let checks = checks.into_iter().map(|check| Event::LeadershipChecked { check });
        self.output.events.extend(checks);
    }

    /// Gives a write out. Its messages, and the library, wait for its sync; or if it promises nothing, for the syncs of those
    /// before it.
    pub(super) fn give_write(
        &mut self,
        mut write: Write,
        ready: Option<u64>,
        messages: Vec<(NodeId, Message)>,
    ) -> WriteNumber {
        self.writes += 1;
        let number = WriteNumber(self.writes);
        write.number = number;
        if write.is_urgent {
            self.unsynced.push_back(Unsynced { number, ready, messages });
        } else if let Some(before) = self.unsynced.back_mut() {
            before.ready = ready.or(before.ready);
            before.messages.extend(messages);
        } else {
            if let Some(ready) = ready {
                self.raw.on_persist_ready(ready);
            }
            self.output.messages.extend(messages);
        }
        if write != (Write { number, ..empty_write() }) {
            self.output.writes.push(write);
        }
        number
    }

    /// What is to be sent, in our words. Snapshots are watched on their way.
    fn outgoing(&mut self, messages: &[RaftMessage]) -> Vec<(NodeId, Message)> {
        let out: Vec<_> = messages.iter().filter_map(message_out).collect();
        for (to, message) in &out {
            if matches!(message.body, Body::Install(_)) {
                self.snapshots.insert(*to, 0);
            }
        }
        out
    }

    fn tell_committed(&mut self, committed: &[RaftEntry]) {
        for entry in committed {
            let entry = entry_out(entry);
            let EntryId { term, index } = entry.id;
            let payload = match &entry.payload {
                Payload::Change(change) => Some(*change),
                Payload::Blank | Payload::Data(_) | Payload::Stored => None,
            };
            let is_blank = entry.payload == Payload::Blank;
            let proposed_here = self.leading == Some(term) && self.proposed.front() == Some(&index);
            if proposed_here {
                self.proposed.pop_front();
            } else {
                // While this node leads, all that is committed is its own.
                self.tell_role();
            }
            self.output.events.push(Event::Committed { entry, proposed_here });
            if let Some(change) = payload {
                self.apply_change(change);
            }
            self.raw.advance_apply_to(index.0);
            self.raw.mut_store().set_applied(index);
            if is_blank && self.raw.raft.state == StateRole::Leader && term == self.term() {
                self.leading = Some(term);
                self.output.events.push(Event::Leading { term });
            }
        }
    }

    /// Says so if this node leads no more.
    fn tell_role(&mut self) {
        let leads = (self.raw.raft.state == StateRole::Leader).then(|| Term(self.raw.raft.term));
        if let Some(term) = self.leading.filter(|term| leads != Some(*term)) {
            self.leading = None;
            self.proposed.clear();
            self.output.events.push(Event::Deposed { term });
        }
    }

    /// How far entries were told as committed.
    #[must_use]
    pub fn applied(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.applied)
    }
}
