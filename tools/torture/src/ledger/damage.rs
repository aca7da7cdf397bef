//! What damage to the disk excuses: the loss of a copy that was hit and that the broker has counted, and that others did
//! not wait for such a copy. Nothing else: a broker that loses or confuses healthy messages is seen also then.

use std::collections::HashSet;

use super::books::Ledger;
use super::violation::{Violation, What};
use crate::stamp::{Copy, Stamp};

/// If so many places are damaged, and not one message is reported, then the run did not test what becomes of messages.
const STRIKES_IN_VAIN: u32 = 10;
/// The same for places where a message waited: each must be lost, but for what clients cannot know.
const AIMED_IN_VAIN: u32 = 3;

/// The damage so far.
#[derive(Debug, Default)]
pub(super) struct Damage {
    /// Segments were damaged since the books were last closed.
    is_open: bool,
    /// The copies that were hit since then and may still have been in a queue.
    hit: HashSet<Copy>,
    /// How often the disk was damaged.
    strikes: u32,
    /// Of these, how often where a message waited.
    aimed: u32,
    /// What may come of that, until the broker has said what it lost.
    suspects: Vec<(Copy, Violation)>,
}

impl Damage {
    /// Whether what looks like a loss may be one by damage.
    pub(super) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Keeps something about a copy until the books are closed.
    pub(super) fn suspect(&mut self, copy: Copy, violation: Violation) {
        self.suspects.push((copy, violation));
    }
}

impl Ledger {
    /// Bytes of the disk were changed while the broker was down: these messages were hit, and the one that was aimed at is
    /// among them. Copies that are done for certain are in no queue, so they cannot be lost.
    pub(crate) fn struck(&mut self, hit: &[Stamp], aim: Option<&Stamp>) {
        let copies = hit.iter().flat_map(Stamp::copies).filter(|copy| self.records.contains_key(copy));
        self.damage.hit.extend(copies);
        self.damage.is_open = true;
        self.damage.strikes += 1;
        self.damage.aimed += u32::from(aim.is_some());
    }

    /// The run is over. If damage never hit a message that the broker needed, it has shown nothing.
    pub(crate) fn end_run(&mut self) {
        let Damage { strikes, aimed, .. } = self.damage;
        if self.totals.reported_damaged == 0 && (strikes >= STRIKES_IN_VAIN || aimed >= AIMED_IN_VAIN) {
            let fact = format!(
                "{strikes} segments were damaged, {aimed} of them where a message waited, and no message was lost by it"
            );
            self.report(Violation::new(What::NotExercised, fact));
        }
    }

    /// What the broker has reported accounts for as many losses of copies that were hit, and for what others say of these
    /// copies. The rest it has lost silently, or without a reason.
    pub(super) fn judge_suspects(&mut self, reported: u64) {
        self.damage.is_open = false;
        self.totals.reported_damaged += reported;
        let hit = std::mem::take(&mut self.damage.hit);
        if reported > hit.len() as u64 {
            let fact = format!("{reported} messages are reported as damaged, and {} were hit", hit.len());
            self.report(Violation::new(What::OverReported, fact));
        }
        let suspects = std::mem::take(&mut self.damage.suspects);
        let (losses, others): (Vec<_>, Vec<_>) =
            suspects.into_iter().partition(|(_, suspect)| suspect.what == What::Lost);
        let mut lost = HashSet::new();
        for (copy, suspect) in losses {
            if hit.contains(&copy) && (lost.len() as u64) < reported {
                lost.insert(copy);
            } else {
                self.report(suspect);
            }
        }
        self.totals.lost_to_damage += lost.len() as u64;
        // A copy that came in the end was there all the time: it should have come before those behind it.
        for (copy, suspect) in others {
            if lost.contains(&copy) {
                self.totals.excused += 1;
            } else {
                self.report(suspect);
            }
        }
    }
}
