//! The journal: the one place to which changes are written down before they are applied.
//!
//! Whatever changes a queue, an exchange or a binding is *proposed* here as records. The journal answers with where they
//! lie and a ticket ([`Written`]). The ticket resolves when the records are safe, or says what became of them. Nothing
//! else of this crate appends to the log; `tests/sources.rs` says so.
//!
//! Behind the trait stands the log of this node ([`LocalJournal`]), or a Raft group (`replication`). A group can *lose* proposals:
//! another leader is elected and what was not committed is discarded, always a suffix. `rebuild.rs` has what the broker
//! does then, and what it does when it is elected. `fake.rs` is a journal for tests that delays, refuses and loses.
//!
//! Reading frames, segments, giving them up and accounting for space are not here: they are the business of this node's
//! storage, `nexo_log::Log`. So is what only this node needs (snapshots, checkpoints, copies of messages out of segments
//! that are nearly empty); it is written through [`Journal::write_local`], and cannot be lost.

mod discarded;
mod encoded;
mod error;
#[cfg(test)]
mod fake;
mod local;
#[cfg(test)]
mod loss_tests;
mod rests_on;
mod ticket;

use std::fmt::Debug;

use nexo_log::{Claim, EntryRef, LogHealth, Patience, Urgency};
use nexo_types::{LogIndex, Position, SegmentId};

pub(crate) use discarded::Discarded;
pub(crate) use encoded::Encoded;
pub(crate) use error::{ProposeError, TicketError};
pub(crate) use local::LocalJournal;
pub(crate) use ticket::Waiting;
pub use ticket::Written;

use crate::manifest::GroupMark;

/// What is to be done about the broker's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing: it is what was written down.
    Serving,
    /// It is to be thrown away and built again.
    Lost,
    /// It is to be thrown away. Another node serves.
    Deposed,
    /// Nothing: it is an earlier state, which nobody sees. Another node serves.
    Following,
    /// It is to be replaced by a state that has come from the node that serves.
    Installing,
}

/// Records that the journal has taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proposed {
    /// Where their frame starts. This is final.
    pub(crate) at: Position,
    /// What to wait for before anybody is told.
    pub(crate) written: Written,
}

impl Proposed {
    /// The length of the frame.
    pub(crate) const fn bytes(&self) -> u64 {
        self.written.end().byte.saturating_sub(self.at.byte) as u64
    }
}

/// Where changes are written down.
pub(crate) trait Journal: Send + Sync + Debug {
    /// Proposes what state machines have decided, as one frame: all of it or none of it. The frame can be read at once.
    /// Does not wait, unless `patience` says so or the frame is larger than a segment.
    ///
    /// # Errors
    /// If it was not taken. Then nothing may be applied.
    fn propose(
        &self,
        entries: &[EntryRef<'_>],
        urgency: Urgency,
        claim: Claim,
        patience: Patience,
    ) -> Result<Proposed, ProposeError>;

    /// Writes down what is this node's own and changes nothing that a client could see: snapshots, checkpoints, copies of
    /// messages.
    ///
    /// # Errors
    /// As [`Self::propose`].
    fn write_local(
        &self,
        entries: &[EntryRef<'_>],
        urgency: Urgency,
        claim: Claim,
        patience: Patience,
    ) -> Result<Proposed, ProposeError>;

    /// Resolves when a change is as safe as was asked for, or when it cannot be any more.
    fn wait(&self, written: Written) -> Waiting;

    /// Whether [`Self::wait`] would resolve at once, and well.
    fn is_safe(&self, written: Written) -> bool;

    /// What to wait for until the frame that starts here is safe.
    fn frame_at(&self, at: Position) -> Written;

    /// Everything that was proposed so far. Together with what was so far before, it is lost if anything was meanwhile.
    fn so_far(&self, urgency: Urgency) -> Written;

    /// Bytes that wait to be written.
    fn unwritten_bytes(&self) -> usize;

    /// Whether a proposal that may not wait would not be told now that the journal is busy.
    fn has_room(&self) -> bool;

    /// Returns when [`Self::has_room`]. Others may be quicker to use it.
    fn wait_for_room(&self);

    /// Whether it can take and keep what is proposed.
    fn health(&self) -> LogHealth;

    /// Whether what was proposed may be shown to clients before it is safe: a crash may take it back, but then nobody is
    /// there who saw it and relies on it, and nothing else takes its place unnoticed. A journal that can lose proposals
    /// while the broker runs must say no.
    fn releases_early(&self) -> bool;

    /// Frames that were proposed and lost: whoever reads the log passes them over.
    fn discarded(&self) -> &Discarded;

    /// Has `hook` called when proposals were lost. From then on every proposal is refused as [`ProposeError::Lost`], until
    /// [`Self::resume`], and what is [so far](Self::so_far) counts as lost: memory still has it. The hook must be quick and must not call the journal.
    fn on_loss(&self, hook: Box<dyn Fn() + Send + Sync>);

    /// What is to be done about the broker's memory.
    fn standing(&self) -> Standing;

    /// The term in which this node serves, if it does. As long as that is the same, nothing has come between.
    fn serving_term(&self) -> Option<u32>;

    /// Resolves when it is certain that this node has served since this ticket was given, up to a moment after this call; or that
    /// it is not. A node that was cut off does not know yet that another serves, and what it knows may be of the past.
    fn confirm_standing(&self, _since: Written) -> Waiting {
        Waiting::NOTHING
    }

    /// The memory has been thrown away, and another node serves.
    fn stood_down(&self) {}

    /// What counts is about to be read from the log into memory: gives back up to which entry, if entries count only when they are
    /// committed.
    fn begin_load(&self) -> Option<LogIndex> {
        None
    }

    /// Begins a new term: memory is what was written down. `false` if that is not so any more.
    fn resume(&self) -> bool;

    /// Where the first frame lies that is not in memory, if there may be any.
    fn state_end(&self) -> Option<Position> {
        None
    }

    /// What a checkpoint has to say of a group, if it stands for all before this position.
    ///
    /// # Errors
    /// If not all of that is committed.
    fn mark(&self, _replay_from: Position) -> Result<Option<GroupMark>, ProposeError> {
        Ok(None)
    }

    /// The first of the segments that other nodes may still ask for, though nothing here needs them.
    fn keeps_from(&self) -> Option<SegmentId> {
        None
    }

    /// A checkpoint is safe that stands for all before the first position. What lies before the second is to be given up. Gives
    /// back before which position nobody is given anything from now on.
    fn checkpointed(&self, _replay_from: Position, given_up_before: Position) -> Position {
        given_up_before
    }

    /// The broker ends.
    fn stop(&self) {}
}
