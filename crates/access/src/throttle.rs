//! Refused logins make the next ones from the same address wait, so that nobody can try passwords at the speed of the
//! network. Who logs in rightly for the first time waits with the others of its address, but not for long, and is never locked
//! out; who has come in before does not wait, as long as few wrong ones come at the same time.
//!
//! What is known of an address is forgotten when it has been quiet for a while; only so many are known at all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Refused logins of an address that cost nothing: a wrong setting that is being mended.
const FREE: u32 = 5;
/// How much each one more costs.
const STEP: Duration = Duration::from_millis(250);
/// The longest wait: well within the time that a handshake has.
const WAIT_MAX: Duration = Duration::from_secs(3);
/// Refusals that count at most: more would not make anybody wait longer, but for longer after the last of them.
const REFUSED_MAX: u32 = FREE + (WAIT_MAX.as_millis() / STEP.as_millis()) as u32;
/// After as much time without a refusal, one refusal is forgiven.
const FORGIVEN_AFTER: Duration = Duration::from_secs(10);
/// Logins of one address that may wait at the same time; more are refused unseen.
const WAITING_MAX: u32 = 16;
/// How often in a second it is looked, for an address that owes waiting, whether a password is one of those that were right
/// before. About as often as its logins would get their turn otherwise.
const LOOKS_MAX: u32 = 8;
/// Addresses that are known. A few dozen bytes each.
const ADDRESSES_MAX: usize = 4_096;

/// The refused logins of all addresses.
#[derive(Debug, Default)]
pub(crate) struct LoginThrottle {
    addresses: Mutex<HashMap<IpAddr, Record>>,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    refused: u32,
    last: Instant,
    waiting: u32,
    /// Since when its looks are counted, and how many found nothing.
    looks: (Instant, u32),
}

impl Record {
    /// Refusals that still count.
    fn debt(&self, now: Instant) -> u32 {
        let forgiven = now.duration_since(self.last).as_secs() / FORGIVEN_AFTER.as_secs();
        self.refused.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX))
    }

    fn wait(&self, now: Instant) -> Duration {
        STEP.saturating_mul(self.debt(now).saturating_sub(FREE)).min(WAIT_MAX)
    }
}

/// Too many logins of one address wait already.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

impl LoginThrottle {
    /// Whether it may be looked, before its turn, whether a login's password was right before.
    pub(crate) fn may_look(&self, address: IpAddr) -> bool {
        let now = Instant::now();
        let addresses = self.addresses.lock();
        let Some(record) = addresses.get(&address.to_canonical()) else { return true };
        let (since, looks) = record.looks;
        looks < LOOKS_MAX || now.duration_since(since) >= Duration::from_secs(1) || record.wait(now).is_zero()
    }

    /// Notes that it was looked, and it was not.
    pub(crate) fn looked(&self, address: IpAddr) {
        let now = Instant::now();
        if let Some(record) = self.addresses.lock().get_mut(&address.to_canonical()) {
            let (since, looks) = record.looks;
            let is_over = now.duration_since(since) >= Duration::from_secs(1);
            record.looks = if is_over { (now, 1) } else { (since, looks + 1) };
        }
    }

    /// Waits for a login's turn.
    ///
    /// # Errors
    /// If too many of its address wait already.
    pub(crate) async fn turn(self: &Arc<Self>, address: IpAddr) -> Result<(), TooMany> {
        let address = address.to_canonical();
        let wait = {
            let mut addresses = self.addresses.lock();
            let Some(record) = addresses.get_mut(&address) else { return Ok(()) };
            let wait = record.wait(Instant::now());
            if wait.is_zero() {
                return Ok(());
            }
            if record.waiting >= WAITING_MAX {
                return Err(TooMany);
            }
            record.waiting += 1;
            wait
        };
        let _waiting = Waiting { throttle: Arc::clone(self), address };
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// Notes that a login was refused.
    pub(crate) fn refused(&self, address: IpAddr) {
        let now = Instant::now();
        let mut addresses = self.addresses.lock();
        let address = address.to_canonical();
        if !addresses.contains_key(&address) && addresses.len() >= ADDRESSES_MAX {
            addresses.retain(|_, record| record.waiting > 0 || record.debt(now) > 0);
            let oldest = addresses.iter().filter(|(_, record)| record.waiting == 0);
            let oldest = oldest.min_by_key(|(_, record)| record.last).map(|(address, _)| *address);
            if addresses.len() >= ADDRESSES_MAX {
                match oldest {
                    Some(oldest) => drop(addresses.remove(&oldest)),
                    None => return,
                }
            }
        }
        let record =
            addresses.entry(address).or_insert(Record { refused: 0, last: now, waiting: 0, looks: (now, 0) });
        record.refused = (record.debt(now) + 1).min(REFUSED_MAX);
        record.last = now;
    }
}

/// One that waits.
struct Waiting {
    throttle: Arc<LoginThrottle>,
    address: IpAddr,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(record) = self.throttle.addresses.lock().get_mut(&self.address) {
            record.waiting = record.waiting.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + number).into())
    }

    async fn waited(throttle: &Arc<LoginThrottle>, from: IpAddr) -> Duration {
        let before = Instant::now();
        throttle.turn(from).await.unwrap();
        before.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn each_refusal_makes_the_next_login_wait_longer_up_to_an_end() {
        let throttle = Arc::new(LoginThrottle::default());
        let mut waits = Vec::new();
        for _ in 0..40 {
            waits.push(waited(&throttle, address(1)).await);
            throttle.refused(address(1));
        }
        assert!(waits[..=5].iter().all(Duration::is_zero), "{waits:?}");
        assert!(waits[6] >= STEP && waits[6] < WAIT_MAX, "{waits:?}");
        assert!(waits[30] >= WAIT_MAX && waits[39] < WAIT_MAX + STEP, "{waits:?}");
        assert_eq!(waited(&throttle, address(2)).await, Duration::ZERO, "others do not wait");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_is_forgiven_in_time() {
        let throttle = Arc::new(LoginThrottle::default());
        for _ in 0..10 {
            throttle.refused(address(1));
        }
        assert!(waited(&throttle, address(1)).await > Duration::ZERO);
        tokio::time::sleep(FORGIVEN_AFTER * 5).await;
        assert_eq!(waited(&throttle, address(1)).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_of_an_address_wait() {
        let throttle = Arc::new(LoginThrottle::default());
        for _ in 0..20 {
            throttle.refused(address(1));
        }
        let mut waiting = Vec::new();
        for _ in 0..WAITING_MAX {
            let throttle = Arc::clone(&throttle);
            waiting.push(tokio::spawn(async move { throttle.turn(address(1)).await }));
        }
        tokio::task::yield_now().await;
        assert_eq!(throttle.turn(address(1)).await, Err(TooMany));
        for turn in waiting {
            turn.await.unwrap().unwrap();
        }
        throttle.turn(address(1)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_addresses_are_known() {
        let throttle = Arc::new(LoginThrottle::default());
        for number in 0..3 * ADDRESSES_MAX as u32 {
            throttle.refused(address(number));
        }
        assert_eq!(throttle.addresses.lock().len(), ADDRESSES_MAX);
    }
}
