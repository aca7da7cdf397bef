//! Job queues over the native API: work that is asked for and done once, answers, budgets, who may do what, and how it refuses.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use common::{Served, within};
use nexo_access::{NewPassword, PermissionTexts, UserName};
use nexo_broker::access::AccessRecord;
use nexo_broker::{Broker, BrokerOptions};
use nexo_grpc::client::{Client, Credentials};
use nexo_grpc::proto::{self, JobAsked, JobOutcome};
use serde_json::{Value, json};
use tonic::{Code, Status};

/// Calls of one user, on the job queue `deals` unless they say otherwise.
#[derive(Clone)]
struct Caller(Client);

impl Caller {
    async fn put(&self, queue: &str, config: proto::JobQueueConfig) -> Result<bool, Status> {
        let request =
            proto::PutJobQueueRequest { queue: queue.into(), config: Some(config), ..Default::default() };
        Ok(self.0.jobs().put_queue(request).await?.into_inner().created)
    }

    async fn put_budget(&self, config: proto::BudgetConfig) -> Result<bool, Status> {
        let request =
            proto::PutBudgetRequest { budget: "api".into(), config: Some(config), ..Default::default() };
        Ok(self.0.jobs().put_budget(request).await?.into_inner().created)
    }

    async fn ask(&self, request: proto::AskJobRequest) -> Result<proto::AskJobResponse, Status> {
        Ok(within(self.0.jobs().ask(request)).await?.into_inner())
    }

    async fn take(&self, wait_ms: u64) -> Result<Vec<proto::TakenJob>, Status> {
        let request = proto::TakeJobsRequest {
            queue: "deals".into(),
            worker: "w".into(),
            max: 10,
            wait_ms,
            ..Default::default()
        };
        Ok(within(self.0.jobs().take(request)).await?.into_inner().jobs)
    }

    async fn complete(&self, receipt: &str, result: &Value) -> Result<(), Status> {
        let result = Bytes::from(result.to_string());
        let request = proto::CompleteJobRequest { receipt: receipt.into(), result, ..Default::default() };
        self.0.jobs().complete(request).await.map(drop)
    }

    async fn fail(&self, receipt: &str, no_retry: bool) -> Result<Option<u64>, Status> {
        let request = proto::FailJobRequest {
            receipt: receipt.into(),
            error: "no route".into(),
            no_retry,
            ..Default::default()
        };
        Ok(self.0.jobs().fail(request).await?.into_inner().retry_at_ms)
    }

    async fn answer(&self, waiter: &str, wait_ms: u64) -> Result<Option<proto::JobAnswer>, Status> {
        let request = proto::JobAnswerRequest {
            queue: "deals".into(),
            waiter: waiter.into(),
            wait_ms,
            ..Default::default()
        };
        Ok(within(self.0.jobs().answer(request)).await?.into_inner().answer)
    }

    async fn figures(&self) -> Result<proto::JobQueueFigures, Status> {
        let request = proto::GetJobQueueRequest { queue: "deals".into(), keys_max: 10, ..Default::default() };
        Ok(self.0.jobs().get_queue(request).await?.into_inner().queue.unwrap().figures.unwrap())
    }

    async fn budget(&self) -> Result<proto::Budget, Status> {
        let request = proto::GetBudgetRequest { budget: "api".into(), ..Default::default() };
        Ok(self.0.jobs().get_budget(request).await?.into_inner().budget.unwrap())
    }

    async fn job(&self, job: u64) -> Result<proto::Job, Status> {
        let request = proto::GetJobRequest { job, with_result: true, ..Default::default() };
        Ok(self.0.jobs().get_job(request).await?.into_inner().job.unwrap())
    }

    async fn cancel(&self, job: u64) -> Result<(), Status> {
        self.0.jobs().cancel(proto::CancelJobRequest { job, ..Default::default() }).await.map(drop)
    }

    async fn token_log(&self) -> Result<Vec<proto::TokenUse>, Status> {
        Ok(self.0.jobs().token_log(proto::TokenLogRequest::default()).await?.into_inner().uses)
    }
}

fn work(key: &str) -> proto::AskJobRequest {
    proto::AskJobRequest {
        queue: "deals".into(),
        r#type: "search".into(),
        key: key.into(),
        ..Default::default()
    }
}

fn waiter(id: &str) -> proto::JobWaiter {
    proto::JobWaiter { id: id.into(), ..Default::default() }
}

fn wanted(key: &str, id: &str) -> proto::AskJobRequest {
    proto::AskJobRequest { waiter: Some(waiter(id)), ..work(key) }
}

fn read(bytes: &Bytes) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

async fn with_deals() -> (Served, Caller) {
    let served = Served::start().await;
    let caller = Caller(served.client.clone());
    assert!(caller.put("deals", proto::JobQueueConfig::default()).await.unwrap());
    (served, caller)
}

/// A user who may do what these patterns say in "/".
async fn user(served: &Served, name: &str, [configure, write, read]: [&str; 3]) -> Caller {
    let user = UserName::new(name).unwrap();
    let password = NewPassword::Plain(name.as_bytes().to_vec());
    served.logins.add_user(&user, password, BTreeSet::new()).await.unwrap();
    permit(served, name, [configure, write, read]).await;
    Caller(served.client.with(Credentials::password(name, name)))
}

async fn permit(served: &Served, name: &str, [configure, write, read]: [&str; 3]) {
    let user = UserName::new(name).unwrap();
    let [configure, write, read] = [configure, write, read].map(str::to_owned);
    let permissions = PermissionTexts { configure, write, read };
    let record = AccessRecord::SetPermissions { user, vhost: "/".into(), permissions };
    served.broker.change_access(&[record]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_done_once_and_each_waiter_has_its_own_answer() {
    let (served, caller) = with_deals().await;
    served.create("answers", proto::QueueConfig::default()).await;
    let payload = Bytes::from_static(br#"{"q":"phones"}"#);
    let first = proto::AskJobRequest { payload: payload.clone(), ..wanted("phones", "all") };
    let created = caller.ask(first).await.unwrap();
    assert_eq!((created.state(), created.answer), (JobAsked::Created, None));
    let cheap = proto::JobWaiter {
        user: "ann".into(),
        class: "pro".into(),
        due: Some(proto::job_waiter::Due::DueInMs(60_000)),
        filter: "item.price < 10".into(),
        reply_to: "answers".into(),
        ..waiter("cheap")
    };
    let joined = caller.ask(proto::AskJobRequest { waiter: Some(cheap), ..work("phones") }).await.unwrap();
    assert_eq!((joined.job, joined.state()), (created.job, JobAsked::Joined));

    let taken = caller.take(0).await.unwrap();
    assert_eq!(taken.len(), 1, "it is one job");
    let job = &taken[0];
    assert_eq!((job.job, job.attempt, job.waiters), (created.job, 1, 2));
    assert_eq!((&job.receipt, &job.payload), (&format!("v1-{}-1", job.job), &payload));
    assert!(job.due_at_ms.unwrap() > job.created_at_ms + 50_000);
    let late = caller.ask(wanted("phones", "late")).await.unwrap();
    assert_eq!((late.job, late.state()), (created.job, JobAsked::JoinedRunning));

    let items = json!([{ "price": 5 }, { "price": 50 }]);
    caller.complete(&job.receipt, &items).await.unwrap();
    caller.complete(&job.receipt, &items).await.expect("the same once more");
    let answer = caller.answer("all", 0).await.unwrap().unwrap();
    assert_eq!((answer.outcome(), read(&answer.result)), (JobOutcome::Done, items.clone()));
    let answer = caller.answer("cheap", 60_000).await.unwrap().unwrap();
    assert_eq!((read(&answer.result), answer.key.as_str()), (json!([{ "price": 5 }]), "phones"));
    served.until_ready("answers", 1).await;
    let told = read(&served.pop("answers", 1).await.remove(0).body);
    assert_eq!((&told["waiter"], &told["status"]), (&json!("cheap"), &json!("done")));

    let cached =
        caller.ask(proto::AskJobRequest { wait_ms: 60_000, ..wanted("phones", "new") }).await.unwrap();
    assert_eq!(cached.state(), JobAsked::Cached);
    assert_eq!(read(&cached.answer.unwrap().result), items, "without anybody's work");
    let again = caller.ask(wanted("phones", "new")).await.unwrap();
    assert_eq!(again.state(), JobAsked::Known);

    let request =
        proto::JobResultRequest { queue: "deals".into(), key: "phones".into(), ..Default::default() };
    let found = caller.0.jobs().result(request).await.unwrap().into_inner().cached.unwrap();
    assert_eq!(read(&found.result), items);
    assert_eq!(found.until_ms - found.at_ms, 3_600_000);
    let shown = caller.job(created.job).await.unwrap();
    assert_eq!((shown.state(), shown.outcome()), (proto::JobState::Finished, JobOutcome::Done));
    assert_eq!((read(&shown.result), shown.waiters), (items, 4));
    let figures = caller.figures().await.unwrap();
    assert_eq!((figures.created, figures.joined, figures.cache_hits, figures.done), (1, 2, 1, 1));
    assert_eq!((figures.types[0].name.as_str(), figures.keys[0].name.as_str()), ("search", "phones"));
    for row in [&figures.types[0], &figures.keys[0]] {
        let count = |times: Option<proto::JobTimes>| times.unwrap().count;
        assert_eq!((count(row.waits), count(row.runs), count(row.responses)), (1, 1, 4));
        assert_eq!((row.pending, row.oldest_age_ms), (Some(0), None));
        assert_eq!((row.tokens, row.tokens_today), (figures.tokens, figures.tokens_today));
    }
    caller.ask(work("books")).await.unwrap();
    let figures = caller.figures().await.unwrap();
    let books = figures.keys.iter().find(|row| row.name == "books").expect("what waits has a row");
    for row in [&figures.types[0], books] {
        assert_eq!((row.pending, row.oldest_age_ms.is_some()), (Some(1), true));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_wait_for_work_and_callers_for_answers() {
    let (served, caller) = with_deals().await;
    let worker = tokio::spawn({
        let caller = caller.clone();
        async move {
            let job = caller.take(60_000).await.unwrap().remove(0);
            let progress = Some(Bytes::from_static(b"{\"done\":1}"));
            let receipt = job.receipt.clone();
            let request = proto::ExtendJobRequest { receipt, progress, ..Default::default() };
            let until = caller.0.jobs().extend(request).await.unwrap().into_inner().lease_until_ms;
            let shown = caller.job(job.job).await.unwrap();
            assert_eq!((read(&shown.progress), shown.worker.as_str()), (json!({ "done": 1 }), "w"));
            assert_eq!(shown.lease_until_ms, Some(until));
            caller.complete(&job.receipt, &json!("ok")).await.unwrap();
        }
    });
    within(async {
        while served.broker.waiting_workers() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let asked = caller.ask(proto::AskJobRequest { wait_ms: 60_000, ..wanted("k", "w1") }).await.unwrap();
    assert_eq!(read(&asked.answer.unwrap().result), json!("ok"));
    within(worker).await.unwrap();
    assert!(caller.take(0).await.unwrap().is_empty());
    assert_eq!(caller.ask(wanted("other", "w2")).await.unwrap().answer, None);
    assert_eq!(caller.answer("w2", 1).await.unwrap(), None, "it did not wait for ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_most_urgent_goes_first_as_far_as_tokens_reach() {
    let served = Served::start().await;
    let caller = Caller(served.client.clone());
    let config = proto::BudgetConfig { initial: Some(5), capacity: Some(10), refill: None };
    assert!(caller.put_budget(config).await.unwrap());
    let cost = |kind: &str, cost: &str| proto::JobCost { r#type: kind.into(), cost: cost.into() };
    let config = proto::JobQueueConfig {
        budget: Some("api".into()),
        costs: Some(proto::JobCosts { costs: vec![cost("search", "size(payload) * 2"), cost("", "1")] }),
        ..Default::default()
    };
    caller.put("deals", config).await.unwrap();
    let ask = async |key: &str, class: &str, payload: &'static str| {
        let waiter = proto::JobWaiter { class: class.into(), ..waiter(key) };
        let request =
            proto::AskJobRequest { waiter: Some(waiter), payload: Bytes::from(payload), ..work(key) };
        caller.ask(request).await.unwrap().job
    };
    let free = ask("free", "free", "[1]").await;
    let business = ask("business", "business", "[1,2]").await;
    let request = proto::PendingJobsRequest { queue: "deals".into(), ..Default::default() };
    let pending = within(async {
        loop {
            let reply = caller.0.jobs().pending(request.clone()).await.unwrap().into_inner();
            // Scores are found a moment after a job is asked for.
            if reply.jobs.iter().all(|job| job.score.is_some()) {
                return reply;
            }
        }
    })
    .await;
    let order: Vec<(u64, u64)> = pending.jobs.iter().map(|job| (job.job, job.cost)).collect();
    assert_eq!((order, pending.total), (vec![(business, 4), (free, 2)], 2));
    assert!(pending.jobs[0].score < pending.jobs[1].score);

    let taken = caller.take(0).await.unwrap();
    assert_eq!(taken.iter().map(|job| job.job).collect::<Vec<_>>(), [business], "one token is left");
    let budget = caller.budget().await.unwrap();
    assert_eq!((budget.level, budget.reserved, &budget.queues[..]), (1, 4, &["deals".to_owned()][..]));
    let receipt = taken[0].receipt.clone();
    let report = Some(proto::TokenReport { tokens_left: Some(1), ..Default::default() });
    let request = proto::CompleteJobRequest {
        receipt,
        result: Bytes::from_static(b"1"),
        used: Some(3),
        report,
        ..Default::default()
    };
    caller.0.jobs().complete(request).await.unwrap();
    assert!(caller.take(0).await.unwrap().is_empty());
    let waits = tokio::spawn({
        let caller = caller.clone();
        async move { caller.take(60_000).await.unwrap() }
    });
    let request = proto::GrantTokensRequest { budget: "api".into(), tokens: 1, ..Default::default() };
    caller.0.jobs().grant_tokens(request).await.unwrap();
    assert_eq!(within(waits).await.unwrap()[0].job, free, "a token came");
    let report = Some(proto::TokenReport { tokens_left: Some(9), ..Default::default() });
    let request = proto::ReportTokensRequest { budget: "api".into(), report, ..Default::default() };
    caller.0.jobs().report_tokens(request).await.unwrap();
    let budget = caller.budget().await.unwrap();
    assert_eq!((budget.level, budget.used_total, budget.used_today), (7, 3, 3));
    let uses = caller.token_log().await.unwrap();
    assert_eq!(uses.len(), 1);
    assert_eq!((uses[0].job, uses[0].tokens, uses[0].success), (business, 3, true));
    assert_eq!((uses[0].budget.as_str(), uses[0].queue.as_str()), ("api", "deals"));
    let request = proto::TokenLogRequest { since_ms: uses[0].at_ms + 1, ..Default::default() };
    assert!(caller.0.jobs().token_log(request).await.unwrap().into_inner().uses.is_empty());

    let request = proto::DeleteBudgetRequest { budget: "api".into(), ..Default::default() };
    let refused = caller.0.jobs().delete_budget(request.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let dear = proto::AskJobRequest { cost: Some(11), ..work("dear") };
    assert_eq!(caller.ask(dear).await.unwrap_err().code(), Code::FailedPrecondition);
    let delete = proto::DeleteJobQueueRequest { queue: "deals".into(), ..Default::default() };
    caller.0.jobs().delete_queue(delete).await.unwrap();
    caller.0.jobs().delete_budget(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn why_a_score_cannot_be_evaluated_is_told() {
    let (_served, caller) = with_deals().await;
    let score = Some("100 / (waiters - 1)".into());
    caller.put("deals", proto::JobQueueConfig { score, ..Default::default() }).await.unwrap();
    assert_eq!(caller.figures().await.unwrap().score_error, "");
    caller.ask(proto::AskJobRequest { waiter: Some(waiter("w")), ..work("k") }).await.unwrap();
    let figures = within(async {
        loop {
            let figures = caller.figures().await.unwrap();
            if figures.score_failures > 0 {
                return figures;
            }
        }
    })
    .await;
    assert!(figures.score_error.contains("zero"), "{}", figures.score_error);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_fails_comes_back_is_given_back_and_is_cancelled() {
    let (_served, caller) = with_deals().await;
    let retry = Some(proto::Retry { policy: Some(proto::retry::Policy::None(proto::NoRetryDelay {})) });
    let config = proto::JobQueueConfig { retry, max_attempts: Some(2), ..Default::default() };
    assert!(!caller.put("deals", config).await.unwrap(), "it was there");
    caller.ask(wanted("a", "wa")).await.unwrap();
    let job = caller.take(0).await.unwrap().remove(0);
    let request = proto::GiveBackJobRequest { receipt: job.receipt.clone(), ..Default::default() };
    caller.0.jobs().give_back(request).await.unwrap();
    let stale = caller.complete(&job.receipt, &json!(1)).await;
    assert!(matches!(&stale, Err(status) if status.code() == Code::FailedPrecondition), "{stale:?}");
    let job = caller.take(60_000).await.unwrap().remove(0);
    assert!(caller.fail(&job.receipt, false).await.unwrap().is_some(), "it is tried again");
    let job = caller.take(60_000).await.unwrap().remove(0);
    assert_eq!(caller.fail(&job.receipt, false).await.unwrap(), None, "two attempts are all");
    let answer = caller.answer("wa", 0).await.unwrap().unwrap();
    assert_eq!((answer.outcome(), answer.error.as_str()), (JobOutcome::Failed, "no route"));

    caller.ask(wanted("b", "wb")).await.unwrap();
    let job = caller.take(0).await.unwrap().remove(0);
    assert_eq!(caller.fail(&job.receipt, true).await.unwrap(), None, "it is not to be tried again");

    let asked = caller.ask(wanted("c", "wc")).await.unwrap();
    caller.cancel(asked.job).await.unwrap();
    assert_eq!(caller.answer("wc", 0).await.unwrap().unwrap().outcome(), JobOutcome::Cancelled);
    assert_eq!(caller.cancel(asked.job).await.unwrap_err().code(), Code::FailedPrecondition);

    let asked = caller.ask(wanted("d", "wd")).await.unwrap();
    let request = proto::LeaveJobRequest { queue: "deals".into(), waiter: "wd".into(), ..Default::default() };
    caller.0.jobs().leave(request).await.unwrap();
    assert_eq!(caller.job(asked.job).await.unwrap().outcome(), JobOutcome::Cancelled, "nobody waits");
    assert_eq!(caller.answer("wd", 0).await.unwrap_err().code(), Code::NotFound);

    let late = proto::AskJobRequest {
        deadline: Some(proto::ask_job_request::Deadline::DeadlineInMs(1)),
        ..wanted("e", "we")
    };
    caller.ask(late).await.unwrap();
    assert_eq!(caller.answer("we", 60_000).await.unwrap().unwrap().outcome(), JobOutcome::Expired);
}

#[tokio::test]
async fn every_refusal_has_its_code_and_says_why() {
    let (_served, caller) = with_deals().await;
    let refused = |status: Result<proto::AskJobResponse, Status>| {
        let status = status.unwrap_err();
        (status.code(), status.message().to_owned())
    };
    let nowhere = proto::AskJobRequest { queue: "nowhere".into(), ..work("k") };
    let (code, words) = refused(caller.ask(nowhere).await);
    assert_eq!((code, words.as_str()), (Code::NotFound, "there is no job queue 'nowhere'"));
    let elsewhere = proto::AskJobRequest { vhost: "none".into(), ..work("k") };
    assert_eq!(refused(caller.ask(elsewhere).await).0, Code::NotFound);
    for (request, word) in [
        (proto::AskJobRequest { key: String::new(), ..work("k") }, "job key"),
        (proto::AskJobRequest { key: "k".repeat(1_025), ..work("k") }, "job key"),
        (proto::AskJobRequest { r#type: String::new(), ..work("k") }, "job type"),
        (proto::AskJobRequest { payload: Bytes::from_static(b"{"), ..work("k") }, "JSON"),
        (
            proto::AskJobRequest { payload: Bytes::from(vec![b'1'; 262_145]), ..work("k") },
            "payload has at most",
        ),
        (proto::AskJobRequest { wait_ms: 1, ..work("k") }, "wait_ms needs a waiter"),
        (proto::AskJobRequest { wait_ms: 3_600_001, ..wanted("k", "w") }, "wait_ms must be between"),
        (wanted("k", ""), "waiter id"),
        (wanted("k", &"w".repeat(513)), "waiter id"),
    ] {
        let (code, words) = refused(caller.ask(request).await);
        assert_eq!(code, Code::InvalidArgument, "{words}");
        assert!(words.contains(word), "{words}");
    }
    let with = |waiter: proto::JobWaiter| proto::AskJobRequest { waiter: Some(waiter), ..work("k") };
    let filter = proto::JobWaiter { filter: "item.price <".into(), ..waiter("w") };
    let (code, words) = refused(caller.ask(with(filter)).await);
    assert!(code == Code::InvalidArgument && words.contains("the filter"), "{words}");
    let class = proto::JobWaiter { class: "gold".into(), ..waiter("w") };
    let (code, words) = refused(caller.ask(with(class)).await);
    assert!(code == Code::InvalidArgument && words.contains("no class 'gold'; it has business"), "{words}");
    let reply = proto::JobWaiter { reply_to: "nowhere".into(), ..waiter("w") };
    assert_eq!(refused(caller.ask(with(reply)).await).0, Code::NotFound);

    let config = proto::JobQueueConfig { score: Some("class +".into()), ..Default::default() };
    let status = caller.put("deals", config).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("the expression for"), "{status:?}");
    let config = proto::JobQueueConfig { lease_ms: Some(0), ..Default::default() };
    assert!(caller.put("deals", config).await.unwrap_err().message().contains("lease_ms"));
    let config = proto::JobQueueConfig { budget: Some("none".into()), ..Default::default() };
    assert_eq!(caller.put("deals", config).await.unwrap_err().code(), Code::NotFound);
    let config = proto::BudgetConfig { initial: Some(u64::MAX), ..Default::default() };
    assert_eq!(caller.put_budget(config).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(caller.budget().await.unwrap_err().code(), Code::NotFound);

    for (receipt, code) in [
        ("nonsense", Code::InvalidArgument),
        ("7-1", Code::NotFound),
        ("18446744073709551615-1", Code::NotFound),
    ] {
        assert_eq!(caller.fail(receipt, true).await.unwrap_err().code(), code, "{receipt}");
    }
    assert_eq!(caller.job(7).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(caller.answer("nobody", 60_000).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(caller.figures().await.unwrap().created, 0, "nothing of it was done");

    let config = proto::JobQueueConfig { pending_max: Some(1), ..Default::default() };
    caller.put("deals", config).await.unwrap();
    caller.ask(work("one")).await.unwrap();
    assert_eq!(refused(caller.ask(work("two")).await).0, Code::ResourceExhausted);
}

#[tokio::test]
async fn a_job_of_another_virtual_host_is_not_found() {
    let (served, caller) = with_deals().await;
    let asked = caller.ask(wanted("k", "w")).await.unwrap();
    let receipt = caller.take(0).await.unwrap().remove(0).receipt;
    let vhost = proto::PutVhostRequest { vhost: "acme".into(), ..Default::default() };
    served.client.admin().put_vhost(vhost).await.unwrap();
    let mut jobs = served.client.jobs();
    let request = proto::GetJobRequest { job: asked.job, vhost: "acme".into(), ..Default::default() };
    assert_eq!(jobs.get_job(request).await.unwrap_err().code(), Code::NotFound);
    let request = proto::GiveBackJobRequest { receipt, vhost: "acme".into() };
    assert_eq!(jobs.give_back(request).await.unwrap_err().code(), Code::NotFound);
    let request = proto::CancelJobRequest { job: asked.job, vhost: "acme".into() };
    assert_eq!(jobs.cancel(request).await.unwrap_err().code(), Code::NotFound);
    let request = proto::ListJobQueuesRequest { vhost: "acme".into(), ..Default::default() };
    assert!(jobs.list_queues(request).await.unwrap().into_inner().queues.is_empty());
    let request =
        proto::PutJobQueueRequest { queue: "deals".into(), vhost: "acme".into(), ..Default::default() };
    assert!(jobs.put_queue(request).await.unwrap().into_inner().created, "names are by virtual host");
}

#[tokio::test]
async fn lists_come_in_pages() {
    let (served, caller) = with_deals().await;
    let mut jobs = served.client.jobs();
    for name in ["a1", "a2", "a3", "b"] {
        caller.put(name, proto::JobQueueConfig::default()).await.unwrap();
        let request = proto::PutBudgetRequest { budget: name.into(), ..Default::default() };
        jobs.put_budget(request).await.unwrap();
    }
    let (mut queues, mut budgets) = (Vec::new(), Vec::new());
    let (mut queue_token, mut budget_token) = (String::new(), String::new());
    for page in 0..2 {
        let request = proto::ListJobQueuesRequest {
            prefix: "a".into(),
            page_size: 2,
            page_token: queue_token,
            ..Default::default()
        };
        let reply = jobs.list_queues(request).await.unwrap().into_inner();
        queues.extend(reply.queues.into_iter().map(|queue| queue.name));
        queue_token = reply.next_page_token;
        let request = proto::ListBudgetsRequest {
            prefix: "a".into(),
            page_size: 2,
            page_token: budget_token,
            ..Default::default()
        };
        let reply = jobs.list_budgets(request).await.unwrap().into_inner();
        budgets.extend(reply.budgets.into_iter().map(|budget| budget.name));
        budget_token = reply.next_page_token;
        assert_eq!((queue_token.is_empty(), budget_token.is_empty()), (page == 1, page == 1));
    }
    assert_eq!(
        (queues, budgets),
        (["a1", "a2", "a3"].map(str::to_owned).to_vec(), ["a1", "a2", "a3"].map(str::to_owned).to_vec())
    );
    let request = proto::ListJobQueuesRequest { page_size: 1_001, ..Default::default() };
    assert_eq!(jobs.list_queues(request).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_needs_its_permission() {
    let (served, admin) = with_deals().await;
    admin.put_budget(proto::BudgetConfig::default()).await.unwrap();
    served.create("answers", proto::QueueConfig::default()).await;
    let maker = user(&served, "maker", ["^deals$", "", ""]).await;
    let asker = user(&served, "asker", ["", "^deals$", ""]).await;
    let worker = user(&served, "worker", ["", "", "^deals$"]).await;
    let other = user(&served, "other", ["^other", "^other", "^other"]).await;
    let denied = |code: Code| code == Code::PermissionDenied;
    let code = |result: Result<(), Status>| result.err().map_or(Code::Ok, |status| status.code());

    // Who may configure.
    for (caller, may) in [(&maker, true), (&asker, false), (&worker, false), (&other, false)] {
        let put = caller.put("deals", proto::JobQueueConfig::default()).await.map(drop);
        assert_eq!(denied(code(put)), !may);
    }
    let paid = proto::JobQueueConfig { budget: Some("api".into()), ..Default::default() };
    let refused = maker.put("deals", paid.clone()).await.unwrap_err();
    assert!(denied(refused.code()), "the tokens are not his: {refused:?}");
    permit(&served, "maker", ["^deals$", "^api$", ""]).await;
    maker.put("deals", paid).await.unwrap();
    permit(&served, "maker", ["^deals$", "", ""]).await;
    maker.put("deals", proto::JobQueueConfig::default()).await.expect("it pays with it already");
    assert!(denied(maker.put_budget(proto::BudgetConfig::default()).await.unwrap_err().code()));
    let report = proto::ReportTokensRequest { budget: "api".into(), ..Default::default() };
    let grant = proto::GrantTokensRequest { budget: "api".into(), tokens: 1, ..Default::default() };
    let reporter = user(&served, "reporter", ["", "^api$", ""]).await;
    reporter.0.jobs().report_tokens(report.clone()).await.unwrap();
    assert!(denied(reporter.0.jobs().grant_tokens(grant).await.unwrap_err().code()));
    assert!(denied(worker.0.jobs().report_tokens(report).await.unwrap_err().code()));

    // Who may ask.
    for (caller, may) in [(&maker, false), (&asker, true), (&worker, false), (&other, false)] {
        assert_eq!(denied(code(caller.ask(wanted("k", "w")).await.map(drop))), !may);
    }
    let to_queue = proto::JobWaiter { reply_to: "answers".into(), ..waiter("w2") };
    let to_queue = proto::AskJobRequest { waiter: Some(to_queue), ..work("k") };
    let refused = asker.ask(to_queue.clone()).await.unwrap_err();
    assert!(denied(refused.code()) && refused.message().contains("answers"), "{refused:?}");
    permit(&served, "asker", ["", "^(deals|answers)$", ""]).await;
    asker.ask(to_queue).await.unwrap();

    // Who may work.
    for caller in [&maker, &asker, &other] {
        assert!(denied(caller.take(0).await.unwrap_err().code()));
    }
    let job = worker.take(0).await.unwrap().remove(0);
    for caller in [&maker, &asker, &other] {
        assert!(denied(caller.complete(&job.receipt, &json!(1)).await.unwrap_err().code()));
        assert!(denied(caller.fail(&job.receipt, true).await.unwrap_err().code()));
        let request = proto::ExtendJobRequest { receipt: job.receipt.clone(), ..Default::default() };
        assert!(denied(caller.0.jobs().extend(request).await.unwrap_err().code()));
        let request = proto::GiveBackJobRequest { receipt: job.receipt.clone(), ..Default::default() };
        assert!(denied(caller.0.jobs().give_back(request).await.unwrap_err().code()));
    }
    for caller in [&maker, &worker, &other] {
        assert!(denied(caller.cancel(job.job).await.unwrap_err().code()));
    }
    worker.complete(&job.receipt, &json!(1)).await.unwrap();

    // Who may look.
    let look = proto::GetJobRequest { job: job.job, ..Default::default() };
    let pending = proto::PendingJobsRequest { queue: "deals".into(), ..Default::default() };
    for (caller, may_ask, may_work) in [(&maker, false, false), (&asker, true, false), (&worker, false, true)]
    {
        assert_eq!(caller.figures().await.unwrap().done, 1);
        caller.0.jobs().get_job(look.clone()).await.unwrap();
        assert_eq!(denied(code(caller.answer("w", 0).await.map(drop))), !may_ask);
        assert_eq!(denied(code(caller.job(job.job).await.map(drop))), !may_ask, "with its result");
        let request =
            proto::JobResultRequest { queue: "deals".into(), key: "k".into(), ..Default::default() };
        assert_eq!(denied(code(caller.0.jobs().result(request).await.map(drop))), !may_ask);
        assert_eq!(denied(code(caller.0.jobs().pending(pending.clone()).await.map(drop))), !may_work);
        assert!(caller.token_log().await.unwrap().is_empty(), "the budget is none of theirs");
    }
    assert!(denied(other.figures().await.unwrap_err().code()));
    assert!(denied(other.answer("w", 0).await.unwrap_err().code()));
    assert!(denied(other.0.jobs().get_job(look).await.unwrap_err().code()));
    assert!(denied(other.budget().await.unwrap_err().code()));
    let listed = other.0.jobs().list_queues(proto::ListJobQueuesRequest::default()).await.unwrap();
    assert!(listed.into_inner().queues.is_empty());
    assert_eq!(admin.token_log().await.unwrap().len(), 1);
    let delete = proto::DeleteJobQueueRequest { queue: "deals".into(), ..Default::default() };
    assert!(denied(worker.0.jobs().delete_queue(delete.clone()).await.unwrap_err().code()));
    maker.0.jobs().delete_queue(delete).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_ends_when_the_permission_is_taken_away() {
    let (served, admin) = with_deals().await;
    let worker = user(&served, "worker", ["", "", "^deals$"]).await;
    let asker = user(&served, "asker", ["", "^deals$", ""]).await;
    let taking = tokio::spawn(async move { worker.take(3_600_000).await });
    let request = proto::AskJobRequest { wait_ms: 3_600_000, ..wanted("k", "w") };
    within(async {
        while served.broker.waiting_workers() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    permit(&served, "worker", ["", "", ""]).await;
    assert_eq!(within(taking).await.unwrap().unwrap_err().code(), Code::PermissionDenied);
    let asking = tokio::spawn(async move { asker.ask(request).await });
    within(async {
        while admin.figures().await.unwrap().created == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    permit(&served, "asker", ["", "", ""]).await;
    assert_eq!(within(asking).await.unwrap().unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(admin.figures().await.unwrap().pending, 1, "what was asked for stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_wait_do_not_hold_up_the_end() {
    let (mut served, caller) = with_deals().await;
    let taking = tokio::spawn({
        let caller = caller.clone();
        async move { caller.take(3_600_000).await }
    });
    within(async {
        while served.broker.waiting_workers() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    served.begin_stop();
    assert_eq!(within(taking).await.unwrap().unwrap_err().code(), Code::Unavailable);
    drop(caller);
    within(served.stopped()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_jobs_and_results_pass_and_larger_ones_do_not() {
    let (served, caller) = with_deals().await;
    let payload = Bytes::from(format!("\"{}\"", "x".repeat(262_142)));
    for key in 0..20 {
        caller
            .ask(proto::AskJobRequest { payload: payload.clone(), ..work(&key.to_string()) })
            .await
            .unwrap();
    }
    let request = proto::TakeJobsRequest {
        queue: "deals".into(),
        worker: "w".into(),
        max: 1_000,
        ..Default::default()
    };
    // A client with the usual limit of 4 MiB.
    let mut plain = nexo_grpc::client::JobServiceClient::connect(served.url.clone()).await.unwrap();
    let first = plain.take(request.clone()).await.unwrap().into_inner().jobs;
    assert!(first.len() > 5 && first.len() < 20, "{}", first.len());
    let mut all = first.len();
    while all < 20 {
        let next = plain.take(request.clone()).await.unwrap().into_inner().jobs;
        assert!(next.iter().all(|job| job.attempt == 1), "what did not fit counts as not taken");
        assert!(!next.is_empty());
        all += next.len();
    }
    let result = |bytes: usize| Bytes::from(format!("\"{}\"", "x".repeat(bytes - 2)));
    let complete = async |bytes: usize| {
        let receipt = first[0].receipt.clone();
        let request = proto::CompleteJobRequest { receipt, result: result(bytes), ..Default::default() };
        caller.0.jobs().complete(request).await
    };
    let refused = complete((16 << 20) + 1).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("result has at most 16777216 bytes"), "{refused:?}");
    assert_eq!(complete(18 << 20).await.unwrap_err().code(), Code::OutOfRange);
    complete(16 << 20).await.unwrap();
    let request =
        proto::JobResultRequest { queue: "deals".into(), key: first[0].key.clone(), ..Default::default() };
    let cached = caller.0.jobs().result(request).await.unwrap().into_inner().cached.unwrap();
    assert_eq!(cached.result.len(), 16 << 20);
    assert_eq!(served.broker.intake().held_bytes(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_it_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::serve(Broker::open(BrokerOptions::new(dir.path())).unwrap(), None).await;
    let caller = Caller(served.client.clone());
    caller.put("deals", proto::JobQueueConfig { max_attempts: Some(9), ..Default::default() }).await.unwrap();
    let asked = caller.ask(wanted("k", "w")).await.unwrap();
    let taken = caller.take(0).await.unwrap().remove(0);
    let Served { client, .. } = &served;
    drop(client.clone());
    let mut served = served;
    served.begin_stop();
    drop(caller);
    within(served.stopped()).await;

    let served = Served::serve(Broker::open(BrokerOptions::new(dir.path())).unwrap(), None).await;
    let caller = Caller(served.client.clone());
    assert_eq!(caller.job(asked.job).await.unwrap().state(), proto::JobState::Running);
    caller.complete(&taken.receipt, &json!([])).await.unwrap();
    assert_eq!(read(&caller.answer("w", 60_000).await.unwrap().unwrap().result), json!([]));
    let request = proto::GetJobQueueRequest { queue: "deals".into(), ..Default::default() };
    let config =
        caller.0.jobs().get_queue(request).await.unwrap().into_inner().queue.unwrap().config.unwrap();
    assert_eq!(config.max_attempts, Some(9));
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_change_while_jobs_run_and_keep_what_is_reserved() {
    let (served, caller) = with_deals().await;
    caller.put_budget(proto::BudgetConfig::default()).await.unwrap();
    let paid = proto::JobQueueConfig { budget: Some("api".into()), ..Default::default() };
    caller.put("deals", paid).await.unwrap();
    caller.ask(work("phones")).await.unwrap();
    let taken = caller.take(0).await.unwrap().remove(0);
    let before = caller.budget().await.unwrap();
    assert!(taken.cost > 0 && before.reserved == taken.cost, "{before:?}");
    let larger = proto::BudgetConfig { capacity: Some(1_000), ..Default::default() };
    assert!(!caller.put_budget(larger).await.unwrap());
    let after = caller.budget().await.unwrap();
    assert_eq!((after.reserved, after.level), (before.reserved, before.level));
    let request = proto::PutBudgetRequest { budget: "other".into(), ..Default::default() };
    caller.0.jobs().put_budget(request).await.unwrap();
    let other = proto::JobQueueConfig { budget: Some("other".into()), ..Default::default() };
    assert!(!caller.put("deals", other).await.unwrap(), "also for another budget");
    caller.complete(&taken.receipt, &json!([])).await.unwrap();
    let settled = caller.budget().await.unwrap();
    assert_eq!((settled.reserved, settled.used_total), (0, taken.cost));

    let refill = |tokens, every_ms| proto::BudgetConfig {
        refill: Some(proto::TokenRefill { tokens, every_ms }),
        ..Default::default()
    };
    for (config, reason) in [
        (refill(0, 1000), "refill.tokens is 1 at least if refill.every_ms is given, here as 1000"),
        (refill(5, 0), "refill.every_ms is 1 at least"),
    ] {
        let status = caller.put_budget(config).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, reason));
    }
    let report = Some(proto::TokenReport { refill_tokens: Some(5), ..Default::default() });
    let request = proto::ReportTokensRequest { budget: "other".into(), report, ..Default::default() };
    let status = caller.0.jobs().report_tokens(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("budget 'other' has no refill"), "{status:?}");
    drop(served);
}
