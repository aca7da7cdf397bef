//! Workers that are late: they say something about a message whose lease has ended, and which somebody else may have been
//! given since.

use std::collections::BTreeMap;

use nexo_core::queue::{PastDelivery, ReturnCause, Standing, Verdict};
use nexo_types::{Millis, QueueId, limits};

use crate::broker::Broker;
use crate::commit::Confirm;
use crate::error::SettleError;
use crate::handle::QueueHandle;
use crate::receipt::Receipt;

impl Broker {
    /// Says that messages are done, as [`Self::ack`] does, with the receipt of any of their deliveries: a message is done
    /// as well if its lease has ended, and if it is with another consumer.
    pub async fn ack_even_late(&self, receipts: &[Receipt]) -> Vec<Result<(), SettleError>> {
        let past = by_queue(receipts);
        let acked = self.settle(receipts, Confirm::AsQueue, |state, now, part| {
            let past = past.get(&state.queue.id()).map_or(&[][..], Vec::as_slice);
            let standings: Vec<Standing> = past.iter().map(|past| state.queue.standing(past)).collect();
            let mut verdict = state.queue.decide_ack(now, &current(part, &standings));
            let waiting: Vec<usize> = waiting(&standings).collect();
            let late: Vec<PastDelivery> = waiting.iter().map(|index| past[*index]).collect();
            if !late.is_empty() {
                let more = state.queue.decide_late_ack(now, &late);
                for (index, answer) in waiting.into_iter().zip(more.answers) {
                    verdict.answers[index] = answer;
                }
                verdict.records.extend(more.records);
                verdict.durable |= more.durable;
            }
            (verdict, Vec::new())
        });
        self.counting_acks(acked.await)
    }

    /// Keeps messages for `visibility` from now, or gives them back if that is no time at all, with the receipt of any of
    /// their deliveries. A message that waits to be delivered again is left as it is.
    pub async fn change_even_late(
        &self,
        receipts: &[Receipt],
        visibility: Millis,
    ) -> Vec<Result<(), SettleError>> {
        if visibility > limits::VISIBILITY_MAX {
            let (max, value) = (limits::VISIBILITY_MAX.0, visibility.0);
            let error = SettleError::TimeTooLong { field: "visibility_ms", max, value };
            return vec![Err(error); receipts.len()];
        }
        let past = by_queue(receipts);
        self.settle(receipts, Confirm::AsQueue, |state, now, part| {
            let past = past.get(&state.queue.id()).map_or(&[][..], Vec::as_slice);
            let standings: Vec<Standing> = past.iter().map(|past| state.queue.standing(past)).collect();
            let held = current(part, &standings);
            let (mut verdict, deaths) = if visibility == Millis::ZERO {
                let cause = ReturnCause::Nack(Some(Millis::ZERO));
                let (answers, plan) = state.queue.decide_return(now, &held, cause);
                (Verdict { answers, records: plan.records, durable: plan.durable }, plan.deaths)
            } else {
                let Verdict { answers, records, durable } = state.queue.decide_extend(now, &held, visibility);
                let answers = answers.into_iter().map(|answer| answer.map(|_until| ())).collect();
                (Verdict { answers, records, durable }, Vec::new())
            };
            for index in waiting(&standings) {
                verdict.answers[index] = Ok(());
            }
            (verdict, deaths)
        })
        .await
    }
}

impl QueueHandle {
    /// Whether a message that was delivered waits to be delivered again.
    #[must_use]
    pub fn has_returned(&self, receipt: &Receipt) -> bool {
        receipt.queue == self.id()
            && self.cell.state.lock().queue.standing(&past(receipt)) == Standing::Waiting
    }
}

/// Deliveries by queue, in their order.
fn by_queue(receipts: &[Receipt]) -> BTreeMap<QueueId, Vec<PastDelivery>> {
    let mut by_queue: BTreeMap<QueueId, Vec<PastDelivery>> = BTreeMap::new();
    for receipt in receipts {
        by_queue.entry(receipt.queue).or_default().push(past(receipt));
    }
    by_queue
}

const fn past(receipt: &Receipt) -> PastDelivery {
    PastDelivery { offset: receipt.offset, attempt: receipt.attempt, granted_at: receipt.granted_at }
}

/// The attempts as which the messages are with consumers now.
fn current(part: &[(nexo_types::Offset, u32)], standings: &[Standing]) -> Vec<(nexo_types::Offset, u32)> {
    let now = |((offset, attempt), standing): (&(nexo_types::Offset, u32), &Standing)| match standing {
        Standing::Leased { attempt } => (*offset, *attempt),
        Standing::Waiting | Standing::Gone => (*offset, *attempt),
    };
    part.iter().zip(standings).map(now).collect()
}

fn waiting(standings: &[Standing]) -> impl Iterator<Item = usize> + '_ {
    let waits = |(_, standing): &(usize, &Standing)| **standing == Standing::Waiting;
    standings.iter().enumerate().filter(waits).map(|(index, _)| index)
}
