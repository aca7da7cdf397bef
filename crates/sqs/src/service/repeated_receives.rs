//! Receives that are tried again: a client whose connection broke before the answer came asks with the same attempt id and
//! gets the same messages, as long as they are still kept for it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nexo_broker::{Broker, Receipt};
use nexo_types::{Millis, QueueId};
use parking_lot::Mutex;

use crate::receipt_handle;
use crate::response::Message;

/// How long AWS knows an attempt.
const WINDOW: Duration = Duration::from_secs(300);
/// Attempts that are remembered; beyond that the oldest go.
const ATTEMPTS_MAX: usize = 1000;
/// Bytes of bodies that are remembered with them; beyond that the oldest go.
const BYTES_MAX: usize = 64 * 1024 * 1024;

type Key = (QueueId, String);

/// Receives that may be tried again, and what they were answered.
#[derive(Debug, Default)]
pub(super) struct RepeatedReceives(Mutex<Attempts>);

#[derive(Debug, Default)]
struct Attempts {
    known: HashMap<Key, Attempt>,
    /// Of all bodies.
    bytes: usize,
}

#[derive(Debug)]
struct Attempt {
    at: Instant,
    messages: Vec<Message>,
}

impl RepeatedReceives {
    /// Remembers what an attempt was answered.
    pub(super) fn remember(&self, key: Key, messages: &[Message]) {
        if messages.is_empty() {
            return;
        }
        let mut attempts = self.0.lock();
        attempts.forget_old();
        attempts.insert(key, Attempt { at: Instant::now(), messages: messages.to_vec() });
    }

    /// What an attempt was answered, as far as it still holds; the messages are kept for `visibility` from now.
    pub(super) async fn again(&self, broker: &Broker, key: &Key, visibility: Millis) -> Vec<Message> {
        let known = self.0.lock().messages(key);
        let Some(messages) = known else { return Vec::new() };
        let receipts: Vec<Receipt> = messages
            .iter()
            .filter_map(|message| receipt_handle::decode(&message.receipt_handle).ok())
            .collect();
        let held = broker.extend(&receipts, visibility).await;
        messages.into_iter().zip(held).filter_map(|(message, held)| held.is_ok().then_some(message)).collect()
    }
}

impl Attempts {
    fn insert(&mut self, key: Key, attempt: Attempt) {
        self.remove(&key);
        self.bytes += attempt.bytes();
        self.known.insert(key, attempt);
        while self.known.len() > ATTEMPTS_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.known.iter().min_by_key(|(_, attempt)| attempt.at) else { break };
            let oldest = oldest.0.clone();
            self.remove(&oldest);
        }
    }

    fn forget_old(&mut self) {
        self.known.retain(|_, attempt| attempt.is_current());
        self.bytes = self.known.values().map(Attempt::bytes).sum();
    }

    fn remove(&mut self, key: &Key) {
        self.bytes -= self.known.remove(key).map_or(0, |attempt| attempt.bytes());
    }

    fn messages(&self, key: &Key) -> Option<Vec<Message>> {
        self.known.get(key).filter(|attempt| attempt.is_current()).map(|attempt| attempt.messages.clone())
    }
}

impl Attempt {
    fn is_current(&self) -> bool {
        self.at.elapsed() < WINDOW
    }

    fn bytes(&self) -> usize {
        self.messages.iter().map(|message| message.body.0.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;

    use super::*;
    use crate::response::Body;

    fn message(bytes: usize) -> Message {
        Message {
            message_id: String::new(),
            receipt_handle: String::new(),
            md5_of_body: String::new(),
            body: Body(Bytes::from(vec![b'x'; bytes])),
            attributes: BTreeMap::new(),
            md5_of_attributes: None,
            message_attributes: BTreeMap::new(),
        }
    }

    fn key(number: u64) -> Key {
        (QueueId(1), number.to_string())
    }

    #[test]
    fn the_oldest_attempts_go_when_they_hold_too_much() {
        let attempts = RepeatedReceives::default();
        for number in 0..5 {
            attempts.remember(key(number), &[message(BYTES_MAX / 4)]);
        }
        let known = attempts.0.lock();
        assert_eq!(known.bytes, BYTES_MAX);
        assert!(known.messages(&key(0)).is_none() && known.messages(&key(1)).is_some());
    }

    #[test]
    fn an_attempt_that_is_remembered_again_counts_once() {
        let attempts = RepeatedReceives::default();
        attempts.remember(key(1), &[message(10)]);
        attempts.remember(key(1), &[message(7)]);
        attempts.remember(key(2), &[]);
        let known = attempts.0.lock();
        assert_eq!((known.bytes, known.known.len()), (7, 1));
    }
}
