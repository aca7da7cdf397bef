//! Policies: they apply to queues that are there and to those that come, and when they go a queue is what it was told itself.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use common::*;
use nexo_broker::policy::{ApplyTo, Policy, PolicyError, PolicyKind, PolicyRecord};
use nexo_broker::topology::{
    Binding, Destination, ExchangeKind, ExchangeSpec, Matching, NoHeaders, VhostSpec,
};
use nexo_broker::{
    Broker, CreateError, Declaration, Durability, EVENT_EXCHANGE, NewMessage, Overflow, PolicyChangeError,
    QueueConfig,
};
use nexo_log::disk::MemoryDisk;
use nexo_types::{ExchangeName, Millis, QueueName, VhostName};
use serde_json::{Value, json};

fn put_at(
    vhost: &VhostName,
    kind: PolicyKind,
    name: &str,
    pattern: &str,
    definition: &Value,
) -> PolicyRecord {
    let terms = definition.as_object().unwrap().clone();
    let policy = Policy::new(kind, name, pattern, 0, ApplyTo::All, terms).unwrap();
    PolicyRecord::Put { kind, vhost: vhost.clone(), policy: Arc::new(policy) }
}

async fn put(broker: &Broker, name: &str, pattern: &str, definition: impl Into<Value>) {
    let definition = definition.into();
    let change = put_at(&VhostName::DEFAULT, PolicyKind::Regular, name, pattern, &definition);
    broker.change_policies(&[change]).await.unwrap();
}

async fn delete(broker: &Broker, name: &str) {
    let vhost = VhostName::DEFAULT;
    let gone = PolicyRecord::Delete { kind: PolicyKind::Regular, vhost, name: name.into() };
    broker.change_policies(&[gone]).await.unwrap();
}

fn config(broker: &Broker, queue: &QueueName) -> QueueConfig {
    broker.queue_stats(queue).unwrap().config
}

#[tokio::test]
async fn a_policy_applies_at_once_and_its_end_brings_the_base_back() {
    let base =
        QueueConfig { overflow: Overflow::DropOldest, ttl: Some(Millis(90_000)), ..QueueConfig::default() };
    let (broker, queue) = with_queue(base.clone()).await;
    for number in 0..5 {
        push(&broker, &queue, &number.to_string()).await;
    }
    put(&broker, "short", "^q$", json!({"max-length": 2, "message-ttl": 60_000})).await;
    assert_eq!(config(&broker, &queue).ttl, Some(Millis(60_000)));
    assert_eq!(bodies(&broker.peek(&queue, 9).await.unwrap()), ["3", "4"], "what is too much has gone");
    delete(&broker, "short").await;
    assert_eq!(config(&broker, &queue), base);
    push(&broker, &queue, "5").await;
    assert_eq!(broker.peek(&queue, 9).await.unwrap().len(), 3);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_new_queue_has_its_policies_and_is_still_what_was_asked_for() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    put(&broker, "short", "^short", json!({"max-length": 2})).await;
    let queue = name("short-1");
    assert!(broker.create_queue(&queue, QueueConfig::default()).await.unwrap());
    assert_eq!(config(&broker, &queue).max_messages, Some(2));
    assert!(!broker.create_queue(&queue, QueueConfig::default()).await.unwrap(), "declared again as it was");
    let other = QueueConfig { max_messages: Some(2), ..QueueConfig::default() };
    let refused = broker.create_queue(&queue, other).await.unwrap_err();
    assert!(matches!(refused, CreateError::Differs { .. }), "{refused}");
    broker.shutdown().await;
    drop(broker);
    let broker = open(&disk);
    assert_eq!(config(&broker, &queue).max_messages, Some(2));
    let pair = broker.policies_of_queue(&queue, nexo_broker::QueueKind::Native);
    assert_eq!(&*pair.regular.unwrap().name, "short");
    broker.shutdown().await;
}

#[tokio::test]
async fn a_transient_queue_has_its_policies_as_well() {
    let broker = open(&MemoryDisk::new());
    let queue = name("passing");
    let declaration =
        Declaration { config: QueueConfig::default(), durability: Durability::Transient, owner: None };
    broker.declare_queue(&queue, declaration).await.unwrap();
    put(&broker, "all", "", json!({"max-length-bytes": 77})).await;
    assert_eq!(config(&broker, &queue).max_bytes, Some(77));
    broker.shutdown().await;
}

#[tokio::test]
async fn whoever_changes_settings_changes_the_base_and_policies_stay_on_top() {
    let (broker, queue) = with_queue(QueueConfig::default()).await;
    put(&broker, "short", "", json!({"max-length": 5})).await;
    broker
        .update_queue(&queue, |config| QueueConfig { max_messages: Some(9), ..config.clone() })
        .await
        .unwrap();
    broker.pause_queue(&queue, true).await.unwrap();
    let seen = config(&broker, &queue);
    assert_eq!((seen.max_messages, seen.base().max_messages, seen.paused), (Some(5), Some(9), true));
    delete(&broker, "short").await;
    assert_eq!((config(&broker, &queue).max_messages, config(&broker, &queue).paused), (Some(9), true));
    broker.shutdown().await;
}

#[tokio::test]
async fn an_operator_policy_bounds_what_policies_and_queues_ask_for() {
    let (broker, queue) = with_queue(QueueConfig { max_messages: Some(100), ..QueueConfig::default() }).await;
    put(&broker, "mine", "", json!({"max-length": 50, "visibility": 7000})).await;
    let definition = json!({"max-length": 10});
    let bound = put_at(&VhostName::DEFAULT, PolicyKind::Operator, "bound", "", &definition);
    broker.change_policies(&[bound]).await.unwrap();
    let seen = config(&broker, &queue);
    assert_eq!((seen.max_messages, seen.visibility), (Some(10), Millis(7000)));
    broker.shutdown().await;
}

#[tokio::test]
async fn dead_letters_go_to_the_exchange_of_a_policy() {
    let (broker, queue) = with_queue(QueueConfig { max_attempts: Some(1), ..QueueConfig::default() }).await;
    let morgue = name("morgue");
    broker.create_queue(&morgue, QueueConfig::default()).await.unwrap();
    let fanout = ExchangeName::new("amq.fanout").unwrap();
    broker.bind(Binding::new(fanout, Destination::Queue(morgue.clone()), "".into(), vec![])).await.unwrap();
    put(&broker, "dlx", "^q$", json!({"dead-letter-exchange": "amq.fanout"})).await;
    push(&broker, &queue, "bad").await;
    let taken = pop(&broker, &queue, 1).await;
    for answer in broker.nack(&receipts(&taken), None).await {
        answer.unwrap();
    }
    assert_eq!(bodies(&pop_wait(&broker, &morgue).await), ["bad"]);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_queue_that_a_policy_has_expire_has_its_whole_time_from_then_on() {
    let (broker, queue) = with_queue(QueueConfig::default()).await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    put(&broker, "brief", "^q$", json!({"expires": 250})).await;
    assert!(broker.queue(&queue).is_some(), "it was unused for longer than that before");
    eventually("the queue goes", || broker.queue(&queue).is_none()).await;
    broker.shutdown().await;
}

#[tokio::test]
async fn messages_without_a_binding_go_where_the_policy_of_their_exchange_says() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    let (queue, before, after) =
        (name("lost"), ExchangeName::new("ex-1").unwrap(), ExchangeName::new("ex-2").unwrap());
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    let fanout = ExchangeName::new("amq.fanout").unwrap();
    broker.bind(Binding::new(fanout, Destination::Queue(queue), "".into(), vec![])).await.unwrap();
    let spec = || ExchangeSpec::durable(ExchangeKind::Plain(Matching::Direct));
    broker.declare_exchange(&before, spec()).await.unwrap();
    put(&broker, "ae", "^ex-", json!({"alternate-exchange": "amq.fanout"})).await;
    broker.declare_exchange(&after, spec()).await.unwrap();
    let reached = |broker: &Broker, exchange: &ExchangeName| {
        let mut found = Vec::new();
        broker
            .routes()
            .publish(&VhostName::DEFAULT, exchange.as_str(), &[b"k"], &NoHeaders, &mut found)
            .unwrap();
        found.len()
    };
    assert_eq!((reached(&broker, &before), reached(&broker, &after)), (1, 1));
    broker.shutdown().await;
    drop(broker);
    let broker = open(&disk);
    assert_eq!((reached(&broker, &before), reached(&broker, &after)), (1, 1), "after a restart as well");
    delete(&broker, "ae").await;
    assert_eq!((reached(&broker, &before), reached(&broker, &after)), (0, 0));
    broker.shutdown().await;
}

#[tokio::test]
async fn policies_go_with_their_virtual_host() {
    let broker = open(&MemoryDisk::new());
    let shop = VhostName::new("shop").unwrap();
    let change = || put_at(&shop, PolicyKind::Regular, "p", "", &json!({"max-length": 1}));
    let refused = broker.change_policies(&[change()]).await.unwrap_err();
    assert_eq!(refused, PolicyChangeError::Refused(PolicyError::NoSuchVhost { name: shop.clone() }));
    broker.put_vhost(&shop, VhostSpec::default()).await.unwrap();
    broker.change_policies(&[change()]).await.unwrap();
    let (here, there) = (name("q"), QueueName::at(&shop, "q").unwrap());
    for queue in [&here, &there] {
        broker.create_queue(queue, QueueConfig::default()).await.unwrap();
    }
    assert_eq!((config(&broker, &here).max_messages, config(&broker, &there).max_messages), (None, Some(1)));
    broker.delete_vhost(&shop).await.unwrap();
    assert!(broker.policies().is_without_policies());
    broker.put_vhost(&shop, VhostSpec::default()).await.unwrap();
    broker.create_queue(&there, QueueConfig::default()).await.unwrap();
    assert_eq!(config(&broker, &there).max_messages, None, "the next of that name begins anew");
    broker.shutdown().await;
}

/// RabbitMQ begins that time anew as well: nobody could use the queue while the broker was away.
#[tokio::test]
async fn the_time_that_a_queue_may_be_unused_begins_anew_with_a_start() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    let (told, by_policy) = (name("told"), name("by-policy"));
    let week = Millis::from_secs(7 * 24 * 3600);
    let config = QueueConfig { expires: Some(week), ..QueueConfig::default() };
    broker.create_queue(&told, config).await.unwrap();
    broker.create_queue(&by_policy, QueueConfig::default()).await.unwrap();
    put(&broker, "expiry", "^by-policy$", json!({"expires": week.0})).await;
    for queue in [&told, &by_policy] {
        broker.push(queue, vec![NewMessage::new("x")]).await.unwrap();
    }
    broker.shutdown().await;
    drop(broker);
    let broker = open(&disk);
    // One thread deletes what has expired, in order: it has looked at both by then.
    put(&broker, "last", "^nothing$", json!({"expires": 1})).await;
    for queue in [&told, &by_policy] {
        assert_eq!(broker.queue_stats(queue).map(|stats| stats.ready), Ok(1), "{queue}");
    }
    broker.shutdown().await;
}

/// Has something begin, and nobody wait until it is safe.
fn begin<F: Future>(work: F) {
    let _ = std::pin::pin!(work).poll(&mut Context::from_waker(Waker::noop()));
}

#[tokio::test]
async fn a_change_is_told_when_it_is_made_and_not_when_its_answer_is() {
    let broker = open(&MemoryDisk::new());
    broker.ensure_event_exchange().await.unwrap();
    let events = name("events");
    broker.create_queue(&events, QueueConfig::default()).await.unwrap();
    let exchange = ExchangeName::at(&VhostName::DEFAULT, EVENT_EXCHANGE).unwrap();
    let binding = Binding::new(exchange, Destination::Queue(events), Bytes::from_static(b"#"), Vec::new());
    broker.bind(binding).await.unwrap();
    let shop = VhostName::new("shop").unwrap();
    let definition = json!({"max-length": 5});
    let policy = put_at(&VhostName::DEFAULT, PolicyKind::Regular, "p", ".*", &definition);
    begin(broker.put_vhost(&shop, VhostSpec::default()));
    begin(broker.change_policies(&[policy]));
    let told: Vec<_> = broker.events().next().await.iter().map(|event| event.name).collect();
    assert_eq!(told, ["vhost.created", "policy.set"]);
    broker.shutdown().await;
}
