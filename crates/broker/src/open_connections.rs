//! The connections that clients keep open, with their channels and consumers: for those who look after the broker, to see
//! who is there and to send somebody away.
//!
//! A protocol that keeps connections lists each of them here. What it does with messages it notes in [`Figure`]s, which
//! cost no more than a number in its own memory. There are as many as the ports let in ([`Connections`](crate::Connections)),
//! and a connection has as many channels as was agreed on with its client.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use nexo_types::{ConsumerId, Protocol, QueueName, Timestamp};
use parking_lot::Mutex;

use crate::events::Events;
use crate::request::SessionId;

/// A number that one task writes and anybody may read.
#[derive(Debug, Default)]
pub struct Figure(AtomicU64);

impl Figure {
    /// Has it be this. Only its own task may do so.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds to it. Only its own task may do so: nothing is locked.
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// What it is.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is known of a connection when it is opened.
#[derive(Clone, Debug)]
pub struct ConnectionFacts {
    /// The one by which queues know that they belong to it.
    pub id: SessionId,
    /// What it speaks.
    pub protocol: Protocol,
    /// Who is at the other end.
    pub peer: SocketAddr,
    /// The address that the client connected to.
    pub local: SocketAddr,
    /// Who logged in.
    pub user: String,
    /// Where the client is.
    pub vhost: String,
    /// Whether it speaks TLS.
    pub is_tls: bool,
    /// How it logged in.
    pub mechanism: String,
    /// What the client told of itself, in the bytes of its protocol.
    pub client_properties: Bytes,
    /// The largest frame that was agreed on, in bytes.
    pub frame_max: u32,
    /// The most channels that were agreed on.
    pub channel_max: u16,
    /// How often each end shows that it is there, in seconds; 0 for never.
    pub heartbeat_s: u16,
    /// When it was opened.
    pub connected_at: Timestamp,
}

/// A connection that is open.
pub struct OpenConnection {
    facts: ConnectionFacts,
    name: String,
    /// Bytes that came.
    pub received_bytes: Figure,
    /// How often bytes came.
    pub received_count: Figure,
    /// Bytes that were sent.
    pub sent_bytes: Figure,
    /// How often bytes were sent.
    pub sent_count: Figure,
    is_blocked: AtomicBool,
    channels: Mutex<BTreeMap<u16, Arc<OpenChannel>>>,
    close: Box<dyn Fn() + Send + Sync>,
    close_reason: OnceLock<String>,
    /// Who is told of its channels and consumers, once it is listed.
    events: OnceLock<Arc<Events>>,
}

impl fmt::Debug for OpenConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenConnection").field("name", &self.name).finish_non_exhaustive()
    }
}

impl OpenConnection {
    /// A connection that is not listed. `close` is called when somebody wants it to end; it must not wait.
    #[must_use]
    pub fn new(facts: ConnectionFacts, close: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            name: format!("{} -> {}", facts.peer, facts.local),
            facts,
            received_bytes: Figure::default(),
            received_count: Figure::default(),
            sent_bytes: Figure::default(),
            sent_count: Figure::default(),
            is_blocked: AtomicBool::new(false),
            channels: Mutex::default(),
            close: Box::new(close),
            close_reason: OnceLock::new(),
            events: OnceLock::new(),
        }
    }

    /// What was known of it from the beginning.
    #[must_use]
    pub const fn facts(&self) -> &ConnectionFacts {
        &self.facts
    }

    /// What RabbitMQ calls it: both ends.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Notes whether its publishes wait for room.
    pub fn set_blocked(&self, is_blocked: bool) {
        self.is_blocked.store(is_blocked, Ordering::Relaxed);
    }

    /// Whether its publishes wait for room.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::Relaxed)
    }

    /// Its channels, by number.
    #[must_use]
    pub fn channels(&self) -> Vec<Arc<OpenChannel>> {
        self.channels.lock().values().cloned().collect()
    }

    /// How many channels it has.
    #[must_use]
    pub fn channel_count(&self) -> usize {
        self.channels.lock().len()
    }

    /// Notes that a channel is open, until the answer is dropped.
    pub fn open_channel(self: &Arc<Self>, number: u16) -> ListedChannel {
        let channel = Arc::new(OpenChannel { number, ..OpenChannel::default() });
        self.channels.lock().insert(number, Arc::clone(&channel));
        self.tell(|events| events.channel_created(&self.name, &self.facts, number));
        ListedChannel { connection: Arc::clone(self), channel }
    }

    fn tell(&self, tell: impl FnOnce(&Events)) {
        if let Some(events) = self.events.get() {
            tell(events);
        }
    }

    /// Asks it to end. Its client is told the reason. Of several that ask, the first is heard.
    pub fn close(&self, reason: &str) {
        if self.close_reason.set(reason.to_owned()).is_ok() {
            (self.close)();
        }
    }

    /// Why it is to end, if somebody asked for that.
    #[must_use]
    pub fn close_reason(&self) -> Option<&str> {
        self.close_reason.get().map(String::as_str)
    }
}

/// A channel of a connection.
#[derive(Debug, Default)]
pub struct OpenChannel {
    /// Its number.
    pub number: u16,
    /// Messages that its client published.
    pub published: Figure,
    /// How many of those were to be confirmed.
    pub to_confirm: Figure,
    /// How many of those were confirmed or refused.
    pub confirmed: Figure,
    /// Messages that came back because no queue wanted them.
    pub returned: Figure,
    /// Messages that were delivered, to consumers and one by one.
    pub delivered: Figure,
    /// Those that the client got one by one.
    pub got: Figure,
    /// Messages that the client acknowledged.
    pub acked: Figure,
    /// Messages that the client holds.
    pub unacked: Figure,
    /// Messages of a transaction that has not been committed.
    pub uncommitted: Figure,
    /// Acknowledgements of a transaction that has not been committed.
    pub acks_uncommitted: Figure,
    /// How many messages each consumer to come may hold; 0 for any number.
    pub prefetch: Figure,
    /// How many messages all consumers may hold together; 0 for any number.
    pub prefetch_together: Figure,
    confirms: AtomicBool,
    is_transactional: AtomicBool,
    consumers: Mutex<BTreeMap<Bytes, Arc<OpenConsumer>>>,
}

impl OpenChannel {
    /// Notes that publishes are confirmed.
    pub fn set_confirms(&self) {
        self.confirms.store(true, Ordering::Relaxed);
    }

    /// Whether publishes are confirmed.
    #[must_use]
    pub fn confirms(&self) -> bool {
        self.confirms.load(Ordering::Relaxed)
    }

    /// Notes that publishes and acknowledgements wait for a commit.
    pub fn set_transactional(&self) {
        self.is_transactional.store(true, Ordering::Relaxed);
    }

    /// Whether publishes and acknowledgements wait for a commit.
    #[must_use]
    pub fn is_transactional(&self) -> bool {
        self.is_transactional.load(Ordering::Relaxed)
    }

    /// Messages that wait to be confirmed.
    #[must_use]
    pub fn unconfirmed(&self) -> u64 {
        self.to_confirm.get().saturating_sub(self.confirmed.get())
    }

    /// Notes that a consumer is another to its queue now.
    pub fn renew_consumer(&self, tag: &Bytes, id: ConsumerId) {
        let mut consumers = self.consumers.lock();
        if let Some(old) = consumers.get(tag) {
            let renewed = OpenConsumer { id: Some(id), ..OpenConsumer::clone(old) };
            consumers.insert(tag.clone(), Arc::new(renewed));
        }
    }

    /// Its consumers, by tag.
    #[must_use]
    pub fn consumers(&self) -> Vec<Arc<OpenConsumer>> {
        self.consumers.lock().values().cloned().collect()
    }

    /// How many consumers it has.
    #[must_use]
    pub fn consumer_count(&self) -> usize {
        self.consumers.lock().len()
    }
}

/// A consumer of a channel.
#[derive(Clone, Debug)]
pub struct OpenConsumer {
    /// Its tag, as its client gave it.
    pub tag: Bytes,
    /// Whom its queue knows it as.
    pub id: Option<ConsumerId>,
    /// The queue.
    pub queue: QueueName,
    /// Whether its client acknowledges.
    pub acknowledges: bool,
    /// Whether no other may consume from the queue.
    pub is_exclusive: bool,
    /// How many messages it may hold; 0 for any number.
    pub prefetch: u32,
    /// What it was asked for with, in the bytes of its protocol.
    pub arguments: Bytes,
}

/// All connections that are open.
#[derive(Debug, Default)]
pub struct OpenConnections {
    all: Mutex<BTreeMap<SessionId, Arc<OpenConnection>>>,
    events: Arc<Events>,
}

impl OpenConnections {
    /// None yet; these are told of all that come and go.
    pub(crate) fn telling(events: Arc<Events>) -> Self {
        Self { all: Mutex::default(), events }
    }

    /// Lists a connection until the answer is dropped.
    pub fn list(self: &Arc<Self>, connection: Arc<OpenConnection>) -> ListedConnection {
        let id = connection.facts.id;
        // A connection is listed once.
        let _ = connection.events.set(Arc::clone(&self.events));
        self.events.connection_created(&connection.name, &connection.facts);
        self.all.lock().insert(id, connection);
        ListedConnection { all: Arc::clone(self), id }
    }

    /// All of them, the oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<OpenConnection>> {
        self.all.lock().values().cloned().collect()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.lock().len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The one of this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<Arc<OpenConnection>> {
        self.all.lock().values().find(|connection| connection.name == name).cloned()
    }

    /// The one that a queue belongs to.
    #[must_use]
    pub fn get(&self, id: SessionId) -> Option<Arc<OpenConnection>> {
        self.all.lock().get(&id).cloned()
    }
}

/// A connection is listed until this is dropped.
#[derive(Debug)]
#[must_use = "dropping it takes the connection off the list"]
pub struct ListedConnection {
    all: Arc<OpenConnections>,
    id: SessionId,
}

impl Drop for ListedConnection {
    fn drop(&mut self) {
        let gone = self.all.all.lock().remove(&self.id);
        if let Some(gone) = gone {
            self.all.events.connection_closed(&gone.name, &gone.facts);
        }
    }
}

/// A channel is among those of its connection until this is dropped.
#[derive(Debug)]
#[must_use = "dropping it takes the channel off the list"]
pub struct ListedChannel {
    connection: Arc<OpenConnection>,
    channel: Arc<OpenChannel>,
}

impl ListedChannel {
    /// Notes a consumer.
    pub fn add_consumer(&self, consumer: OpenConsumer) {
        let consumer = Arc::new(consumer);
        self.channel.consumers.lock().insert(consumer.tag.clone(), Arc::clone(&consumer));
        let (connection, number) = (&self.connection, self.channel.number);
        connection.tell(|events| {
            events.consumer_created(&connection.name, &connection.facts.user, number, &consumer);
        });
    }

    /// Notes that a consumer has gone.
    pub fn remove_consumer(&self, tag: &Bytes) {
        let gone = self.channel.consumers.lock().remove(tag);
        if let Some(consumer) = gone {
            self.tell_gone(&consumer);
        }
    }

    fn tell_gone(&self, consumer: &OpenConsumer) {
        let (connection, number) = (&self.connection, self.channel.number);
        connection.tell(|events| {
            events.consumer_deleted(&connection.name, &connection.facts.user, number, consumer);
        });
    }
}

impl std::ops::Deref for ListedChannel {
    type Target = OpenChannel;

    fn deref(&self) -> &OpenChannel {
        &self.channel
    }
}

impl Drop for ListedChannel {
    fn drop(&mut self) {
        for consumer in self.channel.consumers() {
            self.tell_gone(&consumer);
        }
        let (connection, number) = (&self.connection, self.channel.number);
        connection.tell(|events| events.channel_closed(&connection.name, number));
        let mut channels = self.connection.channels.lock();
        // Its number may have gone to another by now.
        if channels.get(&self.channel.number).is_some_and(|listed| Arc::ptr_eq(listed, &self.channel)) {
            channels.remove(&self.channel.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(id: u64, close: impl Fn() + Send + Sync + 'static) -> Arc<OpenConnection> {
        let facts = ConnectionFacts {
            id: SessionId(id),
            protocol: Protocol::Amqp,
            peer: "127.0.0.1:5000".parse().unwrap(),
            local: "127.0.0.1:5672".parse().unwrap(),
            user: "guest".into(),
            vhost: "/".into(),
            is_tls: false,
            mechanism: "PLAIN".into(),
            client_properties: Bytes::new(),
            frame_max: 131_072,
            channel_max: 2047,
            heartbeat_s: 60,
            connected_at: Timestamp(1),
        };
        Arc::new(OpenConnection::new(facts, close))
    }

    #[test]
    fn a_connection_is_listed_as_long_as_it_is_open() {
        let all = Arc::new(OpenConnections::default());
        let one = connection(1, || {});
        let listed = all.list(Arc::clone(&one));
        assert_eq!(all.named("127.0.0.1:5000 -> 127.0.0.1:5672").unwrap().facts().id, SessionId(1));
        assert!(all.get(SessionId(2)).is_none());
        drop(listed);
        assert!(all.is_empty());
    }

    #[test]
    fn a_channel_that_goes_late_does_not_take_its_successor_off_the_list() {
        let one = connection(1, || {});
        let first = one.open_channel(7);
        let second = one.open_channel(7);
        second.published.add(3);
        drop(first);
        assert_eq!(one.channels()[0].published.get(), 3);
        drop(second);
        assert_eq!(one.channel_count(), 0);
    }

    #[test]
    fn the_first_who_asks_a_connection_to_end_says_why() {
        let asked = Arc::new(AtomicU64::new(0));
        let counts = Arc::clone(&asked);
        let one = connection(1, move || {
            counts.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(one.close_reason(), None);
        one.close("maintenance");
        one.close("another reason");
        assert_eq!((one.close_reason(), asked.load(Ordering::Relaxed)), (Some("maintenance"), 1));
    }
}
