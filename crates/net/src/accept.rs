//! Takes connections in until it is told to stop, and then waits for them to end. A connection that there is no room for
//! is told so and closed.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nexo_broker::{Broker, ConnectionPermit, Connections, Protocol};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::listeners::{Arrival, Listeners};
use crate::stream::Stream;
use crate::tls::{TlsPeer, TlsServer};

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
}

/// Runs `serve` for every connection of `listeners` until `shutdown` is done. Then closes the listeners, cancels `stop`,
/// which the connections look at, and returns when the last of them has ended.
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
    let mut connections = JoinSet::new();
    let serve = Arc::new(serve);
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            (Arrival { socket, peer, tls }, permit) = accept(&mut listeners, allowed, protocol) => match tls {
                None => {
                    connections.spawn(serve(Accepted { stream: Stream::Plain(socket), peer, tls: None, permit }));
                }
                Some(tls) => {
                    let (serve, stop) = (Arc::clone(&serve), stop.clone());
                    // Not in the task of every connection, for which many have no use.
                    let secured = Box::pin(secure(tls, socket, peer, protocol, permit, stop));
                    connections.spawn(async move {
                        if let Some(accepted) = secured.await {
                            serve(accepted).await;
                        }
                    });
                }
            },
            Some(ended) = connections.join_next(), if !connections.is_empty() => note_end(protocol, ended),
        }
    }
    drop(listeners);
    stop.cancel();
    while let Some(ended) = connections.join_next().await {
        note_end(protocol, ended);
    }
}

/// The next connection that may be served. An accept that fails is tried again after a pause. May be dropped while it
/// waits: no connection is lost.
async fn accept(
    listeners: &mut Listeners,
    allowed: &Arc<Connections>,
    protocol: Protocol,
) -> (Arrival, ConnectionPermit) {
    loop {
        // Before it is accepted: one that is waited for may be dropped here.
        allowed.until_others_left(protocol).await;
        match listeners.accept().await {
            Ok(arrival) => match allowed.admit(protocol).inspect(|_| keep_alive(&arrival.socket)) {
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

/// Has the system ask now and then whether the peer is still there.
fn keep_alive(socket: &TcpStream) {
    let asked = TcpKeepalive::new().with_time(SILENT_FOR).with_interval(ASKED_EVERY);
    if let Err(error) = SockRef::from(socket).set_tcp_keepalive(&asked) {
        tracing::debug!(%error, "cannot set TCP keepalive");
    }
}

/// Agrees on keys with a client, unless the port closes or its place is needed meanwhile.
async fn secure(
    tls: Arc<TlsServer>,
    socket: TcpStream,
    peer: SocketAddr,
    protocol: Protocol,
    permit: ConnectionPermit,
    stop: CancellationToken,
) -> Option<Accepted> {
    let presence = Arc::clone(permit.presence());
    let (stream, tls) = tokio::select! {
        secured = tls.handshake(socket, peer, protocol) => secured?,
        () = stop.cancelled() => return None,
        () = presence.asked_to_go() => return None,
    };
    Some(Accepted { stream, peer, tls: Some(tls), permit })
}

/// Closes a connection. Its client is told why, where its protocol has words for that and as far as it goes without waiting.
fn refuse(protocol: Protocol, Arrival { socket, tls, .. }: Arrival) {
    // Words that are not enciphered mean nothing to a client that speaks TLS.
    let Some(words) = protocol.too_many_connections().filter(|_| tls.is_none()) else { return };
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
        assert!(SockRef::from(&arrival.socket).keepalive().unwrap(), "the system looks whether it is there");
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
