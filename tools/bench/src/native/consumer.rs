//! A consumer: a subscription to each of its queues, all on one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures_util::stream::{SelectAll, StreamExt};
use nexo_grpc::proto::subscribe_request::Action;
use nexo_grpc::proto::subscribe_response::Event;
use nexo_grpc::proto::{AckRequest, SubscribeRequest, SubscribeResponse, SubscribeStart};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::Line;
use crate::protocol::{Consume, Look};
use crate::tally::Tally;
use crate::work::{Ack, Seen, Wants};

/// How often a consumer that gets nothing looks whether it should stop.
const GLANCE: Duration = Duration::from_millis(50);
/// Messages on their way to a consumer that sets no limit.
const CREDIT: u32 = 10_000;
/// Most receipts in one acknowledgement.
const RECEIPTS_MAX: usize = 10_000;

/// Subscriptions and what they run on.
pub(super) struct Consumer {
    line: Line,
    subscriptions: Subscriptions,
}

struct Subscriptions {
    events: SelectAll<Tagged>,
    each: Vec<Subscription>,
    /// How many messages one acknowledgement covers.
    every: usize,
    tally: Arc<Tally>,
    seen: Seen,
}

/// What goes back on one subscription.
struct Subscription {
    requests: mpsc::Sender<SubscribeRequest>,
    receipts: Vec<String>,
}

/// The events of one subscription, with its number.
type Tagged =
    std::pin::Pin<Box<dyn futures_util::Stream<Item = (usize, Result<SubscribeResponse, Status>)> + Send>>;

impl Consumer {
    pub(super) fn open(line: Line, wants: &Wants, tally: Arc<Tally>) -> anyhow::Result<Self> {
        let mut subscriptions = Subscriptions {
            events: SelectAll::new(),
            each: Vec::new(),
            every: match wants.ack {
                Ack::Auto => 1,
                Ack::Every(every) => usize::from(every),
            },
            tally,
            seen: Seen::default(),
        };
        let credit = if wants.prefetch == 0 { CREDIT } else { u32::from(wants.prefetch) };
        for (number, queue) in wants.queues.iter().enumerate() {
            let (requests, events) = line.block_on(subscribe(&line, queue, credit))?;
            subscriptions.events.push(Box::pin(events.map(move |event| (number, event))));
            subscriptions.each.push(Subscription { requests, receipts: Vec::new() });
        }
        Ok(Self { line, subscriptions })
    }
}

async fn subscribe(
    line: &Line,
    queue: &str,
    credit: u32,
) -> anyhow::Result<(mpsc::Sender<SubscribeRequest>, Streaming<SubscribeResponse>)> {
    let (requests, stream) = mpsc::channel(64);
    let start = SubscribeStart { queue: queue.to_owned(), ..SubscribeStart::default() };
    let first =
        SubscribeRequest { credit, action: Some(Action::Start(start)), ..SubscribeRequest::default() };
    requests.send(first).await.context("a stream takes its first request")?;
    let events = line.client.messages().subscribe(ReceiverStream::new(stream)).await?;
    Ok((requests, events.into_inner()))
}

impl Consume for Consumer {
    fn run(self: Box<Self>, stop: &AtomicBool, look: Look<'_>) -> anyhow::Result<Seen> {
        let Self { line, mut subscriptions } = *self;
        line.block_on(subscriptions.run(stop, look))
    }
}

impl Subscriptions {
    async fn run(&mut self, stop: &AtomicBool, mut look: Look<'_>) -> anyhow::Result<Seen> {
        while !stop.load(Ordering::Relaxed) {
            match tokio::time::timeout(GLANCE, self.events.next()).await {
                Ok(Some((number, event))) => self.take(number, event?, &mut look).await?,
                Ok(None) => bail!("the broker ended the subscription"),
                Err(_) => self.acknowledge_all().await?,
            }
        }
        self.acknowledge_all().await?;
        // Acknowledgements travel while somebody waits for something; what else comes is not asked for any more.
        let _ = tokio::time::timeout(GLANCE, self.events.next()).await;
        Ok(self.seen)
    }

    async fn take(
        &mut self,
        number: usize,
        event: SubscribeResponse,
        look: &mut Look<'_>,
    ) -> anyhow::Result<()> {
        let now = Instant::now();
        let batch = match event.event {
            Some(Event::Messages(batch)) => batch.messages,
            Some(Event::Settled(reply)) => {
                let refused = reply.results.into_iter().find_map(|result| result.error);
                bail!("an acknowledgement failed: {}", refused.unwrap_or_default().message)
            }
            Some(Event::Started(_)) | None => return Ok(()),
        };
        let subscription = &mut self.each[number];
        for message in batch {
            if let Some(look) = look {
                look(&message.body, now);
            }
            self.seen.consumed += 1;
            self.seen.redelivered += u64::from(message.attempt > 1);
            subscription.receipts.push(message.receipt);
        }
        self.tally.consumed.set(self.seen.consumed);
        let due = subscription.receipts.len() / self.every * self.every;
        subscription.acknowledge(due).await
    }

    async fn acknowledge_all(&mut self) -> anyhow::Result<()> {
        for subscription in &mut self.each {
            subscription.acknowledge(subscription.receipts.len()).await?;
        }
        Ok(())
    }
}

impl Subscription {
    /// Acknowledges the oldest `count` messages and asks for as many more.
    async fn acknowledge(&mut self, mut count: usize) -> anyhow::Result<()> {
        while count > 0 {
            let now = count.min(RECEIPTS_MAX);
            let receipts: Vec<String> = self.receipts.drain(..now).collect();
            let request = SubscribeRequest {
                credit: u32::try_from(now)?,
                action: Some(Action::Ack(AckRequest { receipts })),
                ..SubscribeRequest::default()
            };
            self.requests.send(request).await.context("the broker ended the subscription")?;
            count -= now;
        }
        Ok(())
    }
}
