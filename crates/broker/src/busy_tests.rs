//! Figures while the disk is behind: what is refused and tried again is counted once, when it is done.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use nexo_core::config::QueueConfig;
use nexo_core::draft::PackedBatch;
use nexo_core::jobs::JobQueueConfig;
use nexo_core::message::{Durability, NewMessage};
use nexo_core::record::Record;
use nexo_log::disk::{Disk, GateDisk};
use nexo_log::{Claim, Patience, Urgency};
use nexo_types::{DedupId, JobQueueName, Millis, Offset, Protocol, QueueName, SegmentId};

use crate::broker::Broker;
use crate::flow::Pacing;
use crate::handle::SETTLE_SLICE;
use crate::jobs::JobRequest;
use crate::journal::ProposeError;
use crate::options::BrokerOptions;
use crate::push_order::PushOrder;
use crate::request::{PopRequest, Settle, SubscribeRequest};

/// More than keeps consumers busy.
const TOO_MUCH: usize = 40_000;

fn name(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

fn open(gate: &GateDisk) -> Broker {
    let options = BrokerOptions { segment_bytes: 64 * 1024, ..BrokerOptions::new("memory") };
    Broker::open_on(Arc::new(gate.clone()), options).unwrap()
}

async fn with_queues(gate: &GateDisk, queues: &[&str]) -> Broker {
    let broker = open(gate);
    for queue in queues {
        broker.create_queue(&name(queue), QueueConfig::default()).await.unwrap();
    }
    broker
}

async fn pop(broker: &Broker, queue: &str, max: usize) -> Vec<crate::delivery::Delivery> {
    let request = PopRequest { max, wait: Millis::from_secs(20), visibility: None, bytes_max: None };
    broker.pop(&name(queue), request).await.unwrap()
}

/// Opens the gate when it is dropped: a broker whose test has failed would wait for the disk for ever.
struct Stopped(GateDisk);

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.open_gate();
    }
}

/// Has the disk stand still, and appends until nothing more goes in, not even what is refused last.
#[must_use]
fn stop_disk(broker: &Broker, gate: &GateDisk) -> Stopped {
    gate.hold_writes();
    let stopped = Stopped(gate.clone());
    let cell = broker.shared.catalog.get(&name("filling")).unwrap();
    let mut state = cell.state.lock();
    for _ in 0..100_000 {
        let record = Record::Purge { before: Offset(0), at: broker.shared.clock.now() };
        let appended =
            broker.shared.commit(&mut state, &[record], Urgency::Lazy, Claim::Reserved, Patience::RefuseLast);
        match appended {
            Ok(_) => {}
            Err(ProposeError::Busy) => return stopped,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("segments come although the disk stands still");
}

fn packed(durability: Durability, count: usize) -> Option<PackedBatch> {
    let mut packed = PackedBatch::new(durability, 0, count);
    for number in 0..count {
        let message = NewMessage { durability, ..NewMessage::new(format!("{number}")) };
        packed.push(&message.as_draft());
    }
    Some(packed)
}

/// What a future gives when it is polled once, if it ends then.
async fn polled_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let poll = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx)));
    match poll.await {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// A push that had to wait for room is not overtaken by one that found some.
#[tokio::test(flavor = "multi_thread")]
async fn pushes_of_one_order_keep_it_when_the_disk_is_behind() {
    let gate = GateDisk::default();
    let broker = with_queues(&gate, &["q", "filling"]).await;
    let order = PushOrder::default();
    let push = |text: &'static str| {
        let (broker, turn) = (broker.clone(), order.turn());
        let hold = broker.intake().try_hold(1000);
        Box::pin(
            async move { broker.push_in_turn(turn, &name("q"), vec![NewMessage::new(text)], hold).await },
        )
    };
    let stopped = stop_disk(&broker, &gate);
    let mut first = push("first");
    assert!(polled_once(&mut first).await.is_none(), "there is no room");
    assert_eq!(broker.intake().held_bytes(), 1000, "it holds its memory while it waits");
    drop(stopped);
    broker.shared.until_room().await;
    let mut second = push("second");
    let done = polled_once(&mut second).await;
    assert!(first.await.unwrap()[0].is_ok());
    let done = match done {
        Some(done) => done,
        None => second.await,
    };
    assert!(done.unwrap()[0].is_ok());
    assert_eq!(broker.intake().held_bytes(), 0);
    let bodies: Vec<_> = pop(&broker, "q", 2).await.into_iter().map(|one| one.message.body).collect();
    assert_eq!(bodies, ["first", "second"]);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_is_refused_and_tried_again_is_charged_once() {
    let gate = GateDisk::default();
    let broker = with_queues(&gate, &["q", "filling"]).await;
    let request = SubscribeRequest { credit: 0, visibility: None, keep_leases: false };
    let _consumer = broker.subscribe(&name("q"), request).unwrap();
    let queue = broker.queue(&name("q")).unwrap();
    for _ in 0..TOO_MUCH / 1000 {
        queue.push_packed(&mut packed(Durability::Transient, 1000), Pacing::Paced).unwrap();
    }
    // The first push to a queue that is ahead begins the account.
    queue.push_packed(&mut packed(Durability::Transient, 1), Pacing::Paced).unwrap();
    let charged = || queue.cell.state.lock().flow.charged();
    let before = charged();
    let stopped = stop_disk(&broker, &gate);
    let mut refused = packed(Durability::Durable, 10);
    let messages = refused.as_ref().unwrap().messages().unwrap();
    for _ in 0..3 {
        let error = queue.push_packed(&mut refused, Pacing::Paced).unwrap_err();
        assert!(error.is_busy(), "{error}");
        assert_eq!(refused.as_ref().unwrap().messages().unwrap(), messages, "it is given back whole");
        assert_eq!(charged(), before, "nothing was taken");
    }
    drop(stopped);
    broker.shared.until_room().await;
    queue.push_packed(&mut refused, Pacing::Paced).unwrap();
    assert_eq!(charged(), before + 10);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_that_is_said_again_counts_once() {
    let gate = GateDisk::default();
    let broker = with_queues(&gate, &["q", "filling"]).await.over(Protocol::Amqp);
    let count = SETTLE_SLICE + 5;
    broker.push(&name("q"), vec![NewMessage::new("x"); count]).await.unwrap();
    let mut held: Vec<(Offset, u32)> = Vec::new();
    while held.len() < count {
        held.extend(pop(&broker, "q", 1000).await.iter().map(|one| (one.offset, one.attempt)));
    }
    let queue = broker.queue(&name("q")).unwrap();
    let acked = || broker.traffic().of(Protocol::Amqp).stats().acked;
    // The first slice went in before the disk fell behind.
    queue.settle(&held[..SETTLE_SLICE], Settle::Ack).unwrap();
    let stopped = stop_disk(&broker, &gate);
    assert!(queue.settle(&held, Settle::Ack).unwrap_err().is_busy());
    assert_eq!(acked(), SETTLE_SLICE as u64);
    // Whoever goes away leaves it to the broker.
    queue.settle_eventually(&held, Settle::Ack).unwrap();
    drop(stopped);
    for _ in 0..2000 {
        if queue.in_flight() == 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!((queue.in_flight(), acked()), (0, count as u64));
    broker.shutdown().await;
}

/// To hand out a transient message nothing has to be written.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_consumer_gives_back_late_is_not_overtaken() {
    let gate = GateDisk::default();
    let broker = with_queues(&gate, &["q", "filling"]).await;
    broker.push(&name("q"), vec![NewMessage::new("first")]).await.unwrap();
    let passing = NewMessage { durability: Durability::Transient, ..NewMessage::new("second") };
    broker.push(&name("q"), vec![passing]).await.unwrap();
    let queue = broker.queue(&name("q")).unwrap();
    let request = SubscribeRequest { credit: 1, visibility: None, keep_leases: false };
    let consumer = broker.subscribe(&name("q"), request).unwrap();
    assert_eq!(queue.in_flight(), 1, "it has not looked at it");
    let stopped = stop_disk(&broker, &gate);
    drop(consumer);
    assert_eq!(queue.in_flight(), 1, "that it is back cannot be written down");
    let kept = format!("{:?}", *queue.cell.state.lock().unsettled);
    assert_eq!(kept.matches("Offset").count(), 1, "twice would take it from whoever has it next: {kept}");
    let next = tokio::spawn({
        let broker = broker.clone();
        async move { pop(&broker, "q", 1).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(stopped);
    let mut bodies: Vec<_> = next.await.unwrap().into_iter().map(|one| one.message.body).collect();
    bodies.extend(pop(&broker, "q", 1).await.into_iter().map(|one| one.message.body));
    assert_eq!(bodies, ["first", "second"]);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repetition_that_waits_for_the_disk_counts_once() {
    let gate = GateDisk::default();
    let broker = with_queues(&gate, &["q", "filling"]).await;
    let passing = || NewMessage { durability: Durability::Transient, ..NewMessage::new("passing") };
    // The first sets offsets aside, which is written down.
    broker.push(&name("q"), vec![passing()]).await.unwrap();
    let stopped = stop_disk(&broker, &gate);
    let once = || NewMessage { dedup: Some(DedupId::new("once").unwrap()), ..NewMessage::new("durable") };
    let pushing = broker.clone();
    let push =
        tokio::spawn(async move { pushing.push(&name("q"), vec![passing(), once(), once()]).await.unwrap() });
    // The one that needs no disk is there; the others are being tried.
    for _ in 0..2000 {
        if broker.queue_stats(&name("q")).unwrap().pushed > 1 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(broker.queue_stats(&name("q")).unwrap().pushed, 2);
    drop(stopped);
    let answers: Vec<bool> = push.await.unwrap().into_iter().map(|one| one.unwrap().duplicate).collect();
    assert_eq!(answers, [false, false, true]);
    assert_eq!(broker.queue_stats(&name("q")).unwrap().duplicates, 1);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_dead_letter_that_waits_for_the_disk_counts_once() {
    let gate = GateDisk::default();
    let broker = with_queues(&gate, &["q", "q_dlq", "filling"]).await;
    broker.push(&name("q"), vec![NewMessage::new("to be damaged")]).await.unwrap();
    broker.shutdown().await;
    drop(broker);
    let broker = open(&gate);
    let held = pop(&broker, "q", 1).await;
    damage(&gate, b"to be damaged");
    let stopped = stop_disk(&broker, &gate);
    let cell = broker.shared.catalog.get(&name("q")).unwrap();
    {
        // The disk takes nothing now: as if this had been written before it stopped.
        let mut state = cell.state.lock();
        let held: Vec<(Offset, u32)> = held.iter().map(|one| (one.offset, one.attempt)).collect();
        let now = broker.shared.clock.now();
        let (_, plan) = state.queue.decide_return(now, &held, nexo_core::queue::ReturnCause::Reject);
        assert_eq!(plan.deaths.len(), 1);
        for record in &plan.records {
            broker.shared.apply_unwritten(&mut state, record);
        }
        state.pending_deaths.0.extend(plan.deaths);
    }
    let (shared, moving) = (Arc::clone(&broker.shared), Arc::clone(&cell));
    let moved = tokio::task::spawn_blocking(move || shared.dead_letter_pending(&moving));
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!(!moved.is_finished(), "it waits for the disk");
    assert_eq!(broker.stats().damaged_messages, 0, "it has not left its queue");
    drop(stopped);
    moved.await.unwrap().unwrap();
    assert_eq!(broker.stats().damaged_messages, 1);
    assert_eq!(broker.queue_stats(&name("q")).unwrap().damaged, 1);
    broker.shutdown().await;
}

/// Changes what is written on the disk of a message.
fn damage(gate: &GateDisk, text: &[u8]) {
    for id in 1..10 {
        let Ok(file) = gate.open(&format!("segments/{}.seg", SegmentId(id))) else { continue };
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        if let Some(at) = bytes.windows(text.len()).position(|window| window == text) {
            file.write_at(b"?", at as u64).unwrap();
            return;
        }
    }
    panic!("the message is nowhere");
}

/// A worker that does not wait is told that there is no job only if there is none.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_that_does_not_wait_finds_its_job_when_the_disk_was_behind() {
    let gate = GateDisk::default();
    let broker = with_queues(&gate, &["filling"]).await;
    let deals = JobQueueName::new("deals").unwrap();
    broker.put_job_queue(&deals, JobQueueConfig::default()).await.unwrap();
    let request = JobRequest { kind: "search".into(), key: "phones".into(), ..JobRequest::default() };
    broker.ask_job(&deals, &request).await.unwrap();
    let stopped = stop_disk(&broker, &gate);
    let mut taking = Box::pin(broker.take_jobs(&deals, "worker", None, 1, Duration::ZERO));
    assert!(polled_once(&mut taking).await.is_none(), "there is a job, and no room to write down who has it");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(polled_once(&mut taking).await.is_none(), "nor when its time is over");
    drop(stopped);
    let jobs = taking.await.unwrap();
    assert_eq!(jobs.len(), 1);
    assert!(broker.take_jobs(&deals, "worker", None, 1, Duration::ZERO).await.unwrap().is_empty());
}
