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

type Key = (QueueId, String);

/// Receives that may be tried again, and what they were answered.
#[derive(Debug, Default)]
pub(super) struct RepeatedReceives(Mutex<HashMap<Key, (Instant, Vec<Message>)>>);

impl RepeatedReceives {
    /// Remembers what an attempt was answered.
    pub(super) fn remember(&self, key: Key, messages: &[Message]) {
        if messages.is_empty() {
            return;
        }
        let mut attempts = self.0.lock();
        attempts.retain(|_, (at, _)| at.elapsed() < WINDOW);
        if attempts.len() >= ATTEMPTS_MAX
            && let Some(oldest) = attempts.iter().min_by_key(|(_, (at, _))| *at).map(|(key, _)| key.clone())
        {
            attempts.remove(&oldest);
        }
        attempts.insert(key, (Instant::now(), messages.to_vec()));
    }

    /// What an attempt was answered, as far as it still holds; the messages are kept for `visibility` from now.
    pub(super) async fn again(&self, broker: &Broker, key: &Key, visibility: Millis) -> Vec<Message> {
        let known = self.0.lock().get(key).filter(|(at, _)| at.elapsed() < WINDOW).map(|(_, m)| m.clone());
        let Some(messages) = known else { return Vec::new() };
        let receipts: Vec<Receipt> = messages
            .iter()
            .filter_map(|message| receipt_handle::decode(&message.receipt_handle).ok())
            .collect();
        let held = broker.extend(&receipts, visibility).await;
        messages.into_iter().zip(held).filter_map(|(message, held)| held.is_ok().then_some(message)).collect()
    }
}
