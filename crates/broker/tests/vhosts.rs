//! Virtual hosts: what is in one is nobody's business in another, and what goes with one goes whole, whenever the power does.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use nexo_broker::topology::{
    Binding, Destination, ExchangeKind, ExchangeSpec, Matching, NoHeaders, VhostError, VhostSpec,
};
use nexo_broker::{
    Broker, BrokerOptions, CreateError, DeadLetters, EnterError, ExchangeError, ListRequest, NewMessage,
    QueueConfig, QueueError, Redrive, VhostDeleted,
};
use nexo_log::disk::{FaultyDisk, MemoryDisk};
use nexo_types::{ExchangeName, Millis, QueueName, VhostName};

fn vhost(text: &str) -> VhostName {
    VhostName::new(text).unwrap()
}

fn at(host: &str, text: &str) -> QueueName {
    QueueName::at(&vhost(host), text).unwrap()
}

fn exchange(host: &str, text: &str) -> ExchangeName {
    ExchangeName::at(&vhost(host), text).unwrap()
}

async fn with_vhosts(disk: &MemoryDisk, names: &[&str]) -> Broker {
    let broker = open(disk);
    for name in names {
        assert!(broker.put_vhost(&vhost(name), VhostSpec::default()).await.unwrap());
    }
    broker
}

fn names(broker: &Broker, of: Option<&str>) -> Vec<String> {
    let request = ListRequest { vhost: of.map(vhost), limit: 1000, ..ListRequest::default() };
    broker.list_queues(&request).iter().map(|queue| queue.name.in_full().to_string()).collect()
}

fn route(broker: &Broker, host: &str, exchange: &str, key: &str) -> usize {
    let mut out = Vec::new();
    let routes = broker.routes();
    let routed = routes.publish(&vhost(host), exchange, &[key.as_bytes()], &NoHeaders, &mut out);
    routed.map_or(0, |_| out.len())
}

fn fanout(host: &str) -> Binding {
    let to = Destination::Queue(at(host, "q"));
    Binding::new(exchange(host, "amq.fanout"), to, "".into(), Vec::new())
}

#[tokio::test]
async fn the_same_name_in_two_virtual_hosts_is_two_queues() {
    let disk = MemoryDisk::new();
    let broker = with_vhosts(&disk, &["acme"]).await;
    for (host, body) in [("/", "ours"), ("acme", "theirs")] {
        assert!(broker.create_queue(&at(host, "q"), QueueConfig::default()).await.unwrap());
        push(&broker, &at(host, "q"), body).await;
        broker.bind(fanout(host)).await.unwrap();
    }
    assert_eq!((route(&broker, "/", "amq.fanout", ""), route(&broker, "acme", "amq.fanout", "")), (1, 1));
    assert_eq!(names(&broker, None), ["q", "q in vhost 'acme'"]);
    assert_eq!((names(&broker, Some("/")).len(), names(&broker, Some("acme")).len()), (1, 1));
    broker.shutdown().await;
    let broker = open(&disk);
    assert_eq!(bodies(&pop(&broker, &at("/", "q"), 9).await), ["ours"]);
    assert_eq!(bodies(&pop(&broker, &at("acme", "q"), 9).await), ["theirs"]);
    assert_eq!((route(&broker, "/", "amq.fanout", ""), route(&broker, "acme", "amq.fanout", "")), (1, 1));
    broker.shutdown().await;
}

#[tokio::test]
async fn dead_letters_stay_in_their_virtual_host() {
    let broker = with_vhosts(&MemoryDisk::new(), &["acme"]).await;
    let config = QueueConfig { max_attempts: Some(1), ..QueueConfig::default() };
    for host in ["/", "acme"] {
        broker.create_queue(&at(host, "q"), config.clone()).await.unwrap();
    }
    push(&broker, &at("acme", "q"), "x").await;
    let held = pop(&broker, &at("acme", "q"), 1).await;
    broker.nack(&receipts(&held), Some(Millis::ZERO)).await.remove(0).unwrap();
    eventually("it is moved", || broker.queue_stats(&at("acme", "q_dlq")).is_ok_and(|dead| dead.ready == 1))
        .await;
    assert!(broker.queue_stats(&at("/", "q_dlq")).is_err());
    let redriven = broker.redrive(&at("acme", "q_dlq"), Redrive::default(), &|_| {}).await.unwrap();
    assert_eq!(redriven.moved, 1);
    assert_eq!(broker.queue_stats(&at("acme", "q")).unwrap().ready, 1);
    assert_eq!(broker.queue_stats(&at("/", "q")).unwrap().ready, 0);
    let elsewhere = QueueConfig { dead_letters: DeadLetters::Queue(at("/", "q")), ..QueueConfig::default() };
    assert!(matches!(broker.create_queue(&at("acme", "r"), elsewhere).await, Err(CreateError::Config(_))));
    broker.shutdown().await;
}

#[tokio::test]
async fn dead_letters_to_an_exchange_are_routed_in_their_virtual_host() {
    let broker = with_vhosts(&MemoryDisk::new(), &["acme"]).await;
    for host in ["/", "acme"] {
        let exchange = exchange(host, "amq.fanout");
        let dead_letters = DeadLetters::Exchange { exchange: exchange.clone(), routing_key: None };
        let config = QueueConfig { max_attempts: Some(1), dead_letters, ..QueueConfig::default() };
        broker.create_queue(&at(host, "q"), config).await.unwrap();
        broker.create_queue(&at(host, "dead"), QueueConfig::default()).await.unwrap();
        let to = Destination::Queue(at(host, "dead"));
        broker.bind(Binding::new(exchange, to, "".into(), Vec::new())).await.unwrap();
    }
    push(&broker, &at("acme", "q"), "x").await;
    let held = pop(&broker, &at("acme", "q"), 1).await;
    broker.nack(&receipts(&held), Some(Millis::ZERO)).await.remove(0).unwrap();
    eventually("it is moved", || broker.queue_stats(&at("acme", "dead")).unwrap().ready == 1).await;
    assert_eq!(broker.queue_stats(&at("/", "dead")).unwrap().ready, 0);
    broker.shutdown().await;
}

#[tokio::test]
async fn nothing_is_declared_in_a_virtual_host_that_is_not_there() {
    let broker = open(&MemoryDisk::new());
    let missing = VhostError::NotFound { name: vhost("none") };
    let refused = broker.create_queue(&at("none", "q"), QueueConfig::default()).await;
    assert_eq!(refused, Err(CreateError::Vhost(missing.clone())));
    let spec = ExchangeSpec::durable(ExchangeKind::Plain(Matching::Direct));
    let refused = broker.declare_exchange(&exchange("none", "x"), spec).await.unwrap_err();
    assert_eq!(refused.to_string(), missing.to_string());
    let refused = broker.delete_vhost(&vhost("none")).await;
    assert_eq!(refused, Err(ExchangeError::Refused(missing)));
    assert!(broker.vhost(&vhost("none")).is_none());
    broker.shutdown().await;
}

#[tokio::test]
async fn a_virtual_host_is_told_of_and_changed() {
    let disk = MemoryDisk::new();
    let broker = with_vhosts(&disk, &["acme"]).await;
    let spec = VhostSpec { description: "orders".into(), max_queues: Some(1), ..VhostSpec::default() };
    assert!(!broker.put_vhost(&vhost("acme"), spec.clone()).await.unwrap());
    broker.create_queue(&at("acme", "q"), QueueConfig::default()).await.unwrap();
    let full = VhostError::QueueLimit { name: vhost("acme"), max: 1 };
    let refused = broker.create_queue(&at("acme", "r"), QueueConfig::default()).await;
    assert_eq!(refused, Err(CreateError::Vhost(full)));
    assert!(!broker.create_queue(&at("acme", "q"), QueueConfig::default()).await.unwrap(), "it is there");
    broker.create_queue(&at("/", "r"), QueueConfig::default()).await.unwrap();
    broker.shutdown().await;
    let broker = open(&disk);
    let all = broker.vhosts();
    assert_eq!(all.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["/", "acme"]);
    assert_eq!((&all[1].spec, all[1].queues, all[1].connections), (&spec, 1, 0));
    broker.delete_queue(&at("acme", "q")).await.unwrap();
    broker.create_queue(&at("acme", "r"), QueueConfig::default()).await.unwrap();
    broker.shutdown().await;
}

#[tokio::test]
async fn a_deleted_virtual_host_takes_everything_and_leaves_the_others() {
    let disk = MemoryDisk::new();
    let broker = with_vhosts(&disk, &["acme"]).await;
    for host in ["/", "acme"] {
        let spec = ExchangeSpec::durable(ExchangeKind::Plain(Matching::Fanout));
        broker.declare_exchange(&exchange(host, "x"), spec).await.unwrap();
        for name in ["q", "r"] {
            broker.create_queue(&at(host, name), QueueConfig::default()).await.unwrap();
            push(&broker, &at(host, name), host).await;
        }
        broker.bind(fanout(host)).await.unwrap();
    }
    let mut subscription = subscribe(&broker, &at("acme", "q"), 10);
    assert_eq!(next(&mut subscription).await.len(), 1);
    let deleted = broker.delete_vhost(&vhost("acme")).await.unwrap();
    assert_eq!(deleted, VhostDeleted { queues: 2, messages: 2 });
    assert!(subscription.next().await.is_none(), "its consumers end");
    let is_clean = |broker: &Broker| {
        assert_eq!(names(broker, None), ["q", "r"]);
        assert_eq!(broker.vhosts().len(), 1);
        let outline = broker.topology_outline();
        assert!(outline.exchanges.keys().all(|name| name.vhost().is_default()));
        assert_eq!((outline.bindings.len(), outline.vhosts.len()), (1, 1));
        assert_eq!(route(broker, "/", "amq.fanout", ""), 1);
    };
    is_clean(&broker);
    broker.shutdown().await;
    let broker = open(&disk);
    is_clean(&broker);
    // Another of the name is empty.
    broker.put_vhost(&vhost("acme"), VhostSpec::default()).await.unwrap();
    assert_eq!((names(&broker, Some("acme")).len(), route(&broker, "acme", "amq.fanout", "")), (0, 0));
    let gone = broker.queue_stats(&at("acme", "q"));
    assert!(matches!(gone, Err(QueueError::NotFound { .. })));
    broker.shutdown().await;
}

#[tokio::test]
async fn the_default_virtual_host_can_go_and_come_back() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    broker.create_queue(&name("q"), QueueConfig::default()).await.unwrap();
    broker.delete_vhost(&VhostName::DEFAULT).await.unwrap();
    assert!(broker.create_queue(&name("q"), QueueConfig::default()).await.is_err());
    broker.shutdown().await;
    let broker = open(&disk);
    assert!(broker.vhosts().is_empty());
    broker.put_vhost(&VhostName::DEFAULT, VhostSpec::default()).await.unwrap();
    assert!(broker.create_queue(&name("q"), QueueConfig::default()).await.unwrap());
    assert_eq!(route(&broker, "/", "", "q"), 1);
    broker.shutdown().await;
}

#[tokio::test]
async fn connections_are_counted_and_told_when_their_virtual_host_goes() {
    let broker = with_vhosts(&MemoryDisk::new(), &["acme"]).await;
    let spec = VhostSpec { max_connections: Some(2), ..VhostSpec::default() };
    broker.put_vhost(&vhost("acme"), spec).await.unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    let enter = |host: &str| {
        let told = Arc::clone(&told);
        broker.enter_vhost(&vhost(host), move || {
            told.fetch_add(1, Ordering::Relaxed);
        })
    };
    let (first, second, other) = (enter("acme").unwrap(), enter("acme").unwrap(), enter("/").unwrap());
    let full = EnterError::ConnectionLimit { name: vhost("acme"), max: 2 };
    assert_eq!(enter("acme").err(), Some(full));
    assert_eq!(enter("none").err(), Some(EnterError::NotFound { name: vhost("none") }));
    drop(first);
    let third = enter("acme").unwrap();
    assert_eq!(broker.vhost(&vhost("acme")).unwrap().connections, 2);
    broker.delete_vhost(&vhost("acme")).await.unwrap();
    assert_eq!(told.load(Ordering::Relaxed), 2, "those in it, and no other");
    broker.put_vhost(&vhost("acme"), VhostSpec::default()).await.unwrap();
    let fourth = enter("acme").unwrap();
    drop((second, third));
    assert_eq!(broker.vhost(&vhost("acme")).unwrap().connections, 1, "the old ones are not counted off");
    drop((fourth, other));
    broker.shutdown().await;
}

/// What a run was told.
#[derive(Default)]
struct Told {
    created: BTreeSet<&'static str>,
    maybe_deleted: BTreeSet<&'static str>,
    deleted: BTreeSet<&'static str>,
    /// Virtual host and queue, each with one message.
    filled: Vec<(&'static str, String)>,
    bound: BTreeSet<&'static str>,
    done: bool,
}

fn small() -> BrokerOptions {
    BrokerOptions { segment_bytes: 16 * 1024, ..BrokerOptions::new("faulty") }
}

async fn script(broker: &Broker, told: &mut Told) -> Result<(), ()> {
    for host in ["a", "b"] {
        let spec = VhostSpec { description: host.into(), ..VhostSpec::default() };
        broker.put_vhost(&vhost(host), spec).await.map_err(|_| ())?;
        told.created.insert(host);
        for queue in ["q", "r", "s"] {
            broker.create_queue(&at(host, queue), QueueConfig::default()).await.map_err(|_| ())?;
            let message = NewMessage::new(format!("{host} {queue} {}", "x".repeat(900)));
            broker.push(&at(host, queue), vec![message]).await.map_err(|_| ())?;
            told.filled.push((host, queue.to_owned()));
        }
        broker.bind(fanout(host)).await.map_err(|_| ())?;
        told.bound.insert(host);
    }
    told.maybe_deleted.insert("a");
    broker.delete_vhost(&vhost("a")).await.map_err(|_| ())?;
    told.deleted.insert("a");
    // Enough for a checkpoint behind it.
    for _ in 0..12 {
        let message = NewMessage::new("y".repeat(1500));
        broker.push(&at("b", "q"), vec![message]).await.map_err(|_| ())?;
    }
    told.done = true;
    Ok(())
}

async fn run(disk: &FaultyDisk) -> Told {
    let mut told = Told::default();
    let Ok(broker) = Broker::open_on(Arc::new(disk.clone()), small()) else { return told };
    // It ends where the power goes.
    let _ = script(&broker, &mut told).await;
    broker.shutdown().await;
    told
}

async fn check(told: &Told, disk: FaultyDisk, what: &str) {
    let broker = Broker::open_on(Arc::new(disk), small()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let there: BTreeSet<String> = broker.vhosts().iter().map(|one| one.name.as_str().to_owned()).collect();
    assert!(there.contains("/"), "{what}");
    for host in &told.created {
        let gone = told.deleted.contains(host);
        let may_be_gone = told.maybe_deleted.contains(host);
        assert!(there.contains(*host) || may_be_gone, "{what}: vhost '{host}' is lost");
        assert!(!there.contains(*host) || !gone, "{what}: vhost '{host}' is back");
    }
    // Whole or not at all: a virtual host that is there has all that was in it, and one that is not has left nothing.
    for (host, queue) in told.filled.iter().filter(|(host, _)| there.contains(*host)) {
        let stats = broker.queue_stats(&at(host, queue));
        assert!(stats.is_ok_and(|stats| stats.ready > 0), "{what}: {queue} of {host} is lost");
    }
    for host in told.bound.iter().filter(|host| there.contains(**host)) {
        assert_eq!(route(&broker, host, "amq.fanout", ""), 1, "{what}: the binding of {host} is lost");
        assert_eq!(broker.vhost(&vhost(host)).unwrap().spec.description, **host, "{what}");
    }
    let outline = broker.topology_outline();
    assert_eq!(outline.vhosts.len(), there.len(), "{what}: none is on its way out");
    let all = broker.list_queues(&ListRequest { limit: 1000, ..ListRequest::default() });
    assert!(
        all.iter().all(|queue| there.contains(queue.name.vhost_str())),
        "{what}: a queue without a vhost"
    );
    assert!(outline.exchanges.keys().all(|name| there.contains(name.vhost_str())), "{what}");
    // The name is free again, and nothing of the old one is in it.
    if told.maybe_deleted.contains("a") && !there.contains("a") {
        assert!(broker.put_vhost(&vhost("a"), VhostSpec::default()).await.unwrap(), "{what}");
        assert_eq!(names(&broker, Some("a")), Vec::<String>::new(), "{what}");
    }
    broker.shutdown().await;
}

#[test]
fn a_virtual_host_is_whole_or_gone_wherever_the_power_goes() {
    cut_power_everywhere(
        &run,
        |told| assert!(told.done && told.filled.len() == 6, "the script does what it should"),
        &check,
    );
}

#[tokio::test]
async fn tracing_ends_with_its_virtual_host() {
    let broker = open(&MemoryDisk::new());
    let vhost = VhostName::new("traced").unwrap();
    broker.put_vhost(&vhost, VhostSpec::default()).await.unwrap();
    broker.set_tracing(&vhost, true);
    broker.delete_vhost(&vhost).await.unwrap();
    assert!(!broker.is_traced(&vhost));
    broker.put_vhost(&vhost, VhostSpec::default()).await.unwrap();
    assert!(!broker.is_traced(&vhost), "whoever makes it again has not asked for it");
    broker.shutdown().await;
}
