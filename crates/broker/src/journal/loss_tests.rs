//! What the broker does over a journal that delays, refuses and loses: nothing is seen before it is safe, and what is left
//! after a loss is what was committed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nexo_core::config::{Overflow, QueueConfig};
use nexo_core::message::NewMessage;
use nexo_core::queue::{Outline, Queue};
use nexo_core::record::Record;
use nexo_core::topology::{ExchangeKind, ExchangeSpec, Matching};
use nexo_log::disk::{Disk, MemoryDisk};
use nexo_log::{EntryKind, Frame};
use nexo_types::{DedupId, ExchangeName, Millis, Offset, QueueId, QueueName, SegmentId, Timestamp};

use super::ProposeError;
use super::fake::{FakeJournal, Pace};
use crate::broker::Broker;
use crate::delivery::Delivery;
use crate::error::{QueueError, SettleError};
use crate::exchanges::TOPOLOGY;
use crate::frame_batches::batch_of;
use crate::options::BrokerOptions;
use crate::request::{PopRequest, SubscribeRequest};

mod jobs;
mod policies;
mod random;
mod vhosts;

/// Long enough to see that something does not happen; too short only means that a bug is not seen every time.
const A_WHILE: Duration = Duration::from_millis(50);

fn name(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

fn open(segment_bytes: u32) -> (Broker, FakeJournal) {
    open_on(MemoryDisk::new(), segment_bytes)
}

fn open_on(disk: MemoryDisk, segment_bytes: u32) -> (Broker, FakeJournal) {
    let mut fake = None;
    let options = BrokerOptions { segment_bytes, ..BrokerOptions::new("memory") };
    let broker = Broker::open_with(Arc::new(disk), options, Timestamp(0), |log| {
        Box::new(fake.insert(FakeJournal::new(log)).clone())
    });
    (broker.unwrap(), fake.unwrap())
}

async fn with_queue(config: QueueConfig) -> (Broker, FakeJournal) {
    let (broker, fake) = open(1 << 20);
    broker.create_queue(&name("q"), config).await.unwrap();
    (broker, fake)
}

/// Waits until the broker has rebuilt its queues.
async fn rebuilt(broker: &Broker, fake: &FakeJournal) {
    while fake.is_fenced() || broker.shared.catalog.is_rebuilding() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn request(max: usize, wait: Millis) -> PopRequest {
    PopRequest { max, wait, visibility: None, bytes_max: None }
}

fn consumer() -> SubscribeRequest {
    SubscribeRequest { credit: 100, visibility: None, keep_leases: false }
}

fn bodies(deliveries: &[Delivery]) -> Vec<&str> {
    deliveries.iter().map(|one| std::str::from_utf8(&one.message.body).unwrap()).collect()
}

/// The records of a frame, by queue.
fn records(frame: &Frame) -> Vec<(QueueId, Record)> {
    let of_queues = frame.entries.iter().filter(|entry| entry.queue != TOPOLOGY);
    let record = of_queues.map(|entry| {
        let record = match entry.kind {
            EntryKind::Messages => Record::Messages(batch_of(frame, entry).unwrap()),
            EntryKind::Record => Record::decode(&entry.payload).unwrap(),
            EntryKind::Snapshot | EntryKind::Manifest => panic!("that is no proposal"),
        };
        (entry.queue, record)
    });
    record.collect()
}

/// The queues that these frames make, without snapshots and pages.
fn replay(frames: &[Frame]) -> BTreeMap<QueueId, Queue> {
    let mut queues: BTreeMap<QueueId, Queue> = BTreeMap::new();
    for frame in frames {
        for (id, record) in records(frame) {
            match record {
                Record::Create { name, config, at } => {
                    assert!(queues.insert(id, Queue::new(id, name, config, at)).is_none());
                }
                Record::Delete => assert!(queues.remove(&id).is_some()),
                record => {
                    queues.get_mut(&id).unwrap().apply(&record).unwrap();
                }
            }
        }
    }
    queues
}

/// What is durable of a queue. Figures that no record carries are left out.
fn durable(mut outline: Outline) -> Outline {
    outline.totals = Default::default();
    outline
}

fn differences(live: &BTreeMap<QueueId, Outline>, replayed: &BTreeMap<QueueId, Outline>) -> String {
    let mut text = format!("{:?} live, {:?} replayed", live.keys(), replayed.keys());
    for (id, live) in live {
        let Some(other) = replayed.get(id).filter(|other| *other != live) else { continue };
        let differs = |offset: &&Offset| live.messages.get(*offset) != other.messages.get(*offset);
        for offset in live.messages.keys().chain(other.messages.keys()).filter(differs) {
            let (here, there) = (live.messages.get(offset), other.messages.get(offset));
            text.push_str(&format!("\nqueue {id}, message {offset}: {here:?} live, {there:?} replayed"));
        }
        let rest = |outline: &Outline| (outline.next_offset, outline.dedup.clone());
        text.push_str(&format!("\nqueue {id}: {:?} live, {:?} replayed", rest(live), rest(other)));
    }
    text
}

/// Compares every queue with what the committed records make. Both must stand still: everything is committed.
async fn compare(broker: &Broker, fake: &FakeJournal) {
    let mut difference = String::new();
    // A worker may be between the two, or a dead letter on its way.
    for _ in 0..400 {
        fake.commit(usize::MAX);
        let now = broker.shared.clock.now();
        let replayed: BTreeMap<QueueId, Outline> = fake.committed(|frames| {
            replay(frames).into_iter().map(|(id, queue)| (id, durable(queue.outline(now)))).collect()
        });
        let cells = broker.shared.catalog.all();
        let live: BTreeMap<QueueId, Outline> =
            cells.iter().map(|cell| (cell.id, durable(cell.state.lock().queue.outline(now)))).collect();
        if fake.pending() == 0 && live == replayed {
            return;
        }
        difference = differences(&live, &replayed);
        for cell in cells {
            let state = cell.state.lock();
            difference.push_str(&format!(
                "\nqueue {}: now {now}, armed {:?}, unwritten leases {}, unfinished {}, unsettled {:?}",
                cell.id,
                state.armed,
                state.queue.has_unwritten_leases(),
                state.unfinished,
                *state.unsettled
            ));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("memory is not what was committed: {difference}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_delivered_and_confirmed_when_its_push_is_committed() {
    let (broker, fake) = with_queue(QueueConfig::default()).await;
    let mut subscription = broker.subscribe(&name("q"), consumer()).unwrap();
    fake.set_pace(Pace::Held);
    let pushing = broker.clone();
    let push = tokio::spawn(async move { pushing.push(&name("q"), vec![NewMessage::new("m")]).await });
    tokio::time::timeout(A_WHILE, subscription.next())
        .await
        .expect_err("it was seen before it was committed");
    assert!(!push.is_finished());
    // The push, and not the lease behind it.
    fake.commit(1);
    assert_eq!(bodies(&subscription.next().await.unwrap()), ["m"]);
    push.await.unwrap().unwrap()[0].as_ref().unwrap();
    fake.commit(usize::MAX);
    drop(subscription);
    compare(&broker, &fake).await;
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_is_lost_is_told_and_never_seen() {
    let (broker, fake) = with_queue(QueueConfig::default()).await;
    broker.push(&name("q"), vec![NewMessage::new("kept")]).await.unwrap();
    fake.set_pace(Pace::Held);
    let mut subscription = broker.subscribe(&name("q"), consumer()).unwrap();
    assert_eq!(bodies(&subscription.next().await.unwrap()), ["kept"], "a backlog waits for nothing");
    let pushing = broker.clone();
    let push = tokio::spawn(async move { pushing.push(&name("q"), vec![NewMessage::new("lost")]).await });
    while fake.pending() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let popping = broker.clone();
    let pop = tokio::spawn(async move { popping.pop(&name("q"), request(10, Millis(10_000))).await });
    fake.lose_behind(0);
    let told = push.await.unwrap().unwrap_err();
    assert!(matches!(told, QueueError::Unavailable { .. }), "{told}");
    assert!(subscription.next().await.is_none(), "the subscription has ended");
    rebuilt(&broker, &fake).await;
    fake.set_pace(Pace::AtOnce);
    // Its lease was lost too, or it is with the one that was waiting.
    let waited = pop.await.unwrap().unwrap_or_default();
    let mut seen: Vec<Delivery> = broker.pop(&name("q"), request(10, Millis::ZERO)).await.unwrap();
    seen.extend(waited);
    assert_eq!(bodies(&seen), ["kept"]);
    let again = broker.push(&name("q"), vec![NewMessage::new("new")]).await.unwrap();
    assert_eq!(again[0].as_ref().unwrap().offset, Offset(1), "the offset is free again");
    compare(&broker, &fake).await;
    broker.shutdown().await;
}

/// Two frames of one segment tell of the same offset, and one of them does not count, even if the other cannot be read.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_from_the_log_is_not_what_was_lost() {
    let disk = MemoryDisk::new();
    let (broker, fake) = open_on(disk.clone(), 1 << 20);
    broker.create_queue(&name("q"), QueueConfig::default()).await.unwrap();
    fake.set_pace(Pace::Held);
    let pushing = broker.clone();
    let push =
        tokio::spawn(async move { pushing.push(&name("q"), vec![NewMessage::new("that was lost")]).await });
    while fake.pending() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    fake.lose_behind(0);
    push.await.unwrap().unwrap_err();
    rebuilt(&broker, &fake).await;
    fake.set_pace(Pace::AtOnce);
    let pushed = broker.push(&name("q"), vec![NewMessage::new("that is there")]).await.unwrap();
    assert_eq!(pushed[0].as_ref().unwrap().offset, Offset(0));
    let cell = broker.shared.catalog.get(&name("q")).unwrap();
    broker.push(&name("q"), vec![NewMessage::new("another")]).await.unwrap();
    let look = || async {
        // The queue knows only which offsets lie in the segment, and has to look for them.
        cell.state.lock().queue.page_out(u64::MAX);
        broker.peek(&name("q"), 10).await.unwrap()
    };
    assert_eq!(bodies(&look().await), ["that is there", "another"]);
    broker.shared.log.sync_blocking().unwrap();
    damage(&disk, b"that is there");
    assert_eq!(bodies(&look().await), ["another"]);
    let popped = broker.pop(&name("q"), request(2, Millis(10_000))).await.unwrap();
    assert_eq!(bodies(&popped), ["another"]);
    assert_eq!(broker.stats().damaged_messages, 1);
    broker.shutdown().await;
}

/// Changes a byte of what is written.
fn damage(disk: &MemoryDisk, text: &[u8]) {
    let file = disk.open(&format!("segments/{}.seg", SegmentId(1))).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    let at = bytes.windows(text.len()).position(|window| window == text).unwrap();
    file.write_at(b"?", at as u64).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_wait_for_what_they_rest_on() {
    let config = QueueConfig { max_messages: Some(1), overflow: Overflow::Reject, ..QueueConfig::default() };
    let (broker, fake) = with_queue(config).await;
    fake.set_pace(Pace::Held);
    let once = || NewMessage { dedup: Some(DedupId::new("once").unwrap()), ..NewMessage::new("first") };
    let push = |message: NewMessage| {
        let broker = broker.clone();
        tokio::spawn(async move { broker.push(&name("q"), vec![message]).await })
    };
    let first = push(once());
    while fake.pending() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let repeated = push(once());
    let refused = push(NewMessage::new("too much"));
    let looking = broker.clone();
    let look = tokio::spawn(async move { looking.peek(&name("q"), 10).await });
    let declaring = broker.clone();
    let other = QueueConfig { max_attempts: Some(3), ..QueueConfig::default() };
    let declare = tokio::spawn(async move { declaring.create_queue(&name("q"), other).await });
    tokio::time::sleep(A_WHILE).await;
    assert!(!first.is_finished() && !repeated.is_finished() && !refused.is_finished());
    assert!(!look.is_finished() && !declare.is_finished());
    fake.commit(usize::MAX);
    assert!(!first.await.unwrap().unwrap()[0].as_ref().unwrap().duplicate);
    assert!(repeated.await.unwrap().unwrap()[0].as_ref().unwrap().duplicate);
    refused.await.unwrap().unwrap()[0].as_ref().unwrap_err();
    assert_eq!(bodies(&look.await.unwrap().unwrap()), ["first"]);
    declare.await.unwrap().unwrap_err();
    // A queue that is deleted is there until that is safe.
    let deleting = broker.clone();
    let delete = tokio::spawn(async move { deleting.delete_queue(&name("q")).await });
    while fake.pending() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let missing = push(NewMessage::new("nowhere"));
    tokio::time::sleep(A_WHILE).await;
    assert!(!delete.is_finished() && !missing.is_finished());
    fake.lose_behind(0);
    assert!(matches!(delete.await.unwrap(), Err(QueueError::Unavailable { .. })));
    assert!(matches!(missing.await.unwrap(), Err(QueueError::Unavailable { .. })));
    rebuilt(&broker, &fake).await;
    fake.set_pace(Pace::AtOnce);
    assert_eq!(bodies(&broker.peek(&name("q"), 10).await.unwrap()), ["first"]);
    compare(&broker, &fake).await;
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_of_a_lost_delivery_settles_nothing() {
    let (broker, fake) = with_queue(QueueConfig::default()).await;
    broker.push(&name("q"), vec![NewMessage::new("m")]).await.unwrap();
    fake.set_pace(Pace::Held);
    let old = broker.pop(&name("q"), request(1, Millis::ZERO)).await.unwrap();
    fake.lose_behind(0);
    rebuilt(&broker, &fake).await;
    fake.set_pace(Pace::AtOnce);
    let new = broker.pop(&name("q"), request(1, Millis::ZERO)).await.unwrap();
    assert_eq!(
        (old[0].offset, old[0].attempt),
        (new[0].offset, new[0].attempt),
        "nothing else tells them apart"
    );
    let settled = broker.ack(&[old[0].receipt()]).await;
    assert!(matches!(settled[0], Err(SettleError::Stale { .. })), "{settled:?}");
    broker.ack(&[new[0].receipt()]).await[0].as_ref().unwrap();
    compare(&broker, &fake).await;
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_and_bindings_that_are_lost_are_gone_and_those_deleted_are_back() {
    let (broker, fake) = with_queue(QueueConfig::default()).await;
    let generation = broker.routes_generation();
    fake.set_pace(Pace::Held);
    let exchange = ExchangeName::new("x").unwrap();
    let spec = ExchangeSpec::durable(ExchangeKind::Plain(Matching::Direct));
    broker.begin_declare_exchange(&exchange, spec).await.unwrap();
    let asked = crate::request::Declaration {
        config: QueueConfig::default(),
        durability: nexo_core::message::Durability::Durable,
        owner: None,
    };
    let lost = broker.begin_declare(&name("lost"), asked.clone()).await.unwrap();
    broker.begin_delete(&name("q"), crate::request::DeleteIf::default()).await.unwrap();
    fake.lose_behind(0);
    broker.wait_for(lost.written).await.unwrap_err();
    rebuilt(&broker, &fake).await;
    fake.set_pace(Pace::AtOnce);
    assert!(broker.queue(&name("lost")).is_none() && broker.queue(&name("q")).is_some());
    broker.check_exchange(&exchange).unwrap_err();
    assert!(broker.routes_generation() > generation, "who caches routes sees that they have changed");
    let again = broker.begin_declare(&name("lost"), asked).await.unwrap();
    assert!(again.queue.id() > lost.queue.id(), "an id is not given twice");
    lost.queue.push(&NewMessage::new("x")).expect_err("the handle is of a queue that never was");
    compare(&broker, &fake).await;
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proposal_that_is_refused_changes_nothing() {
    let (broker, fake) = with_queue(QueueConfig::default()).await;
    let queue = name("q");
    let push = || broker.push(&queue, vec![NewMessage::new("m")]);
    fake.refuse_next(ProposeError::Full { reason: "a test says so".into() });
    assert!(matches!(push().await, Err(QueueError::Alarm(_))));
    fake.refuse_next(ProposeError::Unavailable { reason: "another leads".into() });
    assert!(matches!(push().await, Err(QueueError::Unavailable { .. })));
    fake.refuse_next(ProposeError::Busy);
    push().await.unwrap()[0].as_ref().expect("a busy journal is tried again");
    assert_eq!(broker.queue(&name("q")).unwrap().counts().0, 1);
    compare(&broker, &fake).await;
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_counts_only_when_its_state_is_committed() {
    let (broker, fake) = with_queue(QueueConfig::default()).await;
    broker.push(&name("q"), vec![NewMessage::new("kept")]).await.unwrap();
    let checkpoint = || {
        let shared = Arc::clone(&broker.shared);
        tokio::task::spawn_blocking(move || shared.checkpoint())
    };
    checkpoint().await.unwrap().unwrap();
    let before = broker.shared.maintenance.last_manifest();
    fake.set_pace(Pace::Held);
    let pushing = broker.clone();
    let push = tokio::spawn(async move { pushing.push(&name("q"), vec![NewMessage::new("lost")]).await });
    while fake.pending() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let early = checkpoint();
    tokio::time::sleep(A_WHILE).await;
    assert!(!early.is_finished());
    fake.lose_behind(0);
    assert_eq!(early.await.unwrap(), Err(ProposeError::Lost));
    assert_eq!(broker.shared.maintenance.last_manifest(), before);
    push.await.unwrap().unwrap_err();
    rebuilt(&broker, &fake).await;
    fake.set_pace(Pace::AtOnce);
    assert_eq!(bodies(&broker.peek(&name("q"), 10).await.unwrap()), ["kept"]);
    compare(&broker, &fake).await;
    checkpoint().await.unwrap().unwrap();
    assert!(broker.shared.maintenance.last_manifest() > before);
    broker.shutdown().await;
}
