//! Random clients over a journal that delays, refuses and loses. Whatever they are told is compared with what is committed
//! by then; after losses the queues are compared with what the committed records make.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use nexo_core::config::QueueConfig;
use nexo_core::message::{NewMessage, StoredMessage};
use nexo_core::record::Record;
use nexo_types::{DedupId, GroupId, Millis, Offset, QueueId};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::{A_WHILE, FakeJournal, Pace, bodies, compare, consumer, name, open, rebuilt, records, request};
use crate::broker::Broker;
use crate::delivery::Delivery;
use crate::journal::ProposeError;

/// Runs, unless the environment asks for more with `NEXO_LOSS_SEEDS`.
const SEEDS: u64 = 24;
const STEPS: usize = 300;
const CLIENTS_MAX: usize = 12;
const QUEUES: [&str; 3] = ["a", "b", "c"];

/// What is known to be committed.
#[derive(Default)]
struct Facts {
    /// Frames that have been looked at.
    frames: usize,
    pushed: BTreeMap<String, (QueueId, Offset)>,
    dedups: BTreeSet<DedupId>,
    settled: BTreeSet<(QueueId, Offset)>,
    created: u64,
    deleted: u64,
}

/// A broker with its clients, and books on what they were told.
struct World {
    broker: Broker,
    fake: FakeJournal,
    facts: Mutex<Facts>,
    numbers: AtomicU64,
    /// Messages whose pushes were confirmed.
    confirmed: Mutex<BTreeSet<String>>,
    /// Messages that somebody said something about that may take them out of their queue.
    released: Mutex<BTreeSet<String>>,
    creations: AtomicU64,
    deletions: AtomicU64,
}

impl World {
    /// Looks at what is committed by now.
    fn facts<R>(&self, look: impl FnOnce(&Facts) -> R) -> R {
        let mut facts = self.facts.lock();
        self.fake.committed(|frames| {
            for frame in &frames[facts.frames..] {
                for (queue, record) in records(frame) {
                    facts.add(queue, &record);
                }
            }
            facts.frames = frames.len();
        });
        look(&facts)
    }

    fn check_seen(&self, seen: &[Delivery]) {
        self.facts(|facts| {
            for body in bodies(seen) {
                assert!(facts.pushed.contains_key(body), "{body} was seen before it was committed");
            }
        });
    }

    async fn push(&self, mut rng: Rng) {
        let queue = name(QUEUES[rng.usize(..QUEUES.len())]);
        let message = |_| {
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            let mut message = NewMessage::new(format!("{number}-{}", "x".repeat(rng.usize(..1500))));
            if rng.u8(..5) == 0 {
                message.dedup = Some(DedupId::new(&format!("d{}", rng.u8(..8))).unwrap());
            }
            if rng.u8(..5) == 0 {
                message.group = Some(GroupId::new(&format!("g{}", rng.u8(..3))).unwrap());
            }
            message
        };
        let messages: Vec<NewMessage> = (0..3).map(message).collect();
        let Ok(answers) = self.broker.push(&queue, messages.clone()).await else { return };
        self.facts(|facts| {
            for (message, answer) in messages.iter().zip(answers) {
                let body = String::from_utf8(message.body.to_vec()).unwrap();
                match answer {
                    Ok(pushed) if pushed.duplicate => {
                        let id = message.dedup.as_ref().unwrap();
                        assert!(facts.dedups.contains(id), "a repetition of what was not committed");
                    }
                    Ok(pushed) => {
                        let at = facts.pushed.get(&body).expect("it was confirmed before it was committed");
                        assert_eq!(at.1, pushed.offset);
                        self.confirmed.lock().insert(body);
                    }
                    Err(_) => {}
                }
            }
        });
    }

    async fn pop(&self, mut rng: Rng) {
        let queue = name(QUEUES[rng.usize(..QUEUES.len())]);
        let popped = self.broker.pop(&queue, request(rng.usize(1..6), Millis(rng.u64(..30)))).await;
        let Ok(popped) = popped else { return };
        self.check_seen(&popped);
        self.settle(&popped, rng).await;
    }

    async fn consume(&self, rng: Rng) {
        let queue = name(QUEUES[rng.clone().usize(..QUEUES.len())]);
        let Ok(mut subscription) = self.broker.subscribe(&queue, consumer()) else { return };
        while let Ok(Some(messages)) = tokio::time::timeout(A_WHILE, subscription.next()).await {
            self.check_seen(&messages);
            self.settle(&messages, rng.clone()).await;
        }
    }

    async fn settle(&self, messages: &[Delivery], mut rng: Rng) {
        for message in messages {
            let (receipt, what) = ([message.receipt()], rng.u8(..4));
            match what {
                0 => drop(self.broker.nack(&receipt, Some(Millis::ZERO)).await),
                1 | 2 => {
                    self.released.lock().insert(bodies(std::slice::from_ref(message))[0].to_owned());
                    if self.broker.ack(&receipt).await[0].is_ok() {
                        let place = (message.queue, message.offset);
                        let is_settled = self.facts(|facts| facts.settled.contains(&place));
                        assert!(is_settled, "it was acknowledged before that was committed");
                    }
                }
                _ => {}
            }
        }
    }

    async fn look(&self, mut rng: Rng) {
        let queue = name(QUEUES[rng.usize(..QUEUES.len())]);
        if let Ok(seen) = self.broker.peek(&queue, 50).await {
            self.check_seen(&seen);
        }
    }

    async fn declare(&self, mut rng: Rng) {
        let queue = name(&format!("more-{}", rng.u8(..4)));
        if let Ok(true) = self.broker.create_queue(&queue, QueueConfig::default()).await {
            let told = self.creations.fetch_add(1, Ordering::Relaxed) + 1;
            // Those of the three queues that are always there come on top.
            self.facts(|facts| assert!(facts.created >= told + QUEUES.len() as u64));
        }
        if rng.bool() && self.broker.delete_queue(&queue).await.is_ok() {
            let told = self.deletions.fetch_add(1, Ordering::Relaxed) + 1;
            self.facts(|facts| assert!(facts.deleted >= told));
        }
    }

    async fn act(self: Arc<Self>, mut rng: Rng) {
        match rng.u8(..10) {
            0..4 => self.push(rng).await,
            4..6 => self.pop(rng).await,
            6 => self.consume(rng).await,
            7 => self.look(rng).await,
            8 => self.declare(rng).await,
            _ => {
                // What is not in memory is read back from the log, where frames lie that do not count.
                if let Some(cell) = self.broker.shared.catalog.get(&name(QUEUES[rng.usize(..QUEUES.len())])) {
                    cell.state.lock().queue.page_out(u64::MAX);
                }
            }
        }
    }

    /// Commits everything until all clients have their answers, then compares.
    async fn calm(&self, clients: &mut JoinSet<()>) {
        self.fake.refuse_no_more();
        let all = async {
            loop {
                self.fake.commit(usize::MAX);
                while let Some(done) = clients.try_join_next() {
                    done.unwrap();
                }
                if clients.is_empty() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("somebody waits for ever");
        rebuilt(&self.broker, &self.fake).await;
        compare(&self.broker, &self.fake).await;
        self.check_nothing_is_missing();
    }

    /// What was confirmed and nobody took away is in its queue.
    fn check_nothing_is_missing(&self) {
        let released = self.released.lock();
        self.facts(|facts| {
            for body in self.confirmed.lock().difference(&released) {
                let (queue, offset) = facts.pushed[body];
                let cell = self.broker.shared.catalog.get_id(queue).expect("the queue is there");
                let outline = cell.state.lock().queue.outline(self.broker.shared.clock.now());
                assert!(
                    outline.messages.contains_key(&offset),
                    "message {offset} of {} is missing",
                    cell.name
                );
            }
        });
    }
}

impl Facts {
    fn add(&mut self, queue: QueueId, record: &Record) {
        match record {
            Record::Create { .. } => self.created += 1,
            Record::Delete => self.deleted += 1,
            Record::Settle { offsets, .. } => {
                self.settled.extend(offsets.iter().map(|offset| (queue, offset)));
            }
            Record::Messages(batch) => {
                for item in batch.items() {
                    let message = StoredMessage::parse(&batch.payload(item)).unwrap();
                    let body = String::from_utf8(message.body.to_vec()).unwrap();
                    self.pushed.insert(body, (queue, item.offset));
                    self.dedups.extend(message.dedup);
                }
            }
            _ => {}
        }
    }
}

async fn run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let (broker, fake) = open(64 * 1024);
    for queue in QUEUES {
        // However often it comes back: the books do not know of messages that die.
        let config = QueueConfig { max_attempts: None, ..QueueConfig::default() };
        broker.create_queue(&name(queue), config).await.unwrap();
    }
    fake.set_pace(Pace::Held);
    let world = Arc::new(World {
        broker,
        fake,
        facts: Mutex::default(),
        numbers: AtomicU64::new(0),
        confirmed: Mutex::default(),
        released: Mutex::default(),
        creations: AtomicU64::new(0),
        deletions: AtomicU64::new(0),
    });
    let mut clients = JoinSet::new();
    for _ in 0..STEPS {
        match rng.u8(..100) {
            0..50 if clients.len() < CLIENTS_MAX => {
                clients.spawn(Arc::clone(&world).act(rng.fork()));
            }
            0..75 => world.fake.commit(rng.usize(1..8)),
            // Not for want of space: then a lease is given without a record, and only a snapshot may tell of it.
            75..80 => world.fake.refuse_next(match rng.bool() {
                true => ProposeError::Busy,
                false => ProposeError::Unavailable { reason: "another leads".into() },
            }),
            80..83 => {
                world.fake.lose_behind(rng.usize(..=world.fake.pending()));
                if rng.bool() {
                    world.calm(&mut clients).await;
                }
            }
            // Much was let go, so a checkpoint is due.
            83..85 => world.broker.shared.maintenance.note_freed(1 << 40, 1),
            _ => tokio::time::sleep(Duration::from_millis(1)).await,
        }
        while let Some(done) = clients.try_join_next() {
            done.unwrap();
        }
    }
    world.calm(&mut clients).await;
    assert!(!world.confirmed.lock().is_empty(), "nothing was confirmed with seed {seed}");
    world.fake.set_pace(Pace::AtOnce);
    world.fake.commit(usize::MAX);
    world.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_losses_take_nothing_that_was_answered_and_show_nothing_that_was_not() {
    let asked = std::env::var("NEXO_LOSS_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 0..asked.unwrap_or(SEEDS) {
        println!("seed {seed}");
        run(seed).await;
    }
}
