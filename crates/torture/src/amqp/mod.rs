//! Clients over AMQP, on the codec alone: they know exactly what they sent and what they were told.

mod session;
mod transactions;
mod unconfirmed;
mod wire;

pub(crate) use session::{Role, run};
pub(crate) use transactions::transact;
pub(crate) use wire::{Event, Gone, Wire, properties};
