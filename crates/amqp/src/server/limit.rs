//! A channel's own prefetch limit (`basic.qos` with `global`), which its consumers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nexo_broker::SharedCredit;

/// More than any channel holds.
const LIFTED: u32 = 1 << 30;

/// How many unsettled messages all consumers of a channel may hold together.
#[derive(Debug)]
pub(super) struct Limit {
    pub(super) credit: Arc<SharedCredit>,
    max: AtomicU32,
    /// What was taken away while it was out: so many settled messages make no room.
    debt: AtomicU32,
}

impl Limit {
    /// A limit of `max` of which `held` are taken.
    pub(super) fn new(max: u32, held: u32) -> Self {
        Self {
            credit: Arc::new(SharedCredit::new(max.saturating_sub(held))),
            max: AtomicU32::new(max),
            debt: AtomicU32::new(held.saturating_sub(max)),
        }
    }

    /// Sets another limit, 0 for none. `false` if that takes a new one: nobody can take back what was lifted.
    pub(super) fn change(&self, max: u32) -> bool {
        let old = self.max.load(Ordering::Relaxed);
        if old == LIFTED {
            return max == 0;
        }
        let max = if max == 0 { LIFTED } else { max };
        self.max.store(max, Ordering::Relaxed);
        if max >= old {
            self.give_back(max - old);
        } else {
            self.debt.fetch_add(old - max, Ordering::Relaxed);
        }
        true
    }

    /// Makes room for messages that were settled.
    pub(super) fn give_back(&self, count: u32) {
        let debt = self.debt.load(Ordering::Relaxed);
        let paid = debt.min(count);
        self.debt.store(debt - paid, Ordering::Relaxed);
        if count > paid {
            self.credit.add(count - paid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_grows_and_shrinks_but_once_lifted_takes_a_new_one() {
        let limit = Limit::new(2, 0);
        assert!(limit.change(5));
        assert!(limit.change(1));
        limit.give_back(4);
        assert_eq!(limit.debt.load(Ordering::Relaxed), 0);
        assert!(limit.change(0));
        assert!(limit.change(0));
        assert!(!limit.change(3));
    }
}
