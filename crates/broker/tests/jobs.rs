//! Job queues on a running broker: who waits is served when there is something, answers find their way, and a restart changes
//! nothing.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::*;
use nexo_broker::job_rules::{
    AskedState, BudgetConfig, EmptyAnswers, Handed, JobQueueConfig, Overtake, Refill, Reply, Settled,
    TokenReport,
};
use nexo_broker::topology::VhostSpec;
use nexo_broker::{Backoff, Broker, JobCallError, JobRequest, QueueConfig, WaiterAnswer, WaiterRequest};
use nexo_log::disk::{GateDisk, MemoryDisk};
use nexo_types::{BudgetName, JobQueueName, Millis, VhostName};
use serde_json::{Value, json};

const NOW: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(20);

fn deals() -> JobQueueName {
    JobQueueName::new("deals").unwrap()
}

fn api() -> BudgetName {
    BudgetName::new("api").unwrap()
}

fn request(key: &str, waiter: Option<WaiterRequest>) -> JobRequest {
    JobRequest {
        kind: "search".into(),
        key: key.into(),
        payload: Bytes::from_static(b"{}"),
        waiter,
        ..JobRequest::default()
    }
}

fn waiter(id: &str, reply: Reply) -> WaiterRequest {
    WaiterRequest {
        id: id.into(),
        user: "anna".into(),
        class: "pro".into(),
        due: None,
        filter: String::new(),
        reply,
    }
}

async fn with_jobs(config: JobQueueConfig) -> (MemoryDisk, Broker) {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    if config.budget.is_some() {
        let refill = Some(Refill { tokens: 1, every: Millis(20) });
        broker.put_budget(&api(), BudgetConfig { initial: 2, capacity: Some(10), refill }).await.unwrap();
    }
    broker.put_job_queue(&deals(), config).await.unwrap();
    broker.create_queue(&name("answers"), QueueConfig::default()).await.unwrap();
    (disk, broker)
}

async fn take(broker: &Broker, wait: Duration) -> Option<Handed> {
    broker.take_jobs(&deals(), "worker", None, 1, wait).await.unwrap().pop()
}

/// A worker that waits for a job of a queue, and tells the key of the one it gets.
async fn a_waiting_worker(broker: &Broker, queue: &JobQueueName) -> tokio::task::JoinHandle<Option<String>> {
    let (waiting, queue, before) = (broker.clone(), queue.clone(), broker.waiting_workers());
    let worker = tokio::spawn(async move {
        let handed = waiting.take_jobs(&queue, "worker", None, 1, LONG).await.unwrap().pop()?;
        Some(handed.body.key.to_string())
    });
    while broker.waiting_workers() == before {
        tokio::task::yield_now().await;
    }
    worker
}

/// A request that costs so many tokens, by somebody of a class.
fn request_of(key: &str, cost: u64, class: &str) -> JobRequest {
    let waiter = WaiterRequest { class: class.into(), ..waiter(&format!("who wants {key}"), Reply::Call) };
    JobRequest { cost: Some(cost), ..request(key, Some(waiter)) }
}

/// A budget with so many tokens, of which no more come, and queues that it pays for.
async fn with_tokens(initial: u64, queues: &[&JobQueueName]) -> Broker {
    let broker = open(&MemoryDisk::new());
    broker.put_budget(&api(), BudgetConfig { initial, ..BudgetConfig::default() }).await.unwrap();
    for queue in queues {
        let config = JobQueueConfig { budget: Some(api()), ..JobQueueConfig::default() };
        broker.put_job_queue(queue, config).await.unwrap();
    }
    broker
}

/// Holds that time is brought to job queues only when there is something to do.
async fn nobody_polls(broker: &Broker) {
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = broker.job_ticks();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let ticks = broker.job_ticks() - before;
    assert!(ticks <= 3, "the thread of job queues looked {ticks} times for nothing");
}

async fn complete(broker: &Broker, handed: &Handed, result: &Value) {
    let result = Bytes::from(result.to_string());
    broker.complete_job(handed.receipt, result, None, TokenReport::default()).await.unwrap();
}

/// The next answers of the queue for them.
async fn answers(broker: &Broker, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    while found.len() < count {
        for delivery in pop_wait(broker, &name("answers")).await {
            found.push(serde_json::from_slice(&delivery.message.body).unwrap());
        }
    }
    found
}

/// A crash could take both back otherwise: the job would be done again, and end otherwise than its waiter was told.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_answered_before_the_end_of_the_job_is_on_disk() {
    let gate = GateDisk::default();
    let broker = Broker::open_on(Arc::new(gate.clone()), options()).unwrap();
    broker.put_job_queue(&deals(), JobQueueConfig::default()).await.unwrap();
    broker.create_queue(&name("answers"), QueueConfig::default()).await.unwrap();
    let asked = request("phones", Some(waiter("anna", Reply::Queue(name("answers")))));
    broker.ask_job(&deals(), &asked).await.unwrap();
    let handed = take(&broker, LONG).await.unwrap();
    gate.hold_syncs();
    let completing = {
        let broker = broker.clone();
        tokio::spawn(async move { complete(&broker, &handed, &json!([1])).await })
    };
    eventually("the end of the job is on its way", || gate.syncs_held() > 0).await;
    let early = tokio::time::timeout(Duration::from_millis(300), answers(&broker, 1)).await;
    // A broker whose disk is held does not end, whatever becomes of the test.
    gate.open_gate();
    assert!(early.is_err(), "{early:?}");
    completing.await.unwrap();
    assert_eq!(answers(&broker, 1).await[0]["result"], json!([1]));
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_done_once_and_everyone_who_waits_gets_its_own_answer() {
    let (_, broker) = with_jobs(JobQueueConfig::default()).await;
    let queue = Reply::Queue(name("answers"));
    let filter = r#"item.discount >= 30 && !item.title.contains("usato")"#;
    let all = request("phones", Some(waiter("all", queue.clone())));
    let some = WaiterRequest { filter: filter.into(), ..waiter("some", queue.clone()) };
    let none = WaiterRequest { filter: "item.discount > 99".into(), ..waiter("none", queue) };
    let fails = WaiterRequest { filter: "item.price < 10".into(), ..waiter("fails", Reply::Call) };
    let created = broker.ask_job(&deals(), &all).await.unwrap();
    assert_eq!(created.state, AskedState::Created);
    for waiter in [some, none, fails] {
        let asked = broker.ask_job(&deals(), &request("phones", Some(waiter))).await.unwrap();
        assert_eq!((asked.job, asked.state), (created.job, AskedState::Joined));
    }
    let handed = take(&broker, NOW).await.unwrap();
    assert_eq!((handed.waiters, &*handed.body.key), (4, "phones"));
    assert!(take(&broker, NOW).await.is_none(), "it is one job");
    let items = json!([
        { "title": "nuovo", "discount": 40, "price": 5 },
        { "title": "usato", "discount": 50 },
        { "title": "caro", "discount": 10, "price": 500 },
    ]);
    complete(&broker, &handed, &items).await;
    let mut found = answers(&broker, 3).await;
    found.sort_by_key(|answer| answer["waiter"].to_string());
    assert_eq!(found[0]["waiter"], "all");
    assert_eq!(found[0]["result"], items);
    assert_eq!((&found[1]["waiter"], &found[1]["result"]), (&json!("none"), &json!([])));
    assert_eq!((&found[2]["waiter"], &found[2]["result"]), (&json!("some"), &json!([items[0]])));
    let told = broker.job_answer(&deals(), "fails", NOW).await.unwrap().unwrap().to_json();
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["result"], json!([items[0]]));
    let error = told["error"].as_str().unwrap();
    assert!(error.contains("failed on 1 of 3 items; item 1") && error.contains("price"), "{error}");
    let cached = broker.cached_result(&deals(), "phones").unwrap().unwrap().0;
    assert_eq!(serde_json::from_slice::<Value>(&cached).unwrap(), items);
    let again =
        broker.ask_job(&deals(), &request("phones", Some(waiter("late", Reply::Call)))).await.unwrap();
    assert_eq!(again.state, AskedState::Cached);
    assert_eq!(result_of(&broker.job_answer(&deals(), "late", LONG).await.unwrap().unwrap()), items);
    broker.shutdown().await;
}

fn result_of(answer: &WaiterAnswer) -> Value {
    serde_json::from_slice(&answer.result).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_wait_for_jobs_and_callers_for_answers_and_nobody_polls() {
    let (_, broker) = with_jobs(JobQueueConfig::default()).await;
    let worker = {
        let broker = broker.clone();
        tokio::spawn(async move {
            let handed = take(&broker, LONG).await.expect("a job comes");
            complete(&broker, &handed, &json!({ "found": 1 })).await;
        })
    };
    while broker.waiting_workers() == 0 {
        tokio::task::yield_now().await;
    }
    broker.ask_job(&deals(), &request("k", Some(waiter("w", Reply::Call)))).await.unwrap();
    let answer = broker.job_answer(&deals(), "w", LONG).await.unwrap().unwrap();
    assert_eq!(result_of(&answer), json!({ "found": 1 }));
    worker.await.unwrap();
    assert_eq!(broker.waiting_workers(), 0);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_waits_wakes_when_tokens_arrive() {
    let config = JobQueueConfig { budget: Some(api()), ..JobQueueConfig::default() };
    let (_, broker) = with_jobs(config).await;
    for key in ["a", "b", "c", "d"] {
        broker.ask_job(&deals(), &JobRequest { cost: Some(2), ..request(key, None) }).await.unwrap();
    }
    for _ in 0..4 {
        let handed = take(&broker, LONG).await.expect("tokens come, two every 40 ms");
        complete(&broker, &handed, &json!(null)).await;
    }
    let (budget, _) = broker.budget(&api()).unwrap();
    assert_eq!((budget.used_total(), budget.reserved()), (8, 0));
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_polls_while_a_job_waits_behind_a_dear_one_of_another_queue() {
    let other = JobQueueName::new("other").unwrap();
    let broker = with_tokens(3, &[&other, &deals()]).await;
    let (dear, cheap) = (a_waiting_worker(&broker, &deals()).await, a_waiting_worker(&broker, &other).await);
    broker.ask_job(&deals(), &request_of("dear", 5, "business")).await.unwrap();
    broker.ask_job(&other, &request_of("cheap", 1, "free")).await.unwrap();
    nobody_polls(&broker).await;
    assert_eq!(broker.waiting_workers(), 2, "three tokens pay for the cheap one, whose turn it is not");
    broker.grant_tokens(&api(), 2, None).await.unwrap();
    assert_eq!(dear.await.unwrap().unwrap(), "dear");
    nobody_polls(&broker).await;
    broker.grant_tokens(&api(), 1, None).await.unwrap();
    assert_eq!(cheap.await.unwrap().unwrap(), "cheap");
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waited_behind_another_queue_goes_when_nobody_would_work_on_that_one() {
    let other = JobQueueName::new("other").unwrap();
    for is_cancelled in [false, true] {
        let broker = with_tokens(3, &[&other, &deals()]).await;
        let dear = a_waiting_worker(&broker, &deals()).await;
        let cheap = a_waiting_worker(&broker, &other).await;
        let asked = broker.ask_job(&deals(), &request_of("dear", 5, "business")).await.unwrap();
        broker.ask_job(&other, &request_of("cheap", 1, "free")).await.unwrap();
        nobody_polls(&broker).await;
        if is_cancelled {
            broker.cancel_job(asked.job).await.unwrap();
        } else {
            dear.abort();
        }
        assert_eq!(cheap.await.unwrap().unwrap(), "cheap");
        broker.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dear_job_is_paid_at_last_where_cheap_ones_of_another_queue_keep_coming() {
    let other = JobQueueName::new("other").unwrap();
    let broker = with_tokens(0, &[&other, &deals()]).await;
    // All that it ever holds is what the dear one costs.
    let refill = Some(Refill { tokens: 1, every: Millis(5) });
    let config = BudgetConfig { initial: 0, capacity: Some(5), refill };
    broker.put_budget(&api(), config).await.unwrap();
    for number in 0..1_000 {
        broker.ask_job(&other, &request_of(&format!("cheap {number}"), 1, "free")).await.unwrap();
    }
    let cheap = broker.clone();
    let taking = tokio::spawn(async move {
        while !cheap.take_jobs(&other, "worker", None, 1, LONG).await.unwrap().is_empty() {}
    });
    let reserved = || broker.budget(&api()).unwrap().0.reserved();
    eventually("what there was is spent", || reserved() > 5).await;
    broker.ask_job(&deals(), &request_of("dear", 5, "business")).await.unwrap();
    let dear = a_waiting_worker(&broker, &deals()).await;
    assert_eq!(dear.await.unwrap().unwrap(), "dear");
    assert!(reserved() < 1_000, "there are still cheap ones");
    taking.abort();
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_waits_wakes_when_the_clock_puts_a_job_first_that_can_be_paid() {
    let broker = with_tokens(1, &[&deals()]).await;
    broker.ask_job(&deals(), &request_of("dear", 5, "free")).await.unwrap();
    let mut cheap = request_of("cheap", 1, "free");
    // Half an hour ahead is as far as any, and a moment later it is not.
    let due = broker.look_at_jobs(|_, now| now).plus(Millis(30 * 60_000 + 500));
    cheap.waiter.as_mut().unwrap().due = Some(due);
    broker.ask_job(&deals(), &cheap).await.unwrap();
    assert_eq!(a_waiting_worker(&broker, &deals()).await.await.unwrap().unwrap(), "cheap");
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_waits_wakes_when_a_delay_ends_before_tokens_come() {
    for (overtake, cost) in [(Overtake::Never, 1), (Overtake::Affordable, 0)] {
        let broker = with_tokens(cost, &[]).await;
        let refill = Some(Refill { tokens: 10, every: Millis::from_secs(60) });
        broker
            .put_budget(&api(), BudgetConfig { initial: cost, refill, ..BudgetConfig::default() })
            .await
            .unwrap();
        let retry = Backoff::Fixed { delay: Millis(300) };
        let config = JobQueueConfig { budget: Some(api()), overtake, retry, ..JobQueueConfig::default() };
        broker.put_job_queue(&deals(), config).await.unwrap();
        broker.ask_job(&deals(), &request_of("cheap", cost, "business")).await.unwrap();
        let handed = take(&broker, LONG).await.unwrap();
        broker.ask_job(&deals(), &request_of("dear", 5, "free")).await.unwrap();
        let waiting = a_waiting_worker(&broker, &deals()).await;
        broker.fail_job(handed.receipt, "no", Some(0), TokenReport::default(), true).await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap(), "cheap", "{overtake:?}");
        broker.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waited_behind_another_queue_goes_when_that_one_is_less_urgent() {
    let other = JobQueueName::new("other").unwrap();
    let broker = with_tokens(3, &[&other, &deals()]).await;
    let dear = a_waiting_worker(&broker, &deals()).await;
    let cheap = a_waiting_worker(&broker, &other).await;
    broker.ask_job(&deals(), &request_of("dear", 5, "business")).await.unwrap();
    let patient = WaiterRequest { class: "free".into(), ..waiter("patient", Reply::Call) };
    broker.ask_job(&deals(), &request("dear", Some(patient))).await.unwrap();
    broker.ask_job(&other, &request_of("cheap", 1, "pro")).await.unwrap();
    nobody_polls(&broker).await;
    broker.leave_job(&deals(), "who wants dear").await.unwrap();
    assert_eq!(cheap.await.unwrap().unwrap(), "cheap");
    dear.abort();
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_job_that_can_never_be_paid_is_told() {
    for overtake in [Overtake::Never, Overtake::Affordable] {
        let broker = with_tokens(3, &[]).await;
        let config = JobQueueConfig { budget: Some(api()), overtake, ..JobQueueConfig::default() };
        broker.put_job_queue(&deals(), config).await.unwrap();
        // More of them than one take has fail.
        for number in 0..150 {
            let dear = request_of(&number.to_string(), 8, "free");
            broker.ask_job(&deals(), &dear).await.unwrap();
        }
        let worker = a_waiting_worker(&broker, &deals()).await;
        let smaller = BudgetConfig { initial: 3, capacity: Some(5), refill: None };
        broker.put_budget(&api(), smaller).await.unwrap();
        for number in [0, 149] {
            let waiter = format!("who wants {number}");
            let answer = broker.job_answer(&deals(), &waiter, LONG).await.unwrap().unwrap();
            assert_eq!(answer.status, "failed", "{overtake:?}");
            assert!(answer.error.unwrap().contains("never holds more than 5"));
        }
        nobody_polls(&broker).await;
        worker.abort();
        broker.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_most_urgent_job_goes_first_also_when_all_scores_are_to_be_found() {
    let (disk, broker) = with_jobs(JobQueueConfig::default()).await;
    broker.ask_job(&deals(), &request_of("urgent", 0, "business")).await.unwrap();
    let asking = (0..8).map(|part| {
        let broker = broker.clone();
        tokio::spawn(async move {
            for number in 0..500 {
                let asked = request_of(&format!("free {part} {number}"), 0, "free");
                broker.ask_job(&deals(), &asked).await.unwrap();
            }
        })
    });
    for task in asking.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let first = async |broker: &Broker| {
        let handed = take(broker, NOW).await.expect("it is told that there is none only if there is none");
        broker.give_back_job(handed.receipt).await.unwrap();
        handed.body.key.to_string()
    };
    for score in ["class", "class * 2", "class * 3 + waiters"] {
        let config = JobQueueConfig { score: Some(score.into()), ..JobQueueConfig::default() };
        broker.put_job_queue(&deals(), config).await.unwrap();
        assert_eq!(first(&broker).await, "urgent", "{score}");
    }
    broker.shutdown().await;
    let broker = open(&disk);
    assert_eq!(first(&broker).await, "urgent");
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_goes_while_it_waits_takes_no_job_with_it() {
    let (_, broker) = with_jobs(JobQueueConfig::default()).await;
    for _ in 0..50 {
        let waiting = broker.clone();
        let gone = tokio::spawn(async move { take(&waiting, LONG).await });
        while broker.waiting_workers() == 0 {
            tokio::task::yield_now().await;
        }
        let asking = broker.clone();
        let asked = tokio::spawn(async move { asking.ask_job(&deals(), &request("k", None)).await });
        gone.abort();
        let served = gone.await.ok().flatten();
        asked.await.unwrap().unwrap();
        let handed = match served {
            Some(handed) => handed,
            None => take(&broker, LONG).await.expect("it is there for another"),
        };
        assert_eq!(handed.attempt, 1, "and was handed to nobody");
        broker.cancel_job(handed.receipt.job).await.unwrap();
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_ends_by_time_alone_and_the_job_comes_back() {
    let config = JobQueueConfig { lease: Millis(30), max_attempts: 2, ..JobQueueConfig::default() };
    let (_, broker) = with_jobs(config).await;
    broker.ask_job(&deals(), &request("k", Some(waiter("w", Reply::Call)))).await.unwrap();
    let first = take(&broker, NOW).await.unwrap();
    let second = take(&broker, LONG).await.expect("its lease ends");
    assert_eq!((second.receipt.job, second.attempt), (first.receipt.job, 2));
    let answer = broker.job_answer(&deals(), "w", LONG).await.unwrap().unwrap();
    assert_eq!(answer.status, "failed");
    assert_eq!(answer.error.unwrap(), "worker 'worker' did not finish in time");
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_leases_budgets_and_results_outlive_a_restart() {
    let config = JobQueueConfig { budget: Some(api()), ..JobQueueConfig::default() };
    let (disk, broker) = with_jobs(config).await;
    for key in ["done", "held", "waits"] {
        let asked = request(key, Some(waiter(key, Reply::Queue(name("answers")))));
        broker.ask_job(&deals(), &JobRequest { cost: Some(1), ..asked }).await.unwrap();
    }
    let done = take(&broker, LONG).await.unwrap();
    complete(&broker, &done, &json!([1])).await;
    let held = take(&broker, LONG).await.unwrap();
    let progress = Some(Bytes::from_static(b"{\"percent\":50}"));
    broker.extend_job(held.receipt, Some(Millis::from_secs(600)), progress).await.unwrap();
    assert_eq!(answers(&broker, 1).await[0]["waiter"], "done");
    let before = broker.look_at_jobs(nexo_core::machine::Machine::outline);
    broker.shutdown().await;

    let broker = open(&disk);
    let after = broker.look_at_jobs(nexo_core::machine::Machine::outline);
    assert_eq!(after, before);
    assert_eq!(take(&broker, LONG).await.unwrap().body.key.as_ref(), "waits");
    complete(&broker, &held, &json!([2])).await;
    assert_eq!(answers(&broker, 1).await[0]["waiter"], "held");
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_told_and_an_empty_answer_may_stay_away() {
    let config = JobQueueConfig { empty_answers: EmptyAnswers::Skip, ..JobQueueConfig::default() };
    let (_, broker) = with_jobs(config).await;
    let queue = Reply::Queue(name("answers"));
    let nothing = WaiterRequest { filter: "false".into(), ..waiter("nothing", queue.clone()) };
    broker.ask_job(&deals(), &request("k", Some(nothing))).await.unwrap();
    let handed = take(&broker, NOW).await.unwrap();
    complete(&broker, &handed, &json!([1])).await;
    broker.ask_job(&deals(), &request("none", Some(waiter("unfiltered", queue.clone())))).await.unwrap();
    let handed = take(&broker, NOW).await.unwrap();
    let spaced = Bytes::from_static(b" [ ]\n");
    broker.complete_job(handed.receipt, spaced, None, TokenReport::default()).await.unwrap();
    broker.ask_job(&deals(), &request("bad", Some(waiter("unlucky", queue)))).await.unwrap();
    let handed = take(&broker, NOW).await.unwrap();
    let settled =
        broker.fail_job(handed.receipt, "no such category", None, TokenReport::default(), false).await;
    assert_eq!(settled, Ok(Settled::Finished));
    let told = answers(&broker, 1).await.remove(0);
    assert_eq!(
        (&told["waiter"], &told["status"]),
        (&json!("unlucky"), &json!("failed")),
        "and no other came"
    );
    assert_eq!(told["error"], "no such category");
    let nothing = broker.job_answer(&deals(), "nothing", NOW).await.unwrap().unwrap();
    assert_eq!(result_of(&nothing), json!([]));
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_refused_with_a_reason_and_the_rest_goes_on() {
    let config = JobQueueConfig {
        budget: Some(api()),
        costs: [("search".into(), "payload.count * 2".into())].into(),
        ..JobQueueConfig::default()
    };
    let (_, broker) = with_jobs(config).await;
    let ask = async |change: &dyn Fn(&mut JobRequest)| {
        let mut asked = request("k", Some(waiter("w", Reply::Call)));
        asked.payload = Bytes::from_static(b"{\"count\": 2}");
        change(&mut asked);
        broker.ask_job(&deals(), &asked).await.unwrap_err().to_string()
    };
    let mut refused = Vec::new();
    refused.push(ask(&|asked| asked.payload = Bytes::from_static(b"{")).await);
    refused.push(ask(&|asked| asked.payload = Bytes::from_static(b"{}")).await);
    refused.push(ask(&|asked| asked.payload = Bytes::from_static(b"{\"count\": -1}")).await);
    refused.push(ask(&|asked| asked.cost = Some(11)).await);
    refused.push(ask(&|asked| asked.waiter.as_mut().unwrap().filter = "item.".into()).await);
    refused.push(ask(&|asked| asked.waiter.as_mut().unwrap().class = "gold".into()).await);
    refused.push(ask(&|asked| asked.waiter.as_mut().unwrap().reply = Reply::Queue(name("no"))).await);
    refused.push(ask(&|asked| asked.key.clear()).await);
    let expected = [
        "JSON",
        "count",
        "it is -2",
        "never holds more than 10",
        "the filter",
        "no class 'gold'",
        "'no' does not exist",
        "key",
    ];
    for (said, word) in refused.iter().zip(expected) {
        assert!(said.contains(word), "{said:?} says nothing of {word:?}");
    }
    let mut asked = request("k", None);
    asked.payload = Bytes::from_static(b"{\"count\": 1}");
    broker.ask_job(&deals(), &asked).await.unwrap();
    assert_eq!(take(&broker, LONG).await.unwrap().cost, 2);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_queue_that_is_deleted_tells_everyone_who_waits() {
    let (_, broker) = with_jobs(JobQueueConfig::default()).await;
    for (key, id, reply) in [
        ("running", "running in a queue", Reply::Queue(name("answers"))),
        ("pending", "pending in a queue", Reply::Queue(name("answers"))),
        ("pending", "in a call", Reply::Call),
    ] {
        broker.ask_job(&deals(), &request(key, Some(waiter(id, reply)))).await.unwrap();
        if key == "running" {
            take(&broker, NOW).await.unwrap();
        }
    }
    broker.ask_job(&deals(), &request("background", None)).await.unwrap();
    let waiting = broker.clone();
    let waiting = tokio::spawn(async move { waiting.job_answer(&deals(), "in a call", LONG).await });
    // It waits, or comes too late: either way it is told.
    tokio::time::sleep(Duration::from_millis(50)).await;
    broker.delete_job_queue(&deals()).await.unwrap();
    let mut told = answers(&broker, 2).await;
    told.sort_by_key(|answer| answer["waiter"].to_string());
    assert_eq!(told.iter().map(|answer| &answer["status"]).collect::<Vec<_>>(), ["cancelled", "cancelled"]);
    assert_eq!(
        (&told[0]["waiter"], &told[1]["waiter"]),
        (&json!("pending in a queue"), &json!("running in a queue"))
    );
    match tokio::time::timeout(Duration::from_secs(5), waiting).await.expect("it is told at once").unwrap() {
        Ok(answer) => assert_eq!(answer.unwrap().status, "cancelled"),
        Err(error) => assert!(error.to_string().contains("was deleted while this call waited"), "{error}"),
    }
    assert!(broker.look_at_jobs(|jobs, _| jobs.queue(&deals()).is_none()));
    let again = broker.delete_job_queue(&deals()).await.unwrap_err();
    assert!(again.to_string().contains("there is no job queue 'deals'"), "{again}");
    broker.put_job_queue(&deals(), JobQueueConfig::default()).await.unwrap();
    broker.ask_job(&deals(), &request("k", Some(waiter("in a call", Reply::Call)))).await.unwrap();
    broker.shutdown().await;
}

/// Eight patterns that try hundreds of parts at each byte of a text.
fn endless_filter() -> String {
    let pattern =
        |at: usize| format!("item.t.matches('(?-u:[a-h]{{1,{}}}[a-g]{{1,{}}}[0-9p-z])')", 300 + at, 150 + at);
    (0..8).map(pattern).collect::<Vec<_>>().join(" || ")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_takes_too_much_work_is_told_so_and_holds_up_nobody() {
    let (_, broker) = with_jobs(JobQueueConfig::default()).await;
    let light = JobQueueName::new("light").unwrap();
    broker.put_job_queue(&light, JobQueueConfig::default()).await.unwrap();
    broker.create_queue(&name("heavy answers"), QueueConfig::default()).await.unwrap();
    let queue = Reply::Queue(name("heavy answers"));
    for number in 0..3 {
        let filter = format!("{} || item.t == '{number}'", endless_filter());
        let heavy = WaiterRequest { filter, ..waiter(&format!("heavy {number}"), queue.clone()) };
        broker.ask_job(&deals(), &request("heavy", Some(heavy))).await.unwrap();
    }
    let asks = WaiterRequest { filter: endless_filter(), ..waiter("asks", Reply::Call) };
    broker.ask_job(&deals(), &request("heavy", Some(asks))).await.unwrap();
    let heavy = take(&broker, NOW).await.unwrap();
    let beside = Some(waiter("beside", Reply::Queue(name("answers"))));
    broker.ask_job(&deals(), &request("beside", beside.clone())).await.unwrap();
    let beside_heavy = take(&broker, NOW).await.unwrap();
    broker.ask_job(&light, &request("light", beside)).await.unwrap();
    let in_light = broker.take_jobs(&light, "worker", None, 1, NOW).await.unwrap().remove(0);
    let items: Vec<Value> = (0..50).map(|_| json!({ "t": "abcdefgh".repeat(75) })).collect();
    complete(&broker, &heavy, &json!(items)).await;
    complete(&broker, &in_light, &json!([1])).await;
    complete(&broker, &beside_heavy, &json!([2])).await;
    let told = tokio::time::timeout(LONG, answers(&broker, 2)).await.expect("others have their turn");
    let mut told: Vec<&str> = told.iter().map(|answer| answer["key"].as_str().unwrap()).collect();
    told.sort_unstable();
    assert_eq!(told, ["beside", "light"]);
    let asked = broker.job_answer(&deals(), "asks", Duration::from_secs(120)).await.unwrap().unwrap();
    let error = asked.error.unwrap();
    assert!(error.contains("steps") && error.contains("are left out, of 50"), "{error}");
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_virtual_host_goes_with_its_job_queues_and_who_waits_there_is_told() {
    let (_, broker) = with_jobs(JobQueueConfig::default()).await;
    let shop = VhostName::new("shop").unwrap();
    let there = JobQueueName::at(&shop, "deals").unwrap();
    let refused = broker.put_job_queue(&there, JobQueueConfig::default()).await.unwrap_err();
    assert!(refused.to_string().contains("no virtual host 'shop'"), "{refused}");
    broker.put_vhost(&shop, VhostSpec::default()).await.unwrap();
    assert!(broker.put_job_queue(&there, JobQueueConfig::default()).await.unwrap());
    let waiting = broker.clone();
    let queue = there.clone();
    let waiting = tokio::spawn(async move { waiting.take_jobs(&queue, "w", None, 1, LONG).await });
    while broker.waiting_workers() == 0 {
        tokio::task::yield_now().await;
    }
    broker.delete_vhost(&shop).await.unwrap();
    let told = waiting.await.unwrap().unwrap_err();
    assert!(matches!(told, JobCallError::Refused(_)), "{told}");
    assert!(broker.look_at_jobs(|jobs, _| jobs.queue(&there).is_none() && jobs.queue(&deals()).is_some()));
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_memory_is_short_results_are_forgotten_and_then_requests_refused() {
    let disk = MemoryDisk::new();
    let options = nexo_broker::BrokerOptions { jobs_bytes_max: 20_000, ..options() };
    let broker = open_with(&disk, options);
    broker.put_job_queue(&deals(), JobQueueConfig::default()).await.unwrap();
    let large = json!("x".repeat(10_000));
    for number in 0..5 {
        broker.ask_job(&deals(), &request(&format!("done {number}"), None)).await.unwrap();
        let handed = take(&broker, NOW).await.unwrap();
        complete(&broker, &handed, &large).await;
    }
    let mut refused = None;
    for number in 0..1_000 {
        let mut asked = request(&format!("new {number}"), None);
        asked.payload = Bytes::from(large.to_string());
        if let Err(error) = broker.ask_job(&deals(), &asked).await {
            refused = Some(error.to_string());
            break;
        }
    }
    let refused = refused.expect("there is a bound");
    assert!(refused.contains("may take 20000"), "{refused}");
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_changes_at_the_same_time_none_is_lost() {
    let (_, broker) = with_jobs(JobQueueConfig { budget: Some(api()), ..JobQueueConfig::default() }).await;
    let broker = Arc::new(broker);
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let slow = tokio::spawn({
        let (broker, begun) = (Arc::clone(&broker), std::sync::Mutex::new(Some(begun)));
        async move {
            let change = |before: Option<&JobQueueConfig>| {
                // It has seen the settings; the other comes now.
                if let Some(begun) = begun.lock().unwrap().take() {
                    begun.send(()).unwrap();
                }
                std::thread::sleep(Duration::from_millis(100));
                Ok::<_, Infallible>(JobQueueConfig { lease: Millis(111), ..before.unwrap().clone() })
            };
            broker.change_job_queue(&deals(), change).await
        }
    });
    has_begun.await.unwrap();
    let change = |before: Option<&JobQueueConfig>| {
        Ok::<_, Infallible>(JobQueueConfig { max_attempts: 9, ..before.unwrap().clone() })
    };
    assert_eq!(broker.change_job_queue(&deals(), change).await.unwrap(), Ok(false));
    assert_eq!(slow.await.unwrap().unwrap(), Ok(false));
    let config = broker.look_at_jobs(|jobs, _| Arc::clone(jobs.queue(&deals()).unwrap().config()));
    assert_eq!((config.lease, config.max_attempts, &config.budget), (Millis(111), 9, &Some(api())));

    // Budgets likewise: each of many adds one.
    let add = async |broker: &Broker| {
        let change = |before: Option<&BudgetConfig>| {
            let before = *before.unwrap();
            Ok::<_, Infallible>(BudgetConfig { initial: before.initial + 1, ..before })
        };
        broker.change_budget(&api(), change).await.unwrap().unwrap();
    };
    let adding = (0..4).map(|_| {
        let broker = Arc::clone(&broker);
        tokio::spawn(async move {
            for _ in 0..50 {
                add(&broker).await;
            }
        })
    });
    for task in adding.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(broker.budget(&api()).unwrap().0.config().initial, 2 + 200);
    let unwanted = broker.change_budget(&api(), |_| Err("not now")).await.unwrap();
    assert_eq!((unwanted, broker.budget(&api()).unwrap().0.config().initial), (Err("not now"), 202));
    broker.shutdown().await;
}
