//! What happens in a data directory before it is kept: something of every kind that the format knows. It happens twice,
//! first before a checkpoint and then after it, so that both snapshots and records tell of everything.

use std::path::Path;

use bytes::Bytes;
use nexo_broker::topology::{
    Binding, DefaultQueueType, Destination, ExchangeKind, ExchangeSpec, HashOn, HeaderValue, Matching,
    Property, VhostSpec,
};
use nexo_broker::{
    Backoff, Broker, BrokerOptions, DeadLetters, Declaration, Durability, Fate, GroupMode, LeaseTerms,
    NewMessage, Overflow, Pacing, PackedBatch, PopRequest, Properties, PropertyFormat, QueueConfig,
    QueueError, RateLimit, SHARE_BYTES_MIN, SettleMode, SharedPush, SyncMode, Terms,
};
use nexo_log::SEGMENT_BYTES_MIN;
use nexo_types::{DedupId, ExchangeName, GroupId, Millis, Priority, QueueName, VhostName, limits};

use crate::common::*;
use crate::node::Node;

/// Longer than anybody keeps a fixture.
pub(crate) const AGES: Millis = Millis::from_secs(80 * 366 * 24 * 3600);
/// A body that needs a segment of its own.
pub(crate) const LARGE_BYTES: usize = 20_000;
pub(crate) const ROUNDS: [&str; 2] = ["a", "b"];
/// Queues that have the same messages, which are stored once.
pub(crate) const SHARING: [&str; 3] = ["shared all", "shared one", "shared held"];
/// Bodies that are long enough for it.
pub(crate) const SHARED_BYTES: usize = SHARE_BYTES_MIN + 100;

pub(crate) fn exchange(text: &str) -> ExchangeName {
    ExchangeName::new(text).unwrap()
}

pub(crate) fn in_round(round: &str, text: &str) -> QueueName {
    name(&format!("{round} {text}"))
}

/// Writes a data directory. Gives back the broker, which has not been stopped, and receipts of deliveries.
pub(crate) async fn tell(dir: &Path, node: Node) -> (Broker, Vec<String>) {
    let small = BrokerOptions { segment_bytes: SEGMENT_BYTES_MIN, ..BrokerOptions::new(dir) };
    let broker = node.begin(small).await;
    relocate(&broker, dir).await;
    let mut receipts = round(&broker, ROUNDS[0]).await;
    broker.shutdown().await;
    drop(broker);
    // Without memory transient messages go to the log; in one large segment there is no checkpoint after the first.
    let pressed = BrokerOptions { segment_bytes: 96 << 10, memory_bytes_max: 0, ..BrokerOptions::new(dir) };
    let broker = node.open(pressed).await;
    receipts.extend(round(&broker, ROUNDS[1]).await);
    let last = name("last");
    broker.create_queue(&last, QueueConfig::default()).await.unwrap();
    push(&broker, &last, "syncs all before it").await;
    (broker, receipts)
}

/// Writes a data directory with nothing but job queues. The first of them are in snapshots only.
pub(crate) async fn tell_of_jobs(dir: &Path) -> Broker {
    let small = || BrokerOptions { segment_bytes: SEGMENT_BYTES_MIN, ..BrokerOptions::new(dir) };
    let broker = Broker::open(small()).unwrap();
    crate::jobs::tell(&broker, ROUNDS[0]).await;
    crate::jobs::tell_of_budgets(&broker, ROUNDS[0]).await;
    broker.shutdown().await;
    drop(broker);
    let broker = Broker::open(small()).unwrap();
    crate::jobs::tell(&broker, ROUNDS[1]).await;
    crate::jobs::tell_of_budgets(&broker, ROUNDS[1]).await;
    broker
}

/// Has the broker copy the last message of nearly empty segments to the end of the log.
async fn relocate(broker: &Broker, dir: &Path) {
    let (queue, passing) = (name("relocated"), name("passing"));
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    push(broker, &queue, "copied").await;
    broker.create_queue(&passing, QueueConfig::default()).await.unwrap();
    for _ in 0..60 {
        push(broker, &passing, &"x".repeat(1000)).await;
        ack(broker, &pop(broker, &passing, 1).await).await;
    }
    broker.delete_queue(&passing).await.unwrap();
    let is_first = |file: &str| file.trim_end_matches(".seg").parse() == Ok(1);
    eventually("the first segment is given up", || {
        let mut files = std::fs::read_dir(dir.join("segments")).unwrap();
        !files.any(|file| is_first(&file.unwrap().file_name().to_string_lossy()))
    })
    .await;
}

async fn round(broker: &Broker, round: &str) -> Vec<String> {
    for (text, config) in all_settings() {
        broker.create_queue(&in_round(round, text), config).await.unwrap();
    }
    let mut receipts = messages(broker, round).await;
    receipts.extend(groups(broker, round).await);
    deaths(broker, round).await;
    goings(broker, round).await;
    exchanges(broker, round).await;
    vhosts(broker, round).await;
    receipts.extend(shared(broker, round).await);
    crate::users::tell(broker, round).await;
    crate::policies::tell(broker, round).await;
    crate::schedules::tell(broker, round).await;
    crate::jobs::tell(broker, round).await;
    crate::jobs::tell_of_schedules(broker, round).await;
    crate::jobs::tell_of_budgets(broker, round).await;
    receipts
}

/// What is said about the virtual host of a round.
pub(crate) fn vhost_spec(round: &str) -> VhostSpec {
    VhostSpec {
        description: format!("of round {round}"),
        tags: vec!["one".into(), "two".into()],
        default_queue_type: Some(DefaultQueueType::Quorum),
        max_connections: Some(7),
        max_queues: Some(8),
    }
}

/// The virtual host of a round, in which names are those of others.
pub(crate) fn vhost_of(round: &str) -> VhostName {
    VhostName::new(&format!("vhost {round}")).unwrap()
}

/// A virtual host with a bound queue, and one that is gone.
async fn vhosts(broker: &Broker, round: &str) {
    let own = vhost_of(round);
    broker.put_vhost(&own, VhostSpec::default()).await.unwrap();
    broker.put_vhost(&own, vhost_spec(round)).await.unwrap();
    let queue = QueueName::at(&own, "plain").unwrap();
    let dead_letters = DeadLetters::Queue(QueueName::at(&own, "letters").unwrap());
    broker.create_queue(&queue, QueueConfig { dead_letters, ..QueueConfig::default() }).await.unwrap();
    push(broker, &queue, &format!("in vhost {round}")).await;
    let direct = ExchangeName::at(&own, "amq.direct").unwrap();
    let to = Destination::Queue(queue);
    broker.bind(Binding::new(direct, to, Bytes::from_static(b"key"), vec![])).await.unwrap();
    let gone = VhostName::new(&format!("gone {round}")).unwrap();
    broker.put_vhost(&gone, VhostSpec::default()).await.unwrap();
    broker.create_queue(&QueueName::at(&gone, "plain").unwrap(), QueueConfig::default()).await.unwrap();
    broker.delete_vhost(&gone).await.unwrap();
}

pub(crate) fn shared_body(number: usize) -> String {
    format!("{number}{}", "s".repeat(SHARED_BYTES))
}

/// Messages that several queues share: one queue has both, one has acknowledged the first, and in one it is leased.
async fn shared(broker: &Broker, round: &str) -> Vec<String> {
    let mut handles = Vec::new();
    for text in SHARING {
        let queue = in_round(round, text);
        let config = QueueConfig { visibility: limits::VISIBILITY_MAX, ..QueueConfig::default() };
        broker.create_queue(&queue, config).await.unwrap();
        handles.push(broker.queue(&queue).unwrap());
    }
    let mut packed = PackedBatch::new(Durability::Durable, 0, 2);
    for number in 0..2 {
        packed.push(&NewMessage::new(shared_body(number)).as_draft());
    }
    let messages = broker.share(packed);
    let handles: Vec<_> = handles.iter().collect();
    let pushed = loop {
        match broker.push_shared(&handles, &messages, Pacing::Unpaced) {
            Err(QueueError::Busy { .. }) => broker.disk_caught_up().await,
            pushed => break pushed.unwrap(),
        }
    };
    for one in pushed {
        let SharedPush::Taken { written, .. } = one else { panic!("{one:?}") };
        broker.wait_for(written).await.unwrap();
    }
    let one = pop(broker, &in_round(round, SHARING[1]), 1).await;
    ack(broker, &one).await;
    let held = pop(broker, &in_round(round, SHARING[2]), 1).await;
    receipts(&held).iter().map(ToString::to_string).collect()
}

/// Settings of which each differs from its default in one queue at least.
pub(crate) fn all_settings() -> Vec<(&'static str, QueueConfig)> {
    let plain = QueueConfig::default();
    let all = QueueConfig {
        visibility: Millis(1),
        receipt_timeout: Some(Millis(2)),
        max_attempts: Some(3),
        dead_letters: DeadLetters::Queue(name("letters")),
        on_expiry: Fate::DeadLetter,
        on_overflow: Fate::DeadLetter,
        retry: Backoff::Exponential { base: Millis(4), factor_permille: 5000, cap: Millis(6) },
        ttl: Some(AGES),
        dedup_window: Millis(7),
        max_messages: Some(8),
        max_bytes: Some(9),
        overflow: Overflow::DropOldest,
        paused: true,
        rate_limit: Some(RateLimit { deliveries: 10, period: Millis(11) }),
        sync: SyncMode::Always,
        expires: Some(AGES),
        auto_delete: true,
        single_active_consumer: true,
        arguments: Bytes::from_static(b"\x00 as declared \xff"),
        annotations: [("sqs".to_owned(), Bytes::from_static(b"\xfe as kept"))].into(),
        groups: GroupMode::Fair,
        max_priority: None,
        on_refusal: Fate::Drop,
        // Earlier releases had no fields for these two, and nobody here reads the arguments.
        has_unread_arguments: true,
        base: None,
    };
    let exchange = DeadLetters::Exchange {
        exchange: exchange("graves"),
        routing_key: Some(Bytes::from_static(b"key \xff")),
    };
    let others = QueueConfig {
        dead_letters: exchange,
        retry: Backoff::Fixed { delay: Millis(12) },
        overflow: Overflow::DropHead,
        sync: SyncMode::Interval,
        ..plain.clone()
    };
    let nothing = QueueConfig {
        max_attempts: None,
        dead_letters: DeadLetters::Nowhere,
        sync: SyncMode::Os,
        ..plain.clone()
    };
    vec![("all", all), ("others", others), ("nothing", nothing), ("plain", plain)]
}

/// Messages of every kind, in every stage of their lives.
async fn messages(broker: &Broker, round: &str) -> Vec<String> {
    let queue = in_round(round, "messages");
    let config = QueueConfig {
        visibility: limits::VISIBILITY_MAX,
        dedup_window: limits::DEDUP_WINDOW_MAX,
        ..QueueConfig::default()
    };
    broker.create_queue(&queue, config).await.unwrap();
    for body in ["acked", "leased", "extended", "given back", "put off", "held by a connection"] {
        push_message(broker, &queue, NewMessage { priority: Priority(9), ..NewMessage::new(body) }).await;
    }
    let held = pop(broker, &queue, 5).await;
    ack(broker, &held[..1]).await;
    let all = receipts(&held);
    broker.extend(&all[2..3], limits::VISIBILITY_MAX).await.remove(0).unwrap();
    broker.nack(&all[3..4], None).await.remove(0).unwrap();
    broker.nack(&all[4..5], Some(AGES)).await.remove(0).unwrap();
    let terms = Terms { lease: LeaseTerms::Session, settle: SettleMode::Manual, ..Terms::default() };
    // Of these two one is what came back.
    for _ in 0..2 {
        broker.queue(&queue).unwrap().get(terms).await.unwrap().unwrap();
    }
    let properties = |format, bytes| Properties { format, bytes: Bytes::from_static(bytes) };
    let kinds = [
        NewMessage { priority: Priority(255), ..NewMessage::new("urgent") },
        NewMessage { delay: AGES, ..NewMessage::new("far away") },
        NewMessage { delay: Millis(1), ..NewMessage::new("due") },
        NewMessage { ttl: Some(AGES), ..NewMessage::new("mortal") },
        NewMessage { ttl: Some(Millis(1)), delay: Millis(0), ..NewMessage::new("dead") },
        NewMessage { dedup: Some(DedupId::new("once").unwrap()), ..NewMessage::new("unique") },
        NewMessage {
            properties: properties(PropertyFormat::Amqp, b"as \xff it came"),
            ..NewMessage::new("amqp")
        },
        NewMessage { properties: properties(PropertyFormat::Native, b"raw"), ..NewMessage::new("native") },
        NewMessage { address: Bytes::from_static(b"to "), ..NewMessage::new("addressed") },
        NewMessage { durability: Durability::Transient, ..NewMessage::new("transient") },
        NewMessage::new("l".repeat(LARGE_BYTES)),
        NewMessage::new(""),
    ];
    for message in kinds {
        push_message(broker, &queue, message).await;
    }
    let again = NewMessage { dedup: Some(DedupId::new("once").unwrap()), ..NewMessage::new("repeated") };
    assert!(push_message(broker, &queue, again).await.duplicate);
    all[1..3].iter().map(ToString::to_string).collect()
}

/// Ordered groups, fair ones, and a delivery that waits for its receipt.
async fn groups(broker: &Broker, round: &str) -> Vec<String> {
    let grouped = |group: &str, body: String| NewMessage {
        group: Some(GroupId::new(group).unwrap()),
        ..NewMessage::new(body)
    };
    let long = QueueConfig { visibility: limits::VISIBILITY_MAX, ..QueueConfig::default() };
    let ordered = in_round(round, "groups");
    broker.create_queue(&ordered, long.clone()).await.unwrap();
    for number in 0..3 {
        for group in ["one", "two"] {
            push_message(broker, &ordered, grouped(group, format!("{group} {number}"))).await;
        }
    }
    let held = pop(broker, &ordered, 1).await;
    let fair = in_round(round, "fair");
    broker.create_queue(&fair, QueueConfig { groups: GroupMode::Fair, ..long.clone() }).await.unwrap();
    for number in 0..40 {
        push_message(broker, &fair, grouped("many", format!("many {number}"))).await;
    }
    push_message(broker, &fair, grouped("few", "few".to_owned())).await;
    let told = in_round(round, "receipts");
    let config = QueueConfig { receipt_timeout: Some(limits::VISIBILITY_MAX), ..long };
    broker.create_queue(&told, config).await.unwrap();
    push(broker, &told, "not received").await;
    push(broker, &told, "received").await;
    let both = pop(broker, &told, 2).await;
    broker.received(&receipts(&both[1..])).await.remove(0).unwrap();
    receipts(&held).iter().chain(&receipts(&both)).map(ToString::to_string).collect()
}

/// Dead letters of two reasons.
async fn deaths(broker: &Broker, round: &str) {
    let queue = in_round(round, "limited");
    let config = QueueConfig { max_attempts: Some(1), ..QueueConfig::default() };
    broker.create_queue(&queue, config).await.unwrap();
    push(broker, &queue, "failed").await;
    let held = pop(broker, &queue, 1).await;
    broker.nack(&receipts(&held), None).await.remove(0).unwrap();
    push(broker, &queue, "rejected").await;
    let held = pop(broker, &queue, 1).await;
    broker.reject(&receipts(&held)).await.remove(0).unwrap();
    push(broker, &queue, "alive").await;
}

/// Queues that are emptied, changed, deleted, or only there for a while.
async fn goings(broker: &Broker, round: &str) {
    for text in ["purged", "cleared", "changed", "deleted", "renewed"] {
        let queue = in_round(round, text);
        broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
        push(broker, &queue, "before").await;
    }
    let request =
        PopRequest { max: 1, wait: Millis::ZERO, visibility: Some(limits::VISIBILITY_MAX), bytes_max: None };
    for text in ["purged", "cleared"] {
        broker.pop(&in_round(round, text), request).await.unwrap();
        push(broker, &in_round(round, text), "waits").await;
    }
    broker.purge(&in_round(round, "purged")).await.unwrap();
    broker.clear(&in_round(round, "cleared")).await.unwrap();
    broker.pause_queue(&in_round(round, "changed"), true).await.unwrap();
    broker.delete_queue(&in_round(round, "deleted")).await.unwrap();
    broker.delete_queue(&in_round(round, "renewed")).await.unwrap();
    broker.create_queue(&in_round(round, "renewed"), QueueConfig::default()).await.unwrap();
    push(broker, &in_round(round, "renewed"), "after").await;
    let transient =
        Declaration { config: QueueConfig::default(), durability: Durability::Transient, owner: None };
    let (handle, _) = broker.declare_queue(&in_round(round, "transient"), transient).await.unwrap();
    handle.push(&NewMessage::new("goes with its queue")).unwrap();
}

/// Exchanges of all kinds, by name.
pub(crate) fn all_exchanges(round: &str) -> Vec<(ExchangeName, ExchangeSpec)> {
    use ExchangeKind::{Delayed, Plain};
    let hash = |on| Plain(Matching::ConsistentHash(on));
    let kinds = [
        ("direct", Plain(Matching::Direct)),
        ("fanout", Plain(Matching::Fanout)),
        ("topic", Plain(Matching::Topic)),
        ("headers", Plain(Matching::Headers)),
        ("hash", hash(HashOn::RoutingKey)),
        ("hash of header", hash(HashOn::Header(Bytes::from_static(b"by \xff")))),
        ("hash of correlation", hash(HashOn::Property(Property::CorrelationId))),
        ("hash of message id", hash(HashOn::Property(Property::MessageId))),
        ("hash of time", hash(HashOn::Property(Property::Timestamp))),
        ("delayed", Delayed(Matching::Topic)),
    ];
    let mut all: Vec<(ExchangeName, ExchangeSpec)> = kinds
        .into_iter()
        .map(|(text, kind)| (exchange(&format!("{round} {text}")), ExchangeSpec::durable(kind)))
        .collect();
    let special = ExchangeSpec {
        auto_delete: true,
        internal: true,
        alternate: Some(exchange(&format!("{round} fanout"))),
        arguments: Bytes::from_static(b"\xff as declared"),
        ..ExchangeSpec::durable(Plain(Matching::Direct))
    };
    all.push((exchange(&format!("{round} special")), special));
    all
}

/// Bindings of all kinds.
pub(crate) fn all_bindings(round: &str) -> Vec<Binding> {
    let plain = || Destination::Queue(in_round(round, "plain"));
    let bind = |from: &str, to, key: &'static [u8], arguments: Vec<(&'static str, HeaderValue)>| {
        let arguments = arguments.into_iter().map(|(name, value)| (Bytes::from(name), value)).collect();
        Binding::new(exchange(&format!("{round} {from}")), to, Bytes::from_static(key), arguments)
    };
    let text = |text: &'static str| HeaderValue::Text(Bytes::from(text));
    let headers = vec![
        ("x-match", text("any")),
        ("bool", HeaderValue::Bool(true)),
        ("signed", HeaderValue::Signed(-1)),
        ("unsigned", HeaderValue::Unsigned(u64::MAX)),
        ("float", HeaderValue::Float(0.5f64.to_bits())),
        ("time", HeaderValue::Timestamp(7)),
        ("void", HeaderValue::Void),
        ("other", HeaderValue::Other(Bytes::from_static(b"D\x01\x00\x00\x00\x05"))),
    ];
    vec![
        bind("direct", plain(), b"key \xff", vec![]),
        bind("fanout", plain(), b"", vec![("x", text("y"))]),
        bind("topic", plain(), b"a.*.#", vec![]),
        bind("headers", plain(), b"", headers),
        bind("hash", plain(), b"3", vec![]),
        bind("hash", Destination::Queue(in_round(round, "nothing")), b"1", vec![]),
        bind("delayed", plain(), b"#", vec![]),
        bind("special", Destination::Exchange(exchange(&format!("{round} topic"))), b"a.b", vec![]),
    ]
}

async fn exchanges(broker: &Broker, round: &str) {
    for (name, spec) in all_exchanges(round) {
        broker.declare_exchange(&name, spec).await.unwrap();
    }
    for binding in all_bindings(round) {
        broker.bind(binding).await.unwrap();
    }
    // What is there for a while only.
    let direct = ExchangeSpec::durable(ExchangeKind::Plain(Matching::Direct));
    let gone = exchange(&format!("{round} deleted"));
    broker.declare_exchange(&gone, direct.clone()).await.unwrap();
    let plain = || Destination::Queue(in_round(round, "plain"));
    broker.bind(Binding::new(gone.clone(), plain(), Bytes::new(), vec![])).await.unwrap();
    broker.delete_exchange(&gone, nexo_broker::topology::DeleteIf::Always).await.unwrap();
    let unbound =
        Binding::new(exchange(&format!("{round} direct")), plain(), Bytes::from_static(b"gone"), vec![]);
    broker.bind(unbound.clone()).await.unwrap();
    broker.unbind(&unbound).await.unwrap();
    let transient = exchange(&format!("{round} transient"));
    broker
        .declare_exchange(&transient, ExchangeSpec { durability: Durability::Transient, ..direct })
        .await
        .unwrap();
}
