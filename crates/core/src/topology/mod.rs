//! Virtual hosts, exchanges and bindings: where a published message goes, as RabbitMQ has it.
//!
//! [`Topology`] holds all exchanges and bindings. Like a queue it *decides* what happens (`decide_…` gives back
//! a [`Plan`] and changes nothing) and then *applies* it; between the two, the broker writes the durable part
//! of the plan to the log. [`Topology::replay`] applies what the log has.
//!
//! [`Routes`] is what publishing reads: an immutable snapshot that costs nothing to take, because it shares
//! what has not changed with the snapshots before it. Queues come in from outside
//! ([`Topology::queue_added`]); routing gives back their ids.
//!
//! Every exchange and queue belongs to a virtual host (`vhost`), and nothing leads from one into another.
//!
//! Read on in `state`, `decide` and `apply` for changes, in `routes`, `table` and `trie` for routing.

mod apply;
mod binding;
mod byte_map;
mod decide;
mod error;
mod exchange;
mod header;
mod header_rule;
mod machine;
#[cfg(test)]
mod model;
mod places;
mod record;
mod ring;
mod routes;
mod snapshot;
mod state;
#[cfg(test)]
mod stories;
mod table;
mod targets;
mod trie;
mod vhost;

pub use binding::{Binding, Destination};
pub use decide::DeleteIf;
pub use error::{
    BindError, DeclareError, DeleteError, Difference, KindError, PassiveError, RouteError, UnbindError,
};
pub use exchange::{ExchangeKind, ExchangeSpec, HashOn, Matching};
pub use header::{HeaderSource, HeaderValue, NoHeaders, Property};
pub use machine::{TopologyCommand, TopologyRefusal};
pub use record::{Plan, TopologyRecord};
pub use routes::{Routed, Routes};
pub use snapshot::{Outline, RestoreError};
pub use state::Topology;
pub use vhost::{DefaultQueueType, Vhost, VhostError, VhostSpec, VhostStage};
