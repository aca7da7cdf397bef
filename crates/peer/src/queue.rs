//! Envelopes that wait to be sent to one node. Whoever sends never waits: what there is no room for is dropped, and so is
//! everything while there is no connection. Raft sends again what is still wanted.

use std::collections::VecDeque;

use nexo_types::limits::PEER_QUEUE_BYTES_MAX;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The queue before one connection.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    state: Mutex<State>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct State {
    is_connected: bool,
    waiting: VecDeque<Vec<u8>>,
    /// Of those that wait, and of the one that is being written.
    bytes: usize,
    dropped: u64,
}

impl SendQueue {
    /// Adds an envelope behind the others, if it can be sent.
    pub(crate) fn push(&self, envelope: Vec<u8>) {
        let mut state = self.state.lock();
        let has_room = state.bytes == 0 || state.bytes + envelope.len() <= PEER_QUEUE_BYTES_MAX;
        if !state.is_connected || !has_room {
            state.dropped += 1;
            return;
        }
        state.bytes += envelope.len();
        state.waiting.push_back(envelope);
        drop(state);
        self.filled.notify_one();
    }

    /// There is a connection from now on.
    pub(crate) fn connect(&self) {
        self.state.lock().is_connected = true;
    }

    /// There is none any more, and what waits for it is dropped.
    pub(crate) fn disconnect(&self) {
        let mut state = self.state.lock();
        let lost = std::mem::take(&mut state.waiting);
        (state.is_connected, state.bytes) = (false, 0);
        state.dropped += lost.len() as u64;
    }

    /// The next one. It counts until [`written`](Self::written) is called for it.
    pub(crate) fn pop(&self) -> Option<Vec<u8>> {
        self.state.lock().waiting.pop_front()
    }

    /// An envelope of so many bytes has been written.
    pub(crate) fn written(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.bytes = state.bytes.saturating_sub(bytes);
    }

    /// Resolves when something was added since the last time. One waits at a time.
    pub(crate) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// How many were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.state.lock().dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_waits_for_a_connection_that_is_not_there() {
        let queue = SendQueue::default();
        queue.push(vec![1]);
        queue.connect();
        assert_eq!((queue.pop(), queue.dropped()), (None, 1));
        queue.push(vec![2]);
        queue.disconnect();
        queue.connect();
        assert_eq!((queue.pop(), queue.dropped()), (None, 2));
    }

    #[test]
    fn what_waits_is_bounded_and_what_is_larger_passes_alone() {
        let queue = SendQueue::default();
        queue.connect();
        queue.push(vec![0; PEER_QUEUE_BYTES_MAX + 1]);
        queue.push(vec![1]);
        assert_eq!(queue.dropped(), 1, "there is no room beside the large one");
        let large = queue.pop().unwrap();
        queue.push(vec![2]);
        assert_eq!(queue.dropped(), 2, "it counts until it is written");
        queue.written(large.len());
        queue.push(vec![3; PEER_QUEUE_BYTES_MAX - 1]);
        queue.push(vec![4]);
        queue.push(vec![5]);
        assert_eq!(queue.dropped(), 3);
        assert_eq!(queue.pop().map(|next| next[0]), Some(3));
        assert_eq!(queue.pop(), Some(vec![4]));
    }
}
