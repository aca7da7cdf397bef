//! The HTTP/1.1 server that the HTTP ports share: its connections, and how long they may take.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::http::{HeaderValue, header};
use futures_util::StreamExt as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nexo_broker::{Broker, Presence, Protocol};
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

use crate::accept::{Accepted, serve_connections};
use crate::connection::{Connection, ReadLimit, TimeLimits};
use crate::gate::Tenure;
use crate::listeners::Listeners;

/// How long a connection that is to make room for another may take for an answer that it has begun.
const LEAVE_WITHIN: Duration = Duration::from_secs(30);
/// How long a request may take that was begun by a leader which leads no more, and that its port does not end by itself. What it does
/// comes to nothing.
const DEPOSED_WITHIN: Duration = Duration::from_secs(2);

/// How long a client may keep a port waiting. What a request's body may take is for whoever reads it to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// For its next request, until the end of that request's head.
    pub idle: Duration,
    /// For the head of a request, from its first byte on.
    pub head: Duration,
    /// Without taking any byte of an answer.
    pub write_stall: Duration,
}

/// The two ends of the connection that a request came over. Every request has them among its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Who asks.
    pub peer: SocketAddr,
    /// The address that the client connected to.
    pub local: SocketAddr,
    /// Whether nobody between them can read it.
    pub is_tls: bool,
    /// Whether another node of the cluster passes it on.
    pub is_tunnel: bool,
}

/// A port that speaks HTTP. In a cluster a request has the [`Tenure`] of its connection among its extensions, in an [`Arc`]; and an
/// [`Unserved`](crate::Unserved), if it is to be answered with that and nothing else.
#[derive(Clone, Debug)]
pub struct HttpPort {
    /// Counts the connections.
    pub broker: Broker,
    /// What it counts them as.
    pub protocol: Protocol,
    /// Answers the requests.
    pub router: Router,
    /// How long clients may take.
    pub limits: HttpLimits,
    /// Cancelled when the port is to close: requests that wait for something end their wait.
    pub stop: CancellationToken,
}

impl HttpPort {
    /// Serves `listeners` until `shutdown` is done and the requests that have begun are answered.
    pub async fn serve(self, listeners: Listeners, shutdown: impl Future<Output = ()>) {
        let (broker, protocol, stop) = (self.broker.clone(), self.protocol, self.stop.clone());
        let serve = move |accepted| self.clone().connection(accepted);
        serve_connections(&broker, protocol, listeners, &stop, shutdown, serve).await;
    }

    async fn connection(self, accepted: Accepted) {
        let Self { broker, protocol, router, limits, stop } = self;
        let times =
            TimeLimits { read: ReadLimit::Head { within: limits.head }, write_stall: limits.write_stall };
        // The peer may be gone already.
        let Ok(connection) = Connection::new(accepted.stream, accepted.permit, &broker, protocol, times)
        else {
            return;
        };
        let ends = Ends {
            peer: connection.peer(),
            local: connection.local(),
            is_tls: connection.is_tls(),
            is_tunnel: connection.is_tunnel(),
        };
        let presence = connection.presence();
        let in_service = Arc::clone(&presence);
        let (tenure, unserved) = (accepted.tenure.map(|tenure| Arc::new(tenure.of_one())), accepted.unserved);
        let in_tenure = tenure.clone();
        let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            in_service.set_in_request(true);
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(ends);
            if let Some(tenure) = &in_tenure {
                request.extensions_mut().insert(Arc::clone(tenure));
            }
            if let Some(why) = unserved {
                request.extensions_mut().insert(why);
            }
            let (presence, answer) = (Arc::clone(&in_service), router.clone().call(request));
            async move {
                let working = Working(presence);
                let Ok(mut answer) = answer.await;
                if unserved.is_some() {
                    // The next request may be served, over another connection.
                    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                // An answer whose length is not known is still being worked on.
                let is_known = answer.body().size_hint().exact().is_some();
                Ok::<_, Infallible>(if is_known {
                    answer
                } else {
                    answer.map(|body| working.until_end_of(body))
                })
            }
        });
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.idle)
            .serve_connection(TokioIo::new(connection), service);
        tokio::pin!(serving);
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            () = stop.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
            () = presence.asked_to_go() => {
                tracing::debug!(protocol = protocol.name(), %ends.peer, "connection ends: another needs its place");
                // What it was asked meanwhile is answered, and what is being written comes to its end.
                serving.as_mut().graceful_shutdown();
                match tokio::time::timeout(LEAVE_WITHIN, serving).await {
                    Ok(ended) => ended,
                    Err(_) => return,
                }
            }
            why = Tenure::until_over(tenure.as_deref()) => {
                tracing::debug!(protocol = protocol.name(), %ends.peer, "connection ends: {why}");
                serving.as_mut().graceful_shutdown();
                match tokio::time::timeout(DEPOSED_WITHIN, serving).await {
                    Ok(ended) => ended,
                    Err(_) => return,
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(protocol = protocol.name(), %error, "a connection failed");
        }
    }
}

/// A request is being worked on, until this is dropped: its connection need not make room for another.
struct Working(Arc<Presence>);

impl Working {
    /// The same body, whose request is worked on until its end.
    fn until_end_of(self, body: Body) -> Body {
        Body::from_stream(body.into_data_stream().inspect(move |_| {
            let _ = &self;
        }))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.set_in_request(false);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn a_stream_is_worked_on_until_its_end() {
        let presence = Arc::new(Presence::default());
        presence.set_in_request(true);
        let body = Body::from_stream(stream::iter(["a", "b"].map(Ok::<_, Infallible>)));
        let mut parts = Working(Arc::clone(&presence)).until_end_of(body).into_data_stream();
        while let Some(part) = parts.next().await {
            assert!(part.is_ok() && presence.is_in_request());
        }
        drop(parts);
        assert!(!presence.is_in_request());
    }
}
