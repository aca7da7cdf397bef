//! Job queues under load, over HTTP: a thousand clients ask for the same keys, workers die, fail, give back and take longer, and
//! the broker is ended as everything else is. Three promises are checked: every waiter gets exactly one answer and the right
//! one, no key is worked on by two at once, and a budget never pays more than it had.
//!
//! - `books`: what is known, and what must not be. Pure, as the ledger is.
//! - `clients`: who asks. `workers`: who works, or dies. `replies`: who reads the queues for answers. `watch`: looks at figures.
//! - `setup`: the queues, their budget and the numbers that all of this is about. `wire`: HTTP. `stock`: taking stock.

mod books;
mod clients;
mod replies;
mod setup;
mod stock;
mod watch;
mod wire;
mod workers;
mod yard;

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::world::World;

pub(crate) use books::Totals;
pub(crate) use setup::set_up;
pub(crate) use stock::{close, is_worked_off, take_account};
pub(crate) use wire::Wire as Http;
pub(crate) use yard::Yard;

/// Starts everybody; they end with the run.
pub(crate) fn start(world: &Arc<World>, tasks: &mut JoinSet<()>) {
    for number in 0..setup::CLIENTS {
        tasks.spawn(clients::ask_and_wait(Arc::clone(world), number));
    }
    for number in 0..setup::WORKERS {
        tasks.spawn(workers::work(Arc::clone(world), number));
    }
    for reply in setup::Reply::ALL {
        tasks.spawn(replies::read(Arc::clone(world), reply));
    }
    tasks.spawn(watch::look_at_budget(Arc::clone(world)));
}
