//! What the ports share.
//!
//! - `listeners.rs`: the addresses of a port; `accept.rs`: connections are taken in until the port closes.
//! - `stream.rs`, `tls/`: plain TCP or TLS over it, or a tunnel.
//! - `gate.rs`: where connections are served in a cluster; `pass_on.rs`: those that are served elsewhere; `tunnel.rs`: those
//!   that another node passes on; `peer_stream.rs`: what lies between the two.
//! - `connection.rs`: a connection that ends when its peer does nothing.
//! - `http.rs`: the server of the ports that speak HTTP/1.1.
//! - `host.rs`: the check of whom a request asks for.

mod accept;
mod connection;
mod gate;
mod host;
mod http;
mod listeners;
mod pass_on;
mod peer_stream;
mod stream;
mod tls;
mod tunnel;

pub use accept::{Accepted, serve_connections};
pub use connection::{Connection, ReadLimit, TimeLimits};
pub use gate::{Gate, LEADER_WITHIN, OpeningTunnel, Place, Tenure, Unserved};
pub use host::{is_for_this_machine, is_loopback_name};
pub use http::{Ends, HttpLimits, HttpPort};
pub use listeners::Listeners;
pub use peer_stream::PeerStream;
pub use stream::{ReadHalf, SharedSocket, Stream, WriteHalf};
pub use tls::{
    CertificateFile, CertificateName, ClientCertificates, ClientTls, Expiry, TlsError, TlsOptions, TlsPeer,
    TlsServer, certificate_user, client_config, connect_peer,
};
pub use tunnel::{Tunnel, TunnelHead, TunnelRefused, TunnelTls, Tunnels};
