//! A group's state machines on one node, and what its leader does with them before the others agree.
//!
//! A leader decides, proposes and applies at once; what anybody is told waits for the commit. Whoever is deposed throws the
//! memory away and rebuilds it from what is committed, as a start does.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use nexo_cluster::store::{GroupStore, MemoryStore, StoreError};
use nexo_cluster::{EntryId, Group, Membership, Payload, Snapshot};
use nexo_core::jobs::{JobAnswer, JobCommand, Settled};
use nexo_core::machine::Machine;
use nexo_core::message::NewMessage;
use nexo_core::queue::{Admission, Handed, PushOutcome, QueueAnswer, QueueCommand, ReturnCause, Terms};
use nexo_core::record::{Leave, Record};
use nexo_types::{
    ConsumerId, DedupId, GroupId, JobId, LogIndex, Millis, NodeId, Offset, Priority, QueueId, RaftGroupId,
    Term, Timestamp,
};

use crate::ledger::{Hold, Receipt};
use crate::machines::Command;
use crate::sabotage::Sabotage;
use crate::state::{AnyRecord, DEAD, GROUPED, RICH, State, encode};

/// Something that a client is told, once it may be.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    PushConfirmed(u64),
    PushUnknown(u64),
    Delivered(Receipt),
    AckConfirmed(Receipt),
    /// Something that was asked of another machine is done, by this entry.
    Changed(EntryId),
    /// A worker has a job.
    JobHanded(Hold),
    /// A worker's result was taken.
    JobEnded(JobId, Term),
}

/// A message as a client wants it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) queue: QueueId,
    pub(crate) delay: Millis,
    pub(crate) ttl: Option<Millis>,
}

/// What a consumer says of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Done,
    Again,
    Never,
    Longer,
}

/// See the file.
#[derive(Debug)]
pub(crate) struct Replica {
    group: RaftGroupId,
    node: NodeId,
    pub(crate) state: State,
    /// The last entry that was told as committed and is in `state`.
    pub(crate) applied: EntryId,
    members: Membership,
    leading: Option<Term>,
    /// What was proposed and is not committed, with those who wait for it.
    pending: VecDeque<(LogIndex, Vec<Effect>)>,
    /// Messages whose push is not committed.
    uncommitted: BTreeMap<(QueueId, Offset), LogIndex>,
    /// A snapshot of a state that is not committed yet.
    unfinished: Option<(LogIndex, Bytes)>,
    sabotage: Option<Sabotage>,
    /// With [`Sabotage::MoveInTwo`]: dead letters that have left their queue, and are not in the other.
    moving: Vec<NewMessage>,
    told: u64,
}

const CONSUMER: ConsumerId = ConsumerId(1);
/// Messages that its consumer may hold.
const CREDIT: u32 = 4;

impl Replica {
    pub(crate) fn open(
        node: NodeId,
        group: RaftGroupId,
        store: &MemoryStore,
        sabotage: Option<Sabotage>,
    ) -> Result<Self, StoreError> {
        let mut replica = Self {
            group,
            node,
            state: State::new(),
            applied: EntryId::default(),
            members: Membership::default(),
            leading: None,
            pending: VecDeque::new(),
            uncommitted: BTreeMap::new(),
            unfinished: None,
            sabotage,
            moving: Vec::new(),
            told: 0,
        };
        replica.load(store)?;
        Ok(replica)
    }

    fn load(&mut self, store: &MemoryStore) -> Result<(), StoreError> {
        match store.snapshot(self.group)? {
            Some(snapshot) => self.restore(&snapshot),
            None => {
                self.state = State::new();
                self.applied = EntryId::default();
            }
        }
        Ok(())
    }

    /// A state from the leader, or from the disk.
    pub(crate) fn restore(&mut self, snapshot: &Snapshot) {
        self.state = State::restore(&snapshot.data);
        self.applied = snapshot.last;
        self.members = snapshot.members.clone();
        self.unfinished = None;
    }

    pub(crate) fn set_members(&mut self, members: Membership) {
        self.members = members;
    }

    pub(crate) const fn leading(&self) -> Option<Term> {
        self.leading
    }

    /// This node leads from now on: consumers come.
    pub(crate) fn lead(&mut self, term: Term) {
        self.leading = Some(term);
        for queue in self.state.queue_ids() {
            let added = self.state.queue_mut(queue).add_consumer(CONSUMER, Terms::default(), CREDIT, None);
            assert!(added.is_ok(), "nobody else consumes");
        }
    }

    /// An entry is committed. Gives back who may be told what.
    pub(crate) fn committed(&mut self, id: EntryId, payload: &Payload, proposed_here: bool) -> Vec<Effect> {
        self.applied = id;
        if proposed_here {
            let mut effects = Vec::new();
            while self.pending.front().is_some_and(|(index, _)| *index <= id.index) {
                effects.extend(self.pending.pop_front().map(|(_, effects)| effects).unwrap_or_default());
            }
            self.uncommitted.retain(|_, index| *index > id.index);
            return effects;
        }
        if let Payload::Data(data) = payload {
            self.told += 1;
            let skips = self.sabotage == Some(Sabotage::SkipEntry) && self.told.is_multiple_of(50);
            let forgets = self.sabotage == Some(Sabotage::ForgetMachines) && self.told.is_multiple_of(10);
            if forgets {
                self.state.apply_queues(data);
            } else if !skips {
                self.state.apply_data(data);
            }
            if self.sabotage == Some(Sabotage::ApplyTwice) && self.told.is_multiple_of(20) {
                self.state.apply_data(data);
            }
        }
        Vec::new()
    }

    /// This node leads no more: its memory is thrown away and built again of what is committed.
    ///
    /// # Errors
    /// If that cannot be read.
    pub(crate) fn depose(&mut self, store: &MemoryStore) -> Result<Vec<Effect>, StoreError> {
        self.leading = None;
        self.uncommitted.clear();
        self.unfinished = None;
        let unknown = self.give_up();
        if self.sabotage == Some(Sabotage::KeepSpeculation) {
            return Ok(unknown);
        }
        let (upto, members) = (self.applied.index, self.members.clone());
        self.load(store)?;
        self.members = members;
        let from = self.applied.index.next();
        if from <= upto {
            for entry in store.read(self.group, from..upto.next(), usize::MAX)? {
                self.applied = entry.id;
                if let Payload::Data(data) = &entry.payload {
                    self.state.apply_data(data);
                }
            }
        }
        assert_eq!(self.applied.index, upto, "all that was told is stored");
        Ok(unknown)
    }

    /// Nobody can tell any more what becomes of what was proposed.
    pub(crate) fn give_up(&mut self) -> Vec<Effect> {
        self.moving.clear();
        let pending = std::mem::take(&mut self.pending).into_iter().flat_map(|(_, effects)| effects);
        pending
            .filter_map(|effect| match effect {
                Effect::PushConfirmed(number) if self.sabotage == Some(Sabotage::ConfirmUnknown) => {
                    Some(Effect::PushConfirmed(number))
                }
                Effect::PushConfirmed(number) => Some(Effect::PushUnknown(number)),
                Effect::PushUnknown(_)
                | Effect::Delivered(_)
                | Effect::AckConfirmed(_)
                | Effect::Changed(_)
                | Effect::JobHanded(_)
                | Effect::JobEnded(..) => None,
            })
            .collect()
    }

    /// The group's time: the node's clock, but never before that of the last record.
    fn now(&self, clock: Timestamp) -> Timestamp {
        if self.sabotage == Some(Sabotage::OwnClock) { clock } else { clock.max(self.state.time) }
    }

    /// Proposes records. `None` if the group did not take them.
    fn propose(&mut self, group: &mut Group, now: Timestamp, records: &[AnyRecord]) -> Option<EntryId> {
        let id = group.propose(encode(now, records)).ok()?;
        self.state.time = self.state.time.max(now);
        self.pending.push_back((id.index, Vec::new()));
        Some(id)
    }

    /// Proposes records, if there are any, and applies them. `None` if the group did not take them.
    fn carry_out(
        &mut self,
        group: &mut Group,
        now: Timestamp,
        records: &[AnyRecord],
    ) -> Option<Option<EntryId>> {
        let id = if records.is_empty() { None } else { Some(self.propose(group, now, records)?) };
        for record in records {
            self.state.apply(record);
        }
        Some(id)
    }

    /// What a command of a queue comes to.
    fn decide(
        &self,
        queue: QueueId,
        now: Timestamp,
        command: &QueueCommand,
    ) -> (Vec<AnyRecord>, QueueAnswer) {
        let decision = self.state.queue(queue).decide(now, command);
        let records = decision.steps.into_iter().map(|step| AnyRecord::Queue(queue, step.record));
        (records.collect(), decision.answer)
    }

    /// Somebody waits for an entry, or for the last one if what he is told rests on all of them.
    fn wait_for(&mut self, index: Option<LogIndex>, effect: Effect) -> Option<Effect> {
        let alone = self.sabotage == Some(Sabotage::CommitAlone);
        let entry = match index {
            Some(index) => self.pending.iter_mut().find(|(pending, _)| *pending >= index),
            None => self.pending.back_mut(),
        };
        match entry {
            Some((_, effects)) if !alone => {
                effects.push(effect);
                None
            }
            _ => Some(effect),
        }
    }

    /// A client pushes messages. Each has its number as deduplication id.
    pub(crate) fn push(
        &mut self,
        group: &mut Group,
        clock: Timestamp,
        wish: Wish,
        numbers: &[u64],
    ) -> Option<Vec<Effect>> {
        self.leading?;
        let now = self.now(clock);
        let Wish { queue, delay, ttl } = wish;
        let messages = numbers.iter().map(|number| NewMessage {
            body: Bytes::copy_from_slice(&number.to_le_bytes()),
            dedup: Some(DedupId::new(&number.to_string()).expect("a number")),
            group: (queue == GROUPED).then(|| GroupId::new(&(number % 3).to_string()).expect("a number")),
            priority: Priority(if queue == RICH { (number % 4) as u8 } else { 0 }),
            delay,
            ttl,
            ..NewMessage::default()
        });
        let command = QueueCommand::Push(messages.collect(), Admission::Checked);
        let (records, answer) = self.decide(queue, now, &command);
        let QueueAnswer::Pushed(outcomes) = answer else { unreachable!("a push is answered so") };
        let id = self.carry_out(group, now, &records)?;
        let mut effects = Vec::new();
        for (number, outcome) in numbers.iter().zip(outcomes) {
            if let (PushOutcome::Accepted(offset), Some(id)) = (&outcome, id) {
                self.uncommitted.insert((queue, *offset), id.index);
            }
            // A repetition is one of a message that may not be committed itself.
            effects.extend(self.wait_for(None, Effect::PushConfirmed(*number)));
        }
        self.drop_overflow(group, now, queue);
        Some(effects)
    }

    /// What is too much for a queue dies.
    fn drop_overflow(&mut self, group: &mut Group, now: Timestamp, queue: QueueId) {
        let (records, _) = self.decide(queue, now, &QueueCommand::DropOverflow);
        self.carry_out(group, now, &records);
        self.move_dead_letters(group, now);
    }

    /// Messages that may not be delivered again go into the queue of dead letters: by one entry, so that none is in both or in
    /// neither.
    fn move_dead_letters(&mut self, group: &mut Group, now: Timestamp) {
        let deaths = self.state.queue(RICH).deaths();
        for death in deaths.into_iter().take(10) {
            let Some(letter) = self.state.dead_letter(RICH, death.offset, now) else { continue };
            let leave = self.state.queue(RICH).decide_dead_letter(now, death.offset, Leave::DeadLettered);
            let Some(leave) = leave.map(|record| AnyRecord::Queue(RICH, record)) else { continue };
            let (mut records, _) =
                self.decide(DEAD, now, &QueueCommand::Push(vec![letter.clone()], Admission::Forced));
            if self.sabotage == Some(Sabotage::MoveInTwo) {
                self.carry_out(group, now, &[leave]);
                self.moving.push(letter);
                continue;
            }
            records.push(leave);
            if !self.carry_dead(group, now, &records) {
                return;
            }
        }
    }

    /// Proposes and applies records that bring dead letters, which are not delivered before that is committed. Says whether they
    /// were taken.
    fn carry_dead(&mut self, group: &mut Group, now: Timestamp, records: &[AnyRecord]) -> bool {
        let Some(Some(id)) = self.carry_out(group, now, records) else { return false };
        let offsets = records.iter().flat_map(offsets_in);
        self.uncommitted.extend(offsets.map(|offset| ((DEAD, offset), id.index)));
        true
    }

    /// A client throws away what waits in a queue. Says whether that was taken.
    pub(crate) fn purge(&mut self, group: &mut Group, clock: Timestamp, queue: QueueId) -> bool {
        if self.leading.is_none() {
            return false;
        }
        let now = self.now(clock);
        let (records, _) = self.decide(queue, now, &QueueCommand::Purge);
        self.carry_out(group, now, &records).is_some()
    }

    /// A client tells a queue otherwise: whether it hands out, and how often it tries.
    pub(crate) fn configure(&mut self, group: &mut Group, clock: Timestamp, paused: bool, attempts: u32) {
        if self.leading.is_some() {
            let now = self.now(clock);
            let mut config = crate::state::config_of(RICH);
            (config.paused, config.max_attempts) = (paused, Some(attempts));
            let (records, _) = self.decide(RICH, now, &QueueCommand::Configure(Box::new(config)));
            self.carry_out(group, now, &records);
        }
    }

    /// Hands ready messages to the consumer.
    pub(crate) fn hand_out(&mut self, group: &mut Group, clock: Timestamp) -> Vec<Effect> {
        let Some(term) = self.leading else { return Vec::new() };
        let now = self.now(clock);
        let mut effects = Vec::new();
        for queue in self.state.queue_ids() {
            while self.state.queue_mut(queue).advance_time(now, 10_000) {}
            self.state.page_in_head(queue);
            let Some(dispatch) = self.state.queue_mut(queue).decide_dispatch(now, 4) else { continue };
            let record = AnyRecord::Queue(queue, dispatch.record.clone());
            let Some(EntryId { index, .. }) = self.propose(group, now, &[record]) else {
                self.state.queue_mut(queue).undo_dispatch(&dispatch);
                continue;
            };
            let handed = self.state.queue_mut(queue).commit_dispatch(&dispatch);
            for one in handed.expect("a decision names what is in memory") {
                effects.extend(self.release(queue, term, index, &one));
            }
        }
        effects
    }

    /// A delivery leaves when its push is committed, and in a group when its lease is.
    fn release(&mut self, queue: QueueId, term: Term, lease: LogIndex, handed: &Handed) -> Option<Effect> {
        let Handed { offset, attempts, .. } = *handed;
        let number = self.state.number_of(queue, offset).expect("what is handed out is stored");
        let delivered = Effect::Delivered(Receipt {
            group: self.group,
            queue,
            offset,
            attempt: attempts,
            number,
            term,
            node: self.node,
        });
        if self.sabotage == Some(Sabotage::DeliverUncommitted) {
            return Some(delivered);
        }
        let rests_on =
            if queue == GROUPED { Some(lease) } else { self.uncommitted.get(&(queue, offset)).copied() };
        match rests_on {
            Some(index) => self.wait_for(Some(index), delivered),
            None => Some(delivered),
        }
    }

    /// A consumer says what became of a delivery. What an old term handed out is not settled. `None` if it was not taken.
    pub(crate) fn settle(
        &mut self,
        group: &mut Group,
        clock: Timestamp,
        receipt: &Receipt,
        word: Word,
    ) -> Option<Vec<Effect>> {
        if self.leading != Some(receipt.term) {
            return None;
        }
        let now = self.now(clock);
        let held = vec![(receipt.offset, receipt.attempt)];
        let command = match word {
            Word::Done => QueueCommand::Ack(held),
            Word::Again => QueueCommand::Return(held, ReturnCause::Nack(None)),
            Word::Never => QueueCommand::Return(held, ReturnCause::Reject),
            Word::Longer => QueueCommand::Extend(held, Millis(1_000)),
        };
        let (records, answer) = self.decide(receipt.queue, now, &command);
        let QueueAnswer::Settled(answers, _) = answer else { unreachable!("it is answered so") };
        if !matches!(answers[..], [Ok(())]) {
            return None;
        }
        self.carry_out(group, now, &records)?;
        self.move_dead_letters(group, now);
        let told =
            if word == Word::Done { self.wait_for(None, Effect::AckConfirmed(*receipt)) } else { None };
        Some(told.into_iter().collect())
    }

    /// What time brings: leases and lifetimes end, schedules fire.
    pub(crate) fn due(&mut self, group: &mut Group, clock: Timestamp) {
        if self.leading.is_none() {
            return;
        }
        let now = self.now(clock);
        for queue in self.state.queue_ids() {
            while self.state.queue_mut(queue).advance_time(now, 10_000) {}
            let (records, _) = self.decide(queue, now, &QueueCommand::Due(100));
            self.carry_out(group, now, &records);
        }
        self.move_dead_letters(group, now);
        let moving = std::mem::take(&mut self.moving);
        if !moving.is_empty() {
            let (records, _) = self.decide(DEAD, now, &QueueCommand::Push(moving, Admission::Forced));
            self.carry_dead(group, now, &records);
        }
        for command in self.state.machines.due(now) {
            self.change(group, clock, &command);
        }
    }

    /// A client wants something of a machine beside the queues.
    pub(crate) fn change(&mut self, group: &mut Group, clock: Timestamp, command: &Command) -> Vec<Effect> {
        let Some(term) = self.leading else { return Vec::new() };
        let now = self.now(clock);
        let (records, answer) = self.state.machines.decide(now, command);
        let records: Vec<_> = records.into_iter().map(|(id, bytes)| AnyRecord::Machine(id, bytes)).collect();
        let Some(Some(id)) = self.carry_out(group, now, &records) else { return Vec::new() };
        let mut effects = vec![Effect::Changed(id)];
        match (answer, command) {
            (Some(JobAnswer::Taken(outcome)), _) => {
                let (group, node) = (self.group, self.node);
                let holds = outcome.jobs.into_iter().map(|handed| handed.receipt);
                effects.extend(holds.map(|receipt| Effect::JobHanded(Hold { group, node, term, receipt })));
            }
            (
                Some(JobAnswer::Settled(Settled::Finished)),
                Command::Jobs(JobCommand::Complete { receipt, .. }),
            ) => effects.push(Effect::JobEnded(receipt.job, term)),
            _ => {}
        }
        let early = self.sabotage == Some(Sabotage::HandOutEarly);
        let told = effects.into_iter().filter_map(|effect| match effect {
            Effect::JobHanded(_) if early => Some(effect),
            _ => self.wait_for(Some(id.index), effect),
        });
        told.collect()
    }

    /// A consumer takes more.
    pub(crate) fn add_credit(&mut self, queue: QueueId) {
        if self.leading.is_some() {
            self.state.queue_mut(queue).add_credit(CONSUMER, 1);
        }
    }

    /// Takes a snapshot. It counts when the state in it is committed: for a leader that may be later.
    pub(crate) fn checkpoint(&mut self, group: &mut Group, slack: u64) {
        let data = self.state.snapshot();
        match self.pending.back() {
            Some((index, _)) if self.sabotage != Some(Sabotage::CheckpointUncommitted) => {
                self.unfinished = Some((*index, data));
            }
            _ => self.finish_checkpoint(group, data, slack),
        }
    }

    /// Whether the state of an unfinished snapshot is committed by now.
    pub(crate) fn checkpoint_if_committed(&mut self, group: &mut Group, slack: u64) {
        if let Some((index, data)) = self.unfinished.take_if(|(index, _)| *index <= self.applied.index) {
            // What was committed in the same breath is not in it.
            if index == self.applied.index {
                self.finish_checkpoint(group, data, slack);
            }
        }
    }

    fn finish_checkpoint(&self, group: &mut Group, data: Bytes, slack: u64) {
        if self.applied.index.0 == 0 {
            return;
        }
        let last = self.applied;
        let snapshot = Snapshot { last, members: self.members.clone(), data };
        let purge_to = LogIndex(last.index.0.saturating_sub(slack));
        group.compact(snapshot.clone(), purge_to);
        group.offer_snapshot(snapshot);
    }
}

/// Where the messages of a record lie.
fn offsets_in(record: &AnyRecord) -> Vec<Offset> {
    match record {
        AnyRecord::Queue(_, Record::Messages(batch)) => {
            batch.items().iter().map(|item| item.offset).collect()
        }
        AnyRecord::Queue(..) | AnyRecord::Machine(..) => Vec::new(),
    }
}
