//! Many connections with many channels each, held by heartbeats alone, in both directions; and some that send none.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nexo_amqp_client::{Client, PERSISTENT};
use tokio::task::JoinSet;

use crate::Size;
use crate::broker::{Broker, CHANNEL, within};
use crate::report::{Report, mib};

const CHANNELS: u16 = 10;
/// Connections that are opened at the same time.
const AT_ONCE: usize = 100;
/// Connections that agree on heartbeats and send none.
const SILENT: usize = 10;

pub(crate) async fn run(broker: &Broker, size: Size, report: &mut Report) -> anyhow::Result<()> {
    let count = size.of(1_000, 50);
    let heartbeat: u16 = size.of(5, 2);
    let hold = size.of(Duration::from_secs(120), Duration::from_secs(6));
    let before = broker.resident_bytes()?;
    let began = Instant::now();
    let mut held = JoinSet::new();
    while held.len() < count {
        let mut opening = JoinSet::new();
        for number in held.len()..(held.len() + AT_ONCE).min(count) {
            opening.spawn(open(*broker, heartbeat, number));
        }
        while let Some(opened) = opening.join_next().await {
            // Held from now on: it must not fall silent while others are opened.
            held.spawn(keep(opened??, hold, heartbeat));
        }
    }
    let channels = count * usize::from(CHANNELS);
    let took = began.elapsed().as_secs_f64();
    report.row(format!("{count} connections with {channels} channels opened in"), format!("{took:.1} s"));
    let grown = broker.resident_bytes()?.saturating_sub(before);
    let each = (grown / count as u64) >> 10;
    report.row("memory for them", format!("{}, {each} KiB each", mib(grown)));

    let mut silent = JoinSet::new();
    for _ in 0..SILENT {
        silent.spawn(fall_silent(*broker, heartbeat));
    }
    let mut longest = Duration::ZERO;
    while let Some(ended) = silent.join_next().await {
        longest = longest.max(ended??);
    }
    let longest = longest.as_secs_f64();
    report.row(
        format!("{SILENT} that send no heartbeat (every {heartbeat} s) are cut off after at most"),
        format!("{longest:.1} s"),
    );
    let mut gap = Duration::ZERO;
    while let Some(kept) = held.join_next().await {
        gap = gap.max(kept??);
    }
    let gap = gap.as_secs_f64();
    report.row(
        format!("all held for {} s; longest time without a word from the broker", hold.as_secs()),
        format!("{gap:.1} s"),
    );
    report.row("afterwards each channel answers, and each connection gets its message", "yes");
    Ok(())
}

/// A connection with channels and a queue of its own.
struct Held {
    client: Client,
    queue: String,
}

async fn open(broker: Broker, heartbeat: u16, number: usize) -> anyhow::Result<Held> {
    let mut client = broker.connect(heartbeat).await?;
    for number in 1..=CHANNELS {
        client.open_channel(number).await?;
    }
    let queue = format!("scale.connection.{number}");
    client.declare_queues(CHANNEL, std::slice::from_ref(&queue)).await?;
    Ok(Held { client, queue })
}

/// Sends heartbeats and expects them; then sees that everything works. Gives the longest time in which nothing came.
async fn keep(held: Held, hold: Duration, heartbeat: u16) -> anyhow::Result<Duration> {
    let Held { mut client, queue } = held;
    let beat = Duration::from_secs(heartbeat.into());
    let end = Instant::now() + hold;
    let mut gap = Duration::ZERO;
    let mut heard = Instant::now();
    let mut next_beat = Instant::now();
    while Instant::now() < end {
        if Instant::now() >= next_beat {
            client.add_heartbeat();
            client.flush().await?;
            next_beat = Instant::now() + beat / 2;
        }
        let wait = next_beat.saturating_duration_since(Instant::now());
        if let Ok(frame) = tokio::time::timeout(wait, client.next_frame()).await {
            frame?.context("the broker ended a connection that sends heartbeats")?;
            gap = gap.max(heard.elapsed());
            heard = Instant::now();
        }
        // Clients give up after two; on a machine that stands still both sides are late.
        ensure!(heard.elapsed() < beat * 4, "the broker is silent for {:?}", heard.elapsed());
    }
    for number in 1..=CHANNELS {
        client.round_trip(number).await?;
    }
    client.add_publish(CHANNEL, "", &queue, PERSISTENT, queue.as_bytes())?;
    let got = client.get(CHANNEL, &queue, true).await?.map(|message| message.body);
    ensure!(got.as_deref() == Some(queue.as_bytes()), "{queue} gave {got:?}");
    client.delete_queues(CHANNEL, &[queue]).await?;
    Ok(gap)
}

/// Says nothing, and waits for the end.
async fn fall_silent(broker: Broker, heartbeat: u16) -> anyhow::Result<Duration> {
    let mut client = broker.connect(heartbeat).await?;
    let began = Instant::now();
    // A reset is an end as well.
    while matches!(within(client.next_frame()).await?, Ok(Some(_))) {}
    Ok(began.elapsed())
}
