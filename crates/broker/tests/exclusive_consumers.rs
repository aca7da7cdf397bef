//! Consumers that want a queue for themselves: whoever races with them, there is one of them or none.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::*;
use nexo_broker::{
    Access, PopError, QueueConfig, QueueError, QueueHandle, SubscribeError, SubscribeRequest, Subscription,
    Terms,
};

fn consume(queue: &QueueHandle, access: Access) -> Result<Subscription, SubscribeError> {
    queue.subscribe(Terms { access, ..Terms::default() }, 1, None, Arc::default())
}

fn is_refused(outcome: &Result<Subscription, SubscribeError>) -> bool {
    matches!(outcome, Err(SubscribeError::InExclusiveUse { .. }))
}

#[tokio::test(flavor = "multi_thread")]
async fn of_consumers_that_race_for_a_queue_one_has_it_for_itself() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    let (exclusive, shared, won) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (queue, exclusive, shared, won) = (broker.queue(&q).unwrap(), &exclusive, &shared, &won);
            scope.spawn(move || {
                for round in 0..2000 {
                    let access = if (thread + round) % 3 == 0 { Access::Shared } else { Access::Exclusive };
                    let Ok(subscription) = consume(&queue, access) else { continue };
                    won.fetch_add(1, Ordering::SeqCst);
                    let own = if access == Access::Exclusive { exclusive } else { shared };
                    own.fetch_add(1, Ordering::SeqCst);
                    if access == Access::Exclusive {
                        let seen = (exclusive.load(Ordering::SeqCst), shared.load(Ordering::SeqCst));
                        assert_eq!(seen, (1, 0), "exclusive and shared consumers");
                    }
                    own.fetch_sub(1, Ordering::SeqCst);
                    drop(subscription);
                }
            });
        }
    });
    assert!(won.load(Ordering::SeqCst) > 0);
    assert!(consume(&broker.queue(&q).unwrap(), Access::Exclusive).is_ok(), "all have left");
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_begins_anew_stays_exclusive_and_its_queue_stays() {
    let (broker, q) = with_queue(QueueConfig { auto_delete: true, ..QueueConfig::default() }).await;
    let queue = broker.queue(&q).unwrap();
    let own = consume(&queue, Access::Exclusive).unwrap();
    let ended = AtomicBool::new(false);
    let (intruders, mut own) = std::thread::scope(|scope| {
        let intruder = scope.spawn(|| {
            let mut let_in = 0;
            while !ended.load(Ordering::Relaxed) {
                let_in += usize::from(!is_refused(&consume(&queue, Access::Shared)));
            }
            let_in
        });
        let terms = Terms { access: Access::Exclusive, ..Terms::default() };
        let mut own = own;
        for _ in 0..2000 {
            own = queue.resubscribe(own, terms, 1, None, Arc::default()).unwrap();
        }
        ended.store(true, Ordering::Relaxed);
        (intruder.join().unwrap(), own)
    });
    assert_eq!(intruders, 0);
    push(&broker, &q, "x").await;
    assert_eq!(bodies(&next(&mut own).await), ["x"], "the last one is served");
    drop(own);
    eventually("the queue goes with its last consumer", || broker.queue(&q).is_none()).await;
    broker.shutdown().await;
}

#[tokio::test]
async fn all_ways_in_heed_an_exclusive_consumer_and_it_leaves_in_every_way() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    let queue = broker.queue(&q).unwrap();
    let request = SubscribeRequest { credit: 1, visibility: None, keep_leases: false };
    let own = consume(&queue, Access::Exclusive).unwrap();
    assert!(is_refused(&broker.subscribe(&q, request)));
    push(&broker, &q, "x").await;
    assert!(pop(&broker, &q, 1).await.is_empty(), "a pull is let in, but the consumer has the message");
    let held = own.close().await;
    assert_eq!(held.len(), 1);
    let native = broker.subscribe(&q, request).unwrap();
    assert!(is_refused(&consume(&queue, Access::Exclusive)));
    drop(native);
    let own = consume(&queue, Access::Exclusive).unwrap();
    broker.delete_queue(&q).await.unwrap();
    assert!(matches!(
        consume(&queue, Access::Shared),
        Err(SubscribeError::Pop(PopError::Queue(QueueError::NotFound { .. })))
    ));
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    assert!(consume(&broker.queue(&q).unwrap(), Access::Exclusive).is_ok(), "it is another queue");
    drop(own);
    broker.shutdown().await;
}

#[tokio::test]
async fn where_one_of_several_is_active_none_is_exclusive() {
    let (broker, q) =
        with_queue(QueueConfig { single_active_consumer: true, ..QueueConfig::default() }).await;
    let queue = broker.queue(&q).unwrap();
    assert!(is_refused(&consume(&queue, Access::Exclusive)));
    assert!(consume(&queue, Access::Shared).is_ok());
    broker.shutdown().await;
}
