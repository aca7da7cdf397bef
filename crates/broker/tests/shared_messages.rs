//! A message for many queues is stored once. Each of them has it as if it were alone with it: after a restart, after a power
//! cut at any moment, when its segment is given up, and when its frame is damaged.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use common::*;
use nexo_broker::topology::{Binding, Destination};
use nexo_broker::{
    Broker, BrokerOptions, DeadLetters, Declaration, Durability, Health, NewMessage, Overflow, Pacing,
    PackedBatch, QueueConfig, QueueError, QueueHandle, SharedPush,
};
use nexo_log::disk::{CutMode, Disk, FaultyDisk, GateDisk, MemoryDisk};
use nexo_types::{ExchangeName, Millis, QueueName};

const SEGMENT_BYTES: u32 = 64 * 1024;
/// More than a message takes before its body.
const HEAD_BYTES: usize = 32;

fn small() -> BrokerOptions {
    BrokerOptions { segment_bytes: SEGMENT_BYTES, ..BrokerOptions::new("memory") }
}

fn names(count: usize) -> Vec<QueueName> {
    (0..count).map(|number| name(&format!("q{number}"))).collect()
}

async fn with_queues(broker: &Broker, count: usize) -> Vec<QueueName> {
    let names = names(count);
    for queue in &names {
        broker.create_queue(queue, QueueConfig::default()).await.unwrap();
    }
    names
}

fn body(number: usize, len: usize) -> String {
    format!("{number:06}{}", "x".repeat(len))
}

fn packed(durability: Durability, texts: &[String]) -> PackedBatch {
    // With room for what stands before each, so that no more is kept than is needed.
    let bytes = texts.iter().map(|text| text.len() + HEAD_BYTES).sum();
    let mut packed = PackedBatch::new(durability, bytes, texts.len());
    for text in texts {
        packed.push(&NewMessage { durability, ..NewMessage::new(text.clone()) }.as_draft());
    }
    packed
}

/// Pushes to all queues at once; the outcome for each.
fn try_push(
    broker: &Broker,
    queues: &[QueueName],
    packed: PackedBatch,
) -> Result<Vec<SharedPush>, QueueError> {
    let handles: Vec<QueueHandle> = queues.iter().map(|queue| broker.queue(queue).unwrap()).collect();
    let handles: Vec<&QueueHandle> = handles.iter().collect();
    broker.push_shared(&handles, &broker.share(packed), Pacing::Unpaced)
}

/// Pushes to all queues at once and waits until that is safe. `false` if the log failed.
async fn push_all(broker: &Broker, queues: &[QueueName], texts: &[String]) -> bool {
    loop {
        match try_push(broker, queues, packed(Durability::Durable, texts)) {
            Ok(outcomes) => {
                for outcome in outcomes {
                    let SharedPush::Taken { written, .. } = outcome else { panic!("{outcome:?}") };
                    if broker.wait_for(written).await.is_err() {
                        return false;
                    }
                }
                return true;
            }
            Err(QueueError::Busy { .. }) => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
            Err(_) => return false,
        }
    }
}

async fn peek(broker: &Broker, queue: &QueueName) -> Vec<String> {
    bodies(&broker.peek(queue, 999).await.unwrap())
}

/// What a queue takes with two messages of six bytes that it does not share, and when they are gone.
async fn memory_of_one_queue() -> (u64, u64) {
    let broker = open(&MemoryDisk::new());
    let queue = with_queues(&broker, 1).await.remove(0);
    let memory = || broker.stats().message_memory_bytes;
    let mut packed = Some(packed(Durability::Durable, &[body(1, 0), body(2, 0)]));
    let pushed = broker.queue(&queue).unwrap().push_packed(&mut packed, Pacing::Unpaced).unwrap();
    broker.wait_for(pushed.written).await.unwrap();
    let in_use = memory();
    ack(&broker, &pop(&broker, &queue, 9).await).await;
    let handle = broker.queue(&queue).unwrap();
    eventually("the messages are gone", || (handle.counts().0, handle.in_flight()) == (0, 0)).await;
    let idle = memory();
    broker.shutdown().await;
    (in_use, idle)
}

#[tokio::test]
async fn a_message_for_many_queues_is_written_and_counted_once() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    let queues = with_queues(&broker, 100).await;
    let (text, other) = (body(1, 50_000), body(2, 20_000));
    let (in_use, idle) = memory_of_one_queue().await;
    let before = broker.stats();
    assert!(push_all(&broker, &queues, &[text.clone(), other.clone()]).await);
    let after = broker.stats();
    let written = after.log.frame_bytes - before.log.frame_bytes;
    assert!(written < 70_000 + 100 * 40, "{written} bytes are written");
    let memory = after.message_memory_bytes - before.message_memory_bytes;
    // The bodies once, and for each queue what it takes by itself.
    let most = 70_012 + 4 * HEAD_BYTES as u64 + 100 * in_use;
    assert!((70_000..=most).contains(&memory), "{memory} bytes of memory are counted; {most} at most");
    for queue in &queues {
        assert_eq!(broker.queue_stats(queue).unwrap().bytes, 70_012, "a queue knows how much waits in it");
        assert!(peek(&broker, queue).await == [text.clone(), other.clone()], "{queue}");
    }
    for queue in &queues {
        let held = pop(&broker, queue, 9).await;
        assert!(bodies(&held) == [text.clone(), other.clone()], "{queue}");
        ack(&broker, &held).await;
    }
    // A queue keeps room for a few later messages, and that is counted.
    let left = || broker.stats().message_memory_bytes - before.message_memory_bytes;
    eventually("the memory is given back", || left() <= 100 * idle).await;
    broker.shutdown().await;
}

#[tokio::test]
async fn each_queue_has_it_after_a_restart_and_reads_it_from_the_log() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    let queues = with_queues(&broker, 5).await;
    let texts: Vec<String> = (0..40).map(|number| body(number, 9_000)).collect();
    for pair in texts.chunks(2) {
        push(&broker, &queues[1], "between").await;
        assert!(push_all(&broker, &queues, pair).await);
    }
    let cut = disk.after_power_cut(CutMode::Drop, 0);
    broker.shutdown().await;
    for disk in [disk, cut] {
        let broker = open(&disk);
        for queue in &queues {
            let mut found = peek(&broker, queue).await;
            found.retain(|text| text != "between");
            assert!(found == texts, "{queue}");
            let mut taken = Vec::new();
            while taken.len() < texts.len() {
                let held = pop_wait(&broker, queue).await;
                taken.extend(bodies(&held).into_iter().filter(|text| text != "between"));
                ack(&broker, &held).await;
            }
            assert!(taken == texts, "{queue}");
        }
        broker.shutdown().await;
    }
}

#[tokio::test]
async fn a_queue_that_must_look_at_messages_is_left_out_and_a_deleted_one_is_told() {
    let broker = open(&MemoryDisk::new());
    let mut queues = with_queues(&broker, 3).await;
    let strict = [
        QueueConfig { ttl: Some(Millis(60_000)), ..QueueConfig::default() },
        QueueConfig { max_messages: Some(5), overflow: Overflow::Reject, ..QueueConfig::default() },
    ];
    for (number, config) in strict.into_iter().enumerate() {
        let queue = name(&format!("strict{number}"));
        broker.create_queue(&queue, config).await.unwrap();
        queues.push(queue);
    }
    let (passing, _) = broker
        .declare_queue(
            &name("passing"),
            Declaration { durability: Durability::Transient, config: QueueConfig::default(), owner: None },
        )
        .await
        .unwrap();
    queues.push(passing.name().clone());
    // Named twice.
    queues.push(queues[0].clone());
    let handles: Vec<QueueHandle> = queues.iter().map(|queue| broker.queue(queue).unwrap()).collect();
    broker.delete_queue(&queues[2]).await.unwrap();
    let messages = broker.share(packed(Durability::Durable, &[body(1, 5_000)]));
    let handles: Vec<&QueueHandle> = handles.iter().collect();
    let outcomes = broker.push_shared(&handles, &messages, Pacing::Unpaced).unwrap();
    let said: Vec<&str> = outcomes
        .iter()
        .map(|outcome| match outcome {
            SharedPush::Taken { .. } => "taken",
            SharedPush::Alone => "alone",
            SharedPush::Gone => "gone",
        })
        .collect();
    assert_eq!(said[1..6], ["taken", "gone", "alone", "alone", "alone"]);
    assert!([said[0], said[6]].contains(&"taken") && [said[0], said[6]].contains(&"alone"), "{said:?}");
    for (queue, ready) in [(0, 1), (1, 1), (3, 0), (4, 0), (5, 0)] {
        assert_eq!(broker.queue_stats(&queues[queue]).unwrap().ready, ready, "{}", queues[queue]);
    }
    broker.shutdown().await;
}

#[tokio::test]
async fn transient_messages_are_shared_in_memory_and_spill_once_when_it_is_short() {
    let options = BrokerOptions { memory_bytes_max: 1 << 20, ..small() };
    let broker = open_with(&MemoryDisk::new(), options);
    let queues = with_queues(&broker, 20).await;
    let push = |number| {
        let texts = [body(number, 100_000)];
        for outcome in try_push(&broker, &queues, packed(Durability::Transient, &texts)).unwrap() {
            assert!(matches!(outcome, SharedPush::Taken { .. }), "{outcome:?}");
        }
    };
    let before = broker.stats().log.frame_bytes;
    push(0);
    let written = broker.stats().log.frame_bytes - before;
    assert!(written < 2_000, "offsets are set aside, and the message is not written: {written}");
    assert!(broker.stats().message_memory_bytes < 400_000, "it is counted once");
    for number in 1..30 {
        push(number);
    }
    let written = broker.stats().log.frame_bytes - before;
    assert!((1_500_000..3_100_000).contains(&written), "most are written, once: {written}");
    for queue in &queues {
        for number in 0..30 {
            let held = pop_wait(&broker, queue).await;
            assert!(bodies(&held) == [body(number, 100_000)], "{queue}");
            ack(&broker, &held).await;
        }
    }
    broker.shutdown().await;
}

/// What a run was told.
#[derive(Default)]
struct Told {
    pushed: usize,
    confirmed: BTreeSet<usize>,
    /// By queue: for which an acknowledgement was asked for, and for which it was confirmed.
    maybe_gone: BTreeMap<QueueName, BTreeSet<String>>,
    gone: BTreeMap<QueueName, BTreeSet<String>>,
    queues: Vec<QueueName>,
}

const CRASH_QUEUES: usize = 4;

async fn crash_script(broker: &Broker, told: &mut Told) -> Option<()> {
    for queue in names(CRASH_QUEUES) {
        broker.create_queue(&queue, QueueConfig::default()).await.ok()?;
        told.queues.push(queue);
    }
    for round in 0..14 {
        let number = told.pushed;
        told.pushed += 1;
        if !push_all(broker, &told.queues, &[body(number, 4_200)]).await {
            return None;
        }
        told.confirmed.insert(number);
        if round % 3 == 2 {
            // Most queues are done with it early, so that segments are given up while one still has some.
            for queue in &told.queues[1..] {
                let held = pop(broker, queue, 3).await;
                told.maybe_gone.entry(queue.clone()).or_default().extend(bodies(&held));
                for answer in broker.ack(&receipts(&held)).await {
                    answer.ok()?;
                }
                told.gone.entry(queue.clone()).or_default().extend(bodies(&held));
            }
        }
        if round % 5 == 4 {
            let queue = &told.queues[0];
            let held = pop(broker, queue, 4).await;
            told.maybe_gone.entry(queue.clone()).or_default().extend(bodies(&held));
            for answer in broker.ack(&receipts(&held)).await {
                answer.ok()?;
            }
            told.gone.entry(queue.clone()).or_default().extend(bodies(&held));
        }
    }
    Some(())
}

fn crash_options() -> BrokerOptions {
    BrokerOptions { segment_bytes: 16 * 1024, ..BrokerOptions::new("faulty") }
}

async fn run(disk: &FaultyDisk) -> Told {
    let mut told = Told::default();
    let Ok(broker) = Broker::open_on(Arc::new(disk.clone()), crash_options()) else { return told };
    // The script ends where the power goes.
    let _ = crash_script(&broker, &mut told).await;
    broker.shutdown().await;
    told
}

async fn check(told: &Told, disk: FaultyDisk, what: &str) {
    let broker =
        Broker::open_on(Arc::new(disk), crash_options()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut found: BTreeMap<&QueueName, BTreeSet<String>> = BTreeMap::new();
    let nothing = BTreeSet::new();
    for queue in &told.queues {
        let mut taken = BTreeSet::new();
        while broker.queue_stats(queue).unwrap().ready > 0 {
            let held = pop_wait(&broker, queue).await;
            taken.extend(bodies(&held));
            ack(&broker, &held).await;
        }
        let gone = told.gone.get(queue).unwrap_or(&nothing);
        assert!(taken.is_disjoint(gone), "{what}: what {queue} acknowledged is back");
        assert_eq!(broker.queue_stats(queue).unwrap().damaged, 0, "{what}");
        found.insert(queue, taken);
    }
    for number in 0..told.pushed {
        let text = body(number, 4_200);
        let has = |queue: &&QueueName| {
            let maybe_gone = told.maybe_gone.get(*queue).unwrap_or(&nothing).contains(&text);
            maybe_gone || found[*queue].contains(&text)
        };
        let having = told.queues.iter().filter(has).count();
        let all = told.queues.len();
        assert!(having == all || having == 0, "{what}: {having} of {all} queues have message {number}");
        assert!(having == all || !told.confirmed.contains(&number), "{what}: message {number} is lost");
    }
    broker.shutdown().await;
}

#[test]
fn all_queues_have_a_message_or_none_wherever_the_power_goes() {
    let expect = |told: &Told| assert_eq!(told.confirmed.len(), 14);
    cut_power_everywhere(&run, expect, &check);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_is_given_up_while_one_of_many_queues_still_has_a_message_in_it() {
    let disk = MemoryDisk::new();
    let broker = open_with(&disk, small());
    let queues = with_queues(&broker, 6).await;
    let texts: Vec<String> = (0..24).map(|number| body(number, 8_000)).collect();
    for text in &texts {
        assert!(push_all(&broker, &queues, std::slice::from_ref(text)).await);
    }
    let first = disk.list("segments").unwrap().into_iter().min().unwrap();
    // Only one message stays, in one queue; and it is no longer in memory.
    let kept = &queues[3];
    let held = pop(&broker, kept, 24).await;
    ack(&broker, &held[1..]).await;
    broker.nack(&receipts(&held[..1]), Some(Millis::ZERO)).await.remove(0).unwrap();
    for queue in queues.iter().filter(|queue| *queue != kept) {
        let held = pop(&broker, queue, 24).await;
        assert_eq!(held.len(), 24);
        ack(&broker, &held).await;
    }
    let filler = name("filler");
    broker.create_queue(&filler, QueueConfig::default()).await.unwrap();
    for _ in 0..400 {
        if !disk.list("segments").unwrap().contains(&first) {
            break;
        }
        push(&broker, &filler, &"f".repeat(6_000)).await;
        let held = pop(&broker, &filler, 9).await;
        ack(&broker, &held).await;
    }
    assert!(!disk.list("segments").unwrap().contains(&first), "{:?}", disk.list("segments"));
    let cut = disk.after_power_cut(CutMode::Drop, 0);
    assert!(peek(&broker, kept).await == texts[..1]);
    broker.shutdown().await;
    for disk in [disk, cut] {
        let broker = open_with(&disk, small());
        assert!(peek(&broker, kept).await == texts[..1]);
        for queue in queues.iter().filter(|queue| *queue != kept) {
            assert_eq!(broker.queue_stats(queue).unwrap().ready, 0);
        }
        assert_eq!(broker.health(), Health::Ok);
        broker.shutdown().await;
    }
}

#[tokio::test]
async fn damage_to_a_shared_message_is_reported_for_each_of_its_queues() {
    let disk = MemoryDisk::new();
    let broker = open_with(&disk, small());
    let queues = with_queues(&broker, 4).await;
    for number in 0..3 {
        assert!(push_all(&broker, &queues, &[body(number, 6_000)]).await);
    }
    // What is damaged is not the end of the log.
    push(&broker, &queues[0], "last").await;
    let crashed = disk.after_power_cut(CutMode::Drop, 0);
    broker.shutdown().await;
    for disk in [disk, crashed] {
        let mut hit = 0;
        for file in disk.list("segments").unwrap() {
            let path = format!("segments/{file}");
            let open = disk.open(&path).unwrap();
            let mut bytes = vec![0; open.len().unwrap() as usize];
            open.read_at(&mut bytes, 0).unwrap();
            if let Some(at) = bytes.windows(8).position(|window| window == b"000001xx") {
                disk.flip_bit(&path, at + 100, 3);
                hit += 1;
            }
        }
        assert_eq!(hit, 1, "the message is stored once");
        let broker = open_with(&disk, small());
        for queue in &queues {
            let mut found = Vec::new();
            while broker.queue_stats(queue).unwrap().ready > 0 {
                let held = pop(&broker, queue, 9).await;
                found.extend(bodies(&held).into_iter().filter(|text| text != "last"));
                ack(&broker, &held).await;
            }
            assert!(found == [body(0, 6_000), body(2, 6_000)], "{queue}: {}", found.len());
            assert_eq!(broker.queue_stats(queue).unwrap().damaged, 1, "{queue}");
        }
        assert!(matches!(broker.health(), Health::Degraded { .. }));
        assert_eq!(broker.stats().damaged_messages, 4);
        broker.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_would_wait_for_the_disk_holds_no_queue() {
    let gate = GateDisk::default();
    let broker = Broker::open_on(Arc::new(gate.clone()), small()).unwrap();
    let queues = with_queues(&broker, 3).await;
    gate.hold_writes();
    let mut taken = 0;
    let reason = loop {
        match try_push(&broker, &queues, packed(Durability::Durable, &[body(taken, 8_000)])) {
            Ok(_) => taken += 1,
            Err(QueueError::Busy { reason }) => break reason,
            Err(error) => panic!("{error:?}"),
        }
        assert!(taken < 100, "segments come although the disk stands still");
    };
    let unwritten = broker.unwritten_bytes();
    let told = format!(
        "queue '{}' has to wait: the disk is behind, and {unwritten} bytes are not written yet",
        queues[0]
    );
    assert!(reason == told && unwritten > taken * 8_000, "{reason}, not {told}");
    for queue in &queues {
        assert_eq!(broker.queue_stats(queue).unwrap().ready, taken as u64, "nothing was taken by halves");
    }
    gate.open_gate();
    assert!(push_all(&broker, &queues, &[body(taken, 8_000)]).await);
    for queue in &queues {
        assert_eq!(peek(&broker, queue).await.len(), taken + 1);
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_for_several_queues_is_stored_once() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    let graves = with_queues(&broker, 10).await;
    let fanout = || ExchangeName::new("amq.fanout").unwrap();
    for grave in &graves {
        let binding = Binding::new(fanout(), Destination::Queue(grave.clone()), Bytes::new(), Vec::new());
        broker.bind(binding).await.unwrap();
    }
    let work = name("work");
    let config = QueueConfig {
        max_attempts: Some(1),
        dead_letters: DeadLetters::Exchange { exchange: fanout(), routing_key: None },
        ..QueueConfig::default()
    };
    broker.create_queue(&work, config).await.unwrap();
    let text = body(1, 20_000);
    push(&broker, &work, &text).await;
    let before = broker.stats().log.frame_bytes;
    let held = pop(&broker, &work, 1).await;
    broker.nack(&receipts(&held), None).await.remove(0).unwrap();
    eventually("the dead letter is in all graves", || {
        graves.iter().all(|grave| broker.queue_stats(grave).unwrap().ready == 1)
    })
    .await;
    let written = broker.stats().log.frame_bytes - before;
    assert!((20_000..22_000).contains(&written), "{written} bytes are written");
    let cut = disk.after_power_cut(CutMode::Keep, 0);
    broker.shutdown().await;
    let broker = open(&cut);
    for grave in &graves {
        assert!(peek(&broker, grave).await == std::slice::from_ref(&text), "{grave}");
    }
    broker.shutdown().await;
}
