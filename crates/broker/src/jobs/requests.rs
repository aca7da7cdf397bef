//! Requests for work as a client makes them: checked, with their costs worked out, before any lock is taken.

use std::sync::Arc;

use bytes::Bytes;
use nexo_core::jobs::{CostRule, Filter, JobBody, JobError, JobQueueConfig, NewJob, Reply, Waiter};
use nexo_types::{JobQueueName, Timestamp, check_name, limits};

/// What a job costs whose queue has a budget and does not say.
const COST_DEFAULT: u64 = 1;

/// Work that is asked for.
#[derive(Clone, Debug, Default)]
pub struct JobRequest {
    /// What kind of work it is.
    pub kind: String,
    /// What it is about.
    pub key: String,
    /// What its worker is told, as JSON.
    pub payload: Bytes,
    /// What it costs; `None` for what its queue says.
    pub cost: Option<u64>,
    /// When it is too late.
    pub deadline: Option<Timestamp>,
    /// Who waits for it; `None` to have it done in the background.
    pub waiter: Option<WaiterRequest>,
}

/// Who waits.
#[derive(Clone, Debug)]
pub struct WaiterRequest {
    /// Names it within the job queue.
    pub id: String,
    /// For whom; may be empty.
    pub user: String,
    /// Its class; may be empty.
    pub class: String,
    /// When it needs the answer.
    pub due: Option<Timestamp>,
    /// Which items of the result it wants; empty for all.
    pub filter: String,
    /// Where the answer goes.
    pub reply: Reply,
}

impl JobRequest {
    /// The job, if it can be one. Without a budget nothing costs anything.
    pub(super) fn job(&self, rule: Option<&CostRule>, has_budget: bool) -> Result<NewJob, JobError> {
        check_name(&self.kind, "job type", limits::JOB_WORD_BYTES_MAX)?;
        check_name(&self.key, "job key", limits::JOB_KEY_BYTES_MAX)?;
        if self.payload.len() > limits::JOB_PAYLOAD_BYTES_MAX {
            let max = limits::JOB_PAYLOAD_BYTES_MAX as u64;
            return Err(JobError::TooMany { what: "the payload of a job, in bytes,", max });
        }
        let cost = match (self.cost, rule) {
            _ if !has_budget => 0,
            (Some(cost), _) => cost,
            (None, None) => COST_DEFAULT,
            (None, Some(rule)) => {
                // A job without a payload has none to be priced by, and may cost something all the same.
                let payload = match self.payload.is_empty() {
                    true => serde_json::Value::Null,
                    false => json(&self.payload, "the payload of a job")?,
                };
                rule.cost(&self.kind, &self.key, &payload)?
            }
        };
        let body = JobBody {
            kind: self.kind.as_str().into(),
            key: self.key.as_str().into(),
            payload: self.payload.clone(),
        };
        Ok(NewJob { body: Arc::new(body), cost, deadline: self.deadline, background: true })
    }
}

impl WaiterRequest {
    pub(super) fn waiter(
        &self,
        queue: &JobQueueName,
        config: &JobQueueConfig,
        at: Timestamp,
    ) -> Result<Waiter, JobError> {
        check_name(&self.id, "waiter id", limits::WAITER_ID_BYTES_MAX)?;
        for (word, what) in [(&self.user, "user of a waiter"), (&self.class, "class of a waiter")] {
            if !word.is_empty() {
                check_name(word, what, limits::JOB_WORD_BYTES_MAX)?;
            }
        }
        if !self.filter.is_empty() {
            Filter::new(&self.filter)?;
        }
        Ok(Waiter {
            id: self.id.as_str().into(),
            user: self.user.as_str().into(),
            class: self.class.as_str().into(),
            class_value: config.class_value(queue, &self.class)?,
            due: self.due,
            filter: self.filter.as_str().into(),
            reply: self.reply.clone(),
            at,
        })
    }
}

/// Reads JSON that a client gave.
pub(super) fn json(bytes: &[u8], what: &'static str) -> Result<serde_json::Value, JobError> {
    serde_json::from_slice(bytes)
        .map_err(|error| JobError::BadSetting { reason: format!("{what} is JSON; this is none: {error}") })
}
