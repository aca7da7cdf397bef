//! Saying something about messages that were received: done, or to be kept for another while.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use nexo_broker::{Receipt, SettleError};
use nexo_types::Millis;

use super::access::Need;
use super::{Context, Queue, Service, batch, required};
use crate::fault::{Fault, FaultCode};
use crate::receipt_handle;
use crate::request::*;
use crate::response::{Response, SettledEntry};

/// A lease that is to end at another moment.
#[derive(Clone, Copy, Debug)]
struct Change {
    receipt: Receipt,
    visibility: Millis,
}

impl Service {
    pub(super) async fn delete_message(
        &self,
        context: &Context,
        request: DeleteMessage<'_>,
    ) -> Result<Response, Fault> {
        let queue = self.queue(context, request.queue_url.as_ref(), Need::Read)?;
        let handle = required(request.receipt_handle, "ReceiptHandle")?;
        let receipt = queue.receipt(&handle)?;
        self.delete(&queue, vec![Ok(receipt)]).await.into_iter().collect::<Result<(), Fault>>()?;
        Ok(Response::Done)
    }

    pub(super) async fn delete_message_batch(
        &self,
        context: &Context,
        request: DeleteMessageBatch<'_>,
    ) -> Result<Response, Fault> {
        let queue = self.queue(context, request.queue_url.as_ref(), Need::Read)?;
        let entries = request.entries.ok_or_else(|| Fault::missing("Entries"))?;
        let ids = batch::check_ids(&entries, "DeleteMessageBatchRequestEntry", |entry| entry.id.as_ref())?;
        let receipts = entries.iter().map(|entry| {
            let handle = entry.receipt_handle.as_ref().ok_or_else(|| Fault::missing("ReceiptHandle"))?;
            queue.receipt(handle)
        });
        let outcomes = self.delete(&queue, receipts.collect()).await;
        Ok(Response::SettledBatch(batch::sort(ids, outcomes, |id, ()| SettledEntry { id })))
    }

    /// Deletes messages. One that is gone already is as deleted as can be.
    async fn delete(&self, queue: &Queue, receipts: Vec<Result<Receipt, Fault>>) -> Vec<Result<(), Fault>> {
        let right: Vec<Receipt> = receipts.iter().flatten().copied().collect();
        // In a FIFO queue a message that came back may not be deleted by who was late: its group goes on from it.
        let answers = if queue.is_fifo() {
            self.broker.ack(&right).await
        } else {
            self.broker.ack_even_late(&right).await
        };
        let mut answers = answers.into_iter();
        let outcome = |receipt: Result<Receipt, Fault>| {
            let receipt = receipt?;
            match answers.next() {
                None | Some(Ok(())) => Ok(()),
                Some(Err(error)) => queue.delete_refused(&receipt, error),
            }
        };
        receipts.into_iter().map(outcome).collect()
    }

    pub(super) async fn change_message_visibility(
        &self,
        context: &Context,
        request: ChangeMessageVisibility<'_>,
    ) -> Result<Response, Fault> {
        let queue = self.queue(context, request.queue_url.as_ref(), Need::Read)?;
        let handle = required(request.receipt_handle, "ReceiptHandle")?;
        let change = self.change_of(&queue, &handle, request.visibility_timeout)?;
        self.change(&queue, vec![Ok(change)]).await.into_iter().collect::<Result<(), Fault>>()?;
        Ok(Response::Done)
    }

    pub(super) async fn change_message_visibility_batch(
        &self,
        context: &Context,
        request: ChangeMessageVisibilityBatch<'_>,
    ) -> Result<Response, Fault> {
        let queue = self.queue(context, request.queue_url.as_ref(), Need::Read)?;
        let entries = request.entries.ok_or_else(|| Fault::missing("Entries"))?;
        let name = "ChangeMessageVisibilityBatchRequestEntry";
        let ids = batch::check_ids(&entries, name, |entry| entry.id.as_ref())?;
        let changes = entries.iter().map(|entry| {
            let handle = entry.receipt_handle.as_ref().ok_or_else(|| Fault::missing("ReceiptHandle"))?;
            self.change_of(&queue, handle, entry.visibility_timeout)
        });
        let outcomes = self.change(&queue, changes.collect()).await;
        Ok(Response::SettledBatch(batch::sort(ids, outcomes, |id, ()| SettledEntry { id })))
    }

    fn change_of(&self, queue: &Queue, handle: &str, timeout: Option<i64>) -> Result<Change, Fault> {
        let timeout = timeout.ok_or_else(|| Fault::missing("VisibilityTimeout"))?;
        let max = self.limits().visibility_s;
        let wrong = |reason: &str| Fault::value("VisibilityTimeout", &timeout.to_string(), reason);
        let seconds = u64::try_from(timeout).ok().filter(|seconds| *seconds <= max);
        let seconds = seconds.ok_or_else(|| wrong(&format!("Must be between 0 and {max}, if provided.")))?;
        let receipt = queue.receipt(handle)?;
        let visibility = Millis::from_secs(seconds);
        // AWS counts from the receive, however often the lease is extended. By the broker's clock, which the receipt's
        // time is from: the system's may have been set since.
        let end = receipt.granted_at.plus(Millis::from_secs(max));
        if self.limits().is_strict() && self.broker.now().plus(visibility) > end {
            return Err(wrong(&format!(
                "Total VisibilityTimeout for the message is beyond the limit [{max} seconds]."
            )));
        }
        Ok(Change { receipt, visibility })
    }

    /// Changes when leases end: one call to the broker for each length, all at once.
    async fn change(&self, queue: &Queue, changes: Vec<Result<Change, Fault>>) -> Vec<Result<(), Fault>> {
        let mut by_length: BTreeMap<Millis, Vec<usize>> = BTreeMap::new();
        for (index, change) in changes.iter().enumerate() {
            if let Ok(change) = change {
                by_length.entry(change.visibility).or_default().push(index);
            }
        }
        let calls = by_length.into_iter().map(|(length, indices)| {
            let receipts: Vec<Receipt> =
                indices.iter().filter_map(|index| Some(changes[*index].as_ref().ok()?.receipt)).collect();
            async move { (indices, self.change_to(queue, &receipts, length).await) }
        });
        let mut outcomes: Vec<Result<(), Fault>> =
            changes.iter().map(|change| change.as_ref().map(|_| ()).map_err(Clone::clone)).collect();
        for (indices, answers) in join_all(calls).await {
            for (index, answer) in indices.into_iter().zip(answers) {
                if let (Err(error), Ok(change)) = (answer, &changes[index]) {
                    outcomes[index] = queue.change_refused(&change.receipt, error);
                }
            }
        }
        outcomes
    }

    /// Has leases end after this time. In a standard queue any receipt of a message will do; in a FIFO queue only that of
    /// its last delivery, because its group goes on from there.
    async fn change_to(
        &self,
        queue: &Queue,
        receipts: &[Receipt],
        length: Millis,
    ) -> Vec<Result<(), SettleError>> {
        if !queue.is_fifo() {
            return self.broker.change_even_late(receipts, length).await;
        }
        if length == Millis::ZERO {
            return self.broker.nack(receipts, Some(Millis::ZERO)).await;
        }
        let extended = self.broker.extend(receipts, length).await;
        extended.into_iter().map(|answer| answer.map(|_until| ())).collect()
    }
}

impl Queue {
    /// The receipt of a handle that this queue gave.
    fn receipt(&self, handle: &str) -> Result<Receipt, Fault> {
        let receipt = receipt_handle::decode(handle)?;
        if receipt.queue != self.handle.id() {
            return Err(receipt_handle::invalid(handle));
        }
        Ok(receipt)
    }

    /// What to say if a message could not be deleted.
    fn delete_refused(&self, receipt: &Receipt, error: SettleError) -> Result<(), Fault> {
        let expired = || {
            let handle = receipt_handle::encode(receipt);
            Err(Fault::value("ReceiptHandle", &handle, "The receipt handle has expired."))
        };
        match error {
            SettleError::QueueGone { .. } => Err(Fault::no_such_queue()),
            SettleError::Unavailable { reason } => Err(Fault::new(FaultCode::ServiceUnavailable, reason)),
            SettleError::Stale { .. } if self.is_fifo() => expired(),
            SettleError::NotLeased { .. } if self.is_fifo() && self.handle.has_returned(receipt) => expired(),
            SettleError::Stale { .. }
            | SettleError::NotLeased { .. }
            | SettleError::Unknown { .. }
            | SettleError::AlreadyReceived { .. }
            | SettleError::TimeTooLong { .. } => Ok(()),
        }
    }

    /// What to say if a lease could not be changed.
    fn change_refused(&self, receipt: &Receipt, error: SettleError) -> Result<(), Fault> {
        match error {
            SettleError::QueueGone { .. } => Err(Fault::no_such_queue()),
            SettleError::Unavailable { reason } => Err(Fault::new(FaultCode::ServiceUnavailable, reason)),
            // AWS says that all is well while the message is there, and leaves it visible.
            SettleError::NotLeased { .. } if self.handle.has_returned(receipt) => Ok(()),
            SettleError::TimeTooLong { .. } => Err(Fault::invalid(error.to_string())),
            SettleError::NotLeased { .. }
            | SettleError::Stale { .. }
            | SettleError::Unknown { .. }
            | SettleError::AlreadyReceived { .. } => Err(Fault::value(
                "ReceiptHandle",
                &receipt_handle::encode(receipt),
                "Message does not exist or is not available for visibility timeout change.",
            )),
        }
    }
}
