//! Job queues as stories: who joins what, what is served first, who pays, and what is remembered.

use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{BudgetName, JobId, JobQueueName, Millis, QueueName, Timestamp};

use super::*;
use crate::jobs::{
    Asked, AskedState, Band, BudgetConfig, Handed, JobBody, JobReceipt, JobState, NewJob, Outcome, Overtake,
    Refill, Reply, Settled, TakeOutcome, TokenReport, Waiter, WhileRunning,
};

pub(super) const MINUTE: u64 = 60_000;
pub(super) const START: Timestamp = crate::machine::check::START;

pub(super) fn name() -> JobQueueName {
    JobQueueName::new("deals").unwrap()
}

pub(super) fn api() -> BudgetName {
    BudgetName::new("api").unwrap()
}

/// Jobs, and what time it is.
pub(super) struct Shop {
    pub(super) jobs: Jobs,
    pub(super) now: Timestamp,
}

impl Shop {
    pub(super) fn new() -> Self {
        Self::with(JobQueueConfig::default())
    }

    pub(super) fn with(config: JobQueueConfig) -> Self {
        let mut shop = Self { jobs: Jobs::new(), now: START };
        shop.put_budget(BudgetConfig::default());
        shop.give(JobCommand::PutQueue { name: name(), config: Arc::new(config) }).unwrap();
        shop
    }

    /// The same, where a budget pays.
    pub(super) fn paid_by(budget: BudgetConfig, config: JobQueueConfig) -> Self {
        let mut shop = Self::with(JobQueueConfig { budget: Some(api()), ..config });
        shop.put_budget(budget);
        shop
    }

    fn put_budget(&mut self, config: BudgetConfig) {
        // A new one, so that it has what it has at first.
        let _ = self.give(JobCommand::PutBudget { name: api(), config });
        if let Some(id) = self.jobs.budget_id(&api()) {
            let now = self.now;
            self.jobs.budgets.insert(id, crate::jobs::Budget::new(api(), config, now));
        }
    }

    #[allow(clippy::needless_pass_by_value, reason = "commands are made where they are given")]
    pub(super) fn give(&mut self, command: JobCommand) -> Result<JobAnswer, JobError> {
        while self.jobs.refresh(self.now, 7) {}
        let (records, answer) = self.jobs.decide_command(self.now, &command)?;
        for record in records {
            let record = JobRecord::decode(&record.encode()).unwrap();
            self.jobs.apply_record(&record);
        }
        while self.jobs.refresh(self.now, 7) {}
        Ok(answer)
    }

    pub(super) fn pass(&mut self, time: Millis) {
        self.now = self.now.plus(time);
        self.give(JobCommand::Due { max: 100 }).unwrap();
    }

    pub(super) fn ask(&mut self, key: &str, waiter: Option<Waiter>) -> Asked {
        self.ask_at(key, 0, waiter).unwrap()
    }

    pub(super) fn ask_at(&mut self, key: &str, cost: u64, waiter: Option<Waiter>) -> Result<Asked, JobError> {
        let body = JobBody { kind: "search".into(), key: key.into(), payload: Bytes::from_static(b"{}") };
        let job = NewJob { body: Arc::new(body), cost, deadline: None, background: true };
        match self.give(JobCommand::Ask { queue: name(), job, waiter: waiter.map(Arc::new) })? {
            JobAnswer::Asked(asked) => Ok(asked),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn waiter(&self, id: &str, class: &str, due_in: Option<u64>) -> Waiter {
        let config = self.jobs.queue(&name()).unwrap().config();
        Waiter {
            id: id.into(),
            user: "anna".into(),
            class: class.into(),
            class_value: config.class_value(&name(), class).unwrap(),
            due: due_in.map(|minutes| self.now.plus(Millis(minutes * MINUTE))),
            filter: "".into(),
            reply: Reply::Call,
            at: self.now,
        }
    }

    pub(super) fn take(&mut self) -> Option<Handed> {
        self.take_many(1).pop()
    }

    fn take_many(&mut self, max: usize) -> Vec<Handed> {
        let take = JobCommand::Take { queue: name(), worker: "w".into(), lease: None, max };
        match self.give(take).unwrap() {
            JobAnswer::Taken(outcome) => outcome.jobs,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn complete(&mut self, receipt: JobReceipt) -> Result<JobAnswer, JobError> {
        self.complete_with(receipt, None, TokenReport::default())
    }

    pub(super) fn complete_with(
        &mut self,
        receipt: JobReceipt,
        used: Option<u64>,
        report: TokenReport,
    ) -> Result<JobAnswer, JobError> {
        let result = Bytes::from_static(b"[]");
        self.give(JobCommand::Complete { receipt, result, used, report })
    }

    /// As a snapshot of now has it.
    pub(super) fn restore(&mut self) {
        let head = self.jobs.begin_snapshot(std::iter::empty(), &[]);
        let mut chunks = Vec::new();
        while let Some(slice) = self.jobs.next_chunks(10, 10) {
            chunks.extend(slice.chunks.into_iter().map(|(_, bytes)| bytes));
            if !slice.more {
                break;
            }
        }
        self.jobs = Jobs::restore(&head, chunks.iter().map(|bytes| &**bytes)).unwrap();
        while self.jobs.refresh(self.now, 7) {}
    }

    fn score(&self, job: JobId) -> f64 {
        self.jobs.job(job).unwrap().1.score().unwrap()
    }

    fn level(&self) -> i64 {
        self.jobs.budget(&api()).unwrap().level(self.now)
    }

    fn state(&self, job: JobId) -> &JobState {
        self.jobs.job(job).unwrap().1.state()
    }
}

#[test]
fn the_default_score_is_urgency_and_value_and_class() {
    let mut shop = Shop::new();
    let ask = |shop: &mut Shop, key: &str, class: &str, due: u64, waiters: usize| {
        let ids = (0..waiters).map(|number| format!("{key}-{number}"));
        let asked: Vec<Asked> = ids
            .map(|id| {
                let waiter = shop.waiter(&id, class, Some(due));
                shop.ask(key, Some(waiter))
            })
            .collect();
        shop.score(asked[0].job)
    };
    assert_eq!(ask(&mut shop, "a", "business", 0, 5), 10.0);
    assert_eq!(ask(&mut shop, "b", "pro", 5, 3), 22.0);
    assert_eq!(ask(&mut shop, "c", "free", 20, 1), 48.0);
    assert_eq!(ask(&mut shop, "d", "business", 0, 10), 0.0);
    assert_eq!(ask(&mut shop, "e", "business", 0, 14), 0.0, "more than ten are worth no more");
    assert_eq!(ask(&mut shop, "f", "starter", 31, 1), 30.0 + 18.0 + 6.0, "half an hour ahead is far");
    let prefetch = shop.ask("g", None).job;
    assert_eq!(shop.score(prefetch), 100.0);
}

#[test]
fn a_job_that_is_overdue_is_as_urgent_as_one_that_is_due_now() {
    let mut shop = Shop::new();
    let waiter = shop.waiter("w", "pro", Some(2));
    let job = shop.ask("k", Some(waiter)).job;
    assert_eq!(shop.score(job), 2.0 + 18.0 + 3.0);
    shop.pass(Millis(10 * MINUTE));
    assert_eq!(shop.score(job), 0.0 + 18.0 + 3.0);
}

#[test]
fn the_best_class_of_all_waiters_and_their_earliest_due_time_count() {
    let mut shop = Shop::new();
    let (free, business) = (shop.waiter("1", "free", Some(3)), shop.waiter("2", "business", Some(25)));
    let job = shop.ask("k", Some(free)).job;
    assert_eq!(shop.ask("k", Some(business)), Asked { job, state: AskedState::Joined });
    assert_eq!(shop.score(job), 3.0 + 16.0 + 0.0);
}

#[test]
fn a_user_that_joins_a_prefetch_job_makes_it_a_normal_one() {
    let mut shop = Shop::new();
    let prefetch = shop.ask("k", None).job;
    let waiter = shop.waiter("1", "pro", Some(0));
    assert_eq!(shop.ask("k", Some(waiter)).job, prefetch);
    assert_eq!(shop.score(prefetch), 0.0 + 18.0 + 3.0);
    assert!(!shop.jobs.job(prefetch).unwrap().1.is_background());
}

#[test]
fn nothing_is_handed_out_before_all_scores_are_found() {
    let mut shop = Shop::new();
    let urgent = shop.waiter("urgent", "business", Some(0));
    let urgent = shop.ask("urgent", Some(urgent)).job;
    for number in 0..50 {
        let free = shop.waiter(&number.to_string(), "free", None);
        shop.ask(&number.to_string(), Some(free));
    }
    let queue = shop.jobs.queue(&name()).unwrap().id();
    let first = |jobs: &mut Jobs| {
        let take = JobCommand::Take { queue: name(), worker: "w".into(), lease: None, max: 1 };
        for unsorted in 0.. {
            let (records, answer) = jobs.decide_command(START, &take).unwrap();
            let JobAnswer::Taken(outcome) = answer else { panic!() };
            if !outcome.is_unsorted {
                return (unsorted, outcome.jobs[0].receipt.job);
            }
            assert!(records.is_empty() && outcome.jobs.is_empty() && outcome.again_at > Some(START));
            jobs.refresh_queue(queue, START, 7);
        }
        panic!("it never comes to an end")
    };
    let put = |jobs: &mut Jobs, config: JobQueueConfig| {
        let put = JobCommand::PutQueue { name: name(), config: Arc::new(config) };
        let (records, _) = jobs.decide_command(START, &put).unwrap();
        records.iter().for_each(|record| jobs.apply_record(record));
    };
    let count = |jobs: &Jobs| jobs.queue(&name()).unwrap().bands().iter().map(|band| band.jobs).sum::<u64>();
    // Other bands change no score.
    let bands = vec![Band { name: "all".into(), up_to: f64::MAX }];
    put(&mut shop.jobs, JobQueueConfig { bands, ..JobQueueConfig::default() });
    assert_eq!(first(&mut shop.jobs), (0, urgent));
    while shop.jobs.refresh(START, 7) {}
    assert_eq!(count(&shop.jobs), 51);
    // Another policy changes all, and so does a start.
    put(&mut shop.jobs, JobQueueConfig { score: Some("class".into()), ..JobQueueConfig::default() });
    assert_eq!(first(&mut shop.jobs), (8, urgent), "7 of 51 jobs at a time");
    assert_eq!(count(&shop.jobs), 51);
    let head = shop.jobs.begin_snapshot(std::iter::empty(), &[]);
    let chunks = shop.jobs.next_chunks(100, 1000).unwrap().chunks;
    let mut jobs = Jobs::restore(&head, chunks.iter().map(|(_, bytes)| &**bytes)).unwrap();
    assert_eq!(first(&mut jobs), (8, urgent));
    assert_eq!(count(&jobs), 51);
}

#[test]
fn a_node_that_only_follows_keeps_no_notes_of_scores_to_be_found() {
    let mut shop = Shop::new();
    let jobs = [shop.ask("k", None).job, shop.ask("l", None).job];
    for number in 0..3000 {
        let waiter = Arc::new(shop.waiter(&number.to_string(), "free", Some(0)));
        let job = jobs[number % 2];
        shop.jobs.apply_record(&JobRecord::Join { job, waiter, deadline: Timestamp::MAX });
    }
    assert!(shop.jobs.queue(&name()).unwrap().order.unscored() < 2000);
    while shop.jobs.refresh(START, 7) {}
    assert_eq!(jobs.map(|job| shop.score(job)), [10.0; 2], "if it leads one day it finds them");
}

#[test]
fn a_score_follows_the_clock_minute_by_minute() {
    let mut shop = Shop::new();
    let waiter = shop.waiter("w", "business", Some(32));
    let job = shop.ask("k", Some(waiter)).job;
    let mut seen = Vec::new();
    for _ in 0..34 {
        seen.push(shop.score(job) - 18.0);
        shop.pass(Millis(MINUTE));
    }
    let expected: Vec<f64> = (0..34).map(|minute| f64::from((32 - minute).clamp(0, 30))).collect();
    assert_eq!(seen, expected);
    assert_eq!(shop.jobs.next_refresh(), None, "it cannot be more urgent");
}

#[test]
fn a_score_changes_in_the_millisecond_in_which_a_minute_is_not_whole_any_more() {
    let mut shop = Shop::new();
    let waiter = shop.waiter("w", "business", Some(32));
    let job = shop.ask("k", Some(waiter)).job;
    shop.pass(Millis(2 * MINUTE));
    assert_eq!(shop.score(job), 30.0 + 18.0);
    shop.pass(Millis(1));
    assert_eq!(shop.score(job), 29.0 + 18.0);
    shop.pass(Millis(MINUTE - 1));
    assert_eq!(shop.score(job), 29.0 + 18.0);
    shop.pass(Millis(1));
    assert_eq!(shop.score(job), 28.0 + 18.0);
}

#[test]
fn equal_scores_are_served_in_the_order_of_creation() {
    let mut shop = Shop::new();
    for key in ["a", "b", "c"] {
        shop.ask(key, None);
    }
    let waiter = shop.waiter("w", "free", Some(30));
    shop.ask("d", Some(waiter));
    let keys: Vec<String> = (0..4).map(|_| shop.take().unwrap().body.key.to_string()).collect();
    assert_eq!(keys, ["d", "a", "b", "c"]);
}

#[test]
fn the_same_waiter_again_changes_nothing() {
    let mut shop = Shop::new();
    let waiter = shop.waiter("w", "pro", Some(1));
    let job = shop.ask("k", Some(waiter.clone())).job;
    assert_eq!(shop.ask("k", Some(waiter.clone())), Asked { job, state: AskedState::Known });
    let receipt = shop.take().unwrap().receipt;
    shop.complete(receipt).unwrap();
    assert_eq!(
        shop.ask("k", Some(waiter)),
        Asked { job, state: AskedState::Known },
        "also when it is answered"
    );
}

#[test]
fn a_waiter_cannot_wait_for_two_keys() {
    let mut shop = Shop::new();
    let waiter = shop.waiter("w", "pro", Some(1));
    shop.ask("k", Some(waiter.clone()));
    let refused = shop.ask_at("other", 0, Some(waiter.clone())).unwrap_err();
    assert!(
        matches!(&refused, JobError::OtherKey { key, asked, .. } if &**key == "k" && &**asked == "other")
    );
    let said = refused.to_string();
    assert!(said.contains("'w'") && said.contains("'k'") && said.contains("'other'"), "{said}");
    let receipt = shop.take().unwrap().receipt;
    assert!(shop.take().is_none(), "nothing was made");
    shop.complete(receipt).unwrap();
    assert!(
        shop.ask_at("other", 0, Some(waiter)).is_err(),
        "also when it is answered, as long as it is remembered"
    );
}

#[test]
fn after_the_window_a_new_job_is_made_and_no_key_is_worked_on_twice_at_once() {
    let mut shop = Shop::new();
    let first = shop.ask("k", None).job;
    shop.pass(Millis(299_999));
    assert_eq!(shop.ask("k", None).job, first);
    shop.pass(Millis(1));
    let second = shop.ask("k", None);
    assert_eq!(second.state, AskedState::Created);
    let running = shop.take().unwrap();
    assert_eq!(running.receipt.job, first);
    assert_eq!(shop.take(), None, "the other one has the same key");
    shop.give(JobCommand::Fail {
        receipt: running.receipt,
        error: "no".into(),
        used: None,
        report: TokenReport::default(),
        retry: false,
    })
    .unwrap();
    assert_eq!(shop.take().unwrap().receipt.job, second.job);
}

#[test]
fn while_a_job_runs_others_share_its_answer_or_wait_for_the_next() {
    let mut shop = Shop::new();
    let job = shop.ask("k", None).job;
    shop.take().unwrap();
    let waiter = shop.waiter("w", "pro", None);
    assert_eq!(shop.ask("k", Some(waiter)), Asked { job, state: AskedState::JoinedRunning });

    let config = JobQueueConfig { while_running: WhileRunning::Next, ..JobQueueConfig::default() };
    let mut shop = Shop::with(config);
    let first = shop.ask("k", None).job;
    let receipt = shop.take().unwrap().receipt;
    let waiter = shop.waiter("w", "pro", None);
    let second = shop.ask("k", Some(waiter));
    assert_eq!(second.state, AskedState::Created);
    assert_ne!(second.job, first);
    assert_eq!(shop.take(), None);
    shop.complete(receipt).unwrap();
    assert_eq!(shop.take().unwrap().receipt.job, second.job);
}

#[test]
fn a_fresh_result_answers_without_a_job_until_it_is_too_old() {
    let mut shop = Shop::new();
    let job = shop.ask("k", None).job;
    let receipt = shop.take().unwrap().receipt;
    shop.complete(receipt).unwrap();
    shop.pass(Millis(3_599_999));
    let waiter = shop.waiter("w", "pro", None);
    assert_eq!(shop.ask("k", Some(waiter)), Asked { job, state: AskedState::Cached });
    assert_eq!(shop.jobs.to_answer(10).count(), 0, "it asks for its answer by itself");
    let reply = Reply::Queue(QueueName::new("answers").unwrap());
    let waiter = Waiter { reply, ..shop.waiter("v", "pro", None) };
    assert_eq!(shop.ask("k", Some(waiter)), Asked { job, state: AskedState::Cached });
    assert_eq!(shop.jobs.to_answer(10).collect::<Vec<_>>(), [job]);
    shop.pass(Millis(1));
    let waiter = shop.waiter("w2", "pro", None);
    assert_eq!(shop.ask("k", Some(waiter)).state, AskedState::Created);
    assert_eq!(shop.jobs.queue(&name()).unwrap().figures().cache_hits, 2);
}

#[test]
fn work_that_nobody_waits_for_may_be_asked_for_before_the_background() {
    let mut shop = Shop::with(JobQueueConfig::default());
    let first = shop.ask("first", None).job;
    let second = shop.ask("second", None).job;
    let ask = |key: &str| {
        let body = JobBody { kind: "search".into(), key: key.into(), payload: Bytes::new() };
        let job = NewJob { body: Arc::new(body), cost: 0, deadline: None, background: false };
        JobCommand::Ask { queue: name(), job, waiter: None }
    };
    let answer = |job, state| JobAnswer::Asked(Asked { job, state });
    assert_eq!(shop.give(ask("second")).unwrap(), answer(second, AskedState::Joined));
    let (_, raised) = shop.jobs.job(second).unwrap();
    // Never due, and nobody waits: 30 + 20.
    assert_eq!((raised.is_background(), raised.score()), (false, Some(50.0)));
    let taken: Vec<JobId> = shop.take_many(2).into_iter().map(|handed| handed.receipt.job).collect();
    assert_eq!(taken, [second, first]);
    // One that is being worked on is as it is.
    assert_eq!(shop.give(ask("first")).unwrap(), answer(first, AskedState::JoinedRunning));
    assert!(shop.jobs.job(first).unwrap().1.is_background());
    let JobAnswer::Asked(new) = shop.give(ask("third")).unwrap() else { panic!() };
    assert!(!shop.jobs.job(new.job).unwrap().1.is_background());
}

#[test]
fn where_the_cache_does_not_answer_every_request_is_a_job() {
    let config = JobQueueConfig { answer_from_cache: false, ..JobQueueConfig::default() };
    let mut shop = Shop::with(config);
    shop.ask("k", None);
    let receipt = shop.take().unwrap().receipt;
    shop.complete(receipt).unwrap();
    assert_eq!(shop.ask("k", None).state, AskedState::Created);
}

#[test]
fn what_is_reserved_goes_back_to_the_budget_it_came_from() {
    let other = BudgetName::new("other").unwrap();
    let tokens = BudgetConfig { initial: 10, ..BudgetConfig::default() };
    let mut shop = Shop::paid_by(tokens, JobQueueConfig::default());
    shop.give(JobCommand::PutBudget { name: other.clone(), config: tokens }).unwrap();
    for key in ["one", "two", "three"] {
        shop.ask_at(key, 4, None).unwrap();
    }
    let [one, two] = [shop.take().unwrap(), shop.take().unwrap()].map(|handed| handed.receipt);
    let config = JobQueueConfig { budget: Some(other.clone()), ..JobQueueConfig::default() };
    shop.give(JobCommand::PutQueue { name: name(), config: Arc::new(config) }).unwrap();
    let three = shop.take().unwrap().receipt;
    shop.restore();
    let reserved = |shop: &Shop| {
        let of = |name: &BudgetName| shop.jobs.budget(name).unwrap().reserved();
        [of(&api()), of(&other)]
    };
    assert_eq!(reserved(&shop), [8, 4]);
    shop.complete_with(one, Some(1), TokenReport::default()).unwrap();
    shop.give(JobCommand::GiveBack { receipt: three }).unwrap();
    assert_eq!((reserved(&shop), shop.level()), ([4, 0], 5));
    // A budget with another size keeps what is reserved in it, and one that is gone takes it along.
    let small = BudgetConfig { capacity: Some(2), ..tokens };
    shop.give(JobCommand::PutBudget { name: api(), config: small }).unwrap();
    assert_eq!((reserved(&shop), shop.level()), ([4, 0], 2));
    shop.give(JobCommand::DeleteBudget { name: api() }).unwrap();
    shop.complete(two).unwrap();
    shop.give(JobCommand::DeleteQueue { name: name() }).unwrap();
    assert_eq!(shop.jobs.budget(&other).unwrap().level(shop.now), 10);
}

#[test]
fn an_api_that_tells_of_a_refill_that_nobody_knows_is_told_so() {
    let mut shop = Shop::paid_by(BudgetConfig::default(), JobQueueConfig::default());
    shop.ask_at("k", 4, None).unwrap();
    let receipt = shop.take().unwrap().receipt;
    let report = TokenReport { refill_tokens: Some(5), refill_in: Some(Millis(10)), tokens_left: None };
    let refused = [
        shop.give(JobCommand::Report { budget: api(), report }),
        shop.complete_with(receipt, None, report),
        shop.give(JobCommand::Fail { receipt, error: "no".into(), used: None, report, retry: true }),
    ];
    for refusal in refused {
        let said = refusal.unwrap_err().to_string();
        assert!(said.contains("budget 'api' has no refill; give it one"), "{said}");
    }
    shop.complete_with(receipt, None, TokenReport { refill_tokens: None, ..report }).unwrap();
    let refill = Some(Refill { tokens: 1, every: Millis(1000) });
    let config = BudgetConfig { refill, ..BudgetConfig::default() };
    shop.give(JobCommand::PutBudget { name: api(), config }).unwrap();
    shop.give(JobCommand::Report { budget: api(), report }).unwrap();
    assert_eq!(shop.jobs.budget(&api()).unwrap().next_tokens(shop.now), Some((shop.now.plus(Millis(10)), 5)));
}

#[test]
fn a_job_is_handed_out_when_its_budget_can_pay_and_nothing_overtakes_it() {
    let config =
        BudgetConfig { initial: 6, capacity: None, refill: Some(Refill { tokens: 1, every: Millis(1000) }) };
    let mut shop = Shop::paid_by(config, JobQueueConfig::default());
    let urgent = shop.waiter("w", "business", Some(0));
    shop.ask_at("cheap first", 2, Some(Waiter { due: Some(shop.now), ..urgent.clone() })).unwrap();
    shop.ask_at("dear", 5, Some(Waiter { id: "v".into(), class_value: 3, ..urgent })).unwrap();
    shop.ask_at("cheap", 1, None).unwrap();
    assert_eq!(&*shop.take().unwrap().body.key, "cheap first");
    let take = JobCommand::Take { queue: name(), worker: "w".into(), lease: None, max: 1 };
    let JobAnswer::Taken(outcome) = shop.give(take).unwrap() else { panic!() };
    assert_eq!((outcome.jobs.len(), outcome.again_at), (0, Some(START.plus(Millis(1000)))));
    shop.pass(Millis(1000));
    assert_eq!(&*shop.take().unwrap().body.key, "dear");
    assert_eq!(shop.level(), 0);
}

#[test]
fn where_the_queue_says_so_what_can_be_paid_goes_first() {
    let config = JobQueueConfig { overtake: Overtake::Affordable, ..JobQueueConfig::default() };
    let mut shop = Shop::paid_by(BudgetConfig { initial: 3, ..BudgetConfig::default() }, config);
    let urgent = shop.waiter("w", "business", Some(0));
    shop.ask_at("dear", 5, Some(urgent)).unwrap();
    shop.ask_at("a", 2, None).unwrap();
    shop.ask_at("b", 2, None).unwrap();
    assert_eq!(&*shop.take().unwrap().body.key, "a");
    assert_eq!(shop.take(), None, "one token is left");
}

#[test]
fn a_reservation_is_settled_by_what_was_used_and_by_what_the_api_said() {
    let mut shop = Shop::paid_by(BudgetConfig::default(), JobQueueConfig::default());
    shop.ask_at("a", 5, None).unwrap();
    shop.ask_at("b", 5, None).unwrap();
    let (a, b) = (shop.take().unwrap().receipt, shop.take().unwrap().receipt);
    assert_eq!(shop.level(), 10);
    shop.complete_with(a, Some(3), TokenReport::default()).unwrap();
    assert_eq!(shop.level(), 12);
    let report = TokenReport { tokens_left: Some(100), ..TokenReport::default() };
    shop.complete_with(b, None, report).unwrap();
    assert_eq!(shop.level(), 100);
    let budget = shop.jobs.budget(&api()).unwrap();
    assert_eq!((budget.reserved(), budget.used_total()), (0, 8));
    let uses: Vec<(u64, bool)> =
        shop.jobs.token_log(START, Timestamp::MAX).map(|used| (used.tokens, used.success)).collect();
    assert_eq!(uses, [(5, true), (3, true)]);
}

#[test]
fn tokens_that_no_budget_paid_for_are_nobodys_use() {
    let mut shop = Shop::new();
    shop.ask_at("k", 5, None).unwrap();
    let receipt = shop.take().unwrap().receipt;
    shop.complete_with(receipt, Some(3), TokenReport::default()).unwrap();
    assert_eq!(shop.jobs.token_log(START, Timestamp::MAX).count(), 0, "the budget beside it paid nothing");
    let figures = shop.jobs.queue(&name()).unwrap().figures();
    assert_eq!(figures.tokens, 3);
    assert_eq!(figures.by_key().map(|(_, key)| key.tokens).collect::<Vec<_>>(), [3]);
}

#[test]
fn a_job_whose_worker_dies_comes_back_with_its_reservation_released() {
    let mut shop = Shop::paid_by(BudgetConfig::default(), JobQueueConfig::default());
    shop.ask_at("k", 20, None).unwrap();
    let first = shop.take().unwrap().receipt;
    assert_eq!(shop.level(), 0);
    shop.pass(Millis::from_secs(60));
    assert_eq!(shop.level(), 20);
    let second = shop.take().unwrap().receipt;
    assert_eq!((second.job, second.hold), (first.job, first.hold + 1));
    let refused = shop.complete(first).unwrap_err();
    assert!(refused.to_string().contains("another worker has it"), "{refused}");
    shop.complete(second).unwrap();
    shop.complete(second).unwrap();
    assert_eq!(shop.level(), 0, "the same once more is paid once");
}

#[test]
fn work_that_was_finished_late_counts_if_nobody_else_has_begun() {
    let mut shop = Shop::paid_by(BudgetConfig::default(), JobQueueConfig::default());
    shop.ask_at("k", 5, None).unwrap();
    let receipt = shop.take().unwrap().receipt;
    shop.pass(Millis::from_secs(61));
    shop.complete(receipt).unwrap();
    assert_eq!(shop.level(), 15);
    assert!(matches!(shop.state(receipt.job), JobState::Finished(_)));
}

#[test]
fn whoever_has_failed_a_job_cannot_complete_it_afterwards() {
    let mut shop = Shop::paid_by(BudgetConfig::default(), JobQueueConfig::default());
    shop.ask_at("k", 5, None).unwrap();
    let receipt = shop.take().unwrap().receipt;
    let (error, report) = ("no".into(), TokenReport::default());
    shop.give(JobCommand::Fail { receipt, error, used: None, report, retry: true }).unwrap();
    let refused = shop.complete(receipt).unwrap_err();
    assert!(matches!(refused, JobError::NotHeld { .. }), "{refused}");
    assert_eq!(shop.level(), 15, "the attempt is paid once");
}

#[test]
fn a_job_that_is_given_back_keeps_its_place_and_its_attempts() {
    let mut shop = Shop::new();
    shop.ask("a", None);
    shop.ask("b", None);
    let first = shop.take().unwrap();
    let receipt = first.receipt;
    assert_eq!(shop.give(JobCommand::GiveBack { receipt }).unwrap(), JobAnswer::Settled(Settled::Returned));
    let again = shop.take().unwrap();
    assert_eq!((again.receipt.job, again.attempt), (receipt.job, first.attempt));
}

#[test]
fn a_receipt_that_was_given_back_is_nobody_elses() {
    let mut shop = Shop::new();
    shop.ask("a", None);
    let receipt = shop.take().unwrap().receipt;
    shop.give(JobCommand::GiveBack { receipt }).unwrap();
    assert!(shop.complete(receipt).is_err(), "it was given back");
    let others = shop.take().unwrap().receipt;
    // The answer to the first was lost, so it is said again.
    assert!(shop.give(JobCommand::GiveBack { receipt }).is_err());
    assert!(shop.complete(receipt).is_err());
    assert!(matches!(shop.state(others.job), JobState::Running(_)), "the other worker still has it");
    shop.complete(others).unwrap();
    assert!(shop.complete(receipt).is_err(), "it is not the one that was completed");
}

#[test]
fn a_job_that_fails_waits_longer_each_time_and_finally_tells_its_waiters() {
    let mut shop = Shop::with(JobQueueConfig { max_attempts: 3, ..JobQueueConfig::default() });
    let reply = Reply::Queue(QueueName::new("answers").unwrap());
    let waiter = Waiter { reply, ..shop.waiter("w", "pro", None) };
    let job = shop.ask("k", Some(waiter)).job;
    let fail = |shop: &mut Shop, receipt| {
        let (error, report) = ("the API is down".into(), TokenReport::default());
        shop.give(JobCommand::Fail { receipt, error, used: Some(0), report, retry: true }).unwrap()
    };
    for wait in [1000, 2000] {
        let receipt = shop.take().unwrap().receipt;
        let ready_at = shop.now.plus(Millis(wait));
        assert_eq!(fail(&mut shop, receipt), JobAnswer::Settled(Settled::Retried(ready_at)));
        shop.pass(Millis(wait - 1));
        assert_eq!(shop.take(), None);
        shop.pass(Millis(1));
    }
    let receipt = shop.take().unwrap().receipt;
    assert_eq!(fail(&mut shop, receipt), JobAnswer::Settled(Settled::Finished));
    let JobState::Finished(finish) = shop.state(job) else { panic!() };
    assert_eq!(finish.outcome, Outcome::Failed("the API is down".into()));
    assert_eq!(shop.jobs.to_answer(10).collect::<Vec<_>>(), [job]);
    assert_eq!(shop.ask("k", None).state, AskedState::Created, "a failure is not cached");
}

#[test]
fn a_job_that_is_not_done_by_its_deadline_expires() {
    let mut shop = Shop::new();
    let body = Arc::new(JobBody { kind: "t".into(), key: "k".into(), payload: Bytes::new() });
    let deadline = Some(START.plus(Millis(500)));
    let job = NewJob { body, cost: 0, deadline, background: true };
    let waiter = Some(Arc::new(shop.waiter("w", "pro", None)));
    shop.give(JobCommand::Ask { queue: name(), job, waiter }).unwrap();
    shop.pass(Millis(499));
    let other = shop.waiter("v", "pro", None);
    let asked = shop.ask("k", Some(other));
    assert_eq!(asked.state, AskedState::Joined, "who joins has no deadline");
    shop.pass(Millis(1000));
    assert!(matches!(shop.state(asked.job), JobState::Pending { .. }));
}

#[test]
fn a_job_can_be_cancelled_and_a_waiter_can_leave() {
    let mut shop = Shop::new();
    let (one, two) = (shop.waiter("1", "pro", Some(1)), shop.waiter("2", "free", Some(9)));
    let job = shop.ask("k", Some(one)).job;
    shop.ask("k", Some(two));
    let leave = |waiter: &str| JobCommand::Leave { queue: name(), waiter: waiter.into() };
    shop.give(leave("1")).unwrap();
    assert_eq!(shop.score(job), 9.0 + 18.0 + 10.0, "only the other one counts");
    assert!(shop.give(leave("1")).unwrap_err().to_string().contains("nobody waits as '1'"));
    shop.give(leave("2")).unwrap();
    let JobState::Finished(finish) = shop.state(job) else { panic!() };
    assert_eq!(finish.outcome, Outcome::Cancelled);

    let job = shop.ask("other", None).job;
    let receipt = shop.take().unwrap().receipt;
    shop.give(JobCommand::Cancel { job }).unwrap();
    let refused = shop.complete(receipt).unwrap_err();
    assert!(refused.to_string().contains("is finished: cancelled"), "{refused}");
}

#[test]
fn answers_are_given_in_order_and_then_the_job_is_forgotten() {
    let mut shop = Shop::new();
    let queue = QueueName::new("answers").unwrap();
    for id in ["1", "2", "3"] {
        let waiter = Waiter { reply: Reply::Queue(queue.clone()), ..shop.waiter(id, "pro", None) };
        shop.ask("k", Some(waiter));
    }
    let receipt = shop.take().unwrap().receipt;
    let fourth = Waiter { reply: Reply::Queue(queue), ..shop.waiter("4", "pro", None) };
    shop.ask("k", Some(fourth));
    shop.give(JobCommand::Leave { queue: name(), waiter: "2".into() }).unwrap();
    shop.complete(receipt).unwrap();
    let job = receipt.job;
    shop.pass(Millis::from_secs(100_000));
    assert_eq!(shop.jobs.to_answer(10).collect::<Vec<_>>(), [job], "nobody is forgotten");
    shop.give(JobCommand::Answered { job, before: 2 }).unwrap();
    let left: Vec<u32> = {
        let (_, found) = shop.jobs.job(job).unwrap();
        let JobState::Finished(finish) = found.state() else { panic!() };
        found.waiters_from(finish.answered).map(|(place, _)| place).collect()
    };
    assert_eq!(left, [2, 3]);
    let told = |shop: &Shop| shop.jobs.queue(&name()).unwrap().figures().answered;
    assert_eq!(told(&shop), 1, "one of the first two has left");
    shop.give(JobCommand::Answered { job, before: 4 }).unwrap();
    assert_eq!(told(&shop), 3);
    assert_eq!(shop.jobs.to_answer(10).count(), 0);
    shop.pass(Millis(0));
    assert!(shop.jobs.job(job).is_none());
    assert_eq!(shop.jobs.queue(&name()).unwrap().memory_bytes(), 0);
}

#[test]
fn a_dear_job_is_not_starved_by_another_queue_of_the_same_budget() {
    let config = BudgetConfig { initial: 2, ..BudgetConfig::default() };
    let mut shop = Shop::paid_by(config, JobQueueConfig::default());
    let urgent = shop.waiter("w", "business", Some(0));
    shop.ask_at("dear", 5, Some(urgent)).unwrap();
    let other = JobQueueName::new("other").unwrap();
    let config = Arc::new(JobQueueConfig { budget: Some(api()), ..JobQueueConfig::default() });
    shop.give(JobCommand::PutQueue { name: other.clone(), config }).unwrap();
    let body = Arc::new(JobBody { kind: "t".into(), key: "cheap".into(), payload: Bytes::new() });
    let job = NewJob { body, cost: 1, deadline: None, background: true };
    shop.give(JobCommand::Ask { queue: other.clone(), job, waiter: None }).unwrap();
    let take = JobCommand::Take { queue: other.clone(), worker: "w".into(), lease: None, max: 1 };
    let deals = shop.jobs.queue(&name()).unwrap().id();
    shop.jobs.set_wanted(deals, true);
    let JobAnswer::Taken(outcome) = shop.give(take.clone()).unwrap() else { panic!() };
    assert!(outcome.jobs.is_empty(), "a more urgent one waits for these tokens");
    shop.jobs.set_wanted(deals, false);
    let JobAnswer::Taken(outcome) = shop.give(take).unwrap() else { panic!() };
    assert_eq!(outcome.jobs.len(), 1, "nobody would work on that one");
}

#[test]
fn a_job_behind_those_of_other_queues_knows_when_tokens_are_left_for_it() {
    let refill = Some(Refill { tokens: 1, every: Millis(1000) });
    let config = BudgetConfig { initial: 3, capacity: Some(12), refill };
    let mut shop = Shop::paid_by(config, JobQueueConfig::default());
    let take = |shop: &mut Shop, queue: &JobQueueName| {
        let take = JobCommand::Take { queue: queue.clone(), worker: "w".into(), lease: None, max: 1 };
        let JobAnswer::Taken(outcome) = shop.give(take).unwrap() else { panic!() };
        outcome
    };
    let mut ask = |queue: &str, cost, due| {
        let queue = JobQueueName::new(queue).unwrap();
        let config = Arc::new(JobQueueConfig { budget: Some(api()), ..JobQueueConfig::default() });
        shop.give(JobCommand::PutQueue { name: queue.clone(), config }).unwrap();
        let body = Arc::new(JobBody { kind: "t".into(), key: "k".into(), payload: Bytes::new() });
        let job = NewJob { body, cost, deadline: None, background: true };
        let waiter = Some(Arc::new(shop.waiter("w", "pro", Some(due))));
        shop.give(JobCommand::Ask { queue: queue.clone(), job, waiter }).unwrap();
        let id = shop.jobs.queue(&queue).unwrap().id();
        shop.jobs.set_wanted(id, true);
        queue
    };
    let [first, second, last] = [ask("first", 5, 0), ask("second", 4, 1), ask("last", 1, 2)];
    let again = |outcome: &TakeOutcome| (outcome.jobs.len(), outcome.again_at, outcome.is_behind);
    let at = |ms| Some(START.plus(Millis(ms)));
    assert_eq!(again(&take(&mut shop, &first)), (0, at(2000), false));
    assert_eq!(again(&take(&mut shop, &second)), (0, at(6000), true), "5 before it, and 4");
    assert_eq!(again(&take(&mut shop, &last)), (0, at(7000), true), "9 before it, and 1");
    shop.pass(Millis(2000));
    assert!(take(&mut shop, &last).jobs.is_empty(), "five tokens are there, for the first");
    assert_eq!(take(&mut shop, &first).jobs.len(), 1);
    assert_eq!(again(&take(&mut shop, &second)), (0, at(6000), false));
}

#[test]
fn what_can_never_be_paid_is_refused_or_fails_and_holds_up_nobody() {
    let config = BudgetConfig { initial: 20, capacity: Some(20), refill: None };
    let mut shop = Shop::paid_by(config, JobQueueConfig::default());
    let refused = shop.ask_at("k", 21, None).unwrap_err();
    assert!(refused.to_string().contains("never holds more than 20"), "{refused}");
    let dear = shop.ask_at("dear", 20, None).unwrap().job;
    shop.ask_at("cheap", 1, None).unwrap();
    shop.give(JobCommand::PutBudget { name: api(), config: BudgetConfig { capacity: Some(10), ..config } })
        .unwrap();
    assert_eq!(&*shop.take().unwrap().body.key, "cheap");
    let JobState::Finished(finish) = shop.state(dear) else { panic!() };
    assert!(matches!(&finish.outcome, Outcome::Failed(error) if error.contains("costs 20 tokens")));
}

#[test]
fn what_can_never_be_paid_fails_also_where_others_may_overtake_it() {
    let config = BudgetConfig { initial: 20, capacity: Some(20), refill: None };
    let affordable = JobQueueConfig { overtake: Overtake::Affordable, ..JobQueueConfig::default() };
    let mut shop = Shop::paid_by(config, affordable);
    let dear: Vec<JobId> =
        (0..150).map(|number| shop.ask_at(&format!("dear {number}"), 12, None).unwrap().job).collect();
    shop.ask_at("cheap", 4, None).unwrap();
    shop.ask_at("all of it", 10, None).unwrap();
    let smaller = BudgetConfig { capacity: Some(10), ..config };
    shop.give(JobCommand::PutBudget { name: api(), config: smaller }).unwrap();
    assert_eq!(&*shop.take().unwrap().body.key, "cheap", "the first that can be paid");
    let failed = |shop: &Shop| {
        let has_failed = |job: &&JobId| {
            let JobState::Finished(finish) = shop.state(**job) else { return false };
            matches!(&finish.outcome, Outcome::Failed(error) if error.contains("never holds more than 10"))
        };
        dear.iter().filter(has_failed).count()
    };
    assert_eq!(failed(&shop), 100, "not all under one hold of the lock");
    assert_eq!(shop.take(), None, "six tokens are left");
    assert_eq!(failed(&shop), 150);
    assert_eq!(shop.jobs.queue(&name()).unwrap().figures().failed, 150, "each once");
    assert_eq!(shop.jobs.queue(&name()).unwrap().pending(), 1);
}

#[test]
fn jobs_that_are_finished_cost_nothing_when_the_oldest_is_handed_out_again_and_again() {
    let took = |finished: u64| {
        let mut shop = Shop::new();
        let urgent = shop.waiter("w", "business", Some(0));
        shop.ask("oldest", Some(urgent));
        let mut receipt = shop.take().unwrap().receipt;
        for number in 0..finished {
            shop.ask(&number.to_string(), None);
            let done = shop.take().unwrap().receipt;
            shop.complete(done).unwrap();
        }
        let began = std::time::Instant::now();
        for _ in 0..500 {
            shop.give(JobCommand::GiveBack { receipt }).unwrap();
            receipt = shop.take().unwrap().receipt;
        }
        began.elapsed()
    };
    let (few, many) = (took(10), took(20_000));
    // Looking at all of them takes hundreds of times as long.
    assert!(many < 20 * few, "{few:?} with 10 finished jobs, {many:?} with 20,000");
}

#[test]
fn where_memory_is_short_the_oldest_finished_jobs_are_forgotten_first() {
    let mut shop = Shop::new();
    let reply = Reply::Queue(QueueName::new("answers").unwrap());
    let unanswered = Waiter { reply, ..shop.waiter("unanswered", "pro", None) };
    shop.ask("pending", None);
    let mut done = Vec::new();
    for (key, waiter) in [("a", None), ("b", Some(unanswered)), ("c", None), ("d", None)] {
        let waiter = Some(waiter.unwrap_or_else(|| shop.waiter(key, "pro", None)));
        shop.ask(key, waiter);
        let receipt = shop.take().unwrap().receipt;
        shop.complete(receipt).unwrap();
        done.push(receipt.job);
    }
    assert_eq!(shop.give(JobCommand::Shrink { max: 2 }).unwrap(), JobAnswer::Looked(2));
    let left = |shop: &Shop| done.iter().map(|job| shop.jobs.job(*job).is_some()).collect::<Vec<_>>();
    assert_eq!(left(&shop), [false, true, false, true], "b is still to be answered");
    shop.give(JobCommand::Answered { job: done[1], before: 1 }).unwrap();
    shop.restore();
    assert_eq!(shop.give(JobCommand::Shrink { max: 9 }).unwrap(), JobAnswer::Looked(2));
    assert_eq!(left(&shop), [false; 4]);
    assert_eq!(shop.jobs.queue(&name()).unwrap().pending(), 1);
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() {
    let mut shop = Shop::new();
    let mut put = |config: JobQueueConfig| {
        let name = JobQueueName::new("other").unwrap();
        shop.give(JobCommand::PutQueue { name, config: Arc::new(config) }).unwrap_err().to_string()
    };
    let defaults = JobQueueConfig::default;
    assert!(put(JobQueueConfig { lease: Millis(0), ..defaults() }).contains("lease_ms"));
    assert!(put(JobQueueConfig { max_attempts: 0, ..defaults() }).contains("max_attempts"));
    assert!(put(JobQueueConfig { bands: Vec::new(), ..defaults() }).contains("bands"));
    assert!(put(JobQueueConfig { score: Some("waiters +".into()), ..defaults() }).contains("the score"));
    assert!(put(JobQueueConfig { score: Some("nobody".into()), ..defaults() }).contains("nobody"));
    assert!(put(JobQueueConfig { score: Some("'text'".into()), ..defaults() }).contains("the score"));
    let costs = [("search".into(), "size(payload".into())].into();
    assert!(put(JobQueueConfig { costs, ..defaults() }).contains("a cost"));
    let budget = Some(BudgetName::new("none").unwrap());
    assert!(put(JobQueueConfig { budget, ..defaults() }).contains("no budget 'none'"));
    let refused = shop.jobs.queue(&name()).unwrap().config().class_value(&name(), "gold").unwrap_err();
    assert!(refused.to_string().contains("business, free, pro, starter"), "{refused}");
}

#[test]
fn a_queues_own_policy_decides_and_follows_the_clock_too() {
    let score = "prefetch ? 1000 : due_minutes - age_minutes - waiters";
    let mut shop = Shop::with(JobQueueConfig { score: Some(score.into()), ..JobQueueConfig::default() });
    let waiter = shop.waiter("w", "pro", Some(5));
    let job = shop.ask("k", Some(waiter)).job;
    assert_eq!(shop.score(job), 4.0);
    shop.pass(Millis(3 * MINUTE));
    assert_eq!(shop.score(job), 2.0 - 3.0 - 1.0);
    shop.pass(Millis(30 * MINUTE));
    assert_eq!(shop.score(job), -28.0 - 33.0 - 1.0);
    let failing = JobQueueConfig { score: Some("1 / (waiters - 1)".into()), ..JobQueueConfig::default() };
    shop.give(JobCommand::PutQueue { name: name(), config: Arc::new(failing) }).unwrap();
    assert_eq!(shop.score(job), f64::MAX, "who cannot be scored goes last");
}

#[test]
fn why_a_score_cannot_be_found_is_told_once_and_kept_until_there_is_another_policy() {
    let failing = JobQueueConfig { score: Some("100 / (waiters - 1)".into()), ..JobQueueConfig::default() };
    let mut shop = Shop::with(failing.clone());
    for key in ["a", "b"] {
        let waiter = shop.waiter(key, "pro", None);
        shop.ask(key, Some(waiter));
    }
    let told = |shop: &mut Shop| shop.jobs.take_score_errors();
    let errors = told(&mut shop);
    assert_eq!(errors.len(), 1, "both fail in the same way: {errors:?}");
    let (queue, error) = &errors[0];
    assert!(*queue == name() && error.contains("zero"), "{error}");
    let known = |shop: &Shop| {
        let queue = shop.jobs.queue(&name()).unwrap();
        (queue.score_failures(), queue.score_error())
    };
    assert_eq!(known(&shop), (2, Some(format!("job 1: {error}"))));
    let second = shop.waiter("second", "pro", None);
    shop.ask("a", Some(second));
    assert_eq!((known(&shop).0, told(&mut shop)), (2, Vec::new()), "with two waiters it can be evaluated");
    for score in [None, failing.score] {
        let config = JobQueueConfig { score, ..JobQueueConfig::default() };
        shop.give(JobCommand::PutQueue { name: name(), config: Arc::new(config) }).unwrap();
        let is_failing = known(&shop).1.is_some();
        assert_eq!(told(&mut shop).len(), usize::from(is_failing));
    }
    assert_eq!(known(&shop).0, 3);
    let huge = JobQueueConfig { score: Some("1e308 * 10.0".into()), ..JobQueueConfig::default() };
    shop.give(JobCommand::PutQueue { name: name(), config: Arc::new(huge) }).unwrap();
    assert!(known(&shop).1.unwrap().contains("it is inf"));
}

#[test]
fn a_score_that_takes_too_much_work_goes_last_and_holds_up_nobody() {
    let score = "key.matches('[a-h]{1,300}z') ? 1 : 2";
    let mut shop = Shop::with(JobQueueConfig { score: Some(score.into()), ..JobQueueConfig::default() });
    let long = shop.ask(&"a".repeat(1_024), None).job;
    let short = shop.ask("a", None).job;
    assert_eq!((shop.score(long), shop.score(short)), (f64::MAX, 2.0));
    assert_eq!(shop.take().unwrap().receipt.job, short);
}
