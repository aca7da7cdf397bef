//! Whole clusters in one thread, from a seed.
//!
//! Every node is what it is in truth: Raft groups (`nexo-cluster`), their log, and the broker's state machines (`nexo-core`).
//! Network, disks and clocks are simulated (`world`), and so is what clients do (`clients`). Things break (`faults`), disks that are
//! damaged too (`repair`), and books are kept on everything that
//! clients were told (`ledger`). The same seed gives the same run, to the byte; its trace is summed up to show that.
//! `replica` is what a leader does before the others agree, with the queues (`state`) and the other machines (`machines`).
//! `sabotage` breaks nodes on purpose, to see that it is noticed.

mod clients;
mod faults;
mod ledger;
mod machines;
mod repair;
mod replica;
pub mod sabotage;
mod server;
mod state;
mod world;

pub use ledger::{Tally, Violation};
pub use world::{Options, Outcome};

/// Plays one run. A node that panics is a violation.
#[must_use]
pub fn run(options: Options) -> Outcome {
    let played = std::panic::catch_unwind(|| world::World::new(options).play());
    played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Outcome {
            trace: 0,
            violations: vec![Violation::Panicked(text.unwrap_or_default())],
            tally: Tally::default(),
            story: Vec::new(),
        }
    })
}
