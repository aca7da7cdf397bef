//! An open connection without its socket: what it holds, and how it and its channels end. `dispatch` has what frames do
//! to it.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use hashbrown::HashMap;
use nexo_broker::{Broker, QueueError, QueueHandle, SessionId, Settle, SocketState, Written};
use tokio::sync::mpsc;

use super::channel::Channel;
use super::confirms::Confirms;
use super::error::Refusal;
use super::held_up::{Behind, Waited};
use super::intake::ConnectionIntake;
use super::message_facts::LastAsks;
use super::outbox::Outbox;
use super::output::Output;
use super::pace::{Awaits, Pace};
use super::reply_to::{REPLIES_MAX, Reply};
use super::routing::Targets;
use super::settle::BySource;
use super::shared::ServerState;
use super::source::{Arrival, UnwrittenBatch};
use super::transactions::Unfinished;
use crate::codec::method::{channel, connection};
use crate::codec::{AmqpMethod, FrameMax, MethodId, ReplyCode, ShortStr};

/// With more unsettled messages than this a connection that ends gives them back on a thread of its own.
const RETURNED_HERE_MAX: usize = 10_000;

/// The state of a connection. The fields are dropped in this order: no consumer takes what is given back.
pub(super) struct Session {
    pub(super) consumers: FuturesUnordered<BoxFuture<'static, Arrival>>,
    /// Messages that were handed out and wait for room to be written.
    pub(super) waiting: VecDeque<UnwrittenBatch>,
    /// Acknowledgements of the read that is worked through.
    pub(super) acks: BySource,
    /// What was said about messages and could not be written down. The messages are held until it is: no more come
    /// in their place, so there are no more of them than the client may hold.
    pub(super) refused_settles: Vec<(Settle, BySource)>,
    /// Why not, if there are any, acknowledgements among them.
    pub(super) settle_refusal: Option<QueueError>,
    /// Whether some are left to be settled soon.
    pub(super) settles_left: bool,
    /// Whether the operator was told that some could not be settled.
    pub(super) was_refused: bool,
    pub(super) channels: HashMap<u16, ChannelState, foldhash::fast::FixedState>,
    pub(super) shared: Arc<ServerState>,
    pub(super) id: SessionId,
    pub(super) user: &'static str,
    /// Who is at the other end, for the log.
    pub(super) peer: Option<SocketAddr>,
    pub(super) limits: Limits,
    pub(super) abilities: Abilities,
    pub(super) out: Output,
    /// Whether the client takes what is written.
    pub(super) socket: Arc<SocketState>,
    pub(super) outbox: Outbox,
    pub(super) confirms: Confirms,
    /// Why an answer could not be given, if that is so: the connection ends.
    pub(super) answer_failure: Option<QueueError>,
    pub(super) targets: Targets,
    pub(super) last_asks: LastAsks,
    pub(super) reply_sender: mpsc::Sender<Reply>,
    pub(super) replies: mpsc::Receiver<Reply>,
    pub(super) phase: ConnectionPhase,
    /// Whether publishes wait for room on the disk.
    pub(super) blocked: bool,
    /// Whether something was published that no queue was asked to take: nobody has looked whether the disk is full.
    pub(super) published_nowhere: bool,
    pub(super) pace: Pace,
    /// Whether a consumer waits until there is memory for what it holds.
    pub(super) withholds: bool,
    pub(super) intake: ConnectionIntake,
    pub(super) reply_bytes: Arc<AtomicUsize>,
    pub(super) owns_queues: bool,
    /// The shortest time for which a client may hold a message, if it ever had one with an end.
    pub(super) shortest_timeout: Option<Duration>,
    /// A commit that waits for room on the disk, as everything on the connection does.
    pub(super) unfinished: Option<Unfinished>,
    /// What ends a channel or the connection once everything that was published before is pushed.
    pub(super) refusal: Option<(u16, Refusal)>,
    /// What is waited for before more is pushed, or read. Everything else goes on meanwhile.
    pub(super) held_up: Option<BoxFuture<'static, Waited>>,
    /// Since when the disk has been behind, as far as what was published here is concerned.
    pub(super) behind: Option<Behind>,
    next_serial: u64,
}

/// What was agreed on when the connection was opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) frame_max: FrameMax,
    pub(super) channel_max: u16,
    /// In seconds; 0 for none.
    pub(super) heartbeat: u16,
}

/// What the client said that it understands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Abilities {
    pub(super) cancel_notify: bool,
    pub(super) blocked: bool,
    /// Whether it takes us for a broker whose `basic.qos` without `global` is for the whole channel, as the
    /// specification has it. kombu does so with every product that is not called RabbitMQ, and Celery counts on it.
    pub(super) qos_by_the_book: bool,
}

/// A channel number in use.
#[derive(Debug)]
pub(super) enum ChannelState {
    Open(Box<Channel>),
    /// We closed it and the client has not said that it knows.
    Closing,
}

/// The other end as the log names it.
pub(super) struct Peer(pub(super) Option<SocketAddr>);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("nobody"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionPhase {
    Running,
    /// We said that it ends; everything but the client's consent is ignored.
    Closing,
    /// It ends when the rest is written.
    Closed,
}

impl Session {
    pub(super) fn new(
        shared: Arc<ServerState>,
        user: &'static str,
        limits: Limits,
        abilities: Abilities,
    ) -> Self {
        let (reply_sender, replies) = mpsc::channel(REPLIES_MAX);
        let intake = ConnectionIntake::new(shared.broker.intake().clone());
        let out = Output::new(Arc::clone(&shared.busy_writers));
        Self {
            consumers: FuturesUnordered::new(),
            waiting: VecDeque::new(),
            acks: BySource::default(),
            refused_settles: Vec::new(),
            settle_refusal: None,
            settles_left: false,
            was_refused: false,
            channels: HashMap::default(),
            id: shared.new_session(),
            shared,
            user,
            peer: None,
            limits,
            abilities,
            out,
            socket: Arc::default(),
            outbox: Outbox::default(),
            confirms: Confirms::default(),
            answer_failure: None,
            targets: Targets::default(),
            last_asks: LastAsks::default(),
            reply_sender,
            replies,
            phase: ConnectionPhase::Running,
            blocked: false,
            withholds: false,
            published_nowhere: false,
            pace: Pace::default(),
            intake,
            reply_bytes: Arc::default(),
            owns_queues: false,
            shortest_timeout: None,
            unfinished: None,
            refusal: None,
            held_up: None,
            behind: None,
            next_serial: 1,
        }
    }

    /// Acts on what came of a frame: a refusal ends the channel or the connection.
    pub(super) async fn conclude(&mut self, number: u16, outcome: Result<(), Refusal>) {
        let Err(mut refusal) = outcome else { return };
        self.flush_acks();
        if self.flush_publishes().await.is_none() && self.held_up.is_some() {
            // No frame is taken until that has come to its end.
            self.refusal = Some((number, refusal));
            return;
        }
        if refusal.rests_on_declares() {
            let broker = &self.shared.broker;
            if let Err(error) = broker.wait_for(broker.last_change()).await {
                refusal = Refusal::from(error).of(refusal.method);
            }
        }
        // The specification ends the connection for want of resources, but it is one channel's message that finds none.
        let is_hard = refusal.code.is_hard() && refusal.code != ReplyCode::ResourceError;
        if is_hard || number == 0 {
            self.close(&refusal).await;
        } else if self.is_open(number) {
            // One that was closed while it waited for the disk is closed.
            self.close_channel(number, &refusal).await;
        }
    }

    pub(super) fn is_open(&self, number: u16) -> bool {
        matches!(self.channels.get(&number), Some(ChannelState::Open(_)))
    }

    pub(super) async fn close_channel(&mut self, number: u16, refusal: &Refusal) {
        let (peer, error) = (Peer(self.peer), refusal.reply_text());
        tracing::info!(protocol = "amqp", %peer, user = self.user, channel = number, error, "channel closed");
        self.end_channel(number).await;
        let MethodId { class_id, method_id } = refusal.method;
        let text = refusal.reply_text();
        let reply_text = ShortStr::clipped(text.as_bytes());
        let close = channel::Close { reply_code: refusal.code.number(), reply_text, class_id, method_id };
        self.out.method(number, &close);
        self.channels.insert(number, ChannelState::Closing);
    }

    /// Ends what a channel holds. Its publishes count, its consumers go, and what it did not settle comes back.
    pub(super) async fn end_channel(&mut self, number: u16) {
        self.flush_whole().await;
        // If that fails, the connection ends as well.
        let _ = self.give_answers(number).await;
        let Some(ChannelState::Open(channel)) = self.channels.get_mut(&number) else { return };
        let ids: HashSet<u64> = channel.consumers.keys().copied().collect();
        for consumer in channel.consumers.values() {
            consumer.stop.notify_one();
        }
        let consumed = channel.consumed_queues();
        self.stop_consumers(ids).await;
        self.waiting.retain(|batch| batch.source.channel != number);
        let channel_states = self.channels.remove(&number).into_iter().collect();
        Leaving { refused: Vec::new(), unfinished: None, channel_states }.leave().await;
        delete_left_alone(&self.shared.broker, consumed).await;
    }

    /// Says that the connection ends, and why.
    pub(super) async fn close(&mut self, refusal: &Refusal) {
        if self.phase != ConnectionPhase::Running {
            return;
        }
        let (peer, error) = (Peer(self.peer), refusal.reply_text());
        tracing::info!(protocol = "amqp", %peer, user = self.user, error, "connection closed by the broker");
        self.flush_whole().await;
        self.give_all_answers().await;
        self.phase = ConnectionPhase::Closing;
        self.end().await;
        let MethodId { class_id, method_id } = refusal.method;
        let text = refusal.reply_text();
        let reply_text = ShortStr::clipped(text.as_bytes());
        let close = connection::Close { reply_code: refusal.code.number(), reply_text, class_id, method_id };
        self.out.method(0, &close);
    }

    /// Gives back everything that the connection holds.
    pub(super) async fn end(&mut self) {
        self.intake.stop_waiting();
        self.consumers = FuturesUnordered::new();
        self.waiting.clear();
        let refused = self.take_refused();
        let mut consumed = Vec::new();
        let channel_states: Vec<ChannelState> =
            self.channels.drain().map(|(_, channel_state)| channel_state).collect();
        for channel_state in &channel_states {
            if let ChannelState::Open(channel) = channel_state {
                consumed.extend(channel.consumed_queues());
            }
        }
        Leaving { refused, unfinished: self.unfinished.take(), channel_states }.leave().await;
        delete_left_alone(&self.shared.broker, consumed).await;
        if std::mem::take(&mut self.owns_queues) {
            self.shared.broker.end_session(self.id).await;
        }
    }

    /// Confirms and answers what has reached the disk; `first` is what came of the first.
    pub(super) fn confirm_ready(&mut self, first: Option<Result<(), QueueError>>) {
        let channels = &self.channels;
        let failure = self.confirms.confirm(&self.shared.broker, first, &mut self.out, |number, serial| {
            matches!(channels.get(&number), Some(ChannelState::Open(channel)) if channel.serial == serial)
        });
        self.answer_failure = self.answer_failure.take().or(failure);
    }

    /// Ends the connection if what its client said about messages, or declared, can never be written down: it must know.
    pub(super) async fn close_if_log_failed(&mut self) {
        let settles = self.settle_refusal.as_ref();
        let settles = settles.filter(|error| matches!(error, QueueError::Unavailable { .. }));
        if let Some(error) = settles.or(self.answer_failure.as_ref()) {
            let refusal = Refusal::from(error.clone());
            self.close(&refusal).await;
        }
    }

    pub(super) fn note_timeout(&mut self, timeout: Option<Duration>) {
        self.shortest_timeout = self.shortest_timeout.into_iter().chain(timeout).min();
    }

    /// Closes channels whose client holds a message for longer than its queue allows.
    pub(super) async fn enforce_timeouts(&mut self) {
        if self.held_up.is_some() || self.blocked || self.unfinished.is_some() {
            // It may well have acknowledged. And what a commit publishes needs its channel.
            return;
        }
        let mut late = Vec::new();
        for (number, channel_state) in &self.channels {
            let ChannelState::Open(channel) = channel_state else { continue };
            let overdue = channel.unacked.iter().find_map(|held| {
                let timeout = held.source.timeout?;
                (held.since.elapsed() > timeout).then_some(timeout)
            });
            late.extend(overdue.map(|timeout| (*number, timeout)));
        }
        for (number, timeout) in late {
            let refusal = Refusal::precondition(format!(
                "delivery acknowledgement on channel {number} timed out. Timeout value used: {} ms. This timeout value \
                 can be configured, see consumers doc guide to learn more",
                timeout.as_millis()
            ));
            self.close_channel(number, &refusal).await;
        }
    }

    /// What the connection's consumers wait for.
    pub(super) fn awaits(&self) -> Awaits {
        let awaits = |channel_state: &ChannelState| matches!(channel_state, ChannelState::Open(channel) if channel.awaits_acks());
        if self.channels.values().any(awaits) { Awaits::Acks } else { Awaits::NoAcks }
    }

    pub(super) fn channel(&mut self, number: u16) -> Result<&mut Channel, Refusal> {
        match self.channels.get_mut(&number) {
            Some(ChannelState::Open(channel)) => Ok(channel),
            Some(ChannelState::Closing) | None => {
                Err(Refusal::new(ReplyCode::ChannelError, "expected 'channel.open'"))
            }
        }
    }

    pub(super) fn answer<M: AmqpMethod>(&mut self, number: u16, method: &M) {
        self.out.method(number, method);
    }

    /// Answers a method, unless the client said that it does not wait for that.
    pub(super) fn answer_unless<M: AmqpMethod>(&mut self, nowait: bool, number: u16, method: &M) {
        if !nowait {
            self.answer(number, method);
        }
    }

    pub(super) const fn new_serial(&mut self) -> u64 {
        self.next_serial += 1;
        self.next_serial
    }
}

/// What a channel or a connection that ends leaves to the broker. The fields are dropped in this order: what was said
/// counts before the rest goes back.
struct Leaving {
    refused: Vec<(Settle, BySource)>,
    unfinished: Option<Unfinished>,
    channel_states: Vec<ChannelState>,
}

impl Leaving {
    async fn leave(self) {
        if self.messages() > RETURNED_HERE_MAX {
            // Millions take seconds, which others need.
            let _ = tokio::task::spawn_blocking(move || drop(self)).await;
        }
    }

    fn messages(&self) -> usize {
        let unsettled = |channel_state: &ChannelState| match channel_state {
            ChannelState::Open(channel) => channel.unsettled(),
            ChannelState::Closing => 0,
        };
        let refused: usize = self.refused.iter().map(|(_, groups)| groups.len()).sum();
        let unfinished = self.unfinished.as_ref().map_or(0, |commit| commit.transaction.held());
        refused + unfinished + self.channel_states.iter().map(unsettled).sum::<usize>()
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        for (what, mut groups) in std::mem::take(&mut self.refused) {
            groups.settle_eventually(what);
        }
    }
}

/// Has auto-delete queues go that have lost their last consumer: a client that is told of the end may count on it.
async fn delete_left_alone(broker: &Broker, queues: Vec<QueueHandle>) {
    let mut written = Written::NOTHING;
    for queue in queues {
        written = written.and(queue.delete_if_left_alone().await);
    }
    // If the log has failed, the connection ends as well.
    let _ = broker.wait_for(written).await;
}

impl Drop for Session {
    fn drop(&mut self) {
        // Only if the connection did not end as it should.
        drop(Leaving {
            refused: self.take_refused(),
            unfinished: self.unfinished.take(),
            channel_states: Vec::new(),
        });
        if self.owns_queues
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (broker, id) = (self.shared.broker.clone(), self.id);
            runtime.spawn(async move { broker.end_session(id).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use nexo_broker::{BrokerOptions, NewMessage, PopRequest, Protocol, QueueConfig};
    use nexo_log::disk::FaultyDisk;
    use nexo_types::{Millis, QueueName};

    use super::*;
    use crate::codec::{Frames, Method};
    use crate::server::arguments::QueueKind;
    use crate::server::channel::Mode;
    use crate::server::settle::LaterSettle;
    use crate::server::source::Source;
    use crate::server::transactions::Transaction;
    use crate::server::unacked::Held;

    const FRAME_MAX: FrameMax = FrameMax::new(131_072).unwrap();

    fn session(broker: &Broker) -> Session {
        let shared = Arc::new(ServerState::new(broker, crate::Options::default()));
        let limits = Limits { frame_max: FRAME_MAX, channel_max: 10, heartbeat: 0 };
        let abilities = Abilities { blocked: true, ..Abilities::default() };
        Session::new(shared, "guest", limits, abilities)
    }

    impl Session {
        /// Waits for whatever holds it up, as its connection does.
        async fn wait_out(&mut self) {
            while let Some(wait) = self.held_up.take() {
                let waited = wait.await;
                self.has_waited(waited).await;
            }
        }
    }

    /// What the client has been told since this was asked last.
    fn told(session: &mut Session) -> Vec<&'static str> {
        let bytes = std::mem::take(&mut session.out.bytes);
        let frames = Frames::new(&bytes, FRAME_MAX);
        frames.map(|frame| Method::decode(frame.unwrap().payload).unwrap().name()).collect()
    }

    /// Fills the disk to the last byte, what is kept for acknowledgements included.
    async fn fill(broker: &Broker, disk: &FaultyDisk, queue: &QueueName) {
        let empty = QueueName::new("empty").unwrap();
        broker.create_queue(&empty, QueueConfig::default()).await.unwrap();
        disk.set_bytes_max(Some(disk.used_bytes()));
        // Messages that wait: no segment can be given up.
        let mut bytes = 10_000;
        while bytes > 0 {
            if broker.push(queue, vec![NewMessage::new(vec![0; bytes])]).await.is_err() {
                bytes /= 2;
            }
        }
        let mut text = "x".repeat(1000);
        while !text.is_empty() {
            let annotated = |config: &QueueConfig| {
                let mut config = config.clone();
                config.annotations.insert("test".into(), text.clone().into());
                config
            };
            if broker.update_queue(queue, annotated).await.is_err() {
                text.truncate(text.len() / 2);
            }
        }
        // The smallest record that there is.
        while broker.purge(&empty).await.is_ok() {}
    }

    /// A queue with one message, and that message as a channel holds it.
    async fn with_one_held(broker: &Broker) -> (QueueHandle, Held) {
        let name = QueueName::new("q").unwrap();
        broker.create_queue(&name, QueueConfig::default()).await.unwrap();
        broker.push(&name, vec![NewMessage::new("x")]).await.unwrap();
        let request = PopRequest { max: 1, wait: Millis::ZERO, visibility: None, bytes_max: None };
        let one = broker.pop(&name, request).await.unwrap().remove(0);
        let queue = broker.queue(&name).unwrap();
        let source = Arc::new(Source::new(1, 1, queue.clone(), QueueKind::Classic));
        let held = Held { tag: 1, source, offset: one.offset, attempt: one.attempt, since: Instant::now() };
        (queue, held)
    }

    #[tokio::test]
    async fn what_a_transaction_would_settle_is_not_settled_yet() {
        let broker = Broker::open_on(Arc::new(FaultyDisk::new()), BrokerOptions::new("memory")).unwrap();
        let (_, held) = with_one_held(&broker).await;
        let mut transaction = Box::<Transaction>::default();
        for count in [2, 3] {
            transaction.settle(LaterSettle { held: vec![held.clone(); count], what: Settle::Ack });
        }
        let mut channel = Channel::new(1, broker.traffic().channel(Protocol::Amqp));
        channel.unacked.push(held);
        assert_eq!(channel.unsettled(), 1);
        channel.mode = Mode::Transaction(transaction);
        assert_eq!(channel.unsettled(), 6);
    }

    #[test]
    fn a_connection_that_leaves_much_keeps_no_thread() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let broker = Broker::open_on(Arc::new(FaultyDisk::new()), BrokerOptions::new("memory")).unwrap();
            let (queue, held) = with_one_held(&broker).await;
            for in_transaction in [false, true] {
                let mut session = session(&broker);
                let many = vec![held.clone(); RETURNED_HERE_MAX + 1];
                if in_transaction {
                    let mut transaction = Box::<Transaction>::default();
                    transaction.settle(LaterSettle { held: many, what: Settle::Ack });
                    session.unfinished = Some(Unfinished::new(1, transaction));
                } else {
                    let mut groups = BySource::default();
                    many.iter().for_each(|held| groups.add(held));
                    session.refused_settles.push((Settle::Undelivered, groups));
                }
                // The only thread for such work is free when the other task has run, and that runs only if the session lets
                // go of this one.
                let (go, wait) = std::sync::mpsc::channel();
                tokio::task::spawn_blocking(move || wait.recv());
                let other = tokio::spawn(async move { go.send(()) });
                session.end().await;
                assert!(other.is_finished());
                assert_eq!(queue.in_flight(), 0);
            }
        });
    }

    /// A frame with one method of channel 1.
    fn frame(method: &impl AmqpMethod) -> Vec<u8> {
        let mut out = Vec::new();
        crate::codec::encode_method(&mut out, 1, method);
        out
    }

    #[tokio::test]
    async fn one_who_settles_very_many_at_once_keeps_no_thread() {
        use crate::codec::method::basic;
        let broker = Broker::open_on(Arc::new(FaultyDisk::new()), BrokerOptions::new("memory")).unwrap();
        let (queue, held) = with_one_held(&broker).await;
        let said = [
            (frame(&basic::Recover { requeue: true }), 0),
            (frame(&basic::Nack { delivery_tag: 0, multiple: true, requeue: true }), 0),
            (frame(&basic::Ack { delivery_tag: 100_000, multiple: true }), 1),
        ];
        for (said, left) in said {
            let mut session = session(&broker);
            let mut channel = Channel::new(1, broker.traffic().channel(Protocol::Amqp));
            for tag in 1..=100_001 {
                channel.unacked.push(Held { tag, ..held.clone() });
            }
            session.channels.insert(1, ChannelState::Open(Box::new(channel)));
            // It runs only if the session lets go of this thread.
            let other = tokio::spawn(async {});
            session.take_frames(&said).await;
            assert!(other.is_finished());
            assert_eq!((session.channel(1).unwrap().unacked.len(), session.acks.len()), (left, 0));
        }
        assert_eq!(queue.counts().0, 1, "the first of them gave it back, and the others hold nothing");
    }

    #[tokio::test]
    async fn a_commit_that_finds_no_room_again_blocks_only_once() {
        let disk = FaultyDisk::new();
        let options = BrokerOptions { segment_bytes: 64 * 1024, ..BrokerOptions::new("memory") };
        let broker = Broker::open_on(Arc::new(disk.clone()), options).unwrap();
        let (queue, held) = with_one_held(&broker).await;
        fill(&broker, &disk, queue.name()).await;

        let mut session = session(&broker);
        let mut transaction = Box::<Transaction>::default();
        transaction.settle(LaterSettle { held: vec![held], what: Settle::Ack });
        session.block("no room");
        session.unfinished = Some(Unfinished::new(1, transaction));
        assert_eq!(told(&mut session), ["connection.blocked"]);
        for _ in 0..2 {
            session.go_on().await;
            session.wait_out().await;
            assert!(session.blocked && session.unfinished.is_some() && queue.in_flight() == 1);
            assert_eq!(told(&mut session), [] as [&str; 0]);
        }
        disk.set_bytes_max(None);
        while session.blocked {
            session.unblock().await;
            session.wait_out().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(queue.in_flight(), 0);
        assert_eq!(told(&mut session), ["connection.unblocked"], "there is no such channel any more");
    }
}
