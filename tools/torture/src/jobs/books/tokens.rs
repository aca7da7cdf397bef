//! Tokens: what a budget had, and what was paid of it.

use std::time::Duration;

use super::{Books, MARGIN};
use crate::clock::{self, Micros};
use crate::jobs::setup::{INITIAL, REFILL_TOKENS};
use crate::ledger::What;

/// What the dearest job costs.
const DEAR: i64 = 5;

/// What is known of the budget.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// When it was made: not before the one, and not after the other.
    made: (Micros, Micros),
    /// How often tokens come.
    refilled_every: Duration,
    /// What was used for certain.
    pub(super) used: u64,
    /// What may have been used besides.
    pub(super) used_maybe: u64,
    /// What was used by jobs whose lease was over, and when that was known; since the budget was last seen with nothing owed.
    pub(super) late: Vec<(Micros, u64)>,
}

/// What the broker said of the budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) sent_at: Micros,
    /// What the books had as used then.
    pub(crate) used_before: u64,
    pub(crate) got_at: Micros,
    pub(crate) tokens: i64,
    pub(crate) reserved: u64,
    pub(crate) used: u64,
}

impl Tokens {
    /// What had come by a moment, if the budget was made at another.
    fn came(&self, made: Micros, now: Micros) -> u64 {
        let times = now.saturating_sub(made).checked_div(clock::micros(self.refilled_every));
        INITIAL + times.unwrap_or(0) * REFILL_TOKENS
    }

    pub(super) fn came_at_least(&self, now: Micros) -> u64 {
        self.came(self.made.1 + MARGIN, now)
    }

    pub(super) fn came_at_most(&self, now: Micros) -> u64 {
        self.came(self.made.0, now + MARGIN)
    }
}

impl Books {
    /// The budget was made between these two moments, and gets tokens this often.
    pub(crate) fn budget_made(&mut self, sent_at: Micros, got_at: Micros, refilled_every: Duration) {
        self.tokens.made = (sent_at, got_at);
        self.tokens.refilled_every = refilled_every;
    }

    /// What was used for certain.
    pub(crate) const fn used(&self) -> u64 {
        self.tokens.used
    }

    /// Somebody has looked at the budget.
    pub(crate) fn looked(&mut self, look: &Look) {
        let Look { sent_at, used_before, got_at, tokens, reserved, used } = *look;
        let late = self.paid_late(got_at);
        if tokens < 0 && tokens.unsigned_abs() > late {
            let fact = format!(
                "the budget has {tokens} tokens, and at most {late} were paid for jobs whose lease was over: {look:?}"
            );
            self.report(What::Overspent, fact);
        }
        if tokens >= 0 {
            // From here on, only what is paid late from now on can bring it below nothing.
            self.tokens.late.retain(|(at, _)| *at >= sent_at);
        }
        self.totals.broke += u64::from(tokens < DEAR);
        let in_all = i128::from(tokens) + i128::from(reserved) + i128::from(used);
        let (least, most) = (self.tokens.came_at_least(sent_at), self.tokens.came_at_most(got_at));
        if !(i128::from(least)..=i128::from(most)).contains(&in_all) {
            let fact = format!(
                "tokens left, reserved and used are {in_all} together; {least} to {most} have come: {look:?}"
            );
            self.report(What::Overspent, fact);
        }
        let held = self.reserved(sent_at, got_at);
        if reserved < held {
            let fact = format!("workers hold jobs that cost {held}, and {reserved} are reserved: {look:?}");
            self.report(What::Overspent, fact);
        }
        let most = self.tokens.used + self.tokens.used_maybe;
        if !(used_before..=most).contains(&used) {
            let fact = format!("workers have used {used_before} to {most} tokens: {look:?}");
            self.report(What::Figures, fact);
        }
    }

    /// What workers hold and have used must have been there.
    pub(super) fn check_spent(&mut self, now: Micros) {
        let (held, used, late) = (self.reserved(now, now), self.tokens.used, self.paid_late(now));
        let came = self.tokens.came_at_most(now);
        if held + used > came + late {
            let fact = format!(
                "workers hold jobs that cost {held} and have used {used} tokens, {late} of them late; {came} have come"
            );
            self.report(What::Overspent, fact);
        }
    }
}
