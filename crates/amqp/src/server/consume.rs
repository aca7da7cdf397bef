//! `basic.consume`, `cancel` and `qos`: who gets messages, and how many at a time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use nexo_access::Permission;
use nexo_broker::{
    Access, LeaseTerms, OpenConsumer, QueueHandle, SettleMode, SocketState, Subscription, Terms, Written,
};
use tokio::sync::Notify;

use super::arguments::{QueueKind, Traits};
use super::channel::{Acks, Consumer, ReplyConsumer, Window};
use super::error::Refusal;
use super::limit::Limit;
use super::operations::{self, Operation, Wait};
use super::reply_to::{Place, REPLY_TO, REPLY_TO_PREFIX};
use super::session::{ChannelState, Session};
use super::source::{Source, Subscribed};
use super::steps::Step;
use super::unacked::Held;
use crate::codec::method::basic;
use crate::codec::{ReplyCode, ShortStr, Table};

/// Arguments of a consumer are kept to be shown only up to this many bytes: they are a client's, and it may have many consumers.
const SHOWN_ARGUMENTS_BYTES_MAX: usize = 1024;

fn shown_arguments(raw: &[u8]) -> Bytes {
    if raw.len() <= SHOWN_ARGUMENTS_BYTES_MAX { Bytes::copy_from_slice(raw) } else { Bytes::new() }
}

/// A consumer that is to be forgotten, and its client to be told.
#[derive(Debug)]
pub(super) struct Cancelled {
    channel: u16,
    id: u64,
    queue: Option<QueueHandle>,
    tag: Bytes,
    nowait: bool,
}

impl Session {
    pub(super) fn consume(&mut self, number: u16, consume: &basic::Consume<'_>) -> Result<(), Refusal> {
        if consume.queue.as_bytes() == REPLY_TO {
            return self.consume_replies(number, consume);
        }
        let name = self.named(number, &consume.queue)?;
        self.may_queue(Permission::Read, &name)?;
        let queue = self.queue(number, &consume.queue)?;
        // Whoever uses a queue that somebody has just declared can count on it.
        match operations::is_safe(&self.shared.broker, queue.created()) {
            Some(safe) => safe?,
            None => {
                self.takes_again = true;
                self.hold_up(Wait::Safe(queue.created()));
                return Ok(());
            }
        }
        let tag = self.new_tag(number, &consume.consumer_tag)?;
        let priority = priority(&queue, consume.arguments)?;
        let config = queue.config();
        let traits = Traits::of(&config);
        let serial = self.new_serial();
        let shared = Arc::clone(&self.shared);
        let by_the_book = self.abilities.qos_by_the_book;
        let socket = Arc::clone(&self.socket);
        let channel = self.channel(number)?;
        let acks = if consume.no_ack { Acks::None } else { Acks::Wanted };
        let prefetch = if acks == Acks::Wanted { channel.prefetch } else { 0 };
        let limit = channel.limit.clone();
        if traits.kind == QueueKind::Quorum && channel.limit.is_some() && !by_the_book {
            let (name, vhost) = (queue.name(), queue.name().vhost_str());
            let text = format!("queue '{name}' in vhost '{vhost}' does not support global qos");
            return Err(Refusal::new(ReplyCode::NotImplemented, text));
        }
        let access = if consume.exclusive { Access::Exclusive } else { Access::Shared };
        let timeout = shared.consumer_timeout(traits).filter(|_| acks == Acks::Wanted);
        let mut source = Source::new(serial, number, queue, traits.kind);
        (source.prefetch, source.timeout) = (prefetch, timeout);
        let source = Arc::new(source);
        let stop = Arc::new(Notify::new());
        let window = Window::new(source.queue.mean_bytes());
        let consumer =
            Consumer { tag: tag.clone(), source, stop, acks, priority, window, withheld: 0, access };
        let subscription = subscribe(&consumer, None, limit, 0, socket)?;
        let (of_subscription, stop) = (Arc::clone(&consumer.source), Arc::clone(&consumer.stop));
        channel.shown.add_consumer(OpenConsumer {
            tag: tag.clone(),
            id: Some(subscription.id()),
            queue: consumer.source.queue.name().clone(),
            acknowledges: acks == Acks::Wanted,
            is_exclusive: access == Access::Exclusive,
            prefetch,
            arguments: shown_arguments(consume.arguments.as_raw()),
        });
        channel.tags.insert(tag.clone(), serial);
        channel.consumers.insert(serial, consumer);
        self.note_timeout(timeout);
        self.answer_unless(
            consume.nowait,
            number,
            &basic::ConsumeOk { consumer_tag: ShortStr::clipped(&tag) },
        );
        self.consumers.push(of_subscription, subscription, stop);
        Ok(())
    }

    fn consume_replies(&mut self, number: u16, consume: &basic::Consume<'_>) -> Result<(), Refusal> {
        if !consume.no_ack {
            return Err(Refusal::precondition("reply consumer cannot acknowledge"));
        }
        if self.channel(number)?.replies.is_some() {
            return Err(Refusal::precondition("reply consumer already set"));
        }
        let tag = self.new_tag(number, &consume.consumer_tag)?;
        let name = Bytes::from(self.shared.new_name(REPLY_TO_PREFIX));
        let shared = Arc::clone(&self.shared);
        let (to, bytes) = (self.reply_sender.clone(), Arc::clone(&self.reply_bytes));
        let vhost = self.vhost.clone();
        let channel = self.channel(number)?;
        let place = Place { vhost, to, channel: number, serial: channel.serial, bytes };
        shared.replies.open(name.clone(), place);
        channel.replies = Some(ReplyConsumer::new(tag.clone(), name, shared));
        self.answer_unless(
            consume.nowait,
            number,
            &basic::ConsumeOk { consumer_tag: ShortStr::clipped(&tag) },
        );
        Ok(())
    }

    /// The tag that a client asks for, or one made for it.
    fn new_tag(&mut self, number: u16, asked: &[u8]) -> Result<Bytes, Refusal> {
        if asked.is_empty() {
            return Ok(self.shared.new_name("amq.ctag-").into());
        }
        let channel = self.channel(number)?;
        let of_replies = channel.replies.as_ref().is_some_and(|replies| replies.tag == asked);
        if of_replies || channel.tags.contains_key(asked) {
            let tag = String::from_utf8_lossy(asked);
            return Err(Refusal::new(
                ReplyCode::NotAllowed,
                format!("attempt to reuse consumer tag '{tag}'"),
            ));
        }
        Ok(Bytes::copy_from_slice(asked))
    }

    pub(super) fn cancel(&mut self, number: u16, cancel: &basic::Cancel<'_>) -> Result<(), Refusal> {
        let tag = Bytes::copy_from_slice(cancel.consumer_tag.as_bytes());
        let channel = self.channel(number)?;
        let Some(id) = channel.tags.get(&tag).copied() else {
            if channel.replies.as_ref().is_some_and(|replies| replies.tag == tag) {
                channel.replies = None;
            }
            let answer = basic::CancelOk { consumer_tag: cancel.consumer_tag };
            self.answer_when(Written::NOTHING, cancel.nowait, number, &answer);
            return Ok(());
        };
        let queue = channel.consumers.get(&id).map(|consumer| {
            consumer.stop.notify_one();
            consumer.source.queue.clone()
        });
        let cancelled = Cancelled { channel: number, id, queue, tag, nowait: cancel.nowait };
        match self.stop_consumers(HashSet::from([id])).pop() {
            // Without acknowledgements what was handed out is gone from its queue: it must reach the client.
            Some((source, subscription)) => {
                self.perform(Operation::Close { cancelled, source, subscription });
            }
            None => self.finish_cancel(cancelled),
        }
        Ok(())
    }

    /// A consumer is stopped, and the broker knows it no more.
    pub(super) fn finish_cancel(&mut self, cancelled: Cancelled) {
        let Cancelled { channel: number, id, queue, tag, nowait } = cancelled;
        self.write_all_of_unacknowledged(number, id);
        self.forget_consumer(number, id);
        self.steps.push_back(Step::AnswerCancel { number, queue, tag, nowait });
        self.run_steps();
    }

    fn write_all_of_unacknowledged(&mut self, number: u16, id: u64) {
        if let Ok(channel) = self.channel(number)
            && channel.consumers.get(&id).is_some_and(|consumer| consumer.acks == Acks::None)
        {
            self.write_all_of(id);
        }
    }

    /// Takes a consumer off its channel; what was on its way goes back to its queue.
    fn forget_consumer(&mut self, number: u16, id: u64) {
        if let Ok(channel) = self.channel(number)
            && let Some(consumer) = channel.consumers.remove(&id)
        {
            channel.tags.remove(&consumer.tag);
            channel.shown.remove_consumer(&consumer.tag);
        }
        self.waiting.retain(|batch| batch.source.id != id);
        self.retry_credit(&[number]);
    }

    /// The queue of a consumer is gone: clients that know of it are told.
    pub(super) fn consumer_gone(&mut self, source: &Source) {
        let Some(ChannelState::Open(channel)) = self.channels.get_mut(&source.channel) else { return };
        let Some(consumer) = channel.consumers.remove(&source.id) else { return };
        channel.tags.remove(&consumer.tag);
        channel.shown.remove_consumer(&consumer.tag);
        if self.abilities.cancel_notify {
            let cancel = basic::Cancel { consumer_tag: ShortStr::clipped(&consumer.tag), nowait: true };
            self.out.method(source.channel, &cancel);
        }
        // What was on its way to it counts no more against a limit that it shared.
        self.retry_credit(&[source.channel]);
    }

    pub(super) fn qos(&mut self, number: u16, qos: &basic::Qos) -> Result<(), Refusal> {
        if qos.prefetch_size != 0 {
            let text = format!("prefetch_size!=0 ({})", qos.prefetch_size);
            return Err(Refusal::new(ReplyCode::NotImplemented, text));
        }
        let count = u32::from(qos.prefetch_count);
        if qos.global || self.abilities.qos_by_the_book {
            self.limit_channel(number, count)?;
        } else {
            let channel = self.channel(number)?;
            channel.prefetch = count;
            channel.shown.prefetch.set(count.into());
        }
        self.answer(number, &basic::QosOk {});
        Ok(())
    }

    /// Sets how many messages all consumers of a channel may hold together, those that are there included.
    fn limit_channel(&mut self, number: u16, max: u32) -> Result<(), Refusal> {
        let channel = self.channel(number)?;
        channel.shown.prefetch_together.set(max.into());
        match &channel.limit {
            None if max == 0 => return Ok(()),
            None => {}
            Some(limit) => {
                limit.change(max);
                self.retry_credit(&[number]);
                return Ok(());
            }
        }
        // The consumers begin anew under the new limit; what was on its way to them goes back first.
        let bound = channel.consumers.values().filter(|consumer| consumer.acks == Acks::Wanted);
        let ids: HashSet<u64> = bound.map(|consumer| consumer.source.id).collect();
        for id in &ids {
            channel.consumers[id].stop.notify_one();
        }
        let mut stopped: HashMap<u64, Subscription> =
            self.take_stopped(ids.clone()).into_iter().map(|(source, old)| (source.id, old)).collect();
        self.waiting.retain(|batch| !ids.contains(&batch.source.id));
        let Some(ChannelState::Open(channel)) = self.channels.get_mut(&number) else { return Ok(()) };
        let consumed = |source: &Source| source.subscribed().consumer.is_some();
        let runs = channel.unacked.iter().filter(|held| consumed(&held.source));
        let held: usize = runs.map(Held::count).sum();
        let limit = Arc::new(Limit::new(max, u32::try_from(held).unwrap_or(u32::MAX)));
        for held in channel.unacked.iter().filter(|held| consumed(&held.source)) {
            held.source
                .set_subscribed(Subscribed { limit: Some(Arc::clone(&limit)), ..held.source.subscribed() });
        }
        channel.limit = Some(Arc::clone(&limit));
        for consumer in channel.consumers.values().filter(|consumer| consumer.acks == Acks::None) {
            if let Some(id) = consumer.source.subscribed().consumer {
                consumer.source.queue.heed_limit(id, Arc::clone(&limit.credit));
            }
        }
        let mut gone = Vec::new();
        for consumer in channel.consumers.values_mut().filter(|consumer| ids.contains(&consumer.source.id)) {
            let of_consumer = channel.unacked.iter().filter(|held| held.source.id == consumer.source.id);
            let held = u32::try_from(of_consumer.map(Held::count).sum::<usize>()).unwrap_or(u32::MAX);
            consumer.window = Window::new(consumer.source.queue.mean_bytes());
            consumer.withheld = 0;
            // The one before may have been told to stop and not have heard of it.
            consumer.stop = Arc::default();
            let (source, stop) = (Arc::clone(&consumer.source), Arc::clone(&consumer.stop));
            let (old, limit) = (stopped.remove(&source.id), Some(Arc::clone(&limit)));
            match subscribe(consumer, old, limit, held, Arc::clone(&self.socket)) {
                Ok(subscription) => {
                    channel.shown.renew_consumer(&consumer.tag, subscription.id());
                    self.consumers.push(source, subscription, stop);
                }
                Err(_) => gone.push(source),
            }
        }
        for source in gone {
            self.consumer_gone(&source);
        }
        Ok(())
    }
}

/// Starts a consumer of which `held` messages are out already, in the place of `old` if it had one.
fn subscribe(
    consumer: &Consumer,
    old: Option<Subscription>,
    limit: Option<Arc<Limit>>,
    held: u32,
    socket: Arc<SocketState>,
) -> Result<Subscription, Refusal> {
    let source = &consumer.source;
    let settle = match consumer.acks {
        Acks::Wanted => SettleMode::Manual,
        Acks::None => SettleMode::Automatic,
    };
    let terms = Terms {
        lease: LeaseTerms::Session,
        settle,
        priority: consumer.priority,
        access: consumer.access,
        ..Terms::default()
    };
    let credit =
        if source.prefetch > 0 { source.prefetch.saturating_sub(held) } else { consumer.window.first() };
    let shared_credit = limit.as_ref().map(|limit| Arc::clone(&limit.credit));
    let subscription = match old {
        Some(old) => source.queue.resubscribe(old, terms, credit, shared_credit, socket)?,
        None => source.queue.subscribe(terms, credit, shared_credit, socket)?,
    };
    // What is not acknowledged takes no room, and gives none back.
    let limit = limit.filter(|_| consumer.acks == Acks::Wanted);
    source.set_subscribed(Subscribed { consumer: Some(subscription.id()), limit });
    Ok(subscription)
}

/// The argument `x-priority`.
fn priority(queue: &QueueHandle, arguments: Table<'_>) -> Result<i32, Refusal> {
    let Some(value) = arguments.get("x-priority") else { return Ok(0) };
    let number = value.as_integer().ok_or_else(|| {
        Refusal::precondition(format!(
            "invalid arg 'x-priority' for queue '{}' in vhost '{}': \"expected integer, got {}\"",
            queue.name(),
            queue.name().vhost_str(),
            value.type_name()
        ))
    })?;
    Ok(i32::try_from(number).unwrap_or(if number < 0 { i32::MIN } else { i32::MAX }))
}
