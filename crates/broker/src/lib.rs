//! The one API that every way into Nexo uses.

mod broker;
mod delivery;
mod error;
mod headers;
mod options;
mod receipt;
mod stats;
mod subscription;

pub use broker::{Broker, ListRequest, PopRequest, Pushed, Redrive, Redriven, SubscribeRequest};
pub use delivery::Delivery;
pub use error::{CreateError, OpenError, PopError, PushError, QueueError, SettleError};
pub use headers::{HeaderValue, Headers, HeadersError};
pub use nexo_core::config::{Backoff, ConfigError, Fate, Overflow, QueueConfig, RateLimit, SyncMode};
pub use nexo_core::message::{DeathReason, Durability, NewMessage, Origin, Properties, PropertyFormat};
pub use options::BrokerOptions;
pub use receipt::{Receipt, ReceiptError};
pub use stats::{BrokerStats, Health, QueueStats};
pub use subscription::Subscription;
