//! The life of one connection: a loop over its socket that reads, writes, and looks after time.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use nexo_broker::{Protocol, QueueError, SocketState};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::dispatch::Stop;
use super::erlang;
use super::error::{Refusal, frame_refusal};
use super::handshake::Handshake;
use super::held_up::Waited;
use super::output::Output;
use super::pace::Awaits;
use super::read_size::{READ_BYTES_MIN, ReadSize};
use super::receive::{Direct, Read, read_some};
use super::session::{ConnectionPhase, Peer, Session};
use super::shared::ServerState;
use crate::codec::{FRAME_HEAD_BYTES, FRAME_OVERHEAD_BYTES, FrameError, ReplyCode};

/// As RabbitMQ has it: a client that does not get further holds a socket for nothing.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How long a client may take to agree to the end if it cannot be understood any more; otherwise `close_max`.
const DEAF_CLOSE_MAX: Duration = Duration::from_secs(1);
const BLOCKED_TICK: Duration = Duration::from_millis(200);
/// The same, where the disk is behind for a moment: a client may wait for what its acknowledgements make room for.
const BUSY_TICK: Duration = Duration::from_millis(5);
/// How often is looked for clients that hold messages too long: a tenth of that time, within these bounds.
const TIMEOUT_TICK_MIN: Duration = Duration::from_secs(1);
const TIMEOUT_TICK_MAX: Duration = Duration::from_secs(60);
const IDLE_TICK: Duration = Duration::from_secs(3600);

/// Serves one connection to its end.
pub(super) async fn run(
    shared: Arc<ServerState>,
    socket: TcpStream,
    peer: SocketAddr,
    stop: CancellationToken,
) {
    // Frames are collected before they are written, so waiting for more to send would only cost time.
    let _ = socket.set_nodelay(true);
    let _counted = shared.broker.traffic().connection(Protocol::Amqp);
    let began = Instant::now();
    let (mut reader, mut writer) = socket.into_split();
    let mut input = BytesMut::new();
    let handshake = Handshake {
        reader: &mut reader,
        writer: &mut writer,
        input: &mut input,
        from: peer,
        shared: &shared,
    };
    let opened = tokio::select! {
        opened = timeout(HANDSHAKE_MAX, handshake.run()) => opened,
        () = stop.cancelled() => return,
    };
    let Ok(Some(opened)) = opened else {
        tracing::info!(protocol = "amqp", %peer, "connection ended before it was open");
        return;
    };
    let user = opened.user;
    tracing::info!(protocol = "amqp", %peer, user, "connection opened");
    let read_size = ReadSize::new(Arc::clone(&shared.busy_readers));
    let mut session = Session::new(shared, opened.user, opened.limits, opened.abilities);
    session.peer = Some(peer);
    let mut connection = Connection {
        session,
        reader,
        writer,
        input,
        stalled: false,
        read_size,
        next_read_max: None,
        direct: None,
        stop,
        tick: Box::pin(sleep(IDLE_TICK)),
        worked: Duration::ZERO,
        heard: Instant::now(),
        told: Instant::now(),
        closing_until: None,
        deaf: false,
    };
    // Frames may have come together with the end of the handshake.
    connection.take_input().await;
    connection.serve().await;
    let Connection { session, stop, .. } = &mut connection;
    tokio::select! {
        () = session.finish_held_up() => {}
        () = stop.cancelled() => {}
    }
    connection.session.end().await;
    let Connection { mut session, reader, mut writer, stop, .. } = connection;
    let is_agreed = session.phase == ConnectionPhase::Closed;
    let close_max = session.shared.options.close_max;
    // The peer may be gone already.
    let _ = writer.shutdown().await;
    let seconds = began.elapsed().as_secs();
    tracing::info!(protocol = "amqp", %peer, user, seconds, "connection closed");
    if is_agreed {
        drop(session);
        drain(reader, stop, close_max).await;
        return;
    }
    drop((reader, writer));
    // What was read before the peer went counts, as soon as the disk takes it.
    tokio::select! {
        () = session.flush_whole() => {}
        () = stop.cancelled() => {}
    }
}

/// Reads and discards until the client closes its end, for a while: one that still writes when the socket is closed
/// gets a reset, which some clients take for a failure, and which may cost them the `close-ok` that they have not read.
async fn drain(mut reader: OwnedReadHalf, stop: CancellationToken, close_max: Duration) {
    let mut discarded = [0; 4096];
    let drained = async { while matches!(reader.read(&mut discarded).await, Ok(count) if count > 0) {} };
    tokio::select! {
        _ = timeout(close_max, drained) => {}
        () = stop.cancelled() => {}
    }
}

/// What has come of a frame of an unknown kind.
enum Announced<'a> {
    Partly,
    TooLarge,
    Whole { kind: u8, payload: &'a [u8] },
}

struct Connection {
    session: Session,
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    input: BytesMut,
    /// Whether frames have come that the session would not take yet.
    stalled: bool,
    read_size: ReadSize,
    /// If the next read should bring no more than this.
    next_read_max: Option<usize>,
    /// The body frame that is read to its place.
    direct: Option<Direct>,
    stop: CancellationToken,
    tick: Pin<Box<Sleep>>,
    /// How long it has worked since others had their turn.
    worked: Duration,
    /// When the peer was last heard of.
    heard: Instant,
    /// When the peer last heard of us.
    told: Instant,
    closing_until: Option<Instant>,
    /// Whether the peer's bytes make no sense any more.
    deaf: bool,
}

impl Connection {
    async fn serve(&mut self) {
        let mut stopping = false;
        loop {
            self.session.write_waiting();
            self.session.close_if_log_failed().await;
            self.note_phase();
            if self.session.phase == ConnectionPhase::Closed && self.session.out.is_empty() {
                return;
            }
            self.wind_up();
            if self.stalled && self.session.takes_frames() {
                self.take_input().await;
            }
            let running = self.session.phase == ConnectionPhase::Running;
            let can_read = self.can_read();
            let has_room = self.session.out.has_room();
            let takes_more = running && has_room && self.session.waiting.is_empty();
            if self.input.capacity() - self.input.len() < READ_BYTES_MIN / 2 {
                self.input.reserve(self.read_size.bytes());
            }
            // While it is paused, messages are handed out all the same: acknowledgements may have become due.
            let awaits = if self.session.pace.is_behind() { self.session.awaits() } else { Awaits::NoAcks };
            let (input_max, direct) = (self.input_max(), self.direct);
            let Self { session, reader, writer, input, stop, tick, .. } = self;
            let channels = &mut session.channels;
            let incoming = async {
                if can_read {
                    read_some(reader, input, input_max, channels, direct).await
                } else {
                    // Who waits for long should notice that its peer is gone.
                    failed(reader).await
                }
            };
            tokio::select! {
                read = incoming => match read {
                    Ok(Read::Input(count)) if count > 0 => self.has_read(count).await,
                    Ok(Read::Body(count)) if count > 0 => self.has_received(count),
                    Ok(_) | Err(_) => return,
                },
                written = write_some(writer, &session.out, &session.socket), if !session.out.is_empty() => match written {
                    Ok(count) => {
                        self.session.out.advance(count);
                        self.told = Instant::now();
                    }
                    Err(_) => return,
                },
                Some(arrival) = session.consumers.next(), if takes_more => self.session.take_arrival(arrival),
                outcome = session.confirms.reached(&session.shared.broker), if !session.confirms.is_empty() => {
                    self.session.confirm_ready(Some(outcome));
                }
                Some(reply) = session.replies.recv(), if running && has_room => self.session.write_reply(&reply),
                () = session.pace.caught_up(awaits), if session.pace.is_behind() => {}
                waited = held_up(&mut session.held_up), if session.held_up.is_some() => {
                    self.session.has_waited(waited).await;
                }
                Some((channel, serial, hold)) = session.intake.granted(), if session.intake.is_waiting() => {
                    self.session.take_hold(channel, serial, hold);
                }
                () = tick => {
                    if !self.has_ticked().await {
                        return;
                    }
                }
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    let refusal = Refusal::new(ReplyCode::ConnectionForced, "broker forced connection closure with reason 'shutdown'");
                    self.session.finish_held_up().await;
                    self.session.close(&refusal).await;
                }
            }
        }
    }

    /// Gives back the memory of a load that is over.
    fn release_buffers(&mut self) {
        let was_busy = self.input.capacity() > READ_BYTES_MIN || self.read_size.bytes() > READ_BYTES_MIN;
        if self.input.is_empty() && was_busy {
            self.input = BytesMut::new();
            self.read_size.shrink();
        }
        self.session.out.release();
    }

    /// How much may be read into the input. What follows a large body is likely to be another one, of which little
    /// should have to be copied.
    fn input_max(&self) -> usize {
        self.next_read_max.unwrap_or(self.read_size.most())
    }

    fn can_read(&self) -> bool {
        !self.stalled && self.session.takes_frames()
    }

    fn note_phase(&mut self) {
        if self.session.phase != ConnectionPhase::Running && self.closing_until.is_none() {
            let close_max = self.session.shared.options.close_max;
            let wait = if self.deaf { DEAF_CLOSE_MAX.min(close_max) } else { close_max };
            self.closing_until = Some(Instant::now() + wait);
        }
    }

    /// Sees to it that the next tick comes in time.
    fn wind_up(&mut self) {
        let half_beat = Duration::from_millis(500) * u32::from(self.session.limits.heartbeat);
        let mut wait = if half_beat.is_zero() { IDLE_TICK } else { half_beat };
        if let Some(timeout) = self.session.shortest_timeout {
            wait = wait.min((timeout / 10).clamp(TIMEOUT_TICK_MIN, TIMEOUT_TICK_MAX));
        }
        if self.session.intake.held_bytes() > 0 {
            wait = wait.min(TIMEOUT_TICK_MIN);
        }
        let is_busy = self.session.settle_refusal.as_ref().is_some_and(QueueError::is_busy);
        if is_busy || self.session.settles_left {
            wait = wait.min(BUSY_TICK);
        }
        if self.session.behind.is_some() {
            wait = wait.min(TIMEOUT_TICK_MIN);
        }
        let waits_for_disk = self.session.blocked || self.session.settle_refusal.is_some();
        if waits_for_disk || self.session.withholds || self.closing_until.is_some() {
            wait = wait.min(BLOCKED_TICK);
        }
        let latest = Instant::now() + wait;
        if self.tick.deadline() > latest {
            self.tick.as_mut().reset(latest);
        }
    }

    fn has_received(&mut self, count: usize) {
        self.heard = Instant::now();
        let Some(direct) = self.direct else { return };
        (self.direct, self.next_read_max) = self.session.has_received(direct, count, &mut self.input);
    }

    async fn has_read(&mut self, count: usize) {
        self.heard = Instant::now();
        self.next_read_max = None;
        self.read_size.has_read(count);
        self.take_input().await;
        if self.input.is_empty() && self.input.capacity() > 4 * self.read_size.bytes() {
            // It read more at once when there were fewer connections.
            self.input = BytesMut::new();
        }
        self.worked += self.heard.elapsed();
        // What came meanwhile has not been read: the peer is not silent for that.
        self.heard = Instant::now();
        if self.worked >= self.session.pace.turn() {
            // One that always has more to read would keep its thread from the others.
            tokio::task::yield_now().await;
            self.worked = Duration::ZERO;
        }
    }

    /// Works through the whole frames that have come, and refuses what is no frame.
    async fn take_input(&mut self) {
        if self.deaf {
            self.input.clear();
            return;
        }
        loop {
            let taken = self.session.take_frames(&self.input).await;
            self.input.advance(taken.bytes);
            self.stalled = matches!(taken.stop, Stop::Busy);
            self.direct = None;
            match taken.stop {
                Stop::NoMore => {
                    self.direct = self.session.begin_direct(&mut self.input);
                    return;
                }
                Stop::Busy => return,
                Stop::Fault(fault) => {
                    if !self.refuse(fault).await {
                        return;
                    }
                }
            }
        }
    }

    /// Refuses what stands at the head of the input; `true` if what follows it can be read.
    async fn refuse(&mut self, fault: FrameError) -> bool {
        let (refusal, whole) = match fault {
            FrameError::UnknownKind { .. } | FrameError::HeartbeatPayload { .. } => match self.announced() {
                Announced::Partly => return false,
                Announced::TooLarge => (frame_refusal(fault), None),
                Announced::Whole { kind, payload } => {
                    let octets = erlang::binary(payload);
                    let text = format!("type {kind}, all octets = {octets}: unknown_frame");
                    let whole = payload.len() + FRAME_OVERHEAD_BYTES;
                    (Refusal::new(ReplyCode::FrameError, text), Some(whole))
                }
            },
            FrameError::TooLarge { .. } | FrameError::End { .. } => (frame_refusal(fault), None),
        };
        self.session.close(&refusal).await;
        match whole {
            Some(whole) => {
                let _ = self.input.split_to(whole);
                true
            }
            None => {
                self.deaf = true;
                self.input.clear();
                false
            }
        }
    }

    /// The frame at the head of the input, which is of no known kind but has a length nevertheless.
    fn announced(&self) -> Announced<'_> {
        let Some((&[kind, _, _, s0, s1, s2, s3], rest)) = self.input.split_first_chunk::<FRAME_HEAD_BYTES>()
        else {
            return Announced::Partly;
        };
        let bytes = u32::from_be_bytes([s0, s1, s2, s3]);
        if !self.session.limits.frame_max.admits(bytes) {
            return Announced::TooLarge;
        }
        match rest.split_at_checked(bytes as usize) {
            Some((payload, [_, ..])) => Announced::Whole { kind, payload },
            Some((_, [])) | None => Announced::Partly,
        }
    }

    /// Looks after everything that time brings; `false` if the connection is over.
    async fn has_ticked(&mut self) -> bool {
        self.tick.as_mut().reset(Instant::now() + IDLE_TICK);
        let now = Instant::now();
        if self.closing_until.is_some_and(|until| now >= until) {
            return false;
        }
        self.session.settle_refused();
        self.session.tell_of_wait();
        self.session.unblock().await;
        if self.session.withholds {
            self.session.give_withheld();
        }
        self.session.end_standstill().await;
        self.release_buffers();
        if self.session.shortest_timeout.is_some() {
            self.session.enforce_timeouts().await;
        }
        let beat = Duration::from_secs(self.session.limits.heartbeat.into());
        if beat.is_zero() {
            return true;
        }
        // Ticks come every half beat; a little early is as good.
        if self.session.out.is_empty() && now.duration_since(self.told) >= beat * 2 / 5 {
            self.session.out.heartbeat();
        }
        if !self.can_read() {
            // It may well have been heard of.
            self.heard = now;
        }
        if now.duration_since(self.heard) > beat * 2 {
            tracing::info!(protocol = "amqp", peer = %Peer(self.session.peer), "connection lost: no heartbeat");
            return false;
        }
        true
    }
}

/// Resolves when the connection has failed, without reading from it. What a peer has written that closed its end as it
/// should is still there to be read.
async fn failed(reader: &OwnedReadHalf) -> std::io::Result<Read> {
    reader.ready(Interest::ERROR).await?;
    Ok(Read::Input(0))
}

async fn held_up(wait: &mut Option<BoxFuture<'static, Waited>>) -> Waited {
    match wait {
        Some(wait) => wait.await,
        None => std::future::pending().await,
    }
}

/// Writes what the socket takes, and notes whether it takes anything.
async fn write_some(
    writer: &mut OwnedWriteHalf,
    out: &Output,
    socket: &SocketState,
) -> std::io::Result<usize> {
    let written = std::future::poll_fn(|context| {
        let polled = out.poll_write(Pin::new(&mut *writer), context);
        socket.set_stalled(polled.is_pending());
        polled
    });
    written.await
}
