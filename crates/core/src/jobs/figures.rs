//! What is counted of a job queue: in all, by type and by key. It follows from records, so it outlives a restart.

use std::collections::BTreeMap;
use std::sync::Arc;

use nexo_types::{Millis, Timestamp, limits};

use crate::wire::{Reader, WireError, Writer};

/// The first version that says of types and keys how long jobs and waiters waited, and what was used on the last day.
const VERSION_WITH_WAITS: u64 = 2;

const DAY_MS: u64 = 24 * 3600 * 1000;

/// A sum of times, and how many they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// How many times are in the sum.
    pub count: u64,
    /// In milliseconds.
    pub total: Millis,
    /// The longest of them, in milliseconds.
    pub max: Millis,
}

/// What has happened in a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Requests that made a job.
    pub created: u64,
    /// Requests that joined one.
    pub joined: u64,
    /// Requests that a cached result answered.
    pub cache_hits: u64,
    /// Jobs that were done.
    pub done: u64,
    /// Jobs that failed for good.
    pub failed: u64,
    /// Jobs that were cancelled.
    pub cancelled: u64,
    /// Jobs that were not done before their deadline.
    pub expired: u64,
    /// Attempts that came to nothing, and were tried again.
    pub retried: u64,
    /// Answers that were given.
    pub answered: u64,
    /// Tokens that were used.
    pub tokens: u64,
    /// From a job's creation until it was handed out first.
    pub waits: Times,
    /// From hand-out to completion.
    pub runs: Times,
    /// From a waiter's request until the job was done.
    pub responses: Times,
    pub(super) today: Daily,
    pub(super) by_kind: Recent,
    pub(super) by_key: Recent,
}

/// What has happened to jobs of one type, or of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindFigures {
    /// Jobs that were done.
    pub done: u64,
    /// Jobs that failed for good.
    pub failed: u64,
    /// Tokens that were used.
    pub tokens: u64,
    /// Requests that a cached result answered.
    pub cache_hits: u64,
    /// From a job's creation until it was handed out first.
    pub waits: Times,
    /// From hand-out to completion.
    pub runs: Times,
    /// From a waiter's request until the job was done.
    pub responses: Times,
    today: Daily,
    /// When it was counted last, in numbers of counts.
    seen: u64,
}

/// Tokens that were used on one day, by UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Daily {
    /// The day, counted from 1970.
    day: u64,
    tokens: u64,
}

/// Figures by name, of those that were seen most recently.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Recent {
    of: BTreeMap<Arc<str>, KindFigures>,
    by_age: BTreeMap<u64, Arc<str>>,
    seen: u64,
}

impl Times {
    pub(super) fn note(&mut self, time: Millis) {
        self.count += 1;
        self.total = Millis(self.total.0.saturating_add(time.0));
        self.max = self.max.max(time);
    }

    pub(super) fn add(&mut self, other: Self) {
        self.count += other.count;
        self.total = Millis(self.total.0.saturating_add(other.total.0));
        self.max = self.max.max(other.max);
    }

    /// Their mean; nothing if there were none.
    #[must_use]
    pub fn mean(&self) -> Option<Millis> {
        (self.count > 0).then(|| Millis(self.total.0 / self.count))
    }

    fn encode(&self, out: &mut Writer) {
        [self.count, self.total.0, self.max.0].into_iter().for_each(|number| out.u64(number));
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { count: input.u64()?, total: Millis(input.u64()?), max: Millis(input.u64()?) })
    }
}

impl Daily {
    fn note(&mut self, at: Timestamp, tokens: u64) {
        let day = at.0 / DAY_MS;
        if day > self.day {
            *self = Self { day, tokens: 0 };
        }
        self.tokens = self.tokens.saturating_add(tokens);
    }

    const fn on(self, now: Timestamp) -> u64 {
        if self.day == now.0 / DAY_MS { self.tokens } else { 0 }
    }

    fn encode(self, out: &mut Writer) {
        out.u64(self.day);
        out.u64(self.tokens);
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { day: input.u64()?, tokens: input.u64()? })
    }
}

impl KindFigures {
    /// Tokens that were used on the day of `now`, by UTC.
    #[must_use]
    pub const fn tokens_today(&self, now: Timestamp) -> u64 {
        self.today.on(now)
    }

    pub(super) fn note_tokens(&mut self, at: Timestamp, used: u64) {
        self.tokens = self.tokens.saturating_add(used);
        self.today.note(at, used);
    }

    fn encode(&self, out: &mut Writer) {
        for number in [self.done, self.failed, self.tokens, self.cache_hits] {
            out.u64(number);
        }
        [self.runs, self.waits, self.responses].iter().for_each(|times| times.encode(out));
        self.today.encode(out);
    }

    fn decode(input: &mut Reader<'_>, version: u64) -> Result<Self, WireError> {
        let (done, failed, tokens, cache_hits) = (input.u64()?, input.u64()?, input.u64()?, input.u64()?);
        let runs = Times::decode(input)?;
        let mut figures = Self { done, failed, tokens, cache_hits, runs, ..Self::default() };
        if version >= VERSION_WITH_WAITS {
            (figures.waits, figures.responses) = (Times::decode(input)?, Times::decode(input)?);
            figures.today = Daily::decode(input)?;
        }
        Ok(figures)
    }
}

impl Recent {
    pub(super) fn change(&mut self, name: &str, change: impl FnOnce(&mut KindFigures)) {
        self.seen += 1;
        if let Some(figures) = self.of.get_mut(name) {
            if let Some(name) = self.by_age.remove(&figures.seen) {
                self.by_age.insert(self.seen, name);
            }
            figures.seen = self.seen;
            change(figures);
            return;
        }
        let name: Arc<str> = name.into();
        let mut figures = KindFigures { seen: self.seen, ..KindFigures::default() };
        change(&mut figures);
        self.by_age.insert(self.seen, Arc::clone(&name));
        self.of.insert(name, figures);
        if self.of.len() > limits::JOB_FIGURES_MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.of.remove(&oldest);
        }
    }

    fn encode(&self, out: &mut Writer) {
        out.u64(self.of.len() as u64);
        // By age, so that they are seen in the same order again.
        for name in self.by_age.values() {
            out.text(name);
            self.of[name].encode(out);
        }
    }

    fn decode(input: &mut Reader<'_>, version: u64) -> Result<Self, WireError> {
        let mut recent = Self::default();
        for _ in 0..input.u64()? {
            let name = input.text()?;
            let read = KindFigures::decode(input, version)?;
            recent.change(name, |figures| *figures = KindFigures { seen: figures.seen, ..read });
        }
        Ok(recent)
    }

    /// Compares what is counted; the numbers of counts are not the same after a restart.
    fn is_same(&self, other: &Self) -> bool {
        let rows = |recent: &Self| -> Vec<(Arc<str>, KindFigures)> {
            let row =
                |name: &Arc<str>| (Arc::clone(name), KindFigures { seen: 0, ..recent.of[name].clone() });
            recent.by_age.values().map(row).collect()
        };
        rows(self) == rows(other)
    }
}

impl Figures {
    /// By type, of the types that were seen most recently.
    pub fn by_kind(&self) -> impl Iterator<Item = (&Arc<str>, &KindFigures)> {
        self.by_kind.of.iter()
    }

    /// By key, of the keys that were seen most recently.
    pub fn by_key(&self) -> impl Iterator<Item = (&Arc<str>, &KindFigures)> {
        self.by_key.of.iter()
    }

    /// Tokens that were used on the day of `now`, by UTC.
    #[must_use]
    pub const fn tokens_today(&self, now: Timestamp) -> u64 {
        self.today.on(now)
    }

    /// A job of this type and key has used tokens.
    pub(super) fn note_tokens(&mut self, kind: &str, key: &str, at: Timestamp, used: u64) {
        self.tokens = self.tokens.saturating_add(used);
        self.today.note(at, used);
        self.note(kind, key, |figures| figures.note_tokens(at, used));
    }

    /// Something happened to a job of this type and key.
    pub(super) fn note(&mut self, kind: &str, key: &str, change: impl Fn(&mut KindFigures)) {
        self.by_kind.change(kind, &change);
        self.by_key.change(key, change);
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        let numbers = [
            self.created,
            self.joined,
            self.cache_hits,
            self.done,
            self.failed,
            self.cancelled,
            self.expired,
            self.retried,
            self.answered,
            self.tokens,
        ];
        numbers.into_iter().for_each(|number| out.u64(number));
        [self.waits, self.runs, self.responses].iter().for_each(|times| times.encode(out));
        self.by_kind.encode(out);
        self.by_key.encode(out);
        self.today.encode(out);
    }

    /// Reads the figures of a snapshot whose head is of this version.
    pub(super) fn decode(input: &mut Reader<'_>, version: u64) -> Result<Self, WireError> {
        Ok(Self {
            created: input.u64()?,
            joined: input.u64()?,
            cache_hits: input.u64()?,
            done: input.u64()?,
            failed: input.u64()?,
            cancelled: input.u64()?,
            expired: input.u64()?,
            retried: input.u64()?,
            answered: input.u64()?,
            tokens: input.u64()?,
            waits: Times::decode(input)?,
            runs: Times::decode(input)?,
            responses: Times::decode(input)?,
            by_kind: Recent::decode(input, version)?,
            by_key: Recent::decode(input, version)?,
            today: if version >= VERSION_WITH_WAITS { Daily::decode(input)? } else { Daily::default() },
        })
    }

    /// Whether all is the same that is counted.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let plain = |figures: &Self| Self {
            by_kind: Recent::default(),
            by_key: Recent::default(),
            ..figures.clone()
        };
        plain(self) == plain(other)
            && self.by_kind.is_same(&other.by_kind)
            && self.by_key.is_same(&other.by_key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_names_without_end_the_latest_are_kept() {
        let mut recent = Recent::default();
        recent.change("first", |figures| figures.done += 1);
        for number in 0..limits::JOB_FIGURES_MAX - 1 {
            recent.change(&number.to_string(), |figures| figures.done += 1);
        }
        recent.change("first", |figures| figures.done += 1);
        recent.change("one more", |figures| figures.done += 1);
        assert_eq!(recent.of.len(), limits::JOB_FIGURES_MAX);
        assert_eq!(recent.of["first"].done, 2, "it was seen lately");
        assert!(!recent.of.contains_key("0"));
        let mut out = Writer::default();
        recent.encode(&mut out);
        let bytes = out.into_vec();
        let read = Recent::decode(&mut Reader::new(&bytes), VERSION_WITH_WAITS).unwrap();
        assert!(read.is_same(&recent));
    }
}
