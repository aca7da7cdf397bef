//! Requests that another node answers. A connection to this port stays here, since some addresses are about the node itself;
//! of the others each request goes whole to the node that leads, and its answer comes back.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use nexo_broker::{Broker, Protocol};
use nexo_net::{Ends, Gate, LEADER_WITHIN, PeerStream, Place, TunnelHead, TunnelTls, Unserved};
use nexo_types::NodeId;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::api::ApiError;

/// Until a leader that could not be reached is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// Headers that are about one connection, and not about the request.
const OF_CONNECTION: [HeaderName; 9] = [
    header::CONNECTION,
    header::EXPECT,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// Who answers a request.
enum Answerer {
    ThisNode,
    Other(NodeId, PeerStream),
    Nobody(String),
}

/// What is needed to answer a request in a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Answering {
    pub(crate) gate: Arc<dyn Gate>,
    pub(crate) broker: Broker,
}

/// Answers a request here, or has the node that leads answer it.
pub(crate) async fn forward(State(answering): State<Answering>, request: Request, next: Next) -> Response {
    let Answering { gate, broker } = answering;
    let ends = request.extensions().get::<Ends>().copied();
    let Some(ends) = ends.filter(|_| !is_about_this_node(request.uri().path())) else {
        return next.run(request).await;
    };
    let mut places = gate.places();
    match find(&*gate, &mut places, ends).await {
        Answerer::ThisNode => answer_here(&broker, request, next).await,
        Answerer::Other(node, stream) => {
            let passed = pass(request, stream);
            tokio::select! {
                answer = passed => answer.unwrap_or_else(|error| {
                    tracing::debug!(%node, %error, "a request that was passed on failed");
                    unavailable(format!("node {node}, which leads, has not answered: {error}"))
                }),
                gone = leads_no_more(&mut places, node) => {
                    unavailable(format!("{gone}; what came of the request is not known"))
                }
            }
        }
        Answerer::Nobody(reason) => unavailable(reason),
    }
}

/// Answers as the node that leads. A change proves by itself that it does, since a majority has it; what is only looked up, or
/// refused, is told when a majority has said so.
async fn answer_here(broker: &Broker, request: Request, next: Next) -> Response {
    let began = broker.begin_look();
    let is_look = request.method().is_safe();
    let answer = next.run(request).await;
    if !is_look && !answer.status().is_client_error() {
        return answer;
    }
    match broker.confirm_look(began).await {
        Ok(()) => answer,
        Err(error) => unavailable(format!("this node does not lead for certain: {error}")),
    }
}

/// Whether every node answers by itself: health, figures, and what it knows of the cluster.
fn is_about_this_node(path: &str) -> bool {
    let is_under =
        |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    path == "/" || ["/health", "/metrics", "/api/health", "/api/nexo/cluster"].into_iter().any(is_under)
}

async fn find(gate: &dyn Gate, places: &mut watch::Receiver<Place>, ends: Ends) -> Answerer {
    let deadline = Instant::now() + LEADER_WITHIN;
    let tls = if ends.is_tls { TunnelTls::Before } else { TunnelTls::Off };
    let head = TunnelHead { protocol: Protocol::Http, tls, client: ends.peer, reached: ends.local };
    loop {
        let known = timeout_at(deadline, places.wait_for(|place| *place != Place::Nowhere)).await;
        let Ok(Ok(place)) = known.map(|known| known.map(|place| *place)) else {
            return Answerer::Nobody(Unserved::NobodyLeads.to_string());
        };
        let node = match place {
            Place::Here { .. } => return Answerer::ThisNode,
            Place::Node(node) => node,
            Place::Nowhere => continue,
        };
        if ends.is_tunnel {
            // Whoever passed it on will hear of that. Nothing is passed on twice.
            return Answerer::Nobody(format!("node {node} leads, and not this one"));
        }
        let reason = match timeout_at(deadline, gate.open(node, head)).await {
            Ok(Ok(stream)) => return Answerer::Other(node, stream),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it does not answer".to_owned(),
        };
        if Instant::now() + TRY_AGAIN >= deadline {
            return Answerer::Nobody(format!("node {node}, which leads, cannot be reached: {reason}"));
        }
        sleep(TRY_AGAIN).await;
    }
}

/// Resolves when a node is not waited for any more, and says why: another one leads, or nobody has been known to lead for long.
async fn leads_no_more(places: &mut watch::Receiver<Place>, node: NodeId) -> String {
    loop {
        let Ok(place) = places.wait_for(|place| *place != Place::Node(node)).await.map(|place| *place) else {
            return std::future::pending().await;
        };
        if place != Place::Nowhere {
            return format!("node {node} leads no more");
        }
        // A leader that is not heard of for a moment may still lead.
        match timeout(LEADER_WITHIN, places.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => return Unserved::NobodyLeads.to_string(),
        }
    }
}

/// Sends a request over a connection of its own.
async fn pass(request: Request, stream: PeerStream) -> hyper::Result<Response> {
    let (mut sender, connection) = http1::handshake::<_, Body>(TokioIo::new(stream)).await?;
    // It ends with the answer.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection for a request that was passed on failed");
        }
    });
    let mut answer = sender.send_request(for_the_other(request)).await?;
    strip(answer.headers_mut());
    Ok(answer.map(Body::new))
}

/// A request as it is sent to another node.
fn for_the_other(request: Request) -> Request {
    let (mut head, body) = request.into_parts();
    strip(&mut head.headers);
    head.extensions.clear();
    head.version = Version::HTTP_11;
    // Where the address names the host, it counts more than the header.
    let named = head.uri.authority().and_then(|named| HeaderValue::from_str(named.as_str()).ok());
    if let Some(host) = named {
        head.headers.insert(header::HOST, host);
    }
    head.uri = head.uri.path_and_query().cloned().map_or_else(|| Uri::from_static("/"), Uri::from);
    Request::from_parts(head, body)
}

/// Takes away what is about one connection alone.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&OF_CONNECTION) {
        headers.remove(name);
    }
}

fn unavailable(reason: String) -> Response {
    ApiError::unavailable(reason).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time passes at once when everybody waits.
    #[tokio::test(start_paused = true)]
    async fn a_leader_that_is_not_heard_of_is_waited_for_and_not_for_ever() {
        let (led_by_2, place) = (Place::Node(NodeId(2)), watch::Sender::new(Place::Node(NodeId(2))));
        let mut places = place.subscribe();
        let waiting = tokio::spawn(async move { leads_no_more(&mut places, NodeId(2)).await });
        for _ in 0..3 {
            place.send_replace(Place::Nowhere);
            sleep(LEADER_WITHIN / 2).await;
            place.send_replace(led_by_2);
            sleep(LEADER_WITHIN * 2).await;
            assert!(!waiting.is_finished());
        }
        place.send_replace(Place::Nowhere);
        assert_eq!(waiting.await.unwrap(), Unserved::NobodyLeads.to_string());
        let mut places = place.subscribe();
        place.send_replace(Place::Node(NodeId(3)));
        assert_eq!(leads_no_more(&mut places, NodeId(2)).await, "node 2 leads no more");
    }

    #[test]
    fn what_is_about_the_node_is_answered_by_it() {
        for path in ["/", "/health", "/metrics", "/api/nexo/cluster", "/api/nexo/cluster/nodes/a"] {
            assert!(is_about_this_node(path), "{path}");
        }
        assert!(is_about_this_node("/api/health/checks/alarms"));
        for path in ["/api", "/api/queues", "/api/nexo/clusters", "/healthy", "/api/healthchecks/node"] {
            assert!(!is_about_this_node(path), "{path}");
        }
    }

    #[test]
    fn what_is_about_the_connection_goes_no_further() {
        let request = Request::builder()
            .uri("http://node.example:15672/api/queues/%2F?page=1")
            .version(Version::HTTP_10)
            .header("connection", "close, x-hop")
            .header("x-hop", "1")
            .header("transfer-encoding", "chunked")
            .header("expect", "100-continue")
            .header("host", "other.example")
            .header("authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
            .body(Body::empty())
            .unwrap();
        let sent = for_the_other(request);
        assert_eq!(sent.uri(), "/api/queues/%2F?page=1");
        assert_eq!(sent.version(), Version::HTTP_11);
        let mut names: Vec<&str> = sent.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["authorization", "host"]);
        assert_eq!(sent.headers()["host"], "node.example:15672");
    }
}
