//! One job queue: its jobs, the ways to find them, and the order in which they are served.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nexo_types::{BudgetId, JobId, JobQueueId, JobQueueName, Millis, Timestamp};

use super::config::JobQueueConfig;
use super::expressions::CostRule;
use super::figures::Figures;
use super::job::{Job, JobState};
use super::keys::{KeyIndex, WaiterIndex};
use super::numbers::Numbers;
use super::order::Order;
use super::pending_kinds::PendingKinds;
use super::score::{Score, ScorePolicy, Standing};
use super::score_failures::ScoreFailures;
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
    /// Those that are pending, since numbers count up from the oldest on.
    pub(super) pending_numbers: Numbers,
    /// Finished jobs whose waiters all have their answers: where memory is short they are forgotten, the oldest first.
    pub(super) answered: Numbers,
    pub(super) pending_kinds: PendingKinds,
    pub(super) memory_bytes: u64,
    // And this by whoever hands out.
    pub(super) order: Order,
    policy: ScorePolicy,
    pub(super) failures: ScoreFailures,
    costs: BTreeMap<Arc<str>, CostRule>,
    /// How many jobs have a score in each band.
    bands: Vec<u64>,
    /// How far all jobs have been looked at again, if they are.
    again: Option<Again>,
    /// Whether another job may be the first, of which nobody was told yet.
    is_moved: bool,
}

/// A look at all jobs, which settings have made necessary. It is done in slices: a million jobs are not looked at under one hold
/// of the lock.
#[derive(Clone, Copy, Debug)]
struct Again {
    /// Jobs with lower numbers have been looked at. Only they are counted in bands.
    from: u64,
    /// Whether their scores are found again, and not only counted.
    scores: bool,
}

/// What a look at scores came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refreshed {
    /// Whether there are more to look at.
    pub more: bool,
    /// Whether another job may be the first, or more jobs can be handed out.
    pub moved: bool,
}

/// How many pending jobs have a score in a band.
#[derive(Clone, Debug, PartialEq)]
pub struct BandCount {
    /// As the settings call it.
    pub name: Arc<str>,
    /// Pending ones whose score is in it.
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
            pending_numbers: Numbers::default(),
            answered: Numbers::default(),
            pending_kinds: PendingKinds::default(),
            memory_bytes: 0,
            order: Order::default(),
            policy: ScorePolicy::Default,
            failures: ScoreFailures::default(),
            costs: BTreeMap::new(),
            bands: Vec::new(),
            again: None,
            is_moved: false,
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

    /// How often a score could not be found since this node has had the queue. Such jobs go last.
    #[must_use]
    pub const fn score_failures(&self) -> u64 {
        self.failures.count()
    }

    /// Why the policy that it has failed last, if it has, and for which job.
    #[must_use]
    pub fn score_error(&self) -> Option<String> {
        let (number, error) = self.failures.last()?;
        Some(format!("job {}: {error}", JobId::new(self.id, *number)))
    }

    /// How long the oldest pending job has waited.
    #[must_use]
    pub fn oldest_age(&self, now: Timestamp) -> Option<Millis> {
        let job = self.jobs.get(self.pending_numbers.first()?)?;
        Some(now.since(job.created_at))
    }

    /// Pending jobs in the order in which they would be served now; then those that cannot be.
    pub fn in_order(&self) -> impl Iterator<Item = Pending<'_>> {
        let listed = |(number, job)| Pending { id: JobId::new(self.id, number), job, score: job.score() };
        let first = self.order.iter().filter_map(|(_, number)| Some((number, self.jobs.get(number)?)));
        let pending = self.pending_numbers.iter().filter_map(|number| Some((number, self.jobs.get(number)?)));
        let rest = pending.filter(|(_, job)| job.standing.is_none());
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
        due.into_iter().chain(self.next_change()).min()
    }

    /// When a score is next to be looked at, if ever.
    pub(super) fn next_change(&self) -> Option<Timestamp> {
        if self.again.is_some() { Some(Timestamp(0)) } else { self.order.next_change() }
    }

    /// Whether all scores are those of now, so that the first job is the most urgent.
    pub(super) fn is_in_order(&self, now: Timestamp) -> bool {
        !self.again.is_some_and(|again| again.scores) && self.order.next_change().is_none_or(|at| at > now)
    }

    /// Whether its jobs are all counted in bands.
    #[cfg(test)]
    pub(super) const fn is_counted(&self) -> bool {
        self.again.is_none()
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
        let scores = config.score != self.config.score;
        let bands = self.bands.is_empty() || config.bands != self.config.bands;
        if scores {
            // What cannot be compiled was checked when it was set, so a later build knows less. The default is better than nothing.
            self.policy = ScorePolicy::new(config.score.as_deref()).unwrap_or(ScorePolicy::Default);
            self.failures.begin_anew();
        }
        let rule =
            |(kind, source): (&Arc<str>, &Arc<str>)| Some((Arc::clone(kind), CostRule::new(source).ok()?));
        self.costs = config.costs.iter().filter_map(rule).collect();
        self.config = config;
        self.budget = budget;
        if scores || bands {
            self.look_again(scores);
        }
    }

    /// Has all jobs looked at again, from the first.
    fn look_again(&mut self, scores: bool) {
        let scores = scores || self.again.is_some_and(|again| again.scores);
        self.bands = vec![0; self.config.bands.len()];
        self.again = (self.jobs.len() > 0).then_some(Again { from: 0, scores });
    }

    /// Notes that a job's score is to be found. Where nobody finds them, on a node that only follows, the notes would grow for
    /// ever: rather all are found again if the time comes.
    pub(super) fn rescore(&mut self, number: u64) {
        const NOTES_MIN: usize = 1024;
        self.order.rescore(number);
        if self.order.unscored() > NOTES_MIN.max(2 * self.jobs.len()) {
            self.order.forget_unscored();
            self.look_again(true);
        }
    }

    /// Finds scores that are to be found, and follows those that change with the clock.
    pub(super) fn refresh(&mut self, now: Timestamp, max: usize) -> Refreshed {
        let is_due = |queue: &Self| queue.next_change().is_some_and(|at| at <= now);
        if !is_due(self) {
            return Refreshed::default();
        }
        let first = self.order.first();
        for _ in 0..max {
            let Some(number) = self.order.next_unscored(now) else {
                self.stand_again(now, max);
                break;
            };
            self.take_out(number);
            self.put_in(number, now);
            // It may have been the first before it was taken out, or be one that can be paid.
            self.is_moved = true;
        }
        if let Some(again) = self.again {
            self.go_on(again, now, max);
        }
        self.is_moved |= self.order.first() != first;
        let more = is_due(self);
        // Whoever asks now gets nothing, and looks again when all scores are found.
        self.is_moved |= more;
        Refreshed { more, moved: !more && std::mem::take(&mut self.is_moved) }
    }

    /// Looks at some jobs again.
    fn go_on(&mut self, Again { from, scores }: Again, now: Timestamp, max: usize) {
        let listed = |(number, job): (u64, &Job)| (number, job.is_pending(), job.standing);
        let jobs: Vec<(u64, bool, Option<Standing>)> = self.jobs.from(from).take(max).map(listed).collect();
        let is_end = jobs.len() < max;
        self.again = jobs.last().filter(|_| !is_end).map(|(last, ..)| Again { from: last + 1, scores });
        for (number, is_pending, standing) in jobs {
            if scores && is_pending {
                self.take_out_uncounted(number);
                self.put_in(number, now);
            } else if let Some(standing) = standing {
                self.bands[self.config.band_of(standing.score.0)] += 1;
            }
        }
        self.is_moved |= scores;
    }

    /// Finds the scores of jobs in the order again whose standing has ended. Nothing else about them has changed: they would
    /// have been taken out. A million jobs come by here again and again, and none of them is in the processor's caches. So all
    /// are looked at before any is moved: then the memory of several is waited for at once.
    fn stand_again(&mut self, now: Timestamp, max: usize) {
        let Self { order, jobs, policy, failures, config, bands, again, .. } = self;
        let ended = std::iter::from_fn(|| order.next_changed(now)).take(max);
        let stand = |(until, number): (Timestamp, u64)| {
            let job = jobs.get(number)?;
            let before = job.standing.filter(|standing| standing.until == until)?;
            let (standing, error) = policy.standing(job, now);
            if let Some(error) = error {
                failures.note(number, &error);
            }
            Some((number, job.cost, before, standing))
        };
        let moves: Vec<(u64, u64, Standing, Standing)> = ended.filter_map(stand).collect();
        for (number, cost, before, standing) in moves {
            if let Some(job) = jobs.get_mut(number) {
                job.standing = Some(standing);
            }
            order.stand(number, cost, before, standing);
            let (from, to) = (config.band_of(before.score.0), config.band_of(standing.score.0));
            if from != to && again.is_none_or(|again| number < again.from) {
                bands[from] = bands[from].saturating_sub(1);
                bands[to] += 1;
            }
        }
    }

    /// Takes a job out of the order, if it is in it.
    pub(super) fn take_out(&mut self, number: u64) {
        if let Some(standing) = self.take_out_uncounted(number).filter(|_| self.counts(number)) {
            let band = self.config.band_of(standing.score.0);
            self.bands[band] = self.bands[band].saturating_sub(1);
        }
    }

    /// The same, and it stays counted in its band.
    fn take_out_uncounted(&mut self, number: u64) -> Option<Standing> {
        let job = self.jobs.get_mut(number)?;
        if let JobState::Pending { ready_at } = job.state {
            self.order.undelay(ready_at, number);
        }
        let standing = job.standing.take()?;
        self.order.remove(number, job.cost, standing);
        Some(standing)
    }

    /// Whether a job is counted in its band.
    fn counts(&self, number: u64) -> bool {
        self.again.is_none_or(|again| number < again.from)
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
        let (standing, error) = self.policy.standing(job, now);
        if let Some(error) = error {
            self.failures.note(number, &error);
        }
        self.order.insert(number, job.cost, standing);
        if self.counts(number) {
            self.bands[self.config.band_of(standing.score.0)] += 1;
        }
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
}
