//! Connections, channels and consumers over the management API.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::time::Duration;

use common::api::{LOGIN, Managed, column};
use nexo_amqp::codec::method::{ConnectionMethod, basic, tx};
use nexo_amqp::codec::{Method, ShortStr};
use serde_json::{Value, json};

fn quoted(name: &str) -> String {
    name.replace(' ', "%20").replace('>', "%3E")
}

#[tokio::test]
async fn a_connection_is_shown_with_what_its_client_does() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(json!({}))).await;
    let mut client = managed.client().await;
    client.open_channel(1).await.unwrap();
    client.select_confirms(1).await.unwrap();
    client
        .call(1, &basic::Qos { prefetch_size: 0, prefetch_count: 7, global: false }, "basic.qos-ok")
        .await
        .unwrap();
    for tag in 1..=3 {
        client.add_publish(1, "", "q", &[0, 0], b"x").unwrap();
        client.flush().await.unwrap();
        client.confirmed(tag).await.unwrap();
    }
    client.consume(1, "q", "tag").await.unwrap();
    for _ in 0..3 {
        client.message(Duration::from_secs(10)).await.unwrap().unwrap();
    }
    client.open_channel(2).await.unwrap();
    client.call(2, &tx::Select {}, "tx.select-ok").await.unwrap();

    let channels =
        managed.until("/api/channels", |shown| shown[0]["messages_unacknowledged"] == json!(3)).await;
    assert_eq!(column(&channels, "number"), [1, 2]);
    let first = &channels[0];
    for (name, value) in [
        ("confirm", json!(true)),
        ("transactional", json!(false)),
        ("consumer_count", json!(1)),
        ("prefetch_count", json!(7)),
        ("global_prefetch_count", json!(0)),
        ("messages_unconfirmed", json!(0)),
        ("user", json!("guest")),
        ("vhost", json!("/")),
    ] {
        assert_eq!(first[name], value, "{name}");
    }
    let stats = &first["message_stats"];
    assert_eq!((&stats["publish"], &stats["confirm"], &stats["deliver"]), (&json!(3), &json!(3), &json!(3)));
    assert_eq!(channels[1]["transactional"], json!(true));
    client.acknowledge_through(1, 2);
    client.flush().await.unwrap();
    managed.until("/api/channels", |shown| shown[0]["messages_unacknowledged"] == json!(1)).await;

    let connections = managed.get("/api/connections").await;
    let name = connections[0]["name"].as_str().unwrap().to_owned();
    assert_eq!((&connections[0]["channels"], &connections[0]["state"]), (&json!(2), &json!("running")));
    assert!(connections[0]["recv_oct"].as_u64().unwrap() > 100, "{connections}");
    let one = managed.get(&format!("/api/connections/{}", quoted(&name))).await;
    assert_eq!(one["name"], json!(name));
    let of_it = managed.get(&format!("/api/connections/{}/channels", quoted(&name))).await;
    assert_eq!(column(&of_it, "number"), [1, 2]);
    let channel = managed.get(&format!("/api/channels/{}", quoted(&format!("{name} (1)")))).await;
    assert_eq!(channel["consumer_details"][0]["consumer_tag"], json!("tag"));
    assert_eq!(managed.get("/api/connections/username/guest").await.as_array().unwrap().len(), 1);
    assert_eq!(managed.get("/api/connections/username/nobody").await, json!([]));
    assert_eq!(managed.get("/api/vhosts/%2F/connections").await.as_array().unwrap().len(), 1);
    assert_eq!(managed.get("/api/vhosts/%2F/channels").await.as_array().unwrap().len(), 2);

    client.close_channel(2).await.unwrap();
    managed.until("/api/channels", |shown| column(shown, "number") == [json!(1)]).await;
    drop(client);
    managed.until("/api/connections", |shown| *shown == json!([])).await;
    assert_eq!(managed.get("/api/channels").await, json!([]));
}

#[tokio::test]
async fn consumers_are_listed_with_their_queues() {
    let managed = Managed::start().await;
    let alone = json!({"arguments": {"x-single-active-consumer": true}});
    managed.expect(201, "PUT", "/api/queues/%2F/alone", Some(alone)).await;
    let mut client = managed.client().await;
    client.open_channel(1).await.unwrap();
    client.consume(1, "alone", "first").await.unwrap();
    client.consume(1, "alone", "second").await.unwrap();
    let shown = managed.get("/api/consumers").await;
    assert_eq!(column(&shown, "consumer_tag"), ["first", "second"]);
    assert_eq!(column(&shown, "active"), [true, false]);
    assert_eq!(column(&shown, "activity_status"), ["single_active", "waiting"]);
    assert_eq!(shown[0]["queue"], json!({"name": "alone", "vhost": "/"}));
    assert_eq!(shown[0]["channel_details"]["number"], json!(1));
    assert_eq!(managed.get("/api/consumers/%2F").await, shown);
    managed.expect(404, "GET", "/api/consumers/none", None).await;
    let cancel = basic::Cancel { consumer_tag: ShortStr::from_static("first"), nowait: false };
    client.call(1, &cancel, "basic.cancel-ok").await.unwrap();
    let shown = managed.get("/api/consumers").await;
    assert_eq!(
        (column(&shown, "consumer_tag"), column(&shown, "active")),
        (vec![json!("second")], vec![json!(true)])
    );
    managed.expect(204, "DELETE", "/api/queues/%2F/alone", None).await;
    managed.until("/api/consumers", |shown| *shown == json!([])).await;
}

async fn end_of(client: &mut nexo_amqp_client::Client) -> (u16, String) {
    loop {
        // A client of ours takes the end for an error, so frames are read as they come.
        let frame = client.next_frame().await.unwrap().expect("the broker says why");
        if let Ok(Method::Connection(ConnectionMethod::Close(close))) = frame.method() {
            return (close.reply_code, close.reply_text.to_string());
        }
    }
}

#[tokio::test]
async fn a_connection_is_closed_with_a_reason() {
    let managed = Managed::start().await;
    let mut client = managed.client().await;
    let mut other = managed.client().await;
    let name = managed.get("/api/connections").await[0]["name"].as_str().unwrap().to_owned();
    let path = format!("/api/connections/{}", quoted(&name));
    let reply =
        managed.send("DELETE", &path, &format!("{LOGIN}x-reason: maintenance tonight\r\n"), b"").await;
    assert_eq!(reply.status, 204);
    assert_eq!(end_of(&mut client).await, (320, "CONNECTION_FORCED - maintenance tonight".to_owned()));
    drop(client);
    managed.until("/api/connections", |shown| shown.as_array().unwrap().len() == 1).await;
    managed.expect(404, "DELETE", &path, None).await;
    managed.expect(204, "DELETE", "/api/connections/username/guest", None).await;
    assert_eq!(end_of(&mut other).await.1, "CONNECTION_FORCED - Closed via management plugin");
}

#[tokio::test]
async fn a_reason_of_any_length_reaches_the_client_cut() {
    let managed = Managed::start().await;
    let mut client = managed.client().await;
    let name = managed.get("/api/connections").await[0]["name"].as_str().unwrap().to_owned();
    let headers = format!("{LOGIN}x-reason: {}\r\n", "é".repeat(500));
    let path = format!("/api/connections/{}", quoted(&name));
    assert_eq!(managed.send("DELETE", &path, &headers, b"").await.status, 204);
    let (code, text) = end_of(&mut client).await;
    assert_eq!((code, text.chars().filter(|c| *c == 'é').count()), (320, 100));
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let managed = Managed::start().await;
    for path in [
        "/api/connections/none",
        "/api/connections/none/channels",
        "/api/channels/none",
        "/api/channels/x%20(1)",
    ] {
        managed.expect(404, "GET", path, None).await;
    }
    let none: Value = managed.get("/api/connections").await;
    assert_eq!(none, json!([]));
}
