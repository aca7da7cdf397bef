//! AMQP clients of a node that does not lead: the node that leads serves them.

#![allow(clippy::unwrap_used)]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use common::certificates::Authority;
use common::{PATIENCE, eventually, options, secret, within};
use nexo_access::{FirstUser, Logins};
use nexo_amqp_client::{Client, Error, Login, PERSISTENT};
use nexo_broker::{Broker, BrokerOptions, Codecs, Protocol};
use nexo_log::disk::FaultyDisk;
use nexo_net::{
    CertificateName, ClientCertificates, ClientTls, Gate, Listeners, PeerStream, Place, TlsOptions,
    TlsServer, TunnelHead, TunnelTls, Tunnels, client_config,
};
use nexo_peer::{Forwarder, PeerHandler, Peers, Purpose, follow};
use nexo_types::{NodeId, Term};
use parking_lot::RwLock;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

const LEADS: Place = Place::Here { term: Term(1) };

/// Brings tunnels to their ports.
#[derive(Default)]
struct Porter(RwLock<Tunnels>);

impl PeerHandler for Porter {
    fn envelope(&self, _: NodeId, _: Bytes) {}

    fn stream(&self, from: Option<NodeId>, purpose: Purpose, stream: PeerStream) {
        assert!(from.is_some());
        let Purpose::Tunnel(head) = purpose else { panic!("no tunnel: {purpose:?}") };
        // A port that is closed takes none; its client sees the end.
        let _ = self.0.read().bring(head, stream);
    }
}

/// A node with an AMQP port.
struct Node {
    broker: Broker,
    peers: Peers,
    forwarder: Arc<Forwarder>,
    place: watch::Sender<Place>,
    amqp: SocketAddr,
    amqps: Option<SocketAddr>,
}

impl Node {
    async fn start(node: u64, place: Place) -> Self {
        Self::start_with(node, place, BrokerOptions::new("memory"), None).await
    }

    async fn start_with(node: u64, place: Place, broker: BrokerOptions, tls: Option<TlsServer>) -> Self {
        let codecs = nexo_amqp::register(Codecs::default());
        let broker = BrokerOptions { segment_bytes: 1 << 20, codecs, ..broker };
        let broker = Broker::open_on(Arc::new(FaultyDisk::new()), broker).unwrap();
        let logins = Logins::open(&broker, &FirstUser::default()).await.unwrap();
        let porter = Arc::new(Porter::default());
        let handler = Arc::clone(&porter) as Arc<dyn PeerHandler>;
        let peers = Peers::start(options(node, "127.0.0.1:0", secret("hush")), handler).await.unwrap();
        // A role is what a broker would tell; here it is the place itself.
        let place = watch::Sender::new(place);
        let forwarder = Arc::new(Forwarder::new(peers.clone(), follow(place.subscribe(), |place| *place)));
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let amqp = socket.local_addr().unwrap();
        let (mut listeners, mut amqps) = (Listeners::from(socket), None);
        if let Some(tls) = tls {
            let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
            amqps = Some(socket.local_addr().unwrap());
            listeners.join(Listeners::from(socket).over_tls(&Arc::new(tls)));
        }
        listeners.set_gate(Arc::clone(&forwarder) as Arc<dyn Gate>);
        porter.0.write().attach(Protocol::Amqp, &mut listeners);
        let options = nexo_amqp::Options::default();
        tokio::spawn(nexo_amqp::serve(broker.clone(), logins, listeners, options, std::future::pending()));
        Self { broker, peers, forwarder, place, amqp, amqps }
    }

    /// Tells it of others.
    fn knows(&self, others: &[&Self]) {
        let others = others.iter().map(|it| (it.id(), it.peers.addresses()[0].to_string()));
        self.peers.set_peers(&others.collect());
    }

    fn id(&self) -> NodeId {
        self.peers.identity().node
    }

    fn open(&self) -> usize {
        self.broker.connections().counts(Protocol::Amqp).open
    }
}

/// A leader and a node that follows it.
async fn pair() -> (Node, Node) {
    let leader = Node::start(1, LEADS).await;
    let follower = Node::start(2, Place::Node(NodeId(1))).await;
    follower.knows(&[&leader]);
    leader.knows(&[&follower]);
    (leader, follower)
}

async fn connect(to: SocketAddr) -> Result<Client, Error> {
    let mut client = Client::connect(to, &Login::default(), PATIENCE).await?;
    client.open_channel(1).await?;
    Ok(client)
}

/// Declares a queue, and has a body of so many bytes go in and out.
async fn use_queue(client: &mut Client, queue: &str, bytes: usize) {
    let body: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    client.declare_queues(1, &[queue.to_owned()]).await.unwrap();
    client.add_publish(1, "", queue, PERSISTENT, &body).unwrap();
    client.round_trip(1).await.unwrap();
    let got = client.get(1, queue, true).await.unwrap().expect("a message");
    assert!(got.body == body, "{} bytes came of {bytes}", got.body.len());
}

/// Waits until a client that does nothing hears that its connection has ended.
async fn ends(mut client: Client) {
    while let Ok(Some(_)) = within(client.next_frame()).await {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_at_a_follower_is_served_by_the_leader_with_its_own_address() {
    let (leader, follower) = pair().await;
    let mut client = connect(follower.amqp).await.unwrap();
    for (at, bytes) in [0, 1, 70_000, 5 << 20].into_iter().enumerate() {
        use_queue(&mut client, &format!("q{at}"), bytes).await;
    }
    assert_eq!(leader.broker.queue_names().len(), 4);
    assert!(follower.broker.queue_names().is_empty());
    let shown = leader.broker.open_connections().all();
    let [connection] = &shown[..] else { panic!("{} connections", shown.len()) };
    assert_eq!(connection.facts().local, follower.amqp, "the address that the client connected to");
    assert!(connection.facts().peer.ip().is_loopback());
    assert_ne!(connection.facts().peer, leader.amqp);
    assert_eq!((leader.open(), follower.open(), follower.forwarder.opened()), (1, 1, 1));
    drop(client);
    eventually("both ends are free", || leader.open() + follower.open() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_all_nodes_see_the_same_queue() {
    let (leader, follower) = pair().await;
    let (mut here, mut there) = (connect(leader.amqp).await.unwrap(), connect(follower.amqp).await.unwrap());
    here.declare_queues(1, &["q".to_owned()]).await.unwrap();
    here.consume(1, "q", "waits").await.unwrap();
    there.add_publish(1, "", "q", PERSISTENT, b"from afar").unwrap();
    there.round_trip(1).await.unwrap();
    assert_eq!(here.message(PATIENCE).await.unwrap().expect("a message").body, b"from afar"[..]);
}

/// An address at which connections come out at `leader` as those of `client`.
async fn as_client(follower: &Node, leader: NodeId, client: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, peers, reached) = (listener.local_addr().unwrap(), follower.peers.clone(), follower.amqp);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let head = TunnelHead { protocol: Protocol::Amqp, tls: TunnelTls::Off, client, reached };
            let mut tunnel = peers.open(leader, Purpose::Tunnel(head)).await.unwrap();
            let _ = copy_bidirectional(&mut socket, &mut tunnel).await;
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn guest_may_come_from_the_followers_machine_and_from_nowhere_else() {
    let (leader, follower) = pair().await;
    let elsewhere = as_client(&follower, leader.id(), "192.0.2.7:40000".parse().unwrap()).await;
    assert!(connect(elsewhere).await.is_err(), "guest is for loopback only");
    let local = as_client(&follower, leader.id(), "127.0.0.1:40000".parse().unwrap()).await;
    let _client = connect(local).await.unwrap();
    let shown = leader.broker.open_connections().all();
    assert_eq!(shown[0].facts().peer, "127.0.0.1:40000".parse().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_deposed_ends_its_clients_wherever_they_came_in() {
    let (leader, follower) = pair().await;
    let (here, there) = (connect(leader.amqp).await.unwrap(), connect(follower.amqp).await.unwrap());
    leader.place.send_replace(Place::Nowhere);
    ends(here).await;
    ends(there).await;
    eventually("all are gone", || leader.open() + follower.open() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_a_follower_are_led_to_the_next_leader() {
    let (first, follower) = pair().await;
    let second = Node::start(3, LEADS).await;
    follower.knows(&[&first, &second]);
    let before = connect(follower.amqp).await.unwrap();
    follower.place.send_replace(Place::Node(NodeId(3)));
    ends(before).await;
    let mut after = connect(follower.amqp).await.unwrap();
    use_queue(&mut after, "q", 10).await;
    assert_eq!((first.broker.queue_names().len(), second.broker.queue_names().len()), (0, 1));
    // It is elected itself.
    follower.place.send_replace(LEADS);
    ends(after).await;
    let mut own = connect(follower.amqp).await.unwrap();
    use_queue(&mut own, "q", 10).await;
    assert_eq!(follower.broker.queue_names().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missed_heartbeat_costs_no_tunnel() {
    let (_leader, follower) = pair().await;
    let mut client = connect(follower.amqp).await.unwrap();
    follower.place.send_replace(Place::Nowhere);
    use_queue(&mut client, "q", 10).await;
    follower.place.send_replace(Place::Node(NodeId(1)));
    use_queue(&mut client, "q", 10).await;
}

/// Clients that wait at a node which knows no leader.
async fn waiting_at(node: &Node) -> [JoinHandle<Result<Client, Error>>; 2] {
    let waiting = [tokio::spawn(connect(node.amqp)), tokio::spawn(connect(node.amqp))];
    eventually("they wait", || node.open() == waiting.len()).await;
    assert!(waiting.iter().all(|client| !client.is_finished()));
    waiting
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_wait_for_an_election_and_are_led_to_whoever_wins() {
    let leader = Node::start(1, LEADS).await;
    let follower = Node::start(2, Place::Nowhere).await;
    follower.knows(&[&leader]);
    let waiting = waiting_at(&follower).await;
    follower.place.send_replace(Place::Node(NodeId(1)));
    for client in waiting {
        use_queue(&mut within(client).await.unwrap().unwrap(), "q", 10).await;
    }
    assert_eq!((leader.broker.queue_names().len(), follower.broker.queue_names().len()), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_wait_for_an_election_and_are_served_here_if_this_node_wins() {
    let node = Node::start(2, Place::Nowhere).await;
    let waiting = waiting_at(&node).await;
    node.place.send_replace(LEADS);
    for client in waiting {
        use_queue(&mut within(client).await.unwrap().unwrap(), "q", 10).await;
    }
    assert_eq!((node.broker.queue_names().len(), node.forwarder.opened()), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_passed_on_twice() {
    let (leader, follower) = pair().await;
    // Each takes the other for the leader.
    leader.place.send_replace(Place::Node(NodeId(2)));
    let mut client = TcpStream::connect(follower.amqp).await.unwrap();
    let mut end = [0];
    assert_eq!(within(tokio::io::AsyncReadExt::read(&mut client, &mut end)).await.unwrap_or(0), 0);
    assert_eq!(leader.forwarder.opened(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_takes_in_no_more_than_its_own_limit() {
    let leader = Node::start(1, LEADS).await;
    let few = BrokerOptions { clients_max: 2, ..BrokerOptions::new("memory") };
    let follower = Node::start_with(2, Place::Node(NodeId(1)), few, None).await;
    follower.knows(&[&leader]);
    let clients = [connect(follower.amqp).await.unwrap(), connect(follower.amqp).await.unwrap()];
    assert!(connect(follower.amqp).await.is_err());
    assert_eq!((follower.open(), leader.open()), (2, 2));
    drop(clients);
    eventually("room", || follower.open() == 0).await;
    connect(follower.amqp).await.unwrap();
}

fn server_of(authority: &Authority, name: &str) -> TlsServer {
    let files = authority.node(name);
    TlsServer::load(&TlsOptions {
        certificate: files.certificate,
        key: files.key,
        client_ca: None,
        client_certificates: ClientCertificates::Ignored,
        login_from: CertificateName::default(),
    })
    .unwrap()
}

/// A plain address that leads through TLS to `to`, for a client that trusts `authority` alone.
async fn through_tls(to: SocketAddr, authority: &Authority) -> SocketAddr {
    let mut config = client_config(&ClientTls { ca: Some(authority.ca()), identity: None }, b"").unwrap();
    Arc::make_mut(&mut config).alpn_protocols.clear();
    let connector = TlsConnector::from(config);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let server = TcpStream::connect(to).await.unwrap();
            let name = ServerName::try_from("localhost").unwrap();
            let Ok(mut server) = connector.connect(name, server).await else { continue };
            let _ = copy_bidirectional(&mut socket, &mut server).await;
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_goes_through_and_ends_at_the_leader() {
    let (of_leader, of_follower) = (Authority::new(), Authority::new());
    let memory = || BrokerOptions::new("memory");
    let leader = Node::start_with(1, LEADS, memory(), Some(server_of(&of_leader, "leader"))).await;
    let tls = Some(server_of(&of_follower, "follower"));
    let follower = Node::start_with(2, Place::Node(NodeId(1)), memory(), tls).await;
    follower.knows(&[&leader]);
    let to = follower.amqps.unwrap();
    let mut client = connect(through_tls(to, &of_leader).await).await.unwrap();
    use_queue(&mut client, "q", 5 << 20).await;
    assert!(leader.broker.open_connections().all()[0].facts().is_tls);
    assert!(connect(through_tls(to, &of_follower).await).await.is_err(), "the leader's certificate is shown");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_such_a_port_closes_the_tunnel() {
    let authority = Authority::new();
    let leader = Node::start(1, LEADS).await;
    let tls = Some(server_of(&authority, "follower"));
    let follower = Node::start_with(2, Place::Node(NodeId(1)), BrokerOptions::new("memory"), tls).await;
    follower.knows(&[&leader]);
    assert!(connect(through_tls(follower.amqps.unwrap(), &authority).await).await.is_err());
    use_queue(&mut connect(follower.amqp).await.unwrap(), "q", 10).await;
}
