//! Answers that wait for the disk. What a method changes is done when the next one is looked at, but its client is told only
//! when it is safe; so a client that sends many declarations in a row waits for few syncs.
//!
//! Answers of a channel keep their order. Those to methods that do not wait are not given before those that do. Deliveries and
//! returned messages are no answers, and may come in between.

use nexo_broker::{ExchangeError, QueueError, Written};

use super::error::Refusal;
use super::operations::Operation;
use super::session::{ChannelState, Session};
use crate::codec::method::{ExchangeMethod, QueueMethod};
use crate::codec::{AmqpMethod, Method, encode_method};

/// Whether the answer to a method is given by [`Session::answer_when`].
pub(super) fn is_answered_later(method: &Method<'_>) -> bool {
    use {ExchangeMethod as Exchange, QueueMethod as Queue};
    matches!(
        method,
        Method::Queue(Queue::Declare(_) | Queue::Bind(_) | Queue::Unbind(_) | Queue::Delete(_))
            | Method::Exchange(
                Exchange::Declare(_) | Exchange::Delete(_) | Exchange::Bind(_) | Exchange::Unbind(_)
            )
    )
}

impl Session {
    /// Answers a method when something is safe, unless the client said that it does not wait for that. If it never will
    /// be, the connection ends in either case.
    pub(super) fn answer_when<M: AmqpMethod>(
        &mut self,
        written: Written,
        nowait: bool,
        number: u16,
        method: &M,
    ) {
        let Some(ChannelState::Open(channel)) = self.channels.get(&number) else { return };
        if written.is_nothing() && !self.confirms.owes_answers() {
            self.answer_unless(nowait, number, method);
            return;
        }
        let mut frame = Vec::new();
        if !nowait {
            encode_method(&mut frame, number, method);
        }
        self.confirms.push_answer(number, channel.serial, frame, written);
    }

    /// As [`Self::answer_when`], for a change of exchanges or bindings. One for which the log has no room is tried again.
    pub(super) fn answer_change<E, M: AmqpMethod>(
        &mut self,
        changed: Result<Written, ExchangeError<E>>,
        refusal: impl FnOnce(ExchangeError<E>) -> Refusal,
        nowait: bool,
        number: u16,
        method: &M,
    ) -> Result<(), Refusal> {
        match changed {
            Err(ExchangeError::Queue(QueueError::Busy { .. })) => self.take_again_after(Operation::Room),
            Err(error) => return Err(refusal(error)),
            Ok(written) => self.answer_when(written, nowait, number, method),
        }
        Ok(())
    }

    /// Once an answer could not be given, no other is: the client must not take one for another.
    pub(super) fn refuse_after_failure(&self) -> Result<(), Refusal> {
        match &self.answer_failure {
            Some(error) => Err(error.clone().into()),
            None => Ok(()),
        }
    }
}
