//! What a session still has to do, in order, though it may have to wait in between: how channels and the connection end,
//! and whatever is too much to be done at once. No frame is taken before all of it is done.

use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt;
use nexo_broker::{QueueError, QueueHandle, Settle, Written};

use super::error::Refusal;
use super::leaving::Leaving;
use super::operations::{self, Done, Operation};
use super::session::{ChannelState, ConnectionPhase, Session};
use crate::codec::method::basic;
use crate::codec::{AmqpMethod, ReplyCode, ShortStr, encode_method};

/// One thing to be done.
#[derive(Debug)]
pub(super) enum Step {
    /// Ends a channel or the connection, when everything that was published before is pushed, and what the refusal rests on
    /// is safe.
    Refuse { number: u16, refusal: Refusal },
    /// Everything that was published is pushed, unless the disk is full.
    Flush,
    /// The answers are given that a channel is owed, or for channel 0 those of all.
    GiveAnswers(u16),
    /// Gives back what a channel holds, and says `reply` then.
    LeaveChannel { number: u16, after: Option<ChannelState>, reply: Vec<u8> },
    /// Gives back everything that the connection holds.
    LeaveConnection,
    /// Gives something back.
    Leave(Leaving),
    /// Has auto-delete queues go that have lost their last consumer: a client that is told of the end may count on it.
    DeleteLeftAlone { queues: Vec<QueueHandle>, written: Written },
    /// Has the queues go that belong to the connection.
    EndSession,
    /// As [`Self::DeleteLeftAlone`] for a consumer that was cancelled, and answers when that is safe.
    AnswerCancel { number: u16, queue: Option<QueueHandle>, tag: Bytes, nowait: bool },
    /// Settles the rest of what a channel holds, up to a tag.
    Settle { number: u16, last: u64, what: Settle, within: SettleWithin },
    /// Says something, and goes to another phase.
    Say { frame: Vec<u8>, phase: Option<ConnectionPhase> },
}

/// Whether messages are settled at once or with the channel's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SettleWithin {
    Nothing,
    Transaction,
}

/// Whether a step is done.
enum Progress {
    Done,
    /// It is tried again when what it waits for has come.
    Waits(Step),
}

/// A frame with one method.
pub(super) fn frame_of<M: AmqpMethod>(number: u16, method: &M) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_method(&mut frame, number, method);
    frame
}

impl Session {
    /// Whether something is to be done before the next frame is taken.
    pub(super) fn has_steps(&self) -> bool {
        self.operation.is_some() || !self.steps.is_empty()
    }

    /// Comes as far as it can now.
    pub(super) fn run_steps(&mut self) {
        while self.operation.is_none()
            && let Some(step) = self.steps.pop_front()
        {
            if let Progress::Waits(step) = self.run_step(step) {
                self.steps.push_front(step);
                return;
            }
        }
    }

    /// Begins an operation. If it needs no waiting, it is done when this returns.
    pub(super) fn perform(&mut self, operation: Operation) {
        self.only_waits = operation.only_waits();
        let mut pending = operations::perform(&self.shared.broker, operation);
        match (&mut pending).now_or_never() {
            Some(done) => self.note_done(done),
            None => self.operation = Some(pending),
        }
    }

    /// As [`Self::perform`], for one that is there to be waited for.
    pub(super) fn wait_for(&mut self, operation: Operation) {
        self.only_waits = operation.only_waits();
        self.operation = Some(operations::perform(&self.shared.broker, operation));
    }

    /// Gives an operation up that changes nothing, for somebody who has no use for what it waits for.
    pub(super) fn stop_waiting(&mut self) {
        if self.only_waits {
            self.operation = None;
        }
    }

    /// Has the frame that is being taken be taken again after an operation.
    pub(super) fn take_again_after(&mut self, operation: Operation) {
        self.takes_again = true;
        self.wait_for(operation);
    }

    /// Goes on after an operation.
    pub(super) fn has_done(&mut self, done: Done, now: Instant) {
        self.now = now;
        self.note_done(done);
        self.run_steps();
    }

    fn note_done(&mut self, done: Done) {
        self.operation = None;
        match done {
            Done::Over => {}
            Done::Safe(outcome) => self.safe = Some(outcome),
            Done::Got { channel, queue, terms, got } => {
                let written = self.write_got(channel, queue, terms, got);
                self.conclude(channel, written.map_err(|refusal| refusal.of(basic::Get::ID)));
            }
            Done::Purged { channel, nowait, purged } => self.answer_purge(channel, nowait, purged),
            Done::Closed { cancelled, rest } => {
                self.waiting.push_back(rest);
                self.finish_cancel(cancelled);
            }
        }
    }

    /// What came of waiting until a change is safe; `None` if that has to be waited for.
    fn when_safe(&mut self, written: Written) -> Option<Result<(), QueueError>> {
        if self.safe.is_none() {
            self.perform(Operation::Safe(written));
        }
        self.safe.take()
    }

    fn run_step(&mut self, step: Step) -> Progress {
        match step {
            Step::Refuse { number, refusal } => return self.refuse(number, refusal),
            Step::Flush => {
                if self.flush_publishes().is_none() && self.held_up.is_some() {
                    return Progress::Waits(Step::Flush);
                }
                self.flush_acks();
            }
            Step::GiveAnswers(number) => {
                let is_owed = match number {
                    0 => self.confirms.owes_answers(),
                    _ => self.confirms.owes_answer_to(number),
                };
                if is_owed {
                    return Progress::Waits(Step::GiveAnswers(number));
                }
            }
            Step::LeaveChannel { number, after, reply } => self.leave_channel(number, after, reply),
            Step::LeaveConnection => self.leave_connection(),
            Step::Leave(leaving) if leaving.is_large() => self.wait_for(Operation::Leave(leaving)),
            Step::Leave(leaving) => drop(leaving),
            Step::DeleteLeftAlone { queues, written } => return self.delete_left_alone(queues, written),
            Step::EndSession => self.perform(Operation::EndSession(self.id)),
            Step::AnswerCancel { number, queue, tag, nowait } => {
                // Who has the answer may count on it that an auto-delete queue is gone.
                let deleted =
                    queue.as_ref().map_or(Ok(Written::NOTHING), QueueHandle::try_delete_if_left_alone);
                let Ok(deleted) = deleted else {
                    self.wait_for(Operation::Room);
                    return Progress::Waits(Step::AnswerCancel { number, queue, tag, nowait });
                };
                let answer = basic::CancelOk { consumer_tag: ShortStr::clipped(&tag) };
                self.answer_when(deleted, nowait, number, &answer);
            }
            Step::Settle { number, last, what, within } => {
                if self.settle_some(number, last, what, within) {
                    self.wait_for(Operation::Turn);
                    return Progress::Waits(Step::Settle { number, last, what, within });
                }
            }
            Step::Say { frame, phase } => {
                self.out.frame(&frame);
                if let Some(phase) = phase {
                    self.enter(phase);
                }
            }
        }
        Progress::Done
    }

    fn refuse(&mut self, number: u16, mut refusal: Refusal) -> Progress {
        self.flush_acks();
        if self.flush_publishes().is_none() && self.held_up.is_some() {
            return Progress::Waits(Step::Refuse { number, refusal });
        }
        if refusal.rests_on_declares() {
            match self.when_safe(self.shared.broker.last_change()) {
                None => return Progress::Waits(Step::Refuse { number, refusal }),
                Some(Err(error)) => refusal = Refusal::from(error).of(refusal.method),
                Some(Ok(())) => {}
            }
        }
        // The specification ends the connection for want of resources, but it is one channel's message that finds none.
        let is_hard = refusal.code.is_hard() && refusal.code != ReplyCode::ResourceError;
        if is_hard || number == 0 {
            self.begin_close(&refusal);
        } else {
            self.begin_close_channel(number, &refusal);
        }
        Progress::Done
    }

    fn delete_left_alone(&mut self, mut queues: Vec<QueueHandle>, mut written: Written) -> Progress {
        while let Some(queue) = queues.last() {
            let Ok(deleted) = queue.try_delete_if_left_alone() else {
                self.wait_for(Operation::Room);
                return Progress::Waits(Step::DeleteLeftAlone { queues, written });
            };
            written = written.and(deleted);
            queues.pop();
        }
        // If the log has failed, the connection ends as well.
        match self.when_safe(written) {
            Some(_) => Progress::Done,
            None => Progress::Waits(Step::DeleteLeftAlone { queues, written }),
        }
    }
}
