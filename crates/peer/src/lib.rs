//! Connections between the nodes of a cluster, on a port of their own.
//!
//! Every connection begins with a hello in which both sides prove that they know the cluster's secret, and say who they are and
//! what the connection is for. Envelopes of Raft have one connection in each direction; a snapshot, a tunnel or a question has
//! one of its own, so nothing large delays a heartbeat.
//!
//! - `peers.rs`: [`Peers`], the handle that everything begins with; `identity.rs`: what it is told.
//! - `hello.rs`: the bytes of a hello, pure; `proof.rs`: the secret; `handshake.rs`: a hello over a connection.
//! - `dial.rs`, `acceptor.rs`: the two ends of a connection until both know each other; `strangers.rs`: how many may be there
//!   that nobody knows yet.
//! - `link.rs`: envelopes to one node, with `queue.rs` before it; `incoming.rs`: envelopes from one; `frame.rs`: their bytes;
//!   `own_thread.rs`: what they run on, so that no client holds them up.
//! - `forwarder.rs`: clients of this node that another one serves.
//! - `message.rs`: questions and answers; `purpose.rs`: what a connection is for.
//!
//! What an envelope means, who the nodes are and who leads is not known here.

mod acceptor;
mod dial;
mod error;
mod figures;
mod forwarder;
mod frame;
mod handshake;
mod hello;
mod identity;
mod incoming;
mod link;
mod message;
mod own_thread;
mod peers;
mod proof;
mod purpose;
mod queue;
mod strangers;

pub use error::{HelloError, PeerError};
pub use figures::PeerStatus;
pub use forwarder::{Forwarder, follow};
pub use hello::{VERSION_MAX, VERSION_MIN, Versions};
pub use identity::{ClusterId, NoClusterId, PeerIdentity, PeerOptions, PeerSecurity, PeerTls, Secret};
pub use message::{read_message, write_message};
pub use nexo_net::{PeerStream, TunnelHead, TunnelTls};
pub use peers::{PeerHandler, Peers};
pub use purpose::Purpose;
