//! Clients over AMQP, on the codec alone: they know exactly what they sent and what they were told.

mod bulk;
mod judge;
mod repeating;
mod session;
mod transactions;
mod unconfirmed;
mod wire;

pub(crate) use bulk::{prove, publish_all};
pub(crate) use judge::judge;
pub(crate) use repeating::publish_until_confirmed;
pub(crate) use session::{Role, run};
pub(crate) use transactions::transact;
pub(crate) use wire::{Event, Gone, Settles, Wire};
