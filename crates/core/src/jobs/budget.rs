//! Budgets: tokens that jobs cost, and when more of them come.
//!
//! A job's cost is reserved when it is handed out, and settled by what the work really used. What an API says of its own count
//! is believed: it is set from there, less what jobs that are under way have reserved, since the API may not know of them yet.

use std::collections::BTreeMap;

use nexo_types::{BudgetName, Millis, Timestamp, limits};

use super::error::JobError;
use super::waiter::{unzigzag, zigzag};
use crate::wire::{Reader, WireError, Writer};

/// What a budget has until somebody has said otherwise.
const TOKENS_AT_FIRST: u64 = 20;
const DAY_MS: u64 = 24 * 3600 * 1000;
/// The version in which settings are written.
const VERSION: u64 = 1;

/// The settings of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetConfig {
    /// What it has at first.
    pub initial: u64,
    /// What it holds at most, if there is a bound.
    pub capacity: Option<u64>,
    /// What comes by itself.
    pub refill: Option<Refill>,
}

/// Tokens that come again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refill {
    /// How many at a time.
    pub tokens: u64,
    /// How often.
    pub every: Millis,
}

/// What an API has said of its own count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenReport {
    /// What it has left.
    pub tokens_left: Option<i64>,
    /// When more of them come.
    pub refill_in: Option<Millis>,
    /// How many come then, and each time from then on.
    pub refill_tokens: Option<u64>,
}

/// A budget, with what has become of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    name: BudgetName,
    config: BudgetConfig,
    /// What can be reserved, as of `as_of`. Less than nothing if work used more than was there.
    level: i64,
    as_of: Timestamp,
    /// When the next refill comes; `MAX` for never.
    next_refill: Timestamp,
    /// Tokens that come once, by time.
    grants: BTreeMap<Timestamp, u64>,
    /// What jobs that are under way have reserved.
    reserved: u64,
    used_total: u64,
    used_day: u64,
    /// The day, counted from 1970, that `used_day` is about.
    day: u64,
}

impl Default for BudgetConfig {
    fn default() -> Self {
        Self { initial: TOKENS_AT_FIRST, capacity: None, refill: None }
    }
}

impl BudgetConfig {
    /// Whether the settings make sense.
    ///
    /// # Errors
    /// Says which does not.
    pub fn check(&self) -> Result<(), JobError> {
        let numbers = [
            ("initial", Some(self.initial)),
            ("capacity", self.capacity),
            ("refill.tokens", self.refill.map(|refill| refill.tokens)),
        ];
        for (name, value) in numbers {
            if value.is_some_and(|value| value > limits::TOKENS_MAX) {
                return Err(JobError::TooMany { what: name, max: limits::TOKENS_MAX });
            }
        }
        match self.refill {
            Some(Refill { tokens: 0, .. }) => {
                Err(JobError::BadSetting { reason: "refill.tokens is 1 at least".into() })
            }
            Some(Refill { every: Millis(0), .. }) => {
                Err(JobError::BadSetting { reason: "refill.every_ms is 1 at least".into() })
            }
            _ => Ok(()),
        }
    }
}

impl Budget {
    pub(super) fn new(name: BudgetName, config: BudgetConfig, at: Timestamp) -> Self {
        let next_refill = config.refill.map_or(Timestamp::MAX, |refill| at.plus(refill.every));
        Self {
            name,
            config,
            level: config.initial.min(config.capacity.unwrap_or(u64::MAX)) as i64,
            as_of: at,
            next_refill,
            grants: BTreeMap::new(),
            reserved: 0,
            used_total: 0,
            used_day: 0,
            day: at.0 / DAY_MS,
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &BudgetName {
        &self.name
    }

    /// Its settings.
    #[must_use]
    pub const fn config(&self) -> &BudgetConfig {
        &self.config
    }

    /// What jobs that are under way have reserved.
    #[must_use]
    pub const fn reserved(&self) -> u64 {
        self.reserved
    }

    /// What was used in all.
    #[must_use]
    pub const fn used_total(&self) -> u64 {
        self.used_total
    }

    /// What was used on the day of `now`, by UTC.
    #[must_use]
    pub const fn used_today(&self, now: Timestamp) -> u64 {
        if self.day == now.0 / DAY_MS { self.used_day } else { 0 }
    }

    /// When tokens come next, and how many: `None` if nobody knows of any.
    #[must_use]
    pub fn next_tokens(&self, now: Timestamp) -> Option<(Timestamp, u64)> {
        self.at(now).coming()
    }

    /// The same, as of the moment that it was brought up to.
    fn coming(&self) -> Option<(Timestamp, u64)> {
        let refill = (self.next_refill != Timestamp::MAX).then(|| (self.next_refill, self.refill_tokens()));
        let grant = self.grants.first_key_value().map(|(at, tokens)| (*at, *tokens));
        refill.into_iter().chain(grant).min()
    }

    /// What can be reserved at `now`.
    #[must_use]
    pub fn level(&self, now: Timestamp) -> i64 {
        self.at(now).level
    }

    /// Whether a job of this cost can be handed out at `now`. One that costs nothing always can.
    #[must_use]
    pub fn pays(&self, now: Timestamp, cost: u64) -> bool {
        cost == 0 || self.level(now) >= cost as i64
    }

    /// When it can pay so much, if nothing is used until then. `None` if that is not known.
    #[must_use]
    pub fn pays_at(&self, now: Timestamp, cost: u64) -> Option<Timestamp> {
        let mut budget = self.at(now);
        loop {
            if cost == 0 || budget.level >= cost as i64 {
                return Some(budget.as_of.max(now));
            }
            let (at, tokens) = budget.coming()?;
            let missing = (cost as i64).saturating_sub(budget.level).max(1) as u64;
            // Many refills in one step, as far as the next grant.
            let steps = missing.div_ceil(tokens.max(1)).max(1);
            let grant = budget.grants.keys().next().copied().unwrap_or(Timestamp::MAX);
            let until = match self.config.refill {
                Some(refill) if at == budget.next_refill => {
                    Timestamp(at.0.saturating_add(refill.every.0.saturating_mul(steps - 1))).min(grant)
                }
                _ => at,
            };
            let before = (budget.level, budget.grants.len());
            budget.advance(until);
            if (budget.level, budget.grants.len()) == before {
                // It is full, and that is too little.
                return None;
            }
        }
    }

    /// The most that it can ever hold, if there is a bound.
    #[must_use]
    pub const fn capacity(&self) -> Option<u64> {
        self.config.capacity
    }

    const fn refill_tokens(&self) -> u64 {
        match (self.config.refill, self.config.capacity) {
            (Some(refill), _) => refill.tokens,
            // An API has said when more come, and nobody how many.
            (None, Some(capacity)) => capacity,
            (None, None) => self.config.initial,
        }
    }

    /// As it is at `now`.
    fn at(&self, now: Timestamp) -> Self {
        let mut settled = self.clone();
        settled.advance(now);
        settled
    }

    /// Time passes.
    pub(super) fn advance(&mut self, now: Timestamp) {
        while let Some(grant) = self.grants.first_entry().filter(|grant| *grant.key() <= now) {
            let (at, tokens) = grant.remove_entry();
            self.refill_until(at);
            self.add(tokens);
        }
        self.refill_until(now);
        self.as_of = self.as_of.max(now);
        let day = now.0 / DAY_MS;
        if day > self.day {
            (self.day, self.used_day) = (day, 0);
        }
    }

    fn refill_until(&mut self, now: Timestamp) {
        if now < self.next_refill {
            return;
        }
        let tokens = self.refill_tokens();
        let Some(Refill { every, .. }) = self.config.refill else {
            self.add(tokens);
            self.next_refill = Timestamp::MAX;
            return;
        };
        let times = (now.0 - self.next_refill.0) / every.0 + 1;
        self.add(tokens.saturating_mul(times));
        self.next_refill = self.next_refill.plus(Millis(every.0.saturating_mul(times)));
    }

    /// Adds tokens, up to what it holds. What is above that already stays.
    fn add(&mut self, tokens: u64) {
        let max = self.config.capacity.unwrap_or(limits::TOKENS_MAX).min(limits::TOKENS_MAX) as i64;
        let sum = self.level.saturating_add(i64::try_from(tokens).unwrap_or(i64::MAX));
        self.level = sum.min(max.max(self.level));
    }

    pub(super) fn configure(&mut self, config: BudgetConfig, at: Timestamp) {
        self.advance(at);
        if config.refill != self.config.refill {
            self.next_refill = config.refill.map_or(Timestamp::MAX, |refill| at.plus(refill.every));
        }
        self.config = config;
        self.level = self.level.min(config.capacity.unwrap_or(limits::TOKENS_MAX) as i64);
    }

    /// A job is handed out.
    pub(super) fn reserve(&mut self, at: Timestamp, cost: u64) {
        self.advance(at);
        self.level = self.level.saturating_sub(cost as i64);
        self.reserved += cost;
    }

    /// A job that had reserved `cost` has used so much.
    pub(super) fn settle(&mut self, at: Timestamp, cost: u64, used: u64) {
        self.advance(at);
        self.reserved = self.reserved.saturating_sub(cost);
        let spared = (cost as i64).saturating_sub(used as i64);
        if spared >= 0 {
            // It was there before, so it is not bounded by what a refill fills up to.
            let max = self.config.capacity.map_or(i64::MAX, |capacity| capacity as i64);
            self.level = (self.level + spared).min(max.max(self.level));
        } else {
            self.level = self.level.saturating_add(spared);
        }
        self.used_total = self.used_total.saturating_add(used);
        self.used_day = self.used_day.saturating_add(used);
    }

    /// The API has said what it has.
    pub(super) fn report(&mut self, at: Timestamp, report: &TokenReport) {
        self.advance(at);
        if let Some(left) = report.tokens_left {
            let max = limits::TOKENS_MAX as i64;
            self.level = left.clamp(-max, max).saturating_sub(self.reserved as i64);
        }
        if let (Some(tokens), Some(refill)) = (report.refill_tokens, &mut self.config.refill) {
            refill.tokens = tokens.clamp(1, limits::TOKENS_MAX);
        }
        if let Some(wait) = report.refill_in {
            self.next_refill = at.plus(Millis(wait.0.max(1)));
        }
    }

    /// Tokens come once.
    pub(super) fn grant(&mut self, at: Timestamp, when: Timestamp, tokens: u64) {
        self.advance(at);
        if when <= at {
            self.add(tokens);
        } else {
            let sum = self.grants.entry(when).or_default();
            *sum = sum.saturating_add(tokens);
        }
    }

    pub(super) fn grants_len(&self) -> usize {
        self.grants.len()
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        out.version(VERSION);
        out.text(self.name.stored());
        self.config.encode(out);
        out.u64(zigzag(self.level));
        out.u64(self.as_of.0);
        out.u64(self.next_refill.0);
        out.u64(self.grants.len() as u64);
        for (at, tokens) in &self.grants {
            out.u64(at.0);
            out.u64(*tokens);
        }
        for number in [self.reserved, self.used_total, self.used_day, self.day] {
            out.u64(number);
        }
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        input.version("a budget", VERSION)?;
        Ok(Self {
            name: BudgetName::from_stored(input.text()?).map_err(|_| WireError::BadName)?,
            config: BudgetConfig::decode(input)?,
            level: unzigzag(input.u64()?),
            as_of: Timestamp(input.u64()?),
            next_refill: Timestamp(input.u64()?),
            grants: (0..input.u64()?)
                .map(|_| Ok((Timestamp(input.u64()?), input.u64()?)))
                .collect::<Result<_, WireError>>()?,
            reserved: input.u64()?,
            used_total: input.u64()?,
            used_day: input.u64()?,
            day: input.u64()?,
        })
    }
}

impl BudgetConfig {
    pub(super) fn encode(&self, out: &mut Writer) {
        out.u64(self.initial);
        out.optional(self.capacity);
        out.optional(self.refill.map(|refill| refill.tokens));
        if let Some(refill) = self.refill {
            out.u64(refill.every.0);
        }
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let (initial, capacity) = (input.u64()?, input.optional()?);
        let refill = match input.optional()? {
            None => None,
            Some(tokens) => Some(Refill { tokens, every: Millis(input.u64()?.max(1)) }),
        };
        Ok(Self { initial, capacity, refill })
    }
}

impl TokenReport {
    /// Whether anything was said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        out.optional(self.tokens_left.map(zigzag));
        out.optional(self.refill_in.map(|wait| wait.0));
        out.optional(self.refill_tokens);
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            tokens_left: input.optional()?.map(unzigzag),
            refill_in: input.optional()?.map(Millis),
            refill_tokens: input.optional()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(config: BudgetConfig) -> Budget {
        Budget::new(BudgetName::new("api").unwrap(), config, Timestamp(0))
    }

    #[test]
    fn a_budget_has_twenty_tokens_until_somebody_says_otherwise() {
        let mut budget = budget(BudgetConfig::default());
        assert_eq!(budget.level(Timestamp(0)), 20);
        budget.reserve(Timestamp(1), 15);
        assert!(budget.pays(Timestamp(1), 5) && !budget.pays(Timestamp(1), 6));
        assert_eq!(budget.pays_at(Timestamp(1), 6), None, "nobody knows of a refill");
        let report = TokenReport { tokens_left: Some(3), refill_in: Some(Millis(500)), refill_tokens: None };
        budget.settle(Timestamp(2), 15, 15);
        budget.report(Timestamp(2), &report);
        assert_eq!(budget.level(Timestamp(2)), 3);
        assert_eq!(budget.pays_at(Timestamp(2), 6), Some(Timestamp(502)));
    }

    #[test]
    fn it_is_known_at_once_when_many_refills_and_grants_pay() {
        let refill = Some(Refill { tokens: 1, every: Millis(1) });
        let mut budget = budget(BudgetConfig { initial: 0, capacity: None, refill });
        for second in 1..=1000 {
            budget.grant(Timestamp(0), Timestamp(second * 1_000_000), 7);
        }
        assert_eq!(budget.pays_at(Timestamp(0), 999_999), Some(Timestamp(999_999)));
        assert_eq!(budget.pays_at(Timestamp(0), 1_000_001), Some(Timestamp(1_000_000)));
        assert_eq!(budget.pays_at(Timestamp(0), 1_500_007), Some(Timestamp(1_500_000)));
        assert_eq!(budget.pays_at(Timestamp(0), 2_000_008_000), Some(Timestamp(2_000_001_000)));
    }

    #[test]
    fn tokens_come_at_their_times_and_up_to_what_it_holds() {
        let refill = Refill { tokens: 5, every: Millis(1000) };
        let mut budget = budget(BudgetConfig { initial: 0, capacity: Some(12), refill: Some(refill) });
        assert_eq!(budget.level(Timestamp(999)), 0);
        assert_eq!(budget.level(Timestamp(1000)), 5);
        assert_eq!(budget.pays_at(Timestamp(0), 11), Some(Timestamp(3000)));
        assert_eq!(budget.level(Timestamp(1_000_000)), 12);
        assert_eq!(budget.pays_at(Timestamp(0), 13), None);
        budget.grant(Timestamp(10), Timestamp(500), 7);
        assert_eq!(budget.level(Timestamp(500)), 7);
        assert_eq!(budget.next_tokens(Timestamp(10)), Some((Timestamp(500), 7)));
    }

    #[test]
    fn work_that_used_more_than_it_reserved_is_paid_by_what_comes() {
        let refill = Refill { tokens: 1, every: Millis(100) };
        let mut budget = budget(BudgetConfig { initial: 4, capacity: None, refill: Some(refill) });
        budget.reserve(Timestamp(0), 4);
        budget.settle(Timestamp(0), 4, 10);
        assert_eq!((budget.level(Timestamp(0)), budget.reserved()), (-6, 0));
        assert_eq!(budget.pays_at(Timestamp(0), 1), Some(Timestamp(700)));
        assert!(budget.pays(Timestamp(0), 0), "what costs nothing needs nothing");
    }

    #[test]
    fn what_an_api_says_it_has_left_is_less_by_what_others_have_reserved() {
        let mut budget = budget(BudgetConfig { initial: 20, ..BudgetConfig::default() });
        budget.reserve(Timestamp(0), 5);
        budget.reserve(Timestamp(0), 2);
        budget.settle(Timestamp(5), 5, 5);
        budget.report(Timestamp(5), &TokenReport { tokens_left: Some(15), ..TokenReport::default() });
        assert_eq!(budget.level(Timestamp(5)), 13);
    }

    #[test]
    fn the_day_ends_at_midnight() {
        let mut budget = budget(BudgetConfig::default());
        budget.reserve(Timestamp(0), 5);
        budget.settle(Timestamp(1), 5, 5);
        assert_eq!(budget.used_today(Timestamp(DAY_MS - 1)), 5);
        assert_eq!((budget.used_today(Timestamp(DAY_MS)), budget.used_total()), (0, 5));
    }
}
