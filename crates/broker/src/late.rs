//! Workers that are late: done with a message whose lease has ended.

use std::collections::BTreeMap;

use nexo_core::queue::{LeaseError, PastDelivery};
use nexo_types::{Offset, QueueId, Timestamp};

use crate::broker::Broker;
use crate::error::SettleError;
use crate::handle::QueueHandle;
use crate::receipt::Receipt;
use crate::shared::Confirm;

impl Broker {
    /// Says that messages are done, as [`Self::ack`] does. One whose lease has ended is done as well, as long as nobody
    /// has been given it since.
    pub async fn ack_even_late(&self, receipts: &[Receipt]) -> Vec<Result<(), SettleError>> {
        let granted: BTreeMap<(QueueId, Offset, u32), Timestamp> = receipts
            .iter()
            .map(|receipt| ((receipt.queue, receipt.offset, receipt.attempt), receipt.granted_at))
            .collect();
        let acked = self.settle(receipts, Confirm::AsQueue, |state, now, part| {
            let mut verdict = state.queue.decide_ack(now, part);
            let ended = |answer: &Result<(), LeaseError>| matches!(answer, Err(LeaseError::NotLeased));
            let late: Vec<usize> = (0..part.len()).filter(|index| ended(&verdict.answers[*index])).collect();
            let past: Vec<PastDelivery> = late
                .iter()
                .filter_map(|index| {
                    let (offset, attempt) = part[*index];
                    let granted_at = *granted.get(&(state.queue.id(), offset, attempt))?;
                    Some(PastDelivery { offset, attempt, granted_at })
                })
                .collect();
            if past.len() == late.len() && !past.is_empty() {
                let more = state.queue.decide_late_ack(now, &past);
                for (index, answer) in late.into_iter().zip(more.answers) {
                    verdict.answers[index] = answer;
                }
                verdict.records.extend(more.records);
                verdict.durable |= more.durable;
            }
            (verdict, Vec::new())
        });
        self.counting_acks(acked.await)
    }
}

impl QueueHandle {
    /// Whether a message that was delivered waits to be delivered again, and has not been since.
    #[must_use]
    pub fn has_returned(&self, receipt: &Receipt) -> bool {
        let past =
            PastDelivery { offset: receipt.offset, attempt: receipt.attempt, granted_at: receipt.granted_at };
        receipt.queue == self.id() && self.slot.state.lock().queue.has_returned(&past)
    }
}
