//! Writing messages to the client: deliveries of its consumers, what it gets one by one, and direct replies.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use nexo_access::Permission;
use nexo_broker::{
    Codecs, Durability, Handed, LeaseTerms, MessageView, Properties as StoredProperties, PropertyFormat,
    QueueError, QueueHandle, SettleMode, Subscription, Terms,
};

use super::arguments::{QueueKind, Traits};
use super::channel::{Acks, Channel, Consumer};
use super::error::Refusal;
use super::firehose::Tracer;
use super::operations::Operation;
use super::output::Output;
use super::queues::clamp;
use super::reply_to::Reply;
use super::session::{ChannelState, Session};
use super::source::{Arrival, News, Source, UnwrittenBatch};
use crate::address::Address;
use crate::codec::method::basic;
use crate::codec::{FrameMax, Properties, PropertiesBuilder, ShortStr, TableBuf};
use crate::headers::native_table;

/// Messages that a connection may hold unacknowledged while memory is short, if its consumers have no limit. The largest
/// limit that `basic.qos` can set.
const UNACKED_FREE: usize = u16::MAX as usize;

/// How often is looked for consumers that were told to stop, if another thread is just waking one: that takes it a few
/// instructions, but it may not have the processor.
const STOP_ATTEMPTS: u32 = 100_000;

impl Session {
    /// Takes in what a subscription brought, and has it wait for more.
    pub(super) fn take_arrival(&mut self, arrival: Arrival) {
        let Arrival { source, subscription, stop, news } = arrival;
        let alive = matches!(self.channels.get(&source.channel), Some(ChannelState::Open(channel))
            if channel.consumers.contains_key(&source.id));
        match news {
            News::Messages(batch) => {
                self.waiting.push_back(batch);
                if alive {
                    self.consumers.push(source, subscription, stop);
                }
            }
            News::Gone if alive => self.consumer_gone(&source),
            // What was on its way to a consumer that was stopped goes back.
            News::Gone | News::Stopped => {}
        }
    }

    /// Ends the subscriptions of consumers that were told to stop: the broker knows them no more. Gives back those without
    /// acknowledgements, which may hold what has left its queue.
    pub(super) fn stop_consumers(&mut self, ids: HashSet<u64>) -> Vec<(Arc<Source>, Subscription)> {
        let mut stopped = self.take_stopped(ids);
        stopped.retain(|(source, _)| self.acks_of(source) == Some(Acks::None));
        stopped
    }

    /// Gives back the subscriptions of consumers that were told to stop.
    pub(super) fn take_stopped(&mut self, mut ids: HashSet<u64>) -> Vec<(Arc<Source>, Subscription)> {
        let mut stopped = Vec::with_capacity(ids.len());
        let mut attempts_left = STOP_ATTEMPTS;
        while !ids.is_empty() && !self.consumers.is_empty() && attempts_left > 0 {
            // Those that were told to stop do not wait for anything, but another thread may be about to wake one.
            let Some(arrival) = self.consumers.next_ready() else {
                attempts_left -= 1;
                std::thread::yield_now();
                continue;
            };
            // One that is gone does not come to be stopped.
            if matches!(arrival.news, News::Stopped | News::Gone) {
                ids.remove(&arrival.source.id);
            }
            match arrival {
                Arrival { source, subscription, news: News::Stopped, .. } => {
                    stopped.push((source, subscription));
                }
                arrival => self.take_arrival(arrival),
            }
        }
        debug_assert!(ids.is_empty(), "a consumer that was told to stop still waits");
        stopped
    }

    fn acks_of(&self, source: &Source) -> Option<Acks> {
        let Some(ChannelState::Open(channel)) = self.channels.get(&source.channel) else { return None };
        channel.consumers.get(&source.id).map(|consumer| consumer.acks)
    }

    /// Writes what waits, as long as the client reads.
    pub(super) fn write_waiting(&mut self, now: Instant) {
        self.now = now;
        if self.waiting.is_empty() || !self.out.has_room() {
            return;
        }
        self.look_for_traces();
        let mut spare = self.spare_unacked();
        let tracer = self.traces.then_some(Tracer {
            broker: &self.shared.broker,
            vhost: &self.vhost,
            shown: &self.shown,
        });
        while self.out.has_room()
            && let Some(mut batch) = self.waiting.pop_front()
        {
            let Some(ChannelState::Open(channel)) = self.channels.get_mut(&batch.source.channel) else {
                continue;
            };
            let before = channel.unacked.len();
            let terms = WriteTerms { frame_max: self.limits.frame_max, room: self.out.deliveries_max(), now };
            write_some(channel, &mut batch, &mut self.out, terms, tracer.as_ref());
            spare = spare.saturating_sub(channel.unacked.len() - before);
            if let Some(consumer) = channel.consumers.get_mut(&batch.source.id) {
                self.withholds |= withhold(consumer, &mut spare);
            }
            if !batch.rest.as_slice().is_empty() && channel.consumers.contains_key(&batch.source.id) {
                self.waiting.push_front(batch);
                return;
            }
        }
    }

    /// Looks again at consumers that wait until there is memory for what they hold.
    pub(super) fn give_withheld(&mut self) {
        self.withholds = false;
        let mut spare = self.spare_unacked();
        for channel_state in self.channels.values_mut() {
            let ChannelState::Open(channel) = channel_state else { continue };
            for consumer in channel.consumers.values_mut() {
                self.withholds |= withhold(consumer, &mut spare);
            }
        }
    }

    /// How many more messages the connection may hold without a limit: any number, as long as there is memory.
    fn spare_unacked(&self) -> usize {
        if !self.shared.broker.is_memory_short() {
            return usize::MAX;
        }
        let held = |channel_state: &ChannelState| match channel_state {
            ChannelState::Open(channel) => channel.unsettled(),
            ChannelState::Closing => 0,
        };
        UNACKED_FREE.saturating_sub(self.channels.values().map(held).sum())
    }

    /// Writes all that a consumer without acknowledgements was given: it is settled and would be lost.
    pub(super) fn write_all_of(&mut self, id: u64) {
        let Self { waiting, channels, out, limits, now, shared, vhost, shown, traces, .. } = self;
        let tracer = traces.then_some(Tracer { broker: &shared.broker, vhost, shown });
        let terms = WriteTerms { frame_max: limits.frame_max, room: usize::MAX, now: *now };
        for batch in waiting.iter_mut().filter(|batch| batch.source.id == id) {
            let Some(ChannelState::Open(channel)) = channels.get_mut(&batch.source.channel) else { return };
            while !batch.rest.as_slice().is_empty() {
                let before = batch.rest.len();
                write_some(channel, batch, out, terms, tracer.as_ref());
                if batch.rest.len() == before {
                    break;
                }
            }
        }
    }

    pub(super) fn get(&mut self, number: u16, get: &basic::Get<'_>) -> Result<(), Refusal> {
        let name = self.named(number, &get.queue)?;
        self.may_queue(Permission::Read, &name)?;
        let queue = self.queue(number, &get.queue)?;
        let settle = if get.no_ack { SettleMode::Automatic } else { SettleMode::Manual };
        let terms = Terms { lease: LeaseTerms::Session, settle, ..Terms::default() };
        self.perform(Operation::Get { channel: number, queue, terms });
        Ok(())
    }

    /// Writes what a client gets, if there was something.
    pub(super) fn write_got(
        &mut self,
        number: u16,
        queue: QueueHandle,
        terms: Terms,
        got: Result<Option<(Handed, u64)>, QueueError>,
    ) -> Result<(), Refusal> {
        let Some((handed, left)) = got? else {
            self.answer(number, &basic::GetEmpty { cluster_id: ShortStr::EMPTY });
            return Ok(());
        };
        let traits = Traits::of(&queue.config());
        let timeout = self.shared.consumer_timeout(traits);
        self.note_timeout(timeout);
        let mut source = Source::new(self.new_serial(), number, queue, traits.kind);
        source.timeout = timeout;
        let source = Arc::new(source);
        let (frame_max, now) = (self.limits.frame_max, self.now);
        let Some(ChannelState::Open(channel)) = self.channels.get_mut(&number) else { return Ok(()) };
        let Some((view, stored)) = view(&source, &handed) else {
            self.answer(number, &basic::GetEmpty { cluster_id: ShortStr::EMPTY });
            return Ok(());
        };
        let tag = channel.next_tag();
        let count = (source.kind == QueueKind::Quorum).then(|| handed.attempts.saturating_sub(1));
        let head = Head::of(&view, &source.queue, count);
        let method = basic::GetOk {
            delivery_tag: tag,
            redelivered: handed.attempts > 1,
            exchange: ShortStr::clipped(head.exchange),
            routing_key: ShortStr::clipped(head.routing_key),
            message_count: clamp(left),
        };
        self.out.stored_message(number, &method, &head.properties, (view.body, stored), frame_max);
        if self.shared.broker.firehose().is_on(&self.vhost) {
            let tracer = Tracer { broker: &self.shared.broker, vhost: &self.vhost, shown: &self.shown };
            tracer.delivered(number, source.queue.name().as_str(), handed.attempts > 1, &head, view.body);
        }
        if terms.settle == SettleMode::Manual {
            channel.unacked.push(tag, &source, handed.offset, handed.attempts, now);
        }
        channel.shown.got.add(1);
        channel.show_deliveries();
        Ok(())
    }

    pub(super) fn write_reply(&mut self, reply: &Reply) {
        let Some(ChannelState::Open(channel)) = self.channels.get_mut(&reply.channel) else { return };
        let Some(replies) = channel.replies.as_ref().filter(|_| channel.serial == reply.serial) else {
            return;
        };
        let method = basic::Deliver {
            consumer_tag: ShortStr::clipped(&replies.tag),
            // An answer has no place in the channel's count of deliveries.
            delivery_tag: 1,
            redelivered: false,
            exchange: ShortStr::EMPTY,
            routing_key: ShortStr::clipped(&reply.routing_key),
        };
        let (body, max) = (&reply.body, self.limits.frame_max);
        self.out.stored_message(reply.channel, &method, &reply.properties, (body, body), max);
    }
}

/// How messages are written.
#[derive(Clone, Copy, Debug)]
struct WriteTerms {
    frame_max: FrameMax,
    /// As long as less than this waits to be written.
    room: usize,
    now: Instant,
}

/// Writes a batch, as long as there is room.
fn write_some(
    channel: &mut Channel,
    batch: &mut UnwrittenBatch,
    out: &mut Output,
    terms: WriteTerms,
    tracer: Option<&Tracer<'_>>,
) {
    let WriteTerms { frame_max, room, now } = terms;
    let number = batch.source.channel;
    // A cancelled consumer is not there any more: the rest goes back.
    let Some(consumer) = channel.consumers.get_mut(&batch.source.id) else { return };
    let (before, mut count) = (out.len(), 0u32);
    while out.len() < room
        && let Some(handed) = batch.rest.next()
    {
        let Some((view, stored)) = view(&batch.source, &handed) else { continue };
        channel.delivered += 1;
        let tag = channel.delivered;
        let attempts_before = handed.attempts.saturating_sub(1);
        let count_told =
            (batch.source.kind == QueueKind::Quorum && attempts_before > 0).then_some(attempts_before);
        let head = Head::of(&view, &batch.source.queue, count_told);
        let method = basic::Deliver {
            consumer_tag: ShortStr::clipped(&consumer.tag),
            delivery_tag: tag,
            redelivered: attempts_before > 0,
            exchange: ShortStr::clipped(head.exchange),
            routing_key: ShortStr::clipped(head.routing_key),
        };
        out.stored_message(number, &method, &head.properties, (view.body, stored), frame_max);
        if let Some(tracer) = tracer {
            let queue = batch.source.queue.name().as_str();
            tracer.delivered(number, queue, attempts_before > 0, &head, view.body);
        }
        count += 1;
        if consumer.acks == Acks::Wanted {
            channel.unacked.push(tag, &batch.source, handed.offset, handed.attempts, now);
        }
    }
    if batch.source.prefetch == 0 && count > 0 {
        consumer.withheld += consumer.window.written(count, out.len() - before);
    }
    channel.show_deliveries();
}

/// Lets a consumer without a limit have more, unless its connection holds so much that it has none to spare. `true` if it
/// has to wait.
fn withhold(consumer: &mut Consumer, spare: &mut usize) -> bool {
    if consumer.withheld == 0 || (consumer.acks == Acks::Wanted && *spare == 0) {
        return consumer.withheld > 0;
    }
    let more = std::mem::take(&mut consumer.withheld);
    *spare = spare.saturating_sub(more as usize);
    let source = &consumer.source;
    if let Some(id) = source.subscribed().consumer {
        source.queue.add_credit(id, more);
    }
    false
}

/// The message itself, and the bytes that it lies in. One that cannot be read stays with the connection.
fn view<'a>(source: &Source, handed: &'a Handed) -> Option<(MessageView<'a>, &'a Bytes)> {
    let stored = handed.payload.as_ref()?;
    match MessageView::parse(stored) {
        Ok(view) => Some((view, stored)),
        Err(error) => {
            let (queue, offset) = (source.queue.name().in_full(), handed.offset);
            tracing::error!(%queue, %offset, %error, "a stored message cannot be read");
            None
        }
    }
}

/// What stands before a message's body.
pub(super) struct Head<'a> {
    pub(super) exchange: &'a [u8],
    pub(super) routing_key: &'a [u8],
    pub(super) properties: Cow<'a, [u8]>,
}

impl<'a> Head<'a> {
    /// With `delivery_count` the message tells how often it came back.
    pub(super) fn of(message: &MessageView<'a>, queue: &'a QueueHandle, delivery_count: Option<u32>) -> Self {
        let own = (message.format == PropertyFormat::Amqp).then(|| Address::split(message.properties));
        let mut head = match own.flatten() {
            Some((address, raw)) => Self {
                exchange: address.exchange,
                routing_key: address.routing_key,
                properties: Cow::Borrowed(raw),
            },
            None => Self {
                exchange: b"",
                routing_key: queue.name().as_str().as_bytes(),
                properties: Cow::Owned(translated_properties(message, queue.codecs())),
            },
        };
        if let Some(count) = delivery_count {
            head.tell_count(count);
        }
        head
    }

    fn tell_count(&mut self, count: u32) {
        let Ok(properties) = Properties::parse(&self.properties) else { return };
        let mut headers = properties.headers().map(TableBuf::from).unwrap_or_default();
        headers.set(ShortStr::from_static("x-delivery-count"), i64::from(count));
        let written = PropertiesBuilder::from_base(properties).headers(headers.as_table()).to_vec();
        self.properties = Cow::Owned(written);
    }
}

/// The properties of a message that came another way.
fn translated_properties(message: &MessageView<'_>, codecs: &Codecs) -> Vec<u8> {
    let bytes = Bytes::copy_from_slice(message.properties);
    let headers = codecs.headers(&StoredProperties { format: message.format, bytes });
    let mode = match message.durability {
        Durability::Durable => 2,
        Durability::Transient => 1,
    };
    let table = native_table(&headers.unwrap_or_default());
    let mut builder = PropertiesBuilder::new().delivery_mode(mode).priority(message.priority.0);
    if !table.as_table().is_empty() {
        builder = builder.headers(table.as_table());
    }
    builder.to_vec()
}
