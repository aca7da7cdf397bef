//! A consumer, which has two connections: while one waits for messages, the other deletes those that came before. What
//! was deleted counts as consumed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::bail;

use super::SqsUrl;
use super::answers::{Message, Received, all_taken};
use super::connection::{AnswerSize, Connection};
use super::requests::{BATCH_MAX, Request, mark_of};
use crate::protocol::{Consume, Look};
use crate::tally::Tally;
use crate::work::{Ack, Seen, Wants};

/// How long a receive waits for messages. Short, because an endpoint may go on waiting when a load has ended.
const WAIT_SECONDS: u16 = 1;

/// Two connections that consume.
pub(super) struct Consumer {
    receiving: Connection,
    receive: Request,
    deletes: Deletes,
    tally: Arc<Tally>,
}

/// What deletes messages.
struct Deletes {
    url: SqsUrl,
    queue_url: String,
    connection: Connection,
    /// How many messages one request deletes at most.
    every: usize,
    /// Messages that a request which is on its way deletes.
    on_its_way: Option<u64>,
    seen: Seen,
}

impl Consumer {
    pub(super) fn open(url: &SqsUrl, wants: &Wants, tally: Arc<Tally>) -> anyhow::Result<Self> {
        let [queue] = wants.queues.as_slice() else {
            bail!("over SQS a consumer waits at one queue; --consumers must be at least --queues");
        };
        let every = match wants.ack {
            Ack::Auto => BATCH_MAX,
            Ack::Every(every @ 1..=BATCH_MAX) => every,
            Ack::Every(_) => {
                bail!(
                    "over SQS one request deletes at most {BATCH_MAX} messages; --ack must be auto or up to that"
                )
            }
        };
        let mut connection = Connection::open(url, AnswerSize::Small)?;
        let queue_url = url.queue_url(&mut connection, queue)?;
        Ok(Self {
            receiving: Connection::open(url, AnswerSize::Large)?,
            receive: Request::receive(url, &queue_url, wants.batch, WAIT_SECONDS),
            deletes: Deletes {
                url: url.clone(),
                queue_url,
                connection,
                every: usize::from(every),
                on_its_way: None,
                seen: Seen::default(),
            },
            tally,
        })
    }

    /// Waits until there is an answer, and takes it; gives up if told to stop.
    fn receive(&mut self, stop: &AtomicBool, look: &mut Look<'_>) -> anyhow::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            if let Some(answer) = self.receiving.read(self.receive.action())? {
                let now = Instant::now();
                let body = self.receiving.body(&answer);
                let messages = Received::parse(&body)?;
                if let Some(look) = look {
                    for mark in messages.iter().filter_map(|message| mark_of(&message.body)) {
                        look(&mark.to_be_bytes(), now);
                    }
                }
                return self.deletes.delete(&messages, &self.tally);
            }
            // Nothing comes at the moment: time to see what became of the last ones.
            self.deletes.finish(&self.tally)?;
        }
        Ok(())
    }
}

impl Deletes {
    /// Deletes messages; does not wait for the answer to the last request.
    fn delete(&mut self, messages: &[Message<'_>], tally: &Tally) -> anyhow::Result<()> {
        self.seen.redelivered += messages.iter().filter(|message| message.is_redelivered()).count() as u64;
        for some in messages.chunks(self.every) {
            self.finish(tally)?;
            let receipts = some.iter().map(|message| &*message.receipt);
            self.connection.send(&Request::delete_batch(&self.url, &self.queue_url, receipts))?;
            self.on_its_way = Some(some.len() as u64);
        }
        Ok(())
    }

    /// Waits until the messages are deleted.
    fn finish(&mut self, tally: &Tally) -> anyhow::Result<()> {
        const ACTION: &str = "DeleteMessageBatch";
        if let Some(count) = self.on_its_way.take() {
            all_taken(ACTION, count, &self.connection.answer(ACTION)?)?;
            self.seen.consumed += count;
            tally.consumed.set(self.seen.consumed);
        }
        Ok(())
    }
}

impl Consume for Consumer {
    fn run(mut self: Box<Self>, stop: &AtomicBool, mut look: Look<'_>) -> anyhow::Result<Seen> {
        while !stop.load(Ordering::Relaxed) {
            self.receiving.send(&self.receive)?;
            self.receive(stop, &mut look)?;
        }
        self.deletes.finish(&self.tally)?;
        Ok(self.deletes.seen)
    }
}
