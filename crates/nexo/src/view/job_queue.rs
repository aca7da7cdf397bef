//! Job queues and budgets as they are printed.

use comfy_table::Table;
use nexo_grpc::proto;
use serde_json::{Map, Value, json};

use super::job::{plain, seconds};
use super::queue::{retry, span};
use super::{Figures, columns, moment};
use crate::units::Size;

/// Everything about a job queue. A limit that is not set is left out.
pub(crate) fn job_queue_value(queue: &proto::JobQueue) -> Value {
    json!({
        "name": queue.name,
        "vhost": queue.vhost,
        "created_at_ms": queue.created_at_ms,
        "config": config_value(&queue.config.clone().unwrap_or_default()),
        "figures": figures_value(&queue.figures.clone().unwrap_or_default()),
    })
}

fn config_value(config: &proto::JobQueueConfig) -> Value {
    let mut value = json!({
        "window_ms": config.window_ms(),
        "while_running": while_running(config),
        "answer_from_cache": config.answer_from_cache(),
        "result_ttl_ms": config.result_ttl_ms(),
        "remember_ms": config.remember_ms(),
        "lease_ms": config.lease_ms(),
        "max_attempts": config.max_attempts(),
        "retry": retry(config.retry.and_then(|retry| retry.policy)),
        "empty_answers": empty_answers(config),
        "overtake": overtake(config),
        "classes": classes(config).map(|class| (class.name.clone(), json!(class.value))).collect::<Map<_, _>>(),
        "costs": costs(config).map(|cost| (cost.r#type.clone(), json!(cost.cost))).collect::<Map<_, _>>(),
        "bands": bands(config).map(|band| json!({ "name": band.name, "up_to": band.up_to })).collect::<Vec<_>>(),
        "paused": config.paused(),
    });
    for (name, text) in [("budget", config.budget()), ("score", config.score())] {
        if !text.is_empty() {
            value[name] = json!(text);
        }
    }
    if config.pending_max() > 0 {
        value["pending_max"] = json!(config.pending_max());
    }
    value
}

fn figures_value(figures: &proto::JobQueueFigures) -> Value {
    let mut value = json!({
        "pending": figures.pending,
        "running": figures.running,
        "finished": figures.finished,
        "waiters": figures.waiters,
        "memory_bytes": figures.memory_bytes,
        "oldest_age_ms": figures.oldest_age_ms,
        "bands": figures.bands.iter().map(|band| (band.name.clone(), json!(band.jobs))).collect::<Map<_, _>>(),
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
        "waits": times_value(figures.waits),
        "runs": times_value(figures.runs),
        "responses": times_value(figures.responses),
        "tokens_today": figures.tokens_today,
        "score_failures": figures.score_failures,
    });
    if !figures.score_error.is_empty() {
        value["score_error"] = json!(figures.score_error);
    }
    for (name, kinds) in [("types", &figures.types), ("keys", &figures.keys)] {
        if !kinds.is_empty() {
            value[name] = kinds.iter().map(kind_value).collect();
        }
    }
    value
}

fn kind_value(kind: &proto::JobKindFigures) -> Value {
    json!({
        "name": kind.name,
        "done": kind.done,
        "failed": kind.failed,
        "tokens": kind.tokens,
        "cache_hits": kind.cache_hits,
        "runs": times_value(kind.runs),
        "waits": times_value(kind.waits),
        "responses": times_value(kind.responses),
        "tokens_today": kind.tokens_today,
        "pending": kind.pending,
        "oldest_age_ms": kind.oldest_age_ms,
    })
}

fn times_value(times: Option<proto::JobTimes>) -> Value {
    let times = times.unwrap_or_default();
    json!({ "count": times.count, "mean_ms": times.mean_ms, "max_ms": times.max_ms })
}

/// What a job queue is told to be, and its figures, one a line.
pub(crate) fn job_queue_figures(queue: &proto::JobQueue) -> Figures {
    let config = queue.config.clone().unwrap_or_default();
    let figures = queue.figures.clone().unwrap_or_default();
    let or = |text: &str, none: &str| plain(if text.is_empty() { none } else { text });
    let named = |name: &str, none: &str| if name.is_empty() { none.to_owned() } else { plain(name) };
    let classes = classes(&config).map(|class| format!("{} {}", named(&class.name, "(none)"), class.value));
    let costs =
        costs(&config).map(|cost| format!("{}: {}", named(&cost.r#type, "(others)"), plain(&cost.cost)));
    let mut shown = Figures::default();
    shown.add("name", plain(&queue.name));
    if queue.vhost != "/" {
        shown.add("vhost", plain(&queue.vhost));
    }
    shown
        .add("created at", moment(queue.created_at_ms))
        .add("budget", or(config.budget(), "none"))
        .add("window", span(config.window_ms()))
        .add("while running", while_running(&config))
        .add("cache", if config.answer_from_cache() { "on" } else { "off" })
        .add("result kept", span(config.result_ttl_ms()))
        .add("waiters remembered", span(config.remember_ms()))
        .add("lease", span(config.lease_ms()))
        .add("max attempts", config.max_attempts())
        .add("retry", retry(config.retry.and_then(|retry| retry.policy)))
        .add("empty answers", empty_answers(&config))
        .add("overtake", overtake(&config))
        .add("score", or(config.score(), "default"))
        .add("classes", classes.collect::<Vec<_>>().join(", "))
        .add("costs", costs.collect::<Vec<_>>().join("; "));
    let pending_max = match config.pending_max() {
        0 => "none".to_owned(),
        max => max.to_string(),
    };
    shown.add("pending max", pending_max).add("paused", config.paused()).add("pending", figures.pending);
    for band in &figures.bands {
        shown.add(format!("  {}", plain(&band.name)), band.jobs);
    }
    shown
        .add("oldest", figures.oldest_age_ms.map_or_else(|| "none".to_owned(), seconds))
        .add("running", figures.running)
        .add("finished", figures.finished)
        .add("waiters", figures.waiters)
        .add("memory", Size(figures.memory_bytes))
        .add("created", figures.created)
        .add("joined", figures.joined)
        .add("cache hits", figures.cache_hits)
        .add("done", figures.done)
        .add("failed", figures.failed)
        .add("cancelled", figures.cancelled)
        .add("expired", figures.expired)
        .add("retried", figures.retried)
        .add("answered", figures.answered)
        .add("tokens used", figures.tokens)
        .add("tokens today", figures.tokens_today)
        .add("wait", times_text(figures.waits))
        .add("run", times_text(figures.runs))
        .add("response", times_text(figures.responses));
    if figures.score_failures > 0 {
        shown.add("scores failed", figures.score_failures);
        shown.add("last of them", or(&figures.score_error, "of a policy before"));
    }
    for (what, kinds) in [("type", &figures.types), ("key", &figures.keys)] {
        for kind in kinds {
            shown.add(format!("{what} {}", plain(&kind.name)), kind_text(kind));
        }
    }
    shown
}

/// What has happened, what is pending, and the means of the times that were measured.
fn kind_text(kind: &proto::JobKindFigures) -> String {
    let mut parts = vec![
        format!("{} done", kind.done),
        format!("{} failed", kind.failed),
        format!("{} tokens ({} today)", kind.tokens, kind.tokens_today),
    ];
    if kind.cache_hits > 0 {
        parts.push(format!("{} cached", kind.cache_hits));
    }
    match (kind.pending, kind.oldest_age_ms) {
        (Some(0), _) | (None, _) => {}
        (Some(pending), None) => parts.push(format!("{pending} pending")),
        (Some(pending), Some(age)) => parts.push(format!("{pending} pending, oldest {}", seconds(age))),
    }
    for (what, times) in [("wait", kind.waits), ("run", kind.runs), ("response", kind.responses)] {
        if let Some(times) = times.filter(|times| times.count > 0) {
            parts.push(format!("{what} {}", seconds(times.mean_ms)));
        }
    }
    parts.join(", ")
}

fn times_text(times: Option<proto::JobTimes>) -> String {
    let times = times.unwrap_or_default();
    match times.count {
        0 => "none yet".to_owned(),
        _ => format!("{} on average, {} at most", seconds(times.mean_ms), seconds(times.max_ms)),
    }
}

/// Job queues, one a line.
pub(crate) fn job_queue_table(queues: &[proto::JobQueue]) -> Table {
    let mut table = columns(&[
        "NAME", "PENDING", "RUNNING", "OLDEST", "DONE", "FAILED", "CACHED", "TOKENS", "BUDGET", "STATE",
    ]);
    for queue in queues {
        let config = queue.config.clone().unwrap_or_default();
        let figures = queue.figures.clone().unwrap_or_default();
        table.add_row([
            plain(&queue.name),
            figures.pending.to_string(),
            figures.running.to_string(),
            figures.oldest_age_ms.map(seconds).unwrap_or_default(),
            figures.done.to_string(),
            figures.failed.to_string(),
            figures.cache_hits.to_string(),
            figures.tokens.to_string(),
            plain(config.budget()),
            if config.paused() { "paused" } else { "" }.to_owned(),
        ]);
    }
    table
}

/// Everything about a budget. A limit that is not set is left out.
pub(crate) fn budget_value(budget: &proto::Budget) -> Value {
    let config = budget.config.unwrap_or_default();
    let mut settings = json!({ "initial": config.initial() });
    if config.capacity() > 0 {
        settings["capacity"] = json!(config.capacity());
    }
    if let Some(refill) = config.refill.filter(|refill| refill.tokens > 0) {
        settings["refill"] = json!({ "tokens": refill.tokens, "every_ms": refill.every_ms });
    }
    let mut value = json!({
        "name": budget.name,
        "vhost": budget.vhost,
        "config": settings,
        "level": budget.level,
        "reserved": budget.reserved,
        "used_today": budget.used_today,
        "used_total": budget.used_total,
    });
    if let Some(at) = budget.next_at_ms {
        value["next"] = json!({ "at_ms": at, "tokens": budget.next_tokens });
    }
    if !budget.queues.is_empty() {
        value["queues"] = json!(budget.queues);
    }
    value
}

/// What a budget is told to be, and its figures, one a line.
pub(crate) fn budget_figures(budget: &proto::Budget) -> Figures {
    let config = budget.config.unwrap_or_default();
    let mut shown = Figures::default();
    shown
        .add("name", plain(&budget.name))
        .add("tokens", budget.level)
        .add("reserved", budget.reserved)
        .add("used today", budget.used_today)
        .add("used in all", budget.used_total)
        .add("next tokens", next_tokens(budget))
        .add("at first", config.initial())
        .add("capacity", capacity(config))
        .add("refill", refill(config))
        .add("pays for", plain(&budget.queues.join(", ")));
    shown
}

/// Budgets, one a line.
pub(crate) fn budget_table(budgets: &[proto::Budget]) -> Table {
    let mut table = columns(&["NAME", "TOKENS", "RESERVED", "USED TODAY", "CAPACITY", "REFILL", "NEXT"]);
    for budget in budgets {
        let config = budget.config.unwrap_or_default();
        table.add_row([
            plain(&budget.name),
            budget.level.to_string(),
            budget.reserved.to_string(),
            budget.used_today.to_string(),
            capacity(config),
            refill(config),
            next_tokens(budget),
        ]);
    }
    table
}

fn capacity(config: proto::BudgetConfig) -> String {
    match config.capacity() {
        0 => "none".to_owned(),
        capacity => capacity.to_string(),
    }
}

fn refill(config: proto::BudgetConfig) -> String {
    let refill = config.refill.filter(|refill| refill.tokens > 0);
    refill.map_or_else(|| "none".to_owned(), |refill| format!("{}/{}", refill.tokens, span(refill.every_ms)))
}

fn next_tokens(budget: &proto::Budget) -> String {
    let next = |at| format!("{} at {}", budget.next_tokens, moment(at));
    budget.next_at_ms.map_or_else(|| "not known".to_owned(), next)
}

fn classes(config: &proto::JobQueueConfig) -> impl Iterator<Item = &proto::JobClass> {
    config.classes.iter().flat_map(|classes| &classes.classes)
}

fn costs(config: &proto::JobQueueConfig) -> impl Iterator<Item = &proto::JobCost> {
    config.costs.iter().flat_map(|costs| &costs.costs)
}

fn bands(config: &proto::JobQueueConfig) -> impl Iterator<Item = &proto::JobBand> {
    config.bands.iter().flat_map(|bands| &bands.bands)
}

fn while_running(config: &proto::JobQueueConfig) -> &'static str {
    match config.while_running() {
        proto::WhileRunning::Unspecified | proto::WhileRunning::Share => "share",
        proto::WhileRunning::Next => "next",
    }
}

fn empty_answers(config: &proto::JobQueueConfig) -> &'static str {
    match config.empty_answers() {
        proto::EmptyAnswers::Unspecified | proto::EmptyAnswers::Send => "send",
        proto::EmptyAnswers::Skip => "skip",
    }
}

fn overtake(config: &proto::JobQueueConfig) -> &'static str {
    match config.overtake() {
        proto::Overtake::Unspecified | proto::Overtake::Never => "never",
        proto::Overtake::Affordable => "affordable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_not_set_is_left_out_of_json_and_named_for_people() {
        let queue = proto::JobQueue { name: "deals".into(), vhost: "/".into(), ..Default::default() };
        let value = job_queue_value(&queue);
        assert_eq!((value["config"].get("budget"), value["config"].get("pending_max")), (None, None));
        let text = job_queue_figures(&queue).to_string();
        assert!(text.contains("budget              none\n"), "{text}");
        assert!(!text.contains("scores failed") && value["figures"].get("score_error").is_none());
        let figures = proto::JobQueueFigures {
            score_error: "job 1: division by zero".into(),
            score_failures: 3,
            ..Default::default()
        };
        let failing = proto::JobQueue { figures: Some(figures), ..queue };
        assert_eq!(job_queue_value(&failing)["figures"]["score_error"], "job 1: division by zero");
        let text = job_queue_figures(&failing).to_string();
        assert!(
            text.contains("scores failed       3\n") && text.contains("job 1: division by zero"),
            "{text}"
        );
        let wait = Some(proto::JobTimes { count: 2, mean_ms: 1500, max_ms: 2000 });
        let kind =
            proto::JobKindFigures { done: 3, tokens: 9, tokens_today: 4, waits: wait, ..Default::default() };
        assert_eq!(kind_text(&kind), "3 done, 0 failed, 9 tokens (4 today), wait 1s");
        let waits = proto::JobKindFigures { pending: Some(7), oldest_age_ms: Some(2500), ..kind };
        assert_eq!(kind_text(&waits), "3 done, 0 failed, 9 tokens (4 today), 7 pending, oldest 2s, wait 1s");
        let refill = Some(proto::TokenRefill { tokens: 5, every_ms: 60_000 });
        let config = Some(proto::BudgetConfig { initial: Some(0), capacity: Some(9), refill });
        let budget = proto::Budget { name: "api".into(), config, level: -1, ..Default::default() };
        assert_eq!(budget_value(&budget)["config"]["capacity"], 9);
        let text = budget_table(&[budget]).to_string();
        let cells: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(cells, ["api", "-1", "0", "0", "9", "5/1m", "not", "known"]);
    }
}
