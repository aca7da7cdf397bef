//! How much was done.

use crate::way::Way;

/// Figures of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Copies that were sent.
    pub(crate) published: u64,
    pub(crate) confirmed: u64,
    /// Copies whose connection ended before the broker answered.
    pub(crate) uncertain: u64,
    /// Copies that the broker refused.
    pub(crate) refused: u64,
    /// Copies of transactions that were rolled back.
    pub(crate) withdrawn: u64,
    pub(crate) delivered: u64,
    /// Deliveries of what had been seen before.
    pub(crate) redelivered: u64,
    /// Deliveries from dead-letter queues.
    pub(crate) dead: u64,
    /// Acknowledgements that are known to be durable.
    pub(crate) acked: u64,
    /// Acknowledgements whose connection ended before that was known.
    pub(crate) unsure_acks: u64,
    /// Transient copies that a restart took, as it may.
    pub(crate) vanished: u64,
    /// Messages that the broker reported as lost to damage.
    pub(crate) reported_damaged: u64,
    /// Copies that are gone, as the broker reported.
    pub(crate) lost_to_damage: u64,
    /// Breaches of an order that these losses account for.
    pub(crate) excused: u64,
    /// Repetitions that were recognised.
    pub(crate) repeated: u64,
    /// Messages that no queue wanted and that were given back.
    pub(crate) returned: u64,
    /// What of it each way did.
    ways: [Share; Way::ALL.len()],
}

/// What one way did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    pub(crate) confirmed: u64,
    pub(crate) delivered: u64,
    /// Acknowledgements that are known to be durable.
    pub(crate) acked: u64,
}

impl Totals {
    /// What a way did, to be added to.
    pub(super) const fn of(&mut self, way: Way) -> &mut Share {
        &mut self.ways[way as usize]
    }

    /// What a way did.
    pub(crate) const fn share(&self, way: Way) -> Share {
        self.ways[way as usize]
    }
}
