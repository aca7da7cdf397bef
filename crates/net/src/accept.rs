//! Takes connections in until it is told to stop, and then waits for them to end. A connection that there is no room for
//! is told so and closed. In a cluster a gate says whether a connection is served here or passed on.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nexo_broker::{Broker, ConnectionPermit, Connections, Protocol};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::gate::{Gatekeeper, Place, Tenure, Unserved};
use crate::listeners::{Arrival, Listeners, Source};
use crate::pass_on::{Returned, Way, pass_on};
use crate::stream::Stream;
use crate::tls::TlsPeer;

/// How long to wait after an accept failed for want of descriptors or memory: the next one would fail as well.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A peer whose machine lost power, or its network, is noticed after this time and nine questions more, whatever its protocol
/// has agreed on: an AMQP client may ask for no heartbeat, and an HTTP client may read nothing for long.
const SILENT_FOR: Duration = Duration::from_secs(60);
const ASKED_EVERY: Duration = Duration::from_secs(10);

/// A connection that came, that there is room for, and that can be read from.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub stream: Stream,
    /// Who is at the other end.
    pub peer: SocketAddr,
    /// What TLS tells of it, where TLS is spoken.
    pub tls: Option<TlsPeer>,
    /// To be kept as long as the connection is open.
    pub permit: ConnectionPermit,
    /// How long this node serves clients, in a cluster.
    pub tenure: Option<Tenure>,
    /// Why nobody serves it, if its client is to be told that and nothing else.
    pub unserved: Option<Unserved>,
}

/// Runs `serve` for every connection of `listeners` that is for this node, or for none, until `shutdown` is done. Then closes
/// the listeners, cancels `stop`, which the connections look at, and returns when the last of them has ended.
pub async fn serve_connections<S, F>(
    broker: &Broker,
    protocol: Protocol,
    mut listeners: Listeners,
    stop: &CancellationToken,
    shutdown: impl Future<Output = ()>,
    serve: S,
) where
    S: Fn(Accepted) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let allowed = broker.connections();
    let mut gatekeeper = listeners.gate().map(|gate| Gatekeeper::new(gate, stop));
    let port = Port { protocol, stop: stop.clone(), serve: Arc::new(serve) };
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            () = Gatekeeper::follow(&mut gatekeeper) => {}
            (arrival, permit) = accept(&mut listeners, allowed, protocol) => {
                port.begin(&mut connections, gatekeeper.as_ref(), arrival, permit);
            }
            Some(ended) = connections.join_next(), if !connections.is_empty() => note_end(protocol, ended),
        }
    }
    drop(listeners);
    stop.cancel();
    while let Some(ended) = connections.join_next().await {
        note_end(protocol, ended);
    }
}

/// What every connection of a port needs to begin.
struct Port<S> {
    protocol: Protocol,
    stop: CancellationToken,
    serve: Arc<S>,
}

impl<S, F> Port<S>
where
    S: Fn(Accepted) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    /// Has a connection begin, here or on the node that leads.
    fn begin(
        &self,
        connections: &mut JoinSet<()>,
        gatekeeper: Option<&Gatekeeper>,
        Arrival { from, peer, tls }: Arrival<Source>,
        permit: ConnectionPermit,
    ) {
        let Some(gatekeeper) = gatekeeper else {
            return self.begin_here(connections, Arrival { from, peer, tls }, permit, None);
        };
        let course = gatekeeper.course();
        match (course.place, from) {
            (Place::Here { .. }, from) => {
                self.begin_here(connections, Arrival { from, peer, tls }, permit, Some(course.tenure));
            }
            (Place::Node(_) | Place::Nowhere, Source::Socket(from)) => {
                let way = Way {
                    gate: gatekeeper.gate(),
                    courses: gatekeeper.courses(),
                    stop: self.stop.clone(),
                    open: connections.len(),
                };
                let passed = Box::pin(pass_on(way, Arrival { from, peer, tls }, self.protocol, permit));
                let (serve, stop, protocol) = (Arc::clone(&self.serve), self.stop.clone(), self.protocol);
                connections.spawn(async move {
                    // It comes back if this node leads by now, or nobody does.
                    let Some(Returned { arrival, permit, tenure, unserved }) = passed.await else { return };
                    let Arrival { from, peer, tls } = arrival;
                    let arrival = Arrival { from: Source::Socket(from), peer, tls };
                    let accepted = Box::pin(secure(arrival, protocol, permit, Some(tenure), stop)).await;
                    if let Some(accepted) = accepted {
                        serve(Accepted { unserved, ..accepted }).await;
                    }
                });
            }
            // The other node will hear who leads. Its client comes again.
            (Place::Node(_) | Place::Nowhere, Source::Tunnel(_)) => {
                tracing::debug!(protocol = self.protocol.name(), %peer, "a tunnel is closed: this node does not lead");
            }
        }
    }

    /// Has a connection begin on this node.
    fn begin_here(
        &self,
        connections: &mut JoinSet<()>,
        arrival: Arrival<Source>,
        permit: ConnectionPermit,
        tenure: Option<Tenure>,
    ) {
        if arrival.tls.is_none() {
            let (stream, peer) = (arrival.from.into(), arrival.peer);
            let accepted = Accepted { stream, peer, tls: None, permit, tenure, unserved: None };
            connections.spawn((self.serve)(accepted));
            return;
        }
        let serve = Arc::clone(&self.serve);
        // Not in the task of every connection, for which many have no use.
        let secured = Box::pin(secure(arrival, self.protocol, permit, tenure, self.stop.clone()));
        connections.spawn(async move {
            if let Some(accepted) = secured.await {
                serve(accepted).await;
            }
        });
    }
}

/// The next connection that may be served. An accept that fails is tried again after a pause. May be dropped while it
/// waits: no connection is lost.
async fn accept(
    listeners: &mut Listeners,
    allowed: &Arc<Connections>,
    protocol: Protocol,
) -> (Arrival<Source>, ConnectionPermit) {
    loop {
        // Before it is accepted: one that is waited for may be dropped here.
        allowed.until_others_left(protocol).await;
        match listeners.accept().await {
            Ok(arrival) => match allowed.admit(protocol).inspect(|_| keep_alive(&arrival.from)) {
                Some(permit) => {
                    if permit.limit_reached().is_some() {
                        allowed.note_refused(protocol, arrival.peer);
                    }
                    return (arrival, permit);
                }
                None => {
                    allowed.note_refused(protocol, arrival.peer);
                    refuse(protocol, arrival);
                }
            },
            Err(error) => {
                allowed.note_accept_failed(protocol, &error);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Has the system ask now and then whether the peer is still there. Those who open tunnels have seen to it.
fn keep_alive(source: &Source) {
    let Source::Socket(socket) = source else { return };
    let asked = TcpKeepalive::new().with_time(SILENT_FOR).with_interval(ASKED_EVERY);
    if let Err(error) = SockRef::from(socket).set_tcp_keepalive(&asked) {
        tracing::debug!(%error, "cannot set TCP keepalive");
    }
}

/// Agrees on keys with a client that speaks TLS, unless the port closes or its place is needed meanwhile.
async fn secure(
    Arrival { from, peer, tls }: Arrival<Source>,
    protocol: Protocol,
    permit: ConnectionPermit,
    tenure: Option<Tenure>,
    stop: CancellationToken,
) -> Option<Accepted> {
    let Some(tls) = tls else {
        return Some(Accepted { stream: from.into(), peer, tls: None, permit, tenure, unserved: None });
    };
    let presence = Arc::clone(permit.presence());
    let (stream, tls) = tokio::select! {
        secured = tls.handshake(from, peer, protocol) => secured?,
        () = stop.cancelled() => return None,
        () = presence.asked_to_go() => return None,
    };
    Some(Accepted { stream, peer, tls: Some(tls), permit, tenure, unserved: None })
}

/// Closes a connection. Its client is told why, where its protocol has words for that and as far as it goes without waiting.
fn refuse(protocol: Protocol, Arrival { from, tls, .. }: Arrival<Source>) {
    // Words that are not enciphered mean nothing to a client that speaks TLS.
    let Some(words) = protocol.too_many_connections().filter(|_| tls.is_none()) else { return };
    let Source::Socket(socket) = from else { return };
    if let Err(error) = tell(socket, words) {
        tracing::debug!(%error, "a refused connection could not be told why");
    }
}

fn tell(stream: TcpStream, words: &[u8]) -> io::Result<()> {
    // It does not block: the socket is as tokio made it.
    stream.into_std()?.write_all(words)
}

/// A connection that fails is its client's matter, but not one whose task panics.
fn note_end(protocol: Protocol, ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(protocol = protocol.name(), %error, "a connection failed");
    }
}

#[cfg(test)]
mod tests {
    use nexo_broker::{BrokerOptions, ConnectionCounts};
    use nexo_log::disk::FaultyDisk;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn one_too_many_is_told_and_closed_and_the_next_one_served() {
        let connections = Arc::new(Connections::new(8, usize::MAX));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut listeners = Listeners::from(listener);
        let _first = TcpStream::connect(address).await.unwrap();
        let (arrival, permit) = accept(&mut listeners, &connections, Protocol::Http).await;
        let Source::Socket(socket) = &arrival.from else { panic!("there are no tunnels") };
        assert!(SockRef::from(socket).keepalive().unwrap(), "the system looks whether it is there");
        permit.presence().set_in_request(true);
        let mut second = TcpStream::connect(address).await.unwrap();
        let next = tokio::spawn({
            let connections = Arc::clone(&connections);
            async move { accept(&mut listeners, &connections, Protocol::Http).await.0.peer }
        });
        let mut told = String::new();
        second.read_to_string(&mut told).await.unwrap();
        assert!(told.starts_with("HTTP/1.1 503 ") && told.ends_with("too many connections\n"), "{told}");
        drop((arrival, permit));
        let third = TcpStream::connect(address).await.unwrap();
        assert_eq!(next.await.unwrap(), third.local_addr().unwrap());
        assert_eq!(connections.counts(Protocol::Http), ConnectionCounts { open: 0, accepted: 2, refused: 1 });
    }

    /// Time passes at once when everybody waits.
    #[tokio::test(start_paused = true)]
    async fn a_port_that_closes_does_not_wait_for_handshakes() {
        let broker = Broker::open_on(Arc::new(FaultyDisk::new()), BrokerOptions::new("faulty")).unwrap();
        let (_dir, tls) = crate::tls::server_for_tests();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listeners = Listeners::from(listener).over_tls(&Arc::new(tls));
        let (stop, close) = (CancellationToken::new(), CancellationToken::new());
        let serve = |_: Accepted| async { unreachable!("nobody has said anything") };
        let closing = close.clone();
        let serving = async {
            serve_connections(&broker, Protocol::Amqp, listeners, &stop, closing.cancelled(), serve).await
        };
        let client = async {
            let mut silent = TcpStream::connect(address).await.unwrap();
            while broker.connections().counts(Protocol::Amqp).open == 0 {
                tokio::task::yield_now().await;
            }
            close.cancel();
            silent.read(&mut [0]).await.unwrap_or(0)
        };
        let began = tokio::time::Instant::now();
        assert_eq!(tokio::join!(serving, client).1, 0);
        assert!(began.elapsed() < Duration::from_secs(10), "less than a handshake may take");
        broker.shutdown().await;
    }
}
