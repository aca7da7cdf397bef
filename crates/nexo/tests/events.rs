//! What the broker tells of itself over AMQP: events, and the firehose. A real client reads both.

#![allow(clippy::unwrap_used)]

mod common;

use common::{PATIENCE, Server};
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::*;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};

async fn within<T>(work: impl Future<Output = lapin::Result<T>>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes no minute").unwrap()
}

async fn connect(server: &Server) -> (Connection, Channel) {
    let connection = within(Connection::connect(&server.amqp_url(), ConnectionProperties::default())).await;
    let channel = within(connection.create_channel()).await;
    (connection, channel)
}

/// All that an exchange sends on from now on.
async fn watch(channel: &Channel, exchange: &str) -> Consumer {
    let queue =
        within(channel.queue_declare("".into(), QueueDeclareOptions::exclusive(), FieldTable::default()))
            .await;
    let name = queue.name().clone();
    let options = QueueBindOptions::default();
    within(channel.queue_bind(name.clone(), exchange.into(), "#".into(), options, FieldTable::default()))
        .await;
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    within(channel.basic_consume(name, "".into(), options, FieldTable::default())).await
}

/// The next message with this routing key.
async fn next(consumer: &mut Consumer, key: &str) -> Delivery {
    loop {
        let delivery = tokio::time::timeout(PATIENCE, consumer.next()).await;
        let delivery = delivery.unwrap_or_else(|_| panic!("no {key}")).unwrap().unwrap();
        if delivery.routing_key.as_str() == key {
            return delivery;
        }
    }
}

fn header(delivery: &Delivery, name: &str) -> AMQPValue {
    let headers = delivery.properties.headers().clone().unwrap();
    let found = headers.inner().get(&ShortString::from(name)).cloned();
    found.unwrap_or_else(|| panic!("no {name} in {headers:?}"))
}

fn text(delivery: &Delivery, name: &str) -> String {
    match header(delivery, name) {
        AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).unwrap(),
        other => panic!("{name} is {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_is_told_to_whoever_binds() {
    let server = Server::start_with(&["--amqp", "127.0.0.1:0"]);
    let (_connection, channel) = connect(&server).await;
    let mut events = watch(&channel, "amq.rabbitmq.event").await;

    server.ok(&["queue", "create", "mail"]);
    let created = next(&mut events, "queue.created").await;
    assert_eq!((text(&created, "name"), text(&created, "vhost")), ("mail".to_owned(), "/".to_owned()));
    assert_eq!(text(&created, "user_who_performed_action"), "guest");
    assert_eq!(header(&created, "durable"), AMQPValue::Boolean(true));
    assert!(
        matches!(header(&created, "timestamp_in_ms"), AMQPValue::LongLongInt(ms) if ms > 1_700_000_000_000)
    );
    assert!(created.data.is_empty() && created.properties.timestamp().is_some());

    server.ok(&["exchange", "declare", "news", "--type", "topic"]);
    assert_eq!(text(&next(&mut events, "exchange.created").await, "type"), "topic");
    server.ok(&["binding", "add", "news", "mail", "--routing-key", "a.*", "--argument", "n=5"]);
    let bound = next(&mut events, "binding.created").await;
    assert_eq!(
        (text(&bound, "source_name"), text(&bound, "destination_name")),
        ("news".into(), "mail".into())
    );
    assert_eq!(
        (text(&bound, "routing_key"), text(&bound, "user_who_performed_action")),
        ("a.*".into(), "guest".into())
    );
    let AMQPValue::FieldTable(arguments) = header(&bound, "arguments") else { panic!("{bound:?}") };
    assert_eq!(arguments.inner().get(&ShortString::from("n")), Some(&AMQPValue::LongLongInt(5)));
    server.ok(&["exchange", "delete", "news", "--yes"]);
    assert_eq!(text(&next(&mut events, "binding.deleted").await, "destination_kind"), "queue");
    assert_eq!(text(&next(&mut events, "exchange.deleted").await, "name"), "news");
    server.ok(&["queue", "delete", "mail", "--yes"]);
    assert_eq!(text(&next(&mut events, "queue.deleted").await, "name"), "mail");

    server.ok(&["vhost", "add", "acme", "--max-queues", "5"]);
    assert_eq!(text(&next(&mut events, "vhost.created").await, "name"), "acme");
    assert_eq!(header(&next(&mut events, "vhost.limits.set").await, "max-queues"), AMQPValue::LongLongInt(5));
    server.ok(&["user", "add", "ann", "--new-password", "secret", "--tag", "monitoring"]);
    assert_eq!(text(&next(&mut events, "user.created").await, "name"), "ann");
    server.ok(&["permission", "set", "ann", "--all", "--vhost", "acme"]);
    let allowed = next(&mut events, "permission.created").await;
    assert_eq!((text(&allowed, "user"), text(&allowed, "vhost")), ("ann".into(), "acme".into()));
    server.ok(&["user", "password", "ann", "--new-password", "other"]);
    assert_eq!(text(&next(&mut events, "user.password.changed").await, "name"), "ann");

    server.ok(&["rabbitmqctl", "set_policy", "short", "^q", r#"{"max-length":10}"#, "--apply-to", "queues"]);
    let policy = next(&mut events, "policy.set").await;
    assert_eq!((text(&policy, "name"), text(&policy, "pattern")), ("short".into(), "^q".into()));
    let AMQPValue::FieldTable(definition) = header(&policy, "definition") else { panic!("{policy:?}") };
    assert_eq!(definition.inner().get(&ShortString::from("max-length")), Some(&AMQPValue::LongLongInt(10)));
    server.ok(&["rabbitmqctl", "clear_policy", "short"]);
    assert_eq!(text(&next(&mut events, "policy.cleared").await, "user_who_performed_action"), "guest");

    let url = server.amqp_url().replace("guest:guest@", "ann:wrong@");
    assert!(Connection::connect(&url, ConnectionProperties::default()).await.is_err());
    let refused = next(&mut events, "user.authentication.failure").await;
    assert_eq!((text(&refused, "name"), text(&refused, "peer_host")), ("ann".into(), "127.0.0.1".into()));
    assert_eq!(
        (text(&refused, "auth_mechanism"), text(&refused, "error")),
        ("PLAIN".into(), "invalid credentials".into())
    );

    let url = server.amqp_url().replace("guest:guest@", "ann:other@").replace("%2f", "acme");
    let connection = within(Connection::connect(&url, ConnectionProperties::default())).await;
    assert_eq!(text(&next(&mut events, "user.authentication.success").await, "name"), "ann");
    let came = next(&mut events, "connection.created").await;
    assert_eq!((text(&came, "user"), text(&came, "vhost")), ("ann".into(), "acme".into()));
    let other = within(connection.create_channel()).await;
    assert_eq!(header(&next(&mut events, "channel.created").await, "number"), AMQPValue::LongLongInt(1));
    within(other.queue_declare("q".into(), QueueDeclareOptions::default(), FieldTable::default())).await;
    let theirs = next(&mut events, "queue.created").await;
    assert_eq!(text(&theirs, "user_who_performed_action"), "ann", "who did it is known over AMQP too");
    let consume =
        other.basic_consume("q".into(), "tag".into(), BasicConsumeOptions::default(), FieldTable::default());
    let _consumer = within(consume).await;
    assert_eq!(text(&next(&mut events, "consumer.created").await, "consumer_tag"), "tag");
    within(connection.close(200, "bye".into())).await;
    assert_eq!(text(&next(&mut events, "consumer.deleted").await, "queue"), "q");
    next(&mut events, "channel.closed").await;
    assert_eq!(text(&next(&mut events, "connection.closed").await, "name"), text(&came, "name"));

    server.ok(&["user", "delete", "ann", "--yes"]);
    assert_eq!(text(&next(&mut events, "user.deleted").await, "name"), "ann");
    server.ok(&["vhost", "delete", "acme", "--yes"]);
    assert_eq!(text(&next(&mut events, "vhost.deleted").await, "name"), "acme");
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_told_in_events_and_in_the_log() {
    let mut server = Server::start_with(&["--amqp", "127.0.0.1:0", "--log", "info"]);
    let (_connection, channel) = connect(&server).await;
    let mut events = watch(&channel, "amq.rabbitmq.event").await;
    server.ok(&["queue", "create", "q"]);
    server.ok(&["schedule", "set", "beat", "tick", "--every", "100ms", "--queue", "q"]);
    let set = next(&mut events, "schedule.set").await;
    assert_eq!((text(&set, "name"), text(&set, "vhost")), ("beat".into(), "/".into()));
    assert_eq!(text(&set, "user_who_performed_action"), "guest");
    for (command, event) in [("pause", "schedule.paused"), ("resume", "schedule.resumed")] {
        server.ok(&["schedule", command, "beat"]);
        assert_eq!(text(&next(&mut events, event).await, "name"), "beat");
    }
    let fails = |event: &Delivery, reason: &str| {
        assert_eq!((text(event, "name"), text(event, "error")), ("beat".into(), reason.into()));
    };
    server.ok(&["queue", "delete", "q", "--yes"]);
    fails(&next(&mut events, "schedule.failed").await, "queue 'q' does not exist");
    let failures = || server.json(&["schedule", "show", "beat"])[0]["failures"].as_u64().unwrap();
    common::eventually("it fails again and again", || failures() >= 3);
    // With another target there is another reason, which is the next that is told.
    server.ok(&["jobs", "queue", "set", "deals"]);
    let job = ["--job-queue", "deals", "--job-key", "books"];
    server.ok(&[&["schedule", "set", "beat", "--every", "100ms"], &job[..]].concat());
    next(&mut events, "schedule.set").await;
    server.ok(&["jobs", "queue", "delete", "deals", "--yes"]);
    fails(&next(&mut events, "schedule.failed").await, "there is no job queue 'deals'");
    server.ok(&["schedule", "delete", "beat", "--yes"]);
    assert_eq!(text(&next(&mut events, "schedule.deleted").await, "name"), "beat");

    let log = server.stop_and_collect().stderr;
    let lines =
        |words: &[&str]| log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count();
    for (event, count) in
        [("schedule.set", 2), ("schedule.paused", 1), ("schedule.resumed", 1), ("schedule.deleted", 1)]
    {
        assert_eq!(lines(&[event, "beat", "guest"]), count, "{event}: {log}");
    }
    for reason in ["queue 'q' does not exist", "there is no job queue 'deals'"] {
        assert_eq!(lines(&["a schedule failed", reason]), 1, "each reason is told once: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_says_who_did_something_and_from_where() {
    let mut server = Server::start_with(&["--amqp", "127.0.0.1:0", "--log", "info"]);
    server.ok(&["user", "add", "ann", "--new-password", "secret", "--tag", "administrator"]);
    server.ok(&["permission", "set", "ann", "--all"]);
    let as_ann = |args: &[&str]| {
        let mut command = server.command(args);
        common::Process::spawn(command.env("NEXO_USER", "ann").env("NEXO_PASSWORD", "secret")).finish().ok()
    };
    as_ann(&["vhost", "add", "acme"]);
    as_ann(&["permission", "set", "ann", "--all", "--vhost", "acme"]);
    as_ann(&["queue", "create", "there", "--vhost", "acme"]);
    as_ann(&["queue", "create", "mail"]);
    as_ann(&["rabbitmqctl", "set_policy", "short", "^q", r#"{"max-length":10}"#, "--apply-to", "queues"]);
    as_ann(&["queue", "delete", "mail", "--yes"]);
    as_ann(&["vhost", "delete", "acme", "--yes"]);
    as_ann(&["rabbitmqctl", "set_vm_memory_high_watermark", "0.9"]);
    let (_connection, _channel) = connect(&server).await;
    let listed = server.json(&["connection", "list"]);
    let name = listed[0]["name"].as_str().unwrap();
    as_ann(&["connection", "close", name, "--reason", "enough", "--yes"]);

    let log = server.stop_and_collect().stderr;
    for words in [
        &["queue created", "mail"][..],
        &["queue deleted", "mail"],
        &["policies changed", "policy.set", "short"],
        &["vhost created", "acme"],
        &["queue deleted", "there"],
        &["vhost deleted", "acme"],
        &["users changed", "permission.created", "ann"],
        &["a connection is closed by an operator", name, "enough"],
        &["the memory watermark was changed"],
    ] {
        let mut said = log.lines().filter(|line| words.iter().all(|word| line.contains(word)));
        assert!(said.any(|line| line.contains("by=ann from 127.0.0.1:")), "{words:?}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_is_told_while_it_is_on() {
    let server = Server::start_with(&["--amqp", "127.0.0.1:0"]);
    let (_connection, channel) = connect(&server).await;
    let mut events = watch(&channel, "amq.rabbitmq.event").await;
    server.ok(&["rabbitmqctl", "set_vm_memory_high_watermark", "0"]);
    let set = next(&mut events, "alarm.set").await;
    assert_eq!(text(&set, "resource"), "memory");
    server.ok(&["queue", "create", "made-meanwhile"]);
    assert_eq!(text(&next(&mut events, "queue.created").await, "name"), "made-meanwhile");
    server.ok(&["rabbitmqctl", "set_vm_memory_high_watermark", "0.6"]);
    assert_eq!(text(&next(&mut events, "alarm.cleared").await, "resource"), "memory");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_firehose_copies_what_is_published_and_delivered() {
    let server = Server::start_with(&["--amqp", "127.0.0.1:0"]);
    let (_watching, watcher) = connect(&server).await;
    let mut copies = watch(&watcher, "amq.rabbitmq.trace").await;
    let (_connection, channel) = connect(&server).await;
    within(channel.queue_declare("q".into(), QueueDeclareOptions::default(), FieldTable::default())).await;
    let consume = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    // It would be cancelled if it were dropped.
    let _consumer =
        within(channel.basic_consume("q".into(), "".into(), consume, FieldTable::default())).await;
    let publish = async |body: &str| {
        let properties = BasicProperties::default().with_content_type("text/plain".into()).with_priority(4);
        let options = BasicPublishOptions::default();
        within(channel.basic_publish("".into(), "q".into(), options, body.as_bytes(), properties)).await;
    };
    publish("before").await;
    server.ok(&["rabbitmqctl", "trace_on"]);
    assert_eq!(server.ok(&["rabbitmqctl", "-s", "list_vhosts", "name", "tracing"]), "/\ttrue\n");
    publish("traced").await;
    let published = next(&mut copies, "publish.").await;
    assert_eq!(published.data, b"traced", "what was before is not copied");
    assert_eq!(
        (text(&published, "exchange_name"), text(&published, "user")),
        (String::new(), "guest".to_owned())
    );
    let AMQPValue::FieldArray(keys) = header(&published, "routing_keys") else { panic!("{published:?}") };
    assert_eq!(keys.as_slice(), [AMQPValue::LongString("q".into())]);
    let AMQPValue::FieldArray(queues) = header(&published, "routed_queues") else { panic!("{published:?}") };
    assert_eq!(queues.as_slice(), [AMQPValue::LongString("q".into())]);
    let AMQPValue::FieldTable(properties) = header(&published, "properties") else { panic!("{published:?}") };
    assert_eq!(
        properties.inner().get(&ShortString::from("content_type")),
        Some(&AMQPValue::LongString("text/plain".into()))
    );
    assert_eq!(properties.inner().get(&ShortString::from("priority")), Some(&AMQPValue::LongInt(4)));
    assert!(text(&published, "node").starts_with("nexo@") && text(&published, "connection").contains(" -> "));
    let delivered = next(&mut copies, "deliver.q").await;
    assert_eq!(
        (&delivered.data[..], header(&delivered, "redelivered")),
        (&b"traced"[..], AMQPValue::ShortShortInt(0))
    );

    server.ok(&["rabbitmqctl", "trace_off"]);
    publish("after").await;
    // Another one that is traced shows that none came between, and that copies were not copied.
    server.ok(&["rabbitmqctl", "trace_on"]);
    publish("again").await;
    let mut rest = Vec::new();
    while rest.len() < 2 {
        let copy = tokio::time::timeout(PATIENCE, copies.next()).await.unwrap().unwrap().unwrap();
        rest.push((copy.routing_key.to_string(), copy.data));
    }
    let again = |key: &str| (key.to_owned(), b"again".to_vec());
    assert_eq!(rest, [again("publish."), again("deliver.q")]);
}
