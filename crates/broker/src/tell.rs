//! Pushing what the broker tells of itself, events and the firehose's copies, to the queues that are bound to their exchanges.
//! What no queue takes is counted as dropped.
//!
//! While an alarm is on nothing else is pushed. Events pass it, since one may be the news of that very alarm: they are small,
//! and [`limits::EVENTS_IN_ALARM_BYTES_MAX`] bounds what all of them bring until it ends. Copies are as large as the messages
//! that they are made of, and wait for the end of it like those: they are dropped.

use std::sync::atomic::{AtomicUsize, Ordering};

use nexo_core::message::NewMessage;
use nexo_types::{QueueName, limits};

use crate::alarms::DuringAlarm;
use crate::broker::Broker;
use crate::error::{PushError, QueueError};

/// What the broker tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    /// Something that happened.
    Event,
    /// A message that is traced.
    Trace,
}

/// How much events brought during the alarm that is on.
#[derive(Debug, Default)]
pub(crate) struct AlarmAllowance(AtomicUsize);

impl AlarmAllowance {
    /// Whether `bytes` more may be brought while an alarm is on.
    fn take(&self, bytes: usize) -> bool {
        let more =
            |used: usize| used.checked_add(bytes).filter(|all| *all <= limits::EVENTS_IN_ALARM_BYTES_MAX);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// No alarm is on: the next one has all of it.
    fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Broker {
    /// Pushes what the broker tells to a queue. When this returns it is as safe as the queue promises, or counted as dropped.
    pub async fn tell(&self, telling: Telling, queue: &QueueName, messages: Vec<NewMessage>) {
        let count = messages.len();
        let lost = match self.try_tell(telling, queue, messages).await {
            // What a queue refuses by its own limits is its owner's wish.
            Ok(answers) => {
                let is_lost =
                    |answer: &Result<_, PushError>| matches!(answer, Err(PushError::Unavailable { .. }));
                answers.iter().filter(|answer| is_lost(answer)).count()
            }
            // One that has gone needs nothing.
            Err(QueueError::NotFound { .. }) => 0,
            Err(error) => {
                tracing::debug!(queue = %queue.in_full(), %error, "not told to a queue");
                count
            }
        };
        match telling {
            Telling::Event => self.shared.events.note_dropped(lost),
            Telling::Trace => self.shared.firehose.note_dropped(lost),
        }
    }

    async fn try_tell(
        &self,
        telling: Telling,
        queue: &QueueName,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Result<crate::request::Pushed, PushError>>, QueueError> {
        let during = match (self.shared.refuse_pushes(), telling) {
            (Ok(()), _) => {
                self.shared.events.in_alarm.reset();
                DuringAlarm::Refused
            }
            (Err(refused @ QueueError::Alarm(_)), Telling::Event) => {
                if !self.shared.events.in_alarm.take(messages.iter().map(bytes).sum()) {
                    return Err(refused);
                }
                DuringAlarm::Taken
            }
            (Err(refused), _) => return Err(refused),
        };
        self.push_during(during, queue, messages).await
    }
}

/// What a message takes, about.
fn bytes(message: &NewMessage) -> usize {
    size_of::<NewMessage>() + message.body.len() + message.properties.bytes.len() + message.address.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_lets_some_events_pass_and_the_next_as_many() {
        let allowance = AlarmAllowance::default();
        assert!(allowance.take(limits::EVENTS_IN_ALARM_BYTES_MAX - 1));
        assert!(!allowance.take(2) && !allowance.take(usize::MAX));
        assert!(allowance.take(1), "what did not fit took nothing");
        assert!(!allowance.take(1));
        allowance.reset();
        assert!(allowance.take(limits::EVENTS_IN_ALARM_BYTES_MAX));
    }
}
