//! How far a run is, for whoever watches; who watches may end it before its time.

use std::time::Duration;

use crate::tally::Totals;

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Since it began.
    pub elapsed: Duration,
    /// How long it will take, without the end.
    pub total: Duration,
    /// What was done so far.
    pub totals: Totals,
}

/// What whoever watches says to how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    GoOn,
    /// Enough: end in order, delete what was declared, and tell what was found so far.
    Enough,
}

/// Somebody who watches.
pub type Watch<'a> = &'a mut dyn FnMut(&Progress) -> Verdict;
