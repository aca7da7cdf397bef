//! What the loss of a node means to the books: whose sessions are over, and for how long nothing was confirmed.

use std::collections::BTreeMap;

use super::books::{Ledger, SessionId};
use super::violation::What;
use crate::clock::Micros;

/// Doors that are shut.
#[derive(Clone, Debug, Default)]
pub(super) struct Shut {
    doors: Vec<usize>,
    of: usize,
}

impl Shut {
    pub(super) fn add(&mut self, doors: impl IntoIterator<Item = usize>, of: usize) {
        self.doors.extend(doors);
        self.of = of;
    }

    pub(super) fn has(&self, session: SessionId) -> bool {
        !self.doors.is_empty() && self.doors.contains(&session.door(self.of))
    }
}

/// The longest time without a confirm since somebody began to watch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Silence {
    last: Micros,
    longest: Micros,
}

impl Silence {
    pub(super) fn broken(&mut self, at: Micros) {
        self.longest = self.longest.max(at.saturating_sub(self.last));
        self.last = self.last.max(at);
    }
}

/// What was told when it was last known who leads.
#[derive(Clone, Debug, Default)]
pub(super) struct Sure {
    told: usize,
    counts: BTreeMap<What, u64>,
}

impl Ledger {
    /// It is known who leads, and that nobody else has since this was said last.
    pub(crate) fn is_sure(&mut self) {
        self.sure = Sure { told: self.violations.len(), counts: self.counts.clone() };
    }

    /// Somebody else leads than the books thought, for an unknown time. What may have looked wrong because of that counts no
    /// more; what is lost is found out in the end all the same. All sessions are over. Answers how much that was.
    pub(crate) fn was_unsure(&mut self) -> u64 {
        let Sure { told, counts } = std::mem::take(&mut self.sure);
        let mut at = 0;
        self.violations.retain(|violation| {
            at += 1;
            at <= told || !violation.what.may_be_a_move()
        });
        let mut excused = 0;
        for (what, count) in self.counts.iter_mut().filter(|(what, _)| what.may_be_a_move()) {
            let before = counts.get(what).copied().unwrap_or(0);
            excused += *count - before;
            *count = before;
        }
        self.counts.retain(|_, count| *count > 0);
        self.end_life();
        excused
    }

    /// Silence counts from now on.
    pub(crate) fn watch_silence(&mut self, now: Micros) {
        self.silence = Silence { last: now, ..Silence::default() };
    }

    /// For how long nothing was confirmed at most, since it was watched.
    pub(crate) fn longest_silence(&self, now: Micros) -> Micros {
        self.silence.longest.max(now.saturating_sub(self.silence.last))
    }

    /// For how long nothing has been confirmed now.
    pub(crate) fn silence(&self, now: Micros) -> Micros {
        now.saturating_sub(self.silence.last)
    }
}
