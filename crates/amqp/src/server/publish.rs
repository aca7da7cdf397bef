//! `basic.publish`: what a message asks for, where it goes, and what becomes of one that goes nowhere.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use nexo_broker::{
    BodyBuffer, Draft, Durability, OpenChannel, PackedBatch, PriorityCap, PropertyFormat, SHARE_BYTES_MIN,
    Written,
};
use nexo_types::{DedupId, Millis, Priority};

use super::access;
use super::arguments::QueueKind;
use super::channel::{Channel, Mode};
use super::content::{Publish, Whole};
use super::error::Refusal;
use super::firehose::Tracer;
use super::intake::Hold;
use super::message_facts::Facts;
use super::operations::Wait;
use super::outbox::{Flushed, Outbox, Publisher};
use super::reply_to::{REPLY_TO, REPLY_TO_PREFIX};
use super::routing::Target;
use super::session::{ChannelState, Session};
use crate::codec::method::basic;
use crate::codec::{Properties, PropertiesBuilder, ReplyCode, ShortStr};
use crate::headers::MessageHeaders;

/// After a push of this many messages, work on them goes on in parallel. With fewer, waking a thread takes longer.
const HANDOVER_MESSAGES: usize = 64;

/// A publish with its content.
#[derive(Debug)]
pub(super) struct Incoming<'a> {
    pub(super) exchange: &'a [u8],
    pub(super) routing_key: &'a [u8],
    pub(super) mandatory: bool,
    pub(super) immediate: bool,
    pub(super) properties: &'a [u8],
    pub(super) body: Body<'a>,
}

/// Where a body lies.
#[derive(Debug)]
pub(super) enum Body<'a> {
    /// Among what was read.
    Read(&'a [u8]),
    /// By itself. It may be taken; it is empty then.
    Received(&'a mut BodyBuffer),
}

impl Body<'_> {
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Read(body) => body,
            Self::Received(body) => body.as_slice(),
        }
    }

    fn take(&mut self) -> BodyBuffer {
        match self {
            Self::Read(body) => BodyBuffer::copy_of(body),
            Self::Received(body) => std::mem::take(body),
        }
    }
}

impl Incoming<'_> {
    /// Kept beyond the buffer that it came in.
    fn take_whole(&mut self) -> Whole {
        let own = Bytes::copy_from_slice;
        Whole {
            publish: Publish {
                exchange: own(self.exchange),
                routing_key: own(self.routing_key),
                mandatory: self.mandatory,
                immediate: self.immediate,
            },
            properties: own(self.properties),
            body: self.body.take(),
            hold: None,
        }
    }
}

impl Whole {
    pub(super) fn as_incoming(&mut self) -> Incoming<'_> {
        Incoming {
            exchange: &self.publish.exchange,
            routing_key: &self.publish.routing_key,
            mandatory: self.publish.mandatory,
            immediate: self.publish.immediate,
            properties: &self.properties,
            body: Body::Received(&mut self.body),
        }
    }
}

impl Session {
    /// Takes a publish in: now, or when its transaction commits.
    /// `hold` is the memory that it took while it came.
    pub(super) fn publish(
        &mut self,
        number: u16,
        incoming: &mut Incoming<'_>,
        hold: Option<Hold>,
    ) -> Result<(), Refusal> {
        if incoming.immediate {
            return Err(Refusal::new(ReplyCode::NotImplemented, "immediate=true"));
        }
        let Some(ChannelState::Open(channel)) = self.channels.get_mut(&number) else { return Ok(()) };
        if !channel.rights.knows(&self.identity, incoming.exchange) {
            let rights = &mut channel.rights;
            access::check_publish(&self.shared.broker, &self.identity, &self.vhost, rights, incoming)?;
        }
        if !matches!(channel.mode, Mode::Transaction(_)) {
            return self.publish_now(number, incoming);
        }
        // What is wrong with it is said now, not at the commit.
        let properties = Properties::parse(incoming.properties)?;
        let facts = Facts::of(&properties, self.user.as_str());
        let copies = facts.as_ref().map(|facts| facts.copies.clone()).unwrap_or_default();
        let headers = MessageHeaders::new(properties);
        let (exchange, key) = (incoming.exchange, incoming.routing_key);
        channel.route.find(&self.shared.broker, &mut self.targets, exchange, key, &copies, &headers)?;
        facts?;
        self.published_nowhere = true;
        match &mut channel.mode {
            Mode::Transaction(transaction) => {
                self.intake.progress = self.now;
                channel.shown.uncommitted.add(1);
                if let Some(bytes) = transaction.publish(incoming.take_whole(), hold, &self.intake)? {
                    self.intake.wait(number, channel.serial, bytes);
                }
                Ok(())
            }
            Mode::Plain | Mode::Confirm(_) => Ok(()),
        }
    }

    pub(super) fn publish_now(&mut self, number: u16, incoming: &mut Incoming<'_>) -> Result<(), Refusal> {
        // A copy says where the message goes, and takes its time.
        if !self.traces && self.publish_like_the_last(number, incoming) {
            return Ok(());
        }
        let properties = Properties::parse(incoming.properties)?;
        let Some(ChannelState::Open(channel)) = self.channels.get_mut(&number) else { return Ok(()) };
        let facts = Facts::of(&properties, self.user.as_str());
        let copies: &[&[u8]] = facts.as_ref().map_or(&[], |facts| &facts.copies);
        let headers = MessageHeaders::new(properties);
        let broker = &self.shared.broker;
        let reply_address = rewritten_reply_to(channel, &properties);
        let (exchange, key) = (incoming.exchange, incoming.routing_key);
        let found = channel.route.find(broker, &mut self.targets, exchange, key, copies, &headers)?;
        if !found.is_whole && broker.is_replicated() {
            // Its queues may have been thrown away a moment ago: a confirm would tell a client that there are none.
            let began = broker.begin_look();
            if !broker.is_serving() {
                return Err(Refusal::new(ReplyCode::InternalError, "this node leads no more; connect again"));
            }
            channel.route.forget();
            let found = channel.route.find(broker, &mut self.targets, exchange, key, copies, &headers)?;
            // Who neither wants confirms nor commits is told nothing.
            if !found.is_whole && !matches!(channel.mode, Mode::Plain) {
                self.outbox.goes_nowhere(began);
            }
        }
        let route = channel.route.last();
        let facts = facts?;
        let reply_address = reply_address?;
        if self.traces {
            Tracer { broker, vhost: &self.vhost, shown: &self.shown }.published(
                number,
                incoming,
                route.targets,
            );
        }

        let mut stored = Cow::Borrowed(incoming.properties);
        let delay = Some(facts.delay).filter(|delay| route.delayed && *delay > Millis::ZERO);
        if facts.has_blind_copies || delay.is_some() || reply_address.is_some() {
            stored = Cow::Owned(rewritten(&properties, &facts, delay, reply_address.as_deref()));
        }
        let (serial, mode, shown) = (channel.serial, &mut channel.mode, &channel.shown);
        let publisher = number_publish(number, serial, mode, shown, &mut self.outbox);
        let mut is_routed = !route.targets.is_empty();
        let draft = Draft {
            format: PropertyFormat::Amqp,
            address: route.address,
            properties: &stored,
            priority: Priority(facts.priority),
            priority_cap: PriorityCap::Queue,
            delay: facts.delay,
            ttl: facts.ttl,
            dedup: facts.dedup.as_ref(),
            durability: facts.durability,
            ..Draft::default()
        };
        self.published_nowhere |= !is_routed;
        let is_reply = exchange.is_empty() && key.starts_with(REPLY_TO_PREFIX.as_bytes());
        if is_reply {
            let body = incoming.body.as_slice();
            self.outbox.add_all(route.targets, &Draft { body, ..draft }, publisher);
        } else {
            add_taking_body(&mut self.outbox, route.targets, draft, &mut incoming.body, publisher);
        }
        if reply_address.is_none() {
            self.last_asks.note(incoming.properties, &facts);
        }
        if is_reply {
            is_routed |= self.shared.replies.send(&self.vhost, key, &stored, incoming.body.as_slice());
        }
        if !is_routed && incoming.mandatory {
            if let Some(ChannelState::Open(channel)) = self.channels.get(&number) {
                channel.shown.returned.add(1);
            }
            let returned = basic::Return {
                reply_code: ReplyCode::NoRoute.number(),
                reply_text: ShortStr::from_static(ReplyCode::NoRoute.name()),
                exchange: ShortStr::clipped(exchange),
                routing_key: ShortStr::clipped(key),
            };
            let (body, max) = (incoming.body.as_slice(), self.limits.frame_max);
            self.out.message(number, &returned, incoming.properties, body, max);
        }
        Ok(())
    }

    /// Takes a publish in if it goes where the channel's last one went and asks for what the last one asked for, as
    /// nearly all do.
    fn publish_like_the_last(&mut self, number: u16, incoming: &mut Incoming<'_>) -> bool {
        let Some(asks) = self.last_asks.recall(incoming.properties) else { return false };
        let Some(ChannelState::Open(channel)) = self.channels.get_mut(&number) else { return false };
        let generation = self.shared.broker.routes_generation();
        let (exchange, key) = (incoming.exchange, incoming.routing_key);
        let Some(route) = channel.route.recall(generation, exchange, key) else { return false };
        if route.targets.is_empty() {
            return false;
        }
        let (serial, mode, shown) = (channel.serial, &mut channel.mode, &channel.shown);
        let publisher = number_publish(number, serial, mode, shown, &mut self.outbox);
        let draft = Draft {
            format: PropertyFormat::Amqp,
            address: route.address,
            properties: incoming.properties,
            priority: Priority(asks.priority),
            priority_cap: PriorityCap::Queue,
            ttl: asks.ttl,
            durability: asks.durability,
            ..Draft::default()
        };
        add_taking_body(&mut self.outbox, route.targets, draft, &mut incoming.body, publisher);
        true
    }

    /// Pushes what was published; gives back what to wait for, unless something is left. That stays, and the connection is
    /// not read from meanwhile: until there is room if there is an alarm, otherwise until others have had their turn and
    /// the disk has caught up ([`Session::held_up`]).
    pub(super) fn flush_publishes(&mut self) -> Option<Published> {
        if std::mem::take(&mut self.published_nowhere)
            && let Some(alarm) = self.shared.broker.alarms().first()
        {
            // RabbitMQ blocks whoever publishes, wherever it goes.
            self.block(alarm);
        }
        if self.held_up.is_some() {
            return None;
        }
        if let Some(flushed) = self.flushed.take() {
            return self.finish_flush(flushed);
        }
        if self.outbox.is_empty() {
            let published = Published { look: self.outbox.take_look(), ..Published::NOTHING };
            self.note_published(published);
            return Some(published);
        }
        let flushed = match self.outbox.flush_slice(&self.shared.broker, self.pace.pacing()) {
            Ok(Some(flushed)) => flushed,
            Ok(None) => {
                if let Some(queue) = self.outbox.refusing() {
                    self.note_behind(queue.as_ref());
                }
                self.hold_up(if self.outbox.is_busy() { Wait::BusyQueue } else { Wait::CatchUp });
                return None;
            }
            Err(alarm) => {
                self.block(&alarm);
                return None;
            }
        };
        self.note_caught_up();
        self.finish_flush(flushed)
    }

    /// Everything is pushed. Who is told that a message was refused finds the dead letter where it goes.
    fn finish_flush(&mut self, mut flushed: Flushed) -> Option<Published> {
        if !flushed.dead_letters.is_empty() {
            self.hold_up(Wait::DeadLetters(std::mem::take(&mut flushed.dead_letters)));
            self.flushed = Some(flushed);
            return None;
        }
        let refused_commit = flushed.refused.iter().any(|publisher| publisher.tag == Publisher::COMMITTED);
        for run in flushed.runs {
            let of_run = |publisher: &&Publisher| publisher.serial == run.serial && publisher.tag > 0;
            let refused = flushed.refused.iter().filter(of_run).map(|publisher| publisher.tag).collect();
            self.confirms.push(run, refused, flushed.written, flushed.look);
        }
        self.confirm_ready(None);
        if flushed.pushed.messages >= HANDOVER_MESSAGES {
            self.hands_over = true;
        }
        self.pace.check(&self.shared.broker, flushed.pushed);
        let published = Published { written: flushed.written, look: flushed.look, refused_commit };
        self.note_published(published);
        Some(published)
    }

    /// A commit that waits for room may have been flushed on the way.
    fn note_published(&mut self, published: Published) {
        if let Some(commit) = &mut self.unfinished {
            commit.published = commit.published.and(published);
        }
    }
}

/// What came of publishes when all of them are pushed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Published {
    /// What to wait for before somebody is told.
    pub(super) written: Written,
    /// Some of it went nowhere, which was found in a look that began then.
    pub(super) look: Option<Written>,
    /// Whether one of a transaction was refused.
    pub(super) refused_commit: bool,
}

impl Published {
    pub(super) const NOTHING: Self = Self { written: Written::NOTHING, look: None, refused_commit: false };

    /// Both.
    pub(super) fn and(self, other: Self) -> Self {
        let refused_commit = self.refused_commit || other.refused_commit;
        Self { written: self.written.and(other.written), look: self.look.or(other.look), refused_commit }
    }
}

/// Adds a message for all its queues. A large body that was received by itself is not copied if all of them take the message
/// in the same form.
#[inline]
fn add_taking_body(
    outbox: &mut Outbox,
    targets: &[Arc<Target>],
    message: Draft<'_>,
    body: &mut Body<'_>,
    publisher: Publisher,
) {
    if let (Body::Received(received), [target]) = (&mut *body, targets)
        && outbox.takes_packed()
    {
        match PackedBatch::of_received(&for_target(message, target), std::mem::take(received)) {
            Ok(packed) => return outbox.add_packed(target, packed, publisher),
            Err(back) => **received = back,
        }
    }
    if let (Body::Received(received), [first, _, ..]) = (&mut *body, targets)
        && received.len() >= SHARE_BYTES_MIN
        && is_alike(&message, targets)
    {
        match PackedBatch::of_received(&shared_form(message, first), std::mem::take(received)) {
            Ok(packed) => return outbox.add_shared(targets, packed, publisher),
            Err(back) => **received = back,
        }
    }
    outbox.add_all(targets, &Draft { body: body.as_slice(), ..message }, publisher);
}

/// Whether all these queues take a message in the same form.
pub(super) fn is_alike(message: &Draft<'_>, targets: &[Arc<Target>]) -> bool {
    let form = |target: &Arc<Target>| {
        let draft = shared_form(*message, target);
        (draft.priority, draft.durability)
    };
    targets.split_first().is_none_or(|(first, rest)| {
        let first = form(first);
        rest.iter().all(|target| form(target) == first)
    })
}

/// Notes a publish that is to be confirmed, if the channel wants that.
#[inline]
fn number_publish(
    channel: u16,
    serial: u64,
    mode: &mut Mode,
    shown: &OpenChannel,
    outbox: &mut Outbox,
) -> Publisher {
    shown.published.add(1);
    match mode {
        Mode::Confirm(last) => {
            *last += 1;
            shown.to_confirm.set(*last);
            outbox.confirm(channel, serial, *last);
            Publisher { serial, tag: *last }
        }
        Mode::Plain => Publisher { serial, tag: 0 },
        Mode::Transaction(_) => Publisher { serial, tag: Publisher::COMMITTED },
    }
}

/// A message as this queue takes it.
pub(super) fn for_target<'a>(draft: Draft<'a>, target: &Target) -> Draft<'a> {
    let durable = draft.durability == Durability::Durable && target.queue.durability() == Durability::Durable;
    let durable = durable || target.traits.kind == QueueKind::Quorum;
    Draft { durability: if durable { Durability::Durable } else { Durability::Transient }, ..draft }
}

/// A message as this queue shares it with others that have the same highest priority: a queue that had to lower the
/// priority would need a copy of its own.
pub(super) fn shared_form<'a>(draft: Draft<'a>, target: &Target) -> Draft<'a> {
    let draft = for_target(draft, target);
    Draft { priority: draft.priority.min(target.traits.max_priority), ..draft }
}

/// The client asks for direct replies: they come to the name that its channel was given.
fn rewritten_reply_to(channel: &Channel, properties: &Properties<'_>) -> Result<Option<Bytes>, Refusal> {
    match properties.reply_to() {
        Some(name) if name.as_bytes() == REPLY_TO => match &channel.replies {
            Some(replies) => Ok(Some(replies.name.clone())),
            None => Err(Refusal::precondition("fast reply consumer does not exist")),
        },
        Some(_) | None => Ok(None),
    }
}

/// The properties as they are kept: without blind copies, with the sign of a delay turned so that the message is not
/// delayed again, and with the place for replies.
pub(super) fn rewritten(
    properties: &Properties<'_>,
    facts: &Facts<'_>,
    delay: Option<Millis>,
    reply_to: Option<&[u8]>,
) -> Vec<u8> {
    let mut headers = properties.headers().map(crate::codec::TableBuf::from);
    if let Some(headers) = &mut headers {
        if facts.has_blind_copies {
            headers.remove(ShortStr::from_static("BCC"));
        }
        if let Some(Millis(delay)) = delay {
            let delay = i64::try_from(delay).unwrap_or(i64::MAX);
            headers.set(ShortStr::from_static("x-delay"), -delay);
        }
    }
    let mut builder = PropertiesBuilder::from_base(*properties);
    if let Some(headers) = &headers {
        builder = builder.headers(headers.as_table());
    }
    if let Some(name) = reply_to {
        builder = builder.reply_to(ShortStr::clipped(name));
    }
    builder.to_vec()
}

/// An id by which a message is recognised, if the header holds one.
pub(super) fn dedup_id(text: &str) -> Option<DedupId> {
    DedupId::new(text).ok()
}
