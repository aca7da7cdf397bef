//! Load over the native API: filling queues, and watching one at a steady rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use hdrhistogram::Histogram;
use nexo_grpc::client::Client;
use nexo_grpc::proto::{
    AckRequest, CreateQueueRequest, NewMessage, PushRequest, QueueConfig, SubscribeRequest, SubscribeStart,
    push_result, subscribe_request, subscribe_response,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Messages in one push.
const BATCH: u64 = 2_000;
/// Pushes under way at once.
const PIPES: u64 = 4;

pub(super) async fn create(client: &Client, queue: &str) -> anyhow::Result<()> {
    let config = Some(QueueConfig::default());
    client
        .queues()
        .create_queue(CreateQueueRequest { queue: queue.into(), config, ..Default::default() })
        .await?;
    Ok(())
}

/// Pushes `count` messages of `size` bytes, each confirmed; gives back messages a second.
pub(super) async fn fill(client: &Client, queue: &str, count: u64, size: usize) -> anyhow::Result<f64> {
    let started = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let mut pipes = Vec::new();
    for _ in 0..PIPES {
        let (mut messages, next, queue) = (client.messages(), Arc::clone(&next), queue.to_owned());
        pipes.push(tokio::spawn(async move {
            loop {
                let from = next.fetch_add(BATCH, Ordering::Relaxed);
                if from >= count {
                    return anyhow::Ok(());
                }
                let body = vec![b'x'; size];
                let message = NewMessage { body: body.into(), ..NewMessage::default() };
                let batch = vec![message; usize::try_from(BATCH.min(count - from))?];
                let reply = messages
                    .push(PushRequest { queue: queue.clone(), messages: batch, ..Default::default() })
                    .await?;
                let refused = reply.get_ref().results.iter().find_map(|result| match &result.outcome {
                    Some(push_result::Outcome::Error(error)) => Some(error.message.clone()),
                    _ => None,
                });
                anyhow::ensure!(refused.is_none(), "a push was refused: {refused:?}");
            }
        }));
    }
    for pipe in pipes {
        pipe.await??;
    }
    Ok(count as f64 / started.elapsed().as_secs_f64())
}

/// Milliseconds since the epoch, with fractions.
pub(super) fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1000.0)
}

/// Messages of a subscription, acknowledged as they come, with the moment each arrived.
pub(super) async fn consume(
    client: &Client,
    queue: &str,
    credit: u32,
    mut seen: impl FnMut(&nexo_grpc::proto::Message, f64) -> bool,
) -> anyhow::Result<()> {
    let (send, receive) = mpsc::channel(64);
    let start = SubscribeStart { queue: queue.into(), ..SubscribeStart::default() };
    let first = SubscribeRequest {
        credit,
        action: Some(subscribe_request::Action::Start(start)),
        ..Default::default()
    };
    send.send(first).await?;
    let mut events = client.messages().subscribe(ReceiverStream::new(receive)).await?.into_inner();
    while let Some(event) = events.message().await? {
        let Some(subscribe_response::Event::Messages(batch)) = event.event else { continue };
        let now = now_ms();
        let mut more = true;
        for message in &batch.messages {
            more &= seen(message, now);
        }
        let receipts: Vec<String> = batch.messages.iter().map(|message| message.receipt.clone()).collect();
        let ack = SubscribeRequest {
            credit: u32::try_from(receipts.len())?,
            action: Some(subscribe_request::Action::Ack(AckRequest { receipts })),
            ..Default::default()
        };
        send.send(ack).await.context("the subscription ended")?;
        if !more {
            return Ok(());
        }
    }
    anyhow::bail!("the subscription ended before everything had come")
}

/// Sends messages at a steady rate and notes for each how long it took from the moment it should have been sent
/// to its delivery, so that a stall counts for all that it held up.
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    producer: tokio::task::JoinHandle<anyhow::Result<u64>>,
    consumer: tokio::task::JoinHandle<anyhow::Result<Vec<(f64, f64)>>>,
}

impl Watch {
    pub(super) async fn start(client: &Client, queue: &str, rate: f64) -> anyhow::Result<Self> {
        create(client, queue).await?;
        let stop = Arc::new(AtomicBool::new(false));
        let sent = Arc::new(AtomicU64::new(u64::MAX));
        let consumer = tokio::spawn({
            let (client, queue, sent) = (client.clone(), queue.to_owned(), Arc::clone(&sent));
            async move {
                let mut samples = Vec::new();
                let seen = |message: &nexo_grpc::proto::Message, now: f64| {
                    let due = String::from_utf8_lossy(&message.body).parse::<f64>().unwrap_or(now);
                    samples.push((due, now - due));
                    (samples.len() as u64) < sent.load(Ordering::Relaxed)
                };
                consume(&client, &queue, 1000, seen).await?;
                Ok(samples)
            }
        });
        let producer = tokio::spawn({
            let (client, queue, stop) = (client.clone(), queue.to_owned(), Arc::clone(&stop));
            async move {
                let began = Instant::now();
                let began_ms = now_ms();
                let mut count = 0u64;
                let mut tasks = tokio::task::JoinSet::new();
                while !stop.load(Ordering::Relaxed) {
                    let due = count as f64 / rate;
                    tokio::time::sleep_until((began + Duration::from_secs_f64(due)).into()).await;
                    let body = format!("{}", began_ms + due * 1000.0);
                    let mut messages = client.messages();
                    let message = NewMessage { body: body.into_bytes().into(), ..NewMessage::default() };
                    let request =
                        PushRequest { queue: queue.clone(), messages: vec![message], ..Default::default() };
                    tasks.spawn(async move { messages.push(request).await.map(|_| ()) });
                    count += 1;
                }
                while let Some(done) = tasks.join_next().await {
                    done??;
                }
                // One more tells the consumer that it has seen the last.
                sent.store(count + 1, Ordering::Relaxed);
                let message =
                    NewMessage { body: format!("{}", now_ms()).into_bytes().into(), ..Default::default() };
                client
                    .messages()
                    .push(PushRequest { queue, messages: vec![message], ..Default::default() })
                    .await?;
                Ok(count)
            }
        });
        Ok(Self { stop, producer, consumer })
    }

    /// Ends the load; gives back for each message when it was due and how many milliseconds it took.
    pub(super) async fn finish(self) -> anyhow::Result<Vec<(f64, f64)>> {
        self.stop.store(true, Ordering::Relaxed);
        self.producer.await??;
        self.consumer.await?
    }
}

/// Percentiles of times in milliseconds.
pub(super) fn percentiles(times_ms: impl Iterator<Item = f64>) -> anyhow::Result<Histogram<u64>> {
    let mut histogram = Histogram::<u64>::new(3)?;
    for time in times_ms {
        histogram.record((time.max(0.0) * 1000.0) as u64)?;
    }
    Ok(histogram)
}

/// One percentile in milliseconds.
pub(super) fn at(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1000.0
}
