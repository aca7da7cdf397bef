//! A client that does not wait for answers before it goes on: what it declares is done at once, it is told when that is
//! safe, and in order.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod raw_client;

use std::sync::Arc;
use std::time::Duration;

use nexo_amqp::codec::method::{QueueMethod, basic, channel, connection, exchange, queue};
use nexo_amqp::codec::{AmqpMethod, Method, ShortStr, Table, TableBuf, encode_method};
use nexo_amqp_client::methods;
use nexo_broker::{Broker, BrokerOptions, NewMessage};
use nexo_log::disk::{FaultyDisk, GateDisk};
use nexo_types::QueueName;
use raw_client::{Client, PERSISTENT, Served, eventually};

async fn gated() -> (Served, GateDisk) {
    let gate = GateDisk::default();
    let options = BrokerOptions {
        codecs: nexo_amqp::register(nexo_broker::Codecs::default()),
        ..BrokerOptions::new("memory")
    };
    let broker = Broker::open_on(Arc::new(gate.clone()), options).unwrap();
    (Served::serve(broker, FaultyDisk::new(), nexo_amqp::Options::default()).await, gate)
}

fn short(text: &str) -> ShortStr<'_> {
    ShortStr::new(text.as_bytes()).unwrap()
}

fn declare(name: &str) -> queue::Declare<'_> {
    queue::Declare { durable: true, ..methods::declare_queue(short(name)) }
}

fn delete(name: &str) -> queue::Delete<'_> {
    methods::delete_queue(short(name))
}

fn declare_exchange(name: &str) -> exchange::Declare<'_> {
    exchange::Declare {
        ticket: 0,
        exchange: short(name),
        kind: short("fanout"),
        passive: false,
        durable: true,
        auto_delete: false,
        internal: false,
        nowait: false,
        arguments: Table::EMPTY,
    }
}

fn bind<'a>(queue: &'a str, exchange: &'a str) -> queue::Bind<'a> {
    queue::Bind {
        ticket: 0,
        queue: short(queue),
        exchange: short(exchange),
        routing_key: ShortStr::EMPTY,
        nowait: false,
        arguments: Table::EMPTY,
    }
}

/// Methods that go out in one write.
#[derive(Default)]
struct Sent(Vec<u8>);

impl Sent {
    fn add<M: AmqpMethod>(mut self, number: u16, method: &M) -> Self {
        encode_method(&mut self.0, number, method);
        self
    }
}

fn is_there(served: &Served, name: &str) -> bool {
    served.broker.queue(&QueueName::new(name).unwrap()).is_some()
}

async fn expect_nothing(client: &mut Client) {
    let come = tokio::time::timeout(Duration::from_millis(50), client.next()).await;
    assert!(come.is_err(), "nothing is safe yet, but there came {:?}", come.unwrap().unwrap().method());
}

/// The queue that the next answer is about, and its channel.
async fn expect_declared(client: &mut Client) -> (u16, String) {
    let got = client.expect("queue.declare-ok").await;
    match got.method() {
        Method::Queue(QueueMethod::DeclareOk(ok)) => (got.channel, ok.queue.to_string()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_in_a_row_are_done_at_once_and_answered_in_order_when_safe() {
    let (served, gate) = gated().await;
    let mut client = served.client().await;
    client.open_channel(2).await;
    gate.hold_syncs();
    let names: Vec<String> = (0..40).map(|number| format!("q{number}")).collect();
    let mut sent = Sent::default();
    for (number, name) in names.iter().enumerate() {
        sent = sent.add(1 + (number % 2) as u16, &declare(name));
    }
    sent = sent.add(1, &declare_exchange("x")).add(1, &bind("q0", "x")).add(1, &delete("q1"));
    // What needs no disk comes after what does.
    let passive = queue::Declare { passive: true, ..declare("q2") };
    let exclusive = queue::Declare { exclusive: true, ..declare("mine") };
    let unheard = queue::Declare { nowait: true, ..declare("unheard") };
    sent = sent.add(2, &passive).add(2, &exclusive).add(2, &unheard);
    client.raw(&sent.0).await;
    eventually("all is done", || is_there(&served, "unheard") && !is_there(&served, "q1")).await;
    expect_nothing(&mut client).await;
    gate.open_gate();
    let mut declared = [Vec::new(), Vec::new()];
    for _ in &names {
        let (number, name) = expect_declared(&mut client).await;
        declared[usize::from(number) - 1].push(name);
    }
    let of = |rest| names.iter().skip(rest).step_by(2).cloned().collect::<Vec<_>>();
    assert_eq!(declared, [of(0), of(1)]);
    for answer in ["exchange.declare-ok", "queue.bind-ok", "queue.delete-ok"] {
        assert_eq!(client.expect(answer).await.channel, 1);
    }
    assert_eq!(expect_declared(&mut client).await, (2, "q2".to_owned()));
    assert_eq!(expect_declared(&mut client).await, (2, "mine".to_owned()));
    client.expect_silence().await;
    assert!(is_there(&served, "unheard"));
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_else_a_channel_says_comes_after_its_answers() {
    let (served, gate) = gated().await;
    let mut client = served.client().await;
    client.select_confirms().await;
    gate.hold_syncs();
    client.send(1, &declare("q")).await;
    client.publish("q", PERSISTENT, b"x").await;
    let qos = basic::Qos { prefetch_size: 0, prefetch_count: 1, global: false };
    client.raw(&Sent::default().add(1, &qos).add(1, &declare("r")).0).await;
    eventually("the message is there", || {
        served.broker.queue(&QueueName::new("q").unwrap()).is_some_and(|queue| queue.counts().0 == 1)
    })
    .await;
    expect_nothing(&mut client).await;
    gate.open_gate();
    client.expect("queue.declare-ok").await;
    let mut rest = Vec::new();
    for _ in 0..3 {
        rest.push(client.next().await.unwrap().name());
    }
    rest.retain(|name| *name != "basic.ack");
    assert_eq!(rest, ["basic.qos-ok", "queue.declare-ok"], "confirms come whenever they come");
    // The end of a channel is among them, and so is that of the connection.
    gate.hold_syncs();
    let reply_text = ShortStr::EMPTY;
    let close = channel::Close { reply_code: 200, reply_text, class_id: 0, method_id: 0 };
    client.raw(&Sent::default().add(1, &declare("s")).add(1, &close).0).await;
    expect_nothing(&mut client).await;
    gate.open_gate();
    client.expect("queue.declare-ok").await;
    client.expect("channel.close-ok").await;
    client.open_channel(1).await;
    gate.hold_syncs();
    let close = connection::Close { reply_code: 200, reply_text, class_id: 0, method_id: 0 };
    client.raw(&Sent::default().add(1, &declare("t")).add(0, &close).0).await;
    expect_nothing(&mut client).await;
    gate.open_gate();
    client.expect("queue.declare-ok").await;
    client.expect("connection.close-ok").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_client_that_finds_a_queue_is_told_so_when_it_is_safe() {
    let (served, gate) = gated().await;
    let (mut one, mut other) = (served.client().await, served.client().await);
    let mut third = served.client().await;
    gate.hold_syncs();
    one.send(1, &declare("q")).await;
    eventually("it is declared", || is_there(&served, "q")).await;
    let passive = queue::Declare { passive: true, ..declare("q") };
    let bound = bind("q", "amq.fanout");
    other.raw(&Sent::default().add(1, &declare("q")).add(1, &passive).add(1, &bound).0).await;
    let consume = basic::Consume { no_ack: true, ..methods::consume(short("q"), short("tag")) };
    third.send(1, &consume).await;
    for client in [&mut one, &mut other, &mut third] {
        expect_nothing(client).await;
    }
    gate.open_gate();
    one.expect("queue.declare-ok").await;
    for answer in ["queue.declare-ok", "queue.declare-ok", "queue.bind-ok"] {
        other.expect(answer).await;
    }
    third.expect("basic.consume-ok").await;
    // The same is true of one that is gone.
    gate.hold_syncs();
    one.send(1, &delete("q")).await;
    eventually("it is deleted", || !is_there(&served, "q")).await;
    other.send(1, &delete("q")).await;
    for client in [&mut one, &mut other] {
        expect_nothing(client).await;
    }
    gate.open_gate();
    one.expect("queue.delete-ok").await;
    other.expect("queue.delete-ok").await;
}

async fn expect_refused(client: &mut Client, code: u16) {
    let got = client.expect("channel.close").await;
    let Method::Channel(nexo_amqp::codec::method::ChannelMethod::Close(close)) = got.method() else {
        panic!()
    };
    assert_eq!(close.reply_code, code);
}

/// A refusal says as much as an answer does: what it rests on must be safe.
#[tokio::test(flavor = "multi_thread")]
async fn another_client_is_refused_when_what_that_rests_on_is_safe() {
    let (served, gate) = gated().await;
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(served.client().await);
    }
    let [one, passive, differs, bound, missing, exchanges] = &mut clients[..] else { panic!() };
    one.send(1, &declare("gone")).await;
    one.expect("queue.declare-ok").await;
    one.send(1, &declare_exchange("gone")).await;
    one.expect("exchange.declare-ok").await;
    gate.hold_syncs();
    let sent = Sent::default().add(1, &delete("gone")).add(1, &declare("new"));
    let gone = exchange::Delete { ticket: 0, exchange: short("gone"), if_unused: false, nowait: false };
    one.raw(&sent.add(1, &gone).add(1, &declare("last")).0).await;
    eventually("all is done", || is_there(&served, "last")).await;
    passive.send(1, &queue::Declare { passive: true, ..declare("gone") }).await;
    differs.send(1, &queue::Declare { durable: false, ..declare("new") }).await;
    bound.send(1, &bind("new", "gone")).await;
    missing.send(1, &basic::Get { ticket: 0, queue: short("gone"), no_ack: true }).await;
    exchanges.send(1, &exchange::Declare { passive: true, ..declare_exchange("gone") }).await;
    for client in [&mut *passive, differs, bound, missing, exchanges] {
        expect_nothing(client).await;
    }
    gate.open_gate();
    expect_refused(differs, 406).await;
    for client in [passive, bound, missing, exchanges] {
        expect_refused(client, 404).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cancels_is_told_when_the_queue_that_goes_with_it_is_safely_gone() {
    let (served, gate) = gated().await;
    let mut client = served.client().await;
    client.send(1, &queue::Declare { auto_delete: true, ..declare("passing") }).await;
    client.expect("queue.declare-ok").await;
    let consume = basic::Consume { no_ack: true, ..methods::consume(short("passing"), short("tag")) };
    client.send(1, &consume).await;
    client.expect("basic.consume-ok").await;
    gate.hold_syncs();
    client.send(1, &basic::Cancel { consumer_tag: short("tag"), nowait: false }).await;
    eventually("it is gone", || !is_there(&served, "passing")).await;
    expect_nothing(&mut client).await;
    gate.open_gate();
    client.expect("basic.cancel-ok").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_comes_after_the_answers_before_it() {
    let (served, gate) = gated().await;
    let mut client = served.client().await;
    gate.hold_syncs();
    let other = queue::Declare { durable: false, ..declare("q") };
    let sent =
        Sent::default().add(1, &declare("q")).add(1, &declare("r")).add(1, &other).add(1, &declare("s"));
    client.raw(&sent.0).await;
    expect_nothing(&mut client).await;
    gate.open_gate();
    client.expect("queue.declare-ok").await;
    client.expect("queue.declare-ok").await;
    let got = client.expect("channel.close").await;
    let Method::Channel(nexo_amqp::codec::method::ChannelMethod::Close(close)) = got.method() else {
        panic!()
    };
    assert_eq!(close.reply_code, 406);
    assert!(!is_there(&served, "s"), "what comes after it is not looked at");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_a_connection_and_one_that_goes_by_itself_are_as_before() {
    let (served, _) = gated().await;
    let (mut one, mut other) = (served.client().await, served.client().await);
    let exclusive = queue::Declare { exclusive: true, ..declare("mine") };
    let passing = queue::Declare { auto_delete: true, ..declare("passing") };
    let consume = basic::Consume { no_ack: true, ..methods::consume(short("passing"), short("tag")) };
    let cancel = basic::Cancel { consumer_tag: short("tag"), nowait: false };
    let sent = Sent::default().add(1, &exclusive).add(1, &passing).add(1, &consume).add(1, &cancel);
    one.raw(&sent.add(1, &declare("passing")).0).await;
    let answers = ["queue.declare-ok", "queue.declare-ok", "basic.consume-ok", "basic.cancel-ok"];
    for answer in answers.into_iter().chain(["queue.declare-ok"]) {
        one.expect(answer).await;
    }
    assert!(
        !served.broker.queue(&QueueName::new("passing").unwrap()).unwrap().config().auto_delete,
        "it is another"
    );
    other.send(1, &declare("mine")).await;
    let got = other.expect("channel.close").await;
    let Method::Channel(nexo_amqp::codec::method::ChannelMethod::Close(close)) = got.method() else {
        panic!()
    };
    assert_eq!(close.reply_code, 405);
    drop(one);
    eventually("it goes with its connection", || !is_there(&served, "mine")).await;
    assert!(is_there(&served, "passing"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_declares_are_lost_is_not_told_otherwise() {
    let served = Served::start().await;
    let mut client = served.client().await;
    served.disk.fail_next_sync();
    let unheard = queue::Declare { nowait: true, ..declare("r") };
    let exclusive = queue::Declare { exclusive: true, ..declare("mine") };
    client.raw(&Sent::default().add(1, &declare("q")).add(1, &unheard).add(1, &exclusive).0).await;
    client.expect_close(541).await;
}

/// A full queue refuses a message and has it become a dead letter, while the log takes nothing because the disk stands still:
/// the letter waits for the disk, and is not lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_of_a_full_queue_waits_for_the_disk() {
    let gate = GateDisk::default();
    let options = BrokerOptions {
        segment_bytes: 1 << 20,
        codecs: nexo_amqp::register(nexo_broker::Codecs::default()),
        ..BrokerOptions::new("memory")
    };
    let broker = Broker::open_on(Arc::new(gate.clone()), options).unwrap();
    let served = Served::serve(broker, FaultyDisk::new(), nexo_amqp::Options::default()).await;
    let mut client = served.client().await;
    let mut arguments = TableBuf::new();
    arguments.set(ShortStr::from_static("x-max-length"), 1i64);
    arguments.set(ShortStr::from_static("x-overflow"), "reject-publish-dlx");
    arguments.set(ShortStr::from_static("x-dead-letter-exchange"), "");
    arguments.set(ShortStr::from_static("x-dead-letter-routing-key"), "letters");
    client.send(1, &queue::Declare { arguments: arguments.as_table(), ..declare("full") }).await;
    client.expect("queue.declare-ok").await;
    client.declare("letters").await;
    client.declare("filling").await;
    client.select_confirms().await;
    client.publish("full", PERSISTENT, b"first").await;
    client.expect("basic.ack").await;
    gate.hold_writes();
    let filling = served.broker.queue(&QueueName::new("filling").unwrap()).unwrap();
    let letters = served.broker.queue(&QueueName::new("letters").unwrap()).unwrap();
    // First with large ones, then until nothing fits.
    for bytes in [40_000, 10] {
        while filling.push(&NewMessage::new(vec![0; bytes])).is_ok() {}
    }
    client.publish("full", PERSISTENT, b"second").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let early = letters.counts().0;
    gate.open_gate();
    assert_eq!(early, 0, "there was no room for it");
    client.expect("basic.nack").await;
    assert_eq!(letters.counts().0, 1);
}
