//! Nothing that a client names, sends or says reaches a log line, a header or JSON unescaped.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use common::api::{LOGIN, Managed};
use common::hostile::{HOSTILE, Lines, check, quoted};
use nexo_admin::{
    AdminOptions, Answering, ClusterControl, ClusterFigures, ClusterHealth, ClusterRefused, ClusterReport,
    Drain, RemoveIf,
};
use nexo_amqp_client::{Client, Login};
use nexo_broker::BrokerOptions;
use nexo_log::disk::FaultyDisk;
use serde_json::{Value, json};

/// A cluster that says whatever it is asked for.
#[derive(Debug)]
struct Echo;

fn says<T: Send + 'static>(answer: T) -> Answering<'static, T> {
    Box::pin(std::future::ready(answer))
}

impl ClusterControl for Echo {
    fn report(&self) -> Answering<'_, ClusterReport> {
        says(ClusterReport {
            cluster: "c".to_owned(),
            node: HOSTILE[0].to_owned(),
            leader: Some(HOSTILE[3].to_owned()),
            term: 7,
            health: ClusterHealth::Ok,
            risk: HOSTILE.concat(),
            nodes: Vec::new(),
            groups: Vec::new(),
        })
    }

    fn figures(&self) -> ClusterFigures {
        ClusterFigures::default()
    }

    fn unready(&self) -> Option<String> {
        None
    }

    fn transfer(&self, to: Option<String>) -> Answering<'_, Result<String, ClusterRefused>> {
        says(to.ok_or(ClusterRefused::Unavailable("nobody can".to_owned())))
    }

    fn drain(&self, node: String, wanted: Drain) -> Answering<'_, Result<(), ClusterRefused>> {
        says(match wanted {
            Drain::Begin => Err(ClusterRefused::NoSuchNode(node)),
            Drain::End => Err(ClusterRefused::Unavailable(node)),
        })
    }

    fn remove(&self, node: String, _when: RemoveIf) -> Answering<'_, Result<(), ClusterRefused>> {
        says(Err(ClusterRefused::Refused(node)))
    }
}

/// Asks for something, and gives back the status of the answer, which was checked.
async fn say(managed: &Managed, method: &str, path: &str, body: &Value) -> u16 {
    let reply = managed.send(method, path, LOGIN, body.to_string().as_bytes()).await;
    check(&format!("{method} {path}"), &reply);
    reply.status
}

/// Every way in which the management API is told a name.
async fn say_over_http(managed: &Managed, text: &str) {
    let name = quoted(text);
    let permissions = json!({ "configure": text, "write": text, "read": text });
    let message = json!({ "properties": { "type": text }, "routing_key": text, "payload": text, "payload_encoding": "string" });
    let definitions = json!({
        "users": [{ "name": text, "password": text, "tags": text }],
        "vhosts": [{ "name": text, "description": text }],
        "queues": [{ "name": text, "vhost": text, "arguments": { text: text } }],
        "exchanges": [{ "name": text, "vhost": "/", "type": text }],
        "bindings": [{ "source": text, "vhost": "/", "destination": text, "destination_type": "queue", "routing_key": text }],
    });
    let dangling = json!({ "bindings": [{ "source": "amq.topic", "vhost": "/", "destination": "a\"q",
        "destination_type": "queue", "routing_key": text, "arguments": {} }] });
    let requests = [
        ("PUT", format!("/api/queues/%2F/{name}"), json!({ "arguments": { text: text } })),
        ("PUT", format!("/api/queues/{name}/{name}"), json!({})),
        ("PUT", format!("/api/exchanges/%2F/{name}"), json!({ "type": text })),
        ("PUT", format!("/api/exchanges/%2F/{name}"), json!({ "type": "topic" })),
        ("PUT", format!("/api/vhosts/{name}"), json!({ "description": text, "tags": [text] })),
        ("PUT", format!("/api/users/{name}"), json!({ "password": text, "tags": [text] })),
        ("PUT", format!("/api/users/{name}"), json!({ "password": text, "tags": "management" })),
        (
            "PUT",
            format!("/api/users/{name}"),
            json!({ "password_hash": text, "hashing_algorithm": text, "tags": "" }),
        ),
        ("PUT", format!("/api/permissions/%2F/{name}"), permissions.clone()),
        ("PUT", "/api/permissions/%2F/other".to_owned(), permissions),
        ("PUT", format!("/api/user-limits/guest/{name}"), json!({ "value": text })),
        ("POST", format!("/api/bindings/%2F/e/amq.topic/q/{name}"), json!({ "routing_key": text })),
        ("POST", "/api/bindings/%2F/e/amq.topic/q/plain".to_owned(), json!({ "routing_key": text })),
        ("POST", "/api/exchanges/%2F/amq.topic/publish".to_owned(), message),
        ("GET", "/api/queues/%2F/plain/bindings".to_owned(), Value::Null),
        ("GET", format!("/api/queues?page=1&name={name}&use_regex=true"), Value::Null),
        ("GET", format!("/api/nodes/{name}"), Value::Null),
        ("GET", format!("/api/connections/{name}"), Value::Null),
        ("GET", format!("/api/health/checks/protocol-listener/{name}"), Value::Null),
        ("GET", format!("/api/{name}"), Value::Null),
        ("POST", "/api/definitions".to_owned(), definitions),
        ("POST", "/api/definitions".to_owned(), dangling),
        ("POST", "/api/nexo/session".to_owned(), json!({ "username": text, "password": text })),
        ("DELETE", format!("/api/vhosts/{name}"), Value::Null),
        ("DELETE", format!("/api/users/{name}"), Value::Null),
    ];
    for (method, path, body) in requests {
        let login = if path == "/api/nexo/session" { "" } else { LOGIN };
        let reply = managed.send(method, &path, login, body.to_string().as_bytes()).await;
        check(&format!("{method} {path}"), &reply);
    }
    // What no header can hold is not sent: the server of HTTP refuses it before anybody looks.
    let pair = BASE64_STANDARD.encode(format!("{text}:{text}"));
    managed.send("GET", "/api/whoami", &format!("authorization: Basic {pair}\r\n"), b"").await;
    let reason = text.replace(['\r', '\n'], "\t");
    managed
        .send("DELETE", "/api/connections/username/guest", &format!("{LOGIN}x-reason: {reason}\r\n"), b"")
        .await;
}

/// Policies, parameters, topic permissions, limits and schedules.
async fn say_in_rules(managed: &Managed, text: &str) {
    let name = quoted(text);
    let policy = json!({ "pattern": text, "apply-to": text, "definition": { text: text }, "priority": 1 });
    let bound = json!({ "pattern": "^never$", "definition": { "max-length": 5 } });
    let routed =
        json!({ "pattern": "^never$", "definition": { "dead-letter-exchange": text, "overflow": text } });
    let topics = json!({ "exchange": text, "write": text, "read": text });
    let schedule = json!({
        "cron": "0 9 1 1 *", "time_zone": "UTC", "queue": "plain", "body": text, "content_type": text,
        "headers": { text: text }, "description": text,
    });
    let wrong = json!({ "cron": text, "time_zone": text, "queue": text, "catch_up": text, "until": text });
    let elsewhere = json!({ "every_ms": 3_600_000, "exchange": text, "routing_key": text });
    let of_job = json!({ "every_ms": 3_600_000, "job": { "queue": text, "type": text, "key": text, "payload": text } });
    let (one, beat) = (format!("%2F/{name}"), format!("/api/nexo/schedules/%2F/{name}"));
    for (method, path, body) in [
        ("PUT", format!("/api/policies/{one}"), &policy),
        ("PUT", format!("/api/policies/{one}"), &routed),
        ("PUT", format!("/api/policies/{one}"), &bound),
        ("PUT", format!("/api/policies/{name}/{name}"), &bound),
        ("PUT", format!("/api/operator-policies/{one}"), &policy),
        ("PUT", format!("/api/operator-policies/{one}"), &bound),
        ("PUT", format!("/api/parameters/{name}/{one}"), &json!({ "value": { text: text } })),
        ("PUT", format!("/api/parameters/shovel/{one}"), &json!({ "value": text })),
        ("PUT", format!("/api/parameters/{name}/{name}/{name}"), &json!({ "value": text })),
        ("PUT", format!("/api/global-parameters/{name}"), &json!({ "value": { text: text } })),
        ("PUT", "/api/global-parameters/cluster_name".to_owned(), &json!({ "value": text })),
        ("PUT", format!("/api/vhost-limits/%2F/{name}"), &json!({ "value": text })),
        ("PUT", "/api/vhost-limits/%2F/max-queues".to_owned(), &json!({ "value": text })),
        ("PUT", "/api/topic-permissions/%2F/other".to_owned(), &topics),
        ("PUT", format!("/api/topic-permissions/{name}/{name}"), &topics),
        ("PUT", beat.clone(), &schedule),
        ("PUT", beat.clone(), &wrong),
        ("PUT", beat.clone(), &elsewhere),
        ("PUT", beat.clone(), &of_job),
        ("PUT", format!("/api/nexo/schedules/{name}/{name}"), &schedule),
        ("PUT", "/api/nexo/schedules/%2F/plain".to_owned(), &schedule),
        ("PUT", "/api/nexo/schedules/%2F/wrong".to_owned(), &json!({ "queue": "plain", "cron": text })),
        (
            "PUT",
            "/api/nexo/schedules/%2F/wrong".to_owned(),
            &json!({ "queue": "plain", "cron": "0 9 * * *", "time_zone": text }),
        ),
        ("POST", format!("{beat}/run"), &Value::Null),
        ("POST", format!("{beat}/pause"), &Value::Null),
        ("POST", format!("{beat}/resume"), &Value::Null),
    ] {
        say(managed, method, &path, body).await;
    }
    for path in [
        "/api/policies".to_owned(),
        format!("/api/policies/{one}"),
        format!("/api/policies/{name}"),
        "/api/operator-policies".to_owned(),
        format!("/api/operator-policies/{one}"),
        "/api/parameters".to_owned(),
        format!("/api/parameters/{name}"),
        format!("/api/parameters/{name}/{one}"),
        "/api/global-parameters".to_owned(),
        format!("/api/global-parameters/{name}"),
        "/api/overview".to_owned(),
        "/api/vhost-limits".to_owned(),
        "/api/topic-permissions".to_owned(),
        "/api/users/other/topic-permissions".to_owned(),
        format!("/api/topic-permissions/{one}"),
        "/api/nexo/schedules".to_owned(),
        "/api/nexo/schedules/%2F/plain".to_owned(),
        beat.clone(),
        "/api/definitions".to_owned(),
    ] {
        say(managed, "GET", &path, &Value::Null).await;
    }
    for path in [
        format!("/api/policies/{one}"),
        format!("/api/operator-policies/{one}"),
        format!("/api/parameters/{name}/{one}"),
        format!("/api/global-parameters/{name}"),
        format!("/api/topic-permissions/{one}"),
        format!("/api/vhost-limits/%2F/{name}"),
        beat,
    ] {
        say(managed, "DELETE", &path, &Value::Null).await;
    }
}

/// Job queues and budgets, and the whole way of a job. Gives back how many were done.
async fn say_of_jobs(managed: &Managed, text: &str) -> usize {
    let (name, deals) = (quoted(text), "/api/jobs/queues/%2F/deals");
    let queue = format!("/api/jobs/queues/%2F/{name}");
    let budget = format!("/api/jobs/budgets/%2F/{name}");
    let waiter = json!({ "id": text, "user": text, "class": text });
    let named = json!({ "type": text, "key": text, "payload": { text: text }, "waiter": waiter });
    // Of whatever text, a job with names that can be comes to be, and has the text in what it carries.
    let ask = |key: String| json!({ "key": key, "payload": { text: text } });
    let wrong =
        json!({ "type": text, "key": text, "waiter": { "id": text, "filter": text, "reply_to": text } });
    for (method, path, body) in [
        ("PUT", queue.clone(), &json!({})),
        ("PUT", queue.clone(), &json!({ "score": text })),
        ("PUT", queue.clone(), &json!({ "costs": { text: text }, "classes": { text: text } })),
        ("PUT", queue.clone(), &json!({ "budget": text, "overtake": text, "bands": [{ "name": text }] })),
        ("PUT", queue.clone(), &json!({ text: text })),
        ("PUT", format!("/api/jobs/queues/{name}/{name}"), &json!({})),
        ("PUT", deals.to_owned(), &json!({ "bands": [{ "name": text }], "classes": { text: 1 } })),
        ("PUT", budget.clone(), &json!({})),
        ("PUT", budget.clone(), &json!({ "refill": { text: text }, "capacity": text })),
        ("POST", format!("{budget}/report"), &json!({ text: text })),
        ("POST", format!("{budget}/grant"), &json!({ "tokens": text })),
        ("POST", format!("{queue}/ask"), &named),
        ("POST", format!("{deals}/ask"), &named),
        ("POST", format!("{deals}/ask"), &ask(format!("{name}-1"))),
        ("POST", format!("{deals}/ask"), &ask(format!("{name}-2"))),
        ("POST", format!("{deals}/ask"), &wrong),
        ("POST", format!("{deals}/ask"), &json!({ "key": "plain", "wait_ms": text })),
        ("POST", format!("{queue}/take"), &json!({ "worker": text })),
        ("POST", format!("{queue}/take"), &json!({ text: text })),
        ("POST", format!("/api/jobs/receipt/{name}/complete"), &json!({ "result": text })),
        ("POST", format!("/api/jobs/receipt/{name}/fail"), &json!({ "error": text })),
        ("GET", format!("/api/jobs/job/{name}"), &Value::Null),
        ("DELETE", format!("/api/jobs/job/{name}"), &Value::Null),
    ] {
        say(managed, method, &path, body).await;
    }
    let mut done = 0;
    loop {
        let take = json!({ "worker": "w", "max": 1 });
        let reply = managed.send("POST", &format!("{deals}/take"), LOGIN, take.to_string().as_bytes()).await;
        check("take", &reply);
        let taken = reply.json();
        let Some(receipt) = taken["jobs"][0]["receipt"].as_str() else { break };
        let receipt = format!("/api/jobs/receipt/{}", quoted(receipt));
        say(managed, "POST", &format!("{receipt}/extend"), &json!({ "progress": { text: text } })).await;
        say(managed, "GET", deals, &Value::Null).await;
        say(managed, "GET", &format!("{deals}/pending"), &Value::Null).await;
        // The first one comes to a result, the others fail.
        let settled = if done == 0 {
            say(managed, "POST", &format!("{receipt}/complete"), &json!({ "result": { text: text } })).await
        } else {
            say(managed, "POST", &format!("{receipt}/fail"), &json!({ "error": text, "retry": false })).await
        };
        assert!((200..300).contains(&settled), "{settled}");
        done += 1;
    }
    for path in [
        "/api/jobs/queues".to_owned(),
        format!("/api/jobs/queues/{name}"),
        queue.clone(),
        deals.to_owned(),
        format!("{deals}/answers/{name}"),
        format!("{deals}/results/{name}"),
        format!("{deals}/results/{}", quoted(&format!("{name}-1"))),
        "/api/jobs/budgets".to_owned(),
        budget.clone(),
        "/api/jobs/tokens".to_owned(),
        format!("/api/jobs/tokens?budget={name}&key={name}"),
        format!("/api/jobs/tokens?{name}={name}"),
    ] {
        say(managed, "GET", &path, &Value::Null).await;
    }
    for path in [format!("{deals}/waiters/{name}"), queue, budget] {
        say(managed, "DELETE", &path, &Value::Null).await;
    }
    done
}

/// Moves of messages, the cluster and its memory.
async fn say_of_operations(managed: &Managed, text: &str) {
    let name = quoted(text);
    let queue = format!("/api/nexo/queues/%2F/{name}");
    for (method, path, body) in [
        ("POST", format!("{queue}/redrive"), json!({ "target": text })),
        ("POST", "/api/nexo/queues/%2F/plain/redrive".to_owned(), json!({ "target": text })),
        (
            "POST",
            "/api/nexo/queues/%2F/plain/redrive".to_owned(),
            json!({ "target": format!("no {text}"), "progress": true }),
        ),
        ("POST", "/api/nexo/queues/%2F/plain/redrive".to_owned(), json!({ "offsets": [text], "max": text })),
        ("PUT", format!("{queue}/pause"), json!({ "paused": text })),
        ("PUT", "/api/nexo/queues/%2F/plain/pause".to_owned(), json!({ "paused": text, text: text })),
        ("GET", queue, Value::Null),
        (
            "GET",
            format!("/api/nexo/queues/%2F/plain/messages?text={name}&header={name}&after={name}"),
            Value::Null,
        ),
        ("GET", "/api/nexo/cluster".to_owned(), Value::Null),
        ("POST", "/api/nexo/cluster/transfer".to_owned(), json!({ "to": text })),
        ("POST", format!("/api/nexo/cluster/nodes/{name}/drain"), json!({})),
        ("POST", format!("/api/nexo/cluster/nodes/{name}/drain"), json!({ "drain": false })),
        ("POST", format!("/api/nexo/cluster/nodes/{name}/drain"), json!({ "drain": text })),
        ("DELETE", format!("/api/nexo/cluster/nodes/{name}?force={name}"), Value::Null),
        ("PUT", "/api/nexo/memory".to_owned(), json!({ "high": text })),
        ("PUT", "/api/nexo/memory".to_owned(), json!({ "absolute_bytes": text, text: text })),
        ("GET", "/api/nexo/memory".to_owned(), Value::Null),
        ("GET", format!("/api/auth/attempts/{name}"), Value::Null),
        ("GET", format!("/api/health/checks/certificate-expiration/{name}/{name}"), Value::Null),
    ] {
        say(managed, method, &path, &body).await;
    }
}

async fn say_over_amqp(managed: &Managed, text: &str) {
    let patience = std::time::Duration::from_secs(30);
    let named = |user: &str, vhost: &str| Login {
        user: user.into(),
        password: user.into(),
        virtual_host: vhost.into(),
        ..Login::default()
    };
    assert!(Client::connect(managed.amqp, &named(text, "/"), patience).await.is_err());
    assert!(Client::connect(managed.amqp, &named("guest", text), patience).await.is_err());
}

#[tokio::test]
async fn what_clients_say_forges_neither_lines_nor_headers_nor_json() {
    let lines = Lines::begin();
    let admin = AdminOptions { cluster: Some(Arc::new(Echo)), ..AdminOptions::default() };
    let managed = Managed::start_as(&FaultyDisk::new(), BrokerOptions::new("faulty"), admin).await;
    managed.expect(201, "PUT", "/api/queues/%2F/plain", Some(json!({}))).await;
    managed.expect(201, "PUT", "/api/jobs/queues/%2F/deals", Some(json!({}))).await;
    managed.expect(201, "PUT", "/api/users/other", Some(json!({ "password": "x", "tags": "" }))).await;
    for text in HOSTILE {
        say_over_http(&managed, text).await;
        say_over_amqp(&managed, text).await;
        say_in_rules(&managed, text).await;
        assert!(say_of_jobs(&managed, text).await >= 2, "jobs go their whole way: {text:?}");
        say_of_operations(&managed, text).await;
    }
    let log = lines.check();
    for said in ["login refused", "policies changed", "schedules changed", "a node is to be removed"] {
        assert!(log.contains(said), "{said} was logged: {log}");
    }
}
