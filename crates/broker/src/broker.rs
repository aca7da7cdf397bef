//! skeleton
use crate::*;
use nexo_types::*;

/// Which queues to list.
#[derive(Clone, Debug, Default)]
pub struct ListRequest { /** Only names that begin so. */ pub prefix: String, /** Only names after this one. */ pub after: Option<String>, /** At most this many. */ pub limit: usize }
/// A pull.
#[derive(Clone, Debug)]
pub struct PopRequest { /** At most. 1..=limits::POP_BATCH_MAX */ pub max: usize, /** How long to wait for the first. */ pub wait: Millis, /** Lease; None = as the queue says. */ pub visibility: Option<Millis> }
/// A subscription request.
#[derive(Clone, Debug)]
pub struct SubscribeRequest { /** Initial credit, 0..=limits::CREDIT_MAX. */ pub credit: u32, /** Lease. */ pub visibility: Option<Millis>, /** Whether leases outlive the subscription. */ pub keep_leases: bool }
/// A redrive.
#[derive(Clone, Debug, Default)]
pub struct Redrive { /** Where to; None = where each came from. */ pub target: Option<QueueName>, /** Only these; empty = all. */ pub offsets: Vec<Offset>, /** At most this many. */ pub max: Option<u64> }
/// What a redrive did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Redriven { /** Moved. */ pub moved: u64, /** Left where they are since their source is gone or unknown. */ pub skipped: u64 }

/// The broker; cheap to clone.
#[derive(Clone, Debug)]
pub struct Broker;

#[allow(missing_docs, clippy::unused_async, clippy::missing_errors_doc, clippy::needless_pass_by_value)]
impl Broker {
    /// Opens or creates the data directory, recovers, starts threads. Blocking; call before serving.
    pub fn open(_options: BrokerOptions) -> Result<Self, OpenError> { unimplemented!() }
    /// true: it was created; false: it was there with the same settings.
    pub async fn create_queue(&self, _name: &QueueName, _config: QueueConfig) -> Result<bool, CreateError> { unimplemented!() }
    pub async fn configure_queue(&self, _name: &QueueName, _config: QueueConfig) -> Result<(), CreateError> { unimplemented!() }
    /// How many messages went with it.
    pub async fn delete_queue(&self, _name: &QueueName) -> Result<u64, QueueError> { unimplemented!() }
    pub async fn pause_queue(&self, _name: &QueueName, _paused: bool) -> Result<(), QueueError> { unimplemented!() }
    pub fn queue_stats(&self, _name: &QueueName) -> Result<QueueStats, QueueError> { unimplemented!() }
    /// Sorted by name.
    pub fn list_queues(&self, _request: &ListRequest) -> Vec<QueueStats> { unimplemented!() }
    /// Resolves when durable. Outer error: nothing was taken. Inner: one per message; Ok(PushedId{offset, duplicate: bool}).
    pub async fn push(&self, _name: &QueueName, _messages: Vec<NewMessage>) -> Result<Vec<Result<Pushed, PushError>>, QueueError> { unimplemented!() }
    /// Dropping the future gives back what it had been handed.
    pub async fn pop(&self, _name: &QueueName, _request: PopRequest) -> Result<Vec<Delivery>, PopError> { unimplemented!() }
    pub fn subscribe(&self, _name: &QueueName, _request: SubscribeRequest) -> Result<Subscription, PopError> { unimplemented!() }
    /// One result per receipt, in order; resolves when durable.
    pub async fn received(&self, _receipts: &[Receipt]) -> Vec<Result<Timestamp, SettleError>> { unimplemented!() }
    pub async fn ack(&self, _receipts: &[Receipt]) -> Vec<Result<(), SettleError>> { unimplemented!() }
    /// delay None: as the queue's back-off says.
    pub async fn nack(&self, _receipts: &[Receipt], _delay: Option<Millis>) -> Vec<Result<(), SettleError>> { unimplemented!() }
    /// Extends to now + visibility; gives the new end.
    pub async fn extend(&self, _receipts: &[Receipt], _visibility: Millis) -> Vec<Result<Timestamp, SettleError>> { unimplemented!() }
    /// In delivery order, from the head; changes nothing.
    pub async fn peek(&self, _name: &QueueName, _max: usize) -> Result<Vec<Delivery>, QueueError> { unimplemented!() }
    pub async fn purge(&self, _name: &QueueName) -> Result<u64, QueueError> { unimplemented!() }
    /// `name` is the dead-letter queue. Progress is called with the number moved so far.
    pub async fn redrive(&self, _name: &QueueName, _request: Redrive, _progress: &(dyn Fn(u64) + Sync)) -> Result<Redriven, QueueError> { unimplemented!() }
    pub fn stats(&self) -> BrokerStats { unimplemented!() }
    pub fn health(&self) -> Health { unimplemented!() }
    /// Stops handing out, syncs, stops threads. Later calls answer Unavailable.
    pub async fn shutdown(&self) { unimplemented!() }
}
/// What became of a pushed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pushed { /** Its id, or that of the message it repeats. */ pub offset: Offset, /** Whether it repeats another. */ pub duplicate: bool }
