//! Signatures that were refused: each makes whoever sent it wait longer for the next refusal, and is told to whoever reads
//! the log, with the id of the key.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long the second refusal waits; each one after it twice as long.
const PAUSE: Duration = Duration::from_millis(10);
/// No refusal waits longer.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// After this long without a refusal an address begins anew.
const FORGET: Duration = Duration::from_secs(60);
/// The log is told of one refusal of an address in this time, and of how many there were.
const TELL: Duration = Duration::from_secs(1);
/// Addresses that are remembered; beyond that those that have been quiet for longest go.
const ADDRESSES_MAX: usize = 10_000;

/// What each address was refused lately.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<HashMap<IpAddr, Lately>>);

#[derive(Clone, Copy, Debug)]
struct Lately {
    count: u32,
    last: Instant,
    told: Option<Instant>,
    untold: u32,
}

/// What to do about a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Consequence {
    /// How long to wait before it is said.
    pub(crate) pause: Duration,
    /// How many refusals the log is told of, if it is this time.
    pub(crate) tell: Option<u32>,
}

impl Refusals {
    /// Notes a refusal.
    pub(crate) fn note(&self, address: IpAddr, now: Instant) -> Consequence {
        let mut all = self.0.lock();
        if all.len() >= ADDRESSES_MAX && !all.contains_key(&address) {
            all.retain(|_, lately| now.duration_since(lately.last) < FORGET);
            let oldest = all.iter().min_by_key(|(_, lately)| lately.last).map(|(address, _)| *address);
            if let Some(oldest) = oldest.filter(|_| all.len() >= ADDRESSES_MAX) {
                all.remove(&oldest);
            }
        }
        let fresh = Lately { count: 0, last: now, told: None, untold: 0 };
        let lately = all.entry(address).or_insert(fresh);
        if now.duration_since(lately.last) >= FORGET {
            lately.count = 0;
        }
        let pause = match lately.count {
            0 => Duration::ZERO,
            count => PAUSE.saturating_mul(1 << (count - 1).min(16)).min(PAUSE_MAX),
        };
        lately.count = lately.count.saturating_add(1);
        lately.untold = lately.untold.saturating_add(1);
        lately.last = now;
        let tell = lately.told.is_none_or(|told| now.duration_since(told) >= TELL);
        let tell = tell.then(|| {
            lately.told = Some(now);
            std::mem::take(&mut lately.untold)
        });
        Consequence { pause, tell }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    #[test]
    fn each_refusal_waits_longer_until_an_address_has_been_quiet() {
        let refusals = Refusals::default();
        let start = Instant::now();
        let pause = |at: Duration| refusals.note(address(1), start + at).pause;
        assert_eq!(pause(Duration::ZERO), Duration::ZERO);
        assert_eq!(pause(Duration::ZERO), PAUSE);
        assert_eq!(pause(Duration::ZERO), PAUSE * 2);
        for _ in 0..100 {
            assert!(pause(Duration::ZERO) <= PAUSE_MAX);
        }
        assert_eq!(pause(Duration::from_secs(59)), PAUSE_MAX);
        assert_eq!(
            refusals.note(address(2), start).pause,
            Duration::ZERO,
            "another address is another matter"
        );
        assert_eq!(pause(Duration::from_secs(200)), Duration::ZERO);
    }

    #[test]
    fn the_log_is_told_now_and_then_of_all() {
        let refusals = Refusals::default();
        let start = Instant::now();
        let tell = |at_ms| refusals.note(address(1), start + Duration::from_millis(at_ms)).tell;
        assert_eq!([tell(0), tell(10), tell(20), tell(1100)], [Some(1), None, None, Some(3)]);
    }

    #[test]
    fn addresses_are_not_remembered_without_end() {
        let refusals = Refusals::default();
        let now = Instant::now();
        for number in 0..ADDRESSES_MAX as u32 + 50 {
            refusals.note(IpAddr::from(number.to_be_bytes()), now);
        }
        assert_eq!(refusals.0.lock().len(), ADDRESSES_MAX);
    }
}
