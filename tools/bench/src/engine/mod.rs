//! What the engine promises: delays on time, idle queues for nothing, a purge that nobody notices, a restart that
//! is quick however much waits, and a backlog that is on disk.

mod load;
mod page;
mod server;

use std::path::Path;
use std::time::{Duration, Instant};

use nexo_grpc::client::Client;
use nexo_grpc::proto::{GetQueueRequest, NewMessage, PopRequest, PurgeQueueRequest, PushRequest};

use crate::machine;
use crate::process::disk_bytes;
use crate::report::mib;
use load::{Watch, at, percentiles};
pub use page::Page;
use server::Server;

const DELAYED: u64 = 100_000;
const IDLE_QUEUES: u64 = 10_000;
const BACKLOG: u64 = 10_000_000;
const BODY_BYTES: usize = 100;
const WATCH_RATE: f64 = 1_000.0;

/// Measures a binary with its data in a folder, which is emptied afterwards; `divide` makes all counts smaller.
///
/// # Errors
/// If the broker does not start or does not do what it is asked.
pub async fn run(nexo: &Path, data_dir: &Path, divide: u64) -> anyhow::Result<Page> {
    std::fs::create_dir_all(data_dir)?;
    let dir = tempfile::tempdir_in(data_dir)?;
    let mut report = Page::new(machine::describe(data_dir));
    report
        .settings
        .push("one broker, default settings: synced before every confirm; client beside it".into());
    delayed(nexo, &dir.path().join("delayed"), DELAYED / divide, &mut report).await?;
    idle(nexo, &dir.path().join("idle"), IDLE_QUEUES / divide, &mut report).await?;
    backlog(nexo, &dir.path().join("backlog"), BACKLOG / divide, &mut report).await?;
    Ok(report)
}

/// Messages whose times are spread over ten seconds, received over one subscription.
async fn delayed(nexo: &Path, data_dir: &Path, count: u64, report: &mut Page) -> anyhow::Result<()> {
    let server = Server::start(nexo, data_dir)?;
    let client = server.client().await?;
    load::create(&client, "delayed").await?;
    let mut messages = client.messages();
    let spread_ms = 10_000;
    let settle_ms = 5_000;
    let started = Instant::now();
    let mut pushed = 0;
    while pushed < count {
        let batch = (pushed..count.min(pushed + 1000)).map(|n| {
            // Spread evenly, but pushed in another order than they are due.
            let due = n.wrapping_mul(7_919) % count * spread_ms / count;
            let delay_ms = (settle_ms + due).saturating_sub(started.elapsed().as_millis() as u64).max(1);
            NewMessage { body: delay_ms.to_string().into_bytes().into(), delay_ms, ..NewMessage::default() }
        });
        let request =
            PushRequest { queue: "delayed".into(), messages: batch.collect(), ..Default::default() };
        pushed += request.messages.len() as u64;
        messages.push(request).await?;
    }
    let pushing = started.elapsed();
    let mut late = Vec::new();
    load::consume(&client, "delayed", 100_000, |message, now| {
        let delay = String::from_utf8_lossy(&message.body).parse::<f64>().unwrap_or(0.0);
        late.push(now - (message.enqueued_at_ms as f64 + delay));
        (late.len() as u64) < count
    })
    .await?;
    let early = late.iter().filter(|late| **late < 0.0).count();
    let histogram = percentiles(late.iter().copied())?;
    report.row(
        format!("{count} delayed messages over {} s: how late", spread_ms / 1000),
        format!(
            "p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms; {early} early (pushed in {:.1} s)",
            at(&histogram, 0.5),
            at(&histogram, 0.99),
            histogram.max() as f64 / 1000.0,
            pushing.as_secs_f64()
        ),
        "p99 under 20 ms",
    );
    server.stop()
}

async fn idle(nexo: &Path, data_dir: &Path, count: u64, report: &mut Page) -> anyhow::Result<()> {
    let server = Server::start(nexo, data_dir)?;
    let client = server.client().await?;
    let empty = server.resident_bytes()?;
    for part in (0..count).collect::<Vec<_>>().chunks(100) {
        let creating = part.iter().map(|n| {
            let client = client.clone();
            async move { load::create(&client, &format!("idle-{n}")).await }
        });
        futures_util::future::try_join_all(creating).await?;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = server.processor_time()?;
    let watched = Duration::from_secs(10);
    tokio::time::sleep(watched).await;
    let used = server.processor_time()?.saturating_sub(before);
    let resident = server.resident_bytes()?;
    report.row(
        format!("{count} idle queues: processor"),
        format!("{} ms in {} s", used.as_millis(), watched.as_secs()),
        "nothing measurable",
    );
    report.row(
        format!("{count} idle queues: memory"),
        format!("{} resident, {} without queues", mib(resident), mib(empty)),
        "under 100 MB",
    );
    server.stop()
}

async fn backlog(nexo: &Path, data_dir: &Path, count: u64, report: &mut Page) -> anyhow::Result<()> {
    let server = Server::start(nexo, data_dir)?;
    let client = server.client().await?;
    load::create(&client, "backlog").await?;
    let rate = load::fill(&client, "backlog", count, BODY_BYTES).await?;
    report.row(
        format!("pushing {count} messages of {BODY_BYTES} bytes"),
        format!("{rate:.0} a second, {} on disk", mib(disk_bytes(data_dir)?)),
        "–",
    );
    report.row(
        "memory with all of them waiting",
        format!("{} resident", mib(server.resident_bytes()?)),
        "under 400 MB",
    );
    server.kill();

    let server = Server::start(nexo, data_dir)?;
    restarted(&server, count, "restart after SIGKILL", report).await?;
    server.stop()?;
    let server = Server::start(nexo, data_dir)?;
    restarted(&server, count, "restart after SIGTERM", report).await?;

    let client = server.client().await?;
    let watch = Watch::start(&client, "other", WATCH_RATE).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let began = load::now_ms();
    let purged = client
        .queues()
        .purge_queue(PurgeQueueRequest { queue: "backlog".into(), ..Default::default() })
        .await?;
    let took = load::now_ms() - began;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let samples = watch.finish().await?;
    // The first second warms up; around the purge, and the second after it, is what it could have disturbed.
    let first = samples.first().map_or(0.0, |(due, _)| *due) + 1000.0;
    let calm = samples.iter().filter(|(due, _)| *due >= first && *due < began - 100.0);
    let calm = percentiles(calm.map(|(_, time)| *time))?;
    let during = samples.iter().filter(|(due, _)| *due >= began - 50.0 && *due < began + took + 1000.0);
    let during = percentiles(during.map(|(_, time)| *time))?;
    report.row(
        format!("another queue at {WATCH_RATE}/s, push to delivery, nothing else going on"),
        format!("p50 {:.2} ms, p99 {:.2} ms", at(&calm, 0.5), at(&calm, 0.99)),
        "–",
    );
    report.row(
        format!("the same while {} messages are purged", purged.get_ref().messages),
        format!(
            "p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms (the purge took {took:.0} ms)",
            at(&during, 0.5),
            at(&during, 0.99),
            during.max() as f64 / 1000.0
        ),
        "p99 under 10 ms",
    );
    server.stop()
}

async fn restarted(server: &Server, count: u64, what: &str, report: &mut Page) -> anyhow::Result<()> {
    let client: Client = server.client().await?;
    let queue =
        client.queues().get_queue(GetQueueRequest { queue: "backlog".into(), ..Default::default() }).await?;
    let stats = queue.get_ref().queue.clone().and_then(|queue| queue.stats).unwrap_or_default();
    let waiting = stats.ready + stats.leased;
    let began = Instant::now();
    let request =
        PopRequest { queue: "backlog".into(), max: 100, visibility_ms: Some(1000), ..PopRequest::default() };
    let first = client.messages().pop(request).await?.get_ref().messages.len();
    report.row(
        format!("{what} with {count} waiting"),
        format!(
            "ready in {:.2} s, {} resident, all {waiting} there; first {first} popped in {:.1} ms",
            server.ready_after.as_secs_f64(),
            mib(server.resident_bytes()?),
            began.elapsed().as_secs_f64() * 1000.0
        ),
        "ready in under 5 s",
    );
    Ok(())
}
