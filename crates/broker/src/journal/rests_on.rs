//! What an answer, or a delivery, rests on: it may not go out before that is safe.
//!
//! The log of one node only loses what it has with the whole process, so there only changes themselves are waited for, as
//! their queue promises. A journal that can lose what was proposed while the broker goes on needs more: nobody may see what
//! is lost later. So whatever is said of a queue waits for all that its state rests on.

use std::sync::Arc;

use nexo_core::message::StoredMessage;
use nexo_core::queue::Handed;
use nexo_log::Urgency;

use super::{Proposed, Written};
use crate::commit::Confirm;
use crate::error::QueueError;
use crate::queue_cell::{CellState, QueueCell};
use crate::shared::Shared;

impl Shared {
    /// Records of this queue were proposed.
    pub(crate) fn note_proposed(&self, state: &mut CellState, proposed: Proposed) {
        state.dirty = true;
        if !self.journal.releases_early() {
            state.last_change = state.last_change.and(proposed.written.with(Urgency::Synced));
        }
    }

    /// Everything that was proposed so far, if it can be lost. Whoever is told something that was looked up without a
    /// queue's lock waits for this as it was before the look *and* as it is after it: a loss may lie between.
    pub(crate) fn all_that_can_be_lost(&self) -> Written {
        if self.journal.releases_early() { Written::NOTHING } else { self.journal.so_far(Urgency::Synced) }
    }

    /// Waits until what was looked at since `before`, which is all that could be lost then, may be told: it is safe, and this node
    /// served all the while. Otherwise another may serve, and know better.
    ///
    /// # Errors
    /// If some of it is lost, or this node does not serve for certain.
    pub(crate) async fn until_certain(&self, before: Written) -> Result<(), QueueError> {
        if self.journal.releases_early() {
            return Ok(());
        }
        self.wait_for(before.and(self.all_that_can_be_lost())).await?;
        let standing = self.journal.confirm_standing(before).await;
        standing.map_err(|error| QueueError::Unavailable { reason: error.to_string() })
    }

    /// What somebody must wait for who is told something that needs no record, unless nobody waits.
    pub(crate) fn refusal_rests_on(&self, confirm: Confirm, on: impl FnOnce() -> Written) -> Written {
        match confirm {
            Confirm::AsQueue if !self.journal.releases_early() => on(),
            Confirm::AsQueue | Confirm::Lazily => Written::NOTHING,
        }
    }

    /// What messages rest on that are handed out now: their pushes. Otherwise an offset could be given again while
    /// somebody still has a receipt for it. Where the order matters also their leases: whoever gets the next message of a
    /// group must not find that the one before was never given to anybody.
    pub(crate) fn delivery_rests_on(
        &self,
        cell: &Arc<QueueCell>,
        state: &CellState,
        messages: &[Handed],
    ) -> Written {
        if self.journal.releases_early() {
            return Written::NOTHING;
        }
        let is_in_order = |message: &Handed| match &message.payload {
            Some(payload) => StoredMessage::parse(payload).is_ok_and(|message| message.group.is_some()),
            // It is not known before it was read, which takes longer.
            None => true,
        };
        if state.queue.config().single_active_consumer || messages.iter().any(is_in_order) {
            return cell.created.and(state.last_change);
        }
        let pushes = messages.iter().filter_map(|message| state.placement.frame_of_push(message.offset));
        match pushes.max() {
            Some(at) => cell.created.and(self.journal.frame_at(at)),
            None => cell.created,
        }
    }
}
