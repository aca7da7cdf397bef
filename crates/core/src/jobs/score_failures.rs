//! What is known of scores that could not be found. It is not durable, as scores are not.

use std::collections::BTreeSet;
use std::sync::Arc;

/// Different errors of one policy that are told. An expression has few ways to fail; more of them say nothing new.
const TOLD_MAX: usize = 8;

/// Scores of one queue that could not be found.
#[derive(Debug, Default)]
pub(super) struct ScoreFailures {
    /// How often that was so.
    count: u64,
    /// The last job, and why.
    last: Option<(u64, Arc<str>)>,
    /// Errors that were told, or are to be told.
    known: BTreeSet<Arc<str>>,
    untold: Vec<Arc<str>>,
}

impl ScoreFailures {
    pub(super) fn note(&mut self, number: u64, error: &str) {
        self.count += 1;
        if let Some((last, _)) = self.last.as_mut().filter(|(_, known)| **known == *error) {
            *last = number;
            return;
        }
        let error: Arc<str> = error.into();
        if self.known.len() < TOLD_MAX && self.known.insert(Arc::clone(&error)) {
            self.untold.push(Arc::clone(&error));
        }
        self.last = Some((number, error));
    }

    /// There is another policy. What was counted stays.
    pub(super) fn begin_anew(&mut self) {
        *self = Self { count: self.count, ..Self::default() };
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    pub(super) const fn last(&self) -> Option<&(u64, Arc<str>)> {
        self.last.as_ref()
    }

    pub(super) const fn has_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    pub(super) fn take_untold(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.untold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_is_told_once_and_not_without_end() {
        let mut failures = ScoreFailures::default();
        for number in 0..100 {
            failures.note(number, "division by zero");
            failures.note(number, if number % 2 == 0 { "no such class" } else { "too large" });
        }
        assert_eq!((failures.count(), failures.last()), (200, Some(&(99, "too large".into()))));
        assert_eq!(failures.take_untold().len(), 3);
        for number in 0..100 {
            failures.note(number, &number.to_string());
        }
        assert_eq!(failures.take_untold().len(), TOLD_MAX - 3);
        failures.begin_anew();
        failures.note(1, "division by zero");
        assert_eq!((failures.count(), failures.take_untold().len()), (301, 1));
    }
}
