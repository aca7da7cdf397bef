//! Envelopes between nodes: their order, what becomes of them while a node is away, and how many may wait.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use common::{Node, eventually, options, secret, within};
use nexo_peer::{PeerHandler, PeerStream, Peers, Purpose};
use nexo_types::NodeId;
use nexo_types::limits::PEER_QUEUE_BYTES_MAX;
use parking_lot::{Condvar, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// An envelope with a number, of so many bytes.
fn numbered(number: u32, bytes: usize) -> Vec<u8> {
    let mut envelope = number.to_be_bytes().to_vec();
    envelope.resize(bytes.max(4), 0x5a);
    envelope
}

fn number(envelope: &[u8]) -> u32 {
    u32::from_be_bytes(*envelope.first_chunk().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn envelopes_come_whole_and_in_the_order_in_which_they_were_sent() {
    let (first, second) = (Node::start(1).await, Node::start(2).await);
    first.knows(&[&first, &second]);
    second.knows(&[&first, &second]);
    first.is_connected_to(2).await;
    second.is_connected_to(1).await;
    // Small ones, such that take several reads, and one that is larger than any buffer.
    let sizes = [4, 100, 70_000, 9, 3 << 20, 64 << 10, 5];
    let sent: Vec<Vec<u8>> =
        (0..700).map(|at| numbered(at, sizes[at as usize % sizes.len()] / (1 + at as usize / 350))).collect();
    for envelope in &sent {
        // The bound of the queue is another story.
        eventually("room", || first.status_of(2).sent_bytes + (32 << 20) > sent_before(&sent, envelope))
            .await;
        first.peers.send(NodeId(2), envelope.clone());
        second.peers.send(NodeId(1), envelope[..4].to_vec());
    }
    eventually("all of them", || second.recorder.envelopes.lock().len() == sent.len()).await;
    eventually("and back", || first.recorder.envelopes.lock().len() == sent.len()).await;
    assert!(second.received() == sent);
    assert!(second.recorder.envelopes.lock().iter().all(|(from, _)| *from == NodeId(1)));
    let numbers: Vec<u32> = first.received().iter().map(|envelope| number(envelope)).collect();
    assert!(numbers.is_sorted() && numbers.len() == sent.len());
    let (of_second, of_first) = (first.status_of(2), second.status_of(1));
    assert_eq!(of_second.sent_bytes, sent.iter().map(|envelope| envelope.len() as u64).sum::<u64>());
    assert_eq!((of_first.received_bytes, of_second.dropped), (of_second.sent_bytes, 0));
    assert_eq!(of_second.name.as_deref(), Some("node-2"));
    assert!(of_second.round_trip.is_some() && of_second.clock_skew_ms.is_some());
}

/// Bytes of all that come before this one.
fn sent_before(sent: &[Vec<u8>], envelope: &[u8]) -> u64 {
    let before = sent.iter().take_while(|other| number(other) < number(envelope));
    before.map(|other| other.len() as u64).sum()
}

#[tokio::test]
async fn a_node_that_comes_back_is_connected_again_by_itself() {
    let first = Node::start(1).await;
    let second = Node::start(2).await;
    let address = second.address();
    first.knows(&[&second]);
    first.is_connected_to(2).await;
    second.peers.close().await;
    eventually("the end", || first.status_of(2).connected_since.is_none()).await;
    first.peers.send(NodeId(2), b"into the void".to_vec());
    assert_eq!(first.status_of(2).dropped, 1);
    assert!(first.status_of(2).last_error.is_some());
    let again = Node::start_with(options(2, &address, secret("hush"))).await;
    first.is_connected_to(2).await;
    first.peers.send(NodeId(2), b"welcome back".to_vec());
    eventually("the envelope", || !again.received().is_empty()).await;
    assert_eq!(again.received(), [b"welcome back"], "nothing was kept for it");
}

#[tokio::test]
async fn the_end_of_a_node_is_told_and_a_new_connection_of_it_is_no_end() {
    let (first, second) = (Node::start(1).await, Node::start(2).await);
    first.knows(&[&second]);
    second.knows(&[&first]);
    second.is_connected_to(1).await;
    second.peers.send(NodeId(1), b"last words".to_vec());
    eventually("the words", || !first.received().is_empty()).await;
    // As a connection that was lost half way, in place of which the node makes another one.
    let again = Node::start(2).await;
    again.knows(&[&first]);
    eventually("another connection", || {
        again.peers.send(NodeId(1), b"hello".to_vec());
        first.received().contains(&b"hello".to_vec())
    })
    .await;
    assert!(first.recorder.lost.lock().is_empty());
    // Otherwise the two take each other's place again and again.
    second.peers.close().await;
    let before = first.received().len();
    eventually("words of the one that is left", || {
        again.peers.send(NodeId(1), b"hello".to_vec());
        first.received().len() > before
    })
    .await;
    first.recorder.lost.lock().clear();
    again.peers.close().await;
    eventually("the end", || *first.recorder.lost.lock() == [NodeId(2)]).await;
}

#[tokio::test]
async fn a_node_that_left_is_disconnected_both_ways_and_one_that_moved_is_followed() {
    let (first, second) = (Node::start(1).await, Node::start(2).await);
    first.knows(&[&second]);
    second.knows(&[&first]);
    first.is_connected_to(2).await;
    second.is_connected_to(1).await;
    let before = second.status_of(1).connected_since;
    first.knows(&[]);
    assert!(first.peers.status().is_empty());
    eventually("the end", || second.status_of(1).last_error.is_some()).await;
    assert!(before.is_some());
    let moved = Node::start(2).await;
    first.knows(&[&moved]);
    first.is_connected_to(2).await;
    first.peers.send(NodeId(2), b"found you".to_vec());
    eventually("the envelope", || moved.received() == [b"found you"]).await;
    assert!(second.received().is_empty());
}

/// Takes nothing before it is told to.
#[derive(Default)]
struct Slow {
    may_go_on: Mutex<bool>,
    told: Condvar,
    received: Mutex<Vec<u32>>,
}

impl PeerHandler for Slow {
    fn envelope(&self, _: NodeId, envelope: Bytes) {
        let mut may_go_on = self.may_go_on.lock();
        while !*may_go_on {
            self.told.wait(&mut may_go_on);
        }
        drop(may_go_on);
        self.received.lock().push(number(&envelope));
    }

    fn stream(&self, _: Option<NodeId>, _: Purpose, _: PeerStream) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_waits_for_a_slow_node_is_bounded_and_the_rest_is_dropped_and_counted() {
    let first = Node::start(1).await;
    let slow = Arc::new(Slow::default());
    let handler = Arc::clone(&slow) as Arc<dyn PeerHandler>;
    let second = Peers::start(options(2, "127.0.0.1:0", secret("hush")), handler).await.unwrap();
    first.knows_at(2, &second.addresses()[0].to_string());
    first.is_connected_to(2).await;
    let mebibyte = 1 << 20;
    let count = u32::try_from(2 * PEER_QUEUE_BYTES_MAX / mebibyte).unwrap();
    for at in 0..count {
        first.peers.send(NodeId(2), numbered(at, mebibyte));
    }
    let dropped = first.status_of(2).dropped;
    assert!(dropped > 0 && dropped < u64::from(count), "{dropped} of {count}");
    *slow.may_go_on.lock() = true;
    slow.told.notify_all();
    let kept = usize::try_from(u64::from(count) - dropped).unwrap();
    eventually("those that were kept", || slow.received.lock().len() == kept).await;
    assert!(slow.received.lock().is_sorted());
    assert_eq!(slow.received.lock()[0], 0);
    first.peers.send(NodeId(2), numbered(count, 4));
    eventually("the next", || slow.received.lock().last() == Some(&count)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_of_its_own_and_holds_up_no_envelope() {
    let mut first = Node::start(1).await;
    let second = Node::start(2).await;
    second.knows(&[&first]);
    second.is_connected_to(1).await;
    let mut snapshot = second.peers.open(NodeId(1), Purpose::Snapshot).await.unwrap();
    let (from, purpose, mut arriving) = first.next_stream().await;
    assert_eq!((from, purpose), (Some(NodeId(2)), Purpose::Snapshot));
    let body: Vec<u8> = (0..20 << 20).map(|at: u32| (at % 251) as u8).collect();
    let sending = tokio::spawn({
        let body = body.clone();
        async move {
            snapshot.write_all(&body).await.unwrap();
            snapshot.shutdown().await.unwrap();
            let mut answer = Vec::new();
            snapshot.read_to_end(&mut answer).await.unwrap();
            answer
        }
    });
    // Nobody reads the stream, and the envelope comes all the same.
    second.peers.send(NodeId(1), b"heartbeat".to_vec());
    eventually("the envelope", || first.received() == [b"heartbeat"]).await;
    let mut arrived = Vec::new();
    within(arriving.read_to_end(&mut arrived)).await.unwrap();
    assert!(arrived == body);
    arriving.write_all(b"taken").await.unwrap();
    drop(arriving);
    assert_eq!(within(sending).await.unwrap(), b"taken");
}

#[tokio::test]
async fn a_node_that_is_closed_listens_no_more_and_opens_nothing() {
    let (first, second) = (Node::start(1).await, Node::start(2).await);
    second.knows(&[&first]);
    second.is_connected_to(1).await;
    second.peers.close().await;
    assert!(second.peers.open(NodeId(1), Purpose::Request).await.is_err());
    let address = second.address();
    let _taken = tokio::net::TcpListener::bind(&address).await.unwrap();
    second.peers.set_peers(&BTreeMap::from([(NodeId(3), first.address())]));
    assert_eq!(second.peers.status().len(), 1, "nobody is connected to any more");
}
