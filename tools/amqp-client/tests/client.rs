//! The asynchronous client against a peer that says and reads what each test wants.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use nexo_amqp::codec::method::{BasicMethod, basic};
use nexo_amqp::codec::{FrameMax, Frames, Method, ShortStr, encode_message, encode_method};
use nexo_amqp_client::{Client, Error, Event, FRAME_MAX, Origin, PERSISTENT};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(20);
/// More than the buffers of two sockets hold.
static FLOOD: [u8; 1 << 20] = [0; 1 << 20];

/// A client that has not said anything, and its peer.
async fn pair(patience: Duration) -> (Client, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::begin(listener.local_addr().unwrap(), patience).await.unwrap();
    (client, listener.accept().await.unwrap().0)
}

fn delivery(body: &[u8], max: FrameMax) -> Vec<u8> {
    let deliver = basic::Deliver {
        consumer_tag: ShortStr::from_static("c"),
        delivery_tag: 7,
        redelivered: true,
        exchange: ShortStr::EMPTY,
        routing_key: ShortStr::from_static("q"),
    };
    let mut out = Vec::new();
    encode_message(&mut out, 1, &deliver, PERSISTENT, body, max);
    out
}

#[tokio::test]
async fn a_wait_that_is_given_up_loses_nothing() {
    let (mut client, mut peer) = pair(PATIENCE).await;
    let body: Vec<u8> = (0..20_000u32).map(|number| number as u8).collect();
    let bytes = delivery(&body, FrameMax::new(4096).unwrap());
    tokio::spawn(async move {
        for part in bytes.chunks(700) {
            peer.write_all(part).await.unwrap();
            sleep(Duration::from_millis(2)).await;
        }
        peer
    });
    let whole = async {
        loop {
            if let Ok(event) = timeout(Duration::from_millis(1), client.event()).await {
                return event.unwrap();
            }
        }
    };
    let Event::Message(message) = timeout(PATIENCE, whole).await.unwrap() else { panic!("a message came") };
    assert_eq!((message.channel, &message.body[..], &message.properties[..]), (1, &body[..], PERSISTENT));
    let origin = Origin::Deliver { consumer_tag: "c".to_owned(), delivery_tag: 7, redelivered: true };
    assert_eq!(message.origin, origin);
}

#[tokio::test]
async fn acknowledgements_of_one_channel_go_out_as_one() {
    let (mut client, mut peer) = pair(PATIENCE).await;
    for (channel, tag) in [(1, 1), (1, 2), (2, 1), (2, 5)] {
        client.acknowledge_through(channel, tag);
    }
    client.flush().await.unwrap();
    assert_eq!(client.unsent(), 0);
    drop(client);
    let mut bytes = Vec::new();
    timeout(PATIENCE, peer.read_to_end(&mut bytes)).await.unwrap().unwrap();
    let acks: Vec<(u16, u64, bool)> = Frames::new(&bytes, FRAME_MAX)
        .map(|frame| {
            let frame = frame.unwrap();
            match Method::decode(frame.payload).unwrap() {
                Method::Basic(BasicMethod::Ack(ack)) => (frame.channel, ack.delivery_tag, ack.multiple),
                other => panic!("{other:?}"),
            }
        })
        .collect();
    assert_eq!(acks, [(1, 2, true), (2, 5, true)]);
}

#[tokio::test]
async fn a_broker_that_does_not_read_is_still_read_from() {
    let (mut client, mut peer) = pair(PATIENCE).await;
    for _ in 0..64 {
        client.add_raw(&FLOOD);
    }
    let mut bytes = Vec::new();
    encode_method(&mut bytes, 1, &basic::QosOk {});
    peer.write_all(&bytes).await.unwrap();
    client.expect("basic.qos-ok").await.unwrap();
    assert!(client.unsent() > 0, "the peer has read nothing");
}

#[tokio::test]
async fn a_wait_has_an_end() {
    let (mut client, mut peer) = pair(Duration::from_millis(100)).await;
    assert!(matches!(client.next().await, Err(Error::Silent(_))));
    let mut bytes = Vec::new();
    encode_method(&mut bytes, 1, &basic::QosOk {});
    peer.write_all(&bytes).await.unwrap();
    let error = client.expect("basic.cancel-ok").await.unwrap_err().to_string();
    assert!(error.starts_with("basic.cancel-ok is due, not "), "{error}");
    for _ in 0..64 {
        client.add_raw(&FLOOD);
    }
    assert!(matches!(client.flush().await, Err(Error::NotReading(_))));
    drop(peer);
    assert!(matches!(client.next().await, Err(Error::Ended | Error::Receive(_) | Error::Send(_))));
}
