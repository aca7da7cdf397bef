//! Policies and parameters over the management API, by what RabbitMQ answers.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::api::{Managed, column};
use nexo_log::disk::FaultyDisk;
use serde_json::{Value, json};

#[tokio::test]
async fn a_policy_is_set_looked_at_listed_and_deleted() {
    let managed = Managed::start().await;
    let short = json!({"pattern": "^short", "definition": {"message-ttl": 60000}, "priority": 1, "apply-to": "queues"});
    managed.expect(201, "PUT", "/api/policies/%2F/short", Some(short.clone())).await;
    managed.expect(204, "PUT", "/api/policies/%2F/short", Some(short)).await;
    let expected = json!({
        "vhost": "/", "name": "short", "pattern": "^short", "apply-to": "queues",
        "definition": {"message-ttl": 60000}, "priority": 1,
    });
    assert_eq!(managed.get("/api/policies/%2F/short").await, expected);
    assert_eq!(managed.get("/api/policies/%2F").await, json!([expected]));
    assert_eq!(column(&managed.get("/api/policies").await, "name"), ["short"]);
    assert_eq!(managed.get("/api/operator-policies").await, json!([]));
    managed.expect(404, "GET", "/api/policies/none", None).await;
    managed.expect(404, "PUT", "/api/policies/none/p", Some(json!({"pattern": "", "definition": {}}))).await;
    managed.expect(204, "DELETE", "/api/policies/%2F/short", None).await;
    managed.expect(404, "DELETE", "/api/policies/%2F/short", None).await;
    managed.expect(404, "GET", "/api/policies/%2F/short", None).await;
}

#[tokio::test]
async fn what_cannot_be_is_refused_in_rabbitmqs_words() {
    let managed = Managed::start().await;
    let refused = async |kind: &str, policy: Value| {
        let path = format!("/api/{kind}/%2F/p");
        let reply = managed.expect(400, "PUT", &path, Some(policy)).await;
        reply.json()["reason"].as_str().unwrap().to_owned()
    };
    let with = |definition: Value| json!({"pattern": ".*", "definition": definition});
    assert_eq!(
        refused("policies", with(json!({"message-ttl": "soon"}))).await,
        "Validation failed\n\n<<\"soon\">> is not a valid message TTL\n"
    );
    assert_eq!(
        refused("policies", with(json!({"max-priority": 5}))).await,
        "Validation failed\n\n[{<<\"max-priority\">>,5}] are not recognised policy settings\n"
    );
    assert_eq!(
        refused("operator-policies", with(json!({"dead-letter-exchange": "x"}))).await,
        "Validation failed\n\n[{<<\"dead-letter-exchange\">>,<<\"x\">>}] are not recognised policy settings\n"
    );
    assert!(
        refused("policies", json!({"pattern": "(", "definition": {"expires": 1}})).await.contains("pattern")
    );
    let what = json!({"pattern": "", "definition": {"expires": 1}, "apply-to": "topics"});
    assert!(refused("policies", what).await.contains("apply-to 'topics' unrecognised"));
    assert!(refused("policies", json!({"definition": {"expires": 1}})).await.contains("pattern"));
    assert_eq!(managed.get("/api/policies").await, json!([]));
}

#[tokio::test]
async fn queues_and_exchanges_tell_which_policies_apply_to_them() {
    let managed = Managed::start().await;
    let queue = "/api/queues/%2F/mail";
    managed
        .expect(201, "PUT", queue, Some(json!({"durable": true, "arguments": {"x-message-ttl": 9000}})))
        .await;
    let seen = managed.get(queue).await;
    assert_eq!((&seen["policy"], &seen["effective_policy_definition"]), (&Value::Null, &json!({})));
    let policy = json!({"pattern": "^mail", "definition": {"max-length": 10, "message-ttl": 5000}});
    managed.expect(201, "PUT", "/api/policies/%2F/p", Some(policy)).await;
    let bound = json!({"pattern": "", "definition": {"max-length": 3}, "apply-to": "queues"});
    managed.expect(201, "PUT", "/api/operator-policies/%2F/bound", Some(bound)).await;
    let seen = managed.get(queue).await;
    assert_eq!((&seen["policy"], &seen["operator_policy"]), (&json!("p"), &json!("bound")));
    assert_eq!(seen["effective_policy_definition"], json!({"max-length": 3, "message-ttl": 5000}));
    assert_eq!(seen["arguments"], json!({"x-message-ttl": 9000}), "its own words stay as they are");
    // Declared again as it was, whatever policies say.
    managed
        .expect(204, "PUT", queue, Some(json!({"durable": true, "arguments": {"x-message-ttl": 9000}})))
        .await;
    for number in 0..5 {
        let message = json!({"properties": {}, "routing_key": "mail", "payload": number.to_string(), "payload_encoding": "string"});
        managed.expect(200, "POST", "/api/exchanges/%2F/amq.default/publish", Some(message)).await;
    }
    managed.until(queue, |seen| seen["messages"] == 3).await;
    let exchange = "/api/exchanges/%2F/mail-x";
    managed.expect(201, "PUT", exchange, Some(json!({"type": "direct", "durable": true}))).await;
    assert_eq!(managed.get(exchange).await["policy"], "p");
    managed.expect(204, "DELETE", "/api/policies/%2F/p", None).await;
    assert_eq!(managed.get(exchange).await.get("policy"), None);
    let seen = managed.get(queue).await;
    assert_eq!((&seen["policy"], &seen["operator_policy"]), (&Value::Null, &json!("bound")));
}

#[tokio::test]
async fn parameters_are_kept_and_operator_policies_and_limits_are_among_them() {
    let disk = FaultyDisk::new();
    let managed = Managed::start_on(&disk).await;
    let upstream = json!({"value": {"uri": "amqp://elsewhere", "prefetch": 5}});
    let path = "/api/parameters/federation-upstream/%2F/up";
    managed.expect(201, "PUT", path, Some(upstream)).await;
    let expected = json!({
        "vhost": "/", "component": "federation-upstream", "name": "up",
        "value": {"uri": "amqp://elsewhere", "prefetch": 5},
    });
    assert_eq!(managed.get(path).await, expected);
    let bound = json!({"value": {"pattern": "", "definition": {"max-length": 3}, "priority": 2}});
    managed.expect(201, "PUT", "/api/parameters/operator_policy/%2F/bound", Some(bound)).await;
    assert_eq!(managed.get("/api/operator-policies/%2F/bound").await["definition"], json!({"max-length": 3}));
    let limits = json!({"value": {"max-queues": 9}});
    managed.expect(201, "PUT", "/api/parameters/vhost-limits/%2F/limits", Some(limits)).await;
    assert_eq!(managed.get("/api/vhost-limits").await[0]["value"], json!({"max-queues": 9}));
    let mut components = column(&managed.get("/api/parameters").await, "component");
    components.sort_by_key(ToString::to_string);
    assert_eq!(components, ["federation-upstream", "operator_policy", "vhost-limits"]);
    assert_eq!(managed.get("/api/parameters/federation-upstream/%2F").await, json!([expected]));
    managed.expect(400, "PUT", path, Some(json!({}))).await;
    managed.expect(400, "PUT", "/api/parameters/policy/%2F/p", Some(json!({"value": {}}))).await;
    managed.expect(204, "DELETE", path, None).await;
    managed.expect(404, "DELETE", path, None).await;
    managed.expect(204, "DELETE", "/api/parameters/operator_policy/%2F/bound", None).await;
    managed.expect(204, "DELETE", "/api/parameters/vhost-limits/%2F/limits", None).await;
    assert_eq!(managed.get("/api/parameters").await, json!([]));
}

#[tokio::test]
async fn global_parameters_are_of_the_whole_broker() {
    let managed = Managed::start().await;
    assert_eq!(managed.get("/api/global-parameters/cluster_name").await["value"], "nexo");
    managed.expect(201, "PUT", "/api/global-parameters/mine", Some(json!({"value": [1, 2]}))).await;
    assert_eq!(managed.get("/api/global-parameters/mine").await, json!({"name": "mine", "value": [1, 2]}));
    managed.expect(204, "PUT", "/api/global-parameters/cluster_name", Some(json!({"value": "ours"}))).await;
    assert_eq!(managed.get("/api/overview").await["cluster_name"], "ours");
    managed.expect(204, "DELETE", "/api/global-parameters/mine", None).await;
    managed.expect(404, "DELETE", "/api/global-parameters/mine", None).await;
}
