//! What a job queue is told to be.

use std::collections::BTreeMap;
use std::sync::Arc;

use nexo_types::{BudgetName, JobQueueName, Millis, limits};

use super::error::JobError;
use super::score::ScorePolicy;
use super::waiter::{unzigzag, zigzag};
use crate::config::Backoff;
use crate::wire::{Reader, WireError, Writer};

/// The settings of a job queue.
#[derive(Clone, Debug, PartialEq)]
pub struct JobQueueConfig {
    /// Which budget pays for its jobs. Without one they cost nothing.
    pub budget: Option<BudgetName>,
    /// How long after its creation waiters join a job that is pending.
    pub window: Millis,
    /// What becomes of a waiter whose key is being worked on.
    pub while_running: WhileRunning,
    /// Whether a result that is still cached answers at once, without a job.
    pub answer_from_cache: bool,
    /// How long a result is cached under its key.
    pub result_ttl: Millis,
    /// How long a waiter is remembered after its answer: the same request again gets the same answer.
    pub remember: Millis,
    /// How long a worker has a job, unless it says otherwise.
    pub lease: Millis,
    /// How often a job is handed out before it fails for good.
    pub max_attempts: u32,
    /// How long a job waits after it failed.
    pub retry: Backoff,
    /// What a waiter gets whose filter lets nothing through.
    pub empty_answers: EmptyAnswers,
    /// What happens while the first job cannot be paid.
    pub overtake: Overtake,
    /// An expression that says how urgent a job is; `None` for the default policy.
    pub score: Option<Arc<str>>,
    /// What each class counts for. The empty name is for waiters without a class, and one that is not here is refused.
    pub classes: BTreeMap<Arc<str>, i64>,
    /// What a job costs, by its type: an expression over its payload. The empty name is for all other types.
    pub costs: BTreeMap<Arc<str>, Arc<str>>,
    /// How pending jobs are counted by score.
    pub bands: Vec<Band>,
    /// How many jobs may be pending.
    pub pending_max: Option<u64>,
    /// Whether nothing is handed out.
    pub paused: bool,
}

/// What becomes of a waiter whose key is being worked on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhileRunning {
    /// It gets the answer of the job that is running.
    #[default]
    Share,
    /// It waits for the next job.
    Next,
}

/// What a waiter gets whose filter lets nothing through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmptyAnswers {
    /// An answer without items.
    #[default]
    Send,
    /// Nothing. Whoever asks for the answer gets one without items.
    Skip,
}

/// What happens while the first job cannot be paid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overtake {
    /// All others wait behind it.
    #[default]
    Never,
    /// The first that can be paid goes.
    Affordable,
}

/// A range of scores.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// What it is called.
    pub name: Arc<str>,
    /// The highest score in it. The last band has all that are higher than those before.
    pub up_to: f64,
}

impl Default for JobQueueConfig {
    fn default() -> Self {
        let class = |(name, value): (&str, i64)| (name.into(), value);
        let band = |(name, up_to): (&str, f64)| Band { name: name.into(), up_to };
        Self {
            budget: None,
            window: Millis::from_secs(300),
            while_running: WhileRunning::Share,
            answer_from_cache: true,
            result_ttl: Millis::from_secs(3600),
            remember: Millis::from_secs(300),
            lease: Millis::from_secs(60),
            max_attempts: 5,
            retry: Backoff::Exponential {
                base: Millis::from_secs(1),
                factor_permille: 2000,
                cap: Millis::from_secs(300),
            },
            empty_answers: EmptyAnswers::Send,
            overtake: Overtake::Never,
            score: None,
            classes: [("", 10), ("business", 0), ("pro", 3), ("starter", 6), ("free", 10)].map(class).into(),
            costs: BTreeMap::new(),
            bands: [("urgent", 20.0), ("normal", 50.0), ("low", 99.0), ("prefetch", f64::MAX)]
                .map(band)
                .into(),
            pending_max: None,
            paused: false,
        }
    }
}

/// The version in which settings are written.
const VERSION: u64 = 1;

impl JobQueueConfig {
    /// Whether the settings make sense.
    ///
    /// # Errors
    /// Says which does not.
    pub fn check(&self) -> Result<(), JobError> {
        let range = |name: &'static str, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(JobError::BadSetting {
                    reason: format!("{name} is a number from {min} to {max}; it is {value}"),
                })
            }
        };
        range("window_ms", self.window.0, 0, limits::DELAY_MAX.0)?;
        range("result_ttl_ms", self.result_ttl.0, 0, limits::DELAY_MAX.0)?;
        range("remember_ms", self.remember.0, 0, limits::DELAY_MAX.0)?;
        range("lease_ms", self.lease.0, 1, limits::JOB_LEASE_MAX.0)?;
        range("max_attempts", self.max_attempts.into(), 1, 1_000_000)?;
        self.retry.check()?;
        for (what, count) in
            [("classes", self.classes.len()), ("costs", self.costs.len()), ("bands", self.bands.len())]
        {
            range(what, count as u64, 0, limits::JOB_QUEUE_ENTRIES_MAX as u64)?;
        }
        let words = self.classes.keys().chain(self.costs.keys()).chain(self.bands.iter().map(|b| &b.name));
        for word in words {
            if word.len() > limits::JOB_WORD_BYTES_MAX || word.chars().any(char::is_control) {
                return Err(JobError::BadSetting {
                    reason: format!(
                        "a class, type or band has at most {} bytes and no control characters; {word:?} is none",
                        limits::JOB_WORD_BYTES_MAX
                    ),
                });
            }
        }
        if let Some(value) = self.classes.values().find(|value| value.unsigned_abs() > 1_000_000_000) {
            return Err(JobError::BadSetting {
                reason: format!("a class counts for at most 1000000000, either way; {value} is more"),
            });
        }
        if self.bands.is_empty() || !self.bands.windows(2).all(|pair| pair[0].up_to < pair[1].up_to) {
            return Err(JobError::BadSetting {
                reason: "bands has one band at least, and each goes further up than the one before".into(),
            });
        }
        ScorePolicy::new(self.score.as_deref())?;
        for source in self.costs.values() {
            super::expressions::CostRule::new(source)?;
        }
        Ok(())
    }

    /// What a class counts for.
    ///
    /// # Errors
    /// If there is no such class.
    pub fn class_value(&self, queue: &JobQueueName, class: &str) -> Result<i64, JobError> {
        self.classes.get(class).copied().ok_or_else(|| JobError::UnknownClass {
            queue: queue.clone(),
            class: class.into(),
            known: self.classes.keys().filter(|name| !name.is_empty()).cloned().collect(),
        })
    }

    /// Which band a score is in.
    #[must_use]
    pub fn band_of(&self, score: f64) -> usize {
        let last = self.bands.len().saturating_sub(1);
        self.bands.iter().position(|band| score <= band.up_to).unwrap_or(last)
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        out.version(VERSION);
        match &self.budget {
            None => out.u8(0),
            Some(name) => {
                out.u8(1);
                out.text(name.stored());
            }
        }
        out.u64(self.window.0);
        out.u8(u8::from(self.while_running == WhileRunning::Next));
        out.u8(u8::from(self.answer_from_cache));
        out.u64(self.result_ttl.0);
        out.u64(self.remember.0);
        out.u64(self.lease.0);
        out.u64(self.max_attempts.into());
        self.retry.encode(out);
        out.u8(u8::from(self.empty_answers == EmptyAnswers::Skip));
        out.u8(u8::from(self.overtake == Overtake::Affordable));
        match &self.score {
            None => out.u8(0),
            Some(source) => {
                out.u8(1);
                out.text(source);
            }
        }
        out.u64(self.classes.len() as u64);
        for (name, value) in &self.classes {
            out.text(name);
            out.u64(zigzag(*value));
        }
        out.u64(self.costs.len() as u64);
        for (kind, source) in &self.costs {
            out.text(kind);
            out.text(source);
        }
        out.u64(self.bands.len() as u64);
        for band in &self.bands {
            out.text(&band.name);
            out.raw(&band.up_to.to_bits().to_be_bytes());
        }
        out.optional(self.pending_max);
        out.u8(u8::from(self.paused));
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        input.version("the settings of a job queue", VERSION)?;
        let config = Self {
            budget: match input.flag()? {
                false => None,
                true => Some(BudgetName::from_stored(input.text()?).map_err(|_| WireError::BadName)?),
            },
            window: Millis(input.u64()?),
            while_running: if input.flag()? { WhileRunning::Next } else { WhileRunning::Share },
            answer_from_cache: input.flag()?,
            result_ttl: Millis(input.u64()?),
            remember: Millis(input.u64()?),
            lease: Millis(input.u64()?),
            max_attempts: input.u32()?,
            retry: Backoff::decode(input)?,
            empty_answers: if input.flag()? { EmptyAnswers::Skip } else { EmptyAnswers::Send },
            overtake: if input.flag()? { Overtake::Affordable } else { Overtake::Never },
            score: match input.flag()? {
                false => None,
                true => Some(input.text()?.into()),
            },
            classes: (0..input.u64()?)
                .map(|_| Ok((input.text()?.into(), unzigzag(input.u64()?))))
                .collect::<Result<_, WireError>>()?,
            costs: (0..input.u64()?)
                .map(|_| Ok((input.text()?.into(), input.text()?.into())))
                .collect::<Result<_, WireError>>()?,
            bands: (0..input.u64()?)
                .map(|_| {
                    let name = input.text()?.into();
                    Ok(Band { name, up_to: f64::from_bits(input.u64_fixed()?) })
                })
                .collect::<Result<_, WireError>>()?,
            pending_max: input.optional()?,
            paused: input.flag()?,
        };
        Ok(config)
    }
}
