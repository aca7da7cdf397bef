//! Memory for what is on its way in: bodies that have not come whole, requests that are being read, transactions that
//! are open. Each way in has limits per connection; this is the limit for all of them together.
//!
//! A message's whole size is asked for before its first byte is kept. Whoever already holds some and waits for more
//! could wait for itself: such a connection asks with [`Intake::try_hold`] and refuses what does not fit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// The memory that unfinished messages may take together. A clone is the same memory.
#[derive(Clone, Debug)]
pub struct Intake(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    free: Arc<Semaphore>,
    bytes_max: AtomicU32,
    /// What is held beyond the maximum, since that was made smaller: it is not free when it is given back.
    excess: AtomicU64,
    /// One change of the maximum at a time.
    changing: Mutex<()>,
    /// Wakes those who wait when the maximum is another: they may have asked for more than there is now.
    changed: watch::Sender<()>,
}

/// A part of that memory; given back when it is dropped.
#[derive(Debug)]
#[must_use = "dropping it gives the memory back"]
pub struct IntakeHold {
    permit: OwnedSemaphorePermit,
    of: Arc<Inner>,
}

impl Intake {
    /// As much as `bytes_max`.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        let bytes_max = clamped(bytes_max);
        Self(Arc::new(Inner {
            free: Arc::new(Semaphore::new(bytes_max as usize)),
            bytes_max: bytes_max.into(),
            excess: AtomicU64::new(0),
            changing: Mutex::default(),
            changed: watch::Sender::default(),
        }))
    }

    /// Has there be so much from now on. What is held beyond that stays until it is given back.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        let inner = &self.0;
        let _changing = inner.changing.lock();
        let (now, before) = (clamped(bytes_max), inner.bytes_max.load(Ordering::Relaxed));
        inner.bytes_max.store(now, Ordering::Relaxed);
        if now < before {
            inner.excess.fetch_add(u64::from(before - now), Ordering::AcqRel);
            inner.settle_excess();
        } else {
            let more = u64::from(now - before);
            inner.free.add_permits((more - inner.take_excess(more)) as usize);
        }
        inner.changed.send_replace(());
    }

    /// Waits for room for `bytes`. What is larger than all there is waits until it is alone.
    pub async fn hold(&self, bytes: usize) -> IntakeHold {
        let inner = &self.0;
        let mut changed = inner.changed.subscribe();
        loop {
            tokio::select! {
                biased;
                permit = Arc::clone(&inner.free).acquire_many_owned(inner.share(bytes)) => {
                    let permit = permit.expect("the semaphore is never closed");
                    return IntakeHold { permit, of: Arc::clone(inner) };
                }
                // It lasts as long as this does, and so does its sender.
                _ = changed.changed() => {}
            }
            // What was set aside for this one is free again.
            inner.settle_excess();
        }
    }

    /// Room for `bytes`, if there is any now.
    #[must_use]
    pub fn try_hold(&self, bytes: usize) -> Option<IntakeHold> {
        let inner = &self.0;
        let permit = Arc::clone(&inner.free).try_acquire_many_owned(inner.share(bytes)).ok()?;
        Some(IntakeHold { permit, of: Arc::clone(inner) })
    }

    /// Bytes that there are in all.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.0.bytes_max.load(Ordering::Relaxed).into()
    }

    /// Bytes that are held now.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        let all = self.bytes_max() + self.0.excess.load(Ordering::Acquire);
        all.saturating_sub(self.0.free.available_permits() as u64)
    }

    /// Whether all of it is taken, as it is while anybody waits.
    #[must_use]
    pub fn is_contended(&self) -> bool {
        self.0.free.available_permits() == 0
    }
}

impl Inner {
    fn share(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes_max.load(Ordering::Relaxed))
    }

    /// Takes off the excess what nobody holds.
    fn settle_excess(&self) {
        let excess = self.take_excess(u64::MAX);
        let forgotten = self.free.forget_permits(usize::try_from(excess).unwrap_or(usize::MAX));
        self.excess.fetch_add(excess - forgotten as u64, Ordering::AcqRel);
    }

    /// Takes up to so much off the excess, and says how much.
    fn take_excess(&self, bytes: u64) -> u64 {
        let less = |excess: u64| Some(excess - excess.min(bytes));
        let before = self.excess.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        before.unwrap_or_default().min(bytes)
    }
}

fn clamped(bytes_max: u64) -> u32 {
    u32::try_from(bytes_max).unwrap_or(u32::MAX).min(Semaphore::MAX_PERMITS as u32)
}

impl IntakeHold {
    /// Both as one.
    pub fn merge(&mut self, mut other: Self) {
        if let Some(all) = other.permit.split(other.permit.num_permits()) {
            self.permit.merge(all);
        }
    }

    /// How much it is.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.permit.num_permits()
    }
}

impl Drop for IntakeHold {
    fn drop(&mut self) {
        let beyond = self.of.take_excess(self.permit.num_permits() as u64);
        if let Some(beyond) = self.permit.split(beyond as usize) {
            beyond.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_until_some_is_given_back() {
        let intake = Intake::new(100);
        let first = intake.try_hold(60).unwrap();
        assert!(intake.try_hold(41).is_none());
        let mut second = intake.try_hold(30).unwrap();
        second.merge(intake.try_hold(10).unwrap());
        assert_eq!((intake.held_bytes(), second.bytes()), (100, 40));
        drop(first);
        assert_eq!(intake.held_bytes(), 40);
        assert!(intake.try_hold(41).is_some());
    }

    #[tokio::test]
    async fn what_is_larger_than_all_waits_until_it_is_alone() {
        let intake = Intake::new(100);
        let small = intake.hold(1).await;
        assert!(intake.try_hold(5000).is_none());
        drop(small);
        let large = intake.hold(5000).await;
        assert_eq!(large.bytes(), 100);
        assert!(intake.try_hold(1).is_none());
    }

    #[tokio::test]
    async fn a_maximum_that_is_made_smaller_counts_for_what_comes_and_what_waits() {
        let intake = Intake::new(100);
        let held = intake.try_hold(80).unwrap();
        let waits = {
            let intake = intake.clone();
            tokio::spawn(async move { intake.hold(100).await.bytes() })
        };
        tokio::task::yield_now().await;
        intake.set_bytes_max(50);
        // It asks again, for less.
        tokio::task::yield_now().await;
        assert_eq!((intake.bytes_max(), intake.held_bytes()), (50, 80), "what is held stays");
        assert!(intake.try_hold(1).is_none());
        drop(held);
        assert_eq!(waits.await.unwrap(), 50, "it is larger than all there is now");
        assert_eq!(intake.held_bytes(), 0);
        assert!(intake.try_hold(50).is_some() && intake.try_hold(51).unwrap().bytes() == 50);
    }

    #[test]
    fn a_maximum_that_is_made_larger_again_leaves_nothing_behind() {
        let intake = Intake::new(100);
        let mut held = intake.try_hold(60).unwrap();
        held.merge(intake.try_hold(30).unwrap());
        intake.set_bytes_max(20);
        intake.set_bytes_max(95);
        assert_eq!((intake.bytes_max(), intake.held_bytes()), (95, 90));
        assert!(intake.try_hold(6).is_none());
        assert_eq!(intake.try_hold(5).unwrap().bytes(), 5);
        drop(held);
        assert_eq!((intake.held_bytes(), intake.try_hold(95).unwrap().bytes()), (0, 95));
    }
}
