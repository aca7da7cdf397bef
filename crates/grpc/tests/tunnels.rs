//! The native API in a cluster: clients of a node that does not lead, and a leader that is deposed.

#![allow(clippy::unwrap_used)]

mod common;

use std::io;
use std::sync::Arc;

use common::{message, within};
use nexo_access::{FirstUser, Logins};
use nexo_broker::{Broker, BrokerOptions, Protocol};
use nexo_grpc::client::{Client, Credentials};
use nexo_grpc::proto;
use nexo_log::disk::FaultyDisk;
use nexo_net::{Gate, Listeners, OpeningTunnel, PeerStream, Place, TunnelHead, Tunnels, Unserved};
use nexo_types::{NodeId, Term};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const LEADS: Place = Place::Here { term: Term(1) };

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

struct Node {
    broker: Broker,
    url: String,
    gate: Arc<ToLeader>,
    tunnels: Tunnels,
}

async fn start(place: Place, leader: Tunnels) -> Node {
    let broker = Broker::open_on(Arc::new(FaultyDisk::new()), BrokerOptions::new("memory")).unwrap();
    let logins = Logins::open(&broker, &FirstUser::default()).await.unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let (mut listeners, mut tunnels) = (Listeners::from(socket), Tunnels::default());
    tunnels.attach(Protocol::Grpc, &mut listeners);
    let gate = Arc::new(ToLeader { places: watch::Sender::new(place), leader });
    listeners.set_gate(Arc::clone(&gate) as Arc<dyn Gate>);
    tokio::spawn(nexo_grpc::serve(broker.clone(), logins, listeners, std::future::pending()));
    Node { broker, url, gate, tunnels }
}

async fn create(client: &Client, queue: &str) {
    let config = Some(proto::QueueConfig::default());
    let request = proto::CreateQueueRequest { queue: queue.into(), config, ..Default::default() };
    client.queues().create_queue(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_at_a_follower_are_answered_by_the_leader() {
    let leader = start(LEADS, Tunnels::default()).await;
    let follower = start(Place::Node(NodeId(1)), leader.tunnels.clone()).await;
    let client = Client::connect(&follower.url).await.unwrap();
    create(&client, "q").await;
    let push =
        proto::PushRequest { queue: "q".into(), messages: vec![message("afar")], ..Default::default() };
    client.messages().push(push).await.unwrap();
    let pop = proto::PopRequest { queue: "q".into(), max: 1, ..Default::default() };
    let popped = client.messages().pop(pop).await.unwrap().into_inner().messages;
    assert_eq!(popped[0].body, b"afar"[..]);
    assert_eq!((leader.broker.queue_names().len(), follower.broker.queue_names().len()), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_a_leader_that_is_deposed_ends_and_does_not_hang() {
    let leader = start(LEADS, Tunnels::default()).await;
    let follower = start(Place::Node(NodeId(1)), leader.tunnels.clone()).await;
    let mut streams = Vec::new();
    let mut held = Vec::new();
    for (url, queue) in [(&leader.url, "here"), (&follower.url, "there")] {
        let client = Client::connect(url).await.unwrap();
        create(&client, queue).await;
        let (sender, requests) = tokio::sync::mpsc::channel(8);
        let first = proto::PushStreamRequest {
            sequence: 1,
            queue: queue.into(),
            messages: vec![message("first")],
            ..Default::default()
        };
        sender.send(first).await.unwrap();
        let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
        let mut replies = client.messages().push_stream(requests).await.unwrap().into_inner();
        assert_eq!(within(replies.message()).await.unwrap().unwrap().confirms.len(), 1);
        streams.push(replies);
        // The client has not ended it.
        held.push((client, sender));
    }
    leader.gate.places.send_replace(Place::Nowhere);
    for mut stream in streams {
        let status = within(stream.message()).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
        assert_eq!(status.message(), Unserved::Deposed.to_string());
    }
    // What comes after is not known, and the connections end as well: nobody is served over them.
    within(async {
        while leader.broker.connections().counts(Protocol::Grpc).open > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_where_nobody_leads_are_told_so_whoever_makes_them() {
    let node = start(Place::Nowhere, Tunnels::default()).await;
    let client = Client::connect(&node.url).await.unwrap();
    let wrong = client.with(Credentials::password("guest", "wrong"));
    for client in [client, wrong] {
        let push =
            proto::PushRequest { queue: "q".into(), messages: vec![message("x")], ..Default::default() };
        let status = within(client.messages().push(push)).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
        assert_eq!(status.message(), Unserved::NobodyLeads.to_string());
    }
}
