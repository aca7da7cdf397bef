//! The two streams of the native API: pushing and subscribing.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Served, ack, message, start, within};
use nexo_broker::{Broker, BrokerOptions};
use nexo_grpc::proto::{self, push_result::Outcome};
use nexo_log::disk::GateDisk;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

fn request(sequence: u64, queue: &str, bodies: &[&str]) -> proto::PushStreamRequest {
    let messages = bodies.iter().map(|body| message(body)).collect();
    proto::PushStreamRequest { sequence, queue: queue.into(), messages, ..Default::default() }
}

/// Sends all requests, ends the stream and gives all confirms.
async fn push_all(served: &Served, requests: Vec<proto::PushStreamRequest>) -> Vec<proto::PushConfirm> {
    let stream = tokio_stream::iter(requests);
    let mut replies = served.client.messages().push_stream(stream).await.unwrap().into_inner();
    let mut confirms = Vec::new();
    while let Some(reply) = within(replies.message()).await.unwrap() {
        confirms.extend(reply.confirms);
    }
    confirms
}

#[tokio::test]
async fn many_pushes_in_flight_are_confirmed_in_order() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    let bodies: Vec<String> = (0..5000).map(|n| n.to_string()).collect();
    let requests = bodies.iter().enumerate().map(|(n, body)| {
        let queue = if n == 0 { "q" } else { "" };
        request(n as u64 + 1, queue, &[body])
    });
    let confirms = push_all(&served, requests.collect()).await;
    for (n, confirm) in confirms.iter().enumerate() {
        assert_eq!(confirm.sequence, n as u64 + 1);
        assert!(
            matches!(&confirm.results[0].outcome, Some(Outcome::Pushed(pushed)) if pushed.id == n as u64),
            "{confirm:?}"
        );
    }
    assert_eq!(confirms.len(), 5000);
    let popped = served.pop("q", 5000).await;
    assert!(popped.iter().map(|message| &message.body[..]).eq(bodies.iter().map(String::as_bytes)));
}

#[tokio::test]
async fn a_bad_request_fails_alone() {
    let served = Served::start().await;
    served.create("a", proto::QueueConfig::default()).await;
    served.create("b", proto::QueueConfig { max_messages: Some(1), ..Default::default() }).await;
    let mut bad = request(3, "a", &["x"]);
    bad.messages[0].priority = 999;
    let requests = vec![
        request(1, "a", &["one", "two"]),
        request(2, "nowhere", &["x"]),
        bad,
        request(4, "b", &["kept", "refused"]),
        request(5, "a", &["three"]),
        request(6, "a", &[]),
    ];
    let confirms = push_all(&served, requests).await;
    let summary: Vec<_> = confirms
        .iter()
        .map(|confirm| {
            let code = confirm.error.as_ref().map_or(Code::Ok, |error| error.code.into());
            (confirm.sequence, code, confirm.results.len())
        })
        .collect();
    assert_eq!(
        summary,
        [
            (1, Code::Ok, 2),
            (2, Code::NotFound, 0),
            (3, Code::InvalidArgument, 0),
            (4, Code::Ok, 2),
            (5, Code::Ok, 1),
            (6, Code::InvalidArgument, 0)
        ]
    );
    let error = confirms[2].error.as_ref().unwrap();
    assert_eq!(error.message, "messages[0].priority must be between 0 and 255; it is 999");
    assert!(
        matches!(&confirms[3].results[1].outcome, Some(Outcome::Error(error)) if Code::from(error.code) == Code::ResourceExhausted)
    );
    assert_eq!(served.pop("a", 10).await.len(), 3);
}

#[tokio::test]
async fn a_push_is_confirmed_while_the_stream_stays_open() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    let (requests, stream) = mpsc::channel(8);
    let mut replies =
        served.client.messages().push_stream(ReceiverStream::new(stream)).await.unwrap().into_inner();
    for sequence in 1..=3 {
        requests.send(request(sequence, "q", &["x"])).await.unwrap();
        let reply = within(replies.message()).await.unwrap().unwrap();
        assert_eq!(reply.confirms[0].sequence, sequence);
    }
}

/// And they do not wait for memory that only they themselves can give back.
#[tokio::test(flavor = "multi_thread")]
async fn pushes_that_wait_for_the_disk_hold_their_memory() {
    const REQUESTS: u64 = 80;
    let gate = GateDisk::default();
    // A quarter of this, 4 MiB, is for what is on its way in.
    let memory_bytes_max = 16 * 1024 * 1024;
    let options =
        BrokerOptions { segment_bytes: 256 * 1024, memory_bytes_max, ..BrokerOptions::new("memory") };
    let broker = Broker::open_on(Arc::new(gate.clone()), options).unwrap();
    let served = Served::serve(broker, None).await;
    served.create("q", proto::QueueConfig::default()).await;
    let body = "x".repeat(100 * 1024);
    gate.hold_writes();
    let requests: Vec<_> = (1..=REQUESTS).map(|n| request(n, "q", &[&body])).collect();
    let (send, stream) = mpsc::channel(REQUESTS as usize);
    for request in requests {
        send.send(request).await.unwrap();
    }
    let client = served.client.clone();
    let confirmed = tokio::spawn(async move {
        let stream = ReceiverStream::new(stream);
        let mut replies = client.messages().push_stream(stream).await.unwrap().into_inner();
        let mut confirmed = Vec::new();
        while confirmed.len() < REQUESTS as usize {
            let reply = within(replies.message()).await.unwrap().unwrap();
            confirmed.extend(reply.confirms.into_iter().map(|confirm| confirm.sequence));
        }
        confirmed
    });
    let is_full = async {
        while !served.broker.intake().is_contended() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let is_full = tokio::time::timeout(Duration::from_secs(20), is_full).await;
    gate.open_gate();
    assert!(is_full.is_ok(), "memory is held until the queue has the messages");
    assert!(confirmed.await.unwrap().into_iter().eq(1..=REQUESTS));
    assert_eq!(served.broker.intake().held_bytes(), 0);
}

#[tokio::test]
async fn a_push_stream_ends_cleanly_with_the_server() {
    let mut served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    let (requests, stream) = mpsc::channel(8);
    let mut replies =
        served.client.messages().push_stream(ReceiverStream::new(stream)).await.unwrap().into_inner();
    requests.send(request(1, "q", &["x"])).await.unwrap();
    within(replies.message()).await.unwrap().unwrap();
    served.begin_stop();
    assert_eq!(within(replies.message()).await.unwrap(), None);
    served.stopped().await;
}

#[tokio::test]
async fn a_subscriber_gets_as_many_messages_as_it_has_credit_for() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    for body in ["a", "b", "c", "d"] {
        served.push("q", body).await;
    }
    let mut subscribed = served.subscribe(start("q", 2)).await;
    let first = subscribed.messages(2).await;
    assert_eq!(first[1].body, "b");
    let stats = served.stats("q").await;
    assert_eq!((stats.leased, stats.ready, stats.consumers), (2, 2, 1));
    let receipts = first.into_iter().map(|message| message.receipt).collect();
    subscribed.send(ack(receipts, 7, 1)).await;
    // The answer and the next message may come in either order.
    let (mut settled, mut third) = (None, None);
    while settled.is_none() || third.is_none() {
        match subscribed.event().await.unwrap().unwrap() {
            proto::subscribe_response::Event::Settled(reply) => settled = Some(reply),
            proto::subscribe_response::Event::Messages(batch) => third = Some(batch),
            proto::subscribe_response::Event::Started(_) => {}
        }
    }
    let settled = settled.unwrap();
    assert_eq!((settled.sequence, settled.results.len()), (7, 2));
    assert!(settled.results.iter().all(|result| result.error.is_none()));
    assert_eq!(third.unwrap().messages[0].body, "c");
    assert_eq!(served.stats("q").await.acked, 2);
}

#[tokio::test]
async fn a_pushed_message_goes_to_a_waiting_subscriber() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    let mut subscribed = served.subscribe(start("q", 10)).await;
    for body in ["now", "later"] {
        served.push("q", body).await;
        assert_eq!(subscribed.messages(1).await[0].body, body);
    }
}

#[tokio::test]
async fn an_ack_that_does_not_hold_is_answered_even_without_a_sequence() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    served.push("q", "x").await;
    let mut subscribed = served.subscribe(start("q", 1)).await;
    let receipt = subscribed.messages(1).await.remove(0).receipt;
    subscribed.send(ack(vec![receipt.clone()], 1, 0)).await;
    assert!(subscribed.settled().await.results[0].error.is_none());
    subscribed.send(ack(vec![receipt.clone(), "nonsense".into()], 0, 0)).await;
    let reply = subscribed.settled().await;
    assert_eq!(reply.sequence, 0);
    let failed: Vec<(&str, Code)> = reply
        .results
        .iter()
        .map(|result| (result.receipt.as_str(), result.error.as_ref().unwrap().code.into()))
        .collect();
    assert_eq!(failed, [(receipt.as_str(), Code::FailedPrecondition), ("nonsense", Code::InvalidArgument)]);
}

#[tokio::test]
async fn nack_extend_and_received_work_on_the_stream() {
    let served = Served::start().await;
    served
        .create("q", proto::QueueConfig { receipt_timeout_ms: Some(3_600_000), ..Default::default() })
        .await;
    served.push("q", "x").await;
    let mut subscribed = served.subscribe(start("q", 2)).await;
    let message = subscribed.messages(1).await.remove(0);
    let receipts = vec![message.receipt.clone()];
    let act =
        |sequence, action| proto::SubscribeRequest { credit: 0, sequence, action: Some(action), stop: false };
    use proto::subscribe_request::Action;
    subscribed.send(act(1, Action::Received(proto::ReceivedRequest { receipts: receipts.clone() }))).await;
    let received = subscribed.settled().await;
    assert!(received.results[0].lease_until_ms.is_some(), "{received:?}");
    let extend = proto::ExtendRequest { receipts: receipts.clone(), visibility_ms: 7_200_000 };
    subscribed.send(act(2, Action::Extend(extend))).await;
    let extended = subscribed.settled().await;
    assert!(extended.results[0].lease_until_ms > received.results[0].lease_until_ms, "{extended:?}");
    subscribed
        .send(act(0, Action::Nack(proto::NackRequest { receipts, delay_ms: Some(0), ..Default::default() })))
        .await;
    let again = subscribed.messages(1).await.remove(0);
    assert_eq!((again.id, again.attempt), (message.id, 2));
}

#[tokio::test]
async fn what_a_subscriber_holds_comes_back_when_it_goes() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    served.push("q", "x").await;
    let mut subscribed = served.subscribe(start("q", 1)).await;
    subscribed.messages(1).await;
    drop(subscribed);
    let request = proto::PopRequest { queue: "q".into(), wait_ms: 20_000, ..Default::default() };
    let popped = served.client.messages().pop(request).await.unwrap().into_inner().messages;
    assert_eq!(popped[0].attempt, 2);
}

#[tokio::test]
async fn a_subscriber_that_stops_can_give_back_what_it_has_not_looked_at() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig { max_attempts: Some(1), ..Default::default() }).await;
    for n in 0..50 {
        served.push("q", &n.to_string()).await;
    }
    let mut subscribed = served.subscribe(start("q", 20)).await;
    let held = subscribed.messages(20).await;
    subscribed
        .send(proto::SubscribeRequest { sequence: 7, credit: 20, stop: true, ..Default::default() })
        .await;
    // No message comes after the stop.
    let stopped = match subscribed.event().await.unwrap() {
        Some(proto::subscribe_response::Event::Settled(reply)) => reply,
        other => panic!("{other:?}"),
    };
    assert_eq!((stopped.sequence, stopped.results.len()), (7, 0));
    let receipts = held.iter().map(|message| message.receipt.clone()).collect();
    let nack = proto::NackRequest { receipts, unseen: true, ..Default::default() };
    let action = Some(proto::subscribe_request::Action::Nack(nack));
    subscribed.send(proto::SubscribeRequest { sequence: 8, action, ..Default::default() }).await;
    let returned = subscribed.settled().await;
    assert!(returned.results.iter().all(|result| result.error.is_none()), "{returned:?}");
    drop(subscribed);
    // With one attempt for each they would be dead letters, if the delivery had counted.
    let popped = within(async {
        loop {
            let popped = served.pop("q", 50).await;
            if !popped.is_empty() {
                break popped;
            }
        }
    })
    .await;
    assert!(popped.iter().all(|message| message.attempt == 1), "{popped:?}");
    assert_eq!(popped[0].id, 0);
}

#[tokio::test]
async fn a_subscription_that_makes_no_sense_ends_with_a_status() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    let mut nowhere = served.subscribe(start("nowhere", 1)).await;
    assert_eq!(nowhere.event().await.unwrap_err().code(), Code::NotFound);
    let mut unstarted = served.subscribe(ack(vec!["1-1-1".into()], 0, 0)).await;
    let status = unstarted.event().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().starts_with("start must be given in the first request"), "{status:?}");
    let mut greedy = served.subscribe(start("q", 1_000_000)).await;
    greedy.send(proto::SubscribeRequest { credit: 1, ..Default::default() }).await;
    let status = greedy.event().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().starts_with("credit must be between"), "{status:?}");
}

#[tokio::test]
async fn deleting_the_queue_ends_its_subscriptions() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    served.push("q", "x").await;
    let mut subscribed = served.subscribe(start("q", 1)).await;
    subscribed.messages(1).await;
    let request = proto::DeleteQueueRequest { queue: "q".into(), ..Default::default() };
    served.client.queues().delete_queue(request).await.unwrap();
    assert_eq!(subscribed.event().await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_subscription_ends_cleanly_with_the_server() {
    let mut served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    served.push("q", "x").await;
    let mut subscribed = served.subscribe(start("q", 5)).await;
    subscribed.messages(1).await;
    served.begin_stop();
    assert_eq!(subscribed.event().await.unwrap(), None);
    served.stopped().await;
}

#[tokio::test]
async fn a_client_that_only_settles_later_is_not_deadlocked() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    let bodies: Vec<String> = (0..2000).map(|n| format!("{n:0>2000}")).collect();
    let messages = bodies.iter().map(|body| message(body)).collect();
    served
        .client
        .messages()
        .push(proto::PushRequest { queue: "q".into(), messages, ..Default::default() })
        .await
        .unwrap();
    let mut subscribed = served.subscribe(start("q", 2000)).await;
    // One acknowledgement at a time, each waited for, while all the other messages are on their way.
    let mut acked = 0;
    let mut unread = Vec::new();
    while acked < 2000 {
        match subscribed.event().await.unwrap().unwrap() {
            proto::subscribe_response::Event::Messages(batch) => {
                for message in batch.messages {
                    subscribed.send(ack(vec![message.receipt], message.id + 1, 0)).await;
                    unread.push(message.id + 1);
                }
            }
            proto::subscribe_response::Event::Settled(reply) => {
                assert!(reply.results[0].error.is_none(), "{reply:?}");
                acked += 1;
            }
            proto::subscribe_response::Event::Started(_) => {}
        }
    }
    assert_eq!(unread.len(), 2000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_that_does_not_read_holds_few_bytes_whatever_its_credit() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    let mut subscribed = served.subscribe(start("q", 1_000_000)).await;
    let body = "x".repeat(100_000);
    for _ in 0..40 {
        let requests = vec![request(1, "q", &[body.as_str(); 10])];
        push_all(&served, requests).await;
    }
    let held = served.broker.outgoing().bytes();
    assert!(held <= nexo_types::limits::CONSUMER_BYTES_MAX + 101_000, "{held} bytes are out");
    // Besides, what the transport has taken.
    assert!(served.stats("q").await.ready > 200, "{:?}", served.stats("q").await);
    assert_eq!(subscribed.messages(400).await.len(), 400);
}
