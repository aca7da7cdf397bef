//! The description of the API says what the server answers.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::api::Managed;
use nexo_amqp::codec::ShortStr;
use nexo_amqp::codec::method::basic;
use serde_json::{Value, json};

/// What is wrong with a value, by a schema of the kinds that the description uses.
fn wrong(document: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let found = document.pointer(name.trim_start_matches('#')).unwrap_or_else(|| panic!("no {name}"));
        return wrong(document, found, value, at);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let all: Vec<_> = any.iter().map(|one| wrong(document, one, value, at)).collect();
        return all.iter().all(Option::is_some).then(|| format!("{all:?}"));
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_kind = |wanted: &Value| wanted == kind || (wanted == "number" && kind == "integer");
    let fits = match &schema["type"] {
        Value::Null => true,
        Value::Array(kinds) => kinds.iter().any(is_kind),
        one => is_kind(one),
    };
    if !fits {
        return Some(format!("{at} is {kind}, not {}", schema["type"]));
    }
    let missing = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(name) = missing.into_iter().find(|name| value.get(name).is_none()) {
        return Some(format!("{at} has no {name}"));
    }
    let properties = schema["properties"].as_object().into_iter().flatten();
    let mut inside = properties.filter_map(|(name, schema)| Some((schema, value.get(name)?, name.as_str())));
    let found =
        inside.find_map(|(schema, value, name)| wrong(document, schema, value, &format!("{at}.{name}")));
    let others =
        value.as_object().into_iter().flatten().filter(|(name, _)| schema["properties"].get(name).is_none());
    let mut others = others.filter(|_| schema["additionalProperties"].is_object());
    let found = found.or_else(|| {
        others.find_map(|(name, value)| {
            wrong(document, &schema["additionalProperties"], value, &format!("{at}.{name}"))
        })
    });
    let items = value.as_array().into_iter().flatten();
    found.or_else(|| {
        items.into_iter().find_map(|item| wrong(document, &schema["items"], item, &format!("{at}[]")))
    })
}

#[test]
fn a_wrong_answer_would_be_seen() {
    let document = json!({ "components": { "schemas": { "A": {
        "type": "object", "required": ["n"], "properties": { "n": { "type": "integer" }, "t": { "type": ["string", "null"] } }
    } } } });
    let schema = json!({ "type": "array", "items": { "$ref": "#/components/schemas/A" } });
    let fits = |value: Value| wrong(&document, &schema, &value, "it").is_none();
    assert!(fits(json!([])) && fits(json!([{ "n": 1, "t": null, "more": [] }])));
    for value in [json!({}), json!([1]), json!([{}]), json!([{ "n": 1.5 }]), json!([{ "n": 1, "t": 5 }])] {
        assert!(!fits(value.clone()), "{value}");
    }
    let by_name = json!({ "type": "object", "additionalProperties": { "$ref": "#/components/schemas/A" } });
    assert_eq!(wrong(&document, &by_name, &json!({ "a": { "n": 1 } }), "it"), None);
    assert_eq!(wrong(&document, &by_name, &json!({ "a": {} }), "it").as_deref(), Some("it.a has no n"));
}

/// An address of the description with names in it that are there.
fn asked(path: &str, connection: &str, node: &str) -> String {
    let name = match path {
        _ if path.contains("/connections/{name}") => connection.to_owned(),
        _ if path.contains("/channels/{name}") => format!("{connection}%20(1)"),
        _ if path.contains("/nodes/{name}") || path.contains("healthchecks") => node.to_owned(),
        _ if path.contains("/users/{name}") => "guest".to_owned(),
        _ if path.contains("policies") || path.contains("parameters") => "p".to_owned(),
        _ if path.contains("limits") => "max-channels".to_owned(),
        _ if path.contains("/exchanges/") => "amq.topic".to_owned(),
        _ => "q".to_owned(),
    };
    let filled = path.replace("{name}", &name).replace("{vhost}", "%2F").replace("{user}", "guest");
    let filled = filled.replace("{source}", "amq.topic").replace("{kind}", "q").replace("{destination}", "q");
    filled
        .replace("{component}", "c")
        .replace("{key}", "k")
        .replace("{port}", "1")
        .replace("{node}", node)
        .replace("{within}", "1")
        .replace("{unit}", "weeks")
        .replace("{protocol}", "amqp")
        .replace("{waiter}", "w")
        .replace("{job}", "0")
        .replace("{receipt}", "v1-0-1")
}

#[tokio::test]
async fn every_address_answers_as_it_is_described() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(json!({ "durable": true }))).await;
    let topics = json!({ "exchange": "amq.topic", "write": ".*", "read": ".*" });
    managed.expect(201, "PUT", "/api/topic-permissions/%2F/guest", Some(topics)).await;
    managed.expect(204, "PUT", "/api/user-limits/guest/max-channels", Some(json!({ "value": 100 }))).await;
    managed.expect(204, "PUT", "/api/vhost-limits/%2F/max-queues", Some(json!({ "value": 100 }))).await;
    managed
        .expect(201, "POST", "/api/bindings/%2F/e/amq.topic/q/q", Some(json!({ "routing_key": "k" })))
        .await;
    let message =
        json!({ "properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string" });
    managed.expect(200, "POST", "/api/exchanges/%2F/amq.topic/publish", Some(message)).await;
    let policy = json!({ "pattern": "^none$", "definition": { "max-length": 5 } });
    managed.expect(201, "PUT", "/api/policies/%2F/p", Some(policy.clone())).await;
    managed.expect(201, "PUT", "/api/operator-policies/%2F/p", Some(policy)).await;
    managed.expect(201, "PUT", "/api/parameters/c/%2F/p", Some(json!({ "value": 1 }))).await;
    managed.expect(201, "PUT", "/api/global-parameters/p", Some(json!({ "value": { "a": 1 } }))).await;
    let schedule = json!({ "cron": "0 0 1 1 *", "queue": "q", "body": "x" });
    managed.expect(201, "PUT", "/api/nexo/schedules/%2F/q", Some(schedule)).await;
    // A job that is done, with somebody who waited for it.
    managed.expect(201, "PUT", "/api/jobs/budgets/%2F/q", Some(json!({ "capacity": 60 }))).await;
    managed.expect(201, "PUT", "/api/jobs/queues/%2F/q", Some(json!({ "budget": "q" }))).await;
    let job = json!({ "key": "k", "waiter": { "id": "w" } });
    managed.expect(200, "POST", "/api/jobs/queues/%2F/q/ask", Some(job)).await;
    let taken = managed.expect(200, "POST", "/api/jobs/queues/%2F/q/take", Some(json!({}))).await.json();
    assert_eq!(taken["jobs"][0]["receipt"], "v1-0-1");
    managed.expect(204, "POST", "/api/jobs/receipt/v1-0-1/complete", Some(json!({ "result": [1] }))).await;
    let mut client = managed.client().await;
    client.open_channel(1).await.unwrap();
    client.call(1, &consume(), "basic.consume-ok").await.unwrap();
    let seen =
        managed.until("/api/consumers", |shown| shown.as_array().is_some_and(|all| !all.is_empty())).await;
    let connection = seen[0]["channel_details"]["connection_name"].as_str().unwrap();
    let connection = connection.replace(' ', "%20").replace('>', "%3E");
    let node = managed.get("/api/overview").await["node"].as_str().unwrap().to_owned();

    let document = managed.get("/api/nexo/openapi.json").await;
    let mut answers = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        let address = asked(path, &connection, &node);
        for method in ["GET", "PUT", "POST", "DELETE"] {
            let operation = &operations[method.to_lowercase()];
            if operation.is_null() {
                assert_eq!(
                    managed.call(method, &address, None).await.status,
                    405,
                    "{method} {path} is not described"
                );
            } else if method == "GET" {
                let reply = managed.call(method, &address, None).await;
                // This broker is by itself. api_cluster.rs asks one that is in a cluster.
                if path.starts_with("/api/nexo/cluster") {
                    assert_eq!(reply.status, 404, "{path}: {reply:?}");
                    continue;
                }
                let schema = &operation["responses"][reply.status.to_string()]["content"]["application/json"]
                    ["schema"];
                assert!(!schema.is_null() && [200, 503].contains(&reply.status), "{path}: {reply:?}");
                assert_eq!(wrong(&document, schema, &reply.json(), path), None, "{path}");
                answers += 1;
            }
        }
    }
    assert!(answers > 60, "{answers}");
    let get = json!({ "count": 1, "ackmode": "ack_requeue_true", "encoding": "auto" });
    for (path, body) in
        [("/api/queues/{vhost}/{name}/get", get), ("/api/nexo/queues/{vhost}/{name}/redrive", json!({}))]
    {
        let reply = managed.expect(200, "POST", &asked(path, "", ""), Some(body)).await;
        let schema =
            document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
                .clone();
        assert_eq!(wrong(&document, &schema, &reply.json(), path), None, "{path}");
    }
    let path = "/api/nexo/queues/{vhost}/{name}/redrive";
    let reply = managed.expect(200, "POST", &asked(path, "", ""), Some(json!({ "progress": true }))).await;
    let lines =
        &document["paths"][path]["post"]["responses"]["200"]["content"]["application/x-ndjson"]["schema"];
    assert!(!lines.is_null() && reply.head.contains("application/x-ndjson"), "{reply:?}");
    let line =
        reply.text.lines().find_map(|line| serde_json::from_str::<Value>(line).ok().filter(Value::is_object));
    assert_eq!(wrong(&document, lines, &line.unwrap(), path), None, "{reply:?}");
    let refused = managed.expect(404, "GET", "/api/queues/%2F/none", None).await.json();
    assert_eq!(wrong(&document, &json!({ "$ref": "#/components/schemas/Error" }), &refused, "error"), None);
}

fn consume() -> basic::Consume<'static> {
    basic::Consume {
        ticket: 0,
        queue: ShortStr::from_static("q"),
        consumer_tag: ShortStr::from_static("t"),
        no_local: false,
        no_ack: false,
        exclusive: false,
        nowait: false,
        arguments: nexo_amqp::codec::Table::EMPTY,
    }
}
