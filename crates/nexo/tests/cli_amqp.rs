//! What the command line, and a client of SQS, show of queues and messages that came by AMQP.

#![allow(clippy::unwrap_used)]

mod common;

use common::{PATIENCE, Server};
use lapin::options::*;
use lapin::types::{AMQPValue, ByteArray, FieldArray, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use nexo_harness::http;
use serde_json::{Value, json};

async fn within<T>(work: impl Future<Output = lapin::Result<T>>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes no minute").unwrap()
}

async fn connect(server: &Server) -> (Connection, Channel) {
    let connection = within(Connection::connect(&server.amqp_url(), ConnectionProperties::default())).await;
    let channel = within(connection.create_channel()).await;
    (connection, channel)
}

fn table(entries: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert(ShortString::from(*name), value.clone());
    }
    table
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

async fn declare(channel: &Channel, name: &str, arguments: FieldTable) {
    within(channel.queue_declare(name.into(), QueueDeclareOptions::durable(), arguments)).await;
}

/// The header of this name, as a command printed it.
fn header<'a>(message: &'a Value, name: &str) -> &'a Value {
    let headers = message["headers"].as_array().unwrap();
    headers.iter().find(|header| header["name"] == name).unwrap_or_else(|| panic!("no {name} in {message}"))
}

/// Receives one message by SQS, with all its attributes.
fn receive(server: &Server, queue: &str) -> Value {
    let address = server.ready.split_whitespace().find_map(|word| word.strip_prefix("sqs=")).unwrap();
    let body = json!({
        "QueueUrl": format!("http://{address}/000000000000/{queue}"),
        "MessageAttributeNames": ["All"],
    })
    .to_string();
    let head = format!(
        "Host: {address}\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\nContent-Type: application/x-amz-json-1.0\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, \
         Signature=x\r\n"
    );
    let answer = http::exchange(address, &http::request("POST", "/", &head, &body), PATIENCE).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    let received: Value = serde_json::from_str(&answer.body).unwrap();
    received["Messages"][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_and_deaths_are_json_here_and_in_sqs() {
    let server = Server::start_with(&["--amqp", "127.0.0.1:0", "--sqs", "127.0.0.1:0"]);
    let (_connection, channel) = connect(&server).await;
    declare(&channel, "late", FieldTable::default()).await;
    let to_late = [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text("late"))];
    declare(&channel, "q", table(&[&to_late[..], &[("x-message-ttl", AMQPValue::LongInt(1))]].concat()))
        .await;
    let nested = table(&[
        ("list", AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::LongInt(1), text("zwei")]))),
        ("at", AMQPValue::Timestamp(1_700_000_000)),
        ("raw", AMQPValue::ByteArray(ByteArray::from(vec![0, 255]))),
        ("void", AMQPValue::Void),
    ]);
    let headers = table(&[("nested", AMQPValue::FieldTable(nested)), ("count", AMQPValue::LongInt(7))]);
    let properties = BasicProperties::default()
        .with_headers(headers)
        .with_content_type("text/plain".into())
        .with_correlation_id("c-1".into());
    within(channel.basic_publish(
        "".into(),
        "q".into(),
        BasicPublishOptions::default(),
        b"hello",
        properties,
    ))
    .await;
    server.until_ready("late", 1);

    let nested =
        json!({ "list": [1, "zwei"], "at": 1_700_000_000, "raw": { "base64": "AP8=" }, "void": null });
    let message = &server.json(&["peek", "late"])[0];
    assert_eq!(header(message, "nested")["json"], nested);
    assert_eq!(header(message, "count")["number"], 7);
    let death = &header(message, "x-death")["json"][0];
    assert_eq!(
        (&death["queue"], &death["reason"], &death["count"]),
        (&json!("q"), &json!("expired"), &json!(1))
    );
    assert!(death["time"].is_u64() && death["routing-keys"] == json!(["q"]), "{death}");
    assert_eq!(message["amqp"]["routing_key"], "late");
    let properties = message["amqp"]["properties"].as_array().unwrap();
    assert!(properties.contains(&json!({ "name": "content-type", "text": "text/plain" })), "{message}");
    assert!(properties.contains(&json!({ "name": "correlation-id", "text": "c-1" })), "{message}");

    let shown = server.ok(&["peek", "late"]);
    assert!(shown.contains("  published to exchange '' with routing key 'late'\n"), "{shown}");
    assert!(shown.contains("  property content-type: text/plain\n"), "{shown}");
    assert!(shown.contains("  header x-death: [{"), "{shown}");
    assert!(shown.ends_with("\nhello\n"), "{shown}");

    let received = receive(&server, "late");
    let attribute = |name: &str| received["MessageAttributes"][name].clone();
    assert_eq!(attribute("nested")["DataType"], "String");
    let value =
        |name: &str| serde_json::from_str::<Value>(attribute(name)["StringValue"].as_str().unwrap()).unwrap();
    assert_eq!(value("nested"), nested);
    assert_eq!(value("x-death")[0]["reason"], "expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_shown_as_it_was_declared() {
    let server = Server::start_with(&["--amqp", "127.0.0.1:0"]);
    let (_connection, channel) = connect(&server).await;
    let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
    within(channel.exchange_declare("orders".into(), ExchangeKind::Topic, options, FieldTable::default()))
        .await;
    let arguments = table(&[
        ("x-queue-type", text("quorum")),
        ("x-dead-letter-exchange", text("graveyard")),
        ("x-dead-letter-routing-key", text("dead")),
        ("x-delivery-limit", AMQPValue::LongInt(3)),
    ]);
    declare(&channel, "q", arguments).await;
    let bind = QueueBindOptions::default();
    within(channel.queue_bind("q".into(), "orders".into(), "new.#".into(), bind, FieldTable::default()))
        .await;

    let queue = &server.json(&["queue", "show", "q"])[0];
    assert_eq!(queue["dead_letters"], json!({ "exchange": { "name": "graveyard", "routing_key": "dead" } }));
    let details = &queue["details"];
    assert_eq!((&details["kind"], &details["durable"]), (&json!("quorum"), &json!(true)));
    assert_eq!(details["bindings"], json!([{ "exchange": "orders", "routing_key": "new.#" }]));
    let arguments = details["arguments"].as_array().unwrap();
    assert!(arguments.contains(&json!({ "name": "x-delivery-limit", "number": 3 })), "{details}");
    let text_shown = server.ok(&["queue", "show", "q"]);
    for part in [
        "kind                quorum",
        "dead letters go to  exchange 'graveyard' with routing key 'dead'",
        "argument            x-queue-type: quorum",
        "binding             'new.#' from 'orders'",
    ] {
        assert!(text_shown.contains(part), "no {part} in:\n{text_shown}");
    }

    declare(&channel, "plain", FieldTable::default()).await;
    let plain = &server.json(&["queue", "show", "plain"])[0];
    assert_eq!((&plain["dead_letters"], &plain["details"]["kind"]), (&json!("none"), &json!("classic")));
    server.ok(&["queue", "create", "own"]);
    let own = &server.json(&["queue", "show", "own"])[0];
    assert_eq!(
        (&own["dead_letters"], &own["details"]["kind"]),
        (&json!({ "queue": "own_dlq" }), &json!("native"))
    );

    // A queue in place of the exchange is what was asked for, and worth a warning.
    let updated = server.run(&["queue", "update", "q", "--dead-letter-queue", "failed"]);
    assert_eq!(updated.code, Some(0), "{updated:?}");
    assert!(
        updated
            .stderr
            .starts_with("nexo: warning: 'q' was declared to send its dead letters to exchange 'graveyard'"),
        "{updated:?}"
    );
    assert!(updated.stdout.contains("dead letters go to  queue 'failed'"), "{updated:?}");
    assert_eq!(server.run(&["queue", "update", "own", "--dead-letter-queue", "failed"]).stderr, "");
}
