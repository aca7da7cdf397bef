//! A journal for tests that can do what a Raft group does: hold proposals back, refuse them, and lose a suffix of them.
//!
//! It is a local log in which each proposal is *pending* until it is committed. When a suffix is lost, the tickets of
//! those proposals resolve as lost, their frames do not count any more, and nothing is taken until the broker has rebuilt
//! its queues. What is this node's own is written to the log and is never lost.

use std::collections::VecDeque;
use std::sync::Arc;

use nexo_log::{Claim, EntryRef, Frame, Log, LogHealth, Patience, Urgency};
use nexo_types::{Position, SegmentId};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::discarded::Discarded;
use super::error::{ProposeError, TicketError};
use super::local::LocalJournal;
use super::ticket::{Waiting, Written};
use super::{Journal, Proposed, Standing};

/// The term of what is not proposed, and cannot be lost.
const LOCAL: u32 = u32::MAX - 1;
/// Behind everything.
const END: Position = Position { segment: SegmentId(u32::MAX), byte: u32::MAX };

/// A clone is the same journal: the broker has one, and the test that moves it.
#[derive(Clone, Debug)]
pub(crate) struct FakeJournal(Arc<Inner>);

struct Inner {
    local: LocalJournal,
    log: Log,
    state: Mutex<State>,
    discarded: Discarded,
    hook: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeJournal").field("state", &*self.state.lock()).finish_non_exhaustive()
    }
}

/// When proposals are committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pace {
    /// At once.
    #[default]
    AtOnce,
    /// When the test says so.
    Held,
}

#[derive(Debug, Default)]
struct State {
    pace: Pace,
    term: u32,
    /// Proposals were lost, and the broker has not rebuilt its queues yet.
    fenced: bool,
    /// Where proposals start that are not committed yet.
    pending: VecDeque<Position>,
    /// Of each term that is over: where the first frame lies that was lost.
    cuts: Vec<Position>,
    /// The next proposals are refused with these.
    refusals: VecDeque<ProposeError>,
    waiters: Vec<(Written, oneshot::Sender<Result<(), TicketError>>)>,
    /// What was committed, in its order.
    committed: Vec<Frame>,
}

impl State {
    /// What became of a proposal, if that is known.
    fn outcome(&self, written: Written) -> Option<Result<(), TicketError>> {
        match self.cuts.get(written.term() as usize) {
            Some(cut) => Some(if written.end() <= *cut { Ok(()) } else { Err(TicketError::Lost) }),
            None => {
                let safe_to = self.pending.front().copied().unwrap_or(END);
                (written.end() <= safe_to).then_some(Ok(()))
            }
        }
    }

    fn tell(&mut self) {
        for (written, sender) in std::mem::take(&mut self.waiters) {
            match self.outcome(written) {
                // Whoever waited may have gone.
                Some(outcome) => drop(sender.send(outcome)),
                None => self.waiters.push((written, sender)),
            }
        }
    }

    fn commit(&mut self, log: &Log, count: usize) {
        for _ in 0..count {
            let Some(at) = self.pending.pop_front() else { break };
            self.committed.push(log.read_frame(at).unwrap());
        }
        self.tell();
    }
}

impl FakeJournal {
    pub(crate) fn new(log: Log) -> Self {
        Self(Arc::new(Inner {
            local: LocalJournal::new(log.clone()),
            log,
            state: Mutex::default(),
            discarded: Discarded::default(),
            hook: Mutex::default(),
        }))
    }

    /// From now on proposals are committed like this; those that are pending stay so.
    pub(crate) fn set_pace(&self, pace: Pace) {
        self.0.state.lock().pace = pace;
    }

    /// Commits the next proposals, as many as there are.
    pub(crate) fn commit(&self, count: usize) {
        self.0.state.lock().commit(&self.0.log, count);
    }

    /// Refuses the next proposal with this.
    pub(crate) fn refuse_next(&self, error: ProposeError) {
        self.0.state.lock().refusals.push_back(error);
    }

    /// Forgets refusals that nobody has met.
    pub(crate) fn refuse_no_more(&self) {
        self.0.state.lock().refusals.clear();
    }

    /// Commits so many of the proposals that are pending, and loses the rest.
    pub(crate) fn lose_behind(&self, kept: usize) {
        {
            let mut state = self.0.state.lock();
            if state.fenced {
                return;
            }
            state.commit(&self.0.log, kept);
            let lost: Vec<Position> = state.pending.drain(..).collect();
            state.cuts.push(lost.first().copied().unwrap_or(END));
            self.0.discarded.add(lost);
            state.fenced = true;
            state.tell();
        }
        if let Some(hook) = &*self.0.hook.lock() {
            hook();
        }
    }

    /// How many proposals are pending.
    pub(crate) fn pending(&self) -> usize {
        self.0.state.lock().pending.len()
    }

    /// Whether it has lost something and the broker has not rebuilt its queues yet.
    pub(crate) fn is_fenced(&self) -> bool {
        self.0.state.lock().fenced
    }

    /// What was committed, in its order.
    pub(crate) fn committed<R>(&self, look: impl FnOnce(&[Frame]) -> R) -> R {
        look(&self.0.state.lock().committed)
    }
}

impl Journal for FakeJournal {
    fn propose(
        &self,
        entries: &[EntryRef<'_>],
        urgency: Urgency,
        claim: Claim,
        patience: Patience,
    ) -> Result<Proposed, ProposeError> {
        let mut state = self.0.state.lock();
        if state.fenced {
            return Err(ProposeError::Lost);
        }
        if let Some(refusal) = state.refusals.pop_front() {
            return Err(refusal);
        }
        let proposed = self.0.local.propose(entries, urgency, claim, patience)?;
        state.pending.push_back(proposed.at);
        let written = Written::new(proposed.written.end(), state.term, urgency);
        if state.pace == Pace::AtOnce {
            state.commit(&self.0.log, usize::MAX);
        }
        Ok(Proposed { at: proposed.at, written })
    }

    fn write_local(
        &self,
        entries: &[EntryRef<'_>],
        urgency: Urgency,
        claim: Claim,
        patience: Patience,
    ) -> Result<Proposed, ProposeError> {
        let Proposed { at, written } = self.0.local.propose(entries, urgency, claim, patience)?;
        Ok(Proposed { at, written: Written::new(written.end(), LOCAL, urgency) })
    }

    fn wait(&self, written: Written) -> Waiting {
        if written.is_nothing() {
            return Waiting::NOTHING;
        }
        if written.term() == LOCAL {
            return self.0.local.wait(written);
        }
        let (sender, receiver) = oneshot::channel();
        let mut state = self.0.state.lock();
        state.waiters.push((written, sender));
        state.tell();
        Waiting::told(receiver)
    }

    fn is_safe(&self, written: Written) -> bool {
        written.is_nothing() || self.0.state.lock().outcome(written) == Some(Ok(()))
    }

    fn frame_at(&self, at: Position) -> Written {
        Written::frame_at(at, self.0.state.lock().term)
    }

    fn so_far(&self, urgency: Urgency) -> Written {
        let state = self.0.state.lock();
        Written::new(self.0.log.unwritten().1, state.term, urgency)
    }

    fn unwritten_bytes(&self) -> usize {
        self.0.local.unwritten_bytes()
    }

    fn has_room(&self) -> bool {
        self.0.local.has_room()
    }

    fn wait_for_room(&self) {
        self.0.local.wait_for_room();
    }

    fn health(&self) -> LogHealth {
        self.0.local.health()
    }

    fn releases_early(&self) -> bool {
        false
    }

    fn discarded(&self) -> &Discarded {
        &self.0.discarded
    }

    fn on_loss(&self, hook: Box<dyn Fn() + Send + Sync>) {
        *self.0.hook.lock() = Some(hook);
    }

    fn standing(&self) -> Standing {
        if self.is_fenced() { Standing::Lost } else { Standing::Serving }
    }

    fn serving_term(&self) -> Option<u32> {
        let state = self.0.state.lock();
        (!state.fenced).then_some(state.term)
    }

    fn resume(&self) -> bool {
        let mut state = self.0.state.lock();
        // Not before: until now memory was that of the term that is over, and so is what rests on it.
        state.term += 1;
        state.fenced = false;
        true
    }
}
