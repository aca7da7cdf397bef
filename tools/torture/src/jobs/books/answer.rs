//! What a run's result is, and what is left of it by a waiter's filter: so that every answer can be told to be right.

use serde_json::{Value, json};

use super::RunId;

/// Items of one result: twice as many as there are remainders, so that each is there.
const ITEMS: u64 = 14;
const REMAINDERS: u64 = 7;

/// Which items a waiter wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    All,
    /// Those whose number leaves this, by seven.
    Remainder(u8),
    /// There are none of these.
    Nothing,
}

impl Filter {
    pub(crate) fn any(chances: &mut fastrand::Rng) -> Self {
        match chances.u8(..10) {
            0 => Self::Nothing,
            1 => Self::All,
            _ => Self::Remainder(chances.u8(..REMAINDERS as u8)),
        }
    }

    /// As the broker is told.
    pub(crate) fn text(self) -> String {
        match self {
            Self::All => String::new(),
            Self::Remainder(remainder) => format!("item.n % {REMAINDERS} == {remainder}"),
            Self::Nothing => "item.n < 0".to_owned(),
        }
    }

    fn lets(self, number: u64) -> bool {
        match self {
            Self::All => true,
            Self::Remainder(remainder) => number % REMAINDERS == u64::from(remainder),
            Self::Nothing => false,
        }
    }
}

fn numbers(run: RunId) -> impl Iterator<Item = u64> {
    let first = run.0 % 100;
    first..first + ITEMS
}

/// The result of a run, as far as a filter lets it through. Each item says whose it is.
pub(crate) fn items(run: RunId, filter: Filter) -> Value {
    let wanted = numbers(run).filter(|number| filter.lets(*number));
    Value::Array(wanted.map(|number| json!({ "n": number, "of": run.0 })).collect())
}

/// What a run says when it gives a job up.
pub(crate) fn reason(run: RunId) -> String {
    format!("given up by run {}", run.0)
}

/// Which run has given a job up, by what it said.
pub(super) fn run_of_reason(reason: &str) -> Option<RunId> {
    reason.strip_prefix("given up by run ")?.parse().ok().map(RunId)
}

/// Whose result this is, if it has items.
pub(super) fn run_of_items(result: &Value) -> Option<RunId> {
    result.as_array()?.first()?["of"].as_u64().map(RunId)
}
