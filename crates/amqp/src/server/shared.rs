//! What all connections share: the broker, its limits, and where direct replies go.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nexo_access::Logins;
use nexo_broker::{Broker, Protocol, SessionId};

use super::arguments::Traits;
use super::options::Options;
use super::read_size::BusyReaders;
use super::reply_to::ReplyDesk;
use super::write_size::BusyWriters;

#[derive(Debug)]
pub(super) struct ServerState {
    pub(super) broker: Broker,
    pub(super) options: Options,
    /// The largest body that the broker takes: asked for with every publish.
    pub(super) body_bytes_max: usize,
    pub(super) replies: ReplyDesk,
    pub(super) logins: Logins,
    pub(super) busy_readers: Arc<BusyReaders>,
    pub(super) busy_writers: Arc<BusyWriters>,
    next_session: AtomicU64,
    secret: RandomState,
    next_name: AtomicU64,
}

impl ServerState {
    pub(super) fn new(broker: &Broker, logins: Logins, options: Options) -> Self {
        Self {
            broker: broker.over(Protocol::Amqp),
            options,
            body_bytes_max: broker.body_bytes_max(),
            replies: ReplyDesk::default(),
            logins,
            busy_readers: Arc::new(BusyReaders::new(Arc::clone(broker.buffers()))),
            busy_writers: Arc::new(BusyWriters::new(Arc::clone(broker.buffers()))),
            next_session: AtomicU64::new(1),
            secret: RandomState::new(),
            next_name: AtomicU64::new(1),
        }
    }

    /// How long a client may hold a message of such a queue, if there is an end to it.
    pub(super) fn consumer_timeout(&self, traits: Traits) -> Option<Duration> {
        let timeout = traits.consumer_timeout.unwrap_or(self.options.consumer_timeout);
        (!timeout.is_zero()).then_some(timeout)
    }

    pub(super) fn new_session(&self) -> SessionId {
        SessionId(self.next_session.fetch_add(1, Ordering::Relaxed))
    }

    /// A name that nobody can guess and that is never made twice: 22 letters, as RabbitMQ's are.
    pub(super) fn new_name(&self, prefix: &str) -> String {
        let number = self.next_name.fetch_add(1, Ordering::Relaxed);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.secret.hash_one((number, 0u8)).to_be_bytes());
        bytes[8..].copy_from_slice(&self.secret.hash_one((number, 1u8)).to_be_bytes());
        format!("{prefix}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}
