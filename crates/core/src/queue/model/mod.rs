//! The engine against a naive model: thousands of random command sequences, with time moving, paging in and
//! out at random, and after each sequence a replay of the records into an empty queue.

mod naive;
mod rig;

use nexo_types::{DedupId, GroupId, Millis, Priority, QueueName};
use proptest::prelude::*;

use super::*;
use crate::config::{Backoff, Fate, Overflow, RateLimit};
use crate::message::{Durability, NewMessage};
use rig::Rig;

#[derive(Clone, Debug)]
enum Op {
    Push(Vec<Draft>),
    Subscribe {
        consumer: u64,
        credit: u32,
        terms: u8,
    },
    Credit {
        consumer: u64,
        credit: u32,
    },
    Leave {
        consumer: u64,
    },
    Ack {
        pick: usize,
        stale: bool,
    },
    /// The worker says that it is done, whether or not its lease has ended and somebody else has the message.
    LateAck {
        pick: usize,
    },
    Nack {
        pick: usize,
        delay: Option<u64>,
    },
    Undelivered {
        pick: usize,
    },
    Received {
        pick: usize,
    },
    Extend {
        pick: usize,
        span: u64,
    },
    Wait(u64),
    /// Some of what has died is moved.
    DeadLetter(usize),
    Purge,
    Clear,
    Pause(bool),
    Take(usize),
    /// Frees so many bytes of memory, or as many as can be.
    PageOut(u64),
    /// A page is asked for, or the answer to an earlier question comes.
    LatePage,
    /// A snapshot is begun, to which later records are applied after a restart.
    Checkpoint,
    /// Some of its chunks are taken.
    Chunks(usize),
    /// The disk was full, and it comes to nothing.
    Abandon,
    Restart,
}

#[derive(Clone, Debug)]
struct Draft {
    priority: u8,
    delay: u64,
    ttl: Option<u64>,
    dedup: Option<u8>,
    group: Option<u8>,
    transient: bool,
}

fn name() -> QueueName {
    QueueName::new("q").unwrap()
}

fn body(number: u64) -> Vec<u8> {
    format!("{number:04}").into_bytes()
}

fn terms_of(kind: u8) -> Terms {
    Terms {
        lease: match kind % 4 {
            0 | 1 => LeaseTerms::Queue,
            2 => LeaseTerms::For(Millis(70)),
            _ => LeaseTerms::Session,
        },
        settle: if matches!(kind, 6 | 7) { SettleMode::Automatic } else { SettleMode::Manual },
        priority: 0,
        groups: if kind >= 8 { GroupTake::Run } else { GroupTake::Head },
        ..Terms::default()
    }
}

impl Draft {
    fn message(&self) -> NewMessage {
        NewMessage {
            priority: Priority(self.priority),
            delay: Millis(self.delay),
            ttl: self.ttl.map(Millis),
            dedup: self.dedup.map(|id| DedupId::new(&id.to_string()).unwrap()),
            group: self.group.map(|id| GroupId::new(&id.to_string()).unwrap()),
            durability: if self.transient { Durability::Transient } else { Durability::Durable },
            ..NewMessage::new(body(0))
        }
    }
}

/// Which kinds of message a run is made of.
#[derive(Clone, Copy)]
enum Mix {
    Durable,
    WithTransient,
}

fn drafts(mix: Mix) -> impl Strategy<Value = Vec<Draft>> {
    let draft = (
        prop_oneof![3 => Just(0u8), 1 => Just(9u8), 1 => any::<u8>()],
        prop_oneof![4 => Just(0u64), 1 => 1u64..200],
        prop::option::weighted(0.2, 1u64..150),
        prop::option::weighted(0.2, 0u8..4),
        // A group whose head is transient is another group after a restart, so a mixed run has none.
        if matches!(mix, Mix::Durable) {
            prop::option::weighted(0.3, 0u8..3).boxed()
        } else {
            Just(None).boxed()
        },
        if matches!(mix, Mix::Durable) { Just(false).boxed() } else { any::<bool>().boxed() },
    )
        .prop_map(|(priority, delay, ttl, dedup, group, transient)| Draft {
            priority,
            delay,
            ttl,
            dedup,
            group,
            transient,
        });
    prop::collection::vec(draft, 1..6)
}

fn op(mix: Mix) -> impl Strategy<Value = Op> {
    let consumer = 0u64..6;
    prop_oneof![
        12 => drafts(mix).prop_map(Op::Push),
        6 => (consumer.clone(), 0u32..4, 0u8..12).prop_map(|(consumer, credit, terms)| Op::Subscribe { consumer, credit, terms }),
        6 => (consumer.clone(), 0u32..6).prop_map(|(consumer, credit)| Op::Credit { consumer, credit }),
        1 => consumer.prop_map(|consumer| Op::Leave { consumer }),
        8 => (any::<usize>(), prop::bool::weighted(0.1)).prop_map(|(pick, stale)| Op::Ack { pick, stale }),
        3 => any::<usize>().prop_map(|pick| Op::LateAck { pick }),
        5 => (any::<usize>(), prop::option::of(0u64..100)).prop_map(|(pick, delay)| Op::Nack { pick, delay }),
        1 => any::<usize>().prop_map(|pick| Op::Undelivered { pick }),
        3 => any::<usize>().prop_map(|pick| Op::Received { pick }),
        3 => (any::<usize>(), 0u64..200).prop_map(|(pick, span)| Op::Extend { pick, span }),
        8 => (0u64..120).prop_map(Op::Wait),
        4 => (1usize..5).prop_map(Op::DeadLetter),
        1 => Just(Op::Purge),
        1 => Just(Op::Clear),
        1 => any::<bool>().prop_map(Op::Pause),
        1 => (1usize..5).prop_map(Op::Take),
        2 => prop_oneof![Just(u64::MAX), 0u64..2000].prop_map(Op::PageOut),
        2 => Just(Op::LatePage),
        2 => Just(Op::Checkpoint),
        6 => (0usize..4).prop_map(Op::Chunks),
        1 => Just(Op::Abandon),
        2 => Just(Op::Restart),
    ]
}

fn config() -> impl Strategy<Value = QueueConfig> {
    (
        1u64..150,
        prop::option::weighted(0.3, 1u64..100),
        prop::option::weighted(0.7, 1u32..4),
        (any::<bool>(), any::<bool>(), any::<bool>()),
        prop_oneof![
            Just(Backoff::None),
            Just(Backoff::Fixed { delay: Millis(20) }),
            Just(Backoff::Exponential { base: Millis(10), factor_permille: 2000, cap: Millis(100) }),
        ],
        prop::option::weighted(0.2, 1u64..300),
        (prop::option::weighted(0.2, 1u64..20), prop::option::weighted(0.1, 20u64..300)),
        prop::option::weighted(0.1, (1u32..4, 20u64..100)),
    )
        .prop_map(
            |(
                visibility,
                receipt,
                max_attempts,
                (expiry, overflow, reject),
                retry,
                ttl,
                (messages, bytes),
                rate,
            )| {
                let fate = |dead| if dead { Fate::DeadLetter } else { Fate::Drop };
                QueueConfig {
                    visibility: Millis(visibility),
                    receipt_timeout: receipt.map(Millis),
                    max_attempts,
                    on_expiry: fate(expiry),
                    on_overflow: fate(overflow),
                    retry,
                    ttl: ttl.map(Millis),
                    dedup_window: Millis(100),
                    max_messages: messages,
                    max_bytes: bytes,
                    overflow: if reject { Overflow::Reject } else { Overflow::DropOldest },
                    rate_limit: rate
                        .map(|(deliveries, period)| RateLimit { deliveries, period: Millis(period) }),
                    ..QueueConfig::default()
                }
            },
        )
}

fn run(config: QueueConfig, ops: &[Op]) {
    config.check(&name()).expect("the test makes sensible settings");
    let mut rig = Rig::new(config);
    for op in ops {
        rig.step(op);
    }
    rig.step(&Op::Restart);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_agrees_with_the_model_and_with_its_own_records(
        config in config(), ops in prop::collection::vec(op(Mix::Durable), 1..70)
    ) {
        run(config, &ops);
    }

    #[test]
    fn transient_messages_leave_the_durable_ones_as_they_are(
        config in config(), ops in prop::collection::vec(op(Mix::WithTransient), 1..50)
    ) {
        run(config, &ops);
    }
}
