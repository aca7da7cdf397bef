//! How much waits for a connection's socket.
//!
//! Much where few connections are written to, so that one write carries much. What waits for all of them together has a
//! bound: it is memory that no queue counts. The broker is told of it, and leaves messages so much less.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nexo_broker::ConnectionBuffers;

/// What may wait for a connection, if there are many …
const WAITING_BYTES_MIN: usize = 64 << 10;
/// … and if there are few …
const WAITING_BYTES_MAX: usize = 512 << 10;
/// … and for all of them together. With 200 it is 120 KiB each, which still holds a thousand small messages.
const ALL_BYTES_MAX: usize = 24 << 20;

/// Connections to which much is written.
#[derive(Debug, Default)]
pub(super) struct BusyWriters {
    count: AtomicUsize,
    buffers: Arc<ConnectionBuffers>,
}

impl BusyWriters {
    pub(super) fn new(buffers: Arc<ConnectionBuffers>) -> Self {
        Self { count: AtomicUsize::new(0), buffers }
    }

    /// What may wait for each of them.
    fn share(&self) -> usize {
        let count = self.count.load(Ordering::Relaxed).max(1);
        (ALL_BYTES_MAX / count).clamp(WAITING_BYTES_MIN, WAITING_BYTES_MAX)
    }
}

/// What may wait for one connection before its deliveries do.
#[derive(Debug)]
pub(super) struct WriteSize {
    /// What its buffer has room for.
    buffer_bytes: usize,
    busy: Arc<BusyWriters>,
}

impl WriteSize {
    pub(super) const fn new(busy: Arc<BusyWriters>) -> Self {
        Self { buffer_bytes: 0, busy }
    }

    pub(super) fn bytes(&self) -> usize {
        self.busy.share()
    }

    /// Its buffer has room for so much now.
    #[inline]
    pub(super) fn has_buffer(&mut self, bytes: usize) {
        if bytes != self.buffer_bytes {
            self.resize(bytes);
        }
    }

    fn resize(&mut self, bytes: usize) {
        match (self.buffer_bytes > WAITING_BYTES_MIN, bytes > WAITING_BYTES_MIN) {
            (false, true) => _ = self.busy.count.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = self.busy.count.fetch_sub(1, Ordering::Relaxed),
            (false, false) | (true, true) => {}
        }
        self.busy.buffers.resized(self.buffer_bytes, bytes);
        self.buffer_bytes = bytes;
    }
}

impl Default for WriteSize {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl Drop for WriteSize {
    fn drop(&mut self) {
        self.has_buffer(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_all_connections_has_a_bound() {
        let busy = Arc::new(BusyWriters::default());
        let mut many: Vec<WriteSize> = (0..200).map(|_| WriteSize::new(Arc::clone(&busy))).collect();
        assert_eq!(many[0].bytes(), WAITING_BYTES_MAX, "nobody is written to yet");
        for _ in 0..2 {
            many.iter_mut().for_each(|one| one.has_buffer(WAITING_BYTES_MAX));
        }
        let all: usize = many.iter().map(WriteSize::bytes).sum();
        assert!(all <= ALL_BYTES_MAX, "{all}");
        // Those that have nothing to write leave their share to the others, and so do those that go.
        many[20..].iter_mut().for_each(|one| one.has_buffer(0));
        assert_eq!(busy.buffers.bytes(), 20 * WAITING_BYTES_MAX as u64);
        many.truncate(120);
        many[0].has_buffer(WAITING_BYTES_MAX);
        assert_eq!(many[0].bytes(), WAITING_BYTES_MAX);
        drop(many);
        assert_eq!(busy.count.load(Ordering::Relaxed), 0);
        assert_eq!(busy.buffers.bytes(), 0);
    }
}
