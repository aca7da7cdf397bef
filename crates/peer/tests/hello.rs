//! Who is let in at the cluster's port, and what everybody else is told.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Node, eventually, options, secret, within};
use nexo_peer::{ClusterId, PeerError, PeerSecurity, Peers, Purpose, Versions, read_message, write_message};
use nexo_types::NodeId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The head of a hello of version 1, up to the versions that whoever says it speaks.
fn hello_of_versions(min: u16, max: u16) -> Vec<u8> {
    let mut hello = b"NEXOPR\x00\x4e\x01".to_vec();
    hello.extend(min.to_be_bytes());
    hello.extend(max.to_be_bytes());
    // A later release may say anything behind them.
    hello.resize(8 + 0x4e, 0xab);
    hello
}

/// All that a node answers to these bytes, until it closes the connection.
async fn answer_to(node: &Node, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(node.peers.addresses()[0]).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    // A reset is an end as well.
    let _ = within(socket.read_to_end(&mut answer)).await;
    answer
}

#[tokio::test]
async fn another_secret_is_refused_and_both_know_why() {
    let first = Node::start(1).await;
    let second = Node::start_with(options(2, "127.0.0.1:0", secret("other"))).await;
    second.knows(&[&first]);
    let words = "it refused: the two nodes do not have the same cluster secret";
    second.cannot_speak_with(1, words).await;
    assert!(second.status_of(1).connected_since.is_none());
}

#[tokio::test]
async fn no_secret_is_another_secret() {
    let first = Node::start(1).await;
    let second = Node::start_with(options(2, "127.0.0.1:0", PeerSecurity::default())).await;
    second.knows(&[&first]);
    second.cannot_speak_with(1, "the same cluster secret").await;
    first.knows(&[&second]);
    first.cannot_speak_with(2, "the same cluster secret").await;
}

#[tokio::test]
async fn a_node_of_another_cluster_is_refused_by_name() {
    let first = Node::start(1).await;
    let mut other = options(2, "127.0.0.1:0", secret("hush"));
    other.identity.cluster = ClusterId([9; 16]);
    let second = Node::start_with(other).await;
    second.knows(&[&first]);
    let words = format!("is in the cluster {} and the other in {}", ClusterId([9; 16]), common::CLUSTER);
    second.cannot_speak_with(1, &words).await;
}

#[tokio::test]
async fn a_node_at_the_address_of_another_is_not_taken_for_it() {
    let (first, third) = (Node::start(1).await, Node::start(3).await);
    first.knows_at(2, &third.address());
    first.cannot_speak_with(2, "it is node 3 and not node 2").await;
    first.peers.send(NodeId(2), b"for another".to_vec());
    assert!(third.received().is_empty());
}

#[tokio::test]
async fn two_nodes_with_one_number_do_not_speak() {
    let (one, same) = (Node::start(1).await, Node::start(1).await);
    one.knows_at(2, &same.address());
    one.cannot_speak_with(2, "both ends are node 1").await;
}

#[tokio::test]
async fn a_later_version_is_refused_by_name() {
    let node = Node::start(1).await;
    let answer = answer_to(&node, &hello_of_versions(2, 7)).await;
    assert!(answer.starts_with(b"NEXOPR"), "{answer:?}");
    let text = String::from_utf8_lossy(&answer[11..]).into_owned();
    let words = "the node that connects speaks versions 2 to 7 of the protocol between nodes and the other version 1;";
    assert!(text.starts_with(words), "{text}");
}

/// A node of a release that speaks these versions.
async fn release(node: u64, min: u16, max: u16) -> Node {
    let mut release = options(node, "127.0.0.1:0", secret("hush"));
    release.identity.versions = Versions { min, max };
    Node::start_with(release).await
}

#[tokio::test]
async fn two_releases_agree_on_the_latest_version_that_both_speak() {
    for (older, newer, common) in [((1, 1), (1, 2), 1), ((1, 2), (2, 5), 2), ((2, 4), (1, 3), 3)] {
        let one = release(1, older.0, older.1).await;
        let other = release(2, newer.0, newer.1).await;
        one.knows(&[&other]);
        other.knows(&[&one]);
        one.is_connected_to(2).await;
        other.is_connected_to(1).await;
        assert_eq!((one.status_of(2).version, other.status_of(1).version), (Some(common), Some(common)));
        one.peers.send(NodeId(2), b"from one".to_vec());
        other.peers.send(NodeId(1), b"from the other".to_vec());
        eventually("what was sent is there", || {
            one.received() == [b"from the other"] && other.received() == [b"from one"]
        })
        .await;
    }
}

#[tokio::test]
async fn two_releases_without_a_version_in_common_say_so() {
    let (older, newer) = (release(1, 1, 2).await, release(2, 3, 4).await);
    older.knows(&[&newer]);
    newer.knows(&[&older]);
    let update = "update the older one to a release in between first";
    let words = format!(
        "speaks versions 1 to 2 of the protocol between nodes and the other versions 3 to 4; {update}"
    );
    older.cannot_speak_with(2, &words).await;
    let words = format!(
        "speaks versions 3 to 4 of the protocol between nodes and the other versions 1 to 2; {update}"
    );
    newer.cannot_speak_with(1, &words).await;
    assert!(older.status_of(2).connected_since.is_none() && newer.status_of(1).connected_since.is_none());
}

#[tokio::test]
async fn a_clock_that_is_off_is_measured_by_both() {
    let right = Node::start(1).await;
    let mut off = options(2, "127.0.0.1:0", secret("hush"));
    off.identity.clock_offset_ms = -60_000;
    let off = Node::start_with(off).await;
    right.knows(&[&off]);
    off.knows(&[&right]);
    let is_about = |node: &Node, of: u64, wanted: i64| {
        node.status_of(of).clock_skew_ms.is_some_and(|skew| (skew - wanted).abs() < 20_000)
    };
    eventually("both know", || is_about(&right, 2, -60_000) && is_about(&off, 1, 60_000)).await;
}

#[tokio::test]
async fn garbage_is_closed_without_a_word() {
    let node = Node::start(1).await;
    for garbage in [
        &b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"[..],
        b"AMQP\x00\x00\x09\x01",
        &[0; 64],
        &[0x16, 3, 1, 2, 0, 1, 0, 1],
        // More than any hello has.
        b"NEXOPR\xff\xff\x01",
    ] {
        let answer = answer_to(&node, garbage).await;
        let words = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.is_empty() || words.contains("too long"), "{garbage:?}: {words}");
    }
    let second = Node::start(2).await;
    second.knows(&[&node]);
    second.is_connected_to(1).await;
}

#[tokio::test]
async fn silence_is_not_waited_for() {
    let node = Node::start(1).await;
    let part = &hello_of_versions(1, 1)[..40];
    let answers = tokio::join!(answer_to(&node, b""), answer_to(&node, b"NEX"), answer_to(&node, part));
    assert_eq!(answers, (vec![], vec![], vec![]));
}

#[tokio::test]
async fn silent_strangers_keep_no_node_out() {
    let first = Node::start(1).await;
    let mut silent = Vec::new();
    for _ in 0..2 * nexo_types::limits::PEER_STRANGERS_MAX {
        silent.push(TcpStream::connect(first.peers.addresses()[0]).await.unwrap());
    }
    let second = Node::start(2).await;
    second.knows(&[&first]);
    second.is_connected_to(1).await;
    // The first of them had to go.
    assert_eq!(within(silent[0].read(&mut [0])).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn who_is_in_no_cluster_may_ask_and_nothing_else() {
    let mut node = Node::start(1).await;
    let address = node.address();
    let refused = Peers::open_address(&secret("hush"), &address, Purpose::Snapshot).await.unwrap_err();
    assert!(refused.to_string().contains("may only ask questions"), "{refused}");
    let mut asking = Peers::open_address(&secret("hush"), &address, Purpose::Request).await.unwrap();
    write_message(&mut asking, b"may I join?").await.unwrap();
    let (from, purpose, mut stream) = node.next_stream().await;
    assert_eq!((from, purpose), (None, Purpose::Request));
    assert_eq!(within(read_message(&mut stream)).await.unwrap(), b"may I join?");
    write_message(&mut stream, b"you are node 2").await.unwrap();
    assert_eq!(within(read_message(&mut asking)).await.unwrap(), b"you are node 2");
    let unknown = Peers::open_address(&secret("guess"), &address, Purpose::Request).await.unwrap_err();
    assert!(matches!(unknown, PeerError::Hello { .. }), "{unknown}");
}

#[tokio::test]
async fn an_address_at_which_something_else_listens_is_told_from_a_node() {
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = other.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = other.accept().await {
            let _ = socket.write_all(b"220 mail.example ESMTP ready\r\n").await;
            let _ = socket.read(&mut [0; 256]).await;
        }
    });
    let node = Node::start(1).await;
    node.knows_at(2, &address);
    node.cannot_speak_with(2, "it is no node of Nexo").await;
    let nobody = node.peers.open(NodeId(9), Purpose::Request).await.unwrap_err();
    assert!(matches!(nobody, PeerError::Unknown(NodeId(9))), "{nobody}");
    eventually("the attempt", || node.status_of(2).connected_since.is_none()).await;
}
