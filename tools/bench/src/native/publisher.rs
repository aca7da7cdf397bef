//! A publisher: batches on a push stream, with as many messages on their way as the window allows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, bail};
use bytes::Bytes;
use hdrhistogram::Histogram;
use nexo_grpc::proto::push_result::Outcome;
use nexo_grpc::proto::{PushResult, PushStreamRequest, PushStreamResponse};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{Line, message};
use crate::percentiles;
use crate::protocol::Publish;
use crate::tally::Tally;
use crate::work::MessageShape;

/// Most messages in one request.
const BATCH_MAX: u64 = 500;
/// The window of a load that asks for none.
const WINDOW: u64 = 16_384;
/// Requests that may wait for their turn on the connection.
const REQUESTS: usize = 64;

/// A push stream and what it runs on.
pub(super) struct Publisher {
    line: Line,
    push: Push,
}

/// A push stream.
struct Push {
    shape: MessageShape,
    body: Bytes,
    window: u64,
    limit: u64,
    tally: Arc<Tally>,
    requests: mpsc::Sender<PushStreamRequest>,
    replies: Streaming<PushStreamResponse>,
    turn: usize,
    published: u64,
    confirmed: u64,
    /// When each request was sent that is not confirmed yet.
    sent: VecDeque<Instant>,
    nanos: Histogram<u64>,
}

impl Publisher {
    pub(super) fn open(
        line: Line,
        shape: &MessageShape,
        window: u32,
        limit: Option<u64>,
        tally: Arc<Tally>,
    ) -> anyhow::Result<Self> {
        let (requests, stream) = mpsc::channel(REQUESTS);
        let replies = line.block_on(line.client.messages().push_stream(ReceiverStream::new(stream)))?;
        let push = Push {
            body: Bytes::from(vec![b'x'; shape.body_bytes]),
            shape: shape.clone(),
            window: if window == 0 { WINDOW } else { u64::from(window) },
            limit: limit.unwrap_or(u64::MAX),
            tally,
            requests,
            replies: replies.into_inner(),
            turn: 0,
            published: 0,
            confirmed: 0,
            sent: VecDeque::new(),
            nanos: percentiles::nanos(),
        };
        Ok(Self { line, push })
    }
}

impl Publish for Publisher {
    fn run(self: Box<Self>, stop: &AtomicBool) -> anyhow::Result<Option<Histogram<u64>>> {
        let Self { line, mut push } = *self;
        line.block_on(push.run(stop))?;
        Ok(Some(push.nanos))
    }
}

impl Push {
    async fn send(&mut self, count: u64) -> anyhow::Result<()> {
        let sequence = self.published + count;
        let keys = &self.shape.routing_keys;
        let queue = keys[self.turn % keys.len()].clone();
        self.turn += 1;
        let messages =
            (self.published..sequence).map(|index| message(&self.shape, &self.body, index)).collect();
        self.sent.push_back(Instant::now());
        let request = PushStreamRequest { sequence, queue, messages, ..Default::default() };
        self.requests.send(request).await.context("the broker ended the stream")?;
        self.published = sequence;
        self.tally.published.set(self.published);
        Ok(())
    }

    async fn await_confirms(&mut self) -> anyhow::Result<()> {
        let Some(reply) = self.replies.message().await? else { bail!("the broker ended the stream") };
        self.confirmed += confirmed(&reply)?;
        let now = Instant::now();
        for confirm in &reply.confirms {
            if let Some(sent) = self.sent.pop_front() {
                percentiles::note(&mut self.nanos, now - sent, confirm.results.len() as u64);
            }
        }
        self.tally.confirmed.set(self.confirmed);
        Ok(())
    }

    async fn run(&mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        while self.published < self.limit && !stop.load(Ordering::Relaxed) {
            let room = self.window - (self.published - self.confirmed);
            if room == 0 {
                self.await_confirms().await?;
            } else {
                self.send(room.min(BATCH_MAX).min(self.limit - self.published)).await?;
            }
        }
        while self.confirmed < self.published {
            self.await_confirms().await?;
        }
        Ok(())
    }
}

/// How many messages a reply confirms; an error if it refuses one.
pub(super) fn confirmed(reply: &PushStreamResponse) -> anyhow::Result<u64> {
    let mut count = 0;
    for confirm in &reply.confirms {
        if let Some(error) = &confirm.error {
            bail!("the broker refused a push: {}", error.message);
        }
        count += accepted(&confirm.results)?;
    }
    Ok(count)
}

/// How many messages these results are for; an error if one was refused.
pub(crate) fn accepted(results: &[PushResult]) -> anyhow::Result<u64> {
    for result in results {
        match &result.outcome {
            Some(Outcome::Pushed(_)) => {}
            Some(Outcome::Error(error)) => bail!("the broker refused a message: {}", error.message),
            None => bail!("the broker sent no outcome"),
        }
    }
    Ok(results.len() as u64)
}
