//! A session on a broker with a disk in memory. The test is its connection: it gives it frames, polls what it waits for, and
//! tells it the time.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use nexo_access::{Identity, Logins, UserName};
use nexo_broker::topology::{Binding, Destination};
use nexo_broker::{Broker, BrokerOptions, Codecs, Durability, NewMessage, QueueConfig, QueueHandle};
use nexo_log::disk::{Disk, GateDisk};
use nexo_types::{ExchangeName, QueueName};
use tokio::runtime::Runtime;

use super::super::operations::caught_up;
use super::super::options::Options;
use super::super::pace::Awaits;
use super::super::session::{Abilities, ConnectionPhase, Limits, Session};
use super::super::shared::ServerState;
use super::super::timing::Life;
use crate::codec::method::{basic, channel, confirm, queue, tx};
use crate::codec::{
    AmqpMethod, FrameKind, FrameMax, Frames, Method, PropertiesBuilder, ShortStr, Table, encode_heartbeat,
    encode_message, encode_method,
};

pub(super) const FRAME_MAX: FrameMax = FrameMax::new(131_072).unwrap();
/// In seconds.
pub(super) const HEARTBEAT: u16 = 10;
/// How long a test waits for a thread of the broker.
const PATIENCE: Duration = Duration::from_secs(30);

/// A session whose connection is the test.
pub(super) struct Rig {
    pub(super) session: Session,
    pub(super) broker: Broker,
    pub(super) gate: GateDisk,
    pub(super) now: Instant,
    /// What was said and not taken yet.
    input: Vec<u8>,
    /// For timers of the broker's own.
    runtime: Runtime,
}

/// Wakes the test.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::with(Options::default())
    }

    pub(super) fn with(options: Options) -> Self {
        let gate = GateDisk::default();
        Self::on(Arc::new(gate.clone()), gate, options)
    }

    /// On another disk.
    pub(super) fn on(disk: Arc<dyn Disk>, gate: GateDisk, options: Options) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let broker_options = BrokerOptions {
            segment_bytes: 1 << 20,
            codecs: crate::register(Codecs::default()),
            ..BrokerOptions::new("memory")
        };
        let broker = Broker::open_on(disk, broker_options).unwrap();
        let shared = Arc::new(ServerState::new(&broker, Logins::new(&broker), options));
        let now = Instant::now();
        let limits = Limits { frame_max: FRAME_MAX, channel_max: 10, heartbeat: HEARTBEAT };
        let abilities = Abilities { blocked: true, cancel_notify: true, qos_by_the_book: false };
        let guest = Identity::configured(broker.clone(), UserName::new("guest").unwrap());
        let session = Session::new(shared, guest, limits, abilities, now);
        Self { session, broker, gate, now, input: Vec::new(), runtime }
    }

    /// With these channels open.
    pub(super) fn open(mut self, channels: &[u16]) -> Self {
        for number in channels {
            self.say(*number, &channel::Open { out_of_band: ShortStr::EMPTY });
        }
        assert_eq!(self.told().len(), channels.len());
        self
    }

    /// The client says something, which is taken as far as the session takes it.
    pub(super) fn say(&mut self, number: u16, method: &impl AmqpMethod) {
        encode_method(&mut self.input, number, method);
        self.take();
    }

    /// The client sends bytes.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        self.take();
    }

    pub(super) fn beat(&mut self) {
        let mut beat = Vec::new();
        encode_heartbeat(&mut beat);
        self.send(&beat);
    }

    pub(super) fn publish(&mut self, number: u16, queue: &str, mode: u8, body: &str) {
        let method = basic::Publish {
            ticket: 0,
            exchange: ShortStr::EMPTY,
            routing_key: short(queue),
            mandatory: false,
            immediate: false,
        };
        let properties = PropertiesBuilder::new().delivery_mode(mode).to_vec();
        let mut bytes = Vec::new();
        encode_message(&mut bytes, number, &method, &properties, body.as_bytes(), FRAME_MAX);
        self.send(&bytes);
    }

    fn take(&mut self) {
        let _entered = self.runtime.enter();
        if self.session.takes_frames() {
            self.session.has_heard(self.now);
            let taken = self.session.take_frames(&self.input, self.now);
            self.input.drain(..taken.bytes);
        } else {
            self.session.stalled |= !self.input.is_empty();
        }
        self.write();
    }

    fn write(&mut self) {
        self.session.write_waiting(self.now);
        self.session.run_steps();
        self.session.close_if_log_failed();
    }

    /// Polls what the session waits for until nothing comes of that.
    pub(super) fn run(&mut self) {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        while self.poll(&mut Context::from_waker(&waker)) {
            self.write();
        }
    }

    /// As [`Self::run`], and waits until something is so.
    #[track_caller]
    pub(super) fn run_until(&mut self, is_so: impl Fn(&mut Self) -> bool) {
        let began = Instant::now();
        loop {
            self.run();
            if is_so(self) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "it did not come to be so; told so far: {:?}", self.told());
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// Runs until the client is told so many things, and says which.
    #[track_caller]
    pub(super) fn told_within(&mut self, count: usize) -> Vec<String> {
        let mut told = Vec::new();
        let began = Instant::now();
        while told.len() < count {
            assert!(began.elapsed() < PATIENCE, "{told:?}");
            self.run();
            told.extend(self.told());
            std::thread::park_timeout(Duration::from_millis(1));
        }
        told
    }

    /// Polls each of the things that the session waits for; `true` if one has come.
    fn poll(&mut self, context: &mut Context<'_>) -> bool {
        let _entered = self.runtime.enter();
        let (session, now) = (&mut self.session, self.now);
        if let Some(Poll::Ready(waited)) = session.held_up.as_mut().map(|wait| wait.poll_unpin(context)) {
            session.has_waited(waited, now);
            return true;
        }
        if let Some(Poll::Ready(done)) = session.operation.as_mut().map(|wait| wait.poll_unpin(context)) {
            session.has_done(done, now);
            return true;
        }
        let reached = session.confirms.pending(&self.broker).map(|wait| wait.poll_unpin(context));
        if let Some(Poll::Ready(reached)) = reached {
            session.has_reached(reached, now);
            return true;
        }
        if let Some(Poll::Ready(hold)) = session.intake.pending().map(|wait| wait.poll_unpin(context)) {
            session.take_hold(hold, now);
            return true;
        }
        if session.pace.is_behind()
            && pin!(caught_up(&mut session.pace, Awaits::NoAcks)).poll(context).is_ready()
        {
            return true;
        }
        let is_running = session.phase == ConnectionPhase::Running && session.out.has_room();
        if is_running && session.waiting.is_empty() {
            let arrived = pin!(session.consumers.next()).poll(context);
            if let Poll::Ready(Some(arrival)) = arrived {
                session.take_arrival(arrival);
                return true;
            }
        }
        if session.stalled && session.takes_frames() {
            let before = self.input.len();
            self.take();
            return self.input.len() < before;
        }
        false
    }

    /// What the client has been told since this was asked last, as `channel method` or `channel = body`.
    pub(super) fn told(&mut self) -> Vec<String> {
        let bytes = self.session.out.bytes.clone();
        if bytes.is_empty() {
            return Vec::new();
        }
        self.session.has_written(bytes.len(), self.now);
        let tell = |frame: crate::codec::Frame<'_>| match frame.kind {
            FrameKind::Method => {
                Some(format!("{} {}", frame.channel, Method::decode(frame.payload).unwrap().name()))
            }
            FrameKind::Body => {
                Some(format!("{} = {}", frame.channel, String::from_utf8_lossy(frame.payload)))
            }
            FrameKind::Heartbeat => Some("heartbeat".to_owned()),
            FrameKind::Header => None,
        };
        Frames::new(&bytes, FRAME_MAX).filter_map(|frame| tell(frame.unwrap())).collect()
    }

    /// Time passes, and the session is told.
    pub(super) fn pass(&mut self, time: Duration) -> Life {
        self.now += time;
        let _entered = self.runtime.enter();
        let life = self.session.tick(self.now);
        self.write();
        life
    }

    /// Does something in a task that has used up its turn: whatever of the runtime it asks tells it to wait.
    pub(super) fn with_used_up_turn(&mut self, run: impl FnOnce(&mut Self)) {
        let runtime = self.runtime.handle().clone();
        let mut run = Some(run);
        runtime.block_on(std::future::poll_fn(|context| {
            while tokio::task::coop::has_budget_remaining() {
                let _ = pin!(tokio::task::coop::consume_budget()).poll(context);
            }
            if let Some(run) = run.take() {
                run(self);
            }
            Poll::Ready(())
        }));
    }

    pub(super) fn shut_down(&mut self) {
        let _entered = self.runtime.enter();
        self.session.force_end(self.now, None);
    }

    /// The client is gone.
    pub(super) fn end(&mut self) {
        let _entered = self.runtime.enter();
        self.session.end();
    }

    pub(super) fn queue(&self, name: &str) -> Option<QueueHandle> {
        self.broker.queue(&QueueName::new(name).unwrap())
    }

    /// A message comes to a queue by another way.
    pub(super) fn push(&self, queue: &str, body: &str) {
        let message = NewMessage { durability: Durability::Transient, ..NewMessage::new(body.to_owned()) };
        self.queue(queue).unwrap().push(&message).unwrap();
    }

    /// Has the log take no more, not even the smallest record, until the gate is open.
    pub(super) fn fill_log(&mut self) {
        let name = QueueName::new("f").unwrap();
        let create = |broker: Broker| async move {
            broker.create_queue(&QueueName::new("f").unwrap(), QueueConfig::default()).await.unwrap()
        };
        self.block_on(create);
        self.gate.hold_writes();
        let queue = self.broker.queue(&name).unwrap();
        let mut bytes = 10_000;
        while bytes > 0 {
            if queue.push(&NewMessage::new(vec![7; bytes])).is_err() {
                bytes /= 2;
            }
        }
        let exchange = ExchangeName::new("amq.direct").unwrap();
        let binding = Binding::new(exchange, Destination::Queue(name), Bytes::new(), Vec::new());
        while self.broker.try_bind(binding.clone()).is_ok() && self.broker.try_unbind(&binding).is_ok() {}
    }

    pub(super) fn block_on<F: Future>(&self, run: impl FnOnce(Broker) -> F) -> F::Output {
        self.runtime.block_on(run(self.broker.clone()))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The broker could not end otherwise.
        self.gate.open_gate();
    }
}

pub(super) fn short(text: &str) -> ShortStr<'_> {
    ShortStr::new(text.as_bytes()).unwrap()
}

pub(super) fn declare(name: &str) -> queue::Declare<'_> {
    queue::Declare {
        ticket: 0,
        queue: short(name),
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        nowait: false,
        arguments: Table::EMPTY,
    }
}

/// A declare of a queue that is not written down.
pub(super) fn declare_transient(name: &str) -> queue::Declare<'_> {
    queue::Declare { durable: false, ..declare(name) }
}

/// A consumer named like its queue.
pub(super) fn consume(name: &str) -> basic::Consume<'_> {
    basic::Consume {
        ticket: 0,
        queue: short(name),
        consumer_tag: short(name),
        no_local: false,
        no_ack: false,
        exclusive: false,
        nowait: false,
        arguments: Table::EMPTY,
    }
}

pub(super) const fn ack(delivery_tag: u64) -> basic::Ack {
    basic::Ack { delivery_tag, multiple: false }
}

pub(super) const fn qos(prefetch_count: u16, global: bool) -> basic::Qos {
    basic::Qos { prefetch_size: 0, prefetch_count, global }
}

pub(super) const CONFIRMS: confirm::Select = confirm::Select { nowait: false };
pub(super) const TRANSACTION: tx::Select = tx::Select {};
pub(super) const PERSISTENT: u8 = 2;
pub(super) const TRANSIENT: u8 = 1;
