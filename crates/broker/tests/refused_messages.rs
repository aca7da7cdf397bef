//! Messages that a full queue refuses and dead-letters: each becomes one dead letter, wherever the power goes.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::*;
use nexo_broker::{
    Broker, BrokerOptions, DeadLetters, Durability, Fate, NewMessage, Overflow, Pacing, PackedBatch,
    PushError, QueueConfig,
};
use nexo_log::disk::FaultyDisk;
use nexo_types::{DedupId, GroupId, Millis, Priority, QueueName};

/// Takes two messages, and dead-letters what it refuses.
fn full_at_two() -> QueueConfig {
    QueueConfig {
        max_messages: Some(2),
        overflow: Overflow::Reject,
        on_refusal: Fate::DeadLetter,
        ..QueueConfig::default()
    }
}

async fn letters(broker: &Broker, queue: &str) -> Vec<String> {
    let queue = name(queue);
    if broker.queue(&queue).is_none() { Vec::new() } else { bodies(&pop(broker, &queue, 100).await) }
}

fn is_full(answer: &Result<nexo_broker::Pushed, PushError>) -> bool {
    matches!(answer, Err(PushError::Full { .. }))
}

#[tokio::test]
async fn what_a_full_queue_refuses_is_a_dead_letter_when_the_answer_comes() {
    let (broker, q) = with_queue(full_at_two()).await;
    let messages = ["a", "b", "c", "d"].map(NewMessage::new).to_vec();
    let answers = broker.push(&q, messages).await.unwrap();
    assert_eq!(answers.iter().map(is_full).collect::<Vec<_>>(), [false, false, true, true]);
    assert_eq!(letters(&broker, "q_dlq").await, ["c", "d"]);
    let held = pop(&broker, &q, 9).await;
    assert_eq!(bodies(&held), ["a", "b"]);
    ack(&broker, &held).await;
    let stats = broker.queue_stats(&q).unwrap();
    assert_eq!((stats.ready, stats.leased), (0, 0), "nothing is left behind");
    push(&broker, &q, "e").await;
    broker.shutdown().await;
}

/// Whatever else a message asks for: it is refused, so it waits for nothing, and its sender may send it again.
#[tokio::test]
async fn a_refused_message_keeps_nobody_out() {
    let (broker, q) = with_queue(full_at_two()).await;
    let dedup = Some(DedupId::new("once").unwrap());
    let special = [
        NewMessage { delay: Millis::from_secs(3600), ..NewMessage::new("late") },
        NewMessage { ttl: Some(Millis::ZERO), ..NewMessage::new("short") },
        NewMessage { group: Some(GroupId::new("g").unwrap()), ..NewMessage::new("grouped") },
        NewMessage { dedup: dedup.clone(), ..NewMessage::new("once") },
        NewMessage { priority: Priority(9), ..NewMessage::new("urgent") },
        NewMessage { durability: Durability::Transient, ..NewMessage::new("passing") },
    ];
    let grouped = NewMessage { group: Some(GroupId::new("g").unwrap()), ..NewMessage::new("first") };
    broker.push(&q, vec![grouped, NewMessage::new("second")]).await.unwrap();
    let answers = broker.push(&q, special.to_vec()).await.unwrap();
    assert!(answers.iter().all(is_full));
    let mut found = letters(&broker, "q_dlq").await;
    found.sort_unstable();
    assert_eq!(found, ["grouped", "late", "once", "passing", "short", "urgent"]);
    let held = pop(&broker, &q, 9).await;
    assert_eq!(bodies(&held), ["first", "second"]);
    ack(&broker, &held).await;
    let again = vec![NewMessage { dedup, ..NewMessage::new("once") }];
    assert!(!broker.push(&q, again).await.unwrap().remove(0).unwrap().duplicate, "it was not taken before");
    push_message(&broker, &q, special[2].clone()).await;
    assert_eq!(bodies(&pop(&broker, &q, 9).await), ["once", "grouped"]);
    broker.shutdown().await;
}

/// Without a place for dead letters, or on a push that comes packed, the same is decided.
#[tokio::test]
async fn a_packed_push_is_refused_alike_and_nowhere_is_no_place() {
    for dead_letters in [DeadLetters::Queue(name("letters")), DeadLetters::Nowhere] {
        let (broker, q) =
            with_queue(QueueConfig { dead_letters: dead_letters.clone(), ..full_at_two() }).await;
        let mut packed = PackedBatch::new(Durability::Durable, 0, 3);
        for body in ["a", "b", "c"] {
            packed.push(&NewMessage::new(body).as_draft());
        }
        let pushed = broker.queue(&q).unwrap().push_packed(&mut Some(packed), Pacing::Unpaced).unwrap();
        assert_eq!(pushed.refused.iter().map(|refused| refused.at).collect::<Vec<_>>(), [2]);
        let is_letter = dead_letters != DeadLetters::Nowhere;
        assert_eq!(pushed.dead_letters.is_some(), is_letter);
        if let Some(mut moving) = pushed.dead_letters {
            moving.done().await.unwrap();
        }
        assert_eq!(letters(&broker, "letters").await.len(), usize::from(is_letter));
        assert_eq!(broker.queue_stats(&q).unwrap().ready, 2);
        broker.shutdown().await;
    }
}

/// Thousands at a time: more than a lane keeps in memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_that_is_refused_leaves_nothing_behind() {
    let config = QueueConfig { max_messages: Some(6_000), ..full_at_two() };
    let (broker, q) = with_queue(config).await;
    let messages = (0..9_000).map(|number| NewMessage::new(number.to_string())).collect();
    let answers = broker.push(&q, messages).await.unwrap();
    assert_eq!(answers.iter().filter(|answer| is_full(answer)).count(), 3_000);
    let dead = broker.queue_stats(&name("q_dlq")).unwrap();
    let stats = broker.queue_stats(&q).unwrap();
    assert_eq!((stats.ready, stats.leased, dead.ready), (6_000, 0, 3_000));
    broker.shutdown().await;
}

fn options() -> BrokerOptions {
    BrokerOptions { segment_bytes: 16 * 1024, ..BrokerOptions::new("faulty") }
}

/// What was sent, and whether an answer came: taken, refused, or none.
#[derive(Default)]
struct Told(BTreeMap<String, Option<bool>>);

async fn script(broker: &Broker, told: &mut Told) -> Result<(), ()> {
    let q = name("q");
    broker.create_queue(&q, full_at_two()).await.map_err(|_| ())?;
    for round in 0..4 {
        let sent: Vec<String> = (0..4).map(|number| format!("{round}-{number}")).collect();
        told.0.extend(sent.iter().map(|body| (body.clone(), None)));
        let messages = sent.iter().map(|body| NewMessage::new(body.clone())).collect();
        let answers = broker.push(&q, messages).await.map_err(|_| ())?;
        for (body, answer) in sent.into_iter().zip(answers) {
            if answer.is_ok() || is_full(&answer) {
                told.0.insert(body, Some(answer.is_ok()));
            }
        }
    }
    Ok(())
}

async fn run(disk: &FaultyDisk) -> Told {
    let mut told = Told::default();
    let Ok(broker) = Broker::open_on(Arc::new(disk.clone()), options()) else { return told };
    // The script ends where the power goes.
    let _ = script(&broker, &mut told).await;
    broker.shutdown().await;
    told
}

async fn all_in(broker: &Broker, queue: &QueueName) -> Vec<String> {
    match broker.queue(queue) {
        Some(_) => bodies(&pop(broker, queue, 100).await),
        None => Vec::new(),
    }
}

async fn check(told: &Told, disk: FaultyDisk, what: &str) {
    let broker = Broker::open_on(Arc::new(disk), options()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let (q, dead) = (name("q"), name("q_dlq"));
    let is_moved = || broker.outline(&q).map_or(0, |outline| outline.messages.len()) <= 2;
    eventually("dead letters are moved", is_moved).await;
    let (taken, letters) = (all_in(&broker, &q).await, all_in(&broker, &dead).await);
    for (body, answer) in &told.0 {
        let count = |found: &[String]| found.iter().filter(|found| *found == body).count();
        let found = (count(&taken), count(&letters));
        match answer {
            Some(true) => assert_eq!(found, (1, 0), "{what}: {body} was taken"),
            Some(false) => assert_eq!(found, (0, 1), "{what}: {body} was refused"),
            None => assert!(found.0 + found.1 <= 1, "{what}: {body} is there {found:?}"),
        }
    }
    broker.shutdown().await;
}

#[test]
fn a_refused_message_is_one_dead_letter_wherever_the_power_goes() {
    let expect = |told: &Told| {
        let refused = told.0.values().filter(|answer| **answer == Some(false)).count();
        assert_eq!((told.0.len(), refused), (16, 14), "the script does what it should");
    };
    cut_power_everywhere(&run, expect, &check);
}
