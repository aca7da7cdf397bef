//! Looking at messages without taking them, those that are leased or delayed as well. A look brings nothing into the memory of
//! its queue, and what it shows at once is bounded in messages and in bytes.

use std::sync::Arc;

use bytes::Bytes;
use nexo_core::queue::{Handed, PeekPosition, Peeked, Queue};
use nexo_types::{Offset, Priority, QueueName, Timestamp, limits};

use crate::broker::Broker;
use crate::commit::Confirm;
use crate::delivery::Delivery;
use crate::error::QueueError;
use crate::queue_cell::QueueCell;
use crate::shared::Shared;
use crate::subscription::delivery;
use crate::workers::Work;

/// Messages of known places that are read at a time. How long their properties are only reading tells.
const READ_STEP: usize = 64;

/// Which messages of a queue somebody looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BrowseState {
    /// Those that could be delivered now, in the order of delivery.
    #[default]
    Ready,
    /// Those that are with a consumer, by offset.
    Leased,
    /// Those whose time has not come, by offset.
    Delayed,
}

/// A message that somebody looks at, whatever its state.
#[derive(Clone, Debug)]
pub struct Browsed {
    /// The message, with the number of its deliveries as its attempt.
    pub delivery: Delivery,
    /// When its lease or its delay ends. `None` for one that is ready, and for a lease that ends with its connection.
    pub until: Option<Timestamp>,
}

impl Broker {
    /// Shows the next messages in the order of delivery. Changes nothing. As many as [`Self::peek_after`] shows at once.
    ///
    /// # Errors
    /// If there is no such queue, or the log cannot be read.
    pub async fn peek(&self, name: &QueueName, max: usize) -> Result<Vec<Delivery>, QueueError> {
        Ok(self.peek_after(name, None, max).await?.0)
    }

    /// Shows messages from behind a place in the order of delivery on: at most `max` and [`limits::PEEK_MAX`], and no more
    /// bytes than [`limits::PEEK_BYTES_MAX`] unless one message has more. Gives back the place to go on from, unless
    /// that was all. A long backlog can be looked through in parts, and none of it stays in memory.
    ///
    /// # Errors
    /// If there is no such queue, or the log cannot be read.
    pub async fn peek_after(
        &self,
        name: &QueueName,
        after: Option<PeekPosition>,
        max: usize,
    ) -> Result<(Vec<Delivery>, Option<PeekPosition>), QueueError> {
        let (seen, next) = self.browse(name, BrowseState::Ready, after, max).await?;
        Ok((seen.into_iter().map(|one| one.delivery).collect(), next))
    }

    /// The same for messages of any state. A place is good for the state that it was given for. Messages that change their state
    /// between two parts may be seen in both or in none.
    ///
    /// # Errors
    /// As there.
    pub async fn browse(
        &self,
        name: &QueueName,
        state: BrowseState,
        after: Option<PeekPosition>,
        max: usize,
    ) -> Result<(Vec<Browsed>, Option<PeekPosition>), QueueError> {
        let cell = self.found(name).await?;
        let looked_at = Arc::clone(&cell);
        // Whoever asks may name any place; behind the last offset of all there is nothing, as behind the one before it.
        let after = after.map(|(priority, offset)| (priority, offset.min(Offset(u64::MAX - 1))));
        let max = max.min(limits::PEEK_MAX);
        let look = Look { state, max, after, seen: 0, bytes: 0, found: Vec::new() };
        let shared = Arc::clone(&self.shared);
        let seen = self.shared.on_worker(Work::Look, move || shared.look(&looked_at, look)).await??;
        let rests_on = {
            let state = cell.state.lock();
            state.refuse_if_gone(name)?;
            self.shared.refusal_rests_on(Confirm::AsQueue, || state.last_change)
        };
        self.shared.wait_for(rests_on).await?;
        Ok(seen)
    }
}

/// What somebody has seen so far.
struct Look {
    state: BrowseState,
    max: usize,
    /// The place of the last message that was seen.
    after: Option<PeekPosition>,
    /// Messages, also those that cannot be read.
    seen: usize,
    bytes: usize,
    found: Vec<Browsed>,
}

/// Whether there is room for more in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Left,
    Full,
}

impl Look {
    /// Whether one of this size would be too much.
    const fn is_too_much(seen_bytes: usize, more: usize) -> bool {
        seen_bytes > 0 && seen_bytes.saturating_add(more) > limits::PEEK_BYTES_MAX
    }
}

impl Shared {
    #[allow(clippy::type_complexity)] // What is shown, and the place behind it.
    fn look(&self, cell: &QueueCell, look: Look) -> Result<(Vec<Browsed>, Option<PeekPosition>), QueueError> {
        match look.state {
            BrowseState::Ready => self.look_at_ready(cell, look),
            BrowseState::Leased => Ok(self.look_aside(cell, look, Queue::leased_after)),
            BrowseState::Delayed => Ok(self.look_aside(cell, look, Queue::delayed_after)),
        }
    }

    /// Shows messages that have an entry each.
    fn look_aside(
        &self,
        cell: &QueueCell,
        mut look: Look,
        next: fn(&Queue, Option<Offset>, usize) -> Vec<Peeked>,
    ) -> (Vec<Browsed>, Option<PeekPosition>) {
        while look.seen < look.max {
            let after = look.after.map(|(_, offset)| offset);
            let seen = next(&cell.state.lock().queue, after, (look.max - look.seen).min(READ_STEP));
            if seen.is_empty() {
                return (look.found, None);
            }
            if self.show(cell, seen, &mut look) == Room::Full {
                break;
            }
        }
        (look.found, look.after)
    }

    #[allow(clippy::type_complexity)] // As above.
    fn look_at_ready(
        &self,
        cell: &QueueCell,
        mut look: Look,
    ) -> Result<(Vec<Browsed>, Option<PeekPosition>), QueueError> {
        while look.seen < look.max {
            let (seen, page) = cell.state.lock().queue.peek_after(look.after, look.max - look.seen);
            if self.show(cell, seen, &mut look) == Room::Full || look.seen == look.max {
                break;
            }
            let Some(page) = page else { return Ok((look.found, None)) };
            let (page, entries) = self
                .read_page(cell, &page)
                .map_err(|error| QueueError::Unavailable { reason: error.to_string() })?;
            // A reader may stop early. What it does not find at all is passed over.
            let last = entries.last().map(|entry| entry.offset).or(page.request.offsets.last());
            let seen = entries.iter().map(Peeked::from).collect();
            if self.show(cell, seen, &mut look) == Room::Full {
                break;
            }
            look.after = last.map(|last| (page.request.lane, last)).or(look.after);
        }
        Ok((look.found, look.after))
    }

    /// Adds messages as far as there is room for them, and reads those whose bytes are not in memory.
    fn show(&self, cell: &QueueCell, seen: Vec<Peeked>, look: &mut Look) -> Room {
        let mut seen = seen.into_iter().peekable();
        while seen.peek().is_some() {
            let (mut part, mut bytes) = (Vec::new(), look.bytes);
            let fits = |one: &Peeked, bytes| !Look::is_too_much(bytes, one.bytes());
            while part.len() < READ_STEP
                && let Some(one) = seen.next_if(|one| fits(one, bytes))
            {
                bytes += one.bytes();
                part.push(one);
            }
            if part.is_empty() || self.show_part(cell, part, look) == Room::Full {
                return Room::Full;
            }
        }
        Room::Left
    }

    fn show_part(&self, cell: &QueueCell, part: Vec<Peeked>, look: &mut Look) -> Room {
        let cold = part.iter().filter(|one| one.payload.is_none()).map(|one| (one.priority, one.offset));
        let cold: Vec<(Priority, Offset)> = cold.collect();
        let mut payloads = self.read_payloads(cell, &cold);
        for one in part {
            let payload = one.payload.or_else(|| payloads.remove(&one.offset));
            let bytes = payload.as_ref().map_or(0, Bytes::len);
            if Look::is_too_much(look.bytes, bytes) {
                return Room::Full;
            }
            look.seen += 1;
            look.bytes += bytes;
            look.after = Some((one.priority, one.offset));
            let handed = Handed {
                offset: one.offset,
                attempts: one.attempts,
                enqueued_at: one.enqueued_at,
                until: None,
                granted_at: Timestamp(0),
                priority: one.priority,
                charged: 0,
                payload,
            };
            let delivery = delivery(self, cell, handed);
            look.found.extend(delivery.map(|delivery| Browsed { delivery, until: one.until }));
        }
        Room::Left
    }
}
