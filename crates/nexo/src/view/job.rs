//! Jobs, answers and uses of tokens as they are printed. Numbers of jobs are text: not every reader of JSON has 64 bits.

use bytes::Bytes;
use comfy_table::Table;
use nexo_grpc::proto;
use serde_json::{Value, json};

use super::queue::span;
use super::{Figures, columns, json_text, moment};

/// A job in a worker's hands.
pub(crate) fn taken_value(job: &proto::TakenJob) -> Value {
    json!({
        "receipt": job.receipt,
        "job": job.job.to_string(),
        "attempt": job.attempt,
        "type": job.r#type,
        "key": job.key,
        "payload": json_of(&job.payload),
        "cost": job.cost,
        "lease_until_ms": job.lease_until_ms,
        "waiters": job.waiters,
        "due_at_ms": job.due_at_ms,
        "created_at_ms": job.created_at_ms,
        "score": job.score,
    })
}

/// Jobs that were taken, one a line.
pub(crate) fn taken_table(jobs: &[proto::TakenJob]) -> Table {
    let mut table = columns(&["RECEIPT", "TYPE", "KEY", "SCORE", "COST", "WAITERS", "UNTIL", "PAYLOAD"]);
    for job in jobs {
        table.add_row([
            job.receipt.clone(),
            plain(&job.r#type),
            plain(&job.key),
            format!("{:.1}", job.score),
            job.cost.to_string(),
            job.waiters.to_string(),
            moment(job.lease_until_ms),
            plain(&String::from_utf8_lossy(&job.payload)),
        ]);
    }
    table
}

/// Everything about a job. What there is nothing of is left out.
pub(crate) fn job_value(job: &proto::Job) -> Value {
    let mut value = json!({
        "job": job.job.to_string(),
        "queue": job.queue,
        "type": job.r#type,
        "key": job.key,
        "state": state(job),
        "cost": job.cost,
        "created_at_ms": job.created_at_ms,
        "attempts": job.attempts,
        "waiters": job.waiters,
        "background": job.background,
    });
    let times = [
        ("due_at_ms", job.due_at_ms),
        ("deadline_at_ms", job.deadline_at_ms),
        ("ready_at_ms", job.ready_at_ms),
        ("lease_until_ms", job.lease_until_ms),
        ("finished_at_ms", job.finished_at_ms),
    ];
    for (name, time) in times {
        if let Some(time) = time {
            value[name] = json!(time);
        }
    }
    if let Some(score) = job.score {
        value["score"] = json!(score);
    }
    for (name, text) in [("worker", &job.worker), ("error", &job.error)] {
        if !text.is_empty() {
            value[name] = json!(text);
        }
    }
    for (name, bytes) in [("payload", &job.payload), ("progress", &job.progress), ("result", &job.result)] {
        if !bytes.is_empty() {
            value[name] = json_of(bytes);
        }
    }
    if !job.waiter_ids.is_empty() {
        value["waiter_ids"] = json!(job.waiter_ids);
    }
    value
}

/// The same for people, one a line.
pub(crate) fn job_figures(job: &proto::Job) -> Figures {
    let mut figures = Figures::default();
    figures
        .add("job", job.job)
        .add("queue", plain(&job.queue))
        .add("type", plain(&job.r#type))
        .add("key", plain(&job.key))
        .add("state", state(job))
        .add("cost", job.cost)
        .add("created at", moment(job.created_at_ms))
        .add("attempts", job.attempts)
        .add("waiters", job.waiters);
    let times = [
        ("due", job.due_at_ms),
        ("deadline", job.deadline_at_ms),
        ("ready", job.ready_at_ms),
        ("lease until", job.lease_until_ms),
        ("finished at", job.finished_at_ms),
    ];
    for (name, time) in times {
        if let Some(time) = time {
            figures.add(name, moment(time));
        }
    }
    if let Some(score) = job.score {
        figures.add("score", format_args!("{score:.1}"));
    }
    let texts = [
        ("worker", job.worker.clone()),
        ("error", job.error.clone()),
        ("payload", String::from_utf8_lossy(&job.payload).into_owned()),
        ("progress", String::from_utf8_lossy(&job.progress).into_owned()),
        ("result", String::from_utf8_lossy(&job.result).into_owned()),
        ("waiting", job.waiter_ids.join(", ")),
    ];
    for (name, text) in texts {
        if !text.is_empty() {
            figures.add(name, plain(&text));
        }
    }
    figures
}

/// Pending jobs, one a line, in the order in which they are taken.
pub(crate) fn pending_table(jobs: &[proto::Job], now_ms: u64) -> Table {
    let mut table = columns(&["JOB", "TYPE", "KEY", "SCORE", "COST", "WAITERS", "ATTEMPTS", "AGE", "DUE IN"]);
    for job in jobs {
        table.add_row([
            job.job.to_string(),
            plain(&job.r#type),
            plain(&job.key),
            job.score.map_or_else(|| "not yet".to_owned(), |score| format!("{score:.1}")),
            job.cost.to_string(),
            job.waiters.to_string(),
            job.attempts.to_string(),
            seconds(now_ms.saturating_sub(job.created_at_ms)),
            job.due_at_ms.map(|due| seconds(due.saturating_sub(now_ms))).unwrap_or_default(),
        ]);
    }
    table
}

/// What a waiter is told.
pub(crate) fn answer_value(answer: &proto::JobAnswer) -> Value {
    let mut value = json!({
        "waiter": answer.waiter,
        "job": answer.job.to_string(),
        "type": answer.r#type,
        "key": answer.key,
        "status": outcome(answer.outcome()),
    });
    if answer.outcome() == proto::JobOutcome::Done {
        value["result"] = json_of(&answer.result);
    }
    if !answer.error.is_empty() {
        value["error"] = json!(answer.error);
    }
    value
}

/// A use of tokens.
pub(crate) fn use_value(used: &proto::TokenUse) -> Value {
    json!({
        "at_ms": used.at_ms,
        "budget": used.budget,
        "queue": used.queue,
        "job": used.job.to_string(),
        "type": used.r#type,
        "key": used.key,
        "tokens": used.tokens,
        "success": used.success,
        "took_ms": used.took_ms,
    })
}

/// Uses of tokens, one a line.
pub(crate) fn use_table(uses: &[proto::TokenUse]) -> Table {
    let mut table = columns(&["AT", "BUDGET", "QUEUE", "TYPE", "KEY", "TOKENS", "TOOK", "OK"]);
    for used in uses {
        table.add_row([
            moment(used.at_ms),
            plain(&used.budget),
            plain(&used.queue),
            plain(&used.r#type),
            plain(&used.key),
            used.tokens.to_string(),
            span(used.took_ms),
            if used.success { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table
}

/// Bytes of JSON, which the broker has checked.
pub(crate) fn json_of(bytes: &Bytes) -> Value {
    serde_json::from_slice(bytes).unwrap_or(Value::Null)
}

/// How far a job has come, or what came of it.
fn state(job: &proto::Job) -> &'static str {
    match job.state() {
        proto::JobState::Unspecified => "unknown",
        proto::JobState::Pending => "pending",
        proto::JobState::Running => "running",
        proto::JobState::Finished => outcome(job.outcome()),
    }
}

const fn outcome(outcome: proto::JobOutcome) -> &'static str {
    match outcome {
        proto::JobOutcome::Unspecified => "unknown",
        proto::JobOutcome::Done => "done",
        proto::JobOutcome::Failed => "failed",
        proto::JobOutcome::Cancelled => "cancelled",
        proto::JobOutcome::Expired => "expired",
    }
}

/// What others chose must not move a cursor.
pub(super) fn plain(text: &str) -> String {
    json_text(&Value::from(text))
}

/// A time that has no need of milliseconds.
pub(super) fn seconds(ms: u64) -> String {
    span(if ms < 1000 { ms } else { ms / 1000 * 1000 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_shown_with_what_there_is_of_it() {
        let job = proto::Job {
            job: u64::MAX,
            state: proto::JobState::Finished.into(),
            outcome: proto::JobOutcome::Done.into(),
            result: Bytes::from_static(b"[1]"),
            ..Default::default()
        };
        let value = job_value(&job);
        assert_eq!((&value["job"], &value["state"]), (&json!("18446744073709551615"), &json!("done")));
        assert_eq!((&value["result"], value.get("worker")), (&json!([1]), None));
        assert!(job_figures(&job).to_string().contains("result      [1]"), "{}", job_figures(&job));
    }

    #[test]
    fn a_key_cannot_move_the_cursor() {
        let job = proto::Job { key: "a\u{1b}[2J".into(), ..Default::default() };
        assert!(!pending_table(&[job], 0).to_string().contains('\u{1b}'));
    }

    #[test]
    fn times_are_in_seconds_from_one_second_on() {
        assert_eq!((seconds(999), seconds(90_500)), ("999ms".to_owned(), "90s".to_owned()));
    }
}
