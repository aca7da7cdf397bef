//! Torture for clusters: three real nodes, clients that connect to any of them, and a leader that is lost again and again.
//!
//! Clients, queues and books are those of a single broker. To them a cluster is one broker whose life is the time of one leader.
//!
//! - `plan`: what is done to which node. `faults`: doing it, and what the books are told meanwhile.
//! - `nodes`: the three processes, and what they say of themselves. `wires`: the network between them, which can be cut.
//! - `outages`: how long nothing was confirmed after each fault.
//! - `run`: a run from beginning to end. `stock`: whether all is accounted for, on every node.

mod faults;
mod nodes;
mod outages;
mod plan;
mod run;
mod stock;
mod wires;

pub(crate) use run::{ClusterSettings, run};
