//! State that is large and does not change: a broker that nobody asks for anything must become quiet, and a push to such
//! a queue must not wait for what is written down about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use nexo_grpc::proto::{CreateQueueRequest, NewMessage, PushRequest, QueueConfig};

use super::Found;
use super::target::Target;
use crate::native::{Line, accepted};
use crate::probe;
use crate::process;
use crate::protocol::Protocol;
use crate::report::thousands;
use crate::tally::Tally;
use crate::threads::joined;
use crate::work::{Ack, Seen, Wants};

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
/// How long filling may take before what was delayed comes due.
const DUE_AFTER: Duration = Duration::from_secs(30);
/// All that is due together is due within this.
const DUE_WITHIN: Duration = Duration::from_secs(1);
/// How long before that it is seen that nothing has come yet.
const BEFORE_DUE: Duration = Duration::from_millis(200);
/// How long nothing may come before it counts as the end.
const PATIENCE: Duration = Duration::from_secs(20);

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
    let pusher = Pusher::create(target, &format!("abuse-{what}"))?;
    target.probed(&mut found, |found| {
        let began = Instant::now();
        pusher.fill(count, &message)?;
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

    let (began, mut next) = (Instant::now(), count);
    let times = probe::paced(
        EVERY,
        || began.elapsed() < look,
        || {
            let sent = Instant::now();
            pusher.push(vec![message(next)])?;
            next += 1;
            Ok(sent.elapsed())
        },
    )?;
    let probe::Probed { sent, due } = times.found();
    if let (Some(sent), Some(due)) = (sent, due) {
        found.add("a push to it meanwhile", sent).add("from when due", due).number("push_p99_us", due.p99_us);
    }
    Ok(found)
}

/// Many messages that come due within a second, for a consumer that takes them.
pub(super) fn due_together(target: &Target) -> anyhow::Result<Found> {
    const QUEUE: &str = "abuse-due-together";
    let mut found = Found::default();
    let count = target.count(1_000_000);
    let pusher = Pusher::create(target, QUEUE)?;
    target.probed(&mut found, |found| {
        let due = Instant::now() + target.time(DUE_AFTER);
        pusher.fill(count, |index| {
            let left = due.saturating_duration_since(Instant::now());
            NewMessage {
                body: Bytes::from_static(b"0123456789abcdef"),
                delay_ms: (left.as_millis() + u128::from(index) % DUE_WITHIN.as_millis()) as u64,
                ..NewMessage::default()
            }
        })?;
        let left = due.saturating_duration_since(Instant::now());
        ensure!(left > BEFORE_DUE, "the first are due before the last are pushed");
        let consumer = Consumer::start(target, QUEUE)?;
        std::thread::sleep(due.saturating_duration_since(Instant::now()).saturating_sub(BEFORE_DUE));
        let early = consumer.tally.consumed.get();
        ensure!(early == 0, "{early} messages came before they were due");
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let took = consumer.wait_for(count);
        let seen = consumer.stop()?;
        found
            .add("due within a second", thousands(count as f64))
            .add("came", format!("{} in {:.1} s", thousands(seen.consumed as f64), took.as_secs_f64()))
            .number("come_part", come_part(seen, count));
        Ok(())
    })?;
    Ok(found)
}

/// What part of the messages has come; those that came again count once.
fn come_part(seen: Seen, count: u64) -> f64 {
    seen.consumed.saturating_sub(seen.redelivered) as f64 / count.max(1) as f64
}

/// Whoever pushes to one queue.
struct Pusher {
    line: Line,
    queue: String,
}

impl Pusher {
    fn create(target: &Target, queue: &str) -> anyhow::Result<Self> {
        let line = Line::open(&target.native)?;
        let request = CreateQueueRequest {
            queue: queue.to_owned(),
            config: Some(QueueConfig::default()),
            ..Default::default()
        };
        line.block_on(line.client.queues().create_queue(request)).context("cannot create a queue")?;
        Ok(Self { line, queue: queue.to_owned() })
    }

    fn push(&self, messages: Vec<NewMessage>) -> anyhow::Result<()> {
        let count = messages.len() as u64;
        let request = PushRequest { queue: self.queue.clone(), messages, ..Default::default() };
        let reply = self.line.block_on(self.line.client.messages().push(request))?.into_inner();
        let taken = accepted(&reply.results)?;
        ensure!(taken == count, "the broker answered for {taken} of {count} messages");
        Ok(())
    }

    /// Pushes so many, a batch at a time.
    fn fill(&self, count: u64, message: impl Fn(u64) -> NewMessage) -> anyhow::Result<()> {
        let mut from = 0;
        while from < count {
            let to = count.min(from + BATCH);
            self.push((from..to).map(&message).collect())?;
            from = to;
        }
        Ok(())
    }
}

/// A consumer on a thread of its own.
struct Consumer {
    tally: Arc<Tally>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<Seen>>,
}

impl Consumer {
    fn start(target: &Target, queue: &str) -> anyhow::Result<Self> {
        let (tally, stop) = (Arc::<Tally>::default(), Arc::<AtomicBool>::default());
        let wants = Wants {
            queues: vec![queue.to_owned()],
            ack: Ack::Every(100),
            prefetch: 1_000,
            batch: 1,
            pause: Duration::ZERO,
        };
        let consumer = target.native.consumer(&wants, Arc::clone(&tally))?;
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || consumer.run(&stopped, None));
        Ok(Self { tally, stop, thread })
    }

    /// Waits until so many have come, or nothing more does; says how long it took until the last.
    fn wait_for(&self, count: u64) -> Duration {
        let began = Instant::now();
        let (mut come, mut changed) = (self.tally.consumed.get(), began);
        while come < count && changed.elapsed() < PATIENCE && !self.thread.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
            let now = self.tally.consumed.get();
            if now != come {
                (come, changed) = (now, Instant::now());
            }
        }
        changed - began
    }

    fn stop(self) -> anyhow::Result<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        joined(self.thread, "the consumer")
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_twice_does_not_stand_for_what_did_not_come() {
        assert_eq!(come_part(Seen { consumed: 10, redelivered: 0 }, 10), 1.0);
        assert_eq!(come_part(Seen { consumed: 10, redelivered: 1 }, 10), 0.9);
        assert_eq!(come_part(Seen::default(), 10), 0.0);
    }
}
