//! Prints what the codec costs per message: parsing a publish, encoding a delivery, decoding an ack.
//!
//!     cargo run --release -p nexo-amqp --example codec

use std::hint::black_box;
use std::time::{Duration, Instant};

use nexo_amqp::codec::method::{BasicMethod, basic};
use nexo_amqp::codec::{
    ContentHeader, FrameMax, Frames, Method, Properties, PropertiesBuilder, PublishedMessage, ShortStr,
    TableBuf, Value, encode_message, encode_message_head, encode_method,
};

/// What one read of a busy socket brings.
const READ_BYTES: usize = 64 * 1024;
const RUN: Duration = Duration::from_millis(300);

fn main() {
    let max = FrameMax::new(131_072).expect("above the minimum");
    let mut headers = TableBuf::new();
    headers
        .put(ShortStr::from_static("trace"), "4bf92f3577b34da6")
        .put(ShortStr::from_static("n"), Value::I32(1));
    let plain = PropertiesBuilder::new().delivery_mode(2).to_vec();
    let rich = PropertiesBuilder::new()
        .content_type(ShortStr::from_static("application/json"))
        .headers(headers.as_table())
        .delivery_mode(2)
        .message_id(ShortStr::from_static("0192f0c1-7c1e"))
        .to_vec();

    println!("ns per message, best of 5      16 B   1 KiB  16 KiB");
    row("publish, in one step", |body| time_publish(&plain, body, max, walk_in_one_step));
    row("publish, + properties", |body| time_publish(&plain, body, max, walk_with_properties));
    row("publish, + rich properties", |body| time_publish(&rich, body, max, walk_with_properties));
    row("publish, frame by frame", |body| time_publish(&plain, body, max, walk_frames));
    row("deliver, body copied", |body| time_deliver(&plain, body, max));
    row("deliver, head only", |body| time_deliver_head(&plain, body));
    println!("{:<28} {:>6.1}", "ack, decode", time_ack(max));
    println!("{:<28} {:>6.1}", "ack, encode", time_ack_encode());
}

fn row(name: &str, mut time: impl FnMut(&[u8]) -> f64) {
    let [small, medium, large] = [16, 1024, 16 * 1024].map(|len| time(&vec![7; len]));
    println!("{name:<28} {small:>6.1}  {medium:>6.1}  {large:>6.1}");
}

/// Nanoseconds per message of a step that handles `messages` of them: the best of five runs.
fn best(mut step: impl FnMut() -> usize) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        let mut messages = 0;
        while start.elapsed() < RUN / 5 {
            messages += step();
        }
        best = best.min(start.elapsed().as_nanos() as f64 / messages as f64);
    }
    best
}

fn publish() -> basic::Publish<'static> {
    basic::Publish {
        ticket: 0,
        exchange: ShortStr::from_static("events"),
        routing_key: ShortStr::from_static("user.created"),
        mandatory: false,
        immediate: false,
    }
}

fn deliver(delivery_tag: u64) -> basic::Deliver<'static> {
    basic::Deliver {
        consumer_tag: ShortStr::from_static("ctag1.7f0e8c5a2b"),
        delivery_tag,
        redelivered: false,
        exchange: ShortStr::from_static("events"),
        routing_key: ShortStr::from_static("user.created"),
    }
}

fn time_publish(
    properties: &[u8],
    body: &[u8],
    max: FrameMax,
    walk: impl Fn(&[u8], FrameMax) -> usize,
) -> f64 {
    let mut read = Vec::new();
    while read.len() < READ_BYTES {
        encode_message(&mut read, 1, &publish(), properties, body, max);
    }
    best(|| walk(black_box(&read), max))
}

fn walk_in_one_step(mut read: &[u8], max: FrameMax) -> usize {
    let mut messages = 0;
    while let Some(message) = PublishedMessage::parse(read, max) {
        read = &read[message.bytes..];
        black_box(message);
        messages += 1;
    }
    messages
}

fn walk_with_properties(mut read: &[u8], max: FrameMax) -> usize {
    let mut messages = 0;
    while let Some(message) = PublishedMessage::parse(read, max) {
        read = &read[message.bytes..];
        black_box(Properties::parse(message.properties).expect("they are sound").delivery_mode());
        black_box(message);
        messages += 1;
    }
    messages
}

fn walk_frames(read: &[u8], max: FrameMax) -> usize {
    let mut messages = 0;
    let mut frames = Frames::new(read, max).map_while(Result::ok);
    while let Some(method) = frames.next() {
        black_box(Method::decode(method.payload).ok());
        let header = frames.next().and_then(|frame| ContentHeader::decode(frame.payload).ok());
        black_box(header.and_then(|header| Properties::parse(header.properties).ok()));
        black_box(frames.next());
        messages += 1;
    }
    messages
}

fn time_deliver(properties: &[u8], body: &[u8], max: FrameMax) -> f64 {
    let mut out = Vec::with_capacity(2 * READ_BYTES);
    let mut tag = 0;
    best(|| {
        out.clear();
        let mut messages = 0;
        while out.len() < READ_BYTES {
            tag += 1;
            encode_message(
                &mut out,
                1,
                black_box(&deliver(tag)),
                black_box(properties),
                black_box(body),
                max,
            );
            messages += 1;
        }
        black_box(&out);
        messages
    })
}

fn time_deliver_head(properties: &[u8], body: &[u8]) -> f64 {
    let mut out = Vec::with_capacity(2 * READ_BYTES);
    let mut tag = 0;
    best(|| {
        out.clear();
        let mut messages = 0;
        while out.len() < READ_BYTES {
            tag += 1;
            encode_message_head(&mut out, 1, black_box(&deliver(tag)), black_box(properties), body.len());
            messages += 1;
        }
        black_box(&out);
        messages
    })
}

fn time_ack(max: FrameMax) -> f64 {
    let mut read = Vec::new();
    for delivery_tag in 0..1000 {
        encode_method(&mut read, 1, &basic::Ack { delivery_tag, multiple: false });
    }
    best(|| {
        let mut acks = 0;
        for frame in Frames::new(black_box(&read), max).map_while(Result::ok) {
            if let Ok(Method::Basic(BasicMethod::Ack(ack))) = Method::decode(frame.payload) {
                black_box(ack);
                acks += 1;
            }
        }
        acks
    })
}

fn time_ack_encode() -> f64 {
    let mut out = Vec::with_capacity(READ_BYTES);
    best(|| {
        out.clear();
        for delivery_tag in 0..1000 {
            encode_method(&mut out, 1, black_box(&basic::Ack { delivery_tag, multiple: true }));
        }
        black_box(&out);
        1000
    })
}
