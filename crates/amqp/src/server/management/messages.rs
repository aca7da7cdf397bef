//! One message in, or some out, for the management API.

use std::borrow::Cow;

use bytes::Bytes;
use nexo_access::Permission;
use nexo_broker::{
    Broker, LeaseTerms, MessageView, NewMessage, PriorityCap, Properties as StoredProperties, PropertyFormat,
    PushError, QueueHandle, Settle, SettleMode, Terms,
};
use nexo_types::{ExchangeName, Millis, Offset, Priority, QueueName};
use serde_json::Value as Json;

use super::super::access::check_publish_once;
use super::super::arguments::{QueueKind, Traits};
use super::super::deliver::Head;
use super::super::error::Refusal;
use super::super::message_facts::Facts;
use super::super::publish::{for_target, rewritten};
use super::super::routing::{RouteCache, Targets};
use super::declare::shared_queue;
use super::json::properties_json;
use super::{By, Refused, settled};
use crate::codec::{Properties, ReplyCode, SHORT_STR_BYTES_MAX};
use crate::headers::MessageHeaders;

/// A message that somebody wants to publish.
#[derive(Clone, Debug)]
pub struct Publish<'a> {
    /// The exchange.
    pub exchange: &'a ExchangeName,
    /// The routing key.
    pub routing_key: &'a str,
    /// Its properties: see [`properties`](super::properties).
    pub properties: &'a [u8],
    /// Its body.
    pub body: Bytes,
}

/// What becomes of messages that somebody gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckMode {
    /// They go back to their places.
    Requeue,
    /// They are taken.
    Take,
    /// They are rejected, and go back to their places.
    RejectRequeue,
    /// They are rejected: dead letters, where the queue has a place for those.
    Reject,
}

/// A message that somebody got.
#[derive(Clone, Debug)]
pub struct Got {
    /// The exchange that it was published to.
    pub exchange: String,
    /// Its routing key.
    pub routing_key: String,
    /// Whether it was delivered before.
    pub redelivered: bool,
    /// How many messages were left behind it.
    pub left: u64,
    /// Its properties, in the words of the management API.
    pub properties: Json,
    /// Its body.
    pub body: Bytes,
}

/// Publishes one message. `true` if a queue has it, as safely as that promises.
///
/// # Errors
/// As `basic.publish` refuses it.
pub async fn publish(by: By<'_>, asked: Publish<'_>) -> Result<bool, Refused> {
    let routed = route_and_push(by, &asked).await;
    settled(by.broker, routed).await
}

async fn route_and_push(by: By<'_>, asked: &Publish<'_>) -> Result<bool, Refusal> {
    let broker = by.broker;
    if asked.routing_key.len() > SHORT_STR_BYTES_MAX {
        let text = format!("a routing key has at most {SHORT_STR_BYTES_MAX} bytes");
        return Err(Refusal::precondition(text));
    }
    let (key, user) = (asked.routing_key.as_bytes(), by.identity.name().as_str());
    check_publish_once(by.rights(), asked.exchange, key, asked.properties)?;
    let messages = messages(broker, user, asked)?;
    let mut is_taken = false;
    for (queue, message) in messages {
        for answer in broker.push(&queue, vec![message]).await? {
            match answer {
                Ok(_) => is_taken = true,
                // As RabbitMQ, which is told no more than that by its queue.
                Err(PushError::Full { .. }) => {}
                Err(error @ (PushError::BodyTooLarge { .. } | PushError::TimeTooLong { .. })) => {
                    return Err(Refusal::precondition(error.to_string()));
                }
                Err(error @ PushError::Unavailable { .. }) => {
                    return Err(Refusal::new(ReplyCode::InternalError, error.to_string()));
                }
            }
        }
    }
    Ok(is_taken)
}

/// The message as each queue takes it that it goes to.
fn messages(
    broker: &Broker,
    user: &str,
    asked: &Publish<'_>,
) -> Result<Vec<(QueueName, NewMessage)>, Refusal> {
    let read = Properties::parse(asked.properties)?;
    let facts = Facts::of(&read, user)?;
    let (mut cache, mut known) = (RouteCache::default(), Targets::default());
    known.vhost = asked.exchange.vhost();
    let (exchange, key) = (asked.exchange.as_str().as_bytes(), asked.routing_key.as_bytes());
    let route = cache.find(broker, &mut known, exchange, key, &facts.copies, &MessageHeaders::new(read))?;
    let delay = Some(facts.delay).filter(|delay| route.delayed && *delay > Millis::ZERO);
    let stored = if facts.has_blind_copies || delay.is_some() {
        Cow::Owned(rewritten(&read, &facts, delay, None))
    } else {
        Cow::Borrowed(asked.properties)
    };
    let stored = Bytes::copy_from_slice(&stored);
    let message = |target: &super::super::routing::Target| NewMessage {
        body: asked.body.clone(),
        properties: StoredProperties { format: PropertyFormat::Amqp, bytes: stored.clone() },
        address: route.address.clone(),
        priority: Priority(facts.priority),
        priority_cap: PriorityCap::Queue,
        delay: facts.delay,
        ttl: facts.ttl,
        dedup: facts.dedup.clone(),
        durability: for_target(
            nexo_broker::Draft { durability: facts.durability, ..nexo_broker::Draft::default() },
            target,
        )
        .durability,
        ..NewMessage::default()
    };
    Ok(route.targets.iter().map(|target| (target.queue.name().clone(), message(target))).collect())
}

/// Messages that are out, and go back unless something else is said of them: whoever asked for them may go away.
struct Held {
    queue: QueueHandle,
    held: Vec<(Offset, u32)>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.held.is_empty() {
            // A queue that is gone has taken them with it.
            let _ = self.queue.settle_eventually(&self.held, Settle::Requeue);
        }
    }
}

/// Gets up to `count` messages, or as many as have about `bytes_max` bytes together.
///
/// # Errors
/// As `basic.get` refuses it.
pub async fn get(
    by: By<'_>,
    name: &QueueName,
    count: usize,
    bytes_max: usize,
    ack_mode: AckMode,
) -> Result<Vec<Got>, Refused> {
    let got = get_some(by, name, count, bytes_max, ack_mode).await;
    settled(by.broker, got).await
}

async fn get_some(
    by: By<'_>,
    name: &QueueName,
    count: usize,
    bytes_max: usize,
    ack_mode: AckMode,
) -> Result<Vec<Got>, Refusal> {
    by.rights().may_queue(Permission::Read, name)?;
    let queue = shared_queue(by.broker, name)?;
    let kind = Traits::of(&queue.config()).kind;
    let terms = Terms { lease: LeaseTerms::Session, settle: SettleMode::Manual, ..Terms::default() };
    let mut out = Held { queue: queue.clone(), held: Vec::new() };
    let (mut got, mut bytes) = (Vec::new(), 0);
    while got.len() < count && bytes < bytes_max {
        let Some((handed, left)) = queue.get(terms).await? else { break };
        out.held.push((handed.offset, handed.attempts));
        let Some(stored) = &handed.payload else { break };
        let Ok(view) = MessageView::parse(stored) else { break };
        bytes += stored.len();
        let told = (kind == QueueKind::Quorum).then(|| handed.attempts.saturating_sub(1));
        let head = Head::of(&view, &queue, told);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        got.push(Got {
            exchange: text(head.exchange),
            routing_key: text(head.routing_key),
            redelivered: handed.attempts > 1,
            left,
            properties: properties_json(&Properties::parse(&head.properties).unwrap_or(Properties::EMPTY)),
            body: stored.slice_ref(view.body),
        });
    }
    let what = match ack_mode {
        AckMode::Requeue | AckMode::RejectRequeue => Settle::Requeue,
        AckMode::Take => Settle::Ack,
        AckMode::Reject => Settle::Reject,
    };
    let mut settling = queue.begin_settle(&out.held, what, None)?;
    out.held.clear();
    settling.done().await?;
    Ok(got)
}
