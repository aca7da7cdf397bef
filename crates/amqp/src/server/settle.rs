//! `basic.ack`, `nack`, `reject` and `recover`: many settled messages become one call for each queue.

use std::sync::Arc;

use hashbrown::HashMap;
use nexo_broker::Settle;
use nexo_types::Offset;

use super::channel::Mode;
use super::error::Refusal;
use super::session::Session;
use super::source::Source;
use super::unacked::Held;
use crate::codec::ReplyCode;
use crate::codec::method::basic;

/// Messages of one source, by offset and attempt.
type Group = (Arc<Source>, Vec<(Offset, u32)>);

/// Messages by where they came from.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: Vec<Group>,
    places: HashMap<u64, usize, foldhash::fast::FixedState>,
    last: usize,
    /// Channels whose consumers may have room now.
    pub(super) eased: Vec<u16>,
}

impl Groups {
    pub(super) fn add(&mut self, held: &Held) {
        let is_last = self.groups.get(self.last).is_some_and(|(source, _)| source.id == held.source.id);
        if !is_last {
            self.last = *self.places.entry(held.source.id).or_insert_with(|| {
                self.groups.push((Arc::clone(&held.source), Vec::new()));
                self.groups.len() - 1
            });
        }
        self.groups[self.last].1.push((held.offset, held.attempt));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Settles all and forgets them.
    pub(super) fn settle(&mut self, what: Settle) {
        self.places.clear();
        self.last = 0;
        for (source, held) in self.groups.drain(..) {
            if source.settle(&held, what) && !self.eased.contains(&source.channel) {
                self.eased.push(source.channel);
            }
        }
    }
}

/// Messages whose settling waits for the end of a transaction.
#[derive(Debug)]
pub(super) struct LaterSettle {
    pub(super) held: Vec<Held>,
    pub(super) what: Settle,
}

impl Session {
    pub(super) fn ack(&mut self, number: u16, method: &basic::Ack) -> Result<(), Refusal> {
        let held = self.take_held(number, method.delivery_tag, method.multiple)?;
        self.settle(number, held, Settle::Ack);
        Ok(())
    }

    pub(super) fn nack(&mut self, number: u16, method: &basic::Nack) -> Result<(), Refusal> {
        let held = self.take_held(number, method.delivery_tag, method.multiple)?;
        self.settle(number, held, if method.requeue { Settle::Requeue } else { Settle::Reject });
        Ok(())
    }

    pub(super) fn reject(&mut self, number: u16, method: &basic::Reject) -> Result<(), Refusal> {
        let held = self.take_held(number, method.delivery_tag, false)?;
        self.settle(number, held, if method.requeue { Settle::Requeue } else { Settle::Reject });
        Ok(())
    }

    /// Everything that the channel holds goes back, and may come again to its own consumers.
    pub(super) fn recover(&mut self, number: u16, requeue: bool) -> Result<(), Refusal> {
        if !requeue {
            return Err(Refusal::new(ReplyCode::NotImplemented, "requeue=false"));
        }
        let eased = self.channel(number)?.unacked.requeue_all().eased;
        self.ease(&eased);
        Ok(())
    }

    fn take_held(&mut self, number: u16, tag: u64, multiple: bool) -> Result<Vec<Held>, Refusal> {
        let channel = self.channel(number)?;
        let held = if multiple {
            channel.unacked.take_up_to(tag)
        } else {
            channel.unacked.take(tag).map(|held| vec![held])
        };
        held.ok_or_else(|| Refusal::precondition(format!("unknown delivery tag {tag}")))
    }

    fn settle(&mut self, number: u16, held: Vec<Held>, what: Settle) {
        if let Ok(channel) = self.channel(number)
            && let Mode::Transaction(transaction) = &mut channel.mode
        {
            transaction.settles.push(LaterSettle { held, what });
            return;
        }
        self.settle_now(&held, what);
    }

    /// Acknowledgements wait for the end of the read, so that many become one call; anything else comes after them.
    pub(super) fn settle_now(&mut self, held: &[Held], what: Settle) {
        if what == Settle::Ack {
            for one in held {
                self.acks.add(one);
            }
            return;
        }
        self.flush_acks();
        let mut groups = Groups::default();
        for one in held {
            groups.add(one);
        }
        groups.settle(what);
        self.ease(&groups.eased);
    }

    pub(super) fn flush_acks(&mut self) {
        if self.acks.is_empty() {
            return;
        }
        self.acks.settle(Settle::Ack);
        let eased = std::mem::take(&mut self.acks.eased);
        self.ease(&eased);
    }

    /// Has the consumers of channels look again: a limit that they share has room.
    pub(super) fn ease(&mut self, channels: &[u16]) {
        for number in channels {
            let Ok(channel) = self.channel(*number) else { continue };
            // Whoever is asked first may take all the room there is, so another one is first each time.
            let mut ids: Vec<u64> = channel.consumers.keys().copied().collect();
            ids.sort_unstable();
            let count = ids.len();
            let first = ids.partition_point(|id| *id <= channel.eased_first);
            ids.rotate_left(first % count.max(1));
            channel.eased_first = ids.first().copied().unwrap_or(0);
            for source in ids.iter().map(|id| &channel.consumers[id].source) {
                if let Some(id) = source.seat().consumer {
                    source.queue.add_credit(id, 0);
                }
            }
        }
    }
}
