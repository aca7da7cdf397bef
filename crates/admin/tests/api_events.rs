//! What is told of what is done over the management API: who did it, and who was not let in.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::api::{Managed, login};
use nexo_broker::topology::{Binding, Destination};
use nexo_broker::{EVENT_EXCHANGE, Event, EventValue, QueueConfig};
use nexo_types::{ExchangeName, QueueName, VhostName};
use serde_json::json;

/// A broker that tells of what happens from now on.
async fn telling() -> Managed {
    let managed = Managed::start().await;
    let broker = &managed.broker;
    broker.ensure_event_exchange().await.unwrap();
    let queue = QueueName::new("events").unwrap();
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    let exchange = ExchangeName::at(&VhostName::DEFAULT, EVENT_EXCHANGE).unwrap();
    let binding = Binding::new(exchange, Destination::Queue(queue), b"#".as_slice().into(), Vec::new());
    broker.bind(binding).await.unwrap();
    managed
}

fn text(event: &Event, field: &str) -> String {
    match event.fields.iter().find(|(name, _)| name == field) {
        Some((_, EventValue::Text(text))) => text.clone(),
        other => panic!("{field} is {other:?}"),
    }
}

#[tokio::test]
async fn an_import_is_told_as_done_by_whoever_asked_for_it() {
    let managed = telling().await;
    let file = json!({
        "users": [{"name": "ann", "password": "secret", "tags": []}],
        "vhosts": [{"name": "shop"}],
        "permissions": [{"user": "ann", "vhost": "shop", "configure": "", "write": "", "read": ""}],
        "policies": [{"name": "p", "vhost": "shop", "pattern": ".*", "definition": {"max-length": 5}}],
        "queues": [{"name": "q", "vhost": "shop", "durable": true}],
        "exchanges": [{"name": "x", "vhost": "shop", "type": "topic", "durable": true}],
        "bindings": [{"source": "x", "vhost": "shop", "destination": "q", "destination_type": "queue",
                      "routing_key": "k"}],
    });
    managed.expect(204, "POST", "/api/definitions", Some(file)).await;
    let events = managed.broker.events().next().await;
    let names: Vec<&str> = events.iter().map(|event| event.name).collect();
    let expected = [
        "vhost.created",
        "user.created",
        "permission.created",
        "policy.set",
        "queue.created",
        "exchange.created",
        "binding.created",
    ];
    for name in expected {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    for event in &events {
        assert_eq!(text(event, "user_who_performed_action"), "guest", "{event:?}");
    }
}

#[tokio::test]
async fn queues_go_with_their_virtual_host_by_whoever_deletes_it() {
    let managed = telling().await;
    let file =
        json!({"vhosts": [{"name": "shop"}], "queues": [{"name": "q", "vhost": "shop", "durable": true}]});
    managed.expect(204, "POST", "/api/definitions", Some(file)).await;
    managed.expect(204, "DELETE", "/api/vhosts/shop", None).await;
    let events = managed.broker.events().next().await;
    let gone = events.iter().find(|event| event.name == "queue.deleted").unwrap();
    assert_eq!(text(gone, "user_who_performed_action"), "guest");
}

#[tokio::test]
async fn who_is_not_let_in_is_told_by_the_name_that_he_gave() {
    let managed = telling().await;
    assert_eq!(managed.send("GET", "/api/queues", &login("ann:wrong"), b"").await.status, 401);
    let begin = json!({"username": "bob", "password": "wrong"}).to_string();
    assert_eq!(managed.send("POST", "/api/nexo/session", "", begin.as_bytes()).await.status, 401);
    let token = "authorization: Bearer nexo_a_b\r\n";
    assert_eq!(managed.send("GET", "/api/queues", token, b"").await.status, 401);
    let events = managed.broker.events().next().await;
    let told: Vec<_> = events.iter().map(|event| (event.name, text(event, "name"))).collect();
    let refused = |name: &str| ("user.authentication.failure", name.to_owned());
    assert_eq!(told, [refused("ann"), refused("bob"), refused("")]);
}
