//! A broker as a node of a cluster: who it is, how it comes in, and what it does for those who look after it. The rules are
//! elsewhere: who the nodes are is a machine of `core`, the group is `nexo_broker::replication`, and connections between nodes
//! are `nexo_peer`'s. This ties the three together.
//!
//! - `settings.rs`: what it is told. `node_file.rs`: what it knows of itself. `part.rs`: what follows from both.
//! - `start.rs`: from there to a node that takes part; `join.rs`: how it asks others to let it in; `newcomer.rs`: what it
//!   says meanwhile.
//! - `node.rs`: the node; `incoming.rs`: what other nodes bring it; `request.rs`, `answer.rs`: what they ask and are told.
//! - `mend.rs`: a node whose data is damaged comes back as another.
//! - `upkeep.rs`: whom it is connected with, and as a leader, who votes; `clocks.rs`: whether its clock is right.
//! - `recover.rs`: what is written down for a node that is to go on without the others.
//! - `report.rs`: the cluster as one node sees it; `control.rs`: all of that for the management port.

mod answer;
mod clocks;
mod control;
mod incoming;
mod join;
mod mend;
mod newcomer;
mod node;
mod node_file;
mod part;
mod recover;
mod report;
mod request;
mod settings;
mod start;
mod upkeep;

pub(crate) use control::Control;
pub(crate) use node::ClusterNode;
pub(crate) use recover::recover;
pub(crate) use settings::ClusterSettings;
pub(crate) use start::Prepared;
