//! Requests that no client sends: raw bytes over HTTP/2, to use up memory or time.

#![allow(clippy::unwrap_used)]

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use common::{Served, within};
use http_body::Frame;
use http_body_util::StreamBody;
use nexo_broker::Protocol;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tonic::codegen::http::{Request, Response};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower_service::Service;

/// A call whose body is sent piece by piece.
struct RawCall {
    pieces: mpsc::UnboundedSender<Bytes>,
    answer: tokio::task::JoinHandle<Status>,
}

impl RawCall {
    fn send(&self, bytes: impl Into<Bytes>) {
        // The server may have answered already.
        let _ = self.pieces.send(bytes.into());
    }

    /// Ends the request and waits for what the server says.
    async fn status(self) -> Status {
        drop(self.pieces);
        within(self.answer).await.unwrap()
    }
}

async fn channel(url: &str) -> Channel {
    Endpoint::from_shared(url.to_owned()).unwrap().connect().await.unwrap()
}

fn call(channel: &Channel, path: &str) -> RawCall {
    call_with(channel, path, &[])
}

/// The same with more headers.
fn call_with(channel: &Channel, path: &str, headers: &[(&str, &str)]) -> RawCall {
    let (pieces, mut rest) = mpsc::unbounded_channel::<Bytes>();
    let stream = futures_util::stream::poll_fn(move |cx| {
        rest.poll_recv(cx).map(|piece| piece.map(|piece| Ok::<_, Status>(Frame::data(piece))))
    });
    let mut request = Request::builder()
        .method("POST")
        .uri(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(tonic::body::Body::new(StreamBody::new(stream))).unwrap();
    let mut channel = channel.clone();
    let answer = tokio::spawn(async move {
        std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
        let response: Response<tonic::body::Body> = channel.call(request).await.unwrap();
        status_of(response).await
    });
    RawCall { pieces, answer }
}

/// The status of an answer, in its head or after its body.
async fn status_of(response: Response<tonic::body::Body>) -> Status {
    use http_body_util::BodyExt;
    if let Some(status) = Status::from_header_map(response.headers()) {
        return status;
    }
    let collected = response.into_body().collect().await.unwrap();
    Status::from_header_map(collected.trailers().expect("trailers")).expect("a status")
}

fn framed(bytes: Vec<u8>) -> Bytes {
    let mut request = vec![0];
    request.extend((bytes.len() as u32).to_be_bytes());
    request.extend(bytes);
    request.into()
}

fn resident_bytes() -> u64 {
    nexo_broker::ProcessStats::read().resident_bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_empty_items_is_refused_before_it_takes_memory() {
    let served = Served::start().await;
    let channel = channel(&served.url).await;
    let before = resident_bytes();
    // Each is 2 bytes on its way: an empty message, an empty receipt, an empty header in one message.
    let items = 60 << 20;
    for (path, field) in [
        ("/nexo.v1.MessageService/Push", 0x12),
        ("/nexo.v1.MessageService/PushStream", 0x1a),
        ("/nexo.v1.MessageService/Ack", 0x0a),
        ("/nexo.v1.MessageService/Nack", 0x0a),
        ("/nexo.v1.MessageService/Extend", 0x0a),
        ("/nexo.v1.MessageService/Received", 0x0a),
    ] {
        let call = call(&channel, path);
        call.send(framed([field, 0].repeat(items / 2)));
        let status = call.status().await;
        assert_eq!(status.code(), Code::ResourceExhausted, "{path}: {status:?}");
        assert!(status.message().contains("must hold at most"), "{status:?}");
    }
    // The request itself is held, on both sides of this process; the items are not.
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 8 * items as u64, "{grown} bytes");
    assert_eq!(served.broker.intake().held_bytes(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn services_without_messages_take_small_requests_only() {
    let served = Served::start().await;
    let channel = channel(&served.url).await;
    for path in [
        "/nexo.v1.QueueService/CreateQueue",
        "/nexo.v1.QueueService/Redrive",
        "/nexo.v1.StatsService/GetStats",
        "/grpc.health.v1.Health/Check",
    ] {
        let call = call(&channel, path);
        call.send(framed(vec![0; 2 << 20]));
        let status = call.status().await;
        assert_eq!(status.code(), Code::OutOfRange, "{path}: {status:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_requests_are_refused() {
    let served = Served::start().await;
    let channel = channel(&served.url).await;
    let call = call(&channel, "/nexo.v1.MessageService/Push");
    let mut request = framed(vec![0; 100]).to_vec();
    request[0] = 1;
    call.send(request);
    assert_eq!(call.status().await.code(), Code::Internal);
}

#[tokio::test(flavor = "multi_thread")]
async fn announced_requests_share_the_memory_of_the_broker() {
    let served = Served::start().await;
    let intake = served.broker.intake().clone();
    let mut calls = Vec::new();
    // Each announces a quarter of a gigabyte in the sum, on a connection of its own, and sends nothing of it.
    for _ in 0..4 {
        let channel = channel(&served.url).await;
        let call = call(&channel, "/nexo.v1.MessageService/Push");
        let mut head = vec![0];
        head.extend((60_u32 << 20).to_be_bytes());
        call.send(head);
        calls.push(call);
    }
    let held = async {
        while intake.held_bytes() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(held).await;
    assert!(intake.held_bytes() <= 64 << 20, "{}", intake.held_bytes());
    // A small request finds room, and when the others are gone, so does a large one.
    served.create("q", Default::default()).await;
    served.push("q", "small").await;
    for call in calls {
        call.answer.abort();
    }
    let large = "x".repeat(60 << 20);
    within(served.push("q", &large)).await;
    let free = async {
        while intake.held_bytes() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(free).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_lasts_keeps_no_memory_for_its_request() {
    let served = Served::start().await;
    served.create("q", Default::default()).await;
    let channel = channel(&served.url).await;
    let call = call(&channel, "/nexo.v1.MessageService/Pop");
    // The queue, a wait of an hour, and many bytes in a field that nobody knows.
    let mut pop = b"\x0a\x01q\x18\x80\xdd\xdb\x01\xfa\x07\x80\x80\x80\x0a".to_vec();
    pop.resize(pop.len() + (20 << 20), 0);
    call.send(framed(pop));
    drop(call.pieces);
    let waits = async {
        while served.stats("q").await.consumers == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(waits).await;
    assert_eq!(served.broker.intake().held_bytes(), 0);
    assert!(!call.answer.is_finished());
    call.answer.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_says_nothing_is_closed() {
    let served = Served::start().await;
    let traffic = served.broker.traffic().clone();
    let open = || traffic.of(Protocol::Grpc).stats().connections;
    let address: SocketAddr = served.url.strip_prefix("http://").unwrap().parse().unwrap();
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut buf = [0; 1024];
    // HTTP/2 servers may greet first; the end of the connection is what counts.
    let closed = async { while !matches!(silent.read(&mut buf).await, Ok(0) | Err(_)) {} };
    tokio::time::timeout(Duration::from_secs(60), closed).await.expect("it is closed");
    let gone = async {
        // The client of the test stays.
        while open() != 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(gone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_is_counted() {
    let served = Served::start().await;
    served.create("q", Default::default()).await;
    served.push("q", "a").await;
    served.push("q", "b").await;
    let messages = vec![common::message("c")];
    let request = nexo_grpc::proto::PushRequest { queue: "q".into(), messages, ..Default::default() };
    let popped = served.pop("q", 1).await;
    let receipts = vec![popped[0].receipt.clone()];
    served.client.messages().ack(nexo_grpc::proto::AckRequest { receipts }).await.unwrap();
    let none = nexo_grpc::proto::PushRequest { queue: "none".into(), ..request };
    assert_eq!(served.client.messages().push(none).await.unwrap_err().code(), Code::NotFound);
    let stats = served.broker.traffic().of(Protocol::Grpc).stats();
    assert_eq!((stats.connections, stats.connections_opened), (1, 1));
    assert_eq!((stats.published, stats.refused_pushes, stats.delivered, stats.acked), (2, 1, 1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_request_is_refused_and_not_unpacked() {
    /// `gzip` of a request for a queue named "q".
    const PACKED: [u8; 23] =
        [31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 227, 98, 44, 4, 0, 47, 44, 207, 204, 3, 0, 0, 0];
    let served = Served::start().await;
    served.create("q", nexo_grpc::proto::QueueConfig::default()).await;
    let channel = channel(&served.url).await;
    let mut packed = framed(PACKED.to_vec()).to_vec();
    packed[0] = 1;
    for (path, headers) in [
        ("/nexo.v1.MessageService/Push", &[("grpc-encoding", "gzip")][..]),
        ("/nexo.v1.MessageService/PushStream", &[("grpc-encoding", "gzip")]),
        ("/nexo.v1.QueueService/GetQueue", &[("grpc-encoding", "gzip")]),
        ("/nexo.v1.QueueService/GetQueue", &[]),
    ] {
        let call = call_with(&channel, path, headers);
        call.send(packed.clone());
        let status = call.status().await;
        // Without the header nobody said how it is packed, which is a mistake of the client.
        let expected = if headers.is_empty() { Code::Internal } else { Code::Unimplemented };
        assert_eq!(status.code(), expected, "{path}: {status:?}");
    }
    served.push("q", "as it is").await;
    assert_eq!(served.stats("q").await.ready, 1, "what is not compressed is served, and nothing else was");
    assert_eq!(served.broker.intake().held_bytes(), 0);
}
