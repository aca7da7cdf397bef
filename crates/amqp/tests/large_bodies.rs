//! Large bodies are read to where they are stored and written from there: whatever their size, the size of frames, and
//! how they are cut on their way.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod raw_client;

use std::time::Duration;

use nexo_amqp::codec::method::{BasicMethod, ChannelMethod, basic, channel, tx};
use nexo_amqp::codec::{
    ContentHeader, FRAME_END, Frame, FrameKind, FrameMax, Method, ShortStr, encode_frame, encode_heartbeat,
    encode_message,
};
use raw_client::{Client, MAX, PERSISTENT, Served, TRANSIENT, within};

fn body(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at + seed) * 31 % 251) as u8).collect()
}

fn publish(name: &'static str, mandatory: bool) -> basic::Publish<'static> {
    let routing_key = ShortStr::from_static(name);
    basic::Publish { ticket: 0, exchange: ShortStr::EMPTY, routing_key, mandatory, immediate: false }
}

fn body_frame(channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_frame(&mut out, &Frame { kind: FrameKind::Body, channel, payload });
    out
}

/// The body that follows a delivery, and its largest frame.
async fn body_and_frame(client: &mut Client) -> (Vec<u8>, usize) {
    let header = client.next().await.unwrap();
    let bytes = ContentHeader::decode(&header.payload).unwrap().body_bytes;
    let (mut body, mut largest) = (Vec::new(), 0);
    while (body.len() as u64) < bytes {
        let part = client.next().await.unwrap();
        assert_eq!(part.kind, FrameKind::Body);
        largest = largest.max(part.payload.len());
        body.extend(part.payload);
    }
    (body, largest)
}

async fn client_with(served: &Served, max: FrameMax) -> Client {
    let mut client = Client::connect_with(served.address, max).await;
    client.open_channel(1).await;
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_pass_whole_at_every_edge_of_frames_of_any_size() {
    let served = Served::start().await;
    for bytes in [4096, 50_001, 131_072] {
        let max = FrameMax::new(bytes).unwrap();
        let payload = max.payload_bytes();
        let mut client = client_with(&served, max).await;
        client.declare("q").await;
        let edges = [payload - 1, payload, payload + 1, 2 * payload, 2 * payload + 1, 8 * payload + 7];
        let others = [1, 32_767, 32_768, 32_769, 100_003, 1 << 20, (5 << 20) + 13];
        for (seed, size) in edges.into_iter().chain(others).enumerate() {
            let sent = body(size, seed);
            for properties in [TRANSIENT, PERSISTENT] {
                let mut out = Vec::new();
                encode_message(&mut out, 1, &publish("q", false), properties, &sent, max);
                client.raw(&out).await;
            }
            let get = basic::Get { ticket: 0, queue: ShortStr::from_static("q"), no_ack: true };
            client.send(1, &get).await;
            client.expect("basic.get-ok").await;
            let (got, largest) = body_and_frame(&mut client).await;
            assert!(got == sent, "{size} bytes in frames of {bytes}");
            assert!(largest <= payload);
            client.consume_as("tag", "q", true).await;
            client.expect("basic.deliver").await;
            let (got, largest) = body_and_frame(&mut client).await;
            assert!(got == sent, "{size} bytes in frames of {bytes}, persistent");
            assert!(largest <= payload);
            let cancel = basic::Cancel { consumer_tag: ShortStr::from_static("tag"), nowait: false };
            client.send(1, &cancel).await;
            client.expect("basic.cancel-ok").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_comes_in_pieces_of_any_size_is_put_together() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.consume("q", true).await;
    for (seed, piece) in [40_001, 131_071, 131_079, 70_000, 524_295].into_iter().enumerate() {
        let sent = body(700_001, seed);
        let mut out = Vec::new();
        // Two in a row: what follows the first belongs to the second.
        encode_message(&mut out, 1, &publish("q", false), TRANSIENT, &sent, MAX);
        encode_message(&mut out, 1, &publish("q", false), TRANSIENT, b"small", MAX);
        encode_message(&mut out, 1, &publish("q", false), TRANSIENT, &sent, MAX);
        for part in out.chunks(piece) {
            client.raw(part).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(client.delivery().await.2 == sent);
        assert_eq!(client.delivery().await.2, b"small");
        assert!(client.delivery().await.2 == sent);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_cut_near_the_edges_of_a_large_frame_is_survived() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.consume("q", true).await;
    let sent = body(262_100, 3);
    let mut out = Vec::new();
    encode_message(&mut out, 1, &publish("q", false), TRANSIENT, &sent, MAX);
    let first_body = out.len() - sent.len() - 2 * 8 - (sent.len().div_ceil(MAX.payload_bytes()) - 2) * 8;
    let second = first_body + MAX.payload_bytes() + 8;
    let cuts = (first_body - 2..first_body + 10).chain(second - 3..second + 10);
    for cut in cuts.chain(out.len() - 3..out.len()) {
        client.raw(&out[..cut]).await;
        tokio::time::sleep(Duration::from_millis(3)).await;
        client.raw(&out[cut..]).await;
        assert!(client.delivery().await.2 == sent, "cut after {cut} bytes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_two_channels_and_heartbeats_may_alternate() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.open_channel(2).await;
    client.declare("q").await;
    let (one, two) = (body(1 << 20, 1), body(900_000, 2));
    client.announce(1, "q", one.len() as u64).await;
    client.announce(2, "q", two.len() as u64).await;
    let (mut ones, mut twos) = (one.chunks(120_000), two.chunks(110_000));
    loop {
        let (a, b) = (ones.next(), twos.next());
        if a.is_none() && b.is_none() {
            break;
        }
        let mut out = Vec::new();
        out.extend(a.map(|part| body_frame(1, part)).unwrap_or_default());
        encode_heartbeat(&mut out);
        out.extend(b.map(|part| body_frame(2, part)).unwrap_or_default());
        for part in out.chunks(60_000) {
            client.raw(part).await;
        }
    }
    client.consume("q", true).await;
    let got = [client.delivery().await.2, client.delivery().await.2];
    assert!(got.contains(&one) && got.contains(&two));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_frame_without_its_end_is_refused_and_not_published() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.announce(1, "q", 100_000).await;
    let mut frame = body_frame(1, &body(100_000, 1));
    *frame.last_mut().unwrap() = FRAME_END ^ 1;
    client.raw(&frame[..20_000]).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    client.raw(&frame[20_000..]).await;
    client.expect_close(501).await;
    assert_eq!(served.client().await.depth("q").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_frame_longer_than_the_body_announced_is_refused() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.announce(1, "q", 99_999).await;
    let frame = body_frame(1, &body(100_000, 1));
    client.raw(&frame[..20_000]).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    client.raw(&frame[20_000..]).await;
    client.expect_close(501).await;
    assert_eq!(served.client().await.depth("q").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_ends_in_the_middle_of_a_large_frame_gives_its_memory_back() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.announce(1, "q", 1 << 20).await;
    client.raw(&body_frame(1, &body(131_000, 1))[..90_000]).await;
    within(async {
        while served.broker.intake().held_bytes() == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    drop(client);
    within(async {
        while served.broker.intake().held_bytes() > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    assert_eq!(served.client().await.depth("q").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_a_frame_whose_channel_was_closed_meanwhile_is_skipped() {
    let options = nexo_amqp::Options { standstill_max: Duration::from_millis(300), ..Default::default() };
    let served = Served::start_with(options).await;
    let mut stuck = served.client().await;
    stuck.declare("q").await;
    stuck.announce(1, "q", 60 << 20).await;
    let frame = body_frame(1, &body(131_000, 1));
    stuck.raw(&frame[..50_000]).await;
    // If the other one came first, it would have the memory.
    while served.broker.intake().held_bytes() < 60 << 20 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut patient = served.client().await;
    patient.announce(1, "q", 10 << 20).await;
    let closed = stuck.expect("channel.close").await;
    assert!(
        matches!(closed.method(), Method::Channel(ChannelMethod::Close(close)) if close.reply_code == 506)
    );
    stuck.raw(&frame[50_000..]).await;
    stuck.send(1, &channel::CloseOk {}).await;
    stuck.open_channel(1).await;
    let sent = body(200_000, 5);
    stuck.publish("q", TRANSIENT, &sent).await;
    stuck.consume("q", true).await;
    assert!(stuck.delivery().await.2 == sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_gets_everything_in_order() {
    let served = Served::start().await;
    let mut publisher = served.client().await;
    publisher.declare("q").await;
    let mut slow = served.client().await;
    slow.consume("q", true).await;
    let sizes = [1 << 20, 10, 40_000, 131_064, 300_001, 0, 1 << 20];
    let bodies: Vec<_> = (0..42).map(|n| body(sizes[n % sizes.len()], n)).collect();
    for sent in &bodies {
        publisher.publish("q", TRANSIENT, sent).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    for sent in &bodies {
        assert!(slow.delivery().await.2 == *sent);
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_of_one_connection_get_large_and_small_messages_side_by_side() {
    let served = Served::start().await;
    let mut publisher = served.client().await;
    let mut client = served.client().await;
    publisher.declare("large").await;
    publisher.declare("small").await;
    client.consume_as("l", "large", true).await;
    client.consume_as("s", "small", true).await;
    let sender = tokio::spawn(async move {
        for n in 0..30 {
            publisher.publish("large", TRANSIENT, &body(400_000 + n, n)).await;
            let smalls: Vec<_> = (0..20).map(|m| body(50 + m, n * 20 + m)).collect();
            let smalls: Vec<&[u8]> = smalls.iter().map(Vec::as_slice).collect();
            publisher.publish_at_once("small", TRANSIENT, &smalls).await;
        }
        publisher
    });
    let (mut large, mut small) = (0, 0);
    while large < 30 || small < 600 {
        let got = client.expect("basic.deliver").await;
        let Method::Basic(BasicMethod::Deliver(deliver)) = got.method() else { panic!("{got:?}") };
        let is_large = deliver.consumer_tag.as_bytes() == b"l";
        let content = client.content().await;
        if is_large {
            assert!(content == body(400_000 + large, large));
            large += 1;
        } else {
            assert_eq!(content, body(50 + small % 20, small));
            small += 1;
        }
    }
    sender.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_pass_transactions_and_come_back_when_they_have_no_queue() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    let sent = body(300_000, 9);
    let mut out = Vec::new();
    encode_message(&mut out, 1, &publish("nowhere", true), TRANSIENT, &sent, MAX);
    client.raw(&out).await;
    client.expect("basic.return").await;
    assert!(client.content().await == sent);
    client.send(1, &tx::Select {}).await;
    client.expect("tx.select-ok").await;
    client.publish("q", PERSISTENT, &sent).await;
    client.publish("q", TRANSIENT, &body(70_000, 1)).await;
    assert_eq!(client.depth("q").await, 0);
    client.send(1, &tx::Commit {}).await;
    client.expect("tx.commit-ok").await;
    client.consume("q", true).await;
    assert!(client.delivery().await.2 == sent);
    assert!(client.delivery().await.2 == body(70_000, 1));
}
