//! Frames of the log that do not count, because what they say was lost before it was safe.
//!
//! A lost frame stays where it lies until its segment is given up. Another may tell of the same offsets in the same
//! segment, so everybody who finds frames by what is in them has to ask here.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use nexo_types::Position;
use parking_lot::RwLock;

/// Where they start.
#[derive(Debug, Default)]
pub(crate) struct Discarded {
    /// Whether there is any: there is none nearly always, and reading asks for each frame.
    any: AtomicBool,
    frames: RwLock<BTreeSet<Position>>,
}

impl Discarded {
    /// Whether the frame that starts here was lost.
    pub(crate) fn contains(&self, at: Position) -> bool {
        self.any.load(Ordering::Acquire) && self.frames.read().contains(&at)
    }

    /// These do not count from now on.
    #[cfg(test)]
    pub(crate) fn add(&self, frames: impl IntoIterator<Item = Position>) {
        self.frames.write().extend(frames);
        self.any.store(true, Ordering::Release);
    }
}
