//! Nodes that know each other by certificates.

#![allow(clippy::unwrap_used)]

mod common;

use common::certificates::Authority;
use common::{Node, eventually, options, secret, within};
use nexo_peer::{PeerSecurity, PeerStream, PeerTls, Peers, Purpose, Secret, read_message, write_message};
use nexo_types::NodeId;

fn by(tls: PeerTls) -> PeerSecurity {
    PeerSecurity { secret: None, tls: Some(tls) }
}

async fn node(number: u64, security: PeerSecurity) -> Node {
    Node::start_with(options(number, "127.0.0.1:0", security)).await
}

#[tokio::test]
async fn nodes_of_one_authority_speak_and_nobody_else_can_read_it() {
    let authority = Authority::new();
    let mut first = node(1, by(authority.node("first"))).await;
    let second = node(2, by(authority.node("second"))).await;
    first.knows(&[&second]);
    second.knows(&[&first]);
    first.is_connected_to(2).await;
    second.is_connected_to(1).await;
    let large: Vec<u8> = (0..3 << 20).map(|at: u32| (at % 251) as u8).collect();
    first.peers.send(NodeId(2), large.clone());
    second.peers.send(NodeId(1), b"small".to_vec());
    eventually("the envelopes", || !second.received().is_empty() && !first.received().is_empty()).await;
    assert!(second.received() == [large]);
    let mut asking = second.peers.open(NodeId(1), Purpose::Request).await.unwrap();
    assert!(matches!(asking, PeerStream::Tls(_)));
    write_message(&mut asking, b"how are you?").await.unwrap();
    let (from, _, mut stream) = first.next_stream().await;
    assert_eq!(from, Some(NodeId(2)));
    assert_eq!(within(read_message(&mut stream)).await.unwrap(), b"how are you?");
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_worth_nothing() {
    let (authority, other) = (Authority::new(), Authority::new());
    let first = node(1, by(authority.node("first"))).await;
    // It trusts the first, which does not trust it.
    let stranger = PeerTls { ca: authority.ca(), ..other.node("stranger") };
    let second = node(2, by(stranger)).await;
    second.knows(&[&first]);
    eventually("a refusal", || second.status_of(1).last_error.is_some()).await;
    assert!(second.status_of(1).connected_since.is_none());
    first.knows(&[&second]);
    first.cannot_speak_with(2, "invalid peer certificate").await;
}

#[tokio::test]
async fn a_certificate_for_another_host_is_not_believed() {
    let authority = Authority::new();
    let first = node(1, by(authority.node("first"))).await;
    let second = node(2, by(authority.sign("second", &["elsewhere.example"]))).await;
    first.knows(&[&second]);
    first.cannot_speak_with(2, "certificate").await;
}

#[tokio::test]
async fn a_secret_counts_beside_certificates() {
    let authority = Authority::new();
    let both = |name: &str, text: &str| PeerSecurity {
        secret: Some(Secret::new(text)),
        tls: Some(authority.node(name)),
    };
    let first = node(1, both("first", "hush")).await;
    let second = node(2, both("second", "hush")).await;
    second.knows(&[&first]);
    second.is_connected_to(1).await;
    let third = node(3, both("third", "other")).await;
    third.knows(&[&first]);
    third.cannot_speak_with(1, "the same cluster secret").await;
}

#[tokio::test]
async fn one_that_speaks_tls_and_one_that_does_not_find_out() {
    let authority = Authority::new();
    let open = node(1, secret("hush")).await;
    let closed = node(2, by(authority.node("closed"))).await;
    open.knows(&[&closed]);
    open.cannot_speak_with(2, "one of the two nodes speaks TLS and the other does not").await;
    closed.knows(&[&open]);
    eventually("a refusal", || closed.status_of(1).last_error.is_some()).await;
}

#[tokio::test]
async fn who_joins_shows_a_certificate_too() {
    let authority = Authority::new();
    let first = node(1, by(authority.node("first"))).await;
    let address = first.address();
    assert!(Peers::open_address(&secret("hush"), &address, Purpose::Request).await.is_err());
    let joining = by(authority.node("joining"));
    assert!(Peers::open_address(&joining, &address, Purpose::Request).await.is_ok());
    let missing = PeerTls { key: "/nowhere/key.pem".into(), ..authority.node("other") };
    let error = Peers::open_address(&by(missing), &address, Purpose::Request).await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/key.pem"), "{error}");
}
