//! The management port of Nexo, over HTTP: whether the broker works and how it is doing.
//!
//! - `GET /health` answers 200 while the broker can take and confirm messages, and 503 with the reason if not. `/health/ready` is the
//!   same, and 503 as well on a node of a cluster that is drained. `/health/live` is 503 only if a restart might help.
//! - `GET /metrics` is for Prometheus; `metrics` says which figures there are. The text format is what everybody gets
//!   who does not ask for OpenMetrics.
//! - `/api` is RabbitMQ's management API ([`mod@api`]), for whoever logs in.
//! - `GET /` points at all of them.
//!
//! In a cluster the node that leads answers what is not about a single node (`forward.rs`).
//!
//! Health and metrics may be asked for by anybody, as long as they are asked of this machine by a name that is its own.

mod accept;
mod api;
mod cluster;
mod cluster_metrics;
mod forward;
mod health;
mod job_metrics;
mod metrics;
mod server;
mod text_format;

pub use api::{Listener, import_definitions};
pub use cluster::{
    Answering, ClusterControl, ClusterFigures, ClusterHealth, ClusterRefused, ClusterReport, Drain,
    GroupReport, NodeReport, NodeRole, PeerFigures, RemoveIf, risk_of,
};
pub use server::{AdminOptions, serve};
