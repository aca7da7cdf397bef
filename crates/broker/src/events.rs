//! What happened, for whoever wants to know: events as RabbitMQ's event exchange names and shapes them.
//!
//! This is the one place from which they go out. The broker calls it where something has changed, the protocols and `access`
//! where somebody came or was sent away. Events wait in a bounded line until a protocol's crate publishes them to
//! [`EVENT_EXCHANGE`] (`nexo_amqp::publish_events`). Nobody waits for them: what does not fit is dropped and counted. As
//! long as nothing is bound to that exchange an event costs one load, and is not even made.
//!
//! Some of them go to the log too, with who did it and from where: changes of users, policies and parameters, and alarms.
//! `event_kinds.rs` has the fields of each.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use nexo_core::machine::Step;
use nexo_core::message::Durability;
use nexo_core::topology::{ExchangeKind, ExchangeSpec, Matching, Plan, Topology, TopologyRecord};
use nexo_log::Urgency;
use nexo_types::{ExchangeName, Timestamp, VhostName, limits};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::broker::Broker;
use crate::error::{ExchangeError, QueueError};
use crate::tell::AlarmAllowance;

/// The topic exchange in "/" that events are published to.
pub const EVENT_EXCHANGE: &str = ExchangeName::EVENTS;

/// Who does something to the broker, for those who look after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// The user.
    pub user: String,
    /// Where he comes from.
    pub from: Option<SocketAddr>,
}

tokio::task_local! {
    /// Who the running task works for. It is only ever told of, never asked for permission.
    static ACTOR: Arc<Actor>;
}

/// Does something for somebody: what it changes is told of as done by him.
pub fn acting<F: Future>(actor: Actor, work: F) -> impl Future<Output = F::Output> {
    ACTOR.scope(Arc::new(actor), work)
}

/// Whoever the running task works for, to be taken along to another task or thread.
#[derive(Clone, Debug)]
pub struct OnBehalf(Option<Arc<Actor>>);

impl OnBehalf {
    /// Of the running task.
    #[must_use]
    pub fn now() -> Self {
        Self(actor())
    }

    /// Does something for him.
    pub async fn run<F: Future>(self, work: F) -> F::Output {
        match self.0 {
            Some(actor) => ACTOR.scope(actor, work).await,
            None => work.await,
        }
    }

    /// The same on a thread that runs no tasks.
    pub(crate) fn run_blocking<R>(self, work: impl FnOnce() -> R) -> R {
        match self.0 {
            Some(actor) => ACTOR.sync_scope(actor, work),
            None => work(),
        }
    }
}

/// Who the running task works for, if anybody.
fn actor() -> Option<Arc<Actor>> {
    ACTOR.try_with(Arc::clone).ok()
}

/// Who does it and from where, as the log has it.
impl fmt::Display for OnBehalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_deref() {
            None => f.write_str("the broker"),
            Some(Actor { user, from: None }) => write!(f, "{}", user.escape_debug()),
            Some(Actor { user, from: Some(from) }) => write!(f, "{} from {from}", user.escape_debug()),
        }
    }
}

/// What a field says.
#[derive(Clone, Debug, PartialEq)]
pub enum EventValue {
    /// Text.
    Text(String),
    /// A whole number.
    Whole(i64),
    /// A number with a fraction.
    Fraction(f64),
    /// True or false.
    Truth(bool),
    /// Some of them.
    List(Vec<EventValue>),
    /// Some of them with names.
    Table(Vec<(String, EventValue)>),
    /// A table in the bytes of AMQP, as its client gave it.
    Raw(Bytes),
    /// Anything, as JSON.
    Json(String),
}

impl EventValue {
    /// What it takes besides itself, about.
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Json(text) => text.len(),
            Self::Raw(bytes) => bytes.len(),
            Self::List(values) => values.iter().map(|value| size_of::<Self>() + value.bytes()).sum(),
            Self::Table(fields) => {
                fields.iter().map(|(name, value)| size_of::<Self>() + name.len() + value.bytes()).sum()
            }
            Self::Whole(_) | Self::Fraction(_) | Self::Truth(_) => 0,
        }
    }
}

impl From<&str> for EventValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for EventValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for EventValue {
    fn from(truth: bool) -> Self {
        Self::Truth(truth)
    }
}

impl From<u64> for EventValue {
    fn from(number: u64) -> Self {
        Self::Whole(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u32> for EventValue {
    fn from(number: u32) -> Self {
        Self::Whole(number.into())
    }
}

impl From<u16> for EventValue {
    fn from(number: u16) -> Self {
        Self::Whole(number.into())
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What RabbitMQ calls it, which is its routing key: `queue.created`.
    pub name: &'static str,
    /// When it happened.
    pub at: Timestamp,
    /// What is said of it.
    pub fields: Vec<(String, EventValue)>,
}

impl Event {
    /// One that happens now, done by whoever the running task works for.
    pub(crate) fn now(name: &'static str) -> Self {
        let by = actor().map_or_else(|| "rmq-internal".to_owned(), |actor| actor.user.clone());
        Self::bare(name).with("user_who_performed_action", by)
    }

    /// The same, where it does not matter who did it.
    pub(crate) fn bare(name: &'static str) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self { name, at: Timestamp(u64::try_from(now.as_millis()).unwrap_or(u64::MAX)), fields: Vec::new() }
    }

    /// What it takes in memory, about.
    fn bytes(&self) -> usize {
        let field = |(name, value): &(String, EventValue)| {
            size_of::<(String, EventValue)>() + name.len() + value.bytes()
        };
        size_of::<Self>() + self.fields.iter().map(field).sum::<usize>()
    }

    #[must_use]
    pub(crate) fn with(mut self, field: &str, value: impl Into<EventValue>) -> Self {
        self.fields.push((field.to_owned(), value.into()));
        self
    }
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Event>,
    bytes: usize,
}

/// Events that wait to be published.
#[derive(Debug, Default)]
pub struct Events {
    /// Whether something is bound to the exchange.
    wanted: AtomicBool,
    waiting: Mutex<Waiting>,
    arrived: Notify,
    dropped: AtomicU64,
    pub(crate) in_alarm: AlarmAllowance,
}

impl Events {
    /// Whether anybody wants to know.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Looks whether anybody wants to know from now on.
    pub(crate) fn look_at(&self, topology: &Topology) {
        let wanted = topology.bindings_from(event_exchange()).next().is_some();
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// Has an event wait to be published, if anybody wants to know.
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        if self.is_wanted() {
            self.emit_all(vec![event()]);
        }
    }

    /// The same for several, in their order.
    pub(crate) fn emit_all(&self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let mut dropped = 0;
        let mut waiting = self.waiting.lock();
        for event in events {
            let bytes = event.bytes();
            let is_room = waiting.events.len() < limits::EVENTS_WAITING_MAX
                && waiting.bytes + bytes <= limits::EVENTS_WAITING_BYTES_MAX;
            if is_room {
                waiting.bytes += bytes;
                waiting.events.push_back(event);
            } else {
                dropped += 1;
            }
        }
        drop(waiting);
        self.note_dropped(dropped);
        self.arrived.notify_one();
    }

    /// So many were not told to somebody who wants to know.
    pub(crate) fn note_dropped(&self, count: usize) {
        if count > 0 && self.dropped.fetch_add(count as u64, Ordering::Relaxed) == 0 {
            tracing::warn!(
                "events come faster than they can be published, or queues take none; some are dropped"
            );
        }
    }

    /// Waits for events and takes all that there are. For one task only.
    pub async fn next(&self) -> VecDeque<Event> {
        loop {
            let waiting = std::mem::take(&mut *self.waiting.lock());
            if !waiting.events.is_empty() {
                return waiting.events;
            }
            self.arrived.notified().await;
        }
    }

    /// How many were dropped because too many waited, or because a queue could take none.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Where events are told. Asked for with every change of exchanges.
fn event_exchange() -> &'static ExchangeName {
    static NAME: LazyLock<ExchangeName> = LazyLock::new(|| {
        ExchangeName::at(&VhostName::DEFAULT, EVENT_EXCHANGE).expect("the name of an exchange")
    });
    &NAME
}

impl Broker {
    /// What happened, for one who publishes it, and where it is told.
    #[must_use]
    pub fn events(&self) -> &Arc<Events> {
        &self.shared.events
    }

    /// Has the exchange of events be there, if its virtual host is.
    ///
    /// # Errors
    /// If the log takes no more.
    pub async fn ensure_event_exchange(&self) -> Result<(), QueueError> {
        let decide = |topology: &Topology| -> Result<Plan, std::convert::Infallible> {
            let name = event_exchange();
            if topology.open_vhost(&VhostName::DEFAULT).is_err() || topology.spec(name).is_some() {
                return Ok(Plan::default());
            }
            // Clients may bind to it, and not publish, as with RabbitMQ's.
            let spec = ExchangeSpec {
                kind: ExchangeKind::Plain(Matching::Topic),
                durability: Durability::Durable,
                auto_delete: false,
                internal: true,
                alternate: None,
                arguments: Bytes::new(),
            };
            let record = TopologyRecord::Declare { name: name.clone(), spec };
            Ok(Plan { steps: vec![Step { record, durability: Durability::Durable }] })
        };
        let attempt = || match self.shared.change_topology(&[], decide, Urgency::Synced) {
            Ok(Ok(changed)) => Ok(changed.written),
            Err(error) => Err(ExchangeError::<std::convert::Infallible>::from(self.shared.refused(&error))),
        };
        let begun = self.when_room(attempt).await;
        match self.finish(begun).await {
            Ok(()) => Ok(()),
            Err(ExchangeError::Queue(error)) => Err(error),
            Err(ExchangeError::Refused(never)) => match never {},
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Events {
        let events = Events::default();
        events.wanted.store(true, Ordering::Relaxed);
        events
    }

    #[tokio::test]
    async fn events_come_in_their_order_and_say_who_did_it() {
        let events = wanted();
        events.emit(|| Event::now("queue.created").with("name", "a"));
        let ann = Actor { user: "ann".into(), from: None };
        acting(ann, async { events.emit(|| Event::now("queue.deleted").with("name", "a")) }).await;
        let all = events.next().await;
        let told: Vec<_> = all.iter().map(|event| (event.name, event.fields[0].1.clone())).collect();
        assert_eq!(told, [("queue.created", "rmq-internal".into()), ("queue.deleted", "ann".into())]);
    }

    #[tokio::test]
    async fn who_does_it_is_known_on_other_tasks_and_threads() {
        let ann = Actor { user: "ann".into(), from: None };
        let told = acting(ann, async {
            let (task, thread) = (OnBehalf::now(), OnBehalf::now());
            let on_task = tokio::spawn(task.run(async { OnBehalf::now().to_string() })).await.unwrap();
            let on_thread = std::thread::spawn(|| thread.run_blocking(|| OnBehalf::now().to_string()));
            [on_task, on_thread.join().unwrap()]
        });
        assert_eq!(told.await, ["ann", "ann"]);
        assert_eq!(OnBehalf::now().run(async { OnBehalf::now().to_string() }).await, "the broker");
    }

    #[test]
    fn nothing_is_made_if_nobody_wants_to_know() {
        let events = Events::default();
        events.emit(|| panic!("nobody wants it"));
        assert!(events.waiting.lock().events.is_empty());
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let events = wanted();
        for _ in 0..limits::EVENTS_WAITING_MAX + 3 {
            events.emit(|| Event::bare("alarm.set"));
        }
        assert_eq!((events.waiting.lock().events.len(), events.dropped()), (limits::EVENTS_WAITING_MAX, 3));
    }

    #[tokio::test]
    async fn events_are_bounded_in_bytes() {
        let events = wanted();
        let large = "x".repeat(limits::EVENTS_WAITING_BYTES_MAX / 3);
        for _ in 0..4 {
            events.emit(|| Event::bare("queue.created").with("arguments", large.as_str()));
        }
        assert_eq!((events.next().await.len(), events.dropped()), (2, 2));
        let list = EventValue::List(vec![EventValue::Json(large.clone()), EventValue::Raw(large.into())]);
        let table = EventValue::Table(vec![("a".to_owned(), list)]);
        for _ in 0..2 {
            events.emit(|| Event::bare("queue.created").with("arguments", table.clone()));
        }
        assert_eq!((events.next().await.len(), events.dropped()), (1, 3), "what is inside counts as well");
    }

    #[tokio::test]
    async fn the_log_has_who_and_from_where() {
        assert_eq!(OnBehalf::now().to_string(), "the broker");
        let ann = Actor { user: "a\nn".into(), from: Some("127.0.0.1:5".parse().unwrap()) };
        assert_eq!(acting(ann, async { OnBehalf::now().to_string() }).await, "a\\nn from 127.0.0.1:5");
    }
}
