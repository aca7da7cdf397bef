//! How much a connection reads at once.
//!
//! Little while little comes, so that thousands of idle connections cost little. Much where much comes, but what all
//! connections read at once has a bound: they need that much memory, and what a publisher has read it also pushes before
//! it [pauses](super::pace).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nexo_broker::ConnectionBuffers;

/// What a connection of which little comes reads at once.
pub(super) const READ_BYTES_MIN: usize = 8 << 10;
/// What a connection of which much comes reads at once, if there are few such …
const READ_BYTES_MAX: usize = 256 << 10;
/// … and all of them together. With 400 of them reads are of 20 KiB, which still hold hundreds of small messages.
const ALL_BYTES_MAX: usize = 8 << 20;

/// Connections of which much comes.
#[derive(Debug, Default)]
pub(super) struct BusyReaders {
    count: AtomicUsize,
    buffers: Arc<ConnectionBuffers>,
}

impl BusyReaders {
    pub(super) fn new(buffers: Arc<ConnectionBuffers>) -> Self {
        Self { count: AtomicUsize::new(0), buffers }
    }

    /// What each of them reads at once.
    fn share(&self) -> usize {
        let count = self.count.load(Ordering::Relaxed).max(1);
        (ALL_BYTES_MAX / count).clamp(2 * READ_BYTES_MIN, READ_BYTES_MAX)
    }
}

/// How much one connection reads at once.
#[derive(Debug)]
pub(super) struct ReadSize {
    bytes: usize,
    busy: Arc<BusyReaders>,
}

impl ReadSize {
    pub(super) const fn new(busy: Arc<BusyReaders>) -> Self {
        Self { bytes: READ_BYTES_MIN, busy }
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The most that is read. Where it is the whole of a large buffer, as much as has room.
    pub(super) const fn most(&self) -> usize {
        if self.bytes < READ_BYTES_MAX { self.bytes } else { usize::MAX }
    }

    /// A read has brought so many bytes.
    pub(super) fn has_read(&mut self, count: usize) {
        if count >= self.bytes / 2 {
            self.set((self.bytes * 2).min(self.busy.share()));
        } else if count < self.bytes / 16 {
            self.set((self.bytes / 2).max(READ_BYTES_MIN));
        }
    }

    pub(super) fn shrink(&mut self) {
        self.set(READ_BYTES_MIN);
    }

    fn set(&mut self, bytes: usize) {
        match (self.is_busy(), bytes > READ_BYTES_MIN) {
            (false, true) => _ = self.busy.count.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = self.busy.count.fetch_sub(1, Ordering::Relaxed),
            (false, false) | (true, true) => {}
        }
        self.busy.buffers.resized(memory_bytes(self.bytes), memory_bytes(bytes));
        self.bytes = bytes;
    }

    const fn is_busy(&self) -> bool {
        self.bytes > READ_BYTES_MIN
    }
}

/// Memory of a connection that reads so much at once: its buffer, and the messages of a read while they are packed for their
/// queues. One of which little comes does not count.
const fn memory_bytes(read_bytes: usize) -> usize {
    if read_bytes > READ_BYTES_MIN { 2 * read_bytes } else { 0 }
}

impl Drop for ReadSize {
    fn drop(&mut self) {
        self.shrink();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn much(size: &mut ReadSize) {
        for _ in 0..10 {
            size.has_read(size.bytes());
        }
    }

    #[test]
    fn all_connections_together_read_no_more_than_they_may() {
        let busy = Arc::new(BusyReaders::default());
        let mut one = ReadSize::new(Arc::clone(&busy));
        much(&mut one);
        assert_eq!((one.bytes(), one.most()), (READ_BYTES_MAX, usize::MAX));
        let mut others: Vec<_> = (0..255).map(|_| ReadSize::new(Arc::clone(&busy))).collect();
        others.iter_mut().for_each(much);
        others.iter_mut().for_each(much);
        much(&mut one);
        let sum: usize = others.iter().chain([&one]).map(ReadSize::bytes).sum();
        assert!(sum <= ALL_BYTES_MAX, "{sum}");
        assert_eq!(one.most(), one.bytes());
        drop(others);
        much(&mut one);
        assert_eq!(one.bytes(), READ_BYTES_MAX, "it is alone again");
    }

    #[test]
    fn a_connection_of_which_little_comes_has_no_share() {
        let busy = Arc::new(BusyReaders::default());
        let mut one = ReadSize::new(Arc::clone(&busy));
        much(&mut one);
        assert_eq!(busy.count.load(Ordering::Relaxed), 1);
        assert_eq!(busy.buffers.bytes(), 2 * READ_BYTES_MAX as u64);
        for _ in 0..10 {
            one.has_read(100);
        }
        assert_eq!((one.bytes(), busy.count.load(Ordering::Relaxed)), (READ_BYTES_MIN, 0));
        assert_eq!(busy.buffers.bytes(), 0, "nor memory");
        much(&mut one);
        drop(one);
        assert_eq!(busy.buffers.bytes(), 0, "it is gone");
    }
}
