//! A publisher that keeps a schedule. The schedule needs a thread that sleeps and spins; the connection lives on a second
//! one and takes what it is handed.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use hdrhistogram::Histogram;
use nexo_grpc::client::Client;
use nexo_grpc::proto::{NewMessage, PushStreamRequest, PushStreamResponse};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::message;
use super::publisher::confirmed;
use crate::percentiles;
use crate::protocol::PublishPaced;
use crate::schedule::{self, Schedule};
use crate::tally::Tally;
use crate::work::{MessageShape, Paced};

/// Requests that may wait for their turn on the connection.
const REQUESTS: usize = 10_000;
/// How long a publisher whose window is full waits before it looks again.
const GLANCE: Duration = Duration::from_micros(50);

/// A push stream with a schedule.
pub(super) struct PacedPublisher {
    runtime: Runtime,
    requests: mpsc::Sender<PushStreamRequest>,
    confirming: JoinHandle<anyhow::Result<Histogram<u64>>>,
    sent: Arc<Sent>,
    shape: MessageShape,
    window: u64,
    schedule: Schedule,
    tally: Arc<Tally>,
    published: u64,
}

/// From when on the time of each request counts that is not confirmed yet; `None` in the warm-up.
#[derive(Default)]
struct Sent(Mutex<VecDeque<Option<Instant>>>);

impl Sent {
    fn push(&self, from: Option<Instant>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(from);
    }

    fn pop(&self) -> Option<Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front().flatten()
    }
}

impl PacedPublisher {
    pub(super) fn open(
        url: &str,
        shape: &MessageShape,
        window: u32,
        schedule: Schedule,
        tally: Arc<Tally>,
    ) -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(Client::connect(url))?;
        let (requests, stream) = mpsc::channel(REQUESTS);
        let replies = runtime.block_on(client.messages().push_stream(ReceiverStream::new(stream)))?;
        let sent = Arc::<Sent>::default();
        let confirming =
            runtime.spawn(take_confirms(replies.into_inner(), Arc::clone(&sent), Arc::clone(&tally)));
        let window = if window == 0 { u64::MAX } else { u64::from(window) };
        let shape = shape.clone();
        Ok(Self { runtime, requests, confirming, sent, shape, window, schedule, tally, published: 0 })
    }

    fn push(&mut self, due: Duration, from: Option<Instant>) -> anyhow::Result<()> {
        let mut body = vec![b'x'; self.shape.body_bytes];
        body[..8].copy_from_slice(&(due.as_nanos() as u64).to_be_bytes());
        let body = Bytes::from(body);
        let sequence = self.published + self.schedule.burst;
        let messages: Vec<NewMessage> =
            (self.published..sequence).map(|index| message(&self.shape, &body, index)).collect();
        let queue = self.shape.routing_keys[0].clone();
        self.sent.push(from);
        let request = PushStreamRequest { sequence, queue, messages, ..Default::default() };
        self.requests.blocking_send(request).context("the broker ended the stream")?;
        self.published = sequence;
        self.tally.published.set(sequence);
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.published - self.tally.confirmed.get() <= self.window - self.schedule.burst
    }
}

impl PublishPaced for PacedPublisher {
    fn run(
        mut self: Box<Self>,
        began: Instant,
        measured: Duration,
        stop: &AtomicBool,
    ) -> anyhow::Result<Paced> {
        // As in the publisher for AMQP: a sleep may otherwise be 50 µs longer than asked for.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).ok();
        let mut late_nanos = percentiles::nanos();
        for index in 0.. {
            let due = self.schedule.due(index);
            schedule::sleep_until(began + due);
            while !self.has_room() && !stop.load(Ordering::Relaxed) && !self.confirming.is_finished() {
                std::thread::sleep(GLANCE);
            }
            if stop.load(Ordering::Relaxed) || self.confirming.is_finished() {
                break;
            }
            let is_measured = due >= measured;
            if is_measured {
                let late = began.elapsed().saturating_sub(due);
                percentiles::note(&mut late_nanos, late, self.schedule.burst);
            }
            self.push(due, is_measured.then_some(began + due))?;
        }
        let Self { runtime, requests, confirming, .. } = *self;
        // The broker ends the stream once it has confirmed everything.
        drop(requests);
        let confirm_nanos = runtime.block_on(confirming).context("the task for confirms panicked")??;
        runtime.shutdown_background();
        Ok(Paced { late_nanos, confirm_nanos: Some(confirm_nanos) })
    }
}

/// Counts confirms and takes their times until the stream ends.
async fn take_confirms(
    mut replies: Streaming<PushStreamResponse>,
    sent: Arc<Sent>,
    tally: Arc<Tally>,
) -> anyhow::Result<Histogram<u64>> {
    let mut nanos = percentiles::nanos();
    let mut count = 0;
    while let Some(reply) = replies.message().await? {
        let now = Instant::now();
        for confirm in &reply.confirms {
            if let Some(from) = sent.pop() {
                let time = now.saturating_duration_since(from);
                percentiles::note(&mut nanos, time, confirm.results.len() as u64);
            }
        }
        count += confirmed(&reply)?;
        tally.confirmed.set(count);
    }
    if tally.published.get() > count {
        bail!("{} messages were not confirmed", tally.published.get() - count);
    }
    Ok(nanos)
}
