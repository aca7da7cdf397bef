//! `basic.ack`, `nack`, `reject` and `recover`: many settled messages become one call for each queue. Very many become
//! several, and others have their turn in between.

use std::sync::Arc;

use hashbrown::HashMap;
use nexo_broker::{QueueError, Settle, Settling};
use nexo_types::Offset;

use super::channel::Mode;
use super::error::Refusal;
use super::operations::Operation;
use super::session::{Peer, Session};
use super::source::Source;
use super::steps::{SettleWithin, Step};
use super::unacked::Held;
use crate::codec::ReplyCode;
use crate::codec::method::basic;

/// Messages that are settled before others have their turn, if one method is about more than that: a few milliseconds.
pub(super) const SETTLE_TURN: usize = 4_096;

/// Messages of one source, by offset and attempt.
type SourceGroup = (Arc<Source>, Vec<(Offset, u32)>);

/// Messages by where they came from.
#[derive(Debug, Default)]
pub(super) struct BySource {
    groups: Vec<SourceGroup>,
    places: HashMap<u64, usize, foldhash::fast::FixedState>,
    last: usize,
    /// Channels whose consumers may have room now.
    pub(super) retry_credit: Vec<u16>,
}

impl BySource {
    pub(super) fn add(&mut self, held: &Held) {
        let is_last = self.groups.get(self.last).is_some_and(|(source, _)| source.id == held.source.id);
        if !is_last {
            self.last = *self.places.entry(held.source.id).or_insert_with(|| {
                self.groups.push((Arc::clone(&held.source), Vec::new()));
                self.groups.len() - 1
            });
        }
        self.groups[self.last].1.extend(held.offsets().map(|offset| (offset, held.attempt)));
    }

    /// Whether messages of this source are here.
    pub(super) fn contains(&self, source: &Source) -> bool {
        self.groups.iter().any(|(one, _)| one.id == source.id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// How many messages are here.
    pub(super) fn len(&self) -> usize {
        self.groups.iter().map(|(_, held)| held.len()).sum()
    }

    /// Settles messages and forgets them, as many as `turn` says, and takes them off that.
    ///
    /// # Errors
    /// If some could not be written down. They are kept, as those are for which it was not the turn.
    pub(super) fn settle(&mut self, what: Settle, turn: &mut usize) -> Result<(), QueueError> {
        let mut refused = Ok(());
        let mut kept = Vec::new();
        for (source, mut held) in self.take() {
            let count = held.len().min(*turn);
            if count == 0 {
                kept.push((source, held));
                continue;
            }
            *turn -= count;
            match source.settle(&held[..count], what) {
                Ok(frees_credit) => {
                    self.note_credit(&source, frees_credit);
                    held.drain(..count);
                }
                Err(error) => refused = Err(error),
            }
            if !held.is_empty() {
                kept.push((source, held));
            }
        }
        self.places = kept.iter().enumerate().map(|(at, (source, _))| (source.id, at)).collect();
        self.groups = kept;
        refused
    }

    /// Settles all and forgets them; those that cannot be written down now, the broker settles later.
    pub(super) fn settle_eventually(&mut self, what: Settle) {
        for (source, held) in self.take() {
            source.settle_eventually(&held, what);
        }
    }

    /// Settles all; what has `begun` is to be waited for before the client is told.
    ///
    /// # Errors
    /// If some could not be written down. They are kept.
    pub(super) fn begin_settle(&mut self, what: Settle, begun: &mut Vec<Settling>) -> Result<(), QueueError> {
        while let Some((source, held)) = self.groups.last() {
            let (settling, frees_credit) = source.begin_settle(held, what)?;
            let source = Arc::clone(source);
            begun.extend(settling);
            self.note_credit(&source, frees_credit);
            self.groups.pop();
        }
        self.places.clear();
        self.last = 0;
        Ok(())
    }

    fn take(&mut self) -> Vec<SourceGroup> {
        self.places.clear();
        self.last = 0;
        std::mem::take(&mut self.groups)
    }

    fn note_credit(&mut self, source: &Source, frees_credit: bool) {
        if frees_credit && !self.retry_credit.contains(&source.channel) {
            self.retry_credit.push(source.channel);
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
        match method.multiple {
            true => self.settle_up_to(number, method.delivery_tag, Settle::Ack),
            false => self.settle_one(number, method.delivery_tag, Settle::Ack),
        }
    }

    pub(super) fn nack(&mut self, number: u16, method: &basic::Nack) -> Result<(), Refusal> {
        let what = if method.requeue { Settle::Requeue } else { Settle::Reject };
        match method.multiple {
            true => self.settle_up_to(number, method.delivery_tag, what),
            false => self.settle_one(number, method.delivery_tag, what),
        }
    }

    pub(super) fn reject(&mut self, number: u16, method: &basic::Reject) -> Result<(), Refusal> {
        let what = if method.requeue { Settle::Requeue } else { Settle::Reject };
        self.settle_one(number, method.delivery_tag, what)
    }

    /// Everything that the channel holds goes back, and may come again to its own consumers. What cannot be written down
    /// is still held, so that no more comes in its place.
    pub(super) fn recover(&mut self, number: u16, requeue: bool) -> Result<(), Refusal> {
        if !requeue {
            return Err(Refusal::new(ReplyCode::NotImplemented, "requeue=false"));
        }
        let Some(last) = self.channel(number)?.unacked.last_up_to(0) else { return Ok(()) };
        let (what, within) = (Settle::Requeue, SettleWithin::Nothing);
        self.steps.push_back(Step::Settle { number, last, what, within });
        self.run_steps();
        Ok(())
    }

    fn settle_one(&mut self, number: u16, tag: u64, what: Settle) -> Result<(), Refusal> {
        let channel = self.channel(number)?;
        let held = channel.unacked.take(tag).ok_or_else(|| unknown_tag(tag))?;
        channel.show_settled(1, what);
        self.settle(number, vec![held], what);
        Ok(())
    }

    /// Settles all up to a tag. Others have their turn in between; nothing else that the client says is done before the end.
    fn settle_up_to(&mut self, number: u16, tag: u64, what: Settle) -> Result<(), Refusal> {
        let last = self.channel(number)?.unacked.last_up_to(tag).ok_or_else(|| unknown_tag(tag))?;
        let within = SettleWithin::Transaction;
        if self.settle_some(number, last, what, within) {
            self.steps.push_back(Step::Settle { number, last, what, within });
            self.wait_for(Operation::Turn);
        }
        Ok(())
    }

    /// Settles some up to a tag; `true` if more are left.
    pub(super) fn settle_some(&mut self, number: u16, last: u64, what: Settle, within: SettleWithin) -> bool {
        let Ok(channel) = self.channel(number) else { return false };
        let (held, more) = channel.unacked.take_some_up_to(last, SETTLE_TURN);
        channel.show_settled(held.iter().map(Held::count).sum(), what);
        match within {
            SettleWithin::Transaction => self.settle(number, held, what),
            SettleWithin::Nothing => self.settle_now(&held, what),
        }
        if self.acks.len() >= SETTLE_TURN {
            self.flush_acks();
        }
        more
    }

    fn settle(&mut self, number: u16, held: Vec<Held>, what: Settle) {
        if let Ok(channel) = self.channel(number)
            && let Mode::Transaction(transaction) = &mut channel.mode
        {
            transaction.settle(LaterSettle { held, what });
            channel.shown.acks_uncommitted.set(transaction.held() as u64);
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
        let mut groups = BySource::default();
        for one in held {
            groups.add(one);
        }
        // It is no more than what has come in one read, or one turn.
        let settled = groups.settle(what, &mut { usize::MAX });
        self.retry_credit(&std::mem::take(&mut groups.retry_credit));
        if let Err(error) = settled {
            self.note_refused(error);
            self.refused_settles.push((what, groups));
        }
    }

    /// Tries again to settle what could not be written down, some of it at a time.
    pub(super) fn settle_refused(&mut self) {
        let (refusal, is_left) = (self.settle_refusal.take(), std::mem::take(&mut self.settles_left));
        if refusal.is_none() && !is_left {
            return;
        }
        self.was_refused |= refusal.is_some_and(|error| !error.is_busy());
        self.flush_acks();
        let mut turn = SETTLE_TURN;
        for (what, mut groups) in std::mem::take(&mut self.refused_settles) {
            let settled = groups.settle(what, &mut turn);
            self.retry_credit(&std::mem::take(&mut groups.retry_credit));
            match settled {
                Ok(()) => self.settles_left |= !groups.is_empty(),
                Err(error) => self.note_refused(error),
            }
            if !groups.is_empty() {
                self.refused_settles.push((what, groups));
            }
        }
        if self.settle_refusal.is_none() && !self.settles_left && std::mem::take(&mut self.was_refused) {
            tracing::info!(protocol = "amqp", peer = %Peer(self.peer), "what could not be settled is settled");
        }
    }

    /// Whether what the client said about messages is done in a moment, because the disk is behind. What it says next waits: it may
    /// be about the same queue.
    pub(super) fn settles_late(&self) -> bool {
        self.settle_refusal.as_ref().is_some_and(QueueError::is_busy)
            || (self.settles_left && !self.refused_settles.is_empty())
    }

    /// What could not be written down. The client goes: the broker is to settle it as soon as it can.
    pub(super) fn take_refused(&mut self) -> Vec<(Settle, BySource)> {
        let mut refused = vec![(Settle::Ack, std::mem::take(&mut self.acks))];
        refused.append(&mut self.refused_settles);
        refused
    }

    fn note_refused(&mut self, error: QueueError) {
        if self.settle_refusal.is_none() && !self.was_refused && !error.is_busy() {
            tracing::warn!(
                protocol = "amqp", peer = %Peer(self.peer), user = self.user.as_str(), %error,
                "what a client said about messages cannot be written down; it is tried again"
            );
        }
        self.settle_refusal = Some(error);
    }

    pub(super) fn flush_acks(&mut self) {
        if self.acks.is_empty() {
            return;
        }
        // More than that waits only if the disk was full or behind, or if it is all of a large read.
        let mut turn = 4 * SETTLE_TURN;
        match self.acks.settle(Settle::Ack, &mut turn) {
            Ok(()) => self.settles_left |= !self.acks.is_empty(),
            Err(error) => self.note_refused(error),
        }
        let retry_credit = std::mem::take(&mut self.acks.retry_credit);
        self.retry_credit(&retry_credit);
    }

    /// Has the consumers of channels look again: a limit that they share has room.
    pub(super) fn retry_credit(&mut self, channels: &[u16]) {
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
                if let Some(id) = source.subscribed().consumer {
                    source.queue.add_credit(id, 0);
                }
            }
        }
    }
}

fn unknown_tag(tag: u64) -> Refusal {
    Refusal::precondition(format!("unknown delivery tag {tag}"))
}
