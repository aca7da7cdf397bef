//! The port: connections, from the first to the last.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nexo_broker::{Broker, Protocol};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

use crate::guarded_io::{Busy, GuardedIo};
use crate::http;
use crate::service::{Service, SqsOptions};

/// How long a connection may be silent before its next request. Clients keep connections for later, so it is long.
const IDLE_MAX: Duration = Duration::from_secs(300);

/// Serves the SQS API of `broker` on `listener` until `shutdown` is done. Then no connection is accepted any more, receives
/// that wait are answered, and this returns when the requests that have begun are done.
///
/// # Errors
/// Never, as things are: a connection that fails is that client's matter.
pub async fn serve(
    broker: Broker,
    listener: TcpListener,
    options: SqsOptions,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let stop = CancellationToken::new();
    let broker = broker.over(Protocol::Sqs);
    let allowed = Arc::clone(broker.connections());
    let service = Arc::new(Service::new(broker.clone(), options, stop.clone()));
    let router = Router::new().fallback(http::handle).with_state(service);
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            (stream, peer, permit) = allowed.accept(Protocol::Sqs, &listener) => {
                let router = router.clone().layer(axum::Extension(ConnectInfo(peer)));
                let counted = broker.traffic().connection(Protocol::Sqs);
                let serving = connection(stream, router, stop.clone());
                connections.spawn(async move {
                    serving.await;
                    drop((counted, permit));
                });
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    drop(listener);
    stop.cancel();
    while connections.join_next().await.is_some() {}
    Ok(())
}

async fn connection(stream: TcpStream, router: Router, stop: CancellationToken) {
    // Without it a small answer may wait; it is slower then, and right all the same.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let busy = Busy::default();
    let io = GuardedIo::new(stream, busy.clone());
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        busy.set(true);
        let (busy, answer) = (busy.clone(), router.clone().call(request.map(axum::body::Body::new)));
        async move {
            let answer = answer.await;
            busy.set(false);
            answer
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_MAX)
        .serve_connection(TokioIo::new(io), service);
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an SQS connection failed");
    }
}
