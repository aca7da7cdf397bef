//! A client that publishes and consumes on one connection: its acknowledgements come behind what it publishes.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod raw_client;

use nexo_amqp::codec::method::{BasicMethod, basic, channel};
use nexo_amqp::codec::{Frame, FrameKind, Method, ShortStr, encode_message, encode_method};
use nexo_amqp_client::methods;
use raw_client::{Client, MAX, Served, TRANSIENT, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// More than a queue has before its publishers are slowed.
const MESSAGES: u32 = 120_000;
const PREFETCH: u16 = 100;
const BATCH: u32 = 500;

/// Opens a channel, a queue and a consumer that acknowledges. Messages are published on channel 1.
async fn prepare(client: &mut Client, consuming: u16) {
    let declare = methods::declare_queue(ShortStr::from_static("q"));
    client.send(1, &declare).await;
    client.expect("queue.declare-ok").await;
    if consuming != 1 {
        client.send(consuming, &channel::Open { out_of_band: ShortStr::EMPTY }).await;
        client.expect("channel.open-ok").await;
    }
    let qos = basic::Qos { prefetch_size: 0, prefetch_count: PREFETCH, global: false };
    client.send(consuming, &qos).await;
    client.expect("basic.qos-ok").await;
    let consume = methods::consume(ShortStr::from_static("q"), ShortStr::from_static("tag"));
    client.send(consuming, &consume).await;
    client.expect("basic.consume-ok").await;
}

fn published(numbers: std::ops::Range<u32>) -> Vec<u8> {
    let publish = methods::publish(ShortStr::EMPTY, ShortStr::from_static("q"));
    let mut out = Vec::new();
    for number in numbers {
        let mut body = [0; 16];
        body[..4].copy_from_slice(&number.to_be_bytes());
        encode_message(&mut out, 1, &publish, TRANSIENT, &body, MAX);
    }
    out
}

/// Publishes as fast as the socket takes it, and acknowledges what comes. Everything must come, in order.
async fn floods_and_consumes(consuming: u16) {
    let served = Served::start().await;
    let mut client = served.client().await;
    prepare(&mut client, consuming).await;
    let (mut reader, mut writer) = client.raw.stream.into_split();
    let (acks, mut due) = tokio::sync::mpsc::unbounded_channel::<u64>();
    let writing = tokio::spawn(async move {
        for first in (0..MESSAGES).step_by(BATCH as usize) {
            let mut out = published(first..first + BATCH);
            while let Ok(delivery_tag) = due.try_recv() {
                encode_method(&mut out, consuming, &basic::Ack { delivery_tag, multiple: true });
            }
            writer.write_all(&out).await.unwrap();
        }
        while let Some(delivery_tag) = due.recv().await {
            let mut out = Vec::new();
            encode_method(&mut out, consuming, &basic::Ack { delivery_tag, multiple: true });
            writer.write_all(&out).await.unwrap();
        }
        writer
    });
    let (mut input, mut buffer) = (Vec::new(), vec![0; 65_536]);
    let (mut came, mut tag) = (0, 0);
    while came < MESSAGES {
        let count = within(reader.read(&mut buffer)).await.unwrap();
        assert!(count > 0, "the connection ended after {came} messages");
        input.extend_from_slice(&buffer[..count]);
        let mut taken = 0;
        while let Some(frame) = Frame::parse(&input[taken..], MAX).unwrap() {
            match frame.kind {
                FrameKind::Method => match Method::decode(frame.payload).unwrap() {
                    Method::Basic(BasicMethod::Deliver(deliver)) => tag = deliver.delivery_tag,
                    other => panic!("{other:?}"),
                },
                FrameKind::Header | FrameKind::Heartbeat => {}
                FrameKind::Body => {
                    assert_eq!(frame.payload[..4], came.to_be_bytes(), "message {came} is due");
                    came += 1;
                    if came % 50 == 0 {
                        acks.send(tag).unwrap();
                    }
                }
            }
            taken += frame.bytes();
        }
        input.drain(..taken);
    }
    drop(acks);
    let writer = within(writing).await.unwrap();
    drop((reader, writer));
    served.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_does_not_keep_the_acknowledgements_of_another_channel_for_ever() {
    floods_and_consumes(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_does_not_keep_the_acknowledgements_of_its_own_channel_for_ever() {
    floods_and_consumes(1).await;
}
