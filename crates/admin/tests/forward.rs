//! The management port of a node that does not lead: what is about the node it answers itself, and everything else the leader
//! answers.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nexo_access::{FirstUser, Logins};
use nexo_admin::AdminOptions;
use nexo_broker::{Broker, BrokerOptions, Codecs, NewMessage, Protocol, QueueConfig};
use nexo_log::disk::FaultyDisk;
use nexo_net::{Gate, Listeners, PeerStream, Place, TunnelHead, TunnelTls, Tunnels};
use nexo_peer::{
    ClusterId, Forwarder, PeerHandler, PeerIdentity, PeerOptions, PeerSecurity, Peers, Purpose, Versions,
};
use nexo_types::{NodeId, QueueName, Term};
use parking_lot::RwLock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const LEADS: Place = Place::Here { term: Term(1) };
/// guest:guest
const LOGIN: &str = "authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n";

#[derive(Default)]
struct Porter(RwLock<Tunnels>);

impl PeerHandler for Porter {
    fn envelope(&self, _: NodeId, _: bytes::Bytes) {}

    fn stream(&self, _: Option<NodeId>, purpose: Purpose, stream: PeerStream) {
        let Purpose::Tunnel(head) = purpose else { panic!("no tunnel: {purpose:?}") };
        let _ = self.0.read().bring(head, stream);
    }
}

struct Node {
    broker: Broker,
    peers: Peers,
    place: watch::Sender<Place>,
    http: SocketAddr,
}

impl Node {
    async fn start(node: u64, place: Place) -> Self {
        let codecs = nexo_amqp::register(Codecs::default());
        let options = BrokerOptions { segment_bytes: 1 << 20, codecs, ..BrokerOptions::new("memory") };
        let broker = Broker::open_on(Arc::new(FaultyDisk::new()), options).unwrap();
        let logins = Logins::open(&broker, &FirstUser::default()).await.unwrap();
        let porter = Arc::new(Porter::default());
        let identity = PeerIdentity {
            cluster: ClusterId([7; 16]),
            node: NodeId(node),
            name: format!("node-{node}"),
            advertise: String::new(),
            versions: Versions::OWN,
            clock_offset_ms: 0,
        };
        let listen = vec!["127.0.0.1:0".to_owned()];
        let options = PeerOptions { listen, identity, security: PeerSecurity::default() };
        let handler = Arc::clone(&porter) as Arc<dyn PeerHandler>;
        let peers = Peers::start(options, handler).await.unwrap();
        let place = watch::Sender::new(place);
        let gate: Arc<dyn Gate> = Arc::new(Forwarder::new(peers.clone(), place.subscribe()));
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = socket.local_addr().unwrap();
        let mut listeners = Listeners::from(socket);
        porter.0.write().attach(Protocol::Http, &mut listeners);
        let options = AdminOptions { gate: Some(gate), ..AdminOptions::default() };
        tokio::spawn(nexo_admin::serve(broker.clone(), logins, listeners, options, std::future::pending()));
        Self { broker, peers, place, http }
    }

    fn knows(&self, other: &Self) {
        let address = other.peers.addresses()[0].to_string();
        self.peers.set_peers(&[(other.peers.identity().node, address)].into());
    }

    /// Status, head and body of an answer.
    async fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String, String) {
        let stream = TcpStream::connect(self.http).await.unwrap();
        ask_over(stream, method, path, headers, body).await
    }
}

async fn ask_over(
    mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (u16, String, String) {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    let status = reply.split_whitespace().nth(1).unwrap().parse().unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (status, head.to_owned(), body.to_owned())
}

async fn pair() -> (Node, Node) {
    let (leader, follower) = (Node::start(1, LEADS).await, Node::start(2, Place::Node(NodeId(1))).await);
    follower.knows(&leader);
    (leader, follower)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_through_a_follower_is_done_by_the_leader() {
    let (leader, follower) = pair().await;
    let (status, ..) = follower.ask("PUT", "/api/queues/%2F/orders", LOGIN, "{\"durable\":true}").await;
    assert_eq!(status, 201);
    assert_eq!(leader.broker.queue_names().len(), 1);
    assert!(follower.broker.queue_names().is_empty());
    let (status, head, body) = follower.ask("GET", "/api/queues/%2F?page=1&page_size=10", LOGIN, "").await;
    assert!(status == 200 && body.contains("\"orders\""), "{status} {body}");
    assert!(head.to_lowercase().contains("content-type: application/json"), "{head}");
    let (status, ..) = follower.ask("DELETE", "/api/queues/%2F/orders", LOGIN, "").await;
    assert_eq!(status, 204);
    assert!(leader.broker.queue_names().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_go_both_ways() {
    let (leader, follower) = pair().await;
    assert_eq!(follower.ask("PUT", "/api/queues/%2F/q", LOGIN, "{}").await.0, 201);
    let payload = "x".repeat(1 << 20);
    let message = format!(
        "{{\"properties\":{{}},\"routing_key\":\"q\",\"payload\":\"{payload}\",\"payload_encoding\":\"string\"}}"
    );
    let (status, _, answer) =
        follower.ask("POST", "/api/exchanges/%2F/amq.default/publish", LOGIN, &message).await;
    assert!(status == 200 && answer.contains("true"), "{status} {answer}");
    let get = "{\"count\":1,\"ackmode\":\"ack_requeue_false\",\"encoding\":\"auto\"}";
    let (status, _, got) = follower.ask("POST", "/api/queues/%2F/q/get", LOGIN, get).await;
    assert!(status == 200 && got.contains(&payload), "{status}, {} bytes", got.len());
    assert_eq!(leader.broker.queue_names().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_at_the_leader_may_not_through_a_follower() {
    let (_leader, follower) = pair().await;
    assert_eq!(follower.ask("GET", "/api/overview", "", "").await.0, 401);
    let wrong = "authorization: Basic Z3Vlc3Q6d3Jvbmc=\r\n";
    assert_eq!(follower.ask("GET", "/api/overview", wrong, "").await.0, 401);
    let stranger = "origin: http://evil.example\r\n";
    let both = format!("{LOGIN}{stranger}");
    assert_eq!(follower.ask("GET", "/api/overview", &both, "").await.0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_figures_are_the_nodes_own_whoever_leads() {
    let (leader, follower) = pair().await;
    leader.peers.close().await;
    for path in ["/", "/health", "/metrics"] {
        assert_eq!(follower.ask("GET", path, "", "").await.0, 200, "{path}");
    }
    let (status, ..) = follower.ask("GET", "/api/health/checks/alarms", LOGIN, "").await;
    assert_eq!(status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_serves_both_kinds_and_follows_the_leader() {
    let (leader, follower) = pair().await;
    let mut client = TcpStream::connect(follower.http).await.unwrap();
    for (path, led_here) in [("/api/whoami", false), ("/health", false), ("/api/whoami", true)] {
        if led_here {
            follower.place.send_replace(LEADS);
            leader.place.send_replace(Place::Node(NodeId(2)));
        }
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{LOGIN}\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut reply = Vec::new();
        while !reply.ends_with(b"}") {
            assert!(client.read_buf(&mut reply).await.unwrap() > 0, "the connection stays open");
        }
        assert!(reply.starts_with(b"HTTP/1.1 200 "), "{path}: {}", String::from_utf8_lossy(&reply));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_passed_on_once() {
    let (leader, follower) = pair().await;
    // Each takes the other for the leader.
    leader.place.send_replace(Place::Node(NodeId(2)));
    let (status, _, body) = follower.ask("GET", "/api/overview", LOGIN, "").await;
    assert!(status == 503 && body.contains("node 2 leads, and not this one"), "{status} {body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn guest_may_not_come_from_afar_through_a_follower() {
    let (leader, follower) = pair().await;
    let asked = |client: &str| {
        let head = TunnelHead {
            protocol: Protocol::Http,
            tls: TunnelTls::Off,
            client: client.parse().unwrap(),
            reached: follower.http,
        };
        let (peers, leader) = (follower.peers.clone(), leader.peers.identity().node);
        async move {
            let tunnel = peers.open(leader, Purpose::Tunnel(head)).await.unwrap();
            ask_over(tunnel, "GET", "/api/overview", LOGIN, "").await.0
        }
    };
    assert_eq!(asked("192.0.2.7:40000").await, 401);
    assert_eq!(asked("127.0.0.1:40000").await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_through_a_follower_tells_how_far_it_is_and_ends_with_its_client() {
    const MANY: u64 = 200_000;
    let (leader, follower) = pair().await;
    let [from, to] = ["from", "to"].map(|name| QueueName::new(name).unwrap());
    for queue in [&from, &to] {
        leader.broker.create_queue(queue, QueueConfig::default()).await.unwrap();
    }
    for _ in 0..MANY / 10_000 {
        leader.broker.push(&from, vec![NewMessage::new(b"x".to_vec()); 10_000]).await.unwrap();
    }
    let mut client = TcpStream::connect(follower.http).await.unwrap();
    let body = "{\"target\":\"to\",\"progress\":true}";
    let request = format!(
        "POST /api/nexo/queues/%2F/from/redrive HTTP/1.1\r\nhost: localhost\r\n{LOGIN}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    client.write_all(request.as_bytes()).await.unwrap();
    let mut told = Vec::new();
    while !told.windows(7).any(|part| part == b"\"moved\"") {
        assert!(client.read_buf(&mut told).await.unwrap() > 0, "{}", String::from_utf8_lossy(&told));
    }
    drop(client);
    let moved = || leader.broker.queue_stats(&to).unwrap().ready;
    let mut before = 0;
    while moved() != before {
        before = moved();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!((1..MANY).contains(&before), "{before} were moved");
}
