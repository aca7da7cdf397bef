//! How far a run is, for whoever watches.

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
