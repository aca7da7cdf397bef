//! `tx.*`: publishes and acknowledgements that wait for a commit.

use std::collections::VecDeque;

use nexo_broker::{QueueError, Settle, Settling};

use super::channel::Mode;
use super::content::{MESSAGE_OVERHEAD_BYTES, Whole};
use super::error::{self, Refusal};
use super::intake::{ConnectionIntake, Hold};
use super::operations::{self, Wait};
use super::publish::Published;
use super::session::Session;
use super::settle::{BySource, LaterSettle, SETTLE_TURN};
use super::unacked::Held;
use crate::codec::method::{TxMethod, confirm, tx};

/// Memory is asked for in steps of this size, so that a small transaction asks once.
const STEP_BYTES: usize = 1 << 20;

/// What waits for a commit. Dropping it undoes it: what was to be settled goes back.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    publishes: VecDeque<Whole>,
    /// The memory that they take.
    pub(super) holds: Vec<Hold>,
    /// How much of it is not used yet.
    unused: usize,
    settles: Vec<LaterSettle>,
    /// How many messages that are.
    held: usize,
    /// What a commit has settled, and must still wait for.
    settling: Vec<Settling>,
}

impl Transaction {
    /// Keeps a message for the commit. Answers how much memory the connection must wait for, if it must.
    pub(super) fn publish(
        &mut self,
        message: Whole,
        hold: Option<Hold>,
        intake: &ConnectionIntake,
    ) -> Result<Option<usize>, Refusal> {
        let bytes = message.body.len() + message.properties.len() + MESSAGE_OVERHEAD_BYTES;
        let mut wait = None;
        if let Some(hold) = hold {
            self.holds.push(hold);
        } else if bytes <= self.unused {
            self.unused -= bytes;
        } else {
            let step = bytes.max(STEP_BYTES);
            match intake.ask(step)? {
                Some(hold) => self.holds.push(hold),
                None => wait = Some(step),
            }
            self.unused = step - bytes;
        }
        self.publishes.push_back(message);
        Ok(wait)
    }

    /// Settles messages with the commit.
    pub(super) fn settle(&mut self, later: LaterSettle) {
        self.held += later.held.iter().map(Held::count).sum::<usize>();
        self.settles.push(later);
    }

    /// How many messages come back if there is no commit.
    pub(super) const fn held(&self) -> usize {
        self.held
    }
}

/// A commit that waits for the disk, with its publishes or with what it settles. Its client waits for the answer, and
/// nothing that it says meanwhile is read.
#[derive(Debug)]
pub(super) struct Unfinished {
    pub(super) channel: u16,
    pub(super) transaction: Box<Transaction>,
    /// What came of its publishes.
    pub(super) published: Published,
    /// What came of asking whether what goes nowhere does so for certain.
    certain: Option<Result<(), QueueError>>,
    /// What came of waiting for what it settles.
    settled: Option<Result<(), QueueError>>,
    /// Whether the disk was behind while it settled.
    was_busy: bool,
}

impl Unfinished {
    pub(super) const fn new(channel: u16, transaction: Box<Transaction>) -> Self {
        let published = Published::NOTHING;
        Self { channel, transaction, published, certain: None, settled: None, was_busy: false }
    }

    /// Notes whether what goes nowhere does so for certain.
    pub(super) fn note_certain(&mut self, outcome: Result<(), QueueError>) {
        self.certain = Some(outcome);
    }

    /// Notes what came of waiting for what was settled, and what is left to wait for.
    pub(super) fn note_settled(&mut self, left: Vec<Settling>, outcome: Result<(), QueueError>) {
        self.transaction.settling = left;
        self.settled = Some(outcome);
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let mut groups = BySource::default();
        for held in self.settles.iter().flat_map(|later| &later.held) {
            groups.add(held);
        }
        groups.settle_eventually(Settle::Requeue);
    }
}

impl Session {
    pub(super) fn tx_method(&mut self, number: u16, method: &TxMethod) -> Result<(), Refusal> {
        match method {
            TxMethod::Select(_) => {
                let channel = self.channel(number)?;
                match &channel.mode {
                    Mode::Plain => {
                        channel.mode = Mode::Transaction(Box::default());
                        channel.shown.set_transactional();
                    }
                    Mode::Transaction(_) => {}
                    Mode::Confirm(_) => {
                        return Err(Refusal::precondition("cannot switch from confirm to tx mode"));
                    }
                }
                self.answer(number, &tx::SelectOk {});
                Ok(())
            }
            TxMethod::Commit(_) => self.commit(number),
            TxMethod::Rollback(_) => {
                let mut undone = self.begin_anew(number)?;
                let held = undone.settles.drain(..).flat_map(|later| later.held).collect();
                let channel = self.channel(number)?;
                channel.unacked.put_back(held);
                channel.show_deliveries();
                self.answer(number, &tx::RollbackOk {});
                Ok(())
            }
            TxMethod::SelectOk(_) | TxMethod::CommitOk(_) | TxMethod::RollbackOk(_) => {
                Err(error::unimplemented())
            }
        }
    }

    pub(super) fn select_confirms(&mut self, number: u16, select: &confirm::Select) -> Result<(), Refusal> {
        let channel = self.channel(number)?;
        match &channel.mode {
            Mode::Plain => {
                channel.mode = Mode::Confirm(0);
                channel.shown.set_confirms();
            }
            Mode::Confirm(_) => {}
            Mode::Transaction(_) => {
                return Err(Refusal::precondition("cannot switch from tx to confirm mode"));
            }
        }
        self.answer_unless(select.nowait, number, &confirm::SelectOk {});
        Ok(())
    }

    /// Answers when everything is as safe as it would be if it were confirmed.
    fn commit(&mut self, number: u16) -> Result<(), Refusal> {
        let done = self.begin_anew(number)?;
        self.finish_commit(Unfinished::new(number, done))
    }

    /// Comes as far with a commit as it can now. What it must wait for holds up the connection, which then calls this again.
    pub(super) fn finish_commit(&mut self, mut commit: Unfinished) -> Result<(), Refusal> {
        if !self.publish_all(&mut commit)? {
            self.unfinished = Some(commit);
            return Ok(());
        }
        if commit.published.refused_commit {
            // What it settles comes back.
            return Err(Refusal::precondition("partial tx completion"));
        }
        if let Some(began) = commit.published.look.take() {
            self.hold_up_commit(Wait::Certain(commit.published.written, began), commit);
            return Ok(());
        }
        if let Some(outcome) = commit.certain.take() {
            outcome?;
        }
        let broker = self.shared.broker.clone();
        match operations::is_safe(&broker, commit.published.written) {
            Some(safe) => safe?,
            None => {
                self.hold_up_commit(Wait::Safe(commit.published.written), commit);
                return Ok(());
            }
        }
        let outcome = match commit.settled.take() {
            Some(outcome) => outcome,
            None => match self.begin_settles(&mut commit) {
                Ok(true) if commit.transaction.settling.is_empty() => Ok(()),
                Ok(true) => {
                    let left = std::mem::take(&mut commit.transaction.settling);
                    self.hold_up_commit(Wait::Settled(left), commit);
                    return Ok(());
                }
                Ok(false) => {
                    self.hold_up_commit(Wait::Turn, commit);
                    return Ok(());
                }
                Err(error) => Err(error),
            },
        };
        match outcome {
            Ok(()) if commit.was_busy => {
                // What was settled of a queue before the disk fell behind is answered for as well.
                commit.was_busy = false;
                let written = commit.published.written.and(broker.all_so_far());
                commit.published.written = written;
                commit.settled = Some(Ok(()));
                self.hold_up_commit(Wait::Safe(written), commit);
            }
            Ok(()) => {
                // The channel may have been closed while this waited for the disk.
                if self.is_open(commit.channel) {
                    self.answer(commit.channel, &tx::CommitOk {});
                }
            }
            Err(error) if error.is_busy() => {
                commit.was_busy = true;
                self.hold_up_commit(Wait::CatchUp, commit);
            }
            Err(QueueError::Alarm(alarm)) => {
                self.block(&alarm);
                self.unfinished = Some(commit);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn hold_up_commit(&mut self, until: Wait, commit: Unfinished) {
        self.hold_up(until);
        self.unfinished = Some(commit);
    }

    /// Pushes what a commit publishes; `false` if something is left. Copies for many queues are made a part at a time.
    fn publish_all(&mut self, commit: &mut Unfinished) -> Result<bool, Refusal> {
        loop {
            let Some(mut message) = commit.transaction.publishes.pop_front() else { break };
            self.publish_now(commit.channel, &mut message.as_incoming())?;
            if self.outbox.is_full() {
                match self.flush_publishes() {
                    Some(published) => commit.published = commit.published.and(published),
                    None => return Ok(false),
                }
            }
        }
        let Some(published) = self.flush_publishes() else { return Ok(false) };
        commit.published = commit.published.and(published);
        Ok(true)
    }

    /// Settles in order, many in a row with one call for each queue. `false` if others should have their turn before the
    /// rest. What could not be written down is left.
    fn begin_settles(&mut self, commit: &mut Unfinished) -> Result<bool, QueueError> {
        self.flush_acks();
        let Transaction { settles, settling, .. } = &mut *commit.transaction;
        let Some(first) = settles.first() else { return Ok(true) };
        let what = first.what;
        let mut groups = BySource::default();
        let mut alike = 0;
        for later in settles.iter().take_while(|later| later.what == what) {
            later.held.iter().for_each(|held| groups.add(held));
            alike += 1;
            if groups.len() >= SETTLE_TURN {
                break;
            }
        }
        let outcome = groups.begin_settle(what, settling);
        self.retry_credit(&std::mem::take(&mut groups.retry_credit));
        if let Err(error) = outcome {
            for later in &mut settles[..alike] {
                later.held.retain(|held| groups.contains(&held.source));
            }
            return Err(error);
        }
        settles.drain(..alike);
        Ok(settles.is_empty())
    }

    fn begin_anew(&mut self, number: u16) -> Result<Box<Transaction>, Refusal> {
        let channel = self.channel(number)?;
        channel.shown.uncommitted.set(0);
        channel.shown.acks_uncommitted.set(0);
        match &mut channel.mode {
            Mode::Transaction(transaction) => Ok(std::mem::take(transaction)),
            Mode::Plain | Mode::Confirm(_) => Err(Refusal::precondition("channel is not transactional")),
        }
    }
}
