//! One job queue: its jobs, the ways to find them, and the order in which they are served.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nexo_types::{BudgetId, JobId, JobQueueId, JobQueueName, Millis, Timestamp};

use super::config::JobQueueConfig;
use super::expressions::CostRule;
use super::figures::Figures;
use super::job::{Job, JobState};
use super::keys::{KeyIndex, WaiterIndex};
use super::order::Order;
use super::pending_kinds::PendingKinds;
use super::score::{Score, ScorePolicy, Standing};
use super::table::JobTable;

/// A job queue.
#[derive(Debug)]
pub struct JobQueue {
    pub(super) id: JobQueueId,
    pub(super) name: JobQueueName,
    pub(super) config: Arc<JobQueueConfig>,
    pub(super) budget: Option<BudgetId>,
    pub(super) created_at: Timestamp,
    /// The number of the next job.
    pub(super) next: u64,
    pub(super) jobs: JobTable,
    pub(super) figures: Figures,
    // What follows is made from the above.
    pub(super) keys: KeyIndex,
    pub(super) waiters: WaiterIndex,
    /// When jobs need attention: each once, at its next deadline.
    pub(super) deadlines: BTreeSet<(Timestamp, u64)>,
    /// Finished jobs with waiters that have no answer yet.
    pub(super) to_answer: BTreeSet<u64>,
    pub(super) running: u64,
    pub(super) pending: u64,
    pub(super) pending_kinds: PendingKinds,
    pub(super) memory_bytes: u64,
    // And this by whoever hands out.
    pub(super) order: Order,
    policy: ScorePolicy,
    costs: BTreeMap<Arc<str>, CostRule>,
    bands: Vec<u64>,
    /// No pending job has a lower number.
    pub(super) oldest: u64,
    /// Whether workers wait for jobs.
    pub(super) is_wanted: bool,
}

/// How many pending jobs have a score in a band.
#[derive(Clone, Debug, PartialEq)]
pub struct BandCount {
    /// The band.
    pub name: Arc<str>,
    /// How many.
    pub jobs: u64,
}

/// A pending job, as it is listed.
#[derive(Clone, Copy, Debug)]
pub struct Pending<'a> {
    /// Its id.
    pub id: JobId,
    /// The job.
    pub job: &'a Job,
    /// Its score; `None` while it cannot be handed out.
    pub score: Option<f64>,
}

impl JobQueue {
    pub(super) fn new(
        id: JobQueueId,
        name: JobQueueName,
        config: Arc<JobQueueConfig>,
        budget: Option<BudgetId>,
        created_at: Timestamp,
    ) -> Self {
        let mut queue = Self {
            id,
            name,
            config: Arc::new(JobQueueConfig::default()),
            budget,
            created_at,
            next: 0,
            jobs: JobTable::default(),
            figures: Figures::default(),
            keys: KeyIndex::default(),
            waiters: WaiterIndex::default(),
            deadlines: BTreeSet::new(),
            to_answer: BTreeSet::new(),
            running: 0,
            pending: 0,
            pending_kinds: PendingKinds::default(),
            memory_bytes: 0,
            order: Order::default(),
            policy: ScorePolicy::Default,
            costs: BTreeMap::new(),
            bands: Vec::new(),
            oldest: 0,
            is_wanted: false,
        };
        queue.configure(config, budget);
        queue
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> JobQueueId {
        self.id
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &JobQueueName {
        &self.name
    }

    /// Its settings.
    #[must_use]
    pub const fn config(&self) -> &Arc<JobQueueConfig> {
        &self.config
    }

    /// The budget that pays for its jobs.
    #[must_use]
    pub const fn budget(&self) -> Option<BudgetId> {
        self.budget
    }

    /// When it was made.
    #[must_use]
    pub const fn created_at(&self) -> Timestamp {
        self.created_at
    }

    /// What is counted of it.
    #[must_use]
    pub const fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Jobs that wait to be handed out.
    #[must_use]
    pub const fn pending(&self) -> u64 {
        self.pending
    }

    /// Jobs that workers have.
    #[must_use]
    pub const fn running(&self) -> u64 {
        self.running
    }

    /// Jobs that are finished and not forgotten yet.
    #[must_use]
    pub const fn finished(&self) -> u64 {
        (self.jobs.len() as u64).saturating_sub(self.pending + self.running)
    }

    /// Finished jobs with waiters to whom answers are still to be brought.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.to_answer.len()
    }

    /// Waiters that are known, also of finished jobs.
    #[must_use]
    pub fn waiters_known(&self) -> u64 {
        self.waiters.len() as u64
    }

    /// What its jobs take in memory, about.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes + self.pending_kinds.memory_bytes()
    }

    /// A job.
    #[must_use]
    pub fn job(&self, number: u64) -> Option<&Job> {
        self.jobs.get(number)
    }

    /// How many pending jobs have a score in each band. Those that cannot be handed out have none.
    #[must_use]
    pub fn bands(&self) -> Vec<BandCount> {
        let counts = self.config.bands.iter().zip(&self.bands);
        counts.map(|(band, jobs)| BandCount { name: Arc::clone(&band.name), jobs: *jobs }).collect()
    }

    /// How long the oldest pending job has waited.
    #[must_use]
    pub fn oldest_age(&self, now: Timestamp) -> Option<Millis> {
        let (_, job) = self.jobs.from(self.oldest).find(|(_, job)| job.is_pending())?;
        Some(now.since(job.created_at))
    }

    /// Pending jobs in the order in which they would be served now; then those that cannot be.
    pub fn in_order(&self) -> impl Iterator<Item = Pending<'_>> {
        let listed = |(number, job)| Pending { id: JobId::new(self.id, number), job, score: job.score() };
        let first = self.order.iter().filter_map(|(_, number)| Some((number, self.jobs.get(number)?)));
        let rest = self.jobs.from(self.oldest).filter(|(_, job)| job.is_pending() && job.standing.is_none());
        first.chain(rest).map(listed)
    }

    /// Jobs of a key that are pending, running or cached.
    pub fn of_key<'a>(&'a self, key: &'a str) -> impl Iterator<Item = (u64, &'a Job)> {
        self.keys.of(&self.jobs, key).filter_map(|number| Some((number, self.jobs.get(number)?)))
    }

    /// The waiter with this id: its job, and its place there.
    #[must_use]
    pub fn waiter(&self, id: &str) -> Option<(JobId, u32)> {
        let (number, place) = self.waiters.find(&self.jobs, id)?;
        Some((JobId::new(self.id, number), place))
    }

    /// What says how much jobs of a type cost.
    #[must_use]
    pub fn cost_rule(&self, kind: &str) -> Option<&CostRule> {
        self.costs.get(kind).or_else(|| self.costs.get(""))
    }

    /// When it next needs attention: a deadline, a score that may change, a delay that ends.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        let due = self.deadlines.first().map(|(at, _)| *at);
        due.into_iter().chain(self.order.next_change()).min()
    }

    /// The first job by the order now.
    pub(super) fn first(&self) -> Option<(Score, u64)> {
        self.order.first()
    }

    /// All jobs from a number on, in the order of their creation.
    pub fn jobs_from(&self, first: u64) -> impl Iterator<Item = (JobId, &Job)> {
        self.jobs.from(first).map(|(number, job)| (JobId::new(self.id, number), job))
    }

    pub(super) fn configure(&mut self, config: Arc<JobQueueConfig>, budget: Option<BudgetId>) {
        // What cannot be compiled was checked when it was set, so a later build knows less. The default is better than nothing.
        self.policy = ScorePolicy::new(config.score.as_deref()).unwrap_or(ScorePolicy::Default);
        let rule =
            |(kind, source): (&Arc<str>, &Arc<str>)| Some((Arc::clone(kind), CostRule::new(source).ok()?));
        self.costs = config.costs.iter().filter_map(rule).collect();
        self.bands = vec![0; config.bands.len()];
        self.config = config;
        self.budget = budget;
        let all: Vec<u64> = self.order.iter().map(|(_, number)| number).collect();
        for number in all {
            self.take_out(number);
            self.order.rescore(number);
        }
    }

    /// Finds scores that are to be found, and follows those that change with the clock. Says whether there are more.
    pub(super) fn refresh(&mut self, now: Timestamp, max: usize) -> bool {
        for _ in 0..max {
            let Some(number) = self.order.next_unscored(now) else {
                self.stand_again(now, max);
                break;
            };
            self.take_out(number);
            self.put_in(number, now);
        }
        self.order.next_change().is_some_and(|at| at <= now)
    }

    /// Finds the scores of jobs in the order again whose standing has ended. Nothing else about them has changed: they would
    /// have been taken out. A million jobs come by here again and again, and none of them is in the processor's caches. So all
    /// are looked at before any is moved: then the memory of several is waited for at once.
    fn stand_again(&mut self, now: Timestamp, max: usize) {
        let Self { order, jobs, policy, config, bands, .. } = self;
        let ended = std::iter::from_fn(|| order.next_changed(now)).take(max);
        let stand = |(until, number): (Timestamp, u64)| {
            let job = jobs.get(number)?;
            let before = job.standing.filter(|standing| standing.until == until)?;
            Some((number, job.cost, before, policy.standing(job, now)))
        };
        let moves: Vec<(u64, u64, Standing, Standing)> = ended.filter_map(stand).collect();
        for (number, cost, before, standing) in moves {
            if let Some(job) = jobs.get_mut(number) {
                job.standing = Some(standing);
            }
            order.stand(number, cost, before, standing);
            let (from, to) = (config.band_of(before.score.0), config.band_of(standing.score.0));
            if from != to {
                bands[from] = bands[from].saturating_sub(1);
                bands[to] += 1;
            }
        }
    }

    /// Takes a job out of the order, if it is in it.
    pub(super) fn take_out(&mut self, number: u64) {
        let Some(job) = self.jobs.get_mut(number) else { return };
        if let JobState::Pending { ready_at } = job.state {
            self.order.undelay(ready_at, number);
        }
        if let Some(standing) = job.standing.take() {
            self.order.remove(number, job.cost, standing);
            let band = self.config.band_of(standing.score.0);
            self.bands[band] = self.bands[band].saturating_sub(1);
        }
    }

    /// Puts a job into the order, if it can be handed out: it is pending, its time has come, and nobody works on its key.
    fn put_in(&mut self, number: u64, now: Timestamp) {
        let Some(job) = self.jobs.get(number) else { return };
        let JobState::Pending { ready_at } = job.state else { return };
        if ready_at > now {
            self.order.delay(ready_at, number);
            return;
        }
        let is_running = self
            .keys
            .of(&self.jobs, job.key())
            .any(|other| other != number && self.jobs.get(other).is_some_and(Job::is_running));
        if is_running {
            return;
        }
        let standing = self.policy.standing(job, now);
        self.order.insert(number, job.cost, standing);
        self.bands[self.config.band_of(standing.score.0)] += 1;
        if let Some(job) = self.jobs.get_mut(number) {
            job.standing = Some(standing);
        }
    }

    /// The pending jobs of a job's key, besides itself.
    pub(super) fn siblings(&self, number: u64) -> Vec<u64> {
        let Some(job) = self.jobs.get(number) else { return Vec::new() };
        let is_pending = |other: &u64| *other != number && self.jobs.get(*other).is_some_and(Job::is_pending);
        self.keys.of(&self.jobs, job.key()).filter(is_pending).collect()
    }

    /// The lowest number that a pending job may have.
    pub(super) fn note_pending(&mut self, number: u64) {
        self.oldest = self.oldest.min(number);
    }

    /// Looks for the oldest pending job from where it was, so that figures find it at once.
    pub(super) fn note_oldest(&mut self) {
        let found = self.jobs.from(self.oldest).find(|(_, job)| job.is_pending());
        self.oldest = found.map_or(self.next, |(number, _)| number);
    }
}
