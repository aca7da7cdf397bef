//! Job queues over HTTP, as whoever writes a client by hand meets them: the whole way of a job, and refusals that help.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::api::Managed;
use serde_json::{Value, json};

const DEALS: &str = "/api/jobs/queues/%2F/deals";
const API: &str = "/api/jobs/budgets/%2F/api";

/// A job queue with a budget of twenty tokens.
async fn with_deals(settings: Value) -> Managed {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", API, Some(json!({}))).await;
    let mut all = json!({"budget": "api", "costs": {"search": 5, "count": 0}});
    all.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    managed.expect(201, "PUT", DEALS, Some(all)).await;
    managed
}

/// Why something was refused, in words.
async fn refused(managed: &Managed, status: u16, method: &str, path: &str, body: Value) -> String {
    let body = (!body.is_null()).then_some(body);
    let reply = managed.expect(status, method, path, body).await;
    reply.json()["reason"].as_str().expect("a reason is a text").to_owned()
}

async fn take(managed: &Managed) -> Value {
    let asked = Some(json!({"worker": "w", "wait_ms": 20_000}));
    managed.expect(200, "POST", &format!("{DEALS}/take"), asked).await.json()["jobs"][0].clone()
}

#[tokio::test]
async fn two_ask_one_works_and_each_gets_its_own_answer() {
    let managed = with_deals(json!({})).await;
    managed.expect(201, "PUT", "/api/queues/%2F/answers", Some(json!({"durable": true}))).await;
    let ask = async |id: &str, filter: &str, reply_to: Value| {
        let waiter = json!({"id": id, "class": "pro", "filter": filter, "reply_to": reply_to});
        let asked =
            json!({"type": "search", "key": "phones", "payload": {"category": "phones"}, "waiter": waiter});
        managed.expect(200, "POST", &format!("{DEALS}/ask"), Some(asked)).await.json()["state"].clone()
    };
    assert_eq!(ask("call", "item.discount >= 30", Value::Null).await, "created");
    assert_eq!(ask("queue", "", json!("answers")).await, "joined");
    let job = take(&managed).await;
    assert_eq!((&job["cost"], &job["waiters"]), (&json!(5), &json!(2)));
    assert_eq!(managed.get(API).await["reserved"], 5);
    let done = json!({"result": [{"discount": 40}, {"discount": 1}], "used": 5, "tokens_left": 12});
    let receipt = job["receipt"].as_str().unwrap();
    managed.expect(204, "POST", &format!("/api/jobs/receipt/{receipt}/complete"), Some(done)).await;
    let answer = managed.get(&format!("{DEALS}/answers/call?wait_ms=20000")).await;
    assert_eq!(answer["answer"]["result"], json!([{"discount": 40}]));
    let is_there = |queue: &Value| queue["messages"] == 1;
    managed.until("/api/queues/%2F/answers", is_there).await;
    let get = json!({"count": 10, "ackmode": "ack_requeue_false", "encoding": "auto"});
    let messages = managed.expect(200, "POST", "/api/queues/%2F/answers/get", Some(get)).await.json();
    let properties = &messages[0]["properties"];
    assert_eq!(
        (&properties["content_type"], &properties["headers"]["waiter"], &properties["delivery_mode"]),
        (&json!("application/json"), &json!("queue"), &json!(2))
    );
    assert_eq!(properties["headers"].get("content-type"), None);
    let body: Value = serde_json::from_str(messages[0]["payload"].as_str().unwrap()).unwrap();
    assert_eq!((&body["waiter"], &body["status"]), (&json!("queue"), &json!("done")));
    assert_eq!(body["result"].as_array().unwrap().len(), 2);
    let budget = managed.get(API).await;
    assert_eq!(
        (&budget["tokens"], &budget["reserved"], &budget["used_total"]),
        (&json!(12), &json!(0), &json!(5))
    );
}

#[tokio::test]
async fn figures_are_told_by_type_and_by_key_too() {
    let managed = with_deals(json!({})).await;
    let ask = async |kind: &str, key: &str, waiter: Value| {
        let mut asked = json!({"type": kind, "key": key});
        if !waiter.is_null() {
            asked["waiter"] = json!({"id": waiter, "class": "pro"});
        }
        managed.expect(200, "POST", &format!("{DEALS}/ask"), Some(asked)).await;
    };
    ask("search", "phones", json!("first")).await;
    ask("search", "books", Value::Null).await;
    ask("count", "all", Value::Null).await;
    let job = take(&managed).await;
    assert_eq!(job["key"], "phones");
    let receipt = job["receipt"].as_str().unwrap();
    let done = json!({"result": [], "used": 3});
    managed.expect(204, "POST", &format!("/api/jobs/receipt/{receipt}/complete"), Some(done)).await;
    ask("search", "phones", json!("second")).await;

    let queue = managed.get(DEALS).await;
    assert_eq!((&queue["pending"], &queue["tokens_today"]), (&json!(2), &json!(3)));
    let counted = |row: &Value| {
        let counts = [
            &row["pending"],
            &row["done"],
            &row["tokens"],
            &row["tokens_today"],
            &row["cache_hits"],
            &row["waits"]["count"],
            &row["runs"]["count"],
            &row["responses"]["count"],
        ];
        counts.map(|count| count.as_u64().unwrap())
    };
    assert_eq!(counted(&queue["by_type"]["search"]), [1, 1, 3, 3, 1, 1, 1, 2]);
    assert_eq!(counted(&queue["by_type"]["count"]), [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(counted(&queue["by_key"]["phones"]), [0, 1, 3, 3, 1, 1, 1, 2]);
    assert_eq!(counted(&queue["by_key"]["books"]), [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(queue["by_key"]["phones"]["oldest_age_ms"], Value::Null);
    assert!(queue["by_key"]["books"]["oldest_age_ms"].is_u64());
    assert!(queue["by_type"]["search"]["oldest_age_ms"].is_u64());
    assert!(queue["by_type"]["search"]["responses"]["mean_ms"].is_u64());
}

#[tokio::test]
async fn a_job_without_a_payload_has_the_cost_of_its_type() {
    let managed = with_deals(json!({})).await;
    let asked = json!({"type": "search", "key": "all"});
    managed.expect(200, "POST", &format!("{DEALS}/ask"), Some(asked)).await;
    assert_eq!(take(&managed).await["cost"], 5);
}

#[tokio::test]
async fn settings_that_are_not_given_stay_and_null_takes_them_away() {
    let managed = with_deals(json!({"lease_ms": 7000})).await;
    managed.expect(204, "PUT", DEALS, Some(json!({"max_attempts": 2}))).await;
    assert_eq!(managed.get(DEALS).await["settings"]["lease_ms"], 7000);
    let settings = async || managed.get(API).await["settings"].clone();
    managed.expect(204, "PUT", API, Some(json!({"capacity": 60}))).await;
    let refill = json!({"tokens": 5, "every_ms": 1000});
    managed.expect(204, "PUT", API, Some(json!({"refill": refill}))).await;
    assert_eq!(settings().await, json!({"initial": 20, "capacity": 60, "refill": refill}));
    managed.expect(204, "PUT", API, Some(json!({"capacity": null, "refill": null}))).await;
    assert_eq!(settings().await, json!({"initial": 20, "capacity": null, "refill": null}));
}

#[tokio::test]
async fn a_waiter_that_asks_for_another_key_is_told_of_both() {
    let managed = with_deals(json!({})).await;
    let ask = format!("{DEALS}/ask");
    let asked = |key: &str| json!({"key": key, "waiter": {"id": "w", "class": "pro"}});
    managed.expect(200, "POST", &ask, Some(asked("phones"))).await;
    let said = refused(&managed, 409, "POST", &ask, asked("toys")).await;
    assert!(said.contains("'phones'") && said.contains("'toys'") && said.contains("'w'"), "{said}");
}

#[tokio::test]
async fn a_refusal_names_what_is_wrong() {
    let managed = with_deals(json!({"classes": {"vip": 0}})).await;
    let ask = format!("{DEALS}/ask");
    let waiter = json!({"id": "w", "class": "vip"});
    let cases = [
        (400, "PUT", DEALS, json!({"lease_ms": "5s"}), "lease_ms must be a whole number; it is \"5s\""),
        (400, "PUT", DEALS, json!({"paused": "no"}), "paused must be true or false; it is \"no\""),
        (400, "PUT", DEALS, json!({"retry": {"base_ms": 1, "factor": 0.5}}), "from 1 to 1000; it is 0.5"),
        (400, "PUT", DEALS, json!({"budget": "none"}), "there is no budget 'none'"),
        (400, "POST", &ask, json!({"waiter": waiter}), "key is missing"),
        (400, "POST", &ask, json!({"key": "k", "waiter": {"class": "vip"}}), "id is missing"),
        (400, "POST", &ask, json!({"key": "k", "wait_ms": 500}), "wait_ms needs a waiter"),
        (400, "POST", &ask, json!({"key": "k", "waiter": {"id": "w"}}), "a waiter without a class"),
        (404, "GET", "/api/jobs/queues/%2F/none", Value::Null, "there is no job queue 'none'"),
        (404, "GET", "/api/jobs/queues/%2F/none/pending", Value::Null, "there is no job queue 'none'"),
        (404, "GET", "/api/jobs/budgets/%2F/none", Value::Null, "there is no budget 'none'"),
        (
            400,
            "GET",
            "/api/jobs/tokens?budge=api",
            Value::Null,
            "'budge' is not known here; known are since_ms",
        ),
        (400, "GET", "/api/jobs/tokens?max=few", Value::Null, "max must be a whole number"),
        (400, "GET", "/api/jobs/queues/%2F/deals/pending?min=1", Value::Null, "'min' is not known here"),
        (400, "GET", "/api/jobs/queues/%2F/deals/answers/w?wait=1", Value::Null, "known are wait_ms"),
    ];
    for (status, method, path, body, words) in cases {
        let said = refused(&managed, status, method, path, body).await;
        assert!(said.contains(words), "{method} {path}: {said}");
    }
}

#[tokio::test]
async fn why_a_score_cannot_be_evaluated_is_shown() {
    let managed = with_deals(json!({"score": "100 / (waiters - 1)"})).await;
    let shown = managed.get(DEALS).await;
    assert_eq!((&shown["score_error"], &shown["score_failures"]), (&Value::Null, &json!(0)));
    let asked = json!({"key": "phones", "waiter": {"id": "w"}});
    managed.expect(200, "POST", &format!("{DEALS}/ask"), Some(asked)).await;
    let shown = managed.until(DEALS, |shown| shown["score_failures"] != 0).await;
    let error = shown["score_error"].as_str().unwrap();
    assert!(error.starts_with("job 0: ") && error.contains("zero"), "{error}");
}

#[tokio::test]
async fn a_worker_that_wants_no_job_or_too_many_is_told_so() {
    let managed = with_deals(json!({})).await;
    for max in [0, 1_001] {
        let said = refused(&managed, 400, "POST", &format!("{DEALS}/take"), json!({"max": max})).await;
        assert!(said.contains("max is a number from 1 to 1000"), "{said}");
    }
}

#[tokio::test]
async fn a_receipt_that_no_longer_holds_says_why() {
    let managed = with_deals(json!({})).await;
    let asked = json!({"type": "search", "key": "phones"});
    managed.expect(200, "POST", &format!("{DEALS}/ask"), Some(asked)).await;
    let receipt = take(&managed).await["receipt"].as_str().unwrap().to_owned();
    let give_back = format!("/api/jobs/receipt/{receipt}/return");
    let said = refused(&managed, 400, "POST", &give_back, json!({"used": 5})).await;
    assert!(said.contains("'used' is not known here; this takes no fields"), "{said}");
    managed.expect(204, "POST", &give_back, None).await;
    let complete = format!("/api/jobs/receipt/{receipt}/complete");
    let said = refused(&managed, 409, "POST", &complete, json!({"result": 1})).await;
    assert!(said.contains("it was given back, failed or took too long"), "{said}");
}
