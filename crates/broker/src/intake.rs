//! Memory for what is on its way in: bodies that have not come whole, requests that are being read, transactions that
//! are open. Each way in has limits per connection; this is the limit for all of them together.
//!
//! A message's whole size is asked for before its first byte is kept. Whoever already holds some and waits for more
//! could wait for itself: such a connection asks with [`Intake::try_hold`] and refuses what does not fit.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The memory that unfinished messages may take together. A clone is the same memory.
#[derive(Clone, Debug)]
pub struct Intake {
    free: Arc<Semaphore>,
    bytes_max: u32,
}

/// A part of that memory; given back when it is dropped.
#[derive(Debug)]
#[must_use = "dropping it gives the memory back"]
pub struct IntakeHold {
    permit: OwnedSemaphorePermit,
}

impl Intake {
    /// As much as `bytes_max`.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        let bytes_max = u32::try_from(bytes_max).unwrap_or(u32::MAX).min(Semaphore::MAX_PERMITS as u32);
        Self { free: Arc::new(Semaphore::new(bytes_max as usize)), bytes_max }
    }

    /// Waits for room for `bytes`. What is larger than all there is waits until it is alone.
    pub async fn hold(&self, bytes: usize) -> IntakeHold {
        let permit = Arc::clone(&self.free).acquire_many_owned(self.share(bytes)).await;
        IntakeHold { permit: permit.expect("the semaphore is never closed") }
    }

    /// Room for `bytes`, if there is any now.
    #[must_use]
    pub fn try_hold(&self, bytes: usize) -> Option<IntakeHold> {
        let permit = Arc::clone(&self.free).try_acquire_many_owned(self.share(bytes)).ok()?;
        Some(IntakeHold { permit })
    }

    /// Bytes that there are in all.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max.into()
    }

    /// Bytes that are held now.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        u64::from(self.bytes_max).saturating_sub(self.free.available_permits() as u64)
    }

    /// Whether all of it is taken, as it is while anybody waits.
    #[must_use]
    pub fn is_contended(&self) -> bool {
        self.free.available_permits() == 0
    }

    fn share(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes_max)
    }
}

impl IntakeHold {
    /// Both as one.
    pub fn merge(&mut self, other: Self) {
        self.permit.merge(other.permit);
    }

    /// How much it is.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.permit.num_permits()
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
}
