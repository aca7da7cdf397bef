//! What the loss of a node means to the books: whose sessions are over, and for how long nothing was confirmed.

use super::books::{Ledger, SessionId};
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

impl Ledger {
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
