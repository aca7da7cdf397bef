//! Job queues and budgets of the native API. `service.rs` has the calls, and `stream.rs` has many of
//! them come over one stream; `settings.rs` and `requests.rs` take apart what comes in,
//! `shown.rs` makes what goes out. The rules are the broker's.

mod requests;
mod service;
mod settings;
mod shown;
mod stream;

pub(crate) use service::JobCalls;
