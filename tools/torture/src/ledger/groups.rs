//! Whether a FIFO queue keeps each group in order.

use std::collections::{BTreeSet, HashMap};

use super::books::{Delivery, Ledger, SLACK};
use super::record::{Custody, Event};
use super::violation::What;
use crate::clock::Micros;
use crate::queues::{Family, Place};
use crate::stamp::{Copy, Stamp};

/// What one publisher sent to one group is in order, also over several connections: it sends the next only when those before
/// it are answered for.
type Line = (u16, u64);

/// The books of one FIFO queue.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Confirmed and not done for certain.
    open: BTreeSet<(Line, u64)>,
    /// The latest that came, and in which life.
    latest: HashMap<Line, (u32, u64)>,
    /// What each group delivered last, whoever sent it.
    last: HashMap<u64, Copy>,
}

/// What a delivery is to its group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Came {
    /// A later message of the same line, if one came before in the same life.
    pub(super) later: Option<u64>,
    /// What the group delivered before.
    pub(super) last: Option<Copy>,
}

impl Groups {
    pub(super) fn confirmed(&mut self, stamp: &Stamp) {
        self.open.insert((line(stamp), stamp.seq));
    }

    /// It is done.
    pub(super) fn forget(&mut self, stamp: &Stamp) {
        self.open.remove(&(line(stamp), stamp.seq));
    }

    /// A message has come.
    pub(super) fn came(&mut self, stamp: &Stamp, life: u32) -> Came {
        let before = self.latest.insert(line(stamp), (life, stamp.seq));
        let later = before.filter(|(then, seq)| *then == life && *seq > stamp.seq).map(|(_, seq)| seq);
        Came { later, last: self.last.insert(stamp.group(), stamp.copy_in(Family::GROUPS)) }
    }

    /// What was confirmed before it in its line and is not done for certain.
    pub(super) fn before(&self, stamp: &Stamp) -> Vec<u64> {
        let line = line(stamp);
        self.open.range((line, 0)..(line, stamp.seq)).map(|(_, seq)| *seq).collect()
    }
}

impl Ledger {
    /// In a FIFO queue a message comes when all before it in its group are done, and while no other of its group is with
    /// somebody.
    pub(super) fn judge_group(&mut self, delivery: &Delivery) {
        let Delivery { stamp, place, at, .. } = *delivery;
        if place != Place::GROUPS {
            return;
        }
        let copy = stamp.copy_in(Family::GROUPS);
        let came = self.groups.came(&stamp, self.life);
        if let Some(later) = came.later {
            self.tell(What::OutOfOrder, format!("{copy} came after message {later} of its group"), copy);
        }
        for seq in self.groups.before(&stamp) {
            let before = Copy { seq, ..copy };
            let custody = self.records.get(&before).map(|record| record.custody);
            if matches!(custody, Some(Custody::Waiting | Custody::Held { .. })) {
                let fact = format!("{before} is not done, and message {} of its group came", stamp.seq);
                self.tell(What::OutOfOrder, fact, before);
            }
        }
        let other = came.last.filter(|last| *last != copy);
        let held = other.and_then(|other| Some((other, self.records.get(&other)?.custody)));
        if let Some((other, Custody::Held { session, until })) = held
            && self.is_current(session)
            && until.is_none_or(|until| at + SLACK < until)
        {
            let fact = format!("{copy} came while {session} holds {other}, which is of the same group");
            self.tell(What::Doubled, fact, other);
        }
    }

    /// A message of a group is done for certain. It came only because all before it in its group were: the log is one
    /// sequence, so that is as certain.
    pub(super) fn settle_group(&mut self, stamp: &Stamp, at: Micros) {
        let life = self.life;
        for seq in self.groups.before(stamp) {
            let before = Copy { seq, ..stamp.copy_in(Family::GROUPS) };
            let Some(record) = self.records.get_mut(&before) else { continue };
            if matches!(record.custody, Custody::Acked { .. }) {
                record.note(at, life, Event::Acked);
                self.forget(before);
            }
        }
    }
}

const fn line(stamp: &Stamp) -> Line {
    (stamp.publisher, stamp.group())
}
