//! What lapin, the AMQP client of Rust programs, finds at the real binary. `AMQP_URL` points the same stories at another
//! broker, for example RabbitMQ; only the one that kills the broker needs one of its own.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::atomic::{AtomicU32, Ordering};

use common::{PATIENCE, Server};
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::*;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer, ExchangeKind,
};

/// A connection with a channel that confirms, and the broker if it is our own.
struct Client {
    connection: Connection,
    channel: Channel,
    server: Option<Server>,
}

impl Client {
    async fn start() -> Self {
        match std::env::var("AMQP_URL") {
            Ok(url) => Self::connect(&url, None).await,
            Err(_) => Self::with(Server::start_with(&["--amqp", "127.0.0.1:0"])).await,
        }
    }

    async fn with(server: Server) -> Self {
        Self::connect(&server.amqp_url(), Some(server)).await
    }

    async fn connect(url: &str, server: Option<Server>) -> Self {
        let connection = within(Connection::connect(url, ConnectionProperties::default())).await.unwrap();
        let channel = within(connection.create_channel()).await.unwrap();
        // Whoever reads what was published, on whichever channel, finds it.
        within(channel.confirm_select(ConfirmSelectOptions::default())).await.unwrap();
        Self { connection, channel, server }
    }

    async fn new_channel(&self) -> Channel {
        within(self.connection.create_channel()).await.unwrap()
    }

    /// A durable queue of a new name.
    async fn queue(&self) -> ShortString {
        self.queue_with(FieldTable::default()).await
    }

    async fn queue_with(&self, arguments: FieldTable) -> ShortString {
        let name = new_name("queue");
        let declared = self.channel.queue_declare(name.clone(), QueueDeclareOptions::durable(), arguments);
        within(declared).await.unwrap();
        name
    }

    /// A queue that goes with the connection, bound to an exchange.
    async fn bound(&self, exchange: &ShortString, key: &str, arguments: FieldTable) -> ShortString {
        let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
        let declared = within(self.channel.queue_declare("".into(), options, FieldTable::default())).await;
        let queue = declared.unwrap().name().clone();
        let options = QueueBindOptions::default();
        let bound = self.channel.queue_bind(queue.clone(), exchange.clone(), key.into(), options, arguments);
        within(bound).await.unwrap();
        queue
    }

    async fn exchange(&self, kind: ExchangeKind) -> ShortString {
        let name = new_name("exchange");
        let options = ExchangeDeclareOptions { auto_delete: true, ..Default::default() };
        within(self.channel.exchange_declare(name.clone(), kind, options, FieldTable::default()))
            .await
            .unwrap();
        name
    }

    /// Publishes a persistent message to a queue and says what the broker answered.
    async fn publish(&self, queue: &ShortString, body: &[u8]) -> Confirmation {
        publish(&self.channel, "".into(), queue.clone(), body, persistent()).await
    }

    async fn consume(&self, queue: &ShortString) -> Consumer {
        consume(&self.channel, queue).await
    }

    /// The bodies of all that is ready in a queue.
    async fn everything(&self, queue: &ShortString) -> Vec<String> {
        let mut found = Vec::new();
        while let Some(got) =
            within(self.channel.basic_get(queue.clone(), BasicGetOptions { no_ack: true })).await.unwrap()
        {
            found.push(text(&got.delivery));
        }
        found
    }

    async fn delete(&self, queue: &ShortString) {
        within(self.channel.queue_delete(queue.clone(), QueueDeleteOptions::default())).await.unwrap();
    }
}

async fn publish(
    channel: &Channel,
    exchange: ShortString,
    key: ShortString,
    body: &[u8],
    properties: BasicProperties,
) -> Confirmation {
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let sent = within(channel.basic_publish(exchange, key, options, body, properties)).await.unwrap();
    within(sent).await.unwrap()
}

async fn consume(channel: &Channel, queue: &ShortString) -> Consumer {
    let options = BasicConsumeOptions::default();
    within(channel.basic_consume(queue.clone(), "".into(), options, FieldTable::default())).await.unwrap()
}

async fn next(consumer: &mut Consumer) -> Delivery {
    within(consumer.next()).await.expect("the consumer is alive").unwrap()
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it takes too long")
}

/// A name that no other test uses, nor an earlier run on the same broker.
fn new_name(hint: &str) -> ShortString {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("lapin.{hint}.{}.{:x}.{number}", std::process::id(), fastrand::u64(..)).into()
}

fn persistent() -> BasicProperties {
    BasicProperties::default().with_delivery_mode(2)
}

fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.data.clone()).unwrap()
}

fn arguments(entries: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (key, value) in entries {
        table.insert((*key).into(), value.clone());
    }
    table
}

fn long(text: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(text))
}

#[tokio::test]
async fn messages_are_confirmed_consumed_and_acknowledged() {
    let client = Client::start().await;
    let queue = client.queue().await;
    for number in 0..100 {
        assert_eq!(client.publish(&queue, format!("{number}").as_bytes()).await, Confirmation::Ack(None));
    }
    let mut consumer = client.consume(&queue).await;
    for number in 0..100 {
        let delivery = next(&mut consumer).await;
        assert_eq!((text(&delivery), delivery.redelivered), (number.to_string(), false));
        assert_eq!(delivery.routing_key, queue);
        assert!(delivery.ack(BasicAckOptions::default()).await.unwrap());
    }
    client.delete(&queue).await;
}

#[tokio::test]
async fn a_message_that_no_queue_takes_is_returned_and_confirmed() {
    let client = Client::start().await;
    let answer = client.publish(&new_name("nowhere"), b"lost?").await;
    assert!(answer.is_ack(), "{answer:?}");
    let returned = answer.take_message().expect("it comes back");
    assert_eq!((returned.reply_code, returned.reply_text.as_str()), (312, "NO_ROUTE"));
    assert_eq!(text(&returned.delivery), "lost?");
}

#[tokio::test]
async fn what_is_nacked_comes_again_in_its_place() {
    let client = Client::start().await;
    let queue = client.queue().await;
    for body in ["first", "second"] {
        client.publish(&queue, body.as_bytes()).await;
    }
    let mut consumer = client.consume(&queue).await;
    let first = next(&mut consumer).await;
    let second = next(&mut consumer).await;
    let all = BasicNackOptions { multiple: true, requeue: true };
    assert!(second.nack(all).await.unwrap());
    for body in ["first", "second"] {
        let again = next(&mut consumer).await;
        assert_eq!((text(&again).as_str(), again.redelivered), (body, true));
        again.ack(BasicAckOptions::default()).await.unwrap();
    }
    assert_eq!(text(&first), "first");
    client.delete(&queue).await;
}

#[tokio::test]
async fn a_rejected_message_is_a_dead_letter_that_tells_its_death() {
    let client = Client::start().await;
    let dead = client.queue().await;
    let to_dead = [("x-dead-letter-exchange", long("")), ("x-dead-letter-routing-key", long(dead.as_str()))];
    let queue = client.queue_with(arguments(&to_dead)).await;
    client.publish(&queue, b"poison").await;
    let mut consumer = client.consume(&queue).await;
    next(&mut consumer).await.reject(BasicRejectOptions { requeue: false }).await.unwrap();

    let mut mourner = client.consume(&dead).await;
    let letter = next(&mut mourner).await;
    assert_eq!(text(&letter), "poison");
    let headers = letter.properties.headers().clone().expect("a dead letter has headers");
    assert_eq!(headers.inner()["x-first-death-reason"], long("rejected"));
    assert_eq!(headers.inner()["x-first-death-queue"], long(queue.as_str()));
    let AMQPValue::FieldArray(deaths) = &headers.inner()["x-death"] else { panic!("{headers:?}") };
    let AMQPValue::FieldTable(death) = &deaths.as_slice()[0] else { panic!("{deaths:?}") };
    let death = death.inner();
    assert_eq!((&death["queue"], &death["reason"]), (&long(queue.as_str()), &long("rejected")));
    assert_eq!((&death["count"], &death["exchange"]), (&AMQPValue::LongLongInt(1), &long("")));
    let keys = vec![long(queue.as_str())];
    assert_eq!(death["routing-keys"], AMQPValue::FieldArray(keys.into()));
    assert!(matches!(death["time"], AMQPValue::Timestamp(_)), "{death:?}");
    for queue in [&queue, &dead] {
        client.delete(queue).await;
    }
}

#[tokio::test]
async fn each_kind_of_exchange_routes_in_its_way() {
    let client = Client::start().await;
    let cases: [(ExchangeKind, &str, FieldTable, &[&str]); 4] = [
        (ExchangeKind::Direct, "a.b", FieldTable::default(), &["a.b"]),
        (ExchangeKind::Fanout, "ignored", FieldTable::default(), &["a.b", "a.c.d", "b"]),
        (ExchangeKind::Topic, "a.#", FieldTable::default(), &["a.b", "a.c.d"]),
        (
            ExchangeKind::Headers,
            "",
            arguments(&[("x-match", long("all")), ("colour", long("red"))]),
            &["a.b", "b"],
        ),
    ];
    for (kind, key, arguments_of_binding, expected) in cases {
        let exchange = client.exchange(kind.clone()).await;
        let queue = client.bound(&exchange, key, arguments_of_binding).await;
        for (key, colour) in [("a.b", "red"), ("a.c.d", "blue"), ("b", "red")] {
            let properties = BasicProperties::default().with_headers(arguments(&[("colour", long(colour))]));
            let answer =
                publish(&client.channel, exchange.clone(), key.into(), key.as_bytes(), properties).await;
            assert!(answer.is_ack());
        }
        assert_eq!(client.everything(&queue).await, expected, "{kind:?}");
    }
}

#[tokio::test]
async fn prefetch_bounds_what_a_consumer_holds() {
    let client = Client::start().await;
    let queue = client.queue().await;
    for number in 0..5 {
        client.publish(&queue, format!("{number}").as_bytes()).await;
    }
    let greedy = client.new_channel().await;
    within(greedy.basic_qos(2, BasicQosOptions::default())).await.unwrap();
    let mut consumer = consume(&greedy, &queue).await;
    let (one, _two) = (next(&mut consumer).await, next(&mut consumer).await);
    // The other three are left for somebody else.
    assert_eq!(client.everything(&queue).await, ["2", "3", "4"]);
    client.publish(&queue, b"5").await;
    one.ack(BasicAckOptions::default()).await.unwrap();
    assert_eq!(text(&next(&mut consumer).await), "5");
    client.delete(&queue).await;
}

#[tokio::test]
async fn a_consumer_is_told_when_its_queue_is_deleted() {
    let client = Client::start().await;
    let queue = client.queue().await;
    let other = client.new_channel().await;
    let mut consumer = consume(&other, &queue).await;
    client.delete(&queue).await;
    assert!(within(consumer.next()).await.is_none(), "the stream ends");
    // The channel goes on.
    let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
    within(other.queue_declare("".into(), options, FieldTable::default())).await.unwrap();
}

#[tokio::test]
async fn errors_close_the_channel_with_rabbitmqs_words() {
    let client = Client::start().await;
    let queue = client.queue().await;
    let channel = client.new_channel().await;
    let get = channel.basic_get("no such queue".into(), BasicGetOptions::default());
    let missing = within(get).await.unwrap_err().to_string();
    assert!(missing.contains("NOT_FOUND - no queue 'no such queue' in vhost '/'"), "{missing}");
    let channel = client.new_channel().await;
    let options = QueueDeclareOptions::default();
    let declare = channel.queue_declare(queue.clone(), options, FieldTable::default());
    let differs = within(declare).await.unwrap_err().to_string();
    let fact = "inequivalent arg 'durable' for queue";
    assert!(differs.contains("PRECONDITION_FAILED") && differs.contains(fact), "{differs}");
    // The connection goes on.
    client.delete(&queue).await;
}

#[tokio::test]
async fn a_body_of_many_frames_comes_back_whole() {
    let client = Client::start().await;
    let queue = client.queue().await;
    let body: Vec<u8> =
        (0..7 * 1024 * 1024u32 + 13).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    assert_eq!(client.publish(&queue, &body).await, Confirmation::Ack(None));
    let mut consumer = client.consume(&queue).await;
    let delivery = next(&mut consumer).await;
    assert!(delivery.data == body, "{} bytes came of {}", delivery.data.len(), body.len());
    delivery.ack(BasicAckOptions::default()).await.unwrap();
    client.delete(&queue).await;
}

#[tokio::test]
async fn what_was_confirmed_is_there_after_the_broker_was_killed() {
    let server = Server::start_with(&["--amqp", "127.0.0.1:0"]);
    let mut client = Client::with(server).await;
    let queue = client.queue().await;
    for number in 0..50 {
        assert_eq!(client.publish(&queue, format!("{number}").as_bytes()).await, Confirmation::Ack(None));
    }
    let mut consumer = client.consume(&queue).await;
    next(&mut consumer).await;
    let mut server = client.server.take().unwrap();
    server.kill();
    // What was on its way still comes; then the client sees the end.
    while let Some(Ok(_)) = within(consumer.next()).await {}

    server.restart_with(&["--amqp", "127.0.0.1:0"]);
    let client = Client::with(server).await;
    let expected: Vec<String> = (0..50).map(|number| number.to_string()).collect();
    assert_eq!(client.everything(&queue).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_in_two_virtual_hosts_is_two_queues_also_after_a_kill() {
    let mut server = Server::start_with(&["--amqp", "127.0.0.1:0"]);
    let url = |server: &Server, vhost: &str| format!("amqp://guest:guest@{}/{vhost}", server.amqp());
    let queue = ShortString::from("orders");
    for vhost in ["one", "two"] {
        server.ok(&["vhost", "add", vhost]);
        let client = Client::connect(&url(&server, vhost), None).await;
        let options = QueueDeclareOptions::durable();
        within(client.channel.queue_declare(queue.clone(), options, FieldTable::default())).await.unwrap();
        assert_eq!(client.publish(&queue, vhost.as_bytes()).await, Confirmation::Ack(None));
    }
    server.kill();
    server.restart_with(&["--amqp", "127.0.0.1:0"]);
    let client = Client::connect(&url(&server, "one"), None).await;
    server.ok(&["vhost", "delete", "two", "--yes"]);
    let two = url(&server, "two");
    let refused = Connection::connect(&two, ConnectionProperties::default());
    let refused = within(refused).await.err().unwrap().to_string();
    assert!(refused.contains("vhost two not found"), "{refused}");
    assert_eq!(client.everything(&queue).await, ["one"]);
    server.kill();
    server.restart_with(&["--amqp", "127.0.0.1:0"]);
    let names: Vec<_> = server.json(&["vhost", "list"]).iter().map(|vhost| vhost["name"].clone()).collect();
    assert_eq!(names, ["/", "one"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_tells_of_connections_and_of_channels_that_failed() {
    let server = Server::start_with(&["--amqp", "127.0.0.1:0", "--log", "info"]);
    let mut client = Client::with(server).await;
    let channel = client.new_channel().await;
    let passive = QueueDeclareOptions { passive: true, ..Default::default() };
    let missing = "none\nof these".into();
    within(channel.queue_declare(missing, passive, FieldTable::default())).await.unwrap_err();
    within(client.connection.close(200, "done".into())).await.unwrap();
    let log = client.server.take().unwrap().stop_and_collect().stderr;
    for words in [
        ["connection opened", "peer=127.0.0.1:", "user=\"guest\""],
        ["channel closed", "channel=2", "error=\"NOT_FOUND - "],
        ["connection closed", "user=\"guest\"", "seconds="],
    ] {
        let told = log
            .lines()
            .any(|line| line.contains("protocol=\"amqp\"") && words.iter().all(|word| line.contains(word)));
        assert!(told, "no line with {words:?} in:\n{log}");
    }
    // What a client says cannot look like a line of its own.
    assert!(!log.lines().any(|line| line.starts_with("of these")), "{log}");
}
