//! Who was woken by what: every message is to wake one receiver, one of its own queue, and nobody else.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::percentiles;

/// Books on every message that was sent to those who wait. Moments count from the beginning of sending.
#[derive(Debug)]
pub(super) struct Ledger {
    queues: usize,
    messages: Vec<Message>,
    pub(super) wake_nanos: Histogram<u64>,
    /// Messages that came to a receiver of another queue, or that nobody has sent.
    pub(super) strayed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    due: Duration,
    wakes: u32,
}

/// How many receivers messages have woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Woken {
    /// Messages that woke exactly one receiver.
    pub one: u64,
    /// Messages that woke nobody.
    pub none: u64,
    /// Messages that woke several.
    pub several: u64,
}

impl Ledger {
    pub(super) fn new(queues: usize) -> Self {
        Self { queues, messages: Vec::new(), wake_nanos: percentiles::nanos(), strayed: 0 }
    }

    /// Another message, and when it was due; gives back its number and its queue.
    pub(super) fn send(&mut self, due: Duration) -> (usize, usize) {
        let number = self.messages.len();
        self.messages.push(Message { due, wakes: 0 });
        (number, number % self.queues)
    }

    /// A receiver of a queue was woken by the message with this text.
    pub(super) fn woken(&mut self, text: &str, queue: usize, at: Duration) {
        let number = text.parse::<usize>().ok().filter(|number| number % self.queues == queue);
        let Some(message) = number.and_then(|number| self.messages.get_mut(number)) else {
            self.strayed += 1;
            return;
        };
        message.wakes += 1;
        if message.wakes == 1 {
            percentiles::note(&mut self.wake_nanos, at.saturating_sub(message.due), 1);
        }
    }

    pub(super) fn sums(&self) -> Woken {
        let mut sums = Woken::default();
        for message in &self.messages {
            match message.wakes {
                0 => sums.none += 1,
                1 => sums.one += 1,
                _ => sums.several += 1,
            }
        }
        sums
    }

    /// How many were sent.
    pub(super) fn sent(&self) -> u64 {
        self.messages.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn every_wake_is_counted_once_and_from_when_it_was_due() {
        let mut ledger = Ledger::new(1);
        for due in [0, 5, 10] {
            ledger.send(millis(due));
        }
        ledger.woken("0", 0, millis(4));
        ledger.woken("1", 0, millis(9));
        ledger.woken("1", 0, millis(500));
        assert_eq!(ledger.sums(), Woken { one: 1, none: 1, several: 1 });
        assert_eq!((ledger.sent(), ledger.strayed), (3, 0));
        assert_eq!(ledger.wake_nanos.len(), 2);
        assert!((3_900_000..4_100_000).contains(&ledger.wake_nanos.max()));
    }

    #[test]
    fn a_message_belongs_to_one_queue() {
        let mut ledger = Ledger::new(2);
        assert_eq!(ledger.send(millis(0)), (0, 0));
        assert_eq!(ledger.send(millis(0)), (1, 1));
        ledger.woken("0", 1, millis(1));
        ledger.woken("1", 1, millis(1));
        ledger.woken("7", 1, millis(1));
        ledger.woken("hello", 0, millis(1));
        assert_eq!((ledger.strayed, ledger.sums()), (3, Woken { one: 1, none: 1, several: 0 }));
    }
}
