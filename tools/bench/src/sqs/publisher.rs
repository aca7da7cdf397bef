//! A publisher: one batch after the other, each answered before the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hdrhistogram::Histogram;

use super::SqsUrl;
use super::answers::all_taken;
use super::connection::{AnswerSize, Connection};
use super::requests::Request;
use crate::percentiles;
use crate::protocol::Publish;
use crate::tally::Tally;
use crate::work::MessageShape;

/// A connection that publishes.
pub(super) struct Publisher {
    url: SqsUrl,
    connection: Connection,
    /// The address of each queue, and a batch for it.
    batches: Vec<(String, Request)>,
    batch: u64,
    body_bytes: usize,
    limit: u64,
    tally: Arc<Tally>,
}

impl Publisher {
    pub(super) fn open(
        url: &SqsUrl,
        shape: &MessageShape,
        limit: Option<u64>,
        tally: Arc<Tally>,
    ) -> anyhow::Result<Self> {
        let mut connection = Connection::open(url, AnswerSize::Small)?;
        let mut batches = Vec::new();
        for queue in &shape.routing_keys {
            let queue_url = url.queue_url(&mut connection, queue)?;
            let batch = Request::send_batch(url, &queue_url, shape.batch, shape.body_bytes);
            batches.push((queue_url, batch));
        }
        Ok(Self {
            url: url.clone(),
            connection,
            batches,
            batch: u64::from(shape.batch),
            body_bytes: shape.body_bytes,
            limit: limit.unwrap_or(u64::MAX),
            tally,
        })
    }

    /// Sends one batch and waits until the endpoint has it.
    fn publish(&mut self, turn: usize, count: u64) -> anyhow::Result<()> {
        let (queue_url, batch) = &self.batches[turn];
        let body = if count == self.batch {
            self.connection.call(batch)?
        } else {
            let count = u16::try_from(count)?;
            self.connection.call(&Request::send_batch(&self.url, queue_url, count, self.body_bytes))?
        };
        all_taken("SendMessageBatch", count, &body)
    }
}

impl Publish for Publisher {
    fn run(mut self: Box<Self>, stop: &AtomicBool) -> anyhow::Result<Option<Histogram<u64>>> {
        let mut nanos = percentiles::nanos();
        let (mut confirmed, mut turn) = (0, 0);
        while confirmed < self.limit && !stop.load(Ordering::Relaxed) {
            let count = self.batch.min(self.limit - confirmed);
            self.tally.published.set(confirmed + count);
            let began = Instant::now();
            self.publish(turn, count)?;
            percentiles::note(&mut nanos, began.elapsed(), count);
            confirmed += count;
            self.tally.confirmed.set(confirmed);
            turn = (turn + 1) % self.batches.len();
        }
        Ok(Some(nanos))
    }
}
