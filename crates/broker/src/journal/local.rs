//! The journal of a node by itself: its log. What is synced is safe, and nothing is lost but with the process.

use nexo_log::{Appended, Claim, EntryRef, Log, LogHealth, Patience, Urgency};
use nexo_types::Position;

use super::discarded::Discarded;
use super::error::ProposeError;
use super::ticket::{Waiting, Written};
use super::{Journal, Proposed, Standing};

/// A log has one term.
const TERM: u32 = 0;

/// The log of this node as a journal.
#[derive(Debug)]
pub(crate) struct LocalJournal {
    log: Log,
    nothing_discarded: Discarded,
}

impl LocalJournal {
    pub(crate) fn new(log: Log) -> Self {
        Self { log, nothing_discarded: Discarded::default() }
    }
}

impl Journal for LocalJournal {
    fn propose(
        &self,
        entries: &[EntryRef<'_>],
        urgency: Urgency,
        claim: Claim,
        patience: Patience,
    ) -> Result<Proposed, ProposeError> {
        let Appended { at, end } = self.log.append_with(entries, urgency, claim, patience)?;
        Ok(Proposed { at, written: Written::new(end, TERM, urgency) })
    }

    fn write_local(
        &self,
        entries: &[EntryRef<'_>],
        urgency: Urgency,
        claim: Claim,
        patience: Patience,
    ) -> Result<Proposed, ProposeError> {
        self.propose(entries, urgency, claim, patience)
    }

    fn wait(&self, written: Written) -> Waiting {
        match written.urgency() {
            Urgency::Synced => Waiting::log(self.log.synced(written.end())),
            Urgency::Written => Waiting::log(self.log.written(written.end())),
            Urgency::Lazy => Waiting::NOTHING,
        }
    }

    fn is_safe(&self, written: Written) -> bool {
        written.is_nothing() || written.end() <= self.log.synced_position()
    }

    fn frame_at(&self, at: Position) -> Written {
        Written::frame_at(at, TERM)
    }

    fn so_far(&self, urgency: Urgency) -> Written {
        Written::new(self.log.unwritten().1, TERM, urgency)
    }

    fn unwritten_bytes(&self) -> usize {
        self.log.unwritten().0
    }

    fn has_room(&self) -> bool {
        self.log.has_room()
    }

    fn wait_for_room(&self) {
        self.log.wait_for_room();
    }

    fn health(&self) -> LogHealth {
        self.log.health()
    }

    fn releases_early(&self) -> bool {
        true
    }

    fn discarded(&self) -> &Discarded {
        &self.nothing_discarded
    }

    /// That never happens.
    fn on_loss(&self, _hook: Box<dyn Fn() + Send + Sync>) {}

    fn standing(&self) -> Standing {
        Standing::Serving
    }

    fn serving_term(&self) -> Option<u32> {
        Some(0)
    }

    fn resume(&self) -> bool {
        true
    }
}
