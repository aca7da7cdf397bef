//! Job queues, budgets and jobs as JSON, and settings from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use nexo_broker::Backoff;
use nexo_broker::job_rules::{
    Band, Budget, BudgetConfig, EmptyAnswers, Handed, Job, JobQueue, JobQueueConfig, JobState, KindFigures,
    Overtake, PendingOf, Refill, Reply, Times, TokenUse, WhileRunning,
};
use nexo_types::{BudgetName, JobId, Timestamp, VhostName, limits};
use serde_json::{Map, Value, json};

use super::super::body::Fields;
use super::super::error::ApiError;
use super::{count, millis, refuse_unknown, truth};

/// The largest factor of a back-off.
const FACTOR_MAX: f64 = limits::BACKOFF_FACTOR_PERMILLE_MAX as f64 / 1000.0;

/// The settings of a job queue, as they are shown and set.
const QUEUE_SETTINGS: &[&str] = &[
    "budget",
    "window_ms",
    "while_running",
    "answer_from_cache",
    "result_ttl_ms",
    "remember_ms",
    "lease_ms",
    "max_attempts",
    "retry",
    "empty_answers",
    "overtake",
    "score",
    "classes",
    "costs",
    "bands",
    "pending_max",
    "paused",
];

pub(super) fn config_json(config: &JobQueueConfig) -> Value {
    json!({
        "budget": config.budget.as_ref().map(BudgetName::as_str),
        "window_ms": config.window.0,
        "while_running": match config.while_running {
            WhileRunning::Share => "share",
            WhileRunning::Next => "next",
        },
        "answer_from_cache": config.answer_from_cache,
        "result_ttl_ms": config.result_ttl.0,
        "remember_ms": config.remember.0,
        "lease_ms": config.lease.0,
        "max_attempts": config.max_attempts,
        "retry": match config.retry {
            Backoff::None => json!({ "base_ms": 0 }),
            Backoff::Fixed { delay } => json!({ "base_ms": delay.0, "factor": 1, "cap_ms": delay.0 }),
            Backoff::Exponential { base, factor_permille, cap } => {
                json!({ "base_ms": base.0, "factor": f64::from(factor_permille) / 1000.0, "cap_ms": cap.0 })
            }
        },
        "empty_answers": match config.empty_answers {
            EmptyAnswers::Send => "send",
            EmptyAnswers::Skip => "skip",
        },
        "overtake": match config.overtake {
            Overtake::Never => "never",
            Overtake::Affordable => "affordable",
        },
        "score": config.score.as_deref(),
        "classes": config.classes.iter().map(|(name, value)| (name.to_string(), json!(value))).collect::<Map<_, _>>(),
        "costs": config.costs.iter().map(|(kind, cost)| (kind.to_string(), json!(&**cost))).collect::<Map<_, _>>(),
        "bands": config.bands.iter().map(|band| {
            let up_to = (band.up_to < f64::MAX).then_some(band.up_to);
            json!({ "name": &*band.name, "up_to": up_to })
        }).collect::<Vec<_>>(),
        "pending_max": config.pending_max,
        "paused": config.paused,
    })
}

/// Settings that are given on top of those there are.
pub(super) fn config_of(
    vhost: &VhostName,
    mut config: JobQueueConfig,
    object: &Map<String, Value>,
) -> Result<JobQueueConfig, ApiError> {
    refuse_unknown(object, QUEUE_SETTINGS)?;
    if object.contains_key("budget") {
        let named = object.text_or_nothing("budget")?.filter(|name| !name.is_empty());
        config.budget = named.map(|name| BudgetName::at(vhost, name)).transpose()?;
    }
    for (name, field) in [
        ("window_ms", &mut config.window),
        ("result_ttl_ms", &mut config.result_ttl),
        ("remember_ms", &mut config.remember),
        ("lease_ms", &mut config.lease),
    ] {
        if let Some(span) = millis(object, name)? {
            *field = span;
        }
    }
    if let Some(attempts) = count(object, "max_attempts")? {
        config.max_attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
    }
    config.while_running = word(
        object,
        "while_running",
        config.while_running,
        &[("share", WhileRunning::Share), ("next", WhileRunning::Next)],
    )?;
    config.empty_answers = word(
        object,
        "empty_answers",
        config.empty_answers,
        &[("send", EmptyAnswers::Send), ("skip", EmptyAnswers::Skip)],
    )?;
    config.overtake = word(
        object,
        "overtake",
        config.overtake,
        &[("never", Overtake::Never), ("affordable", Overtake::Affordable)],
    )?;
    config.answer_from_cache = truth(object, "answer_from_cache", config.answer_from_cache)?;
    config.paused = truth(object, "paused", config.paused)?;
    if object.contains_key("score") {
        config.score = object.text_or_nothing("score")?.filter(|source| !source.is_empty()).map(Arc::from);
    }
    if object.contains_key("retry") {
        config.retry = retry_of(&object.table("retry")?)?;
    }
    if object.contains_key("classes") {
        let class = |(name, value): (String, Value)| match value.as_i64() {
            Some(value) => Ok((Arc::from(name), value)),
            None => Err(ApiError::bad_request(format!("class '{name}' counts for a whole number"))),
        };
        config.classes = object.table("classes")?.into_iter().map(class).collect::<Result<_, _>>()?;
    }
    if object.contains_key("costs") {
        let cost = |(kind, value): (String, Value)| match value {
            Value::String(source) => Ok((Arc::from(kind), Arc::from(source))),
            Value::Number(number) => Ok((Arc::from(kind), Arc::from(number.to_string()))),
            _ => Err(ApiError::bad_request(format!("the cost of '{kind}' is a number or an expression"))),
        };
        config.costs = object.table("costs")?.into_iter().map(cost).collect::<Result<BTreeMap<_, _>, _>>()?;
    }
    if let Some(bands) = object.get("bands") {
        config.bands = bands_of(bands)?;
    }
    if object.contains_key("pending_max") {
        config.pending_max = count(object, "pending_max")?;
    }
    Ok(config)
}

fn word<T: Copy>(
    object: &Map<String, Value>,
    name: &str,
    before: T,
    words: &[(&str, T)],
) -> Result<T, ApiError> {
    let Some(given) = object.text_or_nothing(name)? else { return Ok(before) };
    let found = words.iter().find(|(word, _)| *word == given).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        ApiError::bad_request(format!("{name} is one of {}; it is '{given}'", known.join(", ")))
    })
}

fn retry_of(object: &Map<String, Value>) -> Result<Backoff, ApiError> {
    refuse_unknown(object, &["base_ms", "factor", "cap_ms"])?;
    let base = millis(object, "base_ms")?.unwrap_or_default();
    let factor = match object.get("factor") {
        None => 2.0,
        Some(factor) => {
            factor.as_f64().ok_or_else(|| ApiError::bad_request("retry.factor must be a number"))?
        }
    };
    let cap = millis(object, "cap_ms")?.unwrap_or(nexo_types::Millis(base.0.saturating_mul(300)));
    if base.0 == 0 {
        return Ok(Backoff::None);
    }
    if !(1.0..=FACTOR_MAX).contains(&factor) {
        return Err(ApiError::bad_request(format!(
            "retry.factor must be a number from 1 to {FACTOR_MAX}; it is {factor}"
        )));
    }
    let factor_permille = (factor * 1000.0).round() as u32;
    Ok(Backoff::Exponential { base, factor_permille, cap })
}

fn bands_of(bands: &Value) -> Result<Vec<Band>, ApiError> {
    let wrong =
        || ApiError::bad_request("bands is a list of objects with a name and, but for the last, up_to");
    let bands = bands.as_array().ok_or_else(wrong)?;
    let band = |band: &Value| {
        let name = band["name"].as_str().ok_or_else(wrong)?;
        let up_to = match &band["up_to"] {
            Value::Null => f64::MAX,
            up_to => up_to.as_f64().ok_or_else(wrong)?,
        };
        Ok(Band { name: name.into(), up_to })
    };
    bands.iter().map(band).collect()
}

pub(super) fn queue_json(queue: &JobQueue, now: Timestamp) -> Value {
    let figures = queue.figures();
    json!({
        "name": queue.name().as_str(),
        "vhost": queue.name().vhost_str(),
        "created_ms": queue.created_at().0,
        "settings": config_json(queue.config()),
        "pending": queue.pending(),
        "running": queue.running(),
        "finished": queue.finished(),
        "oldest_age_ms": queue.oldest_age(now).map(|age| age.0),
        "memory_bytes": queue.memory_bytes(),
        "score_error": queue.score_error(),
        "score_failures": queue.score_failures(),
        "bands": queue.bands().iter().map(|band| (band.name.to_string(), json!(band.jobs))).collect::<Map<_, _>>(),
        "totals": {
            "created": figures.created,
            "joined": figures.joined,
            "cache_hits": figures.cache_hits,
            "done": figures.done,
            "failed": figures.failed,
            "cancelled": figures.cancelled,
            "expired": figures.expired,
            "retried": figures.retried,
            "answered": figures.answered,
            "tokens": figures.tokens,
        },
        "tokens_today": figures.tokens_today(now),
        "waits": times_json(figures.waits),
        "runs": times_json(figures.runs),
        "responses": times_json(figures.responses),
    })
}

/// A queue with its figures by type and by key, as it was: copied under the lock of all jobs, and made JSON without it.
pub(super) struct QueueInFull {
    shown: Value,
    by_kind: Vec<KindRow>,
    by_key: Vec<KindRow>,
    now: Timestamp,
}

struct KindRow {
    name: Arc<str>,
    figures: KindFigures,
    /// Nothing where counting them would take too long.
    pending: Option<PendingOf>,
}

impl QueueInFull {
    pub(super) fn of(queue: &JobQueue, now: Timestamp) -> Self {
        let row = |name: &Arc<str>, figures: &KindFigures, pending| KindRow {
            name: Arc::clone(name),
            figures: figures.clone(),
            pending,
        };
        let (kinds, keys) = (queue.figures().by_kind(), queue.figures().by_key());
        let mut pending = queue.pending_of_keys(now);
        Self {
            shown: queue_json(queue, now),
            by_kind: kinds.map(|(kind, of)| row(kind, of, Some(queue.pending_of_kind(kind, now)))).collect(),
            by_key: keys.map(|(key, of)| row(key, of, pending(key))).collect(),
            now,
        }
    }

    pub(super) fn into_json(self) -> Value {
        let Self { mut shown, by_kind, by_key, now } = self;
        let by = |rows: Vec<KindRow>| {
            rows.into_iter().map(|row| (row.name.to_string(), row.json(now))).collect::<Map<_, _>>()
        };
        shown["by_type"] = Value::Object(by(by_kind));
        shown["by_key"] = Value::Object(by(by_key));
        shown
    }
}

impl KindRow {
    fn json(&self, now: Timestamp) -> Value {
        let figures = &self.figures;
        json!({
            "pending": self.pending.map(|pending| pending.jobs),
            "oldest_age_ms": self.pending.and_then(|pending| pending.oldest_age).map(|age| age.0),
            "done": figures.done,
            "failed": figures.failed,
            "tokens": figures.tokens,
            "tokens_today": figures.tokens_today(now),
            "cache_hits": figures.cache_hits,
            "waits": times_json(figures.waits),
            "runs": times_json(figures.runs),
            "responses": times_json(figures.responses),
        })
    }
}

fn times_json(times: Times) -> Value {
    json!({ "count": times.count, "mean_ms": times.mean().map(|mean| mean.0), "max_ms": times.max.0 })
}

pub(super) fn budget_json(budget: &Budget, now: Timestamp) -> Value {
    let config = budget.config();
    let next = budget.next_tokens(now);
    json!({
        "name": budget.name().as_str(),
        "vhost": budget.name().vhost_str(),
        "tokens": budget.level(now),
        "reserved": budget.reserved(),
        "used_total": budget.used_total(),
        "used_today": budget.used_today(now),
        "next_tokens": next.map(|(at, tokens)| json!({ "at_ms": at.0, "tokens": tokens })),
        "settings": {
            "initial": config.initial,
            "capacity": config.capacity,
            "refill": config.refill.map(|refill| json!({ "tokens": refill.tokens, "every_ms": refill.every.0 })),
        },
    })
}

/// Settings that are given on top of those there are. Null takes one away.
pub(super) fn budget_config_of(
    before: BudgetConfig,
    object: &Map<String, Value>,
) -> Result<BudgetConfig, ApiError> {
    refuse_unknown(object, &["initial", "capacity", "refill"])?;
    let mut config = before;
    if let Some(initial) = count(object, "initial")? {
        config.initial = initial;
    }
    if object.contains_key("capacity") {
        config.capacity = count(object, "capacity")?;
    }
    if object.get("refill").is_some_and(Value::is_null) {
        config.refill = None;
    } else if object.contains_key("refill") {
        let refill = object.table("refill")?;
        refuse_unknown(&refill, &["tokens", "every_ms"])?;
        let missing = |name| ApiError::bad_request(format!("refill.{name} is missing"));
        config.refill = Some(Refill {
            tokens: count(&refill, "tokens")?.ok_or_else(|| missing("tokens"))?,
            every: millis(&refill, "every_ms")?.ok_or_else(|| missing("every_ms"))?,
        });
    }
    Ok(config)
}

pub(super) fn handed_json(handed: &Handed) -> Value {
    json!({
        "receipt": handed.receipt.to_string(),
        "job": handed.receipt.job.0.to_string(),
        "attempt": handed.attempt,
        "type": &*handed.body.kind,
        "key": &*handed.body.key,
        "payload": payload_json(&handed.body.payload),
        "cost": handed.cost,
        "lease_until_ms": handed.until.0,
        "waiters": handed.waiters,
        "due_ms": handed.due.map(|due| due.0),
        "created_ms": handed.created_at.0,
        "score": handed.score,
    })
}

/// JSON as it was given; nothing is null.
fn payload_json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or(Value::Null)
}

pub(super) fn job_json(id: JobId, job: &Job) -> Value {
    let body = job.body();
    let mut shown = json!({
        "job": id.0.to_string(),
        "type": &*body.kind,
        "key": &*body.key,
        "payload": payload_json(&body.payload),
        "cost": job.cost(),
        "created_ms": job.created_at().0,
        "due_ms": job.due().map(|due| due.0),
        "deadline_ms": job.deadline().map(|deadline| deadline.0),
        "attempts": job.attempts(),
        "waiters": job.waiting(),
        "background": job.is_background(),
        "score": job.score(),
    });
    match job.state() {
        JobState::Pending { ready_at } => {
            shown["state"] = json!("pending");
            shown["ready_ms"] = json!(ready_at.0);
        }
        JobState::Running(run) => {
            shown["state"] = json!("running");
            shown["worker"] = json!(&*run.worker);
            shown["since_ms"] = json!(run.since.0);
            shown["lease_until_ms"] = json!(run.until.0);
            shown["progress"] = payload_json(&run.progress);
        }
        JobState::Finished(finish) => {
            shown["state"] = json!(finish.outcome.name());
            shown["finished_ms"] = json!(finish.at.0);
            shown["answered"] = json!(finish.answered);
            shown["forgotten_ms"] = json!(finish.until.0);
        }
    }
    shown
}

/// Who waits for a job, at most so many.
pub(super) fn waiters_json(job: &Job, max: usize) -> Vec<Value> {
    let shown = |(_, waiter): (u32, nexo_broker::job_rules::Waiter)| {
        json!({
            "id": &*waiter.id,
            "user": &*waiter.user,
            "class": &*waiter.class,
            "due_ms": waiter.due.map(|due| due.0),
            "filter": &*waiter.filter,
            "reply_to": match &waiter.reply {
                Reply::Call => None,
                Reply::Queue(name) => Some(name.as_str().to_owned()),
            },
            "asked_ms": waiter.at.0,
        })
    };
    job.waiters().take(max).map(shown).collect()
}

pub(super) fn use_json(used: &TokenUse, budget: Option<&BudgetName>) -> Value {
    json!({
        "at_ms": used.at.0,
        "budget": budget.map(BudgetName::as_str),
        "vhost": budget.map(BudgetName::vhost_str),
        "job": used.job.0.to_string(),
        "type": &*used.kind,
        "key": &*used.key,
        "tokens": used.tokens,
        "success": used.success,
        "took_ms": used.took.0,
    })
}
