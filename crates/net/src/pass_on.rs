//! A connection that is served on another node: this one takes it in, waits for a leader if there is none, and copies bytes
//! both ways until either end or the leadership is gone. If nobody leads for long, the connection goes to its port, which says so
//! in its protocol.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use nexo_broker::{ConnectionPermit, Presence, Protocol};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::gate::{Course, Gate, LEADER_WITHIN, Place, Tenure, Unserved};
use crate::listeners::Arrival;
use crate::peer_stream::PeerStream;
use crate::tunnel::{TunnelHead, TunnelTls};

/// Until a leader that could not be reached is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// How long a client may take to close its end once the leader has closed its own. Until then it reads the last that it was told.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// What is copied at once, in each direction, while there are few connections …
const COPY_BYTES: usize = 64 << 10;
/// … and while there are many, each of which holds its buffers for good.
const COPY_BYTES_MIN: usize = 8 << 10;
/// Connections are many from here on: 32 MiB of buffers.
const MANY: usize = 256;

/// The way to whoever serves clients.
pub(crate) struct Way {
    pub(crate) gate: Arc<dyn Gate>,
    pub(crate) courses: watch::Receiver<Course>,
    /// Cancelled when the port closes.
    pub(crate) stop: CancellationToken,
    /// Connections that the port has open.
    pub(crate) open: usize,
}

/// What becomes of a connection.
enum Next {
    ServeHere(Tenure),
    Through(PeerStream, Tenure),
    TurnAway(Unserved, Tenure),
}

/// A connection that is for this node after all.
pub(crate) struct Returned {
    pub(crate) arrival: Arrival<TcpStream>,
    pub(crate) permit: ConnectionPermit,
    pub(crate) tenure: Tenure,
    /// Why its client is told that it is not served, if this node does not lead either.
    pub(crate) unserved: Option<Unserved>,
}

/// Serves a connection elsewhere, to its end. It comes back if this node has begun to lead while it waited, or if nobody can be
/// reached who does.
pub(crate) async fn pass_on(
    mut way: Way,
    arrival: Arrival<TcpStream>,
    protocol: Protocol,
    permit: ConnectionPermit,
) -> Option<Returned> {
    // One too many is told so where it is served, and here it is not.
    if permit.limit_reached().is_some() {
        return None;
    }
    // It may be gone already.
    let reached = arrival.from.local_addr().ok()?;
    let tls = if arrival.tls.is_some() { TunnelTls::Through } else { TunnelTls::Off };
    let head = TunnelHead { protocol, tls, client: arrival.peer, reached };
    let (presence, stop) = (Arc::clone(permit.presence()), way.stop.clone());
    let next = tokio::select! {
        next = way.find(head) => next,
        () = stop.cancelled() => None,
        () = presence.asked_to_go() => None,
    };
    match next {
        None => None,
        Some(Next::ServeHere(tenure)) => Some(Returned { arrival, permit, tenure, unserved: None }),
        Some(Next::TurnAway(why, tenure)) => Some(Returned { arrival, permit, tenure, unserved: Some(why) }),
        Some(Next::Through(tunnel, tenure)) => {
            copy(arrival.from, tunnel, &head, &tenure, &presence, &way).await;
            None
        }
    }
}

impl Way {
    /// Finds out where a connection goes, and opens the way there. `None` if the port closes.
    async fn find(&mut self, head: TunnelHead) -> Option<Next> {
        let deadline = Instant::now() + LEADER_WITHIN;
        let (protocol, peer) = (head.protocol.name(), head.client);
        loop {
            let Course { place, tenure, awaited_until } = self.courses.borrow_and_update().clone();
            let node = match place {
                Place::Here { .. } => return Some(Next::ServeHere(tenure)),
                Place::Node(node) => node,
                Place::Nowhere => {
                    // Whoever comes when others have waited long enough need not wait as well.
                    let waited = timeout_at(awaited_until.min(deadline), self.courses.changed()).await;
                    match waited {
                        Ok(Ok(())) => continue,
                        Ok(Err(_)) => return None,
                        Err(_) => {
                            tracing::info!(protocol, %peer, "connection is turned away: no leader is known");
                            return Some(Next::TurnAway(Unserved::NobodyLeads, tenure));
                        }
                    }
                }
            };
            let error = match timeout_at(deadline, self.gate.open(node, head)).await {
                Ok(Ok(stream)) => {
                    tracing::debug!(protocol, %peer, %node, "connection is passed on");
                    return Some(Next::Through(stream, tenure));
                }
                Ok(Err(error)) => error,
                Err(_) => io::ErrorKind::TimedOut.into(),
            };
            if Instant::now() + TRY_AGAIN >= deadline {
                tracing::info!(protocol, %peer, %node, %error, "connection is turned away: the leader cannot be reached");
                return Some(Next::TurnAway(Unserved::LeaderUnreachable, tenure));
            }
            tokio::select! {
                () = sleep(TRY_AGAIN) => {}
                _ = self.courses.changed() => {}
            }
        }
    }
}

/// Copies both ways until one end is gone, the leader has changed, none has been known for long, or the port closes. What goes through
/// is not understood here, so its client is told nothing: it connects again, and is told then.
async fn copy(
    mut client: TcpStream,
    mut tunnel: PeerStream,
    head: &TunnelHead,
    tenure: &Tenure,
    presence: &Presence,
    way: &Way,
) {
    // It is only slower without.
    let _ = client.set_nodelay(true);
    let bytes = if way.open < MANY { COPY_BYTES } else { COPY_BYTES_MIN };
    let closed = Notify::new();
    let mut client = Noted { stream: &mut client, gate: &*way.gate, presence, closed: &closed };
    let lingered = async {
        closed.notified().await;
        sleep(CLOSE_WITHIN).await;
    };
    let why = tokio::select! {
        _ = copy_bidirectional_with_sizes(&mut client, &mut tunnel, bytes, bytes) => "one end is gone",
        () = tenure.over_or_closed.cancelled() => "the leader has changed or is lost, or the port closes",
        () = presence.asked_to_go() => "another needs its place",
        () = lingered => "the client does not close its end",
    };
    tracing::debug!(protocol = head.protocol.name(), peer = %head.client, "tunnel ends: {why}");
}

/// Notes what passes, and whether a client waits for an answer: it has said something, and has heard nothing since. Nobody here understands
/// what it says, and one that has an answer due should not have to make room.
struct Noted<'s> {
    stream: &'s mut TcpStream,
    gate: &'s dyn Gate,
    presence: &'s Presence,
    /// Told when there is nothing more to come for the client.
    closed: &'s Notify,
}

impl AsyncRead for Noted<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut *self.stream).poll_read(cx, buf);
        let came = buf.filled().len() - before;
        if came > 0 {
            self.gate.note_passed_on(came);
            self.presence.set_in_request(true);
        }
        read
    }
}

impl AsyncWrite for Noted<'_> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(bytes)) = written {
            self.gate.note_passed_on(bytes);
            self.presence.set_in_request(false);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.closed.notify_one();
        Pin::new(&mut *self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::http::StatusCode;
    use axum::routing::get;
    use axum::{Extension, Router};
    use nexo_broker::{Broker, BrokerOptions};
    use nexo_log::disk::FaultyDisk;
    use nexo_types::{NodeId, Term};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::gate::OpeningTunnel;
    use crate::http::{HttpLimits, HttpPort};
    use crate::listeners::Listeners;
    use crate::tunnel::Tunnels;

    const LEADS: Place = Place::Here { term: Term(1) };
    const FOLLOWS: Place = Place::Node(NodeId(1));

    /// Leads to a leader in this process.
    #[derive(Debug)]
    struct ToLeader {
        places: watch::Sender<Place>,
        leader: Tunnels,
    }

    impl Gate for ToLeader {
        fn places(&self) -> watch::Receiver<Place> {
            self.places.subscribe()
        }

        fn open(&self, _: NodeId, head: TunnelHead) -> OpeningTunnel<'_> {
            Box::pin(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                let near = TcpStream::connect(listener.local_addr()?).await?;
                let (far, _) = listener.accept().await?;
                self.leader.bring(head, PeerStream::Plain(far.into())).map_err(io::Error::other)?;
                Ok(PeerStream::Plain(near.into()))
            })
        }
    }

    /// A node that answers requests, or never does.
    struct Node {
        broker: Broker,
        address: std::net::SocketAddr,
        gate: Arc<ToLeader>,
        tunnels: Tunnels,
        /// Requests that will never be answered.
        unanswered: Arc<AtomicUsize>,
    }

    async fn start(place: Place, leader: Tunnels, clients_max: usize) -> Node {
        let options = BrokerOptions { clients_max, ..BrokerOptions::new("faulty") };
        let broker = Broker::open_on(Arc::new(FaultyDisk::new()), options).unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let mut listeners = Listeners::from(socket);
        let mut tunnels = Tunnels::default();
        tunnels.attach(Protocol::Sqs, &mut listeners);
        let gate = Arc::new(ToLeader { places: watch::Sender::new(place), leader });
        listeners.set_gate(Arc::clone(&gate) as Arc<dyn Gate>);
        let unanswered = Arc::new(AtomicUsize::new(0));
        let begun = Arc::clone(&unanswered);
        let never = move || {
            begun.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<&'static str>()
        };
        // As a port does that has words for it.
        let answer = async |unserved: Option<Extension<Unserved>>| match unserved {
            Some(Extension(why)) => (StatusCode::SERVICE_UNAVAILABLE, why.to_string()),
            None => (StatusCode::OK, "served".to_owned()),
        };
        let router = Router::new().route("/", get(answer)).route("/never", get(never));
        let hour = Duration::from_secs(3600);
        let limits = HttpLimits { idle: hour, head: hour, write_stall: hour };
        let stop = CancellationToken::new();
        let port = HttpPort { broker: broker.clone(), protocol: Protocol::Sqs, router, limits, stop };
        tokio::spawn(port.serve(listeners, std::future::pending()));
        Node { broker, address, gate, tunnels, unanswered }
    }

    impl Node {
        fn open(&self) -> usize {
            self.broker.connections().counts(Protocol::Sqs).open
        }

        async fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).await.unwrap()
        }
    }

    async fn ask(client: &mut TcpStream, path: &str) -> String {
        client.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"served") && client.read_buf(&mut answer).await.unwrap_or(0) > 0 {}
        String::from_utf8(answer).unwrap()
    }

    async fn until(mut done: impl FnMut() -> bool) {
        while !done() {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Asks, and reads until the connection is closed.
    async fn turned_away(node: &Node) -> String {
        let mut client = node.connect().await;
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("connection: close"), "{answer}");
        answer
    }

    /// Time passes at once when everybody waits.
    #[tokio::test(start_paused = true)]
    async fn a_client_is_told_by_its_port_that_nobody_leads() {
        let began = Instant::now();
        let node = start(Place::Nowhere, Tunnels::default(), 8).await;
        let told = turned_away(&node).await;
        assert!(told.ends_with(&Unserved::NobodyLeads.to_string()), "{told}");
        assert!(began.elapsed() >= LEADER_WITHIN && began.elapsed() < 2 * LEADER_WITHIN);
        // The next one need not wait as long again.
        let began = Instant::now();
        turned_away(&node).await;
        assert!(began.elapsed() < LEADER_WITHIN);
        // One that cannot be reached is tried for as long.
        node.gate.places.send_replace(FOLLOWS);
        let told = turned_away(&node).await;
        assert!(told.ends_with(&Unserved::LeaderUnreachable.to_string()), "{told}");
        // And whoever comes when somebody leads is served.
        node.gate.places.send_replace(LEADS);
        assert!(ask(&mut node.connect().await, "/").await.ends_with("served"));
        until(|| node.open() == 0).await;
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_hangs_at_a_leader_that_is_not_heard_of() {
        let leader = start(LEADS, Tunnels::default(), 8).await;
        let follower = start(FOLLOWS, leader.tunnels.clone(), 8).await;
        let mut client = follower.connect().await;
        let began = Instant::now();
        let lost = async {
            until(|| leader.unanswered.load(Ordering::Relaxed) == 1).await;
            follower.gate.places.send_replace(Place::Nowhere);
        };
        let (answer, ()) = tokio::join!(ask(&mut client, "/never"), lost);
        assert_eq!(answer, "", "what came of it is not known");
        assert!(began.elapsed() >= LEADER_WITHIN && began.elapsed() < 2 * LEADER_WITHIN);
        let told = turned_away(&follower).await;
        assert!(told.ends_with(&Unserved::NobodyLeads.to_string()), "{told}");
        // It is back without a restart.
        follower.gate.places.send_replace(FOLLOWS);
        assert!(ask(&mut follower.connect().await, "/").await.ends_with("served"));
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_hangs_at_a_leader_that_is_deposed() {
        let leader = start(LEADS, Tunnels::default(), 8).await;
        let follower = start(FOLLOWS, leader.tunnels.clone(), 8).await;
        let (mut here, mut there) = (leader.connect().await, follower.connect().await);
        assert!(ask(&mut here, "/").await.ends_with("served"));
        assert!(ask(&mut there, "/").await.ends_with("served"));
        let deposed = async {
            until(|| leader.unanswered.load(Ordering::Relaxed) == 2).await;
            leader.gate.places.send_replace(Place::Nowhere);
        };
        let (here, there, ()) = tokio::join!(ask(&mut here, "/never"), ask(&mut there, "/never"), deposed);
        assert_eq!((here.as_str(), there.as_str()), ("", ""), "what came of it is not known");
        until(|| leader.open() + follower.open() == 0).await;
    }

    #[tokio::test]
    async fn a_silent_tunnel_makes_room_and_one_that_waits_for_an_answer_does_not() {
        let leader = start(LEADS, Tunnels::default(), 8).await;
        let follower = start(FOLLOWS, leader.tunnels.clone(), 2).await;
        let (mut silent, mut busy) = (follower.connect().await, follower.connect().await);
        assert!(ask(&mut silent, "/").await.ends_with("served"));
        busy.write_all(b"GET /never HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        // It has come to the leader, so the follower has seen it as well.
        until(|| leader.unanswered.load(Ordering::Relaxed) == 1).await;
        assert!(ask(&mut follower.connect().await, "/").await.ends_with("served"));
        assert_eq!(silent.read(&mut [0]).await.unwrap_or(0), 0, "it had its answer");
        let still_there = tokio::time::timeout(Duration::from_millis(1), busy.read(&mut [0])).await;
        assert!(still_there.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_close_its_end_holds_no_tunnel() {
        let leader = start(LEADS, Tunnels::default(), 8).await;
        let follower = start(FOLLOWS, leader.tunnels.clone(), 8).await;
        let mut client = follower.connect().await;
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("served"));
        until(|| follower.open() == 0).await;
        drop(client);
    }
}
