//! State that is large and does not change: a broker that nobody asks for anything must become quiet, and a push to such
//! a queue must not wait for what is written down about it.

use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use nexo_grpc::proto::{CreateQueueRequest, NewMessage, PushRequest, QueueConfig};

use super::Found;
use super::target::Target;
use crate::native::{Line, accepted};
use crate::percentiles::{self, Percentiles};
use crate::process;
use crate::report::thousands;

/// Messages in one push.
const BATCH: u64 = 1_000;
/// Nothing of it comes due while it is looked at.
const DELAY: Duration = Duration::from_secs(24 * 3600);
/// How long the broker may take to become quiet.
const QUIET_AFTER_MAX: Duration = Duration::from_secs(60);
/// Less than this in a second is quiet.
const QUIET_BYTES: u64 = 256 * 1024;
/// How long the quiet broker is looked at.
const LOOK: Duration = Duration::from_secs(10);
/// How often a message is pushed to the queue.
const EVERY: Duration = Duration::from_millis(20);

/// Many deduplication ids.
pub(super) fn dedup(target: &Target) -> anyhow::Result<Found> {
    run(target, "ids", target.count(1_500_000), |index| NewMessage {
        body: Bytes::from_static(b"x"),
        dedup_id: format!("order-{index:012}"),
        ..NewMessage::default()
    })
}

/// Many messages that are not due.
pub(super) fn delayed(target: &Target) -> anyhow::Result<Found> {
    run(target, "delayed", target.count(4_000_000), |index| NewMessage {
        body: Bytes::from_static(b"0123456789abcdef"),
        // Over a day and a day, in another order than they come in.
        delay_ms: (DELAY.as_millis() as u64) + index.wrapping_mul(7_919) % (24 * 3600 * 1000),
        ..NewMessage::default()
    })
}

fn run(
    target: &Target,
    what: &str,
    count: u64,
    message: impl Fn(u64) -> NewMessage,
) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let line = Line::open(&target.native)?;
    let queue = format!("abuse-{what}");
    let request = CreateQueueRequest { queue: queue.clone(), config: Some(QueueConfig::default()) };
    line.block_on(line.client.queues().create_queue(request)).context("cannot create a queue")?;
    let push = |from: u64, to: u64| {
        let messages = (from..to).map(&message).collect();
        let request = PushRequest { queue: queue.clone(), messages };
        let reply = line.block_on(line.client.messages().push(request))?.into_inner();
        accepted(&reply.results)
    };
    target.probed(&mut found, |found| {
        let began = Instant::now();
        let mut from = 0;
        while from < count {
            let to = count.min(from + BATCH);
            push(from, to)?;
            from = to;
        }
        let rate = count as f64 / began.elapsed().as_secs_f64();
        found.add(what, format!("{}, at {}/s", thousands(count as f64), thousands(rate)));
        Ok(())
    })?;

    let quiet_after = quiet(target)?;
    let from = process::written_bytes(target.pid)?;
    let look = target.time(LOOK);
    std::thread::sleep(look);
    let written = process::written_bytes(target.pid)? - from;
    let idle_bytes = written as f64 / look.as_secs_f64();
    found
        .add(
            "quiet",
            quiet_after.map_or_else(
                || "never".to_owned(),
                |after| format!("{:.0} s after the last", after.as_secs_f64()),
            ),
        )
        .add("written while idle", format!("{:.2} MB/s", idle_bytes / 1e6))
        .number("quiet_after_seconds", quiet_after.map_or(f64::MAX, |after| after.as_secs_f64()))
        .number("idle_bytes_per_second", idle_bytes);

    let mut nanos = percentiles::nanos();
    let (began, mut next) = (Instant::now(), count);
    while began.elapsed() < look {
        let sent = Instant::now();
        push(next, next + 1)?;
        percentiles::note(&mut nanos, sent.elapsed(), 1);
        next += 1;
        std::thread::sleep(EVERY);
    }
    if let Some(times) = Percentiles::of_nanos(&nanos) {
        found.add("a push to it meanwhile", times).number("push_p99_us", times.p99_us);
    }
    Ok(found)
}

/// How long it takes until the broker writes next to nothing for two seconds; `None` if it never does.
fn quiet(target: &Target) -> anyhow::Result<Option<Duration>> {
    let began = Instant::now();
    let mut calm = 0;
    let mut before = process::written_bytes(target.pid)?;
    while began.elapsed() < QUIET_AFTER_MAX {
        std::thread::sleep(Duration::from_secs(1));
        let now = process::written_bytes(target.pid)?;
        calm = if now - before < QUIET_BYTES { calm + 1 } else { 0 };
        before = now;
        if calm == 2 {
            return Ok(Some(began.elapsed()));
        }
    }
    Ok(None)
}
