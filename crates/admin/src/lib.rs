//! The management port of Nexo, over HTTP: whether the broker works and how it is doing.
//!
//! - `GET /health` answers 200 while the broker can take and confirm messages, and 503 with the reason if not.
//! - `GET /metrics` is for Prometheus; `metrics` says which figures there are. The text format is what everybody gets
//!   who does not ask for OpenMetrics.
//! - `GET /` points at both.
//!
//! Nothing here changes anything, so everything may be asked at any time, as long as it is asked of this machine by a
//! name that is its own.

mod accept;
mod health;
mod metrics;
mod server;
mod text_format;

pub use server::{AdminOptions, serve};
