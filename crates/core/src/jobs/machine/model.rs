//! Two job queues with one budget over any commands: what is served is what sorting by the policy would serve, at every moment, while
//! time moves and waiters join, and what is more urgent in the other queue is paid before; no key is worked on twice; tokens that are
//! handed out were there; and the records give the same state again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{JobId, JobQueueName, Millis, QueueName, Timestamp};
use proptest::prelude::*;

use super::tests::{MINUTE, START, api, name};
use super::*;
use crate::jobs::{
    Band, BudgetConfig, JobBody, JobQueue, JobReceipt, JobState, KindFigures, NewJob, Overtake, Pending,
    PendingOf, Refill, Reply, TokenReport, Waiter, WhileRunning,
};
use crate::machine::check::{Checked, check};

impl Checked for Jobs {
    fn read_back(_: &JobRecord, bytes: Bytes) -> JobRecord {
        <Self as Machine>::decode(&bytes).unwrap()
    }

    fn supply(&mut self, missing: Infallible, _: &[JobRecord]) {
        match missing {}
    }

    fn due(&self, _: Timestamp) -> Option<JobCommand> {
        Some(JobCommand::Due { max: 5 })
    }

    fn prepare(&mut self) {}
}

/// Scores that are looked at in one go.
const REFRESH_SLICE: usize = 3;

/// What a test does, in terms of what there is when it is done.
#[derive(Clone, Debug)]
enum Act {
    Ask { of: Of, key: u8, waiter: Option<u8>, class: u8, due: u8, cost: u8, deadline: Option<u16> },
    Take { of: Of, max: u8 },
    Want { of: Of, is_wanted: bool },
    Tick,
    Complete { held: u8, used: Option<u8>, left: Option<u8> },
    Fail { held: u8, retry: bool },
    GiveBack { held: u8 },
    Extend { held: u8 },
    Cancel { job: u8 },
    Leave { of: Of, waiter: u8 },
    Answered { job: u8 },
    Due,
    Report { left: u8, refill_in: Option<u16> },
    Grant { tokens: u8, wait: u16 },
    Configure { of: Of, overtake: bool, next: bool, own_policy: bool, bands: bool },
    Shrink,
}

/// Which queue it is about.
#[derive(Clone, Copy, Debug)]
enum Of {
    One,
    Other,
}

impl Of {
    fn name(self) -> JobQueueName {
        match self {
            Self::One => name(),
            Self::Other => JobQueueName::new("other").unwrap(),
        }
    }

    const fn rival(self) -> Self {
        match self {
            Self::One => Self::Other,
            Self::Other => Self::One,
        }
    }
}

fn a_queue() -> impl Strategy<Value = Of> {
    prop_oneof![2 => Just(Of::One), 1 => Just(Of::Other)]
}

fn an_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (a_queue(), 0u8..6, prop::option::of(0u8..40), 0u8..4, prop_oneof![0u8..40, 29u8..33], 0u8..7, prop::option::weighted(0.2, 0u16..5000))
            .prop_map(|(of, key, waiter, class, due, cost, deadline)| Act::Ask {
                of, key, waiter, class, due, cost, deadline,
            }),
        5 => (a_queue(), 1u8..4).prop_map(|(of, max)| Act::Take { of, max }),
        1 => (a_queue(), any::<bool>()).prop_map(|(of, is_wanted)| Act::Want { of, is_wanted }),
        3 => Just(Act::Tick),
        3 => (any::<u8>(), prop::option::of(0u8..9), prop::option::weighted(0.3, 0u8..30))
            .prop_map(|(held, used, left)| Act::Complete { held, used, left }),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(held, retry)| Act::Fail { held, retry }),
        1 => any::<u8>().prop_map(|held| Act::GiveBack { held }),
        1 => any::<u8>().prop_map(|held| Act::Extend { held }),
        1 => any::<u8>().prop_map(|job| Act::Cancel { job }),
        1 => (a_queue(), 0u8..40).prop_map(|(of, waiter)| Act::Leave { of, waiter }),
        2 => any::<u8>().prop_map(|job| Act::Answered { job }),
        3 => Just(Act::Due),
        1 => (0u8..30, prop::option::of(0u16..3000)).prop_map(|(left, refill_in)| Act::Report { left, refill_in }),
        1 => (0u8..20, 0u16..5000).prop_map(|(tokens, wait)| Act::Grant { tokens, wait }),
        1 => (a_queue(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>())
            .prop_map(|(of, overtake, next, own_policy, bands)| Act::Configure {
                of, overtake, next, own_policy, bands,
            }),
        1 => Just(Act::Shrink),
    ]
}

fn a_wait() -> impl Strategy<Value = Millis> {
    prop_oneof![
        3 => Just(Millis(0)),
        3 => (0u64..2000).prop_map(Millis),
        3 => (0u64..3 * MINUTE).prop_map(Millis),
        1 => (0u64..70 * MINUTE).prop_map(Millis),
    ]
}

/// A machine that is given acts, and judged after each.
struct Rig {
    jobs: Jobs,
    now: Timestamp,
    held: Vec<JobReceipt>,
    known: Vec<JobId>,
    commands: Vec<(Millis, JobCommand)>,
    wait: Millis,
}

impl Rig {
    fn new() -> Self {
        let mut rig = Self {
            jobs: Jobs::new(),
            now: START,
            held: Vec::new(),
            known: Vec::new(),
            commands: Vec::new(),
            wait: Millis::ZERO,
        };
        let refill = Some(Refill { tokens: 2, every: Millis(700) });
        let config = BudgetConfig { initial: 5, capacity: Some(12), refill };
        rig.give(JobCommand::PutBudget { name: api(), config });
        rig.configure(Of::One, [false; 4]);
        rig.configure(Of::Other, [false; 4]);
        rig
    }

    fn configure(&mut self, of: Of, [overtake, next, own_policy, bands]: [bool; 4]) {
        let all = vec![Band { name: "all".into(), up_to: f64::MAX }];
        let defaults = JobQueueConfig::default();
        let config = JobQueueConfig {
            budget: Some(api()),
            overtake: if overtake { Overtake::Affordable } else { Overtake::Never },
            while_running: if next { WhileRunning::Next } else { WhileRunning::Share },
            score: own_policy.then(|| "prefetch ? 50 : due_minutes * 2 + class - age_minutes".into()),
            max_attempts: 3,
            bands: if bands { all } else { defaults.bands.clone() },
            ..defaults
        };
        self.give(JobCommand::PutQueue { name: of.name(), config: Arc::new(config) });
    }

    fn give(&mut self, command: JobCommand) -> Option<JobAnswer> {
        let decided = self.jobs.decide_command(self.now, &command);
        self.commands.push((std::mem::take(&mut self.wait), command));
        let (records, answer) = decided.ok()?;
        records.iter().for_each(|record| self.jobs.apply_record(record));
        Some(answer)
    }

    fn act(&mut self, wait: Millis, act: &Act) {
        self.now = self.now.plus(wait);
        self.wait = Millis(self.wait.0 + wait.0);
        let pick = |list: &[JobReceipt], at: u8| list.get(at as usize % list.len().max(1)).copied();
        match act {
            Act::Ask { of, key, waiter, class, due, cost, deadline } => {
                let body = JobBody {
                    kind: format!("type {}", key % 2).into(),
                    key: format!("key {key}").into(),
                    payload: Bytes::from_static(b"{}"),
                };
                let deadline = deadline.map(|wait| self.now.plus(Millis(wait.into())));
                let answers = QueueName::new("answers").unwrap();
                let waiter = waiter.map(|id| {
                    Arc::new(Waiter {
                        id: format!("waiter {id}").into(),
                        user: "anna".into(),
                        class: "".into(),
                        class_value: [0, 3, 6, 10][usize::from(*class)],
                        due: (*due < 35).then(|| self.now.plus(Millis(u64::from(*due) * MINUTE))),
                        filter: "".into(),
                        reply: if id % 2 == 0 { Reply::Call } else { Reply::Queue(answers.clone()) },
                        at: self.now,
                    })
                });
                let (cost, background) = ((*cost).into(), class % 2 == 0);
                let job = NewJob { body: Arc::new(body), cost, deadline, background };
                if let Some(JobAnswer::Asked(asked)) =
                    self.give(JobCommand::Ask { queue: of.name(), job, waiter })
                {
                    self.known.push(asked.job);
                }
            }
            Act::Take { of, max } => self.take(*of, *max),
            Act::Want { of, is_wanted } => {
                let id = self.jobs.queue(&of.name()).unwrap().id();
                self.jobs.set_wanted(id, *is_wanted);
            }
            // As the thread that brings time does, and so little at a time that there is mostly more to do.
            Act::Tick => {
                self.jobs.refresh(self.now, REFRESH_SLICE);
            }
            Act::Complete { held, used, left } => {
                let Some(receipt) = pick(&self.held, *held) else { return };
                let report = TokenReport { tokens_left: left.map(i64::from), ..TokenReport::default() };
                let result = Bytes::from_static(b"[1]");
                self.give(JobCommand::Complete { receipt, result, used: used.map(u64::from), report });
            }
            Act::Fail { held, retry } => {
                let Some(receipt) = pick(&self.held, *held) else { return };
                let (error, report) = ("no".into(), TokenReport::default());
                self.give(JobCommand::Fail { receipt, error, used: None, report, retry: *retry });
            }
            Act::GiveBack { held } => {
                let Some(receipt) = pick(&self.held, *held) else { return };
                self.give(JobCommand::GiveBack { receipt });
            }
            Act::Extend { held } => {
                let Some(receipt) = pick(&self.held, *held) else { return };
                let progress = Some(Bytes::from_static(b"50"));
                self.give(JobCommand::Extend { receipt, lease: Some(Millis(5000)), progress });
            }
            Act::Cancel { job } => {
                if let Some(job) = self.known.get(*job as usize % self.known.len().max(1)).copied() {
                    self.give(JobCommand::Cancel { job });
                }
            }
            Act::Leave { of, waiter } => {
                let waiter = format!("waiter {waiter}").into();
                self.give(JobCommand::Leave { queue: of.name(), waiter });
            }
            Act::Answered { job } => {
                if let Some(job) = self.known.get(*job as usize % self.known.len().max(1)).copied()
                    && let Some((_, found)) = self.jobs.job(job)
                {
                    let before = found.places();
                    self.give(JobCommand::Answered { job, before });
                }
            }
            Act::Due => drop(self.give(JobCommand::Due { max: 5 })),
            Act::Report { left, refill_in } => {
                let report = TokenReport {
                    tokens_left: Some((*left).into()),
                    refill_in: refill_in.map(|wait| Millis(wait.into())),
                    refill_tokens: None,
                };
                self.give(JobCommand::Report { budget: api(), report });
            }
            Act::Grant { tokens, wait } => {
                let when = self.now.plus(Millis((*wait).into()));
                self.give(JobCommand::Grant { budget: api(), tokens: (*tokens).into(), when });
            }
            Act::Configure { of, overtake, next, own_policy, bands } => {
                self.configure(*of, [*overtake, *next, *own_policy, *bands]);
            }
            Act::Shrink => drop(self.give(JobCommand::Shrink { max: 2 })),
        }
    }

    /// Takes jobs, and holds them against a sorted list.
    fn take(&mut self, of: Of, max: u8) {
        // The first of the other queue counts as far as its scores are found.
        let rival = self.jobs.queue(&of.rival().name()).unwrap().id();
        while self.jobs.refresh_queue(rival, self.now, REFRESH_SLICE).more {}
        let ahead = self.ahead_of(of);
        let queue = self.jobs.queue(&of.name()).unwrap();
        let budget = self.jobs.budget(&api()).unwrap();
        let sorted = self.sorted(of);
        let mut level = budget.level(self.now);
        let mut expected: Vec<JobId> = Vec::new();
        let mut keys = BTreeSet::new();
        let affordable = queue.config().overtake == Overtake::Affordable;
        for (score, id) in &sorted {
            let (_, job) = self.jobs.job(*id).unwrap();
            let before = ahead.filter(|(rank, _)| !affordable && *rank < (*score, job.created_at()));
            let needed = job.cost() + before.map_or(0, |(_, cost)| cost);
            let pays = job.cost() == 0 || level >= needed as i64;
            if affordable && expected.is_empty() && !pays {
                continue;
            }
            if expected.len() >= usize::from(max) || (affordable && !expected.is_empty()) {
                break;
            }
            if keys.contains(job.key()) {
                continue;
            }
            if !pays {
                break;
            }
            level -= job.cost() as i64;
            keys.insert(job.key().to_owned());
            expected.push(*id);
        }
        let take = JobCommand::Take {
            queue: of.name(),
            worker: "w".into(),
            lease: Some(Millis(90_000)),
            max: max.into(),
        };
        let before = self.jobs.budget(&api()).unwrap().level(self.now);
        // Scores are found a few at a time, as a broker does. Nothing is handed out before all are.
        let id = self.jobs.queue(&of.name()).unwrap().id();
        let outcome = loop {
            self.jobs.refresh_queue(id, self.now, REFRESH_SLICE);
            match self.jobs.decide_command(self.now, &take) {
                Ok((records, JobAnswer::Taken(outcome))) if outcome.is_unsorted => {
                    assert!(records.is_empty() && outcome.jobs.is_empty() && outcome.again_at.is_some());
                }
                _ => break self.give(take),
            }
        };
        let Some(JobAnswer::Taken(outcome)) = outcome else { panic!("a take is answered") };
        let taken: Vec<JobId> = outcome.jobs.iter().map(|handed| handed.receipt.job).collect();
        assert_eq!(taken, expected, "what is served is what sorting gives");
        assert!(outcome.again_at.is_none_or(|at| at > self.now), "whoever waits does not look again at once");
        let cost: u64 = outcome.jobs.iter().map(|handed| handed.cost).sum();
        assert!(cost == 0 || cost as i64 <= before, "{cost} tokens of {before} were handed out");
        self.held.extend(outcome.jobs.iter().map(|handed| handed.receipt));
    }

    /// How urgent the first job of the other queue is and what it costs, if it is to be paid before less urgent ones.
    fn ahead_of(&self, of: Of) -> Option<((i64, Timestamp), u64)> {
        let rival = self.jobs.queue(&of.rival().name()).unwrap();
        if !self.jobs.wanted.contains(&rival.id()) || rival.config().overtake == Overtake::Affordable {
            return None;
        }
        let (score, id) = *self.sorted(of.rival()).first()?;
        let (_, job) = self.jobs.job(id)?;
        Some(((score, job.created_at()), job.cost()))
    }

    /// Jobs that could be handed out, sorted by the policy as it is told in words, each with its score.
    fn sorted(&self, of: Of) -> Vec<(i64, JobId)> {
        let queue = self.jobs.queue(&of.name()).unwrap();
        let running: BTreeSet<String> = queue
            .jobs_from(0)
            .filter(|(_, job)| matches!(job.state(), JobState::Running(_)))
            .map(|(_, job)| job.key().to_owned())
            .collect();
        let mut rows: Vec<(i64, JobId)> = Vec::new();
        for (id, job) in queue.jobs_from(0) {
            let JobState::Pending { ready_at } = job.state() else { continue };
            if *ready_at > self.now || running.contains(job.key()) {
                continue;
            }
            let waiters: Vec<Waiter> = job.waiters().map(|(_, waiter)| waiter).collect();
            let due = waiters.iter().filter_map(|waiter| waiter.due).min();
            let minutes = due.map(|due| (due.0 as i64 - self.now.0 as i64).div_euclid(MINUTE as i64));
            let class = waiters.iter().map(|waiter| waiter.class_value).min().unwrap_or(0);
            let score = if queue.config().score.is_some() {
                let age = (self.now.0 - job.created_at().0) as i64 / MINUTE as i64;
                if job.is_background() { 50 } else { minutes.unwrap_or(1_000_000) * 2 + class - age }
            } else if job.is_background() {
                100
            } else {
                minutes.unwrap_or(30).clamp(0, 30) + (20 - 2 * waiters.len() as i64).max(0) + class
            };
            rows.push((score, id));
        }
        rows.sort_unstable();
        rows
    }

    fn judge(&self) {
        let reserved = self.judge_queue(Of::One) + self.judge_queue(Of::Other);
        assert_eq!(self.jobs.budget(&api()).unwrap().reserved(), reserved);
    }

    /// Gives back what its jobs have reserved.
    fn judge_queue(&self, of: Of) -> u64 {
        let queue = self.jobs.queue(&of.name()).unwrap();
        if queue.is_in_order(self.now) {
            let scored = queue.in_order().filter(|pending| pending.score.is_some());
            let listed: Vec<JobId> = scored.map(|Pending { id, .. }| id).collect();
            let sorted: Vec<JobId> = self.sorted(of).into_iter().map(|(_, id)| id).collect();
            assert_eq!(listed, sorted);
            if queue.is_counted() {
                let bands: u64 = queue.bands().iter().map(|band| band.jobs).sum();
                assert_eq!(bands, listed.len() as u64, "each has a band");
            }
        }
        let mut keys = BTreeSet::new();
        let mut reserved = 0;
        let (mut pending, mut waiters) = (0, 0);
        for (id, job) in queue.jobs_from(0) {
            match job.state() {
                JobState::Pending { .. } => pending += 1,
                JobState::Running(_) => {
                    assert!(keys.insert(job.key().to_owned()), "'{}' is worked on twice", job.key());
                    reserved += job.cost();
                }
                JobState::Finished(_) => {}
            }
            for (place, waiter) in job.waiters() {
                assert_eq!(
                    queue.waiter(&waiter.id),
                    Some((id, place)),
                    "a waiter is found, and is there once"
                );
                waiters += 1;
            }
        }
        assert_eq!((queue.pending(), queue.waiters_known()), (pending, waiters));
        self.judge_pending_of(queue);
        let oldest = queue.jobs_from(0).find(|(_, job)| matches!(job.state(), JobState::Pending { .. }));
        assert_eq!(queue.oldest_age(self.now), oldest.map(|(_, job)| self.now.since(job.created_at())));
        reserved
    }
}

impl Rig {
    /// How many are pending of each type and key, and how old the oldest is, is what counting all jobs says.
    fn judge_pending_of(&self, queue: &JobQueue) {
        let (mut by_kind, mut by_key) = (BTreeMap::new(), BTreeMap::new());
        for (_, job) in queue.jobs_from(0) {
            let is_pending = matches!(job.state(), JobState::Pending { .. });
            let age = is_pending.then(|| self.now.since(job.created_at()));
            for (rows, name) in [(&mut by_kind, job.kind()), (&mut by_key, job.key())] {
                let row: &mut PendingOf = rows.entry(name.to_owned()).or_default();
                row.jobs += u64::from(is_pending);
                row.oldest_age = row.oldest_age.max(age);
            }
        }
        for (kind, expected) in &by_kind {
            assert_eq!(queue.pending_of_kind(kind, self.now), *expected, "{kind}");
        }
        let mut pending = queue.pending_of_keys(self.now);
        for (key, expected) in &by_key {
            assert_eq!(pending(key), Some(*expected), "{key}");
        }
        let figures = queue.figures();
        let whole = [
            figures.waits.count,
            figures.waits.total.0,
            figures.responses.count,
            figures.responses.total.0,
            figures.tokens,
            figures.tokens_today(self.now),
        ];
        assert_eq!(self.sums(figures.by_kind()), whole, "types make up the whole");
        assert_eq!(self.sums(figures.by_key()), whole, "and so do keys");
    }

    fn sums<'a>(&self, rows: impl Iterator<Item = (&'a Arc<str>, &'a KindFigures)>) -> [u64; 6] {
        rows.fold([0; 6], |sums, (_, row)| {
            let (waits, responses) = (row.waits, row.responses);
            let (used, today) = (row.tokens, row.tokens_today(self.now));
            let row = [waits.count, waits.total.0, responses.count, responses.total.0, used, today];
            std::array::from_fn(|at| sums[at] + row[at])
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_is_served_is_what_sorting_by_the_policy_would_serve(
        acts in prop::collection::vec((a_wait(), an_act()), 1..60),
    ) {
        let mut rig = Rig::new();
        for (wait, act) in &acts {
            rig.act(*wait, act);
            rig.judge();
        }
        // The same commands, on two nodes, with snapshots taken in between.
        check(Jobs::new, rig.commands);
    }
}
