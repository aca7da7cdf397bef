//! What a broker does while it starts: messages that were with connections come back or die, and everything they
//! need for that is there already.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::*;
use nexo_broker::{
    Access, Broker, BrokerOptions, Codecs, DeadLetter, DeadLetterCodec, DeadLetters, DeathInfo, Durability,
    GroupTake, LeaseTerms, ListRequest, NewMessage, QueueConfig, SettleMode, StoredMessage, Terms,
};
use nexo_log::disk::{CutMode, MemoryDisk};
use nexo_types::{ExchangeName, Millis, QueueName};

const SESSION: Terms = Terms {
    lease: LeaseTerms::Session,
    settle: SettleMode::Manual,
    priority: 0,
    groups: GroupTake::Head,
    access: Access::Shared,
    in_flight: None,
};

/// Takes a message as a connection would, which holds it until it ends.
async fn hold(broker: &Broker, queue: &QueueName) {
    let held = broker.queue(queue).unwrap().get(SESSION).await.unwrap();
    assert!(held.is_some(), "there is a message to hold");
}

/// What the next boot finds when the power goes once everything is synced.
async fn cut_power(broker: Broker, disk: &MemoryDisk) -> MemoryDisk {
    // A durable push syncs everything before it.
    let last = name("last");
    broker.create_queue(&last, QueueConfig::default()).await.unwrap();
    push(&broker, &last, "x").await;
    let disk = disk.after_power_cut(CutMode::Drop, 1);
    broker.shutdown().await;
    disk
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_with_ttl_zero_that_was_delivered_has_expired_after_a_restart() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    let queue = name("q");
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    let handle = broker.queue(&queue).unwrap();
    let mut consumer = handle.subscribe(SESSION, 10, None, Default::default()).unwrap();
    push_message(&broker, &queue, NewMessage { ttl: Some(Millis::ZERO), ..NewMessage::new("now or never") })
        .await;
    assert_eq!(consumer.next_handed().await.unwrap().len(), 1);
    push(&broker, &queue, "stays").await;
    let disk = cut_power(broker, &disk).await;

    let broker = open(&disk);
    let left = pop_wait(&broker, &queue).await;
    assert_eq!(left.iter().map(|one| &one.message.body[..]).collect::<Vec<_>>(), [b"stays"]);
    assert_eq!(broker.queue_stats(&queue).unwrap().ready, 0);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_of_a_start_join_those_that_are_there() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    let limited = name("limited");
    let config = QueueConfig { max_attempts: Some(1), ..QueueConfig::default() };
    broker.create_queue(&limited, config).await.unwrap();
    // Many queues come back between this one and its dead letters.
    for n in 0..300 {
        broker.create_queue(&name(&format!("other-{n}")), QueueConfig::default()).await.unwrap();
    }
    push(&broker, &limited, "dead before").await;
    let held = pop(&broker, &limited, 1).await;
    broker.nack(&receipts(&held), None).await.remove(0).unwrap();
    let letters = name("limited_dlq");
    assert_eq!(broker.queue_stats(&letters).unwrap().ready, 1);
    push(&broker, &limited, "dies while the broker starts").await;
    hold(&broker, &limited).await;
    let disk = cut_power(broker, &disk).await;

    let broker = open(&disk);
    eventually("both dead letters are in one queue", || broker.queue_stats(&letters).unwrap().ready == 2)
        .await;
    let all = broker.list_queues(&ListRequest { limit: 1000, ..ListRequest::default() });
    let same = all.iter().filter(|queue| queue.name == letters).count();
    assert_eq!(same, 1, "there is one queue of a name");
    broker.shutdown().await;
}

/// Sends every dead letter by the key that its queue asks for.
#[derive(Debug)]
struct ByKey;

impl DeadLetterCodec for ByKey {
    fn dead_letter(&self, message: StoredMessage, note: &DeathInfo<'_>) -> DeadLetter {
        DeadLetter {
            message: message.into_moved(None),
            routing_keys: note.routing_key.cloned().into_iter().collect(),
        }
    }

    fn for_queue(&self, letter: &NewMessage, _: &QueueConfig) -> NewMessage {
        letter.clone()
    }

    fn is_cycle(&self, _: &NewMessage, _: &QueueName) -> bool {
        false
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_of_a_start_go_where_their_queue_sends_them() {
    let disk = MemoryDisk::new();
    let codecs = || Codecs::default().with_dead_letters(&ByKey);
    let options = || BrokerOptions { codecs: codecs(), ..options() };
    let broker = open_with(&disk, options());
    let (work, grave) = (name("work"), name("grave"));
    let config = QueueConfig {
        max_attempts: Some(1),
        dead_letters: DeadLetters::Exchange {
            exchange: ExchangeName::default_exchange(),
            routing_key: Some(Bytes::from_static(b"grave")),
        },
        ..QueueConfig::default()
    };
    broker.create_queue(&work, config).await.unwrap();
    broker.create_queue(&grave, QueueConfig::default()).await.unwrap();
    push(&broker, &work, "dies while the broker starts").await;
    hold(&broker, &work).await;
    let disk = cut_power(broker, &disk).await;

    let broker = open_with(&disk, options());
    eventually("the dead letter is in its grave", || broker.queue_stats(&grave).unwrap().ready == 1).await;
    assert_eq!(broker.queue_stats(&work).unwrap().ready, 0);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_was_answered_is_known_after_a_power_cut() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    let limited = name("limited");
    let config = QueueConfig { max_attempts: Some(1), ..QueueConfig::default() };
    broker.create_queue(&limited, config).await.unwrap();
    push(&broker, &limited, "dead").await;
    let held = pop(&broker, &limited, 1).await;
    broker.nack(&receipts(&held), None).await.remove(0).unwrap();
    let after = disk.after_power_cut(CutMode::Drop, 1);
    broker.shutdown().await;

    let broker = open(&after);
    let letters = broker.queue_stats(&name("limited_dlq")).expect("the dead-letter queue is there");
    assert_eq!(letters.ready, 1);
    assert_eq!(broker.queue_stats(&limited).unwrap().leased, 0);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_push_that_is_refused_in_part_the_rest_is_said_to_be_taken() {
    let disk = nexo_log::disk::FaultyDisk::new();
    let options = BrokerOptions { segment_bytes: 64 * 1024, ..BrokerOptions::new("faulty") };
    let broker = Broker::open_on(Arc::new(disk.clone()), options).unwrap();
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    disk.set_bytes_max(Some(disk.used_bytes()));
    let large = || NewMessage::new(vec![7; 30_000]);
    while broker.push(&q, vec![large()]).await.is_ok_and(|answers| answers[0].is_ok()) {}
    let before = broker.queue_stats(&q).unwrap().ready;
    let transient = NewMessage { durability: Durability::Transient, ..NewMessage::new("light") };
    let answers = broker.push(&q, vec![transient, large()]).await.unwrap();
    assert!(answers[0].is_ok(), "a transient message needs no disk: {answers:?}");
    assert!(answers[1].is_err());
    assert_eq!(broker.queue_stats(&q).unwrap().ready, before + 1);
    broker.shutdown().await;
}
