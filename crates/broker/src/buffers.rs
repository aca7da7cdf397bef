//! Memory of connections' buffers: what they read at once and what waits for their sockets. Ports that bound it tell the
//! sum here, since what buffers take is not there for messages.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of buffers, of all connections together.
#[derive(Debug, Default)]
pub struct ConnectionBuffers(AtomicU64);

impl ConnectionBuffers {
    /// A buffer had room for `before` bytes, and has room for `after` now.
    pub fn resized(&self, before: usize, after: usize) {
        if before != after {
            // Wraps around where it becomes less; each buffer is taken away exactly as it was added.
            self.0.fetch_add((after as u64).wrapping_sub(before as u64), Ordering::Relaxed);
        }
    }

    /// Bytes of all of them now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        // Two that report at once may be seen in the wrong order, and the sum be below nothing for a moment.
        u64::try_from(self.0.load(Ordering::Relaxed).cast_signed()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_grow_shrink_and_go_leave_nothing() {
        let buffers = ConnectionBuffers::default();
        buffers.resized(0, 100);
        buffers.resized(0, 50);
        buffers.resized(100, 300);
        assert_eq!(buffers.bytes(), 350);
        buffers.resized(300, 0);
        buffers.resized(50, 0);
        assert_eq!(buffers.bytes(), 0);
    }
}
