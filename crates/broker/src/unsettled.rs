//! What was said about leased messages by somebody who does not wait, and could not be written down: the disk was full, or behind.
//! It is done as soon as there is room, a slice under each hold of the queue's lock.

use std::collections::VecDeque;
use std::sync::Arc;

use nexo_core::rare::Empty;
use nexo_types::{Offset, Protocol};

use crate::commit::{Committed, Confirm};
use crate::error::QueueError;
use crate::handle::{SETTLE_SLICE, decide_settle};
use crate::journal::ProposeError;
use crate::queue_cell::{CellState, QueueCell};
use crate::request::Settle;
use crate::shared::Shared;

/// Slices of what is left to do. Each message is leased, so there are no more of them than messages in flight.
#[derive(Debug, Default)]
pub(crate) struct Unsettled(VecDeque<Slice>);

/// What was said about these messages, and over which protocol.
type Slice = (Vec<(Offset, u32)>, Settle, Option<Protocol>);

impl Empty for Unsettled {
    const EMPTY: &'static Self = &Self(VecDeque::new());
}

impl Unsettled {
    /// Whether there is nothing left to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

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
        let slices = cell.state.lock().unsettled.0.len();
        let mut refused = None;
        for _ in 0..slices {
            match self.with(cell, |state, _| self.settle_slice_again(state))? {
                Ok(Some(error)) => refused = Some(error),
                Ok(None) => {}
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        let Some(error) = refused else { return Ok(()) };
        self.maintenance.note_stuck(cell);
        Err(self.refused_for(&cell.name, &error))
    }

    /// Settles a slice before anything is handed out: what was given back takes its place, and nobody is handed what lies behind it.
    /// `true` if there may be more.
    ///
    /// # Errors
    /// If the disk is behind. On one that is full consumers go on: only what they acknowledge makes room.
    pub(crate) fn settle_kept(&self, state: &mut CellState) -> Result<bool, ProposeError> {
        match self.settle_slice_again(state) {
            Ok(None) => Ok(!state.unsettled.is_empty()),
            Err(ProposeError::Busy) | Ok(Some(ProposeError::Busy)) => Err(ProposeError::Busy),
            Ok(Some(_)) | Err(_) => Ok(false),
        }
    }

    /// Settles one slice. If messages of it cannot become dead letters now, says why: it is put last, since acknowledgements
    /// behind it make room.
    fn settle_slice_again(&self, state: &mut CellState) -> Result<Option<ProposeError>, ProposeError> {
        let Some((held, what, protocol)) = state.unsettled.0.pop_front() else { return Ok(None) };
        let (decided, acked) = decide_settle(&state.queue, self.clock.now(), &held, what);
        match self.commit_verdict(state, &decided.records, decided.durable, Confirm::Lazily) {
            Ok(Committed { deaths_refused: None, .. }) => {
                self.count(protocol, |traffic| traffic.acked(acked));
                Ok(None)
            }
            Ok(Committed { deaths_refused, .. }) => {
                state.unsettled.0.push_back((held, what, protocol));
                Ok(deaths_refused)
            }
            Err(error) => {
                state.unsettled.0.push_front((held, what, protocol));
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nexo_core::config::QueueConfig;
    use nexo_core::message::NewMessage;
    use nexo_core::queue::{LeaseTerms, Terms};
    use nexo_core::record::Record;
    use nexo_log::disk::{FaultyDisk, MemoryDisk};
    use nexo_log::{Claim, Patience, Urgency};
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
            assert!(broker.shared.settle_slice_again(&mut state).unwrap().is_none());
            (!state.unsettled.0.is_empty(), state.queue.in_flight())
        };
        assert_eq!(settle_slice(), (true, SETTLE_SLICE + 1));
        assert_eq!(settle_slice(), (true, 1));
        cell.state.lock().unsettled.keep(&held[..1], Settle::Ack, None);
        broker.shared.settle_again(&cell).unwrap();
        assert_eq!(settle_slice(), (false, 0));
        broker.shutdown().await;
    }
    /// After a restart on a full disk, messages of the connections there were are not lost.
    #[tokio::test]
    async fn what_sessions_held_comes_back_when_there_is_room_for_that() {
        let disk = FaultyDisk::new();
        let options = BrokerOptions { segment_bytes: 256 * 1024, ..BrokerOptions::new("faulty") };
        let broker = Broker::open_on(Arc::new(disk.clone()), options).unwrap();
        let name = QueueName::new("q").unwrap();
        broker.create_queue(&name, QueueConfig::default()).await.unwrap();
        let filling = QueueName::new("filling").unwrap();
        broker.create_queue(&filling, QueueConfig::default()).await.unwrap();
        broker.push(&name, vec![NewMessage::new("held")]).await.unwrap();
        let queue = broker.queue(&name).unwrap();
        let terms = Terms { lease: LeaseTerms::Session, ..Terms::default() };
        let consumer = queue.subscribe(terms, 1, None, Arc::default()).unwrap();
        assert_eq!(consumer.take_handed().len(), 1);
        drop(consumer);
        let cell = broker.shared.catalog.get(&name).unwrap();
        let filling = broker.shared.catalog.get(&filling).unwrap();
        disk.set_bytes_max(Some(disk.used_bytes()));
        let fill = || {
            let mut state = filling.state.lock();
            let record = Record::Purge { before: Offset(0), at: broker.shared.clock.now() };
            let (claim, patience) = (Claim::Reserved, Patience::Wait);
            broker.shared.commit(&mut state, &[record], Urgency::Lazy, claim, patience).is_ok()
        };
        while fill() {}
        broker.shared.end_sessions(&cell);
        assert_eq!((queue.in_flight(), queue.counts().0), (1, 0), "it cannot be written down");
        disk.set_bytes_max(None);
        for _ in 0..2000 {
            if queue.in_flight() == 0 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!((queue.in_flight(), queue.counts().0), (0, 1));
        broker.shutdown().await;
    }
}
