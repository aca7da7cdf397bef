//! The management port of Nexo, over HTTP: whether the broker works and how it is doing.
//!
//! - `GET /health` answers 200 while the broker can take and confirm messages, and 503 with the reason if not.
//! - `GET /metrics` is for Prometheus; `metrics` says which figures there are.
//! - `GET /` points at both.
//!
//! Nothing here changes anything, so everything may be asked at any time.

mod health;
mod metrics;
mod server;

pub use server::serve;
