//! Schedules over the management API: set, shown, run, paused, deleted, and carried by definitions.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::api::{Managed, column};
use serde_json::{Value, json};

const ONE: &str = "/api/nexo/schedules/%2F/beat";

async fn with_queue() -> Managed {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(json!({"durable": true}))).await;
    managed
}

fn yearly() -> Value {
    json!({
        "cron": "0 9 1 1 *", "time_zone": "Europe/Berlin", "queue": "q", "body": "tick", "content_type": "text/plain",
        "headers": {"kind": "test", "number": 5}, "priority": 4, "catch_up": "all", "catch_up_max": 7,
        "until": "2199-12-31T00:00:00Z", "max_runs": 9, "description": "why",
    })
}

#[tokio::test]
async fn a_schedule_is_set_shown_listed_and_deleted() {
    let managed = with_queue().await;
    managed.expect(201, "PUT", ONE, Some(yearly())).await;
    managed.expect(204, "PUT", ONE, Some(yearly())).await;
    let shown = managed.get(ONE).await;
    for (name, value) in yearly().as_object().unwrap() {
        let expected = if name == "headers" { json!({"kind": "test", "number": "5"}) } else { value.clone() };
        assert_eq!(shown[name], expected, "{name}");
    }
    assert_eq!((&shown["vhost"], &shown["runs"], &shown["paused"]), (&json!("/"), &json!(0), &json!(false)));
    assert!(shown["next"].as_str().unwrap().ends_with("-01-01T08:00:00Z"), "{shown}");
    assert_eq!(column(&managed.get("/api/nexo/schedules").await, "name"), ["beat"]);
    assert_eq!(managed.get("/api/nexo/schedules/%2F?columns=name").await, json!([{"name": "beat"}]));
    managed.expect(204, "PUT", ONE, Some(shown)).await;
    managed.expect(404, "GET", "/api/nexo/schedules/none", None).await;
    managed.expect(404, "PUT", "/api/nexo/schedules/none/s", Some(yearly())).await;
    managed.expect(204, "DELETE", ONE, None).await;
    for method in ["GET", "DELETE"] {
        managed.expect(404, method, ONE, None).await;
    }
}

#[tokio::test]
async fn it_sends_what_amqp_clients_expect() {
    let managed = with_queue().await;
    managed.expect(201, "PUT", ONE, Some(yearly())).await;
    managed.expect(204, "POST", &format!("{ONE}/run"), None).await;
    let published = json!({
        "every_ms": 100, "max_runs": 1, "exchange": "amq.topic", "routing_key": "a.b", "body": "/w==", "body_encoding": "base64",
    });
    let bind = json!({"routing_key": "a.*"});
    managed.expect(201, "POST", "/api/bindings/%2F/e/amq.topic/q/q", Some(bind)).await;
    managed.expect(201, "PUT", "/api/nexo/schedules/%2F/topic", Some(published)).await;
    managed
        .until("/api/nexo/schedules/%2F/topic", |seen| seen["runs"] == 1 && seen["next"] == Value::Null)
        .await;
    let asked = json!({"ackmode": "ack_requeue_false", "count": 9, "encoding": "auto"});
    let got = managed.expect(200, "POST", "/api/queues/%2F/q/get", Some(asked)).await.json();
    let (pushed, published) = (&got[0], &got[1]);
    assert_eq!(
        (&pushed["payload"], &pushed["exchange"], &pushed["routing_key"]),
        (&json!("tick"), &json!(""), &json!("q"))
    );
    let properties = &pushed["properties"];
    assert_eq!(
        (&properties["content_type"], &properties["priority"], &properties["delivery_mode"]),
        (&json!("text/plain"), &json!(4), &json!(2))
    );
    assert_eq!(
        (&properties["headers"]["kind"], &properties["headers"]["x-schedule"]),
        (&json!("test"), &json!("beat"))
    );
    assert_eq!((&published["exchange"], &published["routing_key"]), (&json!("amq.topic"), &json!("a.b")));
    assert_eq!((&published["payload"], &published["payload_encoding"]), (&json!("/w=="), &json!("base64")));
    let shown = managed.get("/api/nexo/schedules/%2F/topic").await;
    assert_eq!(published["properties"]["headers"]["x-scheduled-at"], shown["last_scheduled"]);
    assert_eq!((&shown["body"], &shown["body_encoding"]), (&json!("/w=="), &json!("base64")));
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_the_reason() {
    let managed = with_queue().await;
    let refused = async |change: Value| {
        let mut asked = yearly();
        for (name, value) in change.as_object().unwrap() {
            asked[name] = value.clone();
        }
        let reply = managed.expect(400, "PUT", ONE, Some(asked)).await;
        reply.json()["reason"].as_str().unwrap().to_owned()
    };
    for (change, reason) in [
        (json!({"cron": "0 0 30 2 *"}), "names a moment that never comes"),
        (json!({"cron": "every day"}), "is not a cron expression"),
        (json!({"time_zone": "Mars/Olympus"}), "there is no time zone 'Mars/Olympus'"),
        (json!({"cron": null, "time_zone": null, "every_ms": 99}), "an interval is at least 100 ms"),
        (json!({"cron": null, "time_zone": null, "every_ms": 0}), "an interval is at least 100 ms"),
        (json!({"every_ms": 1000}), "not both"),
        (json!({"queue": "none"}), "queue 'none' does not exist"),
        (json!({"queue": null, "exchange": "none"}), "exchange 'none' does not exist"),
        (json!({"queue": null, "exchange": "amq.rabbitmq.trace"}), "is internal"),
        (json!({"body": "x".repeat(262_145)}), "at most 262144 bytes"),
        (json!({"body": "?", "body_encoding": "base64"}), "not in base64"),
        (json!({"until": "soon"}), "until must be a moment"),
        (json!({"until": "2001-01-01T00:00:00Z"}), "the schedule ends at 2001-01-01T00:00:00Z"),
        (json!({"catch_up": "never"}), "catch_up is 'skip', 'once' or 'all'"),
        (json!({"priority": 256}), "priority is at most 255"),
        (json!({"headers": {"a": []}}), "header a must be a text"),
    ] {
        let said = refused(change).await;
        assert!(said.contains(reason), "{said}");
    }
    assert_eq!(managed.get("/api/nexo/schedules").await, json!([]));
}

#[tokio::test]
async fn who_may_send_may_schedule_and_policymakers_may_stop_it() {
    let managed = with_queue().await;
    let rights =
        [("writer", "management", "^q$"), ("other", "management", "^x$"), ("maker", "policymaker", "")];
    for (user, tag, write) in rights {
        managed
            .expect(201, "PUT", &format!("/api/users/{user}"), Some(json!({"password": user, "tags": tag})))
            .await;
        let rights = json!({"configure": "", "write": write, "read": ""});
        managed.expect(201, "PUT", &format!("/api/permissions/%2F/{user}"), Some(rights)).await;
    }
    let call = async |user: &str, method: &str, path: &str, body: Option<Value>| {
        managed.call_as(user, method, path, body).await
    };
    assert_eq!(call("other", "PUT", ONE, Some(yearly())).await.status, 401);
    assert_eq!(
        call("maker", "PUT", ONE, Some(yearly())).await.status,
        401,
        "a tag gives no right to a queue"
    );
    assert_eq!(call("writer", "PUT", ONE, Some(yearly())).await.status, 201);
    let seen = call("other", "GET", ONE, None).await.json();
    assert_eq!((&seen["set_by"], seen.get("body"), seen.get("headers")), (&json!("writer"), None, None));
    assert_eq!(call("writer", "GET", ONE, None).await.json()["body"], "tick");
    for (method, path) in
        [("DELETE", ONE.to_owned()), ("POST", format!("{ONE}/run")), ("POST", format!("{ONE}/pause"))]
    {
        assert_eq!(call("other", method, &path, None).await.status, 401, "{path}");
    }
    assert_eq!(call("maker", "POST", &format!("{ONE}/run"), None).await.status, 401);
    assert_eq!(call("maker", "POST", &format!("{ONE}/pause"), None).await.status, 204);
    assert_eq!(managed.get(ONE).await["paused"], true);
    // Set again without a word about that, it stays paused.
    assert_eq!(call("writer", "PUT", ONE, Some(yearly())).await.status, 204);
    assert_eq!(
        (&managed.get(ONE).await["paused"], &managed.get(ONE).await["next"]),
        (&json!(true), &Value::Null)
    );
    assert_eq!(call("writer", "POST", &format!("{ONE}/resume"), None).await.status, 204);
    assert_eq!(managed.get(ONE).await["paused"], false);
    assert_eq!(call("maker", "DELETE", ONE, None).await.status, 204);
}

#[tokio::test]
async fn definitions_carry_schedules() {
    let managed = with_queue().await;
    assert_eq!(managed.get("/api/definitions").await.get("nexo_schedules"), None, "RabbitMQ knows of none");
    managed.expect(201, "PUT", ONE, Some(yearly())).await;
    managed.expect(204, "POST", &format!("{ONE}/pause"), None).await;
    let file = managed.get("/api/definitions").await;
    let asked = &file["nexo_schedules"][0];
    assert_eq!(
        (&asked["cron"], &asked["body"], &asked["vhost"]),
        (&json!("0 9 1 1 *"), &json!("tick"), &json!("/"))
    );
    assert_eq!(asked.get("runs"), None, "what has come of it is not carried");
    let two = Managed::start().await;
    two.expect(204, "POST", "/api/definitions", Some(file.clone())).await;
    let (there, here) = (two.get(ONE).await, managed.get(ONE).await);
    for name in
        ["cron", "time_zone", "queue", "body", "headers", "until", "max_runs", "paused", "catch_up_max"]
    {
        assert_eq!(there[name], here[name], "{name}");
    }
    let of_vhost = managed.get("/api/definitions/%2F").await;
    assert_eq!(of_vhost["nexo_schedules"][0].get("vhost"), None, "it may go into any other");
    two.expect(201, "PUT", "/api/vhosts/shop", None).await;
    two.expect(204, "POST", "/api/definitions/shop", Some(of_vhost)).await;
    assert_eq!(two.get("/api/nexo/schedules/shop/beat").await["queue"], "q");
    let mut wrong = file;
    wrong["nexo_schedules"][0]["cron"] = json!("never");
    let reply = two.expect(400, "POST", "/api/definitions", Some(wrong)).await;
    assert!(reply.json()["reason"].as_str().unwrap().starts_with("schedule \"beat\""), "{reply:?}");
}

#[tokio::test]
async fn a_schedule_may_ask_for_a_job() {
    let managed = with_queue().await;
    managed.expect(201, "PUT", "/api/jobs/queues/%2F/deals", Some(json!({}))).await;
    let job = json!({
        "queue": "deals", "type": "search", "key": "books", "payload": {"pages": [1, 2]}, "cost": 5, "background": false,
    });
    let asked = |job: &Value| json!({"cron": "0 6 * * *", "time_zone": "Europe/Rome", "job": job});
    managed.expect(201, "PUT", ONE, Some(asked(&job))).await;
    let shown = managed.get(ONE).await;
    assert_eq!((&shown["job"], shown.get("queue"), shown.get("body")), (&job, None, None));
    managed.expect(204, "PUT", ONE, Some(shown)).await;
    managed.expect(204, "POST", &format!("{ONE}/run"), None).await;
    let take = json!({"worker": "w"});
    let taken = managed.expect(200, "POST", "/api/jobs/queues/%2F/deals/take", Some(take)).await.json();
    let taken = &taken["jobs"][0];
    assert_eq!(
        (&taken["type"], &taken["key"], &taken["payload"]),
        (&json!("search"), &json!("books"), &json!({"pages": [1, 2]}))
    );
    let file = managed.get("/api/definitions").await;
    assert_eq!(file["nexo_schedules"][0]["job"], job, "definitions carry it");
    let least = json!({"queue": "deals", "type": "search", "key": "books"});
    managed.expect(204, "PUT", ONE, Some(asked(&least))).await;
    assert_eq!(managed.get(ONE).await["job"]["background"], true, "unless somebody says otherwise");

    for (change, reason) in [
        (json!({"queue": "none"}), "there is no job queue 'none'"),
        (json!({"key": null}), "job key"),
        (json!({"costs": 5}), "'costs' is not known here"),
        (json!({"cost": -1}), "cost must not be negative"),
        (json!({"payload": "x".repeat(262_145)}), "the payload of a job has at most 262144 bytes"),
    ] {
        let mut wrong = job.clone();
        wrong.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let reply = managed.expect(400, "PUT", ONE, Some(asked(&wrong))).await.json();
        assert!(reply["reason"].as_str().unwrap().contains(reason), "{reply}");
    }
    let mut both = asked(&job);
    both["body"] = json!("tick");
    let reply = managed.expect(400, "PUT", ONE, Some(both)).await.json();
    assert!(reply["reason"].as_str().unwrap().contains("sends no message"), "{reply}");

    for (user, write) in [("asker", "^deals$"), ("other", "^q$")] {
        let new = json!({"password": user, "tags": "management"});
        managed.expect(201, "PUT", &format!("/api/users/{user}"), Some(new)).await;
        let rights = json!({"configure": "", "write": write, "read": ""});
        managed.expect(201, "PUT", &format!("/api/permissions/%2F/{user}"), Some(rights)).await;
    }
    assert_eq!(managed.call_as("other", "PUT", ONE, Some(asked(&job))).await.status, 401);
    assert_eq!(managed.call_as("asker", "PUT", ONE, Some(asked(&job))).await.status, 204);
    let seen = managed.call_as("other", "GET", ONE, None).await.json();
    assert_eq!((&seen["job"]["key"], seen["job"].get("payload")), (&json!("books"), None));
}
