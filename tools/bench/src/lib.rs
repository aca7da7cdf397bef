//! Load for brokers, and what came of it.
//!
//! `nexo bench` runs one load against a broker that is already there: [`throughput`], [`latency`], [`backlog`], [`churn`],
//! [`mixed`], [`waiting`], [`probe`], [`failover`], [`jobs`], [`abuse`] and [`disk`] each take options, run, and give back a [`Report`] that can be printed, drawn and read
//! by programs. What they need of a broker is in `protocol`; `amqp`, `native`, `nats` and `sqs` provide it. Client and broker share the
//! machine, so every nanosecond that the load takes is one the broker does not have: the hot paths are in
//! `amqp/publisher.rs` and `amqp/deliveries.rs`. [`Sink`] is a server that only parses, to see what the load itself could
//! reach at most.
//!
//! [`engine`] starts a broker of its own and measures what only Nexo promises; `nexo-bench` runs it.

pub mod abuse;
mod amqp;
pub mod backlog;
mod chart;
pub mod churn;
mod crew;
pub mod disk;
pub mod engine;
pub mod failover;
pub mod html;
pub mod jobs;
pub mod latency;
mod machine;
pub mod mixed;
mod native;
mod nats;
mod options;
mod percentiles;
pub mod probe;
mod process;
mod progress;
mod protocol;
mod report;
mod schedule;
mod span;
mod sqs;
mod tally;
mod threads;
pub mod throughput;
pub mod waiting;
mod work;

pub use amqp::Sink;
pub use chart::{Axis, Chart, Curve, Scale};
pub use native::NativeUrl;
pub use nats::NatsUrl;
pub use nexo_amqp_client::AmqpUrl;
pub use options::{LoadOptions, QueueType, Target};
pub use percentiles::Percentiles;
pub use process::Used;
pub use progress::{Progress, Verdict, Watch};
pub use report::{Figures, Report};
pub use sqs::SqsUrl;
pub use tally::Totals;
pub use work::{Ack, QueueArgument};
