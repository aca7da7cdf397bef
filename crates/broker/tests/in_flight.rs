//! A limit of messages in flight holds however many pulls race for what it leaves.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::*;
use nexo_broker::{
    Broker, Delivery, GroupTake, InFlightLimit, LimitReached, NewMessage, PopError, PopRequest, PopTerms,
    QueueConfig,
};
use nexo_types::{GroupId, Millis, QueueName};

const MAX: usize = 25;

async fn pop_within(
    broker: &Broker,
    queue: &QueueName,
    (when_reached, groups): (LimitReached, GroupTake),
    wait: Millis,
) -> Result<Vec<Delivery>, PopError> {
    let request = PopRequest { max: 10, wait, visibility: None, bytes_max: None };
    let terms = PopTerms { groups, in_flight: Some(InFlightLimit { max: MAX, when_reached }) };
    broker.pop_on(queue, request, terms).await
}

async fn with_messages(groups: u64) -> (Broker, QueueName) {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    let message = |number: u64| NewMessage {
        group: (groups > 0).then(|| GroupId::new(&(number % groups).to_string()).unwrap()),
        ..NewMessage::new("x")
    };
    broker.push(&q, (0..500).map(message).collect()).await.unwrap();
    (broker, q)
}

#[tokio::test(flavor = "multi_thread")]
async fn pulls_that_race_take_no_more_than_the_limit_leaves() {
    for (groups, take) in [(0, GroupTake::Head), (3, GroupTake::Run)] {
        for round in 0..20 {
            let (broker, q) = with_messages(groups).await;
            let mut pulls = tokio::task::JoinSet::new();
            for number in 0..8 {
                let when_reached = if number % 2 == 0 { LimitReached::Wait } else { LimitReached::Refuse };
                let (broker, q) = (broker.clone(), q.clone());
                pulls.spawn(async move { pop_within(&broker, &q, (when_reached, take), Millis::ZERO).await });
            }
            let mut taken = 0;
            while let Some(pulled) = pulls.join_next().await {
                match pulled.unwrap() {
                    Ok(deliveries) => taken += deliveries.len(),
                    Err(error) => assert!(matches!(error, PopError::TooManyInFlight { max: MAX, .. })),
                }
            }
            // Three groups give up ten messages each.
            assert_eq!(taken, MAX, "round {round} with {groups} groups");
            assert_eq!(broker.queue(&q).unwrap().in_flight(), MAX);
            broker.shutdown().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_at_the_limit_gets_what_others_make_room_for() {
    let (broker, q) = with_messages(0).await;
    let held = pop(&broker, &q, 40).await;
    assert_eq!(held.len(), 40, "others are not bound by a limit");
    let refused = pop_within(&broker, &q, (LimitReached::Refuse, GroupTake::Head), Millis::ZERO).await;
    assert!(matches!(refused, Err(PopError::TooManyInFlight { max: MAX, .. })));
    let nothing = pop_within(&broker, &q, (LimitReached::Wait, GroupTake::Head), Millis(50)).await.unwrap();
    assert!(nothing.is_empty());
    let waiting = tokio::spawn({
        let (broker, q) = (broker.clone(), q.clone());
        let wait = Millis::from_secs(60);
        async move { pop_within(&broker, &q, (LimitReached::Wait, GroupTake::Head), wait).await.unwrap() }
    });
    let stats = || broker.queue_stats(&q).unwrap();
    eventually("it waits", || stats().consumers == 1).await;
    ack(&broker, &held[..15]).await;
    assert_eq!((stats().consumers, stats().leased), (1, 25), "there are as many as may be");
    ack(&broker, &held[15..17]).await;
    let came = waiting.await.unwrap();
    assert!((1..=2).contains(&came.len()), "{} messages", came.len());
    assert!(stats().leased <= MAX as u64);
    broker.shutdown().await;
}
