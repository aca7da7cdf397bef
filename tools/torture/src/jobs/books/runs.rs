//! Runs: who holds which job from when to when, and what was said of it.

use super::{Books, End, JobNumber, MARGIN, RunId};
use crate::clock::Micros;
use crate::jobs::setup::Kind;
use crate::ledger::What;

/// What a worker was given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) kind: Kind,
    pub(crate) key: u8,
    pub(crate) job: JobNumber,
    pub(crate) worker: u32,
    pub(crate) cost: u64,
    /// When the lease ends.
    pub(crate) until: Micros,
}

/// What a worker says to end its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Complete {
        used: u64,
    },
    /// To be tried again.
    Fail {
        used: u64,
    },
    /// Not to be.
    GiveUp {
        used: u64,
    },
    GiveBack,
}

impl Word {
    const fn used(self) -> u64 {
        match self {
            Self::Complete { used } | Self::Fail { used } | Self::GiveUp { used } => used,
            Self::GiveBack => 0,
        }
    }
}

/// What is known of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) hold: Hold,
    pub(super) from: Micros,
    /// What was said to end it, and how often.
    pub(super) word: Option<Word>,
    said: u32,
}

impl Run {
    /// Whether it has its job at this moment, for certain.
    pub(super) const fn holds(&self, now: Micros) -> bool {
        self.word.is_none() && self.hold.until > now + MARGIN
    }
}

impl Books {
    /// A worker was given a job.
    pub(crate) fn handed(&mut self, hold: Hold, now: Micros) -> RunId {
        let id = RunId(self.runs.len() as u64);
        let run = Run { hold, from: now, word: None, said: 0 };
        self.totals.handed_out += 1;
        self.saw_job(hold.job, hold.kind);
        let place = (hold.kind, hold.key);
        let runs = &self.runs;
        let held = self.held.entry(place).or_default();
        held.retain(|other| runs[other.0 as usize].holds(now));
        let others = held.clone();
        held.push(id);
        self.runs.push(run);
        if !run.holds(now) {
            // Its lease is over, or almost, since it was long on its way.
            return id;
        }
        for other in others {
            let before = &self.runs[other.0 as usize].hold;
            let fact = format!(
                "key {} of '{}' was handed to worker {} ({}, {id}) while worker {} has it ({}, {other}) until {}",
                hold.key,
                hold.kind.name(),
                hold.worker,
                hold.job,
                before.worker,
                before.job,
                before.until
            );
            self.report(What::SharedKey, fact);
        }
        if let Some(end) = self.jobs.get(&hold.job).and_then(|job| job.end) {
            let fact = format!("{} was handed to worker {} and had ended, {end}", hold.job, hold.worker);
            self.report(What::Resurrected, fact);
        }
        self.check_spent(now);
        id
    }

    /// Nothing will be heard of it.
    pub(crate) fn died(&mut self, _run: RunId) {
        self.totals.deaths += 1;
    }

    /// A worker was given more time, or was told that the job is not its any more.
    pub(crate) fn extended(&mut self, id: RunId, until: Result<Micros, ()>, now: Micros) {
        let run = &mut self.runs[id.0 as usize];
        match until {
            Ok(until) => {
                run.hold.until = run.hold.until.max(until);
                self.totals.extended += 1;
            }
            Err(()) => {
                self.totals.stale += 1;
                self.check_lease(id, now);
            }
        }
    }

    /// A worker is about to end its hold, perhaps not for the first time.
    pub(crate) fn saying(&mut self, id: RunId, word: Word) {
        let run = &mut self.runs[id.0 as usize];
        run.said += 1;
        if run.word.is_some() {
            return;
        }
        run.word = Some(word);
        self.tokens.used_maybe += word.used();
        if matches!(word, Word::Complete { .. }) {
            self.completing.insert(id);
        }
    }

    /// The broker has done what the worker said.
    pub(crate) fn settled(&mut self, id: RunId, now: Micros) {
        let Run { hold, word: Some(word), .. } = self.runs[id.0 as usize] else { return };
        self.completing.remove(&id);
        self.tokens.used_maybe -= word.used();
        self.tokens.used += word.used();
        match word {
            Word::Complete { used } => {
                if now + MARGIN >= hold.until {
                    self.totals.late += 1;
                    self.tokens.late.push((now, used));
                }
                self.ended(hold.job, End::Done(id), &id);
            }
            Word::GiveUp { .. } => {
                self.totals.given_up += 1;
                self.ended(hold.job, End::GivenUp(id), &id);
            }
            Word::Fail { .. } => self.totals.failures += 1,
            Word::GiveBack => self.totals.given_back += 1,
        }
    }

    /// The broker says that the job is not its any more.
    pub(crate) fn refused(&mut self, id: RunId, now: Micros) {
        let Run { word: Some(word), said, .. } = self.runs[id.0 as usize] else { return };
        self.completing.remove(&id);
        self.totals.stale += 1;
        match word {
            // Said again, it would have been answered as before: it has not been done.
            Word::Complete { used } => {
                self.tokens.used_maybe -= used;
                self.check_lease(id, now);
            }
            Word::Fail { .. } | Word::GiveUp { .. } | Word::GiveBack if said > 1 => {}
            Word::Fail { used } | Word::GiveUp { used } => {
                self.tokens.used_maybe -= used;
                self.check_lease(id, now);
            }
            Word::GiveBack => self.check_lease(id, now),
        }
    }

    /// Tells of a worker that has lost its job before its time.
    fn check_lease(&mut self, id: RunId, now: Micros) {
        let Run { hold, from, .. } = self.runs[id.0 as usize];
        if hold.until > now + MARGIN {
            let fact = format!(
                "worker {} ({id}) has {} since {from} until {}, and was told at {now} that it has not",
                hold.worker, hold.job, hold.until
            );
            self.report(What::LeaseBroken, fact);
        }
    }

    /// Whether a run can have ended its job like this.
    pub(super) fn can_have_ended(&self, job: JobNumber, end: End) -> bool {
        let (End::Done(id) | End::GivenUp(id)) = end;
        self.runs.get(id.0 as usize).is_some_and(|run| {
            run.hold.job == job
                && match end {
                    End::Done(_) => matches!(run.word, Some(Word::Complete { .. })),
                    End::GivenUp(_) => matches!(run.word, Some(Word::GiveUp { .. })),
                }
        })
    }

    /// What runs have reserved that hold their jobs, from one moment to another.
    pub(super) fn reserved(&self, from: Micros, until: Micros) -> u64 {
        let held = self.held.values().flatten().map(|id| &self.runs[id.0 as usize]);
        held.filter(|run| run.from <= from && run.holds(until)).map(|run| run.hold.cost).sum()
    }

    /// What may have been paid for jobs whose leases had ended: their tokens may have been with others.
    pub(super) fn paid_late(&self, now: Micros) -> u64 {
        let open = self.completing.iter().map(|id| &self.runs[id.0 as usize]);
        let open = open.filter(|run| run.hold.until <= now + MARGIN);
        let open: u64 = open.filter_map(|run| run.word).map(Word::used).sum();
        open + self.tokens.late.iter().map(|(_, used)| used).sum::<u64>()
    }
}
