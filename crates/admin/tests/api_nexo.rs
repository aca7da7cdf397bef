//! Nexo's own part of the management API.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::api::{Managed, column};
use nexo_amqp::codec::ShortStr;
use nexo_amqp::codec::method::basic;
use nexo_broker::{DeadLetters, HeaderValue, Headers, NewMessage, PopRequest, QueueConfig};
use nexo_types::{Millis, QueueName};
use serde_json::{Value, json};

async fn publish(managed: &Managed, queue: &str, payload: &str, headers: Value) {
    let message = json!({
        "properties": {"headers": headers, "delivery_mode": 2}, "routing_key": queue, "payload": payload,
        "payload_encoding": "string",
    });
    managed.expect(200, "POST", "/api/exchanges/%2F/amq.default/publish", Some(message)).await;
}

const Q: &str = "/api/nexo/queues/%2F/q";

#[tokio::test]
async fn messages_are_looked_at_and_stay() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(json!({}))).await;
    for (payload, tenant) in [("one apple", "a"), ("two pears", "b"), ("three apples", "a"), ("four", "c")] {
        publish(&managed, "q", payload, json!({"tenant": tenant})).await;
    }
    let all = managed.get(&format!("{Q}/messages")).await;
    assert_eq!(column(&all["messages"], "payload"), ["one apple", "two pears", "three apples", "four"]);
    assert_eq!((&all["next"], &all["messages"][0]["headers"]), (&json!(null), &json!({"tenant": "a"})));
    let by_header = managed.get(&format!("{Q}/messages?header=tenant=a")).await;
    assert_eq!(column(&by_header["messages"], "payload"), ["one apple", "three apples"]);
    let by_both = managed.get(&format!("{Q}/messages?header=tenant&text=apples")).await;
    assert_eq!(column(&by_both["messages"], "payload"), ["three apples"]);
    assert_eq!(managed.get(&format!("{Q}/messages?text=none")).await["messages"], json!([]));
    let mut seen = Vec::new();
    let mut path = format!("{Q}/messages?max=3&header=tenant");
    loop {
        let page = managed.get(&path).await;
        seen.extend(column(&page["messages"], "payload"));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("{Q}/messages?max=3&header=tenant&after={next}");
    }
    assert_eq!(seen, ["one apple", "two pears", "three apples", "four"]);
    managed.expect(400, "GET", &format!("{Q}/messages?after=x"), None).await;
    managed.expect(400, "GET", &format!("{Q}/messages?max=x"), None).await;
    let shown = managed.get(Q).await;
    assert_eq!((&shown["ready"], &shown["leased"], &shown["paused"]), (&json!(4), &json!(0), &json!(false)));
    assert_eq!(shown["totals"]["delivered"], json!(0));
    managed.expect(404, "GET", "/api/nexo/queues/%2F/none", None).await;
    managed.expect(404, "GET", "/api/nexo/queues/%2F/none/messages", None).await;
}

#[tokio::test]
async fn messages_of_every_state_are_looked_at_and_stay() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(json!({}))).await;
    let queue = QueueName::new("q").unwrap();
    let hour = Millis::from_secs(3600);
    for (body, tenant, delay) in [
        ("one apple", "a", Millis::ZERO),
        ("two pears", "b", Millis::ZERO),
        ("three apples", "a", hour),
        ("four pears", "b", hour),
    ] {
        let headers = Headers(vec![("tenant".to_owned(), HeaderValue::Text(tenant.to_owned()))]);
        let properties = headers.to_properties().unwrap();
        let message = NewMessage { properties, delay, ..NewMessage::new(body) };
        managed.broker.push(&queue, vec![message]).await.unwrap().remove(0).unwrap();
    }
    let request = PopRequest { max: 1, wait: Millis::from_secs(20), visibility: None, bytes_max: None };
    let taken = managed.broker.pop(&queue, request).await.unwrap();
    let counts = async || {
        let shown = managed.get(Q).await;
        ["ready", "leased", "delayed"].map(|name| shown[name].as_u64().unwrap())
    };
    assert_eq!(counts().await, [1, 1, 2]);

    let ready = managed.get(&format!("{Q}/messages?state=ready")).await;
    assert_eq!(ready["messages"], managed.get(&format!("{Q}/messages")).await["messages"]);
    assert_eq!(column(&ready["messages"], "payload"), ["two pears"]);
    assert_eq!(
        (&ready["messages"][0]["state"], &ready["messages"][0]["attempts"]),
        (&json!("ready"), &json!(0))
    );
    let leased = managed.get(&format!("{Q}/messages?state=leased")).await;
    assert_eq!(column(&leased["messages"], "payload"), ["one apple"]);
    let first = &leased["messages"][0];
    assert_eq!((&first["state"], &first["attempts"]), (&json!("leased"), &json!(1)));
    assert_eq!(first["lease_until_ms"], json!(taken[0].lease_until.unwrap().0));
    assert_eq!(first["headers"], json!({"tenant": "a"}));
    let delayed = managed.get(&format!("{Q}/messages?state=delayed")).await;
    assert_eq!(column(&delayed["messages"], "payload"), ["three apples", "four pears"]);
    let first = &delayed["messages"][0];
    assert_eq!((&first["state"], &first["attempts"]), (&json!("delayed"), &json!(0)));
    assert_eq!(first["due_ms"].as_u64(), first["enqueued_at_ms"].as_u64().map(|at| at + hour.0));

    for (state, header, wanted) in [
        ("ready", "tenant=a", &[][..]),
        ("ready", "tenant=b", &["two pears"]),
        ("leased", "tenant=a", &["one apple"]),
        ("leased", "tenant=b", &[]),
        ("delayed", "tenant=b", &["four pears"]),
        ("delayed", "tenant", &["three apples", "four pears"]),
    ] {
        let shown = managed.get(&format!("{Q}/messages?state={state}&header={header}")).await;
        assert_eq!(column(&shown["messages"], "payload"), wanted, "{state} {header}");
    }
    let by_text = managed.get(&format!("{Q}/messages?state=delayed&text=pears")).await;
    assert_eq!(column(&by_text["messages"], "payload"), ["four pears"]);
    assert_eq!(managed.get(&format!("{Q}/messages?state=leased&text=pears")).await["messages"], json!([]));
    let page = managed.get(&format!("{Q}/messages?state=delayed&max=1")).await;
    assert_eq!(column(&page["messages"], "payload"), ["three apples"]);
    let next = page["next"].as_str().unwrap();
    let page = managed.get(&format!("{Q}/messages?state=delayed&max=1&after={next}")).await;
    assert_eq!(column(&page["messages"], "payload"), ["four pears"]);
    managed.expect(400, "GET", &format!("{Q}/messages?state=gone"), None).await;
    assert_eq!(counts().await, [1, 1, 2]);

    // What a connection holds has no moment at which it comes back.
    let mut client = managed.client().await;
    client.open_channel(1).await.unwrap();
    let get = basic::Get { ticket: 0, queue: ShortStr::from_static("q"), no_ack: false };
    client.call(1, &get, "basic.get-ok").await.unwrap();
    let held = managed.get(&format!("{Q}/messages?state=leased&text=pears")).await;
    assert_eq!(column(&held["messages"], "lease_until_ms"), [json!(null)]);
    assert_eq!(counts().await, [0, 2, 2]);
}

#[tokio::test]
async fn dead_letters_tell_why_and_go_back() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/dead", Some(json!({}))).await;
    let dlx = json!({"arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}});
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(dlx)).await;
    publish(&managed, "q", "bad", json!({})).await;
    publish(&managed, "dead", "not a dead letter", json!({})).await;
    let reject = json!({"count": 1, "ackmode": "reject_requeue_false", "encoding": "auto"});
    managed.expect(200, "POST", "/api/queues/%2F/q/get", Some(reject)).await;
    let path = "/api/nexo/queues/%2F/dead";
    let dead = managed.get(&format!("{path}/messages")).await;
    assert_eq!(column(&dead["messages"], "payload"), ["not a dead letter", "bad"]);
    let headers = &dead["messages"][1]["headers"];
    assert_eq!(headers["x-death"][0]["reason"], json!("rejected"), "{dead}");
    let moved =
        managed.expect(200, "POST", &format!("{path}/redrive"), Some(json!({"target": "q", "max": 5}))).await;
    assert_eq!(moved.json(), json!({"moved": 2, "skipped": 0}));
    assert_eq!(managed.get(Q).await["ready"], json!(2));
    managed.expect(404, "POST", &format!("{path}/redrive"), Some(json!({"target": "none"}))).await;
    managed.expect(400, "POST", &format!("{path}/redrive"), Some(json!({"max": -1}))).await;
}

#[tokio::test]
async fn dead_letters_of_queues_and_of_exchanges_are_found() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/dead", Some(json!({}))).await;
    let dlx = json!({"arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}});
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(dlx)).await;
    let moved = QueueConfig {
        dead_letters: DeadLetters::Queue(QueueName::new("dead").unwrap()),
        ..QueueConfig::default()
    };
    managed.broker.create_queue(&QueueName::new("native").unwrap(), moved).await.unwrap();
    publish(&managed, "dead", "not a dead letter", json!({})).await;
    let reject = json!({"count": 1, "ackmode": "reject_requeue_false", "encoding": "auto"});
    for queue in ["q", "native"] {
        publish(&managed, queue, &format!("bad in {queue}"), json!({})).await;
        managed.expect(200, "POST", &format!("/api/queues/%2F/{queue}/get"), Some(reject.clone())).await;
    }
    let path = "/api/nexo/queues/%2F/dead";
    let has_all = |shown: &Value| shown["messages"].as_array().is_some_and(|all| all.len() == 3);
    let all = managed.until(&format!("{path}/messages"), has_all).await;
    assert_eq!(all["messages"][0]["dead_letter"], json!(null));
    let dead = managed.get(&format!("{path}/messages?dead=true")).await;
    assert_eq!(column(&dead["messages"], "payload"), ["bad in q", "bad in native"]);
    let (told, moved) = (&dead["messages"][0]["dead_letter"], &dead["messages"][1]["dead_letter"]);
    assert!(told["at_ms"].as_u64() > Some(0), "{told}");
    let mut told = told.clone();
    told["at_ms"] = json!(0);
    let wanted = json!({"reason": "rejected", "queue": "q", "exchange": "", "count": 1, "at_ms": 0});
    assert_eq!(told, wanted);
    assert_eq!((&moved["reason"], &moved["queue"]), (&json!("rejected"), &json!("native")));
    assert_eq!((&moved["offset"], &moved["attempts"]), (&json!(0), &json!(1)));
}

#[tokio::test]
async fn a_queue_that_is_paused_hands_nothing_out() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(json!({}))).await;
    publish(&managed, "q", "x", json!({})).await;
    managed.expect(204, "PUT", &format!("{Q}/pause"), Some(json!({"paused": true}))).await;
    assert_eq!(managed.get(Q).await["paused"], json!(true));
    let take = json!({"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"});
    assert_eq!(
        managed.expect(200, "POST", "/api/queues/%2F/q/get", Some(take.clone())).await.json(),
        json!([])
    );
    managed.expect(204, "PUT", &format!("{Q}/pause"), Some(json!({"paused": "false"}))).await;
    let got = managed.expect(200, "POST", "/api/queues/%2F/q/get", Some(take)).await.json();
    assert_eq!(column(&got, "payload"), ["x"]);
}
