//! What a connection to one virtual host sees, and what it is told: RabbitMQ's words.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod raw_client;

use nexo_amqp::codec::method::{
    BasicMethod, ChannelMethod, ConnectionMethod, QueueMethod, basic, connection, exchange, queue,
};
use nexo_amqp::codec::{Method, ShortStr, Table, TableBuf};
use nexo_amqp_client::{Login, methods};
use nexo_broker::topology::{DefaultQueueType, VhostSpec};
use nexo_broker::{QueueError, QueueKind};
use nexo_types::{QueueName, VhostName};
use raw_client::{Client, Served, TRANSIENT, eventually};

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

fn acme() -> VhostName {
    VhostName::new("acme").unwrap()
}

async fn with_acme(spec: VhostSpec) -> Served {
    let served = Served::start().await;
    served.broker.put_vhost(&acme(), spec).await.unwrap();
    let guest = served.logins.password(b"guest", b"guest", [127, 0, 0, 1].into()).await.unwrap();
    served.logins.own_vhost(&guest, "acme").await.unwrap();
    served
}

async fn try_connect(served: &Served, vhost: &str) -> Result<Client, String> {
    let capabilities = &["consumer_cancel_notify"];
    let login = Login { virtual_host: vhost.to_owned(), capabilities, ..Login::default() };
    match nexo_amqp_client::Client::connect(served.address, &login, PATIENCE).await {
        Ok(raw) => Ok(Client { raw }),
        Err(error) => Err(std::error::Error::source(&error).unwrap_or(&error).to_string()),
    }
}

async fn connect(served: &Served, vhost: &str) -> Client {
    let mut client = try_connect(served, vhost).await.unwrap();
    client.open_channel(1).await;
    client
}

/// The code and the text with which the next frame closes channel 1.
async fn channel_close(client: &mut Client) -> (u16, String) {
    let got = client.expect("channel.close").await;
    let Method::Channel(ChannelMethod::Close(close)) = got.method() else { panic!("{got:?}") };
    (close.reply_code, close.reply_text.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_sees_the_queues_of_its_virtual_host_only() {
    let served = with_acme(VhostSpec::default()).await;
    let (mut here, mut there) = (connect(&served, "/").await, connect(&served, "acme").await);
    here.declare("q").await;
    there.declare("q").await;
    here.publish("q", TRANSIENT, b"ours").await;
    there.publish("q", TRANSIENT, b"theirs").await;
    there.publish("q", TRANSIENT, b"and more").await;
    assert_eq!((here.depth("q").await, there.depth("q").await), (1, 2));
    there.consume("q", true).await;
    assert_eq!(there.delivery().await.2, b"theirs");
    assert_eq!(here.depth("q").await, 1);
    // Through a predeclared exchange, each has its own.
    let to = |client: &mut Client| {
        let bind = queue::Bind {
            ticket: 0,
            queue: ShortStr::from_static("q"),
            exchange: ShortStr::from_static("amq.fanout"),
            routing_key: ShortStr::EMPTY,
            nowait: false,
            arguments: Table::EMPTY,
        };
        client.raw.add(1, &bind);
    };
    to(&mut here);
    here.raw.flush().await.unwrap();
    here.expect("queue.bind-ok").await;
    let publish = methods::publish(ShortStr::from_static("amq.fanout"), ShortStr::EMPTY);
    let mut out = Vec::new();
    nexo_amqp::codec::encode_message(&mut out, 1, &publish, TRANSIENT, b"not bound there", raw_client::MAX);
    there.raw(&out).await;
    assert_eq!(there.delivery().await.2, b"and more");
    there.expect_silence().await;
    assert_eq!(here.depth("q").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_name_the_virtual_host() {
    let served = with_acme(VhostSpec::default()).await;
    assert_eq!(
        try_connect(&served, "none").await.err().unwrap(),
        "the broker closed the connection: 530 NOT_ALLOWED - vhost none not found"
    );
    let mut client = connect(&served, "acme").await;
    let declare = methods::declare_queue(ShortStr::from_static("missing"));
    client.send(1, &queue::Declare { passive: true, ..declare }).await;
    let told = channel_close(&mut client).await;
    assert_eq!(told, (404, "NOT_FOUND - no queue 'missing' in vhost 'acme'".to_owned()));
    let mut client = connect(&served, "acme").await;
    client.publish("q", TRANSIENT, b"goes nowhere").await;
    let publish = methods::publish(ShortStr::from_static("x"), ShortStr::EMPTY);
    let mut out = Vec::new();
    nexo_amqp::codec::encode_message(&mut out, 1, &publish, TRANSIENT, b"", raw_client::MAX);
    client.raw(&out).await;
    let told = channel_close(&mut client).await;
    assert_eq!(told, (404, "NOT_FOUND - no exchange 'x' in vhost 'acme'".to_owned()));
    let mut client = connect(&served, "acme").await;
    let publish = methods::publish(ShortStr::from_static("amq.rabbitmq.trace"), ShortStr::EMPTY);
    let mut out = Vec::new();
    nexo_amqp::codec::encode_message(&mut out, 1, &publish, TRANSIENT, b"", raw_client::MAX);
    client.raw(&out).await;
    let told = channel_close(&mut client).await;
    let text = "ACCESS_REFUSED - cannot publish to internal exchange 'amq.rabbitmq.trace' in vhost 'acme'";
    assert_eq!(told, (403, text.to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_virtual_host_takes_no_queue_and_no_connection() {
    let spec = VhostSpec { max_connections: Some(1), max_queues: Some(1), ..VhostSpec::default() };
    let served = with_acme(spec).await;
    let mut client = connect(&served, "acme").await;
    assert_eq!(
        try_connect(&served, "acme").await.err().unwrap(),
        "the broker closed the connection: 530 NOT_ALLOWED - access to vhost 'acme' refused for user 'guest': \
         connection limit (1) is reached"
    );
    client.declare("q").await;
    client.declare("q").await;
    client.send(1, &methods::declare_queue(ShortStr::from_static("r"))).await;
    let told = channel_close(&mut client).await;
    let text = "PRECONDITION_FAILED - cannot declare queue 'r': queue limit in vhost 'acme' (1) is reached";
    assert_eq!(told, (406, text.to_owned()));
    drop(client);
    eventually("there is room again", || {
        served.broker.vhost(&acme()).is_some_and(|vhost| vhost.connections == 0)
    })
    .await;
    connect(&served, "acme").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_closed_when_their_virtual_host_is_deleted() {
    let served = with_acme(VhostSpec::default()).await;
    let (mut here, mut there) = (connect(&served, "/").await, connect(&served, "acme").await);
    here.declare("q").await;
    there.declare("q").await;
    there.publish("q", TRANSIENT, b"lost").await;
    assert_eq!(there.depth("q").await, 1);
    let deleted = served.broker.delete_vhost(&acme()).await.unwrap();
    assert_eq!((deleted.queues, deleted.messages), (1, 1));
    let got = there.expect("connection.close").await;
    let Method::Connection(ConnectionMethod::Close(close)) = got.method() else { panic!("{got:?}") };
    let told = (close.reply_code, close.reply_text.to_string());
    assert_eq!(told, (320, "CONNECTION_FORCED - vhost 'acme' is deleted".to_owned()));
    there.send(0, &connection::CloseOk {}).await;
    assert!(there.next().await.is_none(), "the connection ends");
    assert_eq!(here.depth("q").await, 0);
    assert!(try_connect(&served, "acme").await.is_err());
    let gone = served.broker.queue_stats(&QueueName::at(&acme(), "q").unwrap());
    assert!(matches!(gone, Err(QueueError::NotFound { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_are_of_the_type_that_their_virtual_host_says() {
    let spec = VhostSpec { default_queue_type: Some(DefaultQueueType::Quorum), ..VhostSpec::default() };
    let served = with_acme(spec).await;
    let mut client = connect(&served, "acme").await;
    let mut classic = TableBuf::new();
    classic.put(ShortStr::from_static("x-queue-type"), "classic");
    let plain =
        |name| queue::Declare { durable: true, ..methods::declare_queue(ShortStr::from_static(name)) };
    let declares = [
        (plain("quorum"), QueueKind::Quorum),
        (plain("quorum"), QueueKind::Quorum),
        (queue::Declare { arguments: classic.as_table(), ..plain("asked") }, QueueKind::Classic),
        (queue::Declare { exclusive: true, ..plain("exclusive") }, QueueKind::Classic),
        (queue::Declare { durable: false, ..plain("transient") }, QueueKind::Classic),
    ];
    for (declare, kind) in declares {
        client.send(1, &declare).await;
        let got = client.expect("queue.declare-ok").await;
        let Method::Queue(QueueMethod::DeclareOk(ok)) = got.method() else { panic!("{got:?}") };
        let name = QueueName::at(&acme(), std::str::from_utf8(&ok.queue).unwrap()).unwrap();
        assert_eq!(served.broker.queue_details(&name).unwrap().kind, kind, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_direct_reply_does_not_cross_into_another_virtual_host() {
    let served = with_acme(VhostSpec::default()).await;
    let (mut here, mut there) = (connect(&served, "/").await, connect(&served, "acme").await);
    here.consume("amq.rabbitmq.reply-to", true).await;
    here.declare("rpc").await;
    // An answer to the name that a server in the same virtual host is told.
    let properties = nexo_amqp::codec::PropertiesBuilder::new()
        .reply_to(ShortStr::from_static("amq.rabbitmq.reply-to"))
        .to_vec();
    here.publish("rpc", &properties, b"question").await;
    here.send(1, &basic::Get { ticket: 0, queue: ShortStr::from_static("rpc"), no_ack: true }).await;
    let got = here.expect("basic.get-ok").await;
    assert!(matches!(got.method(), Method::Basic(BasicMethod::GetOk(_))));
    let content = here.raw.content().await.unwrap();
    let asked = nexo_amqp::codec::Properties::parse(&content.properties).unwrap();
    let name = asked.reply_to().unwrap().as_bytes().to_vec();
    for (client, body) in [(&mut there, &b"from elsewhere"[..]), (&mut here, b"answer")] {
        let publish = methods::publish(ShortStr::EMPTY, ShortStr::clipped(&name));
        let mut out = Vec::new();
        nexo_amqp::codec::encode_message(&mut out, 1, &publish, TRANSIENT, body, raw_client::MAX);
        client.raw(&out).await;
        client.raw.flush().await.unwrap();
        if body == b"from elsewhere" {
            // It has been taken when this is answered.
            client.declare("later").await;
        }
    }
    assert_eq!(here.delivery().await.2, b"answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn exchanges_of_a_virtual_host_are_its_own() {
    let served = with_acme(VhostSpec::default()).await;
    let (mut here, mut there) = (connect(&served, "/").await, connect(&served, "acme").await);
    let declare = |kind| exchange::Declare {
        ticket: 0,
        exchange: ShortStr::from_static("x"),
        kind: ShortStr::from_static(kind),
        passive: false,
        durable: true,
        auto_delete: false,
        internal: false,
        nowait: false,
        arguments: Table::EMPTY,
    };
    here.send(1, &declare("fanout")).await;
    here.expect("exchange.declare-ok").await;
    there.send(1, &declare("topic")).await;
    there.expect("exchange.declare-ok").await;
    there.send(1, &declare("fanout")).await;
    let told = channel_close(&mut there).await;
    let text = "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'x' in vhost 'acme': \
                received 'fanout' but current is 'topic'";
    assert_eq!(told, (406, text.to_owned()));
}
