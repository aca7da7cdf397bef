//! Connections as a client sees them, through a real listener, with a broker on a disk in memory.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod raw_client;

use nexo_amqp::codec::method::{BasicMethod, basic, connection, tx};
use nexo_amqp::codec::{FRAME_END, Method, ShortStr};
use nexo_amqp_client::methods;
use raw_client::{Client, PERSISTENT, Served, TRANSIENT, within};

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_confirmed_delivered_and_acknowledged() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.select_confirms().await;
    for body in [b"one", b"two"] {
        client.publish("q", PERSISTENT, body).await;
        client.expect("basic.ack").await;
    }
    client.consume("q", false).await;
    assert_eq!(client.delivery().await, (1, false, b"one".to_vec()));
    assert_eq!(client.delivery().await, (2, false, b"two".to_vec()));
    client.send(1, &basic::Ack { delivery_tag: 2, multiple: true }).await;
    client.close_channel(1).await;
    client.open_channel(1).await;
    assert_eq!(client.depth("q").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_publishes_of_one_write_are_confirmed_together() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.select_confirms().await;
    for _ in 0..500 {
        client.publish("q", PERSISTENT, b"x").await;
    }
    let mut confirmed = 0;
    while confirmed < 500 {
        let got = client.expect("basic.ack").await;
        let Method::Basic(BasicMethod::Ack(ack)) = got.method() else { panic!("{got:?}") };
        assert!(ack.delivery_tag > confirmed);
        assert!(ack.multiple || ack.delivery_tag == confirmed + 1);
        confirmed = ack.delivery_tag;
    }
    assert_eq!(client.depth("q").await, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_acknowledged_comes_back_in_order() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    for number in 0..10u8 {
        client.publish("q", TRANSIENT, &[number]).await;
    }
    client.consume("q", false).await;
    for _ in 0..10 {
        client.delivery().await;
    }
    client.send(1, &basic::Ack { delivery_tag: 4, multiple: false }).await;
    client.send(1, &basic::Reject { delivery_tag: 6, requeue: false }).await;
    client.close_channel(1).await;
    drop(client);

    let mut other = served.client().await;
    other.consume("q", true).await;
    for (at, number) in [0u8, 1, 2, 4, 6, 7, 8, 9].into_iter().enumerate() {
        assert_eq!(other.delivery().await, (at as u64 + 1, true, vec![number]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_gives_everything_back() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    for number in 0..100u8 {
        client.publish("q", TRANSIENT, &[number]).await;
    }
    client.consume("q", false).await;
    client.delivery().await;
    drop(client);
    let mut other = served.client().await;
    within(async {
        while other.depth("q").await < 100 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
    other.consume("q", true).await;
    for number in 0..100u8 {
        assert_eq!(other.delivery().await.2, [number]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_does_not_read_stops_only_itself() {
    let served = Served::start().await;
    let mut deaf = served.client().await;
    deaf.declare("q").await;
    deaf.consume("q", false).await;
    let mut client = served.client().await;
    let body = vec![0; 100_000];
    for _ in 0..400 {
        client.publish("q", TRANSIENT, &body).await;
    }
    // It was handed what fits into the socket's buffers and a small window, and the rest waits in the queue.
    // Its window opens step by step, so it is waited for until it takes no more.
    let mut left = client.depth("q").await;
    let mut same = 0;
    while same < 5 {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let now = client.depth("q").await;
        same = if now == left { same + 1 } else { 0 };
        left = now;
    }
    assert!(left > 100, "{left} of 400 messages are left");
    // Others are served as ever, also from the same queue.
    client.consume("q", true).await;
    for _ in 0..left {
        assert_eq!(client.delivery().await.2.len(), body.len());
    }
    // It is not forgotten either: what it asks for is answered once it reads.
    deaf.send(1, &basic::Qos { prefetch_size: 0, prefetch_count: 1, global: false }).await;
    let mut deliveries = 0;
    loop {
        match deaf.next().await.unwrap() {
            got if got.kind != nexo_amqp::codec::FrameKind::Method => {}
            got if got.name() == "basic.qos-ok" => break,
            got => {
                assert_eq!(got.name(), "basic.deliver");
                deliveries += 1;
            }
        }
    }
    assert!(deliveries > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_asks_for_much_and_reads_nothing_is_not_answered_without_end() {
    let served = Served::start().await;
    let mut greedy = served.client().await;
    greedy.declare("q").await;
    let body = vec![0; 100_000];
    for _ in 0..400 {
        greedy.publish("q", TRANSIENT, &body).await;
    }
    let get = basic::Get { ticket: 0, queue: ShortStr::from_static("q"), no_ack: true };
    let mut many = Vec::new();
    for _ in 0..400 {
        nexo_amqp::codec::encode_method(&mut many, 1, &get);
    }
    greedy.raw(&many).await;
    let mut client = served.client().await;
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let left = client.depth("q").await;
    assert!(left > 100, "{left} of 400 messages are left");
    for _ in 0..400 {
        greedy.expect("basic.get-ok").await;
        assert_eq!(greedy.content().await.len(), body.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_frames_end_their_connection_with_the_right_code() {
    let served = Served::start().await;
    let cases: [(u16, &[u8]); 6] = [
        (501, &[7, 0, 1, 0, 0, 0, 1, 9, FRAME_END]),
        (501, &[1, 0, 1, 0, 0, 0, 5, 0, 60, 0, 10, 9, FRAME_END]),
        (504, &[1, 0, 9, 0, 0, 0, 4, 0, 20, 0, 41, FRAME_END]),
        (505, &[3, 0, 1, 0, 0, 0, 1, 9, FRAME_END]),
        (505, &[8, 0, 1, 0, 0, 0, 0, FRAME_END]),
        (503, &[1, 0, 1, 0, 0, 0, 4, 0, 60, 0, 11, FRAME_END]),
    ];
    for (code, frame) in cases {
        let mut client = served.client().await;
        client.raw(frame).await;
        client.expect_close(code).await;
    }
    for frame in [&[9, 0, 1, 0xff, 0xff, 0xff, 0xff][..], &[1, 0, 1, 0xff, 0xff, 0xff, 0xff]] {
        let mut client = served.client().await;
        client.raw(frame).await;
        client.expect_close(501).await;
    }
    served.client().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_error_ends_the_channel_only() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.open_channel(2).await;
    client.send(1, &basic::Ack { delivery_tag: 5, multiple: false }).await;
    client.expect("channel.close").await;
    client.send(1, &nexo_amqp::codec::method::channel::CloseOk {}).await;
    client.open_channel(1).await;
    client.send(2, &basic::Qos { prefetch_size: 0, prefetch_count: 1, global: false }).await;
    client.expect("basic.qos-ok").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_broker_stops_clients_are_told() {
    let mut served = Served::start().await;
    let mut client = served.client().await;
    served.begin_stop();
    client.expect_close(320).await;
    served.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_come_at_once_are_dealt_out_evenly() {
    let served = Served::start().await;
    let mut publisher = served.client().await;
    publisher.declare("q").await;
    let mut consumers = [served.client().await, served.client().await, served.client().await];
    for consumer in &mut consumers {
        consumer.consume("q", true).await;
    }
    let bodies: Vec<[u8; 2]> = (0..300u16).map(u16::to_be_bytes).collect();
    let bodies: Vec<&[u8]> = bodies.iter().map(<[u8; 2]>::as_slice).collect();
    publisher.publish_at_once("q", TRANSIENT, &bodies).await;
    for (at, consumer) in consumers.iter_mut().enumerate() {
        for round in 0..100 {
            let (_, _, body) = consumer.delivery().await;
            assert_eq!(body, bodies[round * 3 + at], "message {round} of consumer {at}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_disk_is_full_publishers_wait_and_nothing_is_lost() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.select_confirms().await;
    served.disk.set_bytes_max(Some(served.disk.used_bytes()));
    let body = vec![b'x'; 10_000];
    let mut published = 0u64;
    let mut confirmed = 0u64;
    loop {
        client.publish("q", PERSISTENT, &body).await;
        published += 1;
        assert!(published < 2_000, "the disk never fills");
        let got = client.next().await.unwrap();
        match got.method() {
            Method::Basic(BasicMethod::Ack(ack)) => confirmed = ack.delivery_tag,
            Method::Connection(_) => {
                assert_eq!(got.name(), "connection.blocked");
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(confirmed < published);
    served.disk.set_bytes_max(None);
    while confirmed < published {
        let got = client.next().await.unwrap();
        match got.method() {
            Method::Basic(BasicMethod::Ack(ack)) => confirmed = ack.delivery_tag,
            Method::Connection(_) => assert_eq!(got.name(), "connection.unblocked"),
            other => panic!("{other:?}"),
        }
    }
    let mut other = served.client().await;
    assert_eq!(u64::from(other.depth("q").await), published);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_disk_is_full_a_commit_waits() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.send(1, &tx::Select {}).await;
    client.expect("tx.select-ok").await;
    served.disk.set_bytes_max(Some(served.disk.used_bytes()));
    let body = vec![b'x'; 10_000];
    let mut committed = 0u32;
    loop {
        client.publish("q", PERSISTENT, &body).await;
        client.send(1, &tx::Commit {}).await;
        let got = client.next().await.unwrap();
        if got.name() == "connection.blocked" {
            break;
        }
        assert_eq!(got.name(), "tx.commit-ok");
        committed += 1;
        assert!(committed < 2_000, "the disk never fills");
    }
    served.disk.set_bytes_max(None);
    let mut told = [client.next().await.unwrap().name(), client.next().await.unwrap().name()];
    told.sort_unstable();
    assert_eq!(told, ["connection.unblocked", "tx.commit-ok"]);
    assert_eq!(client.depth("q").await, committed + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_does_not_acknowledge_loses_nothing_when_it_is_cancelled() {
    const MESSAGES: usize = 3_000;
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    let mut publisher = served.client().await;
    let publishing = tokio::spawn(async move {
        for number in 0..MESSAGES {
            publisher.publish("q", TRANSIENT, number.to_string().as_bytes()).await;
        }
        // Whatever it is: all was read before this was answered.
        publisher.depth("q").await;
    });
    let mut seen: Vec<String> = Vec::new();
    while seen.len() < MESSAGES {
        client.consume("q", true).await;
        client.send(1, &basic::Cancel { consumer_tag: ShortStr::from_static("tag"), nowait: false }).await;
        loop {
            let got = client.next().await.unwrap();
            if got.name() == "basic.cancel-ok" {
                break;
            }
            assert_eq!(got.name(), "basic.deliver");
            seen.push(String::from_utf8(client.content().await).unwrap());
        }
        if publishing.is_finished() {
            assert!(seen.len() == MESSAGES || client.depth("q").await > 0, "only {} came", seen.len());
        }
    }
    let expected: Vec<String> = (0..MESSAGES).map(|number| number.to_string()).collect();
    assert!(seen == expected, "every message came once and in order");
    publishing.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn native_messages_can_be_consumed() {
    use nexo_broker::{HeaderValue, Headers, NewMessage, QueueConfig};
    let served = Served::start().await;
    let name = nexo_types::QueueName::new("native").unwrap();
    served.broker.create_queue(&name, QueueConfig::default()).await.unwrap();
    let headers = Headers(vec![("kind".into(), HeaderValue::Text("parcel".into()))]);
    let message = NewMessage { properties: headers.to_properties().unwrap(), ..NewMessage::new("hello") };
    served.broker.push(&name, vec![message]).await.unwrap();
    let mut client = served.client().await;
    client.send(1, &basic::Get { ticket: 0, queue: ShortStr::from_static("native"), no_ack: true }).await;
    let got = client.expect("basic.get-ok").await;
    let Method::Basic(BasicMethod::GetOk(ok)) = got.method() else { panic!("{got:?}") };
    assert_eq!((ok.exchange.as_bytes(), ok.routing_key.as_bytes()), (&b""[..], &b"native"[..]));
    let header = client.next().await.unwrap();
    let properties = nexo_amqp::codec::Properties::parse(&header.payload[12..]).unwrap();
    assert_eq!(properties.headers().unwrap().get("kind").unwrap().as_str(), Some("parcel"));
    assert_eq!(client.next().await.unwrap().payload, b"hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_closes_its_connection_and_its_own_queues_go() {
    use nexo_amqp::codec::method::queue;
    let served = Served::start().await;
    let mut client: Client = served.client().await;
    let declare = queue::Declare { exclusive: true, ..methods::declare_queue(ShortStr::from_static("mine")) };
    client.send(1, &declare).await;
    client.expect("queue.declare-ok").await;
    assert!(served.broker.queue(&nexo_types::QueueName::new("mine").unwrap()).is_some());
    let reply_text = ShortStr::EMPTY;
    client.send(0, &connection::Close { reply_code: 200, reply_text, class_id: 0, method_id: 0 }).await;
    client.expect("connection.close-ok").await;
    assert!(served.broker.queue(&nexo_types::QueueName::new("mine").unwrap()).is_none());
}
