//! Job queues, budgets and jobs as clients see them.

use std::sync::Arc;

use bytes::Bytes;
use nexo_broker::job_rules::{
    Budget, Job, JobQueue, JobState, Jobs, KindFigures, Outcome, PendingOf, Times, TokenUse,
};
use nexo_types::{JobId, JobQueueName, Timestamp};

use super::settings;
use crate::proto;

/// Waiters of a job that are named.
const WAITERS_SHOWN: usize = 100;

/// How much is told of a job queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// As one of many.
    Listed,
    /// With figures by type, and by so many keys.
    Whole { keys_max: usize },
}

/// A job queue.
pub(super) fn queue(queue: &JobQueue, now: Timestamp, detail: Detail) -> proto::JobQueue {
    proto::JobQueue {
        name: queue.name().as_str().to_owned(),
        vhost: queue.name().vhost_str().to_owned(),
        created_at_ms: queue.created_at().0,
        config: Some(settings::queue_to_proto(queue.config())),
        figures: Some(figures(queue, now, detail)),
    }
}

fn figures(queue: &JobQueue, now: Timestamp, detail: Detail) -> proto::JobQueueFigures {
    let figures = queue.figures();
    let (types, keys) = match detail {
        Detail::Listed => (Vec::new(), Vec::new()),
        Detail::Whole { keys_max } => {
            let kind = |(kind, of): (&Arc<str>, &KindFigures)| {
                kind_figures(kind, of, Some(queue.pending_of_kind(kind, now)), now)
            };
            (figures.by_kind().map(kind).collect(), dearest(queue, now, keys_max))
        }
    };
    let bands = queue.bands().into_iter();
    proto::JobQueueFigures {
        pending: queue.pending(),
        running: queue.running(),
        finished: queue.finished(),
        waiters: queue.waiters_known(),
        memory_bytes: queue.memory_bytes(),
        oldest_age_ms: queue.oldest_age(now).map(|age| age.0),
        bands: bands
            .map(|band| proto::JobBandCount { name: band.name.to_string(), jobs: band.jobs })
            .collect(),
        created: figures.created,
        joined: figures.joined,
        cache_hits: figures.cache_hits,
        done: figures.done,
        failed: figures.failed,
        cancelled: figures.cancelled,
        expired: figures.expired,
        retried: figures.retried,
        answered: figures.answered,
        tokens: figures.tokens,
        waits: Some(times(&figures.waits)),
        runs: Some(times(&figures.runs)),
        responses: Some(times(&figures.responses)),
        types,
        keys,
        tokens_today: figures.tokens_today(now),
        score_error: queue.score_error().unwrap_or_default(),
        score_failures: queue.score_failures(),
    }
}

/// The keys that used most tokens.
fn dearest(queue: &JobQueue, now: Timestamp, max: usize) -> Vec<proto::JobKindFigures> {
    if max == 0 {
        return Vec::new();
    }
    let mut keys: Vec<_> = queue.figures().by_key().collect();
    keys.sort_by_key(|(_, figures)| std::cmp::Reverse(figures.tokens));
    let mut pending = queue.pending_of_keys(now);
    keys.into_iter().take(max).map(|(key, of)| kind_figures(key, of, pending(key), now)).collect()
}

fn kind_figures(
    name: &str,
    figures: &KindFigures,
    pending: Option<PendingOf>,
    now: Timestamp,
) -> proto::JobKindFigures {
    proto::JobKindFigures {
        name: name.to_owned(),
        done: figures.done,
        failed: figures.failed,
        tokens: figures.tokens,
        cache_hits: figures.cache_hits,
        runs: Some(times(&figures.runs)),
        waits: Some(times(&figures.waits)),
        responses: Some(times(&figures.responses)),
        tokens_today: figures.tokens_today(now),
        pending: pending.map(|pending| pending.jobs),
        oldest_age_ms: pending.and_then(|pending| pending.oldest_age).map(|age| age.0),
    }
}

fn times(times: &Times) -> proto::JobTimes {
    proto::JobTimes {
        count: times.count,
        mean_ms: times.mean().map_or(0, |mean| mean.0),
        max_ms: times.max.0,
    }
}

/// A budget, and the job queues that it pays for.
pub(super) fn budget(budget: &Budget, now: Timestamp, queues: &[JobQueueName]) -> proto::Budget {
    let next = budget.next_tokens(now);
    proto::Budget {
        name: budget.name().as_str().to_owned(),
        vhost: budget.name().vhost_str().to_owned(),
        config: Some(settings::budget_to_proto(budget.config())),
        level: budget.level(now),
        reserved: budget.reserved(),
        used_today: budget.used_today(now),
        used_total: budget.used_total(),
        next_at_ms: next.map(|(at, _)| at.0),
        next_tokens: next.map_or(0, |(_, tokens)| tokens),
        queues: queues.iter().map(|queue| queue.as_str().to_owned()).collect(),
    }
}

/// A job as one of many.
pub(super) fn listed(queue: &JobQueue, id: JobId, job: &Job) -> proto::Job {
    let mut shown = proto::Job {
        job: id.0,
        queue: queue.name().as_str().to_owned(),
        r#type: job.kind().to_owned(),
        key: job.key().to_owned(),
        cost: job.cost(),
        created_at_ms: job.created_at().0,
        attempts: job.attempts(),
        waiters: job.waiting(),
        background: job.is_background(),
        due_at_ms: job.due().map(|at| at.0),
        deadline_at_ms: job.deadline().map(|at| at.0),
        score: job.score(),
        ..proto::Job::default()
    };
    match job.state() {
        JobState::Pending { ready_at } => {
            shown.state = proto::JobState::Pending.into();
            shown.ready_at_ms = Some(ready_at.0);
        }
        JobState::Running(run) => {
            shown.state = proto::JobState::Running.into();
            shown.worker = run.worker.to_string();
            shown.lease_until_ms = Some(run.until.0);
            shown.progress = run.progress.clone();
        }
        JobState::Finished(finish) => {
            shown.state = proto::JobState::Finished.into();
            shown.finished_at_ms = Some(finish.at.0);
            let outcome = match &finish.outcome {
                Outcome::Done(result) => {
                    shown.result_bytes = result.len() as u64;
                    proto::JobOutcome::Done
                }
                Outcome::Failed(error) => {
                    shown.error = error.to_string();
                    proto::JobOutcome::Failed
                }
                Outcome::Cancelled => proto::JobOutcome::Cancelled,
                Outcome::Expired => proto::JobOutcome::Expired,
            };
            shown.outcome = outcome.into();
        }
    }
    shown
}

/// A job with its payload, the first of its waiters, and its result if it is wanted.
pub(super) fn whole(queue: &JobQueue, id: JobId, job: &Job, with_result: bool) -> proto::Job {
    let result = match job.state() {
        JobState::Finished(finish) if with_result => match &finish.outcome {
            Outcome::Done(result) => result.clone(),
            Outcome::Failed(_) | Outcome::Cancelled | Outcome::Expired => Bytes::new(),
        },
        JobState::Finished(_) | JobState::Pending { .. } | JobState::Running(_) => Bytes::new(),
    };
    let waiters = job.waiters().take(WAITERS_SHOWN);
    proto::Job {
        payload: job.body().payload,
        waiter_ids: waiters.map(|(_, waiter)| waiter.id.to_string()).collect(),
        result,
        ..listed(queue, id, job)
    }
}

/// A use of tokens.
pub(super) fn token_use(jobs: &Jobs, used: &TokenUse) -> proto::TokenUse {
    let budget = jobs.budget_by_id(used.budget).map(|budget| budget.name().as_str().to_owned());
    let queue = jobs.queue_by_id(used.job.queue()).map(|queue| queue.name().as_str().to_owned());
    proto::TokenUse {
        at_ms: used.at.0,
        budget: budget.unwrap_or_default(),
        queue: queue.unwrap_or_default(),
        job: used.job.0,
        r#type: used.kind.to_string(),
        key: used.key.to_string(),
        tokens: used.tokens,
        success: used.success,
        took_ms: used.took.0,
    }
}
