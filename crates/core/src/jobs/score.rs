//! How urgent a job is: lower goes first. The policy is the default one or an expression of the queue's own.
//!
//! What an expression can see changes when somebody joins, when the job was handed out, or when a whole minute has passed until
//! it is due or since it was made. So the next moment at which a score may change is known, and nobody looks before.

use std::cmp::Ordering;

use nexo_expr::{Program, Schema, Type, Value};
use nexo_types::{Timestamp, limits};

use super::error::JobError;
use super::job::Job;

const MINUTE_MS: u64 = 60_000;
/// The score of a job that nobody waits for, by the default policy.
const PREFETCH: f64 = 100.0;
/// The default policy looks so many minutes ahead.
const URGENCY_MAX: i64 = 30;
/// A job with a single waiter is worth so much less than one with ten or more, two for each.
const VALUE_MAX: i64 = 20;
/// What `due_minutes` is for a job that is never due: far, and no danger in a sum.
const NEVER_DUE: i64 = 1_000_000;

/// What the expression of a score can see.
pub(super) const SCORE_SCHEMA: Schema = Schema::new(&[
    ("prefetch", Type::Bool),
    ("waiters", Type::Int),
    ("due_minutes", Type::Int),
    ("age_minutes", Type::Int),
    ("class", Type::Int),
    ("cost", Type::Int),
    ("attempts", Type::Int),
    ("type", Type::String),
    ("key", Type::String),
]);

/// A score. All are in one order; the lowest goes first.
#[derive(Clone, Copy, Debug)]
pub struct Score(pub f64);

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A score, and until when it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The score.
    pub score: Score,
    /// The first moment at which it may be another one; `MAX` for never.
    pub until: Timestamp,
}

/// How scores come about.
#[derive(Clone, Debug)]
pub enum ScorePolicy {
    /// As described for [`ScorePolicy::standing`].
    Default,
    /// As an expression says.
    Expression {
        /// The expression.
        program: Program,
        /// Whether it looks at how long a job still has.
        sees_due: bool,
        /// Whether it looks at how long a job has waited.
        sees_age: bool,
    },
}

impl ScorePolicy {
    /// The policy that a queue is told to have.
    ///
    /// # Errors
    /// If the expression is none.
    pub fn new(source: Option<&str>) -> Result<Self, JobError> {
        let Some(source) = source else { return Ok(Self::Default) };
        let program = Program::compile(source, &SCORE_SCHEMA, Type::Number)
            .map_err(|error| JobError::BadExpression { what: "the score", reason: error.to_string() })?;
        let (sees_due, sees_age) = (program.uses("due_minutes"), program.uses("age_minutes"));
        Ok(Self::Expression { program, sees_due, sees_age })
    }

    /// What a job's score is now, and until when. The default: 100 for one that nobody waits for, otherwise the whole minutes
    /// until it is due, from 0 to 30, and 20 less 2 for each waiter, but not below 0, and what its best class counts for. An
    /// expression that fails gives the highest score there is: such a job goes last, and why is told besides.
    #[must_use]
    pub fn standing(&self, job: &Job, now: Timestamp) -> (Standing, Option<String>) {
        match self {
            Self::Default => (default_standing(job, now), None),
            Self::Expression { program, sees_due, sees_age } => {
                let (due_minutes, due_until) = due_minutes(job.due, now);
                let age_minutes = (now.since(job.created_at).0 / MINUTE_MS) as i64;
                let age_until = job.created_at.0.saturating_add((age_minutes as u64 + 1) * MINUTE_MS);
                let arguments = [
                    Value::Bool(job.background),
                    Value::Int(job.waiting.into()),
                    Value::Int(due_minutes),
                    Value::Int(age_minutes),
                    Value::Int(job.class().unwrap_or(0)),
                    Value::Int(job.cost as i64),
                    Value::Int(job.attempts.into()),
                    Value::String(job.kind().into()),
                    Value::String(job.key().into()),
                ];
                let value = match program.eval_within(&arguments, &mut { limits::JOB_SCORE_STEPS_MAX }) {
                    Ok(value) => value.as_f64().ok_or_else(|| "it is no number".to_owned()),
                    Err(error) => Err(error.to_string()),
                };
                // The highest and not infinity or NaN, which no JSON can say.
                let value = value.and_then(|value| match value.is_finite() {
                    true => Ok(value),
                    false => Err(format!("it is {value}, which is no score")),
                });
                let (score, error) = match value {
                    Ok(score) => (score, None),
                    Err(error) => (f64::MAX, Some(error)),
                };
                let mut until = Timestamp::MAX;
                if *sees_due {
                    until = until.min(due_until);
                }
                if *sees_age {
                    until = until.min(Timestamp(age_until));
                }
                (Standing { score: Score(score), until }, error)
            }
        }
    }
}

fn default_standing(job: &Job, now: Timestamp) -> Standing {
    if job.background {
        return Standing { score: Score(PREFETCH), until: Timestamp::MAX };
    }
    let (minutes, until) = due_minutes(job.due, now);
    let urgency = minutes.clamp(0, URGENCY_MAX);
    let value = (VALUE_MAX - 2 * i64::from(job.waiting)).max(0);
    let score = urgency + value + job.class().unwrap_or(0);
    let until = match minutes {
        _ if job.due == Timestamp::MAX => Timestamp::MAX,
        // It cannot be more urgent than now.
        ..=0 => Timestamp::MAX,
        // It becomes more urgent when it has less than all the minutes that count.
        URGENCY_MAX.. => Timestamp(job.due.0.saturating_sub(URGENCY_MAX as u64 * MINUTE_MS) + 1),
        _ => until,
    };
    Standing { score: Score(score as f64), until }
}

/// Whole minutes from now until a moment, less than 0 if it has passed, and until when that is true.
fn due_minutes(due: Timestamp, now: Timestamp) -> (i64, Timestamp) {
    if due == Timestamp::MAX {
        return (NEVER_DUE, Timestamp::MAX);
    }
    let left = i128::from(due.0) - i128::from(now.0);
    let minutes = left.div_euclid(i128::from(MINUTE_MS));
    let until = i128::from(due.0) - minutes * i128::from(MINUTE_MS) + 1;
    let bound = i128::from(NEVER_DUE);
    (minutes.clamp(-bound, bound) as i64, Timestamp(u64::try_from(until).unwrap_or(u64::MAX)))
}
