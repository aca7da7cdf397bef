//! Job queues and budgets, as format 8 has them, in the story that a fixture tells: a job that is done and cached, one that a worker
//! had, one that waits, one that failed for good, and a queue that is gone. Later ones have figures by type and by key, and a job
//! at work whose queue has another budget by now.

use std::time::Duration;

use bytes::Bytes;
use nexo_broker::job_rules::{
    BudgetConfig, JobQueueConfig, JobState, Outcome, Refill, Reply, TokenReport, WhileRunning,
};
use nexo_broker::{Broker, JobRequest, WaiterRequest};
use nexo_types::{BudgetName, JobQueueName, Timestamp, limits};

use crate::story::ROUNDS;

const TOKENS: u64 = 1_000;

fn queue(round: &str) -> JobQueueName {
    JobQueueName::new(&format!("{round} deals")).unwrap()
}

/// A queue that was deleted.
fn gone(round: &str) -> JobQueueName {
    JobQueueName::new(&format!("{round} gone")).unwrap()
}

fn budget(round: &str) -> BudgetName {
    BudgetName::new(&format!("{round} tokens")).unwrap()
}

/// Nothing of it is forgotten by the time that somebody opens the fixture.
fn config(round: &str) -> JobQueueConfig {
    JobQueueConfig {
        budget: Some(budget(round)),
        window: limits::DELAY_MAX,
        while_running: WhileRunning::Next,
        result_ttl: limits::DELAY_MAX,
        remember: limits::DELAY_MAX,
        score: Some("prefetch ? 500 : due_minutes + class".into()),
        classes: [("".into(), 7), ("gold".into(), -1)].into(),
        costs: [("search".into(), "size(payload.words) * 2".into())].into(),
        pending_max: Some(100),
        ..JobQueueConfig::default()
    }
}

fn request(key: &str) -> JobRequest {
    let waiter = WaiterRequest {
        id: format!("waits for {key}"),
        user: "ann".into(),
        class: "gold".into(),
        due: Some(Timestamp(253_402_300_799_000)),
        filter: "item > 1".into(),
        reply: Reply::Call,
    };
    JobRequest {
        kind: "search".into(),
        key: key.into(),
        payload: Bytes::from_static(b"{\"words\":[1,2,3]}"),
        cost: None,
        deadline: None,
        waiter: Some(waiter),
    }
}

pub(crate) async fn tell(broker: &Broker, round: &str) {
    let refill = Some(Refill { tokens: 1, every: limits::DELAY_MAX });
    let tokens = BudgetConfig { initial: TOKENS, capacity: Some(TOKENS), refill };
    broker.put_budget(&budget(round), tokens).await.unwrap();
    broker.put_job_queue(&queue(round), config(round)).await.unwrap();
    let take = async |queue: &JobQueueName| {
        broker.take_jobs(queue, "worker", None, 1, Duration::ZERO).await.unwrap().remove(0).receipt
    };
    for key in ["done", "failed", "held"] {
        broker.ask_job(&queue(round), &request(key)).await.unwrap();
        let receipt = take(&queue(round)).await;
        match key {
            "done" => {
                let result = Bytes::from_static(b"[1,2,3]");
                broker.complete_job(receipt, result, Some(4), TokenReport::default()).await.unwrap();
            }
            "failed" => {
                let report = TokenReport { tokens_left: Some(900), ..TokenReport::default() };
                broker.fail_job(receipt, "no such word", Some(0), report, false).await.unwrap();
            }
            _ => drop(broker.extend_job(receipt, None, Some(Bytes::from_static(b"\"half\""))).await.unwrap()),
        }
    }
    broker.ask_job(&queue(round), &request("waits")).await.unwrap();
    broker.ask_job(&queue(round), &JobRequest { waiter: None, ..request("background") }).await.unwrap();
    let far = Timestamp(253_402_300_799_000);
    broker.grant_tokens(&budget(round), 5, Some(far)).await.unwrap();
    let gone = gone(round);
    broker.put_job_queue(&gone, JobQueueConfig::default()).await.unwrap();
    broker.ask_job(&gone, &JobRequest { waiter: None, ..request("x") }).await.unwrap();
    broker.delete_job_queue(&gone).await.unwrap();
}

/// The budget that pays for a job at work, and the one that its queue has had since.
fn budgets_of_moved(round: &str) -> [BudgetName; 2] {
    ["first", "second"].map(|text| BudgetName::new(&format!("{round} {text}")).unwrap())
}

fn moved(round: &str) -> JobQueueName {
    JobQueueName::new(&format!("{round} moved")).unwrap()
}

/// What came with the second version of snapshots: they say which budget a job at work has reserved its cost in.
pub(crate) async fn tell_of_budgets(broker: &Broker, round: &str) {
    let tokens = BudgetConfig { initial: TOKENS, capacity: Some(TOKENS), refill: None };
    let [first, second] = budgets_of_moved(round);
    for budget in [&first, &second] {
        broker.put_budget(budget, tokens).await.unwrap();
    }
    let paid_by = |budget| JobQueueConfig { budget: Some(budget), ..config(round) };
    broker.put_job_queue(&moved(round), paid_by(first)).await.unwrap();
    broker.ask_job(&moved(round), &request("moved")).await.unwrap();
    let taken = broker.take_jobs(&moved(round), "worker", None, 1, Duration::ZERO).await.unwrap();
    assert_eq!(taken.len(), 1);
    broker.put_job_queue(&moved(round), paid_by(second)).await.unwrap();
}

/// Checks what snapshots of the second version say.
pub(crate) fn check_figures(broker: &Broker) {
    broker.look_at_jobs(|jobs, now| {
        for round in ROUNDS {
            let figures = jobs.queue(&queue(round)).unwrap().figures();
            let (kind, search) = figures.by_kind().next().unwrap();
            assert_eq!((&**kind, search.done, search.failed, search.waits.count), ("search", 1, 1, 3));
            let (_, done) = figures.by_key().find(|(key, _)| &***key == "done").unwrap();
            assert_eq!((done.done, done.tokens), (1, 4));
            assert_eq!((done.waits.count, done.runs.count, done.responses.count), (1, 1, 1));
            let [first, second] = budgets_of_moved(round).map(|name| jobs.budget(&name).unwrap());
            // Its lease has ended since the fixture was written, or will.
            assert!([0, 6].contains(&first.reserved()), "{round}: {}", first.reserved());
            assert_eq!(first.level(now) + first.reserved() as i64, TOKENS as i64, "{round}");
            assert_eq!((second.level(now), second.reserved()), (TOKENS as i64, 0), "{round}");
        }
    });
}

/// What came after the fixture: a schedule asks for a job.
pub(crate) async fn tell_of_schedules(broker: &Broker, round: &str) {
    crate::schedules::tell_of_jobs(broker, round, &queue(round)).await;
}

pub(crate) fn check_schedules(broker: &Broker) {
    for round in ROUNDS {
        crate::schedules::check_jobs(broker, round, &queue(round));
    }
}

/// Checks everything; so many jobs were made in each queue.
pub(crate) async fn check(broker: &Broker, created: u64) {
    broker.look_at_jobs(|jobs, now| {
        for round in ROUNDS {
            assert!(jobs.queue(&gone(round)).is_none());
            let found = jobs.queue(&queue(round)).unwrap();
            assert_eq!(**found.config(), config(round));
            let state = |key: &str| {
                let (id, place) = found.waiter(&format!("waits for {key}")).unwrap();
                let (_, job) = jobs.job(id).unwrap();
                assert_eq!(job.key(), key);
                assert_eq!(&*job.waiter(place).unwrap().user, "ann");
                (job.state().clone(), job.attempts(), job.cost())
            };
            let (done, ..) = state("done");
            assert!(matches!(done, JobState::Finished(finish) if finish.outcome == Outcome::Done("[1,2,3]".into())));
            let (failed, ..) = state("failed");
            let expected = Outcome::Failed("no such word".into());
            assert!(matches!(failed, JobState::Finished(finish) if finish.outcome == expected));
            let (held, attempts, cost) = state("held");
            // Its lease has ended since the fixture was written.
            assert!(!matches!(held, JobState::Finished(_)) && (attempts, cost) == (1, 6));
            let (waits, attempts, _) = state("waits");
            assert!(matches!(waits, JobState::Pending { .. }) && attempts == 0);
            assert_eq!((found.figures().created, found.figures().done, found.figures().failed), (created, 1, 1));
            let tokens = jobs.budget(&budget(round)).unwrap();
            assert_eq!(tokens.used_total(), 4);
            assert_eq!(tokens.level(now) + tokens.reserved() as i64, 900, "as the API said");
        }
        assert_eq!(jobs.token_log(Timestamp(0), Timestamp::MAX).count(), ROUNDS.len());
    });
    for round in ROUNDS {
        let answer = broker
            .job_answer(&queue(round), "waits for done", Duration::from_secs(20))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(answer.result, "[2,3]");
    }
}
