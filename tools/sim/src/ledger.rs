//! The books: what clients were told, and what must be true because of it.

use std::collections::{BTreeMap, BTreeSet};

use nexo_cluster::{EntryId, GroupEntry, Payload};
use nexo_core::jobs::{JobReceipt, JobState};
use nexo_types::{JobId, LogIndex, NodeId, Offset, QueueId, RaftGroupId, Term, Timestamp};

use crate::state::{State, look_into};

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two nodes led in one term.
    TwoLeaders(String),
    /// Two logs differ at an entry of the same name.
    LogMismatch(String),
    /// Two entries were committed at one place.
    TwoCommitted(String),
    /// A message was delivered that is not committed.
    Uncommitted(String),
    /// An offset named two messages, or a message got two.
    OffsetReused(String),
    /// A message was delivered after its acknowledgement was confirmed.
    Resurrected(String),
    /// A confirmed message, or anything else that was confirmed, is gone.
    Lost(String),
    /// Two workers got the same hold of a job.
    HeldTwice(String),
    /// Replicas differ in the end.
    Diverged(String),
    /// The time of records went back.
    TimeWentBack(String),
    /// A node rejected what another sent, or could not start.
    Unsound(String),
    /// A node panicked.
    Panicked(String),
    /// The cluster did not get well again.
    Stuck(String),
    /// Nothing much happened, so nothing was shown.
    NotExercised(String),
}

/// A delivery, as its consumer knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) group: RaftGroupId,
    pub(crate) queue: QueueId,
    pub(crate) offset: Offset,
    pub(crate) attempt: u32,
    pub(crate) number: u64,
    /// The term of the leader that handed it out.
    pub(crate) term: Term,
    pub(crate) node: NodeId,
}

/// A job in a worker's hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) group: RaftGroupId,
    pub(crate) node: NodeId,
    /// The term of the leader that handed it out.
    pub(crate) term: Term,
    pub(crate) receipt: JobReceipt,
}

/// What is known of one message.
#[derive(Clone, Debug, Default)]
struct Message {
    confirmed: bool,
    delivered: bool,
    /// An acknowledgement was proposed: it may have counted.
    ack_asked: bool,
    /// The term in which one was confirmed.
    acked: Option<Term>,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    leaders: BTreeMap<(RaftGroupId, Term), NodeId>,
    /// The sums of entries, by name.
    entries: BTreeMap<(RaftGroupId, EntryId), u64>,
    committed: BTreeMap<RaftGroupId, BTreeMap<LogIndex, EntryId>>,
    /// What all that is committed leads to.
    truth: BTreeMap<RaftGroupId, (LogIndex, State)>,
    places: BTreeMap<(RaftGroupId, QueueId, Offset), u64>,
    numbers: BTreeMap<(RaftGroupId, QueueId, u64), Offset>,
    messages: BTreeMap<(RaftGroupId, u64), Message>,
    times: BTreeMap<RaftGroupId, Timestamp>,
    /// Entries whose proposers were told that they count.
    changed: Vec<(RaftGroupId, EntryId)>,
    held: BTreeSet<(RaftGroupId, JobReceipt)>,
    /// Jobs with a result that was taken, and the term in which that was told.
    ended: BTreeMap<(RaftGroupId, JobId), Term>,
    pub(crate) violations: Vec<Violation>,
    pub(crate) tally: Tally,
}

/// How much happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Messages that were confirmed.
    pub confirmed: u64,
    /// Pushes without an answer.
    pub unknown: u64,
    /// Deliveries.
    pub delivered: u64,
    /// Acknowledgements that were confirmed.
    pub acked: u64,
    /// Nodes that were elected and ready.
    pub elected: u64,
    /// Leaders that threw their memory away.
    pub deposed: u64,
    /// Snapshots that were sent and taken.
    pub restored: u64,
    /// Members that came or went.
    pub members: u64,
    /// Crashes.
    pub crashes: u64,
    /// Partitions.
    pub partitions: u64,
    /// Other faults.
    pub others: u64,
    /// Disks with damage.
    pub damaged: u64,
    /// Nodes that came in place of those that found damage.
    pub replaced: u64,
    /// What was confirmed of machines beside the queues.
    pub changed: u64,
    /// Jobs handed out.
    pub jobs: u64,
    /// Dead letters in the end.
    pub dead: u64,
}

impl Tally {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        self.confirmed += other.confirmed;
        self.unknown += other.unknown;
        self.delivered += other.delivered;
        self.acked += other.acked;
        self.elected += other.elected;
        self.deposed += other.deposed;
        self.restored += other.restored;
        self.members += other.members;
        self.crashes += other.crashes;
        self.partitions += other.partitions;
        self.others += other.others;
        self.damaged += other.damaged;
        self.replaced += other.replaced;
        self.changed += other.changed;
        self.jobs += other.jobs;
        self.dead += other.dead;
    }
}

impl Ledger {
    pub(crate) fn leads(&mut self, group: RaftGroupId, term: Term, node: NodeId) {
        let first = *self.leaders.entry((group, term)).or_insert(node);
        if first != node {
            let told = format!("nodes {first} and {node} lead group {group} in term {term}");
            self.violations.push(Violation::TwoLeaders(told));
        }
    }

    /// A node has stored an entry.
    pub(crate) fn stored(&mut self, group: RaftGroupId, node: NodeId, entry: &GroupEntry) {
        let sum = sum_of(&entry.payload);
        let known = *self.entries.entry((group, entry.id)).or_insert(sum);
        if known != sum {
            let told = format!("node {node} has another entry {:?} of group {group}", entry.id);
            self.violations.push(Violation::LogMismatch(told));
        }
    }

    /// A node was told that an entry is committed.
    pub(crate) fn committed(&mut self, group: RaftGroupId, node: NodeId, entry: &GroupEntry) {
        let all = self.committed.entry(group).or_default();
        let index = entry.id.index;
        match all.get(&index) {
            Some(known) if *known != entry.id => {
                let told = format!("node {node} was told {:?}, and others {known:?}", entry.id);
                self.violations.push(Violation::TwoCommitted(told));
            }
            Some(_) => {}
            None => {
                all.insert(index, entry.id);
                self.apply_truth(group, entry);
            }
        }
    }

    fn apply_truth(&mut self, group: RaftGroupId, entry: &GroupEntry) {
        // The first entry stands for the beginning.
        let (applied, state) = self.truth.entry(group).or_insert_with(|| (LogIndex(1), State::new()));
        if entry.id.index != applied.next() {
            let told = format!("group {group}: {:?} was told before those after {applied}", entry.id);
            self.violations.push(Violation::TwoCommitted(told));
            return;
        }
        *applied = entry.id.index;
        let Payload::Data(data) = &entry.payload else { return };
        state.apply_data(data);
        let (time, pushed) = look_into(data);
        let last = self.times.entry(group).or_default();
        if time < *last {
            let told = format!("group {group}: entry {:?} is of {time:?}, after {last:?}", entry.id);
            self.violations.push(Violation::TimeWentBack(told));
        }
        *last = time.max(*last);
        for (queue, offset, number) in pushed {
            self.names(group, queue, offset, number);
        }
    }

    /// An offset names a message.
    fn names(&mut self, group: RaftGroupId, queue: QueueId, offset: Offset, number: u64) {
        let known = *self.places.entry((group, queue, offset)).or_insert(number);
        if known != number {
            let told = format!("offset {offset} of queue {queue} names {known} and {number}");
            self.violations.push(Violation::OffsetReused(told));
        }
        let place = *self.numbers.entry((group, queue, number)).or_insert(offset);
        if place != offset {
            let told = format!("message {number} is at {place} and at {offset} of queue {queue}");
            self.violations.push(Violation::OffsetReused(told));
        }
    }

    /// A client was told that its message is safe.
    pub(crate) fn push_confirmed(&mut self, group: RaftGroupId, number: u64) {
        self.tally.confirmed += 1;
        self.messages.entry((group, number)).or_default().confirmed = true;
    }

    /// A client was told that nobody knows.
    pub(crate) fn push_unknown(&mut self) {
        self.tally.unknown += 1;
    }

    /// A consumer got a message.
    pub(crate) fn delivered(&mut self, receipt: &Receipt) {
        self.tally.delivered += 1;
        let Receipt { group, queue, offset, number, .. } = *receipt;
        match self.places.get(&(group, queue, offset)) {
            Some(known) if *known == number => {}
            Some(known) => {
                let told = format!("offset {offset} of queue {queue} is {known}, and {number} was delivered");
                self.violations.push(Violation::OffsetReused(told));
            }
            None => {
                let told = format!("message {number} at {offset} of queue {queue} was delivered");
                self.violations.push(Violation::Uncommitted(told));
            }
        }
        let message = self.messages.entry((group, number)).or_default();
        message.delivered = true;
        // A leader that does not know yet that it was deposed cannot know of it.
        if message.acked.is_some_and(|term| receipt.term >= term) {
            let told = format!("{receipt:?} was acknowledged in {:?}", message.acked);
            self.violations.push(Violation::Resurrected(told));
        }
    }

    pub(crate) fn ack_asked(&mut self, receipt: &Receipt) {
        self.messages.entry((receipt.group, receipt.number)).or_default().ack_asked = true;
    }

    pub(crate) fn ack_confirmed(&mut self, receipt: &Receipt) {
        self.tally.acked += 1;
        self.messages.entry((receipt.group, receipt.number)).or_default().acked = Some(receipt.term);
    }

    /// Messages may be gone: somebody threw away all that waited where they are.
    pub(crate) fn purge_asked(&mut self, group: RaftGroupId, numbers: impl Iterator<Item = u64>) {
        for number in numbers {
            self.messages.entry((group, number)).or_default().ack_asked = true;
        }
    }

    /// A client was told that what it wanted of a machine is done.
    pub(crate) fn changed(&mut self, group: RaftGroupId, id: EntryId) {
        self.tally.changed += 1;
        self.changed.push((group, id));
    }

    /// A worker got a job.
    pub(crate) fn job_handed(&mut self, hold: &Hold) {
        self.tally.jobs += 1;
        let Hold { group, receipt, term, .. } = *hold;
        if !self.held.insert((group, receipt)) {
            self.violations.push(Violation::HeldTwice(format!("{hold:?} was handed out before")));
        }
        if self.ended.get(&(group, receipt.job)).is_some_and(|ended| term >= *ended) {
            self.violations.push(Violation::Resurrected(format!("{hold:?} has ended")));
        }
    }

    /// A worker was told that its result is taken.
    pub(crate) fn job_ended(&mut self, group: RaftGroupId, job: JobId, term: Term) {
        self.ended.insert((group, job), term);
    }

    fn close_machines(&mut self) {
        for (group, id) in &self.changed {
            if self.committed.get(group).and_then(|all| all.get(&id.index)) != Some(id) {
                let told = format!("entry {id:?} of group {group} was confirmed and is not committed");
                self.violations.push(Violation::Lost(told));
            }
        }
        for (group, job) in self.ended.keys() {
            let Some((_, truth)) = self.truth.get(group) else { continue };
            let found = truth.machines.jobs().job(*job).map(|(_, job)| job.state());
            if found.is_some_and(|state| !matches!(state, JobState::Finished(_))) {
                let told = format!("job {job} of group {group} has a result, and is not finished");
                self.violations.push(Violation::Resurrected(told));
            }
        }
    }

    /// The end: what every replica has must be what is committed, and that what was promised.
    pub(crate) fn close(
        &mut self,
        now: Timestamp,
        replicas: &mut [(NodeId, RaftGroupId, LogIndex, &mut State)],
    ) {
        self.close_machines();
        for (group, (_, truth)) in &mut self.truth {
            self.tally.dead += truth.waiting(crate::state::DEAD).len() as u64;
            let mut waiting = BTreeSet::new();
            for queue in truth.queue_ids() {
                for number in truth.waiting(queue).into_values() {
                    waiting.insert(number);
                }
            }
            for ((_, number), message) in self.messages.iter().filter(|((of, _), _)| of == group) {
                let is_there = waiting.contains(number);
                if message.confirmed && !is_there && !message.ack_asked {
                    let told = format!("message {number} of group {group} was confirmed and is gone");
                    self.violations.push(Violation::Lost(told));
                }
                if message.acked.is_some() && is_there {
                    let told = format!("message {number} of group {group} was acknowledged and is there");
                    self.violations.push(Violation::Resurrected(told));
                }
            }
        }
        let mut snapshots = BTreeMap::new();
        for (group, (_, truth)) in &mut self.truth {
            truth.advance_time(now);
            snapshots.insert(*group, truth.snapshot());
        }
        for (node, group, applied, state) in replicas {
            let Some((index, truth)) = self.truth.get_mut(group) else { continue };
            if applied != index {
                let told =
                    format!("node {node} has applied {applied} of group {group}, and {index} is committed");
                self.violations.push(Violation::Stuck(told));
                continue;
            }
            state.advance_time(now);
            if Some(&state.snapshot()) != snapshots.get(group) {
                let difference = truth.difference(state, now);
                let told = format!("node {node} has another state of group {group} at {index}: {difference}");
                self.violations.push(Violation::Diverged(told));
            }
        }
    }
}

/// A sum over our own bytes: equal ones are meant, so it is made to be fast.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8);
    let mut sum = mix(0xcbf2_9ce4_8422_2325, bytes.len() as u64);
    for word in &mut words {
        sum = mix(sum, u64::from_le_bytes(word.try_into().expect("eight bytes")));
    }
    words.remainder().iter().fold(sum, |sum, byte| mix(sum, u64::from(*byte)))
}

/// Adds a word to a sum.
pub(crate) const fn mix(sum: u64, word: u64) -> u64 {
    let mixed = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

fn sum_of(payload: &Payload) -> u64 {
    match payload {
        Payload::Blank | Payload::Stored => 1,
        Payload::Data(data) => sum(data),
        Payload::Change(change) => sum(format!("{change:?}").as_bytes()),
    }
}
