//! A consumer that stays until it says otherwise.

use crate::delivery::Delivery;
use nexo_types::ConsumerId;

/// A consumer of one queue. Dropping it ends the subscription; what it holds comes back at once unless the
/// subscription was asked to keep its leases.
#[derive(Debug)]
pub struct Subscription;

impl Subscription {
    /// Who this is.
    pub fn id(&self) -> ConsumerId { unimplemented!() }
    /// The next messages, as soon as there are any; `None` once the queue is deleted or the broker stops.
    pub async fn next(&mut self) -> Option<Vec<Delivery>> { unimplemented!() }
    /// Asks for this many more messages.
    pub fn add_credit(&self, _credit: u32) { unimplemented!() }
}
