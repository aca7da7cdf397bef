//! What waits to be written to the socket: one run of bytes, so that one write carries many frames.

use crate::codec::{self, AmqpMethod, encode_method};

/// Above this, deliveries wait: a peer that does not read stops its own consumers.
pub(super) const SOFT_BYTES: usize = 512 << 10;
/// Above this, nothing is read either: a peer that asks and does not listen is not answered further.
pub(super) const HARD_BYTES: usize = 8 << 20;
/// A buffer that was larger than this for once is given back.
const KEPT_BYTES: usize = 2 << 20;

#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) bytes: Vec<u8>,
    start: usize,
}

impl Output {
    pub(super) fn method<M: AmqpMethod>(&mut self, channel: u16, method: &M) {
        encode_method(&mut self.bytes, channel, method);
    }

    pub(super) fn heartbeat(&mut self) {
        codec::encode_heartbeat(&mut self.bytes);
    }

    /// How much waits.
    pub(super) const fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) const fn has_room(&self) -> bool {
        self.len() < SOFT_BYTES
    }

    pub(super) fn unwritten(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Gives back the memory that is not needed just now.
    pub(super) fn release(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Notes that this much was written.
    pub(super) fn advance(&mut self, written: usize) {
        self.start += written;
        if self.start >= self.bytes.len() {
            self.start = 0;
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_BYTES);
        } else if self.start > KEPT_BYTES {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }
}
