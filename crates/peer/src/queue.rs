//! Envelopes that wait to be sent to one node. Whoever sends never waits: what there is no room for is dropped, and so is
//! everything while there is no connection. Raft sends again what is still wanted.
//!
//! Small envelopes go out on the thread of whoever sends them, if nothing waits before them and the connection is plain: to wake
//! another thread for that takes longer than the sending. One at a time has the *pen*: that thread, or whoever holds the lock.

use std::collections::VecDeque;
use std::io::IoSlice;

use nexo_net::SharedSocket;
use nexo_types::limits::PEER_QUEUE_BYTES_MAX;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::frame::{HEAD_BYTES, envelope_head};

/// What is longer is left to the connection's own thread: to copy it to the system takes longer than to wake that.
const DIRECT_BYTES_MAX: usize = 16 << 10;

/// The queue before one connection.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    state: Mutex<State>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct State {
    is_connected: bool,
    /// Where small envelopes may be written at once.
    direct: Option<SharedSocket>,
    /// The connection's own thread writes.
    is_writing: bool,
    waiting: VecDeque<Waiting>,
    /// Of those that wait, and of the one that is being written.
    bytes: usize,
    dropped: u64,
}

/// What is to be written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// An envelope, behind a head.
    Envelope(Vec<u8>),
    /// The end of an envelope, of which the rest has gone out.
    Rest {
        /// All of it.
        envelope: Vec<u8>,
        /// So many bytes have gone out, those of the head among them.
        written: usize,
    },
}

impl SendQueue {
    /// Adds an envelope behind the others, if it can be sent. Tells whether it has gone out.
    pub(crate) fn push(&self, envelope: Vec<u8>) -> bool {
        let mut state = self.state.lock();
        let has_room = state.bytes == 0 || state.bytes + envelope.len() <= PEER_QUEUE_BYTES_MAX;
        if !state.is_connected || !has_room {
            state.dropped += 1;
            return false;
        }
        let written = state.write_now(&envelope);
        if written == HEAD_BYTES + envelope.len() {
            return true;
        }
        state.bytes += envelope.len();
        state.waiting.push_back(match written {
            0 => Waiting::Envelope(envelope),
            written => Waiting::Rest { envelope, written },
        });
        drop(state);
        self.filled.notify_one();
        false
    }

    /// There is a connection from now on. Whoever says so has the pen.
    pub(crate) fn connect(&self, direct: Option<SharedSocket>) {
        let mut state = self.state.lock();
        (state.is_connected, state.is_writing, state.direct) = (true, true, direct);
    }

    /// There is none any more, and what waits for it is dropped.
    pub(crate) fn disconnect(&self) {
        let mut state = self.state.lock();
        let lost = std::mem::take(&mut state.waiting);
        (state.is_connected, state.direct, state.bytes) = (false, None, 0);
        state.dropped += lost.len() as u64;
    }

    /// The connection's thread writes from now on, and nobody else.
    pub(crate) fn take_pen(&self) {
        self.state.lock().is_writing = true;
    }

    /// The connection's thread has written all, and others may. `false` if there is more.
    pub(crate) fn give_pen(&self) -> bool {
        let mut state = self.state.lock();
        state.is_writing = !state.waiting.is_empty();
        !state.is_writing
    }

    /// The next one, for whoever has the pen. It counts until [`written`](Self::written) is called for it.
    pub(crate) fn pop(&self) -> Option<Waiting> {
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

impl State {
    /// Writes what the system takes of an envelope and its head, if it is its turn. Tells how much that was.
    fn write_now(&self, envelope: &[u8]) -> usize {
        let Some(socket) = &self.direct else { return 0 };
        if self.is_writing || !self.waiting.is_empty() || envelope.len() > DIRECT_BYTES_MAX {
            return 0;
        }
        let head = envelope_head(envelope.len());
        // A connection that has failed is noticed by its own thread.
        socket.socket().try_write_vectored(&[IoSlice::new(&head), IoSlice::new(envelope)]).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected() -> SendQueue {
        let queue = SendQueue::default();
        queue.connect(None);
        queue
    }

    fn popped(queue: &SendQueue) -> Option<Vec<u8>> {
        match queue.pop()? {
            Waiting::Envelope(envelope) => Some(envelope),
            rest @ Waiting::Rest { .. } => panic!("nothing was written: {rest:?}"),
        }
    }

    #[test]
    fn nothing_waits_for_a_connection_that_is_not_there() {
        let queue = SendQueue::default();
        assert!(!queue.push(vec![1]));
        queue.connect(None);
        assert_eq!((queue.pop(), queue.dropped()), (None, 1));
        queue.push(vec![2]);
        queue.disconnect();
        queue.connect(None);
        assert_eq!((queue.pop(), queue.dropped()), (None, 2));
    }

    #[test]
    fn what_waits_is_bounded_and_what_is_larger_passes_alone() {
        let queue = connected();
        queue.push(vec![0; PEER_QUEUE_BYTES_MAX + 1]);
        queue.push(vec![1]);
        assert_eq!(queue.dropped(), 1, "there is no room beside the large one");
        let large = popped(&queue).unwrap();
        queue.push(vec![2]);
        assert_eq!(queue.dropped(), 2, "it counts until it is written");
        queue.written(large.len());
        queue.push(vec![3; PEER_QUEUE_BYTES_MAX - 1]);
        queue.push(vec![4]);
        queue.push(vec![5]);
        assert_eq!(queue.dropped(), 3);
        assert_eq!(popped(&queue).map(|next| next[0]), Some(3));
        assert_eq!(popped(&queue), Some(vec![4]));
    }

    #[test]
    fn the_pen_is_kept_while_anything_waits() {
        let queue = connected();
        queue.push(vec![1]);
        assert!(!queue.give_pen(), "one waits");
        assert_eq!(popped(&queue), Some(vec![1]));
        assert!(queue.give_pen());
    }

    /// Both ends of a connection.
    async fn pair() -> (SharedSocket, tokio::net::TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, far) =
            tokio::join!(tokio::net::TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let near = near.unwrap();
        near.writable().await.unwrap();
        (near.into(), far.unwrap().0)
    }

    #[tokio::test]
    async fn a_small_envelope_goes_out_at_once_if_nothing_is_before_it() {
        use tokio::io::AsyncReadExt;

        let (near, mut far) = pair().await;
        let queue = SendQueue::default();
        queue.connect(Some(near));
        assert!(!queue.push(vec![1]), "the connection's thread has the pen");
        assert_eq!(popped(&queue), Some(vec![1]));
        queue.written(1);
        assert!(queue.give_pen());
        assert!(queue.push(vec![2, 3]));
        assert_eq!(queue.pop(), None);
        let mut bytes = [0; HEAD_BYTES + 2];
        far.read_exact(&mut bytes).await.unwrap();
        assert_eq!(bytes, [1, 0, 0, 0, 2, 2, 3]);
        assert!(!queue.push(vec![4; DIRECT_BYTES_MAX + 1]), "a large one is left to the thread");
        assert!(!queue.push(vec![5]), "and what comes behind it");
        queue.take_pen();
        assert_eq!(popped(&queue).map(|next| next.len()), Some(DIRECT_BYTES_MAX + 1));
        assert!(!queue.push(vec![6]), "while that is written");
    }

    #[tokio::test]
    async fn what_the_system_does_not_take_is_written_later_and_in_order() {
        use tokio::io::AsyncReadExt;

        let (near, mut far) = pair().await;
        let queue = SendQueue::default();
        queue.connect(Some(near.clone()));
        queue.give_pen();
        let mut sent = 0;
        while queue.push(vec![sent as u8; DIRECT_BYTES_MAX]) {
            sent += 1;
            assert!(sent < 100_000, "nobody reads");
        }
        assert!(!queue.push(vec![0]), "nothing overtakes it");
        let left = match queue.pop().unwrap() {
            Waiting::Envelope(envelope) => [&envelope_head(envelope.len())[..], &envelope].concat(),
            Waiting::Rest { envelope, written } => {
                [&envelope_head(envelope.len())[..], &envelope].concat().split_off(written)
            }
        };
        let writing = async {
            let mut left = &left[..];
            while !left.is_empty() {
                near.socket().writable().await.unwrap();
                left = &left[near.socket().try_write(left).unwrap_or(0)..];
            }
        };
        let reading = async {
            for expected in 0..=sent {
                let mut bytes = vec![0; HEAD_BYTES + DIRECT_BYTES_MAX];
                far.read_exact(&mut bytes).await.unwrap();
                assert!(bytes[HEAD_BYTES..].iter().all(|byte| *byte == expected as u8), "{expected}");
            }
        };
        tokio::join!(writing, reading);
    }
}
