//! `tx.*`: publishes and acknowledgements that wait for a commit.

use nexo_broker::{QueueError, Settle, Settling, Written};

use super::channel::Mode;
use super::content::{MESSAGE_OVERHEAD_BYTES, Whole};
use super::error::{self, Refusal};
use super::intake::{ConnectionIntake, Hold};
use super::session::Session;
use super::settle::{Groups, LaterSettle};
use crate::codec::method::{TxMethod, confirm, tx};

/// Memory is asked for in steps of this size, so that a small transaction asks once.
const STEP_BYTES: usize = 1 << 20;

/// What waits for a commit. Dropping it undoes it: what was to be settled goes back.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    publishes: Vec<Whole>,
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
        self.publishes.push(message);
        Ok(wait)
    }

    /// Settles messages with the commit.
    pub(super) fn settle(&mut self, later: LaterSettle) {
        self.held += later.held.len();
        self.settles.push(later);
    }

    /// How many messages come back if there is no commit.
    pub(super) const fn held(&self) -> usize {
        self.held
    }
}

/// A commit for which there was no room on the disk, for its publishes or for what it settles. Its client waits for the answer, as RabbitMQ's would.
#[derive(Debug)]
pub(super) struct Unfinished {
    pub(super) channel: u16,
    pub(super) transaction: Box<Transaction>,
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let mut groups = Groups::default();
        for held in self.settles.iter().flat_map(|later| &later.held) {
            groups.add(held);
        }
        groups.settle_eventually(Settle::Requeue);
    }
}

impl Session {
    pub(super) async fn tx_method(&mut self, number: u16, method: &TxMethod) -> Result<(), Refusal> {
        match method {
            TxMethod::Select(_) => {
                let channel = self.channel(number)?;
                match &channel.mode {
                    Mode::Plain => channel.mode = Mode::Transaction(Box::default()),
                    Mode::Transaction(_) => {}
                    Mode::Confirm(_) => {
                        return Err(Refusal::precondition("cannot switch from confirm to tx mode"));
                    }
                }
                self.answer(number, &tx::SelectOk {});
                Ok(())
            }
            TxMethod::Commit(_) => self.commit(number).await,
            TxMethod::Rollback(_) => {
                let mut undone = self.begin_anew(number)?;
                let channel = self.channel(number)?;
                for later in undone.settles.drain(..) {
                    channel.unacked.put_back(later.held);
                }
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
            Mode::Plain => channel.mode = Mode::Confirm(0),
            Mode::Confirm(_) => {}
            Mode::Transaction(_) => {
                return Err(Refusal::precondition("cannot switch from tx to confirm mode"));
            }
        }
        self.answer_unless(select.nowait, number, &confirm::SelectOk {});
        Ok(())
    }

    /// Answers when everything is as safe as it would be if it were confirmed.
    async fn commit(&mut self, number: u16) -> Result<(), Refusal> {
        let mut done = self.begin_anew(number)?;
        for mut message in std::mem::take(&mut done.publishes) {
            self.publish_now(number, &mut message.as_incoming())?;
            // Copies for many queues are made a part at a time. On a full disk the rest waits with them.
            if self.outbox.is_full()
                && !self.blocked
                && let Some(written) = self.flush_publishes().await
            {
                self.outbox.keep_written(written);
            }
        }
        match self.flush_publishes().await {
            Some(written) => self.finish_commit(number, done, written).await,
            None => {
                self.unfinished = Some(Unfinished { channel: number, transaction: done });
                Ok(())
            }
        }
    }

    /// Does what is left when all publishes of a commit are with the broker.
    pub(super) async fn finish_commit(
        &mut self,
        number: u16,
        mut done: Box<Transaction>,
        written: Written,
    ) -> Result<(), Refusal> {
        let broker = self.shared.broker.clone();
        broker.wait_for(written).await?;
        let mut was_busy = false;
        let outcome = loop {
            let begun = self.begin_settles(&mut done.settles, &mut done.settling);
            let outcome = begun.and(settled(&mut done.settling).await);
            if outcome != Err(QueueError::Busy) {
                break outcome;
            }
            was_busy = true;
            broker.disk_caught_up().await;
            tokio::task::yield_now().await;
        };
        if was_busy {
            // What was settled of a queue before the disk fell behind is answered for as well.
            broker.wait_for(broker.all_so_far()).await?;
        }
        match outcome {
            Ok(()) => {
                // The channel may have been closed while this waited for the disk.
                if self.is_open(number) {
                    self.answer(number, &tx::CommitOk {});
                }
                Ok(())
            }
            Err(QueueError::DiskFull { reason }) => {
                self.block(&reason);
                self.unfinished = Some(Unfinished { channel: number, transaction: done });
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Settles in order, many in a row with one call for each queue. What could not be written down is left.
    fn begin_settles(
        &mut self,
        settles: &mut Vec<LaterSettle>,
        begun: &mut Vec<Settling>,
    ) -> Result<(), QueueError> {
        self.flush_acks();
        while let Some(first) = settles.first() {
            let what = first.what;
            let alike = settles.iter().take_while(|later| later.what == what).count();
            let mut groups = Groups::default();
            for held in settles[..alike].iter().flat_map(|later| &later.held) {
                groups.add(held);
            }
            let outcome = groups.begin_settle(what, begun);
            self.ease(&std::mem::take(&mut groups.eased));
            if let Err(error) = outcome {
                for later in &mut settles[..alike] {
                    later.held.retain(|held| groups.contains(&held.source));
                }
                return Err(error);
            }
            settles.drain(..alike);
        }
        Ok(())
    }

    fn begin_anew(&mut self, number: u16) -> Result<Box<Transaction>, Refusal> {
        match &mut self.channel(number)?.mode {
            Mode::Transaction(transaction) => Ok(std::mem::take(transaction)),
            Mode::Plain | Mode::Confirm(_) => Err(Refusal::precondition("channel is not transactional")),
        }
    }
}

/// Waits until all is done, and forgets what is. What found no room is left.
async fn settled(settling: &mut Vec<Settling>) -> Result<(), QueueError> {
    while let Some(last) = settling.last_mut() {
        last.done().await?;
        settling.pop();
    }
    Ok(())
}
