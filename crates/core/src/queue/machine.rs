//! A queue as a [`Machine`]: what can be asked of it, in one list.

use std::convert::Infallible;

use bytes::Bytes;
use nexo_types::{Millis, Offset, Timestamp};

use super::{
    Admission, Applied, ChunkId, ChunkSlice, Death, LeaseError, NeedsPage, Outline, PushOutcome, Queue,
    ReturnCause,
};
use crate::config::QueueConfig;
use crate::machine::{Decision, Machine, Step};
use crate::message::{Durability, NewMessage};
use crate::record::{Leave, Pick, Record};
use crate::wire::WireError;

/// What can be asked of a queue, besides handing messages to its consumers, who are not part of its durable state.
#[derive(Clone, Debug)]
pub enum QueueCommand {
    /// Take these messages.
    Push(Vec<NewMessage>, Admission),
    /// These deliveries are done.
    Ack(Vec<(Offset, u32)>),
    /// These deliveries may take so long from now.
    Extend(Vec<(Offset, u32)>, Millis),
    /// These deliveries have arrived.
    Received(Vec<(Offset, u32)>),
    /// These deliveries came to nothing.
    Return(Vec<(Offset, u32)>, ReturnCause),
    /// All connections have ended.
    EndSessions,
    /// Do what time has brought, for at most so many messages of each kind.
    Due(usize),
    /// Drop messages that were only for those who waited.
    DropTtlZero,
    /// Drop what is too much.
    DropOverflow,
    /// A message that died leaves.
    Leave(Offset, Leave),
    /// Take ready messages aside, at most so many.
    Take(usize),
    /// Be told otherwise.
    Configure(Box<QueueConfig>),
    /// Drop all that waits.
    Purge,
    /// Drop everything.
    Clear,
    /// Let go of a message that was taken aside and is in another queue now.
    Move(Offset),
    /// Drop these ready messages, whose bytes are damaged.
    DropDamaged(Vec<Pick>),
    /// Drop these messages, which are with consumers and whose bytes are damaged.
    SettleDamaged(Vec<Offset>),
}

/// What a queue says to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueAnswer {
    /// What became of each message.
    Pushed(Vec<PushOutcome>),
    /// Whether each delivery is settled, and what is to be dead-lettered.
    Settled(Vec<Result<(), LeaseError>>, Vec<Death>),
    /// What is to be dead-lettered, and whether there is more to do.
    Done {
        /// Messages that died.
        deaths: Vec<Death>,
        /// Whether the same command would find more to do.
        more: bool,
    },
}

impl QueueAnswer {
    const NOTHING: Self = Self::Done { deaths: Vec::new(), more: false };
}

fn settled<T>(answers: Vec<Result<T, LeaseError>>, deaths: Vec<Death>) -> QueueAnswer {
    let answers = answers.into_iter().map(|answer| answer.map(|_| ()));
    QueueAnswer::Settled(answers.collect(), deaths)
}

impl Machine for Queue {
    type Command = QueueCommand;
    type Answer = QueueAnswer;
    type Record = Record;
    type Applied = Applied;
    type Missing = NeedsPage;
    type Outline = Outline;

    fn decide(&self, now: Timestamp, command: &QueueCommand) -> Decision<Record, QueueAnswer> {
        let due = |plan: super::DuePlan| {
            let answer = QueueAnswer::Done { deaths: plan.deaths, more: plan.more };
            Decision::of(plan.records, plan.durable, answer)
        };
        match command {
            QueueCommand::Push(messages, admission) => {
                let plan = self.decide_push(now, messages, *admission);
                let reserve = plan.reserve.map(|record| Step { record, durability: Durability::Durable });
                let mut steps: Vec<Step<Record>> = reserve.into_iter().collect();
                for (durability, batch) in plan.batches {
                    let death = plan.dead_letters.death_in(&batch, now);
                    let records = death.into_iter().chain([Record::Messages(batch)]);
                    steps.extend(records.map(|record| Step { record, durability }));
                }
                Decision { steps, answer: QueueAnswer::Pushed(plan.outcomes) }
            }
            QueueCommand::Ack(held) => {
                let verdict = self.decide_ack(now, held);
                Decision::of(verdict.records, verdict.durable, settled(verdict.answers, Vec::new()))
            }
            QueueCommand::Extend(held, span) => {
                let verdict = self.decide_extend(now, held, *span);
                Decision::of(verdict.records, verdict.durable, settled(verdict.answers, Vec::new()))
            }
            QueueCommand::Received(held) => {
                let verdict = self.decide_received(now, held);
                Decision::of(verdict.records, verdict.durable, settled(verdict.answers, Vec::new()))
            }
            QueueCommand::Return(held, cause) => {
                let (answers, plan) = self.decide_return(now, held, *cause);
                Decision::of(plan.records, plan.durable, settled(answers, plan.deaths))
            }
            QueueCommand::EndSessions => {
                let plan = self.decide_session_end(now);
                Decision::of(plan.records, plan.durable, settled::<Infallible>(Vec::new(), plan.deaths))
            }
            QueueCommand::Due(max) => due(self.decide_due(now, *max)),
            QueueCommand::DropTtlZero => due(self.decide_ttl_zero(now)),
            QueueCommand::DropOverflow => due(self.decide_overflow(now)),
            QueueCommand::Leave(offset, why) => {
                let dying = self.dying(*offset);
                let durable = dying.is_some_and(|dying| dying.durability == Durability::Durable);
                let record = self.decide_dead_letter(now, *offset, *why);
                Decision::of(record, durable, QueueAnswer::NOTHING)
            }
            QueueCommand::Take(max) => {
                Decision::of(self.decide_take(now, *max, |_| true), true, QueueAnswer::NOTHING)
            }
            QueueCommand::Configure(config) => {
                let record = self.decide_configure(now, QueueConfig::clone(config));
                Decision::of([record], true, QueueAnswer::NOTHING)
            }
            QueueCommand::Purge => Decision::of(self.decide_purge(now), true, QueueAnswer::NOTHING),
            QueueCommand::Clear => Decision::of(self.decide_clear(now), true, QueueAnswer::NOTHING),
            QueueCommand::Move(offset) => {
                Decision::of(self.decide_move(now, *offset), true, QueueAnswer::NOTHING)
            }
            QueueCommand::DropDamaged(picks) => {
                Decision::of(self.decide_drop_damaged(now, picks), true, QueueAnswer::NOTHING)
            }
            QueueCommand::SettleDamaged(offsets) => {
                Decision::of(self.decide_settle_damaged(now, offsets), true, QueueAnswer::NOTHING)
            }
        }
    }

    fn apply(&mut self, record: &Record, _: Durability) -> Result<Applied, NeedsPage> {
        Self::apply(self, record)
    }

    fn encode(record: &Record) -> Bytes {
        record.encode()
    }

    fn decode(bytes: &[u8]) -> Result<Record, WireError> {
        Record::decode(bytes)
    }

    fn advance_time(&mut self, now: Timestamp, max: usize) -> bool {
        Self::advance_time(self, now, max)
    }

    fn next_deadline(&self, now: Timestamp) -> Option<Timestamp> {
        Self::next_deadline(self, now)
    }

    fn begin_snapshot(&mut self, known: impl Iterator<Item = ChunkId>, stale: &[ChunkId]) -> Bytes {
        Self::begin_snapshot(self, known, stale)
    }

    fn next_chunks(&mut self, chunks_max: usize, items_max: usize) -> Option<ChunkSlice> {
        Self::next_chunks(self, chunks_max, items_max)
    }

    fn time_of(record: &Record) -> Option<Timestamp> {
        record.time()
    }

    fn restore<'a>(head: &[u8], chunks: impl Iterator<Item = &'a [u8]>) -> Result<Self, WireError> {
        Self::restore(head, chunks).map_err(|error| error.0)
    }

    fn outline(&self, now: Timestamp) -> Outline {
        Self::outline(self, now)
    }
}

#[cfg(test)]
mod tests {
    use nexo_types::{DedupId, GroupId, Priority, QueueId, QueueName};
    use proptest::prelude::*;

    use super::*;
    use crate::batch::MessageBatch;
    use crate::config::{Fate, Overflow};
    use crate::machine::check::{Checked, START, check};
    use crate::queue::{MessageEntry, Totals};

    impl Checked for Queue {
        fn read_back(record: &Record, bytes: Bytes) -> Record {
            match record {
                Record::Messages(_) => Record::Messages(MessageBatch::decode(bytes).unwrap()),
                _ => Record::decode(&bytes).unwrap(),
            }
        }

        fn supply(&mut self, NeedsPage(page): NeedsPage, log: &[Record]) {
            let read = |offset: Offset| {
                let find = |record: &Record| {
                    let Record::Messages(batch) = record else { return None };
                    let item = batch.find(offset)?;
                    Some(MessageEntry::from_batch(batch, item).unwrap())
                };
                log.iter().rev().find_map(find).expect("the log has what it lacks")
            };
            let entries = page.offsets.iter().map(read).collect();
            assert!(self.page_in(&page, entries, Timestamp(0)));
        }

        fn due(&self, _: Timestamp) -> Option<QueueCommand> {
            Some(QueueCommand::Due(5))
        }

        fn disturb(&mut self) {
            self.page_out(u64::MAX);
        }

        fn prepare(&mut self) {}

        fn durable(&self, now: Timestamp) -> Outline {
            // Figures count transient messages too, and so do offsets.
            Outline { totals: Totals::default(), next_offset: Offset(0), ..self.outline(now) }
        }
    }

    fn messages(transient: bool) -> impl Strategy<Value = Vec<NewMessage>> {
        let group = if transient {
            // A group whose head is transient is another group after a restart.
            Just(None).boxed()
        } else {
            prop::option::weighted(0.3, 0u8..3).boxed()
        };
        let message = (
            0u8..3,
            prop_oneof![3 => Just(0u64), 1 => 1u64..80],
            prop::option::weighted(0.3, 0u64..90),
            prop::option::weighted(0.2, 0u8..4),
            group,
            any::<bool>(),
        );
        let message = message.prop_map(move |(priority, delay, ttl, dedup, group, durable)| NewMessage {
            priority: Priority(priority),
            delay: Millis(delay),
            ttl: ttl.map(Millis),
            // What a transient message repeats is forgotten with it.
            dedup: dedup.filter(|_| durable || !transient).map(|id| DedupId::new(&id.to_string()).unwrap()),
            group: group.map(|id| GroupId::new(&id.to_string()).unwrap()),
            durability: if transient && !durable { Durability::Transient } else { Durability::Durable },
            ..NewMessage::new("body")
        });
        prop::collection::vec(message, 1..5)
    }

    fn config() -> impl Strategy<Value = QueueConfig> {
        (any::<(bool, bool, bool, bool)>(), prop::option::of(1u32..4), prop::option::weighted(0.3, 1u64..12))
            .prop_map(|((expiry, overflow, reject, refusal), max_attempts, max_messages)| {
                let fate = |dead| if dead { Fate::DeadLetter } else { Fate::Drop };
                QueueConfig {
                    max_attempts,
                    max_messages,
                    on_expiry: fate(expiry),
                    on_overflow: fate(overflow),
                    on_refusal: fate(refusal),
                    overflow: if reject { Overflow::Reject } else { Overflow::DropOldest },
                    dedup_window: Millis(60),
                    visibility: Millis(40),
                    ..QueueConfig::default()
                }
            })
    }

    /// Deliveries by guess: a queue of few messages has most of them.
    fn held() -> impl Strategy<Value = Vec<(Offset, u32)>> {
        prop::collection::vec((0u64..12).prop_map(Offset).prop_flat_map(|at| (Just(at), 1u32..4)), 1..6)
    }

    /// Messages of one priority or several, some of which are not ready or not there.
    fn picks() -> impl Strategy<Value = Vec<Pick>> {
        let pick = (0u8..3, prop::collection::btree_set((0u64..12).prop_map(Offset), 1..4));
        let pick =
            pick.prop_map(|(lane, at)| Pick { lane: Priority(lane), offsets: at.into_iter().collect() });
        prop::collection::vec(pick, 1..3)
    }

    fn command(transient: bool) -> impl Strategy<Value = QueueCommand> {
        let cause = prop_oneof![
            3 => prop::option::of((0u64..50).prop_map(Millis)).prop_map(ReturnCause::Nack),
            1 => Just(ReturnCause::Reject),
            1 => Just(ReturnCause::Undelivered),
            1 => Just(ReturnCause::SessionEnd),
        ];
        let why = prop_oneof![Just(Leave::DeadLettered), Just(Leave::Expired), Just(Leave::Damaged)];
        prop_oneof![
            8 => messages(transient).prop_map(|messages| QueueCommand::Push(messages, Admission::Checked)),
            1 => messages(transient).prop_map(|messages| QueueCommand::Push(messages, Admission::Forced)),
            4 => held().prop_map(QueueCommand::Ack),
            3 => (held(), 1u64..90).prop_map(|(held, span)| QueueCommand::Extend(held, Millis(span))),
            2 => held().prop_map(QueueCommand::Received),
            4 => (held(), cause).prop_map(|(held, cause)| QueueCommand::Return(held, cause)),
            1 => Just(QueueCommand::EndSessions),
            6 => (1usize..9).prop_map(QueueCommand::Due),
            2 => Just(QueueCommand::DropTtlZero),
            4 => Just(QueueCommand::DropOverflow),
            4 => ((0u64..12).prop_map(Offset), why).prop_map(|(at, why)| QueueCommand::Leave(at, why)),
            6 => (1usize..6).prop_map(QueueCommand::Take),
            1 => config().prop_map(|config| QueueCommand::Configure(Box::new(config))),
            1 => Just(QueueCommand::Purge),
            1 => Just(QueueCommand::Clear),
            2 => (0u64..12).prop_map(|at| QueueCommand::Move(Offset(at))),
            1 => picks().prop_map(QueueCommand::DropDamaged),
            1 => prop::collection::vec((0u64..12).prop_map(Offset), 1..4).prop_map(QueueCommand::SettleDamaged),
        ]
    }

    fn commands(transient: bool) -> impl Strategy<Value = Vec<(Millis, QueueCommand)>> {
        prop::collection::vec(((0u64..60).prop_map(Millis), command(transient)), 1..60)
    }

    fn fresh(config: &QueueConfig) -> impl Fn() -> Queue {
        let config = config.clone();
        move || Queue::new(QueueId(1), QueueName::new("q").unwrap(), config.clone(), START)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

        #[test]
        fn a_queue_is_a_machine(config in config(), commands in commands(false)) {
            check(fresh(&config), commands);
        }

        #[test]
        fn transient_messages_do_not_count(config in config(), commands in commands(true)) {
            check(fresh(&config), commands);
        }
    }
}
