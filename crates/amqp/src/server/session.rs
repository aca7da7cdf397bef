//! An open connection without its socket and without a clock: what it holds.
//!
//! Nothing here waits. Bytes and events come in, with the time: frames ([`Session::take_frames`]), messages of its consumers,
//! the end of what it waits for ([`Session::has_waited`], [`Session::has_done`], [`Session::has_reached`]), and ticks. Bytes
//! go out ([`Session::out`]), and calls to the broker. What must be waited for is in `operations`.

use std::collections::VecDeque;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use hashbrown::HashMap;
use nexo_access::{Identity, Presence, UserName};
use nexo_broker::{ConnectionFacts, OpenConnection, Protocol, QueueError, SessionId, Settle, SocketState};
use nexo_types::{Timestamp, VhostName};
use tokio::sync::mpsc;
use tracing::field::DisplayValue;

use super::access::expiry;
use super::channel::Channel;
use super::confirms::Confirms;
use super::error::Refusal;
use super::held_up::{Behind, Waited};
use super::intake::ConnectionIntake;
use super::leaving::Leaving;
use super::message_facts::LastAsks;
use super::operations::{self, Done, Subscriptions};
use super::outbox::{Flushed, Outbox};
use super::output::Output;
use super::pace::{Awaits, Pace};
use super::reply_to::{REPLIES_MAX, Reply};
use super::routing::Targets;
use super::settle::BySource;
use super::shared::ServerState;
use super::source::UnwrittenBatch;
use super::steps::Step;
use super::timing::Timing;
use super::transactions::Unfinished;
use crate::codec::{AmqpMethod, FrameMax, ReplyCode};

/// The state of a connection. The fields are dropped in this order: no consumer takes what is given back.
pub(super) struct Session {
    pub(super) consumers: Subscriptions,
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
    pub(super) channels: Channels,
    pub(super) shared: Arc<ServerState>,
    pub(super) id: SessionId,
    /// Who opened it.
    pub(super) user: UserName,
    /// What he may do.
    pub(super) identity: Identity,
    /// When his token expires, if he came with one.
    pub(super) expires: Option<Instant>,
    /// That he is connected; tests have sessions without a connection.
    pub(super) presence: Option<Arc<Presence>>,
    /// In which everything that it names is.
    pub(super) vhost: VhostName,
    /// Who is at the other end, for the log.
    pub(super) peer: Option<SocketAddr>,
    /// What others see of the connection.
    pub(super) shown: Arc<OpenConnection>,
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
    /// What is waited for before more is pushed, or read. Everything else goes on meanwhile.
    pub(super) held_up: Option<BoxFuture<'static, Waited>>,
    /// What is to be done before the next frame is taken.
    pub(super) steps: VecDeque<Step>,
    /// What is waited for before the next step, and the next frame.
    pub(super) operation: Option<BoxFuture<'static, Done>>,
    /// Whether that does nothing but wait.
    pub(super) only_waits: bool,
    /// What came of waiting until something is safe, if a step has waited for that.
    pub(super) safe: Option<Result<(), QueueError>>,
    /// Whether the frame that is being taken has to be taken again.
    pub(super) takes_again: bool,
    /// Whether frames have come that were not taken yet.
    pub(super) stalled: bool,
    /// What came of the last flush, if dead letters are on their way before it counts.
    pub(super) flushed: Option<Flushed>,
    /// Whether so much was pushed that another thread should have the consumers that were woken.
    pub(super) hands_over: bool,
    /// Whether it was decided that the connection ends.
    pub(super) is_ending: bool,
    /// Whether messages are copied for the firehose, as of the last look.
    pub(super) traces: bool,
    /// The time of the event that is worked on.
    pub(super) now: Instant,
    pub(super) timing: Timing,
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

/// Channels by number.
pub(super) type Channels = HashMap<u16, ChannelState, foldhash::fast::FixedState>;

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
        identity: Identity,
        limits: Limits,
        abilities: Abilities,
        now: Instant,
    ) -> Self {
        let (reply_sender, replies) = mpsc::channel(REPLIES_MAX);
        let intake = ConnectionIntake::new(shared.broker.intake().clone(), now);
        let out = Output::new(Arc::clone(&shared.busy_writers));
        let id = shared.new_session();
        Self {
            shown: Arc::new(unlisted(id, identity.name().as_str(), limits)),
            consumers: Subscriptions::default(),
            waiting: VecDeque::new(),
            acks: BySource::default(),
            refused_settles: Vec::new(),
            settle_refusal: None,
            settles_left: false,
            was_refused: false,
            channels: HashMap::default(),
            id,
            shared,
            user: identity.name().clone(),
            expires: expiry(&identity, now),
            identity,
            presence: None,
            vhost: VhostName::DEFAULT,
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
            held_up: None,
            steps: VecDeque::new(),
            operation: None,
            only_waits: false,
            safe: None,
            takes_again: false,
            stalled: false,
            flushed: None,
            hands_over: false,
            is_ending: false,
            traces: false,
            now,
            timing: Timing::new(now),
            behind: None,
            next_serial: 1,
        }
    }

    /// Has everything that the connection names be in this virtual host. It was in "/".
    pub(super) fn enter_vhost(&mut self, vhost: &VhostName) {
        self.vhost = vhost.clone();
        self.targets.vhost = vhost.clone();
    }

    /// The virtual host as the log names it: not if it is "/".
    pub(super) fn vhost_logged(&self) -> Option<DisplayValue<&VhostName>> {
        Some(&self.vhost).filter(|vhost| !vhost.is_default()).map(tracing::field::display)
    }

    pub(super) fn is_open(&self, number: u16) -> bool {
        matches!(self.channels.get(&number), Some(ChannelState::Open(_)))
    }

    /// The first of what waits to be confirmed or answered has reached the disk, or never will.
    pub(super) fn has_reached(&mut self, outcome: Result<(), QueueError>, now: Instant) {
        self.now = now;
        self.confirm_ready(Some(outcome));
        self.run_steps();
    }

    /// Confirms and answers what has reached the disk; `first` is what came of the first.
    pub(super) fn confirm_ready(&mut self, first: Option<Result<(), QueueError>>) {
        let channels = &self.channels;
        let open = |number, serial| match channels.get(&number) {
            Some(ChannelState::Open(channel)) if channel.serial == serial => Some(&channel.shown),
            Some(_) | None => None,
        };
        let failure = self.confirms.confirm(&self.shared.broker, first, &mut self.out, open);
        self.answer_failure = self.answer_failure.take().or(failure);
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

/// A connection that nobody sees, until its own task lists it.
fn unlisted(id: SessionId, user: &str, limits: Limits) -> OpenConnection {
    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let facts = ConnectionFacts {
        id,
        protocol: Protocol::Amqp,
        peer: nowhere,
        local: nowhere,
        user: user.to_owned(),
        vhost: "/".to_owned(),
        is_tls: false,
        mechanism: String::new(),
        client_properties: Bytes::new(),
        frame_max: limits.frame_max.bytes(),
        channel_max: limits.channel_max,
        heartbeat_s: limits.heartbeat,
        connected_at: Timestamp(0),
    };
    OpenConnection::new(facts, || {})
}

impl Drop for Session {
    fn drop(&mut self) {
        // Only if the connection did not end as it should.
        drop(Leaving {
            refused: self.take_refused(),
            unfinished: self.unfinished.take(),
            channel_states: Vec::new(),
        });
        if self.owns_queues {
            operations::end_session_soon(&self.shared.broker, self.id);
        }
    }
}
