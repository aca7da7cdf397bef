//! A rate limit at work. Kept as the moment by which everything handed out so far would have been handed out
//! evenly: one number, no refilling.

use nexo_types::Timestamp;

use crate::config::RateLimit;

const NANOS_PER_MILLI: u128 = 1_000_000;

/// How much of a rate limit is used up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens {
    /// In nanoseconds since the epoch.
    paid_until: u128,
}

impl Tokens {
    /// How many deliveries the limit allows now.
    pub(crate) fn available(&self, limit: RateLimit, now: Timestamp) -> u64 {
        let (now, period, each) = terms(limit, now);
        let free = (now + period).saturating_sub(self.paid_until.max(now));
        u64::try_from(free / each).unwrap_or(u64::MAX).min(limit.deliveries.into())
    }

    pub(crate) fn take(&mut self, limit: RateLimit, now: Timestamp, count: u64) {
        let (now, _, each) = terms(limit, now);
        self.paid_until = self.paid_until.max(now) + each * u128::from(count);
    }

    /// Gives back what was taken and not used.
    pub(crate) fn give_back(&mut self, limit: RateLimit, count: u64) {
        let (_, _, each) = terms(limit, Timestamp(0));
        self.paid_until = self.paid_until.saturating_sub(each * u128::from(count));
    }

    /// When one more delivery is allowed.
    pub(crate) fn next(&self, limit: RateLimit, now: Timestamp) -> Timestamp {
        let (_, period, each) = terms(limit, now);
        let at = (self.paid_until + each).saturating_sub(period);
        Timestamp(u64::try_from(at.div_ceil(NANOS_PER_MILLI)).unwrap_or(u64::MAX)).max(now)
    }
}

fn terms(limit: RateLimit, now: Timestamp) -> (u128, u128, u128) {
    let period = u128::from(limit.period.0) * NANOS_PER_MILLI;
    (u128::from(now.0) * NANOS_PER_MILLI, period, (period / u128::from(limit.deliveries)).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nexo_types::Millis;

    #[test]
    fn a_burst_is_followed_by_an_even_flow() {
        let limit = RateLimit { deliveries: 10, period: Millis(1000) };
        let mut tokens = Tokens::default();
        let now = Timestamp(50_000);
        assert_eq!(tokens.available(limit, now), 10);
        tokens.take(limit, now, 10);
        assert_eq!(tokens.available(limit, now), 0);
        assert_eq!(tokens.next(limit, now), Timestamp(50_100));
        assert_eq!(tokens.available(limit, Timestamp(50_100)), 1);
        assert_eq!(tokens.available(limit, Timestamp(99_999)), 10);
        tokens.give_back(limit, 3);
        assert_eq!(tokens.available(limit, now), 3);
    }
}
