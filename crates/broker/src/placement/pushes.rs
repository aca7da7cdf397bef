//! Pushes that are not safe yet, where the journal can lose what was proposed: whoever gets a message waits for its push.

use nexo_core::rare::Empty;
use nexo_core::record::Record;
use nexo_types::{Offset, Position};

use super::Placement;

/// The frames of the latest pushes. Those that are safe are forgotten with the next one.
#[derive(Debug, Default)]
pub(super) struct RecentPushes(Vec<Push>);

#[derive(Clone, Copy, Debug)]
struct Push {
    first: Offset,
    last: Offset,
    at: Position,
}

impl Empty for RecentPushes {
    const EMPTY: &'static Self = &Self(Vec::new());
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
        self.recent.0.retain(|push| !is_safe(push.at));
        self.recent.0.push(Push { first: first.offset, last: last.offset, at });
    }

    /// The frame in which a message was pushed, unless that has been safe for some time.
    pub(crate) fn frame_of_push(&self, offset: Offset) -> Option<Position> {
        let holds = |push: &&Push| push.first <= offset && offset <= push.last;
        self.recent.0.iter().rev().find(holds).map(|push| push.at)
    }
}
