//! The connection over which envelopes go to one node. It is made again whenever it ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nexo_net::{PeerStream, SharedSocket};
use nexo_types::limits::PEER_DIALS_MAX;
use nexo_types::{NodeId, Timestamp};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::dial::{Cause, dial};
use crate::figures::{Figures, PeerStatus};
use crate::frame::{Frame, HEAD_BYTES, envelope_head, ping, read_frame, within, write_all};
use crate::handshake::{skew_ms, wall_clock};
use crate::identity::PeerIdentity;
use crate::peers::PeersState;
use crate::purpose::Purpose;
use crate::queue::{SendQueue, Waiting};

/// How long to wait before a node is tried again, at first and at last.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Small envelopes are written together.
const WRITE_BYTES: usize = 64 << 10;
/// A connection that takes no byte for this long is given up.
const WRITE_STALL_MAX: Duration = Duration::from_secs(5);
/// How often the round trip is measured.
const PING_EVERY: Duration = Duration::from_secs(1);
/// A node that does not answer for this long is asleep, though its machine acknowledges what it is sent. Longer than what a
/// slow network has on its way takes.
const PONG_WITHIN: Duration = Duration::from_secs(10);

/// The way to one node.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) node: NodeId,
    pub(crate) address: String,
    pub(crate) queue: SendQueue,
    pub(crate) figures: Figures,
    /// Connections that are being opened, envelopes aside.
    pub(crate) dials: Semaphore,
    pub(crate) stop: CancellationToken,
}

/// Pings that are not answered, the oldest alone.
#[derive(Debug, Default)]
struct Pinged(Mutex<Option<Asked>>);

#[derive(Clone, Copy, Debug)]
struct Asked {
    number: u64,
    at: Instant,
    time: Timestamp,
}

impl Link {
    pub(crate) fn new(node: NodeId, address: String, stop: CancellationToken) -> Self {
        Self {
            node,
            address,
            queue: SendQueue::default(),
            figures: Figures::default(),
            dials: Semaphore::new(PEER_DIALS_MAX),
            stop,
        }
    }

    pub(crate) fn status(&self) -> PeerStatus {
        self.figures.status(self.node, &self.address, self.queue.dropped())
    }

    /// Keeps a connection until it is told to stop.
    pub(crate) async fn run(self: Arc<Self>, shared: Arc<PeersState>) {
        let mut pause = PAUSE_MIN;
        loop {
            tokio::select! {
                lasted = self.connect_once(&shared) => {
                    // One that ends at once is no better than none.
                    if lasted > PAUSE_MAX {
                        // It may be all connections of this node that broke, and the others soon do without it.
                        pause = PAUSE_MIN;
                        continue;
                    }
                }
                () = self.stop.cancelled() => {
                    self.queue.disconnect();
                    return;
                }
            }
            tokio::select! {
                () = sleep(pause) => pause = (pause * 2).min(PAUSE_MAX),
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// One connection to its end. Tells how long it lasted.
    async fn connect_once(&self, shared: &PeersState) -> Duration {
        let identity = Some(&shared.identity);
        let dialed = dial(&shared.security, identity, &self.address, Purpose::Raft, Some(self.node)).await;
        let (stream, met) = match dialed {
            Ok(dialed) => dialed,
            Err(error) => {
                self.note_failure(&error.to_string(), Cause::of(&error));
                return Duration::ZERO;
            }
        };
        let began = Instant::now();
        let (node, name) = (self.node, met.name);
        tracing::info!(%node, name, address = self.address, "connected to another node");
        self.figures.connected(wall_clock(identity), name, met.version);
        self.figures.measured(met.round_trip, met.skew_ms);
        self.queue.connect(direct_socket(&stream));
        let error = self.converse(shared, stream).await;
        self.queue.disconnect();
        self.note_failure(&error.to_string(), Cause::Network);
        began.elapsed()
    }

    fn note_failure(&self, reason: &str, cause: Cause) {
        let (node, address) = (self.node, &self.address);
        tracing::debug!(%node, address, reason, "no connection to another node");
        if !self.figures.failed(reason) {
            return;
        }
        match cause {
            Cause::Network => {
                tracing::info!(%node, address, reason, "no connection to another node; it is tried again");
            }
            Cause::Mistake => {
                tracing::warn!(%node, address, reason, "another node cannot be spoken with; it is tried again");
            }
        }
    }

    /// Sends an envelope, if there is room for it. Never waits.
    pub(crate) fn send(&self, envelope: Vec<u8>) {
        let bytes = envelope.len();
        if self.queue.push(envelope) {
            self.note_sent(bytes);
        }
    }

    fn note_sent(&self, bytes: usize) {
        self.figures.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Sends what there is to send until the connection fails. Tells why.
    async fn converse(&self, shared: &PeersState, stream: PeerStream) -> io::Error {
        let (mut reader, writer) = tokio::io::split(stream);
        let pinged = Pinged::default();
        let ended = tokio::select! {
            ended = self.write(&shared.identity, BufWriter::with_capacity(WRITE_BYTES, writer), &pinged) => ended,
            ended = self.read(&mut reader, &pinged) => ended,
        };
        ended.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Writes envelopes and pings. Ends with an error only.
    async fn write(
        &self,
        identity: &PeerIdentity,
        mut writer: impl AsyncWrite + Unpin,
        pinged: &Pinged,
    ) -> io::Result<()> {
        let (mut next_ping, mut number) = (Instant::now(), 0);
        loop {
            self.queue.take_pen();
            let waiting = self.queue.pop();
            let now = Instant::now();
            // Nothing may stand in the middle of an envelope. There is never more than one of which a part has gone out.
            let is_between = !matches!(waiting, Some(Waiting::Rest { .. }));
            if is_between && now >= next_ping {
                number += 1;
                pinged.asks(Asked { number, at: now, time: wall_clock(Some(identity)) })?;
                write_all(&mut writer, &ping(number), WRITE_STALL_MAX).await?;
                next_ping = now + PING_EVERY;
            }
            if let Some(waiting) = waiting {
                let (envelope, written) = match waiting {
                    Waiting::Envelope(envelope) => (envelope, 0),
                    Waiting::Rest { envelope, written } => (envelope, written),
                };
                let head = envelope_head(envelope.len());
                write_all(&mut writer, head.get(written..).unwrap_or_default(), WRITE_STALL_MAX).await?;
                let body = &envelope[written.saturating_sub(HEAD_BYTES)..];
                write_all(&mut writer, body, WRITE_STALL_MAX).await?;
                self.queue.written(envelope.len());
                self.note_sent(envelope.len());
                continue;
            }
            within(WRITE_STALL_MAX, writer.flush()).await?;
            if !self.queue.give_pen() {
                continue;
            }
            tokio::select! {
                () = self.queue.filled() => {}
                () = sleep_until(next_ping) => {}
            }
        }
    }

    /// Reads answers to pings. Ends with an error only.
    async fn read(&self, reader: &mut (impl AsyncRead + Unpin), pinged: &Pinged) -> io::Result<()> {
        loop {
            // The other may be silent for longer than any ping: whoever writes them looks at that.
            match read_frame(reader, Duration::MAX).await? {
                Frame::Pong { ping, time } => {
                    if let Some((round_trip, sent)) = pinged.is_answered(ping) {
                        self.figures.measured(round_trip, skew_ms(sent, round_trip, time));
                    }
                }
                Frame::Envelope(_) | Frame::Ping(_) => {
                    let words = "the other node sends what only this one may send here";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, words));
                }
            }
        }
    }
}

/// Where bytes may be written by anybody. Those of TLS go through its state.
fn direct_socket(stream: &PeerStream) -> Option<SharedSocket> {
    match stream {
        PeerStream::Plain(socket) => Some(socket.clone()),
        PeerStream::Tls(_) => None,
    }
}

impl Pinged {
    /// Notes a ping, unless one before it is not answered. That may not last for ever.
    fn asks(&self, asked: Asked) -> io::Result<()> {
        let mut oldest = self.0.lock();
        match *oldest {
            Some(before) if asked.at - before.at > PONG_WITHIN => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "the other node does not answer"))
            }
            Some(_) => Ok(()),
            None => {
                *oldest = Some(asked);
                Ok(())
            }
        }
    }

    /// Takes the ping that was answered, and tells how long that took and when it was sent.
    fn is_answered(&self, number: u64) -> Option<(Duration, Timestamp)> {
        let mut oldest = self.0.lock();
        let asked = oldest.take_if(|asked| asked.number == number)?;
        Some((asked.at.elapsed(), asked.time))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::hello::Versions;
    use crate::identity::ClusterId;

    /// Both ends of a connection.
    async fn pair() -> (SharedSocket, tokio::net::TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, far) =
            tokio::join!(tokio::net::TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let near = near.unwrap();
        near.writable().await.unwrap();
        (near.into(), far.unwrap().0)
    }

    #[tokio::test]
    async fn a_ping_that_is_due_waits_for_the_rest_of_an_envelope() {
        let (near, mut far) = pair().await;
        let link = Link::new(NodeId(2), "far:7655".to_owned(), CancellationToken::new());
        link.queue.connect(Some(near.clone()));
        assert!(link.queue.give_pen());
        let envelope = |number: u32| Bytes::from([&number.to_be_bytes()[..], &[7; 10_000]].concat());
        let mut sent = 0;
        while link.queue.push(envelope(sent).to_vec()) {
            sent += 1;
            assert!(sent < 100_000, "nobody reads");
        }
        link.queue.push(envelope(sent + 1).to_vec());

        // The first ping is due at once.
        let identity = PeerIdentity {
            cluster: ClusterId([1; ClusterId::BYTES]),
            node: NodeId(1),
            name: "near".to_owned(),
            advertise: "near:7655".to_owned(),
            versions: Versions::OWN,
            clock_offset_ms: 0,
        };
        let pinged = Pinged::default();
        let writing = link.write(&identity, near, &pinged);
        let reading = async {
            let mut pings = 0;
            for number in 0..=sent + 1 {
                let frame = read_frame(&mut far, WRITE_STALL_MAX).await.unwrap();
                let frame = match frame {
                    Frame::Ping(_) => {
                        pings += 1;
                        read_frame(&mut far, WRITE_STALL_MAX).await.unwrap()
                    }
                    other => other,
                };
                assert!(frame == Frame::Envelope(envelope(number)), "envelope {number} of {sent}");
            }
            pings
        };
        tokio::select! {
            ended = writing => panic!("{ended:?}"),
            pings = reading => assert!(pings > 0),
        }
    }

    #[test]
    fn one_answer_is_measured_and_silence_ends() {
        let pinged = Pinged::default();
        let began = Instant::now();
        let asked = |number, after| Asked { number, at: began + after, time: Timestamp(number) };
        pinged.asks(asked(1, Duration::ZERO)).unwrap();
        pinged.asks(asked(2, PING_EVERY)).unwrap();
        assert!(pinged.is_answered(2).is_none(), "the oldest is waited for");
        assert_eq!(pinged.is_answered(1).map(|(_, sent)| sent), Some(Timestamp(1)));
        pinged.asks(asked(3, 3 * PING_EVERY)).unwrap();
        pinged.asks(asked(4, 3 * PING_EVERY + PONG_WITHIN)).unwrap();
        assert!(pinged.asks(asked(5, 4 * PING_EVERY + PONG_WITHIN)).is_err());
    }
}
