//! A job: what is to be done, who waits for it, and how far it has come.
//!
//! ```text
//! ask ──► pending ──hand out──► running ──complete──► finished ──time──► forgotten
//!            ▲  ▲                  │ │ fail for good       ▲
//!            │  └── given back ────┘ └──────────────────►──┤
//!            └── fails, worker dies (waits, then again)    │
//!            └── cancelled, deadline ──────────────────────┘
//! ```
//!
//! What is large or read once is kept as its stored bytes, since a million jobs are in memory.

use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{BudgetId, Timestamp};

use super::queue::JobQueue;
use super::score::Standing;
use super::waiter::{StoredWaiter, Waiter, unzigzag, zigzag};
use crate::wire::{Reader, WireError, Writer};

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobBody {
    /// What kind of work it is.
    pub kind: Arc<str>,
    /// What it is about: two requests with the same key are one job.
    pub key: Arc<str>,
    /// What its worker is told, as JSON.
    pub payload: Bytes,
}

/// How far a job has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It waits to be handed out, and not before this moment.
    Pending {
        /// When it may be handed out.
        ready_at: Timestamp,
    },
    /// A worker has it.
    Running(Box<Run>),
    /// It has come to its end.
    Finished(Box<Finish>),
}

/// A worker's hold of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Who says that it works on it.
    pub worker: Arc<str>,
    /// Since when.
    pub since: Timestamp,
    /// Until when, unless it says that it needs longer.
    pub until: Timestamp,
    /// What it has told of the way it went, as JSON; empty for nothing.
    pub progress: Bytes,
    /// The budget in which its cost is reserved. Its queue may have another by now.
    pub budget: Option<BudgetId>,
}

/// The end of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// What came of it.
    pub outcome: Outcome,
    /// The time of its end: it is remembered from then on.
    pub at: Timestamp,
    /// How many of its waiters, from the first on, have been answered.
    pub answered: u32,
    /// The hold that ended it; 0 for none.
    pub hold: u32,
    /// When it is forgotten.
    pub until: Timestamp,
}

/// What came of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its result, as JSON.
    Done(Bytes),
    /// Why it failed, for good.
    Failed(Arc<str>),
    /// Nobody wants it any more.
    Cancelled,
    /// It was not done before its deadline.
    Expired,
}

/// A job. Where it stands in its queue's order is not durable.
#[derive(Clone, Debug)]
pub struct Job {
    /// Type, key and payload, encoded.
    body: Box<[u8]>,
    pub(super) waiters: Waiters,
    pub(super) state: JobState,
    pub(super) created_at: Timestamp,
    /// What its queue's budget pays.
    pub(super) cost: u64,
    /// When its first waiter needs the answer; `MAX` if nobody has said.
    pub(super) due: Timestamp,
    /// When it is too late for all; `MAX` for never.
    pub(super) deadline: Timestamp,
    /// What the best of its waiters' classes counts for.
    pub(super) class: i64,
    /// Waiters that have not left.
    pub(super) waiting: u32,
    /// Bytes of them.
    waiter_bytes: u32,
    /// How often it was handed out and not given back.
    pub(super) attempts: u32,
    /// The number of its last hold, for receipts. Giving it back takes a number as well, so that the receipt that was given
    /// back is for nothing, and nobody else's.
    pub(super) holds: u32,
    /// Nobody waits for it: it is to be there in case that somebody asks.
    pub(super) background: bool,
    /// Its result is the one that is cached under its key.
    pub(super) is_cached: bool,
    /// Whether it is in its queue's order, and as what. Not durable.
    pub(super) standing: Option<Standing>,
}

/// Waiters of a job in the order in which they came. Most jobs have one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Waiters {
    #[default]
    None,
    One(StoredWaiter),
    Many(Vec<StoredWaiter>),
}

impl Waiters {
    pub(super) fn as_slice(&self) -> &[StoredWaiter] {
        match self {
            Self::None => &[],
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [StoredWaiter] {
        match self {
            Self::None => &mut [],
            Self::One(one) => std::slice::from_mut(one),
            Self::Many(many) => many,
        }
    }

    fn push(&mut self, waiter: StoredWaiter) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(waiter),
            Self::One(one) => Self::Many(vec![one, waiter]),
            Self::Many(mut many) => {
                many.push(waiter);
                Self::Many(many)
            }
        };
    }
}

impl JobBody {
    pub(super) fn encode(&self, out: &mut Writer) {
        out.text(&self.kind);
        out.text(&self.key);
        out.bytes(&self.payload);
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            kind: input.text()?.into(),
            key: input.text()?.into(),
            payload: Bytes::copy_from_slice(input.bytes()?),
        })
    }
}

impl Job {
    pub(super) fn new(
        body: &JobBody,
        cost: u64,
        background: bool,
        deadline: Timestamp,
        at: Timestamp,
    ) -> Self {
        let mut out = Writer::with_capacity(body.key.len() + body.payload.len() + body.kind.len() + 8);
        body.encode(&mut out);
        Self {
            body: out.into_vec().into(),
            waiters: Waiters::None,
            state: JobState::Pending { ready_at: at },
            created_at: at,
            cost,
            due: Timestamp::MAX,
            deadline,
            class: i64::MAX,
            waiting: 0,
            waiter_bytes: 0,
            attempts: 0,
            holds: 0,
            background,
            is_cached: false,
            standing: None,
        }
    }

    /// Type, key and payload.
    #[must_use]
    pub fn body(&self) -> JobBody {
        // It was written by `new`, or was read once when it came from a snapshot.
        JobBody::decode(&mut Reader::new(&self.body)).expect("a job's body reads back")
    }

    /// What it is about.
    #[must_use]
    pub fn key(&self) -> &str {
        let mut input = Reader::new(&self.body);
        let kind = input.text();
        kind.and_then(|_| input.text()).unwrap_or_default()
    }

    /// What kind of work it is.
    #[must_use]
    pub fn kind(&self) -> &str {
        Reader::new(&self.body).text().unwrap_or_default()
    }

    /// How far it has come.
    #[must_use]
    pub const fn state(&self) -> &JobState {
        &self.state
    }

    /// When it was made.
    #[must_use]
    pub const fn created_at(&self) -> Timestamp {
        self.created_at
    }

    /// What it costs.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// When its first waiter needs the answer.
    #[must_use]
    pub fn due(&self) -> Option<Timestamp> {
        (self.due != Timestamp::MAX).then_some(self.due)
    }

    /// When it is too late for all.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        (self.deadline != Timestamp::MAX).then_some(self.deadline)
    }

    /// How often it was handed out and not given back.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The number of its last hold.
    #[must_use]
    pub const fn holds(&self) -> u32 {
        self.holds
    }

    /// Waiters that have not left.
    #[must_use]
    pub const fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Whether nobody waits for it, and it is done to be there.
    #[must_use]
    pub const fn is_background(&self) -> bool {
        self.background
    }

    /// Whether its result is the one that is cached under its key.
    #[must_use]
    pub const fn is_cached(&self) -> bool {
        self.is_cached
    }

    /// What the best of its waiters' classes counts for, if it has a waiter.
    #[must_use]
    pub fn class(&self) -> Option<i64> {
        (self.class != i64::MAX).then_some(self.class)
    }

    /// Its score, if it can be handed out.
    #[must_use]
    pub fn score(&self) -> Option<f64> {
        self.standing.map(|standing| standing.score.0)
    }

    /// Who waits for it, each with its place; those who have left are passed over.
    pub fn waiters(&self) -> impl Iterator<Item = (u32, Waiter)> + '_ {
        self.waiters_from(0)
    }

    /// The same, from a place on.
    pub fn waiters_from(&self, first: u32) -> impl Iterator<Item = (u32, Waiter)> + '_ {
        let stored = self.waiters.as_slice().iter().enumerate().skip(first as usize);
        stored.filter_map(|(place, stored)| Some((place as u32, stored.read()?)))
    }

    /// The waiter at a place.
    #[must_use]
    pub fn waiter(&self, place: u32) -> Option<Waiter> {
        self.waiters.as_slice().get(place as usize)?.read()
    }

    /// Places of waiters, also of those who have left.
    #[must_use]
    pub fn places(&self) -> u32 {
        self.waiters.as_slice().len() as u32
    }

    pub(super) const fn is_pending(&self) -> bool {
        matches!(self.state, JobState::Pending { .. })
    }

    pub(super) const fn is_running(&self) -> bool {
        matches!(self.state, JobState::Running(_))
    }

    /// The budget that pays for what is under way, or for what comes next.
    #[must_use]
    pub fn paid_by(&self, queue: &JobQueue) -> Option<BudgetId> {
        match &self.state {
            JobState::Running(run) => run.budget,
            JobState::Pending { .. } | JobState::Finished(_) => queue.budget,
        }
    }

    /// Whether somebody still has to be answered.
    pub(super) fn is_to_answer(&self) -> bool {
        matches!(&self.state, JobState::Finished(finish) if finish.answered < self.places())
    }

    /// When it next needs attention.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        let at = match &self.state {
            JobState::Pending { .. } => self.deadline,
            JobState::Running(run) => run.until,
            JobState::Finished(_) if self.is_to_answer() => Timestamp::MAX,
            JobState::Finished(finish) => finish.until,
        };
        (at != Timestamp::MAX).then_some(at)
    }

    /// Somebody joins, and gets a place.
    pub(super) fn join(&mut self, waiter: &Waiter) -> u32 {
        let place = self.places();
        let stored = StoredWaiter::new(waiter);
        self.waiter_bytes = self.waiter_bytes.saturating_add(stored.bytes());
        self.waiters.push(stored);
        self.waiting += 1;
        self.due = self.due.min(waiter.due.unwrap_or(Timestamp::MAX));
        self.class = self.class.min(waiter.class_value);
        self.background = false;
        place
    }

    /// Notes that waiters of a finished job have been answered up to a place, and that those behind it who ask for their answers
    /// need nobody to bring them. Gives back how many are answered by that.
    pub(super) fn note_answered(&mut self, before: u32) -> u64 {
        let waiters = self.waiters.as_slice();
        let JobState::Finished(finish) = &mut self.state else { return 0 };
        let first = finish.answered as usize;
        let before = (before as usize).clamp(first, waiters.len());
        let asking = waiters[before..].iter().take_while(|waiter| !waiter.is_to_be_told()).count();
        let answered = before + asking;
        finish.answered = answered as u32;
        waiters[first..answered].iter().filter(|waiter| !waiter.is_gone()).count() as u64
    }

    /// A waiter leaves.
    pub(super) fn leave(&mut self, place: u32) {
        if let Some(stored) = self.waiters.as_mut_slice().get_mut(place as usize)
            && !stored.is_gone()
        {
            self.waiter_bytes = self.waiter_bytes.saturating_sub(stored.bytes());
            *stored = StoredWaiter::gone();
            self.waiting -= 1;
            let left = || self.waiters.as_slice().iter().filter_map(StoredWaiter::read);
            self.due = left().filter_map(|waiter| waiter.due).min().unwrap_or(Timestamp::MAX);
            self.class = left().map(|waiter| waiter.class_value).min().unwrap_or(i64::MAX);
        }
    }

    pub(super) fn id_at(&self, place: u32) -> &str {
        self.waiters.as_slice().get(place as usize).map_or("", StoredWaiter::id)
    }

    /// What it takes in memory, about.
    pub(super) fn memory_bytes(&self) -> u64 {
        /// The job itself, its places in the table, the order and the indexes.
        const OWN_BYTES: u64 = 260;
        /// A waiter's place, and the index of its id.
        const WAITER_BYTES: u64 = 60;
        let stored = u64::from(self.places()) * WAITER_BYTES + u64::from(self.waiter_bytes);
        let state = match &self.state {
            JobState::Pending { .. } => 0,
            JobState::Running(run) => run.progress.len() as u64 + 100,
            JobState::Finished(finish) => {
                100 + match &finish.outcome {
                    Outcome::Done(result) => result.len() as u64,
                    Outcome::Failed(error) => error.len() as u64,
                    Outcome::Cancelled | Outcome::Expired => 0,
                }
            }
        };
        OWN_BYTES + self.body.len() as u64 + stored + state
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        out.bytes(&self.body);
        out.u64(self.created_at.0);
        out.u64(self.cost);
        out.u64(self.due.0);
        out.u64(self.deadline.0);
        out.u64(zigzag(self.class));
        out.u64(self.attempts.into());
        out.u64(self.holds.into());
        out.u8(u8::from(self.background) | u8::from(self.is_cached) << 1);
        out.u64(self.waiters.as_slice().len() as u64);
        self.waiters.as_slice().iter().for_each(|waiter| waiter.encode(out));
        match &self.state {
            JobState::Pending { ready_at } => {
                out.u8(0);
                out.u64(ready_at.0);
            }
            JobState::Running(run) => {
                out.u8(1);
                out.text(&run.worker);
                out.u64(run.since.0);
                out.u64(run.until.0);
                out.bytes(&run.progress);
                out.optional(run.budget.map(|budget| budget.0.into()));
            }
            JobState::Finished(finish) => {
                out.u8(2);
                finish.outcome.encode(out);
                out.u64(finish.at.0);
                out.u64(finish.answered.into());
                out.u64(finish.hold.into());
                out.u64(finish.until.0);
            }
        }
    }

    /// Reads a job of a snapshot of this version, whose queue has this budget.
    pub(super) fn decode(
        input: &mut Reader<'_>,
        version: u64,
        budget: Option<BudgetId>,
    ) -> Result<Self, WireError> {
        let body: Box<[u8]> = input.bytes()?.into();
        JobBody::decode(&mut Reader::new(&body))?;
        let (created_at, cost) = (Timestamp(input.u64()?), input.u64()?);
        let (due, deadline) = (Timestamp(input.u64()?), Timestamp(input.u64()?));
        let (class, attempts) = (unzigzag(input.u64()?), input.u32()?);
        let (holds, flags) = (input.u32()?, input.u8()?);
        let mut waiters = Waiters::None;
        let (mut waiting, mut waiter_bytes) = (0, 0u32);
        for _ in 0..input.u64()? {
            let waiter = StoredWaiter::decode(input)?;
            waiter_bytes = waiter_bytes.saturating_add(waiter.bytes());
            waiting += u32::from(!waiter.is_gone());
            waiters.push(waiter);
        }
        let state = match input.u8()? {
            0 => JobState::Pending { ready_at: Timestamp(input.u64()?) },
            1 => JobState::Running(Box::new(Run {
                worker: input.text()?.into(),
                since: Timestamp(input.u64()?),
                until: Timestamp(input.u64()?),
                progress: Bytes::copy_from_slice(input.bytes()?),
                budget: match version {
                    // Queues had one budget for as long as jobs were at work.
                    1 => budget,
                    _ => input
                        .optional()?
                        .map(|id| Ok(BudgetId(u32::try_from(id).map_err(|_| WireError::Range)?)))
                        .transpose()?,
                },
            })),
            2 => JobState::Finished(Box::new(Finish {
                outcome: Outcome::decode(input)?,
                at: Timestamp(input.u64()?),
                answered: input.u32()?,
                hold: input.u32()?,
                until: Timestamp(input.u64()?),
            })),
            value => return Err(WireError::Unknown { what: "state of a job", value }),
        };
        let (background, is_cached) = (flags & 1 != 0, flags & 2 != 0);
        let standing = None;
        Ok(Self {
            body,
            waiters,
            state,
            created_at,
            cost,
            due,
            deadline,
            class,
            waiting,
            waiter_bytes,
            attempts,
            holds,
            background,
            is_cached,
            standing,
        })
    }
}

impl Outcome {
    /// In a word.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Done(_) => "done",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        match self {
            Self::Done(result) => {
                out.u8(0);
                out.bytes(result);
            }
            Self::Failed(error) => {
                out.u8(1);
                out.text(error);
            }
            Self::Cancelled => out.u8(2),
            Self::Expired => out.u8(3),
        }
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match input.u8()? {
            0 => Self::Done(Bytes::copy_from_slice(input.bytes()?)),
            1 => Self::Failed(input.text()?.into()),
            2 => Self::Cancelled,
            3 => Self::Expired,
            value => return Err(WireError::Unknown { what: "outcome of a job", value }),
        })
    }
}

impl PartialEq for Job {
    /// All that is durable.
    fn eq(&self, other: &Self) -> bool {
        let encoded = |job: &Self| {
            let mut out = Writer::default();
            job.encode(&mut out);
            out.into_vec()
        };
        encoded(self) == encoded(other)
    }
}
