//! Locks that are taken in one order, so that nobody waits in a circle. `ARCHITECTURE.md` ("Locks") has the whole order; the
//! part of it that spans several files is kept here: in debug builds, and so in tests, a thread panics that waits for a lock
//! while it holds one of the same rank or of a later one. In release builds such a lock is a mutex and nothing else.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use nexo_types::QueueId;
use parking_lot::{Mutex, MutexGuard};

/// A place in the order. Whoever holds a lock waits only for those of later ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// One worker at a time fires schedules.
    Firing,
    /// One worker at a time moves a queue's dead letters.
    DeadLettering,
    /// The state of a queue. Where several are needed, by rising id.
    Queue(QueueId),
    /// The line of workers that wait for jobs.
    Takers,
    /// The right to change which queues there are.
    Catalog,
    /// The state of job queues.
    Jobs,
    /// The state of users.
    Access,
    /// The state of policies.
    Policies,
    /// The state of schedules.
    Schedules,
    /// The state of exchanges.
    Topology,
    /// The state of nodes.
    Nodes,
}

/// A mutex with a place in the order.
#[derive(Debug)]
pub(crate) struct OrderedMutex<T> {
    #[cfg(debug_assertions)]
    rank: Rank,
    inner: Mutex<T>,
}

/// The lock, for as long as it is held.
#[derive(Debug)]
pub(crate) struct OrderedGuard<'a, T> {
    inner: MutexGuard<'a, T>,
    #[cfg(debug_assertions)]
    rank: Rank,
}

impl<T> OrderedMutex<T> {
    pub(crate) const fn new(rank: Rank, value: T) -> Self {
        #[cfg(not(debug_assertions))]
        let _ = rank;
        Self {
            #[cfg(debug_assertions)]
            rank,
            inner: Mutex::new(value),
        }
    }

    pub(crate) fn lock(&self) -> OrderedGuard<'_, T> {
        #[cfg(debug_assertions)]
        held::check(self.rank);
        self.guard(self.inner.lock())
    }

    /// Waits until this moment at most.
    pub(crate) fn try_lock_until(&self, latest: Instant) -> Option<OrderedGuard<'_, T>> {
        #[cfg(debug_assertions)]
        held::check(self.rank);
        self.inner.try_lock_until(latest).map(|inner| self.guard(inner))
    }

    /// Waits so long at most.
    pub(crate) fn try_lock_for(&self, patience: Duration) -> Option<OrderedGuard<'_, T>> {
        self.try_lock_until(Instant::now() + patience)
    }

    /// Does not wait, so whatever else is held, nobody is held up.
    pub(crate) fn try_lock(&self) -> Option<OrderedGuard<'_, T>> {
        self.inner.try_lock().map(|inner| self.guard(inner))
    }

    /// The lock of something that nobody else can have yet. It is free, whatever else is held.
    pub(crate) fn lock_new(&self) -> OrderedGuard<'_, T> {
        debug_assert!(!self.inner.is_locked(), "somebody else has what is new");
        self.guard(self.inner.lock())
    }

    fn guard<'a>(&self, inner: MutexGuard<'a, T>) -> OrderedGuard<'a, T> {
        #[cfg(debug_assertions)]
        held::add(self.rank);
        OrderedGuard {
            inner,
            #[cfg(debug_assertions)]
            rank: self.rank,
        }
    }
}

impl<T> Deref for OrderedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for OrderedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

#[cfg(debug_assertions)]
impl<T> Drop for OrderedGuard<'_, T> {
    fn drop(&mut self) {
        held::remove(self.rank);
    }
}

/// What each thread holds.
#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    use super::Rank;

    thread_local! {
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    /// Panics if this thread may not wait for a lock of this rank.
    pub(super) fn check(rank: Rank) {
        // A second panic would end the process, and with it the report of the first.
        if std::thread::panicking() {
            return;
        }
        let latest = HELD.with_borrow(|held| held.iter().max().copied());
        assert!(latest < Some(rank), "a lock is waited for out of order: {rank:?} under {latest:?}");
    }

    pub(super) fn add(rank: Rank) {
        HELD.with_borrow_mut(|held| held.push(rank));
    }

    pub(super) fn remove(rank: Rank) {
        HELD.with_borrow_mut(|held| {
            if let Some(place) = held.iter().rposition(|one| *one == rank) {
                held.swap_remove(place);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(debug_assertions)]
    fn panics(act: impl FnOnce()) -> bool {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err()
    }

    fn queue(id: u64) -> OrderedMutex<u64> {
        OrderedMutex::new(Rank::Queue(QueueId(id)), id)
    }

    #[test]
    fn locks_are_taken_in_order() {
        let (first, second) = (queue(1), queue(2));
        let catalog = OrderedMutex::new(Rank::Catalog, ());
        {
            let (one, other) = (first.lock(), second.lock());
            let _changing = catalog.lock();
            assert_eq!((*one, *other), (1, 2));
        }
        // What was let go of does not count.
        let _other = second.lock();
        drop(catalog.lock());
    }

    #[cfg(debug_assertions)]
    #[test]
    fn waiting_out_of_order_is_a_defect() {
        let (first, second) = (queue(1), queue(2));
        let catalog = OrderedMutex::new(Rank::Catalog, ());
        for (held, wanted) in [(&second, &first), (&first, &first)] {
            let _held = held.lock();
            assert!(panics(|| drop(wanted.lock())), "{held:?}, then {wanted:?}");
        }
        let _changing = catalog.lock();
        assert!(panics(|| drop(first.lock())), "a queue under a change of the catalog");
        assert!(panics(|| drop(first.try_lock_for(Duration::ZERO))), "nor for a while");
    }

    #[test]
    fn who_does_not_wait_may_take_what_is_free() {
        let catalog = OrderedMutex::new(Rank::Catalog, ());
        let queue = queue(1);
        let _changing = catalog.lock();
        assert!(queue.try_lock().is_some());
        assert_eq!(*queue.lock_new(), 1);
    }
}
