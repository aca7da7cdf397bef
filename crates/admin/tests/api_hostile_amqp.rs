//! What clients say over AMQP is read back over the management API: nothing of it forges JSON, a line of the metrics or of the log.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::time::Duration;

use common::api::{LOGIN, Managed, Reply, column};
use common::exposition::{Format, read};
use common::hostile::{HOSTILE, Lines, check, quoted};
use futures_util::future::{join, join_all};
use nexo_amqp::codec::method::{
    BasicMethod, ChannelMethod, ConnectionMethod, basic, channel, connection, exchange, queue,
};
use nexo_amqp::codec::{
    AmqpMethod, ArrayBuf, Method, PROTOCOL_HEADER, PropertiesBuilder, ShortStr, TableBuf, Value,
};
use nexo_amqp_client::{Client, methods};
use serde_json::{Value as Json, json};

const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that are no text, and the end of a label.
const NO_TEXT: [&[u8]; 2] = [b"a\xff\xfe\n\"FORGED", b"a\"} 1\nforged{x=\"\\"];

fn short(text: &[u8]) -> ShortStr<'_> {
    ShortStr::new(text).unwrap()
}

/// What a queue or an exchange is called whose name was given so: line ends are taken out, as RabbitMQ does, and what has other
/// control characters is none.
fn name_of(text: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(text).ok()?.replace(['\r', '\n'], "");
    (!name.chars().any(char::is_control)).then_some(name)
}

/// A table that says it in every way that a table has.
fn table(text: &[u8]) -> TableBuf {
    let (mut inner, mut list) = (TableBuf::new(), ArrayBuf::new());
    inner.put(short(text), Value::LongStr(text));
    list.push(Value::LongStr(text)).push(inner.as_table());
    let mut table = TableBuf::new();
    table.put(short(text), Value::LongStr(text)).put(ShortStr::from_static("bytes"), Value::Bytes(text));
    table.put(ShortStr::from_static("list"), list.as_array());
    table
}

fn with<'a>(name: &'static str, value: Value<'a>) -> TableBuf {
    let mut table = TableBuf::new();
    table.put(ShortStr::from_static(name), value);
    table
}

/// Begins a connection and says who it is, all in these words.
async fn presented(managed: &Managed, text: &[u8], mechanism: &[u8], response: &[u8]) -> Client {
    let mut client = Client::begin(managed.amqp, PATIENCE).await.unwrap();
    client.add_raw(&PROTOCOL_HEADER);
    client.expect("connection.start").await.unwrap();
    let mut properties = table(text);
    for name in ["product", "version", "platform", "connection_name", "information"] {
        properties.put(ShortStr::from_static(name), Value::LongStr(text));
    }
    let client_properties = properties.as_table();
    let (mechanism, locale) = (short(mechanism), short(text));
    client.add(0, &connection::StartOk { client_properties, mechanism, response, locale });
    client
}

/// A connection that calls itself so.
async fn named(managed: &Managed, text: &[u8]) -> Client {
    let mut client = presented(managed, text, b"PLAIN", b"\0guest\0guest").await;
    client.expect("connection.tune").await.unwrap();
    client.add(0, &connection::TuneOk { channel_max: 100, frame_max: 131_072, heartbeat: 0 });
    let virtual_host = ShortStr::from_static("/");
    let open = connection::Open { virtual_host, capabilities: ShortStr::EMPTY, insist: false };
    client.call(0, &open, "connection.open-ok").await.unwrap();
    client.open_channel(1).await.unwrap();
    client
}

/// Whether a frame says that something ends.
fn is_end(method: &Method<'_>) -> bool {
    matches!(
        method,
        Method::Channel(ChannelMethod::Close(_)) | Method::Connection(ConnectionMethod::Close(_))
    )
}

/// Says one thing on a connection of its own. Gives back whether it was done.
async fn is_taken<M: AmqpMethod>(managed: &Managed, method: &M) -> bool {
    let mut client = managed.client().await;
    client.open_channel(1).await.unwrap();
    client.add(1, method);
    !is_end(&client.next().await.unwrap().method().unwrap())
}

/// The same with a message, which is confirmed if it is taken.
async fn is_published(managed: &Managed, exchange: &[u8], key: &[u8], properties: &[u8]) -> bool {
    let mut client = managed.client().await;
    client.open_channel(1).await.unwrap();
    client.select_confirms(1).await.unwrap();
    client.add_message(1, &methods::publish(short(exchange), short(key)), properties, b"x");
    !is_end(&client.next().await.unwrap().method().unwrap())
}

/// All that ends a connection before it is open, or is said at its end.
async fn refused_logins(managed: &Managed, text: &[u8]) {
    let login = [b"\0", text, b"\0", text].concat();
    for (mechanism, response) in [(text, &b"\0guest\0guest"[..]), (b"PLAIN", &login), (b"PLAIN", text)] {
        let mut client = presented(managed, text, mechanism, response).await;
        // It is told, or the connection just ends.
        if let Ok(Some(frame)) = client.next_frame().await {
            assert!(is_end(&frame.method().unwrap()), "{mechanism:?} {response:?}");
        }
    }
    let mut client = presented(managed, text, b"PLAIN", b"\0guest\0guest").await;
    client.expect("connection.tune").await.unwrap();
    client.add(0, &connection::TuneOk { channel_max: 100, frame_max: 131_072, heartbeat: 0 });
    client.add(0, &connection::Open { virtual_host: short(text), capabilities: short(text), insist: false });
    assert!(is_end(&client.next().await.unwrap().method().unwrap()));
    let mut client = Client::begin(managed.amqp, PATIENCE).await.unwrap();
    client.add_raw(text);
    client.add_raw(&[b'\n'; 8]);
    while let Ok(Some(_)) = client.next_frame().await {}
    let mut client = named(managed, text).await;
    client.add(0, &connection::UpdateSecret { new_secret: text, reason: short(text) });
    client.next().await.unwrap();
    let mut client = named(managed, text).await;
    let (reply_code, reply_text) = (320, short(text));
    client.add(1, &channel::Close { reply_code, reply_text, class_id: 0, method_id: 0 });
    client.expect("channel.close-ok").await.unwrap();
    client.add(0, &connection::Close { reply_code, reply_text, class_id: 0, method_id: 0 });
    client.expect("connection.close-ok").await.unwrap();
}

/// Every name and every argument that a method has, whatever comes of it.
async fn methods_with_names(managed: &Managed, text: &[u8], number: usize) {
    let name = short(text);
    let plain = ShortStr::from_static("plain");
    let arguments = table(text);
    let arguments = arguments.as_table();
    let is_name = name_of(text).is_some();
    let declare = queue::Declare { durable: true, ..methods::declare_queue(name) };
    assert!(!is_taken(managed, &queue::Declare { passive: true, ..declare }).await, "it is not there");
    assert_eq!(is_taken(managed, &declare).await, is_name, "{text:?}");
    assert_eq!(
        is_taken(managed, &methods::declare_exchange(name, ShortStr::from_static("topic"))).await,
        is_name
    );
    is_taken(managed, &methods::declare_exchange(plain, name)).await;
    is_taken(managed, &queue::Declare { arguments, ..methods::declare_queue(plain) }).await;
    for (at, argument) in [
        "x-overflow",
        "x-queue-type",
        "x-queue-mode",
        "x-max-length",
        "x-message-ttl",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-anything",
    ]
    .into_iter()
    .enumerate()
    {
        let (own, value) = (format!("arguments-{number}-{at}"), with(argument, Value::LongStr(text)));
        let declare =
            queue::Declare { arguments: value.as_table(), ..methods::declare_queue(short(own.as_bytes())) };
        is_taken(managed, &declare).await;
    }
    let (own, alternate) = (format!("alternate-{number}"), with("alternate-exchange", Value::LongStr(text)));
    let declare = methods::declare_exchange(short(own.as_bytes()), ShortStr::from_static("topic"));
    is_taken(managed, &exchange::Declare { arguments: alternate.as_table(), ..declare }).await;
    let missing = [b"missing", text].concat();
    let missing = short(&missing);
    is_taken(managed, &methods::bind(plain, missing, name)).await;
    is_taken(managed, &methods::bind(missing, ShortStr::from_static("amq.topic"), name)).await;
    is_taken(managed, &methods::unbind(missing, missing, name)).await;
    is_taken(managed, &methods::consume(missing, name)).await;
    is_taken(managed, &queue::Purge { ticket: 0, queue: missing, nowait: false }).await;
    is_taken(managed, &methods::delete_queue(missing)).await;
    is_taken(managed, &methods::delete_exchange(missing)).await;
    is_taken(managed, &basic::Get { ticket: 0, queue: missing, no_ack: true }).await;
    is_taken(managed, &basic::Cancel { consumer_tag: name, nowait: false }).await;
    let (source, routing_key, nowait) = (missing, name, false);
    is_taken(
        managed,
        &exchange::Bind { ticket: 0, destination: missing, source, routing_key, nowait, arguments },
    )
    .await;
    let priority = with("x-priority", Value::LongStr(text));
    is_taken(managed, &basic::Consume { arguments: priority.as_table(), ..methods::consume(plain, name) })
        .await;
    assert!(!is_published(managed, &missing, text, &[0, 0]).await);
    assert!(!is_published(managed, b"", text, &PropertiesBuilder::new().user_id(name).to_vec()).await);
    is_published(managed, b"", b"plain", &PropertiesBuilder::new().expiration(name).to_vec()).await;
    for header in ["CC", "BCC", "x-delay", "x-death", "x-match"] {
        let headers = with(header, Value::LongStr(text));
        is_published(managed, b"", b"plain", &PropertiesBuilder::new().headers(headers.as_table()).to_vec())
            .await;
    }
}

/// A message that says it wherever it can.
fn properties(text: &[u8]) -> Vec<u8> {
    let (name, headers) = (short(text), table(text));
    let built =
        PropertiesBuilder::new().content_type(name).content_encoding(name).headers(headers.as_table());
    let built = built.correlation_id(name).reply_to(name).message_id(name).kind(name).app_id(name);
    built.cluster_id(name).delivery_mode(2).to_vec()
}

/// A connection that has a consumer, a binding, a message in `kept` and one that died, and stays.
async fn at_work(managed: &Managed, text: &[u8]) -> Client {
    let mut client = named(managed, text).await;
    let (name, arguments) = (short(text), table(text));
    let arguments = arguments.as_table();
    let watched = methods::consume(ShortStr::from_static("watched"), name);
    client.call(1, &basic::Consume { arguments, ..watched }, "basic.consume-ok").await.unwrap();
    let direct = ShortStr::from_static("amq.direct");
    let bind = methods::bind(ShortStr::from_static("source"), direct, name);
    client.call(1, &queue::Bind { arguments, ..bind }, "queue.bind-ok").await.unwrap();
    let body = [text, b"\x00\x1b[31m\"\\\r\n"].concat();
    client.select_confirms(1).await.unwrap();
    for (tag, (exchange, key)) in [("", &b"kept"[..]), ("amq.direct", text)].into_iter().enumerate() {
        let publish = methods::publish(short(exchange.as_bytes()), short(key));
        client.add_message(1, &publish, &properties(text), &body);
        client.confirmed(tag as u64 + 1).await.unwrap();
    }
    client.open_channel(2).await.unwrap();
    let get = basic::Get { ticket: 0, queue: ShortStr::from_static("source"), no_ack: false };
    let frame = client.call(2, &get, "basic.get-ok").await.unwrap();
    let Ok(Method::Basic(BasicMethod::GetOk(got))) = frame.method() else { panic!("{frame:?}") };
    let delivery_tag = got.delivery_tag;
    client.content().await.unwrap();
    client.add(2, &basic::Reject { delivery_tag, requeue: false });
    client.flush().await.unwrap();
    client
}

/// A text as JSON shows it.
fn shown(text: &[u8]) -> Json {
    String::from_utf8_lossy(text).into_owned().into()
}

async fn look(managed: &Managed, path: &str) -> Json {
    let reply = managed.call("GET", path, None).await;
    assert_eq!(reply.status, 200, "{path}: {reply:?}");
    check(path, &reply);
    reply.json()
}

async fn take(managed: &Managed, queue: &str) -> Json {
    let asked = json!({ "count": 100, "ackmode": "ack_requeue_true", "encoding": "auto" });
    let path = format!("/api/queues/%2F/{queue}/get");
    let reply = managed.expect(200, "POST", &path, Some(asked)).await;
    check(&path, &reply);
    reply.json()
}

async fn metrics(managed: &Managed, accept: &str) -> Reply {
    managed.send("GET", "/metrics", &format!("{LOGIN}{accept}"), b"").await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_amqp_clients_say_forges_neither_json_nor_metrics_nor_lines() {
    let lines = Lines::begin();
    let managed = Managed::start().await;
    for name in ["plain", "watched", "kept", "dead"] {
        managed
            .expect(201, "PUT", &format!("/api/queues/%2F/{name}"), Some(json!({ "durable": true })))
            .await;
    }
    let dying = json!({ "arguments": { "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead" } });
    managed.expect(201, "PUT", "/api/queues/%2F/source", Some(dying)).await;
    let texts: Vec<&[u8]> = HOSTILE.iter().map(|text| text.as_bytes()).chain(NO_TEXT).collect();
    // Who is refused waits for a second each time, so all of them do at once.
    let said = texts.iter().enumerate().map(async |(number, text)| {
        join(refused_logins(&managed, text), methods_with_names(&managed, text, number)).await;
    });
    join_all(said).await;
    let mut clients = Vec::new();
    for text in &texts {
        clients.push(at_work(&managed, text).await);
    }
    let count = texts.len();
    managed.until("/api/queues/%2F/dead", |dead| dead["messages_ready"] == json!(count)).await;
    managed.until("/api/connections", |open| open.as_array().unwrap().len() == count).await;

    let queues = column(&look(&managed, "/api/queues").await, "name");
    let exchanges = column(&look(&managed, "/api/exchanges/%2F").await, "name");
    let bindings = look(&managed, "/api/bindings").await;
    let keys = column(&bindings, "routing_key");
    let tags = column(&look(&managed, "/api/consumers").await, "consumer_tag");
    let connections = look(&managed, "/api/connections").await;
    let own_names = column(&connections, "user_provided_name");
    let (kept, dead) = (take(&managed, "kept").await, take(&managed, "dead").await);
    let browsed = look(&managed, "/api/nexo/queues/%2F/kept/messages").await;
    let browsed_dead = look(&managed, "/api/nexo/queues/%2F/dead/messages").await;
    for (at, text) in texts.iter().enumerate() {
        let name = shown(text);
        let own = name_of(text).map(Json::from);
        assert!(own.is_none_or(|own| queues.contains(&own) && exchanges.contains(&own)), "{name}");
        assert!(keys.contains(&name) && tags.contains(&name), "{name} in {keys:?}, {tags:?}");
        assert_eq!(dead[at]["routing_key"], json!("dead"));
        let death = &dead[at]["properties"]["headers"]["x-death"][0];
        assert_eq!((&death["reason"], &death["queue"]), (&json!("rejected"), &json!("source")));
        if std::str::from_utf8(text).is_ok() {
            assert!(own_names.contains(&name), "{name} in {own_names:?}");
            assert_eq!(death["routing-keys"], json!([name]));
            let properties = &kept[at]["properties"];
            for field in ["content_type", "correlation_id", "reply_to", "message_id", "type", "app_id"] {
                assert_eq!(properties[field], name, "{field}");
            }
            let said = name.as_str().unwrap();
            assert_eq!(properties["headers"][said], name);
            assert_eq!(browsed["messages"][at]["headers"][said], name);
            assert_eq!(browsed_dead["messages"][at]["headers"]["list"][1][said], name);
            assert!(kept[at]["payload"].as_str().unwrap().starts_with(said), "{}", kept[at]);
        } else {
            assert_eq!(kept[at]["payload_encoding"], json!("base64"));
        }
    }
    for path in [
        "/api/queues/%2F/source/bindings",
        "/api/queues/%2F/watched",
        "/api/exchanges/%2F/amq.direct/bindings/source",
        "/api/bindings/%2F/e/amq.direct/q/source",
        "/api/consumers/%2F",
        "/api/channels",
        "/api/vhosts/%2F/connections",
        "/api/vhosts/%2F/channels",
        "/api/definitions",
        "/api/definitions/%2F",
        "/api/overview",
        "/api/nodes",
        "/api/auth/attempts/nexo@localhost/source",
    ] {
        let reply = managed.call("GET", path, None).await;
        check(path, &reply);
    }
    for connection in column(&connections, "name") {
        let name = quoted(connection.as_str().unwrap());
        look(&managed, &format!("/api/connections/{name}")).await;
        look(&managed, &format!("/api/connections/{name}/channels")).await;
        look(&managed, &format!("/api/channels/{name}%20%281%29")).await;
    }
    for binding in
        bindings.as_array().unwrap().iter().filter(|binding| binding["source"] == json!("amq.direct"))
    {
        let key = quoted(binding["properties_key"].as_str().unwrap());
        let path = format!("/api/bindings/%2F/e/amq.direct/q/source/{key}");
        check(&path, &managed.call("GET", &path, None).await);
    }
    for name in texts.iter().filter_map(|text| name_of(text)) {
        let name = quoted(&name);
        look(&managed, &format!("/api/queues/%2F/{name}")).await;
        look(&managed, &format!("/api/queues/%2F/{name}/bindings")).await;
        look(&managed, &format!("/api/nexo/queues/%2F/{name}")).await;
        look(&managed, &format!("/api/exchanges/%2F/{name}")).await;
    }

    let formats =
        [("", Format::Text), ("accept: application/openmetrics-text;version=1.0.0\r\n", Format::OpenMetrics)];
    for (accept, format) in formats {
        let page = metrics(&managed, accept).await.text;
        assert!(!page.chars().any(|c| c.is_control() && c != '\n'), "{page:?}");
        let samples = read(&page, format);
        for name in texts.iter().filter_map(|text| name_of(text)) {
            assert!(samples.contains_key(&format!("nexo_queue_ready{{queue={name},vhost=/}}")), "{name}");
        }
        assert!(!samples.keys().any(|name| name.starts_with("forged")), "{page}");
    }
    drop(clients);
    managed.until("/api/connections", |open| *open == json!([])).await;
    let log = lines.check();
    for said in ["channel closed", "connection opened", "connection refused", "login refused"] {
        assert!(log.contains(said), "{said:?} was logged: {log}");
    }
    assert!(log.contains("FORGED"), "what was said is there, escaped");
}
