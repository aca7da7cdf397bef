//! Sending: one message or ten, with one wait for the disk.

use bytes::Bytes;
use nexo_broker::PushError;

use super::access::Need;
use super::{Context, Queue, Service, batch};
use crate::fault::{Fault, FaultCode};
use crate::ids::{hex, message_id, sequence_number};
use crate::md5_lanes;
use crate::message::{self, Outgoing};
use crate::request::{SendEntry, SendMessage, SendMessageBatch};
use crate::response::{Response, Sent, SentEntry};

impl Service {
    pub(super) async fn send_message(
        &self,
        context: &Context,
        request: SendMessage<'_>,
    ) -> Result<Response, Fault> {
        let queue = self.queue(context, request.queue_url.as_ref(), Need::Write)?;
        let outgoing = message::outgoing(
            request.into_entry(),
            &queue.settings,
            self.limits(),
            context.trace.as_deref(),
        )?;
        let sent = self.send(&queue, vec![Ok(outgoing)]).await?.pop();
        sent.unwrap_or_else(|| Err(Fault::new(FaultCode::ServiceUnavailable, "The message was not taken.")))
            .map(Response::Sent)
    }

    pub(super) async fn send_message_batch(
        &self,
        context: &Context,
        request: SendMessageBatch<'_>,
    ) -> Result<Response, Fault> {
        let queue = self.queue(context, request.queue_url.as_ref(), Need::Write)?;
        let entries = request.entries.ok_or_else(|| Fault::missing("Entries"))?;
        let ids = batch::check_ids(&entries, "SendMessageBatchRequestEntry", |entry| entry.id.as_ref())?;
        if let Some(fifo) = &queue.settings.fifo {
            message::check_fifo_batch(&entries, fifo)?;
        }
        let limits = self.limits();
        let bytes: u64 = entries.iter().map(message::bytes_of).sum();
        if bytes > limits.message_bytes {
            let max = limits.message_bytes;
            return Err(Fault::new(
                FaultCode::BatchRequestTooLong,
                format!("Batch requests cannot be longer than {max} bytes. You have sent {bytes} bytes."),
            ));
        }
        let trace = context.trace.as_deref();
        let checked = |entry: SendEntry<'_>| message::outgoing(entry, &queue.settings, limits, trace);
        let outgoing: Vec<Result<Outgoing, Fault>> = entries.into_iter().map(checked).collect();
        let sent = self.send(&queue, outgoing).await?;
        Ok(Response::SentBatch(batch::sort(ids, sent, |id, sent| SentEntry { id, sent }).into()))
    }

    /// Pushes those messages that are right, in one go. Answers come in the order of the messages.
    async fn send(
        &self,
        queue: &Queue,
        outgoing: Vec<Result<Outgoing, Fault>>,
    ) -> Result<Vec<Result<Sent, Fault>>, Fault> {
        let source = queue.source();
        let mut messages = Vec::with_capacity(outgoing.len());
        let mut answers = Vec::with_capacity(outgoing.len());
        for one in outgoing {
            answers.push(one.map(|one| {
                messages.push(one.message);
                Sent {
                    message_id: String::new(),
                    md5_of_body: String::new(),
                    md5_of_attributes: one.md5_of_attributes,
                    md5_of_system_attributes: one.md5_of_system_attributes,
                    sequence_number: None,
                }
            }));
        }
        if messages.is_empty() {
            return Ok(answers);
        }
        let bodies: Vec<Bytes> = messages.iter().map(|message| message.body.clone()).collect();
        // The digests are made while the disk syncs.
        let (pushed, digests) = tokio::join!(biased; self.broker.push(queue.name(), messages), async {
            md5_lanes::digests(&bodies.iter().map(|body| &**body).collect::<Vec<&[u8]>>())
        });
        let (mut pushed, mut digests) = (pushed?.into_iter(), digests.into_iter());
        let told = answers.into_iter().map(|answer| {
            let mut sent = answer?;
            sent.md5_of_body = digests.next().map(|digest| hex(&digest)).unwrap_or_default();
            match pushed.next() {
                Some(Ok(pushed)) => {
                    // A repetition is told what the first was told.
                    sent.message_id = message_id(source.id, source.created_at, pushed.offset);
                    sent.sequence_number = source.is_fifo.then(|| sequence_number(pushed.offset));
                    Ok(sent)
                }
                Some(Err(error)) => Err(push_fault(error)),
                None => Err(Fault::new(FaultCode::ServiceUnavailable, "The message was not taken.")),
            }
        });
        Ok(told.collect())
    }
}

fn push_fault(error: PushError) -> Fault {
    match error {
        PushError::Full { .. } => Fault::new(FaultCode::OverLimit, error.to_string()),
        PushError::BodyTooLarge { .. } | PushError::TimeTooLong { .. } => Fault::invalid(error.to_string()),
        PushError::Unavailable { reason } => Fault::new(FaultCode::ServiceUnavailable, reason),
    }
}
