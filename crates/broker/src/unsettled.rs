//! What was said about leased messages by somebody who does not wait, and could not be written down: the disk was full, or behind.
//! It is done as soon as there is room, a slice under each hold of the queue's lock.

use std::collections::VecDeque;
use std::sync::Arc;

use nexo_core::rare::Empty;
use nexo_types::Offset;

use crate::commit::Confirm;
use crate::error::QueueError;
use crate::handle::{SETTLE_SLICE, decide_settle};
use crate::journal::ProposeError;
use crate::queue_cell::{CellState, QueueCell};
use crate::request::Settle;
use crate::shared::Shared;
use crate::traffic::Protocol;

/// Slices of what is left to do. Each message is leased, so there are no more of them than messages in flight.
#[derive(Debug, Default)]
pub(crate) struct Unsettled(VecDeque<Slice>);

/// What was said about these messages, and over which protocol.
type Slice = (Vec<(Offset, u32)>, Settle, Option<Protocol>);

impl Empty for Unsettled {
    const EMPTY: &'static Self = &Self(VecDeque::new());
}

impl Unsettled {
    /// Keeps what was said about these messages, and over which protocol.
    pub(crate) fn keep(&mut self, held: &[(Offset, u32)], what: Settle, protocol: Option<Protocol>) {
        self.0.extend(held.chunks(SETTLE_SLICE).map(|slice| (slice.to_vec(), what, protocol)));
    }
}

impl Shared {
    /// Settles what could not be settled before. Messages that are dead because of it are marked.
    ///
    /// # Errors
    /// If the queue is gone, or there is no room. What could not be written down is left, and maintenance tries again.
    pub(crate) fn settle_again(self: &Arc<Self>, cell: &Arc<QueueCell>) -> Result<(), QueueError> {
        loop {
            match self.with(cell, |state, _| self.settle_slice_again(state))? {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    self.maintenance.note_stuck(cell);
                    return Err(self.refused_for(&cell.name, &error));
                }
            }
        }
    }

    /// Settles one slice, and says whether more is left.
    fn settle_slice_again(&self, state: &mut CellState) -> Result<bool, ProposeError> {
        let Some((held, what, protocol)) = state.unsettled.0.pop_front() else { return Ok(false) };
        let (decided, acked) = decide_settle(&state.queue, self.clock.now(), &held, what);
        if let Err(error) = self.commit_verdict(state, &decided.records, decided.durable, Confirm::Lazily) {
            state.unsettled.0.push_front((held, what, protocol));
            return Err(error);
        }
        self.count(protocol, |traffic| traffic.acked(acked));
        Ok(!state.unsettled.0.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use nexo_core::config::QueueConfig;
    use nexo_core::message::NewMessage;
    use nexo_log::disk::MemoryDisk;
    use nexo_types::{Millis, QueueName};

    use super::*;
    use crate::broker::Broker;
    use crate::options::BrokerOptions;
    use crate::request::PopRequest;

    #[tokio::test]
    async fn what_was_kept_is_settled_a_slice_at_a_time() {
        let broker = Broker::open_on(Arc::new(MemoryDisk::new()), BrokerOptions::new("memory")).unwrap();
        let queue = QueueName::new("q").unwrap();
        broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
        let count = 2 * SETTLE_SLICE + 1;
        broker.push(&queue, vec![NewMessage::new("x"); count]).await.unwrap();
        let request = PopRequest { max: count, wait: Millis::ZERO, visibility: None, bytes_max: None };
        let held = broker.pop(&queue, request).await.unwrap();
        let held: Vec<(Offset, u32)> = held.iter().map(|one| (one.offset, one.attempt)).collect();
        let cell = broker.shared.catalog.get(&queue).unwrap();
        cell.state.lock().unsettled.keep(&held, Settle::Ack, None);
        let settle_slice = || {
            let mut state = cell.state.lock();
            let more = broker.shared.settle_slice_again(&mut state).unwrap();
            (more, state.queue.in_flight())
        };
        assert_eq!(settle_slice(), (true, SETTLE_SLICE + 1));
        assert_eq!(settle_slice(), (true, 1));
        cell.state.lock().unsettled.keep(&held[..1], Settle::Ack, None);
        broker.shared.settle_again(&cell).unwrap();
        assert_eq!(settle_slice(), (false, 0));
        broker.shutdown().await;
    }
}
