//! A consumer that stops reading while everybody else goes on at full speed: others are not held up, the broker's memory
//! stays within its bounds, and when it reads again every message has come to somebody, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use nexo_amqp_client::{Client, Message, Origin, PERSISTENT};
use tokio::task::JoinHandle;

use crate::Size;
use crate::broker::{Broker, CHANNEL, PATIENCE, within};
use crate::report::{Report, mib, rate};

const SHARED: &str = "scale.silence.shared";
const OTHER: &str = "scale.silence.other";
const BODY_BYTES: usize = 1024;
/// Publishes that are confirmed together.
const BURST: u64 = 500;
/// How long nothing comes before it is looked whether anything will.
const QUIET: Duration = Duration::from_millis(500);
/// What the broker may take beyond its memory for messages: for a connection 8 MiB of what is not written and 4 MiB of
/// what was handed to its consumer, 64 MiB of the log that is not on disk yet, and the allocator's share.
const BEYOND_BYTES: u64 = 192 << 20;

/// What everybody counts.
#[derive(Debug, Default)]
struct Counts {
    stop: AtomicBool,
    published: [AtomicU64; 2],
    consumed: [AtomicU64; 2],
}

pub(crate) async fn run(broker: &Broker, size: Size, report: &mut Report) -> anyhow::Result<()> {
    let length = size.of(Duration::from_secs(60), Duration::from_secs(5));
    let slices = size.of(10, 2);
    let names = [SHARED.to_owned(), OTHER.to_owned()];
    let mut setup = broker.client().await?;
    setup.declare_queues(CHANNEL, &names).await?;
    let before = broker.resident_bytes()?;
    let counts = Arc::new(Counts::default());
    let mut silent = broker.client().await?;
    silent.consume(CHANNEL, SHARED, "tag").await?;
    let publishers = [0, 1].map(|queue| tokio::spawn(publish(*broker, queue, Arc::clone(&counts))));
    let consumers = [0, 1].map(|queue| tokio::spawn(consume(*broker, queue, Arc::clone(&counts))));

    let mut most = before;
    let mut last = [0; 2];
    for slice in 1..=slices {
        tokio::time::sleep(length / slices).await;
        most = most.max(broker.resident_bytes()?);
        let now = counts.consumed.each_ref().map(|count| count.load(Ordering::Relaxed));
        // The first slice may go by before the first message has come on a slow machine.
        ensure!(
            slice == 1 || (now[0] > last[0] && now[1] > last[1]),
            "no progress in slice {slice} of {slices}: {last:?}, {now:?}"
        );
        last = now;
    }
    counts.stop.store(true, Ordering::Relaxed);
    for publisher in publishers {
        within(publisher).await???;
    }
    let published = counts.published.each_ref().map(|count| count.load(Ordering::Relaxed));
    let seconds = length.as_secs_f64();
    report.row(
        format!("one consumer of two does not read for {seconds:.0} s; published to its queue, to another"),
        format!("{}, {}", rate(published[0] as usize, seconds), rate(published[1] as usize, seconds)),
    );
    report.row(
        "meanwhile consumed from its queue by the other, and from the other queue",
        format!("{}, {}", rate(last[0] as usize, seconds), rate(last[1] as usize, seconds)),
    );
    let grown = most.saturating_sub(before);
    let bound = broker.memory_bytes_max + BEYOND_BYTES;
    report.row("the broker's memory grows by at most", format!("{} (bound: {})", mib(grown), mib(bound)));
    ensure!(grown <= bound, "the broker took {} more, and {} is the bound", mib(grown), mib(bound));

    let came = finish(silent, consumers, &counts, published).await?;
    report.row("it reads again, and every message has come to one consumer, once", format!("{came} to it"));
    Ok(setup.delete_queues(CHANNEL, &names).await?)
}

/// The silent one reads again; everything published must have come to somebody, once. Gives how many came to it.
async fn finish(
    mut silent: Client,
    consumers: [JoinHandle<anyhow::Result<Vec<u64>>>; 2],
    counts: &Counts,
    published: [u64; 2],
) -> anyhow::Result<usize> {
    let mut came: Vec<u64> = Vec::new();
    let end = Instant::now() + PATIENCE;
    // It takes part again until the other one has got the rest.
    while counts.consumed[0].load(Ordering::Relaxed) + (came.len() as u64) < published[0] {
        ensure!(Instant::now() < end, "messages are missing after {PATIENCE:?}");
        if let Some(body) = delivery(&mut silent).await? {
            came.push(number(&body)?);
        }
    }
    silent.round_trip(1).await.context("the silent consumer's connection")?;
    for (queue, consumer) in consumers.into_iter().enumerate() {
        let mut all = within(consumer).await???;
        if queue == 0 {
            all.extend_from_slice(&came);
        }
        all.sort_unstable();
        let expected = 0..published[queue];
        ensure!(all.iter().copied().eq(expected), "of {} messages {} came", published[queue], all.len());
    }
    Ok(came.len())
}

/// Publishes numbered messages at full speed, all of them confirmed, until told to stop.
async fn publish(broker: Broker, queue: usize, counts: Arc<Counts>) -> anyhow::Result<()> {
    let mut client = broker.client().await?;
    client.select_confirms(CHANNEL).await?;
    let name = [SHARED, OTHER][queue];
    let mut body = vec![b'x'; BODY_BYTES];
    let mut next = 0u64;
    while !counts.stop.load(Ordering::Relaxed) {
        for _ in 0..BURST {
            body[..8].copy_from_slice(&next.to_be_bytes());
            client.add_publish(CHANNEL, "", name, PERSISTENT, &body)?;
            next += 1;
        }
        client.flush().await?;
        client.confirmed(next).await?;
        counts.published[queue].store(next, Ordering::Relaxed);
    }
    Ok(())
}

/// Consumes until all that was published has come to somebody.
async fn consume(broker: Broker, queue: usize, counts: Arc<Counts>) -> anyhow::Result<Vec<u64>> {
    let mut client = broker.client().await?;
    client.consume(CHANNEL, [SHARED, OTHER][queue], "tag").await?;
    let mut came = Vec::new();
    let mut quiet = 0;
    // The rest of the shared queue may be with the other consumer, so silence is the sign of the end.
    while !counts.stop.load(Ordering::Relaxed) || quiet < 6 {
        match delivery(&mut client).await? {
            Some(body) => {
                came.push(number(&body)?);
                counts.consumed[queue].store(came.len() as u64, Ordering::Relaxed);
                quiet = 0;
            }
            None => quiet += 1,
        }
    }
    Ok(came)
}

/// The body of the next delivery, if one comes soon. It is acknowledged with what is sent next.
async fn delivery(client: &mut Client) -> anyhow::Result<Option<Bytes>> {
    let Some(Message { origin, body, .. }) = client.message(QUIET).await? else { return Ok(None) };
    let Origin::Deliver { delivery_tag, .. } = origin else { bail!("a delivery is due, not {origin:?}") };
    client.acknowledge_through(CHANNEL, delivery_tag);
    Ok(Some(body))
}

fn number(body: &[u8]) -> anyhow::Result<u64> {
    let head = body.first_chunk::<8>().context("a message without a number")?;
    Ok(u64::from_be_bytes(*head))
}
