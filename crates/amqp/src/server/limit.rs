//! A channel's own prefetch limit (`basic.qos` with `global`), which its consumers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nexo_broker::SharedCredit;

/// More than any channel holds: no limit.
const LIFTED: u32 = 1 << 30;

/// How many unsettled messages all consumers of a channel may hold together.
#[derive(Debug)]
pub(super) struct Limit {
    pub(super) credit: Arc<SharedCredit>,
    max: AtomicU32,
}

impl Limit {
    /// A limit of `max` of which `held` are taken.
    pub(super) fn new(max: u32, held: u32) -> Self {
        let credit = SharedCredit::new(max);
        credit.remove(held);
        Self { credit: Arc::new(credit), max: AtomicU32::new(max) }
    }

    /// Sets another limit, 0 for none. If more is held than it allows, as much must be settled before more comes.
    pub(super) fn change(&self, max: u32) {
        let max = if max == 0 { LIFTED } else { max };
        let old = self.max.swap(max, Ordering::Relaxed);
        if max >= old {
            self.credit.add(max - old);
        } else {
            self.credit.remove(old - max);
        }
    }

    pub(super) fn max(&self) -> u32 {
        self.max.load(Ordering::Relaxed)
    }

    /// Makes room for messages that were settled.
    pub(super) fn give_back(&self, count: u32) {
        self.credit.add(count);
    }
}
