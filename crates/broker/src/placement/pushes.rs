//! Pushes that are not safe yet, where the journal can lose what was proposed: whoever gets a message waits for its push.

use std::collections::VecDeque;

use nexo_core::rare::Empty;
use nexo_core::record::Record;
use nexo_types::{Offset, Position};

use super::Placement;

/// The frames of the latest pushes, by rising offset and place. Those that are safe are forgotten with the next one.
#[derive(Debug, Default)]
pub(super) struct RecentPushes(VecDeque<Push>);

#[derive(Clone, Copy, Debug)]
struct Push {
    first: Offset,
    last: Offset,
    at: Position,
}

impl Empty for RecentPushes {
    const EMPTY: &'static Self = &Self(VecDeque::new());
}

impl Placement {
    /// Takes note of messages that were pushed in the frame at `at`.
    pub(crate) fn note_push(&mut self, record: &Record, at: Position, is_safe: impl Fn(Position) -> bool) {
        let Record::Messages(batch) = record else { return };
        let (Some(first), Some(last)) = (batch.items().first(), batch.items().last()) else { return };
        // What is transient lies nowhere.
        if at == Position::default() {
            return;
        }
        // What comes before a frame is safe when it is.
        while self.recent.0.front().is_some_and(|push| is_safe(push.at)) {
            self.recent.0.pop_front();
        }
        self.recent.0.push_back(Push { first: first.offset, last: last.offset, at });
    }

    /// The frame in which a message was pushed, unless that has been safe for some time.
    pub(crate) fn frame_of_push(&self, offset: Offset) -> Option<Position> {
        let at = self.recent.0.partition_point(|push| push.last < offset);
        self.recent.0.get(at).filter(|push| push.first <= offset).map(|push| push.at)
    }
}
