//! Damage on the disk of one node is mended from the others, and never becomes a loss everywhere.
//!
//! A node whose log has lost something must not take part with a hole in it: what it acknowledged counts for a majority. So it is
//! not opened ([`JournalOpenError::Damaged`]), and whoever opens it has it come back as another node. Damage that is found while
//! it runs is in what lies on the disk alone; its votes and the order of its entries are in memory. Such a node hands leadership over and
//! tells of it ([`super::Replication::watch_damage`]). Until it is replaced it votes and writes down what comes, so that a majority is not lost
//! with it, but others lead if they can. Messages that it cannot read stay where they are.
//!
//! A node that is the only voter has nobody to get anything from, and does as a broker by itself.

use std::path::Path;

use nexo_log::Recovered;
use nexo_types::{Millis, Position};

use super::state::{Replica, State, UNWELL_TICKS_MAX};
use crate::error::OpenError;
use crate::recovery::OnLoss;
use crate::shared::Shared;

/// A place that the disk has not given back in so many tries, over some seconds, counts as damaged.
const TRIES_MAX: u32 = 4;

/// Why the group of a node cannot be opened.
#[derive(Debug)]
pub(crate) enum JournalOpenError {
    /// Something is gone that was there.
    Damaged(String),
    /// It makes no sense, or is not what the node was told.
    Unreadable(String),
}

impl JournalOpenError {
    /// What the start says. What makes no sense is damage if there is some.
    pub(crate) fn into_open_error(self, path: &Path, recovered: &Recovered) -> OpenError {
        let path = path.to_owned();
        match self {
            Self::Damaged(reason) => OpenError::Damaged { path, reason },
            Self::Unreadable(reason) if recovered.is_incomplete() => OpenError::Damaged { path, reason },
            Self::Unreadable(reason) => OpenError::Unreadable { path, reason },
        }
    }
}

impl From<String> for JournalOpenError {
    fn from(reason: String) -> Self {
        Self::Unreadable(reason)
    }
}

impl State {
    fn has_other_voters(&self, replica: &Replica) -> bool {
        self.group.members().voters.iter().any(|voter| *voter != replica.node)
    }
}

impl Replica {
    /// Whether others have what this node has.
    pub(crate) fn has_other_voters(&self) -> bool {
        self.state.lock().has_other_voters(self)
    }

    /// Whether damage was found that others can mend.
    pub(super) fn is_damaged(&self) -> bool {
        self.damage.borrow().is_some()
    }

    /// Takes note of damage that was found since the last tick.
    pub(super) fn look_for_damage(&self, state: &mut State) {
        if self.is_damaged() || !state.has_other_voters(self) {
            return;
        }
        let Some((_, first)) = self.log.damage() else { return };
        tracing::error!(damage = %first, "the disk of this node is damaged: others lead, and it is to be replaced from them");
        // The last in line.
        state.group.set_rank(usize::MAX);
        state.unwell_ticks = UNWELL_TICKS_MAX;
        self.damage.send_replace(Some(first));
    }
}

/// After this the memory of a node that was deposed is thrown away.
const DEPOSED_DELAY: Millis = Millis(500);

impl Shared {
    /// Whether messages that are damaged here are kept, because others have them.
    pub(crate) fn keeps_damaged(&self) -> bool {
        self.replica.as_ref().is_some_and(|replica| replica.has_other_voters())
    }

    /// What becomes of a replay that does not find everything.
    pub(crate) fn on_loss(&self) -> OnLoss {
        if self.keeps_damaged() {
            OnLoss::Mend
        } else if self.options.accept_loss {
            OnLoss::Accept
        } else {
            OnLoss::Refuse
        }
    }

    /// Takes note of a read that failed, and says after which time it may be tried again. A node of a cluster does not wait for its disk
    /// for ever. One that was deposed a moment ago looks for messages whose frames do not count any more: that is nothing to speak of.
    pub(crate) fn note_unreadable(&self, at: Position, reason: &str) -> Millis {
        if self.journal.serving_term().is_none() {
            return DEPOSED_DELAY;
        }
        let (delay, tries) = self.unreadable.note(at, reason);
        if tries == TRIES_MAX && self.keeps_damaged() {
            self.log.note_missing(at, reason.to_owned());
        }
        delay
    }
}
