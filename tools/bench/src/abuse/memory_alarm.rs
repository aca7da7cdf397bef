//! A memory watermark that is passed on purpose: publishers without confirms, and no consumer. Publishers must be blocked, with a
//! reason; memory must stay near the watermark; and when consumers come back everything must come, and publishing go on.
//!
//! The broker has its watermark from its start (`--memory-high`). What waits in a queue, or at a consumer that does not acknowledge,
//! is left on disk long before the watermark is passed, however much it is. So the messages are delayed: of these something stays
//! in memory until they are due.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nexo_amqp::codec::ShortStr;
use nexo_amqp::codec::method::{ConnectionMethod, basic};
use nexo_amqp::codec::{Frame, FrameKind, Method, PropertiesBuilder, TableBuf};
use nexo_amqp_client::{Filled, methods, refuse_close};
use nexo_harness::http;
use parking_lot::Mutex;
use serde_json::Value;

use super::Found;
use super::target::{DURABLE, Target, message};
use crate::amqp::{CHANNEL, Connection, Deliveries, InputSize, declare_queue, short};
use crate::process;
use crate::report::{mib, thousands};
use crate::threads::joined;

const QUEUE: &str = "abuse-memory-alarm";
const PUBLISHERS: usize = 4;
/// So small that what the broker keeps of each counts, and not the disk.
const BODY_BYTES: usize = 100;
/// Messages that are written to a socket at once.
const WRITE_MESSAGES: usize = 100;
/// How long messages are delayed: until the watermark has been passed for a while.
const DELAY: Duration = Duration::from_secs(20);
/// A higher one would not be passed by what comes meanwhile.
const WATERMARK_MAX: u64 = 512 << 20;
/// How long the alarm may take to come, and a consumer to get its next message.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long publishers go on against the alarm before consumers come back.
const UNDER_ALARM: Duration = Duration::from_secs(5);
/// And how long after consumers have come.
const BESIDE_CONSUMERS: Duration = Duration::from_secs(1);
/// How often memory is looked at. The system knows the highest there ever was; this is for how high it was mostly.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Deliveries that are acknowledged together.
const ACK_EVERY: u64 = 100;

/// What publishers were told, and what they did.
#[derive(Debug, Default)]
struct Told {
    published: AtomicU64,
    /// Whether they should come to an end.
    stop: AtomicBool,
    blocked: AtomicU64,
    unblocked: AtomicU64,
    reason: Mutex<Option<String>>,
}

pub(super) fn memory_alarm(target: &Target) -> anyhow::Result<Found> {
    let limit_bytes = watermark(target)?;
    ensure!(
        limit_bytes <= WATERMARK_MAX,
        "the watermark is at {}; start the broker with '--memory-high 256MiB', or it takes long to pass it",
        mib(limit_bytes)
    );
    let mut found = Found::default();
    declare_queue(&mut target.connect(InputSize::Small)?, QUEUE, &DURABLE)?;
    let told = Arc::<Told>::default();
    process::forget_peak(target.pid)?;
    let before = process::resident_bytes(target.pid)?;
    let began = Instant::now();
    let publishers: Vec<JoinHandle<anyhow::Result<()>>> = (0..PUBLISHERS)
        .map(|_| {
            let (connection, told) = (target.connect(InputSize::Small)?, Arc::clone(&told));
            Ok(std::thread::spawn(move || publish(connection, &told)))
        })
        .collect::<anyhow::Result<_>>()?;
    while told.blocked.load(Ordering::Relaxed) == 0 {
        ensure!(began.elapsed() < PATIENCE, "no publisher was blocked within {PATIENCE:?}");
        ensure!(!publishers.iter().any(JoinHandle::is_finished), "a publisher ended before it was blocked");
        std::thread::sleep(LOOK_EVERY);
    }
    found.add("first blocked after", format!("{:.1} s", began.elapsed().as_secs_f64()));
    let looks = looks(target, target.time(UNDER_ALARM))?;
    let back = Instant::now();
    let expected = Arc::new(AtomicU64::new(u64::MAX));
    let consumer = target.connect(InputSize::Large)?;
    let is_expected = Arc::clone(&expected);
    let consumer = std::thread::spawn(move || drain(consumer, &is_expected));
    std::thread::sleep(BESIDE_CONSUMERS);
    told.stop.store(true, Ordering::Relaxed);
    for publisher in publishers {
        joined(publisher, "a publisher")?;
    }
    let published = told.published.load(Ordering::Relaxed);
    expected.store(published, Ordering::Relaxed);
    let come = joined(consumer, "a consumer")?;
    let peak = process::peak_resident_bytes(target.pid)?;
    let (blocked, unblocked) = (told.blocked.load(Ordering::Relaxed), told.unblocked.load(Ordering::Relaxed));
    let reason = told.reason.lock().clone().context("who is blocked is told why")?;
    let is_over = http::get(&target.http, "/health", PATIENCE)?.body.contains("\"ok\"");
    found
        .add("watermark", mib(limit_bytes))
        .add(
            "memory before; under the alarm, median; at most",
            format!("{}; {}; {}", mib(before), mib(median(&looks)), mib(peak)),
        )
        .add("told", format!("{reason:?}; blocked {blocked} times, unblocked {unblocked} times"))
        .add("published", thousands(published as f64))
        .add("drained", format!("{} in {:.1} s", thousands(come as f64), back.elapsed().as_secs_f64()))
        .number("peak_part", peak as f64 / limit_bytes as f64)
        .number("blocked", if reason == "low on memory" { blocked as f64 } else { 0.0 })
        .number("unblocked_part", unblocked as f64 / blocked as f64)
        .number("come_part", come as f64 / published as f64)
        .number("healthy_after", if is_over { 1.0 } else { 0.0 });
    Ok(found)
}

/// The watermark that the broker has, in bytes.
fn watermark(target: &Target) -> anyhow::Result<u64> {
    let head = "Host: localhost\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n";
    let request = http::request("GET", "/api/nexo/memory", head, "");
    let answer = http::exchange(&target.http, &request, PATIENCE)?;
    ensure!(answer.status == 200, "the watermark is not told: {} {}", answer.status, answer.body);
    let told: Value = serde_json::from_str(&answer.body).context("the watermark is JSON")?;
    told["limit_bytes"].as_u64().context("the watermark is a number of bytes")
}

/// What the broker takes, again and again for so long.
fn looks(target: &Target, time: Duration) -> anyhow::Result<Vec<u64>> {
    let (mut looks, since) = (Vec::new(), Instant::now());
    while since.elapsed() < time {
        looks.push(process::resident_bytes(target.pid)?);
        std::thread::sleep(LOOK_EVERY);
    }
    looks.sort_unstable();
    Ok(looks)
}

/// The middle one of these, which are sorted.
fn median(looks: &[u64]) -> u64 {
    looks.get(looks.len() / 2).copied().unwrap_or(0)
}

/// Publishes without confirms, and notes what the broker says meanwhile. When it is done the broker has seen all of it.
fn publish(mut connection: Connection, told: &Arc<Told>) -> anyhow::Result<()> {
    let mut headers = TableBuf::new();
    headers.put(ShortStr::from_static("x-delay"), i64::try_from(DELAY.as_millis())?);
    let properties = PropertiesBuilder::new().headers(headers.as_table()).delivery_mode(1).to_vec();
    let frames =
        message("", QUEUE, &properties, &[b'x'; BODY_BYTES], connection.frame_max)?.repeat(WRITE_MESSAGES);
    let socket = connection.socket.try_clone().context("cannot share a socket")?;
    // A publisher that is blocked waits for as long as it takes.
    socket.set_write_timeout(None)?;
    let done = Arc::<AtomicBool>::default();
    let (is_done, counted) = (Arc::clone(&done), Arc::clone(told));
    let writer = std::thread::spawn(move || {
        let written = write_all(&socket, &frames, &counted);
        is_done.store(true, Ordering::Relaxed);
        written
    });
    connection.socket.set_read_timeout(Some(LOOK_EVERY))?;
    while !done.load(Ordering::Relaxed) {
        listen(&mut connection, told)?;
    }
    joined(writer, "a writer")?;
    // What is in the system's buffers is answered for when the broker has read it.
    let until = Instant::now() + 10 * PATIENCE;
    connection.send(
        CHANNEL,
        &nexo_amqp::codec::method::channel::Close {
            reply_code: 200,
            reply_text: ShortStr::EMPTY,
            class_id: 0,
            method_id: 0,
        },
    )?;
    while !listen(&mut connection, told)? {
        ensure!(Instant::now() < until, "the broker does not come to the end of what was published");
    }
    Ok(())
}

fn write_all(mut socket: &TcpStream, frames: &[u8], told: &Told) -> anyhow::Result<()> {
    while !told.stop.load(Ordering::Relaxed) {
        socket.write_all(frames).context("cannot publish")?;
        told.published.fetch_add(WRITE_MESSAGES as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Reads what has come, and says whether the channel is closed as was asked.
fn listen(connection: &mut Connection, told: &Told) -> anyhow::Result<bool> {
    if connection.input.fill(&connection.socket).context("cannot read")? == Filled::Nothing {
        return Ok(false);
    }
    let mut is_closed = false;
    while let Some(frame) = Frame::parse(connection.input.bytes(), connection.frame_max)? {
        let bytes = frame.bytes();
        if frame.kind == FrameKind::Method {
            let method = Method::decode(frame.payload)?;
            refuse_close(&method)?;
            match &method {
                Method::Connection(ConnectionMethod::Blocked(blocked)) => {
                    *told.reason.lock() = Some(blocked.reason.to_string());
                    told.blocked.fetch_add(1, Ordering::Relaxed);
                }
                Method::Connection(ConnectionMethod::Unblocked(_)) => {
                    told.unblocked.fetch_add(1, Ordering::Relaxed);
                }
                other => is_closed |= other.name() == "channel.close-ok",
            }
        }
        connection.input.consume(bytes);
    }
    Ok(is_closed)
}

/// Consumes until as much has come as is expected by then, or nothing comes any more.
fn drain(mut connection: Connection, expected: &AtomicU64) -> anyhow::Result<u64> {
    connection.socket.set_read_timeout(Some(LOOK_EVERY))?;
    let qos = basic::Qos { prefetch_size: 0, prefetch_count: 2 * ACK_EVERY as u16, global: false };
    connection.send(CHANNEL, &qos)?;
    let consume = methods::consume(short(QUEUE)?, ShortStr::from_static("c"));
    connection.send(CHANNEL, &basic::Consume { nowait: true, ..consume })?;
    let mut deliveries = Deliveries::new(connection.frame_max);
    let (mut acked, mut last) = (0, Instant::now());
    while deliveries.count < expected.load(Ordering::Relaxed) {
        if connection.input.fill(&connection.socket).context("cannot read deliveries")? == Filled::Nothing {
            if last.elapsed() > PATIENCE {
                bail!("{} messages came, and then none for {PATIENCE:?}", deliveries.count);
            }
            continue;
        }
        last = Instant::now();
        let done = deliveries.scan(connection.input.bytes(), |_| ())?;
        connection.input.consume(done);
        if deliveries.count >= acked + ACK_EVERY {
            acked = deliveries.count;
            let delivery_tag = deliveries.last_tag;
            connection.send(CHANNEL, &basic::Ack { delivery_tag, multiple: true })?;
        }
    }
    Ok(deliveries.count)
}
