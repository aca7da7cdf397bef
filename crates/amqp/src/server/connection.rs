//! The life of one connection: a loop over its socket that reads, writes, and awaits what its session waits for. Only here
//! is anything awaited, and only here is a clock read.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use nexo_access::Ended;
use nexo_broker::{Actor, ConnectionFacts, OpenConnection, Protocol, VhostStay, acting};
use nexo_net::{ReadHalf, Stream, Tenure, Unserved, WriteHalf};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::dispatch::Stop;
use super::handshake::Handshake;
use super::login::Origin;
use super::operations::{caught_up, outcome};
use super::pace::Awaits;
use super::read_size::{READ_BYTES_MIN, ReadSize};
use super::receive::Direct;
use super::session::{ConnectionPhase, Session};
use super::shared::ServerState;
use super::socket::{Read, drain, failed, read_some, write_some};
use super::timing::{IDLE_TICK, Life};

/// As RabbitMQ has it: a client that does not get further holds a socket for nothing.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Whether a connection is served, and how long.
#[derive(Debug)]
pub(super) struct Terms {
    /// How many connections there may be, if this is one too many.
    pub(super) limit_reached: Option<usize>,
    /// Why no node of its cluster serves it, if that is so.
    pub(super) unserved: Option<Unserved>,
    /// How long this node leads, in a cluster.
    pub(super) tenure: Option<Tenure>,
    /// Cancelled when that is over, and when the broker stops.
    pub(super) stop: CancellationToken,
}

/// Serves one connection to its end, or tells its client why not.
pub(super) async fn run(shared: Arc<ServerState>, socket: Stream, origin: Origin, terms: Terms) {
    let Terms { limit_reached, unserved, tenure, stop } = terms;
    let (peer, is_tls) = (origin.address, origin.tls.is_some());
    // Frames are collected before they are written, so waiting for more to send would only cost time.
    let _ = socket.set_nodelay();
    // The peer may be gone already.
    let Ok(local) = socket.local_addr() else { return };
    let _counted = shared.broker.traffic().connection(Protocol::Amqp);
    let began = Instant::now();
    let (mut reader, mut writer) = socket.into_split();
    let mut input = BytesMut::new();
    // Also when the broker stops, so that a connection waits for one thing and not for two.
    let ends = stop.child_token();
    let handshake = Handshake {
        reader: &mut reader,
        writer: &mut writer,
        input: &mut input,
        origin,
        shared: &shared,
        limit_reached,
        unserved,
        vhost_deleted: ends.clone(),
    };
    let opened = tokio::select! {
        opened = timeout(HANDSHAKE_MAX, Box::pin(handshake.run())) => opened,
        () = stop.cancelled() => return,
    };
    let Ok(Some(opened)) = opened else {
        tracing::info!(protocol = "amqp", %peer, "connection ended before it was open");
        return;
    };
    let read_size = ReadSize::new(Arc::clone(&shared.busy_readers));
    let identity = opened.presence.identity().clone();
    let mut session = Session::new(shared, identity, opened.limits, opened.abilities, now());
    let user_gone = opened.presence.ended();
    (session.peer, session.presence) = (Some(peer), Some(Arc::new(opened.presence)));
    session.enter_vhost(opened.stay.vhost());
    let (user, vhost) = (&session.user, session.vhost_logged());
    tracing::info!(protocol = "amqp", %peer, user = user.as_str(), vhost, "connection opened");
    let told = opened.told;
    let facts = ConnectionFacts {
        peer,
        local,
        vhost: opened.stay.vhost().as_str().to_owned(),
        is_tls,
        mechanism: told.mechanism,
        client_properties: told.properties,
        connected_at: session.shared.broker.now(),
        ..session.shown.facts().clone()
    };
    let asked_to_close = ends.clone();
    session.shown = Arc::new(OpenConnection::new(facts, move || asked_to_close.cancel()));
    let listed = session.shared.broker.open_connections().list(Arc::clone(&session.shown));
    // In a place of its own, or the task would have room for each place that it is moved to.
    let mut connection = Box::new(Connection {
        session,
        reader,
        writer,
        input,
        read_size,
        next_read_max: None,
        direct: None,
        tenure,
        stop,
        ends,
        stay: opened.stay,
        user_gone,
        tick: Box::pin(sleep(IDLE_TICK)),
        worked: Duration::ZERO,
    });
    let actor = Actor { user: connection.session.user.as_str().to_owned(), from: Some(peer) };
    let served = acting(actor, async {
        // Frames may have come together with the end of the handshake.
        connection.take_input();
        connection.serve().await;
    });
    Box::pin(served).await;
    let Connection { session, stop, .. } = &mut *connection;
    if session.is_committing() {
        tokio::select! {
            () = finish(session) => {}
            () = stop.cancelled() => {}
        }
    }
    session.end();
    let grace = session.shared.options.close_max;
    tokio::select! {
        () = finish(session) => {}
        // What it still has to give back goes on without it, or comes back with the next start.
        () = stop_has_lasted(stop, grace) => {}
    }
    drop(listed);
    Box::pin(connection.close(peer, began)).await;
}

/// The time, as sessions are told it.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// Resolves so much time after the broker was told to stop, or after this began if that was later.
async fn stop_has_lasted(stop: &CancellationToken, grace: Duration) {
    stop.cancelled().await;
    sleep(grace).await;
}

/// Brings to its end what a session has begun.
async fn finish(session: &mut Session) {
    while session.must_finish() {
        let broker = &session.shared.broker;
        tokio::select! {
            waited = outcome(session.held_up.as_mut()), if session.held_up.is_some() => {
                session.has_waited(waited, now());
            }
            done = outcome(session.operation.as_mut()), if session.operation.is_some() => {
                session.has_done(done, now());
            }
            reached = outcome(session.confirms.pending(broker)), if !session.confirms.is_empty() => {
                session.has_reached(reached, now());
            }
            else => return,
        }
    }
}

struct Connection {
    session: Session,
    reader: ReadHalf,
    writer: WriteHalf,
    input: BytesMut,
    read_size: ReadSize,
    /// If the next read should bring no more than this.
    next_read_max: Option<usize>,
    /// The body frame that is read to its place.
    direct: Option<Direct>,
    /// Says why this node leads no more, in a cluster.
    tenure: Option<Tenure>,
    stop: CancellationToken,
    /// Cancelled when the broker stops, the virtual host of the connection is deleted, or somebody wants it to end.
    ends: CancellationToken,
    stay: VhostStay,
    /// Says that the user was deleted.
    user_gone: Ended,
    tick: Pin<Box<Sleep>>,
    /// How long it has worked since others had their turn.
    worked: Duration,
}

impl Connection {
    /// Lets the peer go, and finishes what it left behind.
    async fn close(self: Box<Self>, peer: SocketAddr, began: Instant) {
        let Self { mut session, reader, mut writer, stop, stay, .. } = *self;
        // It counts no more, however long its peer takes to go.
        drop((stay, session.presence.take()));
        let is_agreed = session.phase == ConnectionPhase::Closed;
        let (user, close_max) = (session.user.clone(), session.shared.options.close_max);
        // The peer may be gone already, or not read the last that TLS has to say.
        let _ = timeout(close_max, writer.shutdown()).await;
        let seconds = began.elapsed().as_secs();
        let vhost = session.vhost_logged();
        tracing::info!(protocol = "amqp", %peer, user = user.as_str(), vhost, seconds, "connection closed");
        if is_agreed {
            drop(session);
            drain(reader, stop, close_max).await;
            return;
        }
        drop((reader, writer));
        // What was read before the peer went counts, as soon as the disk takes it.
        session.flush_whole();
        tokio::select! {
            () = finish(&mut session) => {}
            () = stop.cancelled() => {}
        }
    }

    async fn serve(&mut self) {
        let (mut ending, mut is_user_gone) = (false, false);
        loop {
            self.hand_over();
            let time = Instant::now();
            self.session.write_waiting(time.into_std());
            // What they wait for may have come by any way.
            self.session.run_steps();
            self.session.close_if_log_failed();
            if self.session.phase == ConnectionPhase::Closed && self.session.out.is_empty() {
                return;
            }
            self.wind_up(time);
            if self.session.stalled && self.session.takes_frames() {
                self.take_input();
            }
            let running = self.session.phase == ConnectionPhase::Running;
            let can_read = self.session.reads();
            let has_room = self.session.out.has_room();
            let takes_more = running && has_room && self.session.waiting.is_empty();
            // While it is paused, messages are handed out all the same: acknowledgements may have become due.
            let awaits = if self.session.pace.is_behind() { self.session.awaits() } else { Awaits::NoAcks };
            let (room, direct) = ((self.read_size.bytes(), self.input_max()), self.direct);
            let Self { session, reader, writer, input, tenure, stop, ends, user_gone, tick, .. } = self;
            let has_bytes = !session.out.is_empty() || writer.holds_bytes();
            let (channels, broker) = (&mut session.channels, &session.shared.broker);
            let incoming = async {
                if can_read {
                    read_some(reader, input, room, channels, direct).await
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
                written = write_some(writer, &session.out, &session.socket), if has_bytes => match written {
                    Ok(count) => {
                        let shown = &self.session.shown;
                        shown.sent_bytes.add(count as u64);
                        shown.sent_count.add(1);
                        self.session.has_written(count, now());
                    }
                    Err(_) => return,
                },
                Some(arrival) = session.consumers.next(), if takes_more => self.session.take_arrival(arrival),
                reached = outcome(session.confirms.pending(broker)), if !session.confirms.is_empty() => {
                    self.session.has_reached(reached, now());
                }
                Some(reply) = session.replies.recv(), if running && has_room => self.session.write_reply(&reply),
                () = caught_up(&mut session.pace, awaits), if session.pace.is_behind() => {}
                waited = outcome(session.held_up.as_mut()), if session.held_up.is_some() => {
                    self.session.has_waited(waited, now());
                }
                done = outcome(session.operation.as_mut()), if session.operation.is_some() => {
                    self.session.has_done(done, now());
                }
                hold = outcome(session.intake.pending()), if session.intake.is_waiting() => {
                    self.session.take_hold(hold, now());
                }
                () = tick => {
                    if self.has_ticked() == Life::Over {
                        return;
                    }
                }
                () = user_gone.wait(), if !is_user_gone => {
                    is_user_gone = true;
                    self.session.user_was_deleted(now());
                }
                () = ends.cancelled(), if !ending => {
                    ending = true;
                    if stop.is_cancelled() || session.shown.close_reason().is_some() {
                        let unserved = tenure.as_ref().and_then(Tenure::why);
                        self.session.force_end(now(), unserved);
                    } else {
                        self.session.vhost_deleted(now());
                    }
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
    }

    /// How much may be read into the input. What follows a large body is likely to be another one, of which little
    /// should have to be copied.
    fn input_max(&self) -> usize {
        self.next_read_max.unwrap_or(self.read_size.most())
    }

    /// Sees to it that the next tick comes in time.
    fn wind_up(&mut self, time: Instant) {
        let latest = time + self.session.tick_within();
        if self.tick.deadline() > latest {
            self.tick.as_mut().reset(latest);
        }
    }

    fn has_received(&mut self, count: usize) {
        self.show_received(count);
        self.session.has_heard(now());
        let Some(direct) = self.direct else { return };
        (self.direct, self.next_read_max) = self.session.has_received(direct, count, &mut self.input);
    }

    fn show_received(&self, bytes: usize) {
        self.session.shown.received_bytes.add(bytes as u64);
        self.session.shown.received_count.add(1);
    }

    async fn has_read(&mut self, count: usize) {
        self.show_received(count);
        let began = Instant::now();
        self.session.has_heard(began.into_std());
        self.next_read_max = None;
        self.read_size.has_read(count);
        self.take_input();
        if self.input.is_empty() && self.input.capacity() > 4 * self.read_size.bytes() {
            // It read more at once when there were fewer connections.
            self.input = BytesMut::new();
        }
        let ended = Instant::now();
        self.worked += ended.duration_since(began);
        // What came meanwhile has not been read: the peer is not silent for that.
        self.session.has_heard(ended.into_std());
        if self.worked >= self.session.pace.turn() {
            // One that always has more to read would keep its thread from the others.
            tokio::task::yield_now().await;
            self.worked = Duration::ZERO;
        }
    }

    /// Works through the whole frames that have come.
    fn take_input(&mut self) {
        let taken = self.session.take_frames(&self.input, now());
        self.input.advance(taken.bytes);
        self.direct = match taken.stop {
            Stop::NoMore => self.session.begin_direct(&mut self.input),
            Stop::Busy => None,
        };
        self.hand_over();
    }

    /// Lets another thread of the runtime have the consumers that were just woken, if they were many. The runtime keeps the
    /// task that was woken last for the thread that woke it, which goes on with this connection for a while; a task woken
    /// after it takes that place, and this one has nothing to do.
    fn hand_over(&mut self) {
        if std::mem::take(&mut self.session.hands_over) {
            drop(tokio::spawn(std::future::ready(())));
        }
    }

    /// Looks after everything that time brings.
    fn has_ticked(&mut self) -> Life {
        let time = Instant::now();
        self.tick.as_mut().reset(time + IDLE_TICK);
        self.release_buffers();
        self.session.tick(time.into_std())
    }
}
