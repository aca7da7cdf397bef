//! Reading the lanes of a queue in the order of delivery.

use nexo_types::{Offset, Priority};

use super::entry::MessageEntry;
use super::lane::{PageRequest, Stretch};
use super::lanes::Lanes;

/// Where a reader of the lanes has come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    lane: usize,
    stretch: usize,
    entry: usize,
}

/// What a reader finds.
#[derive(Debug)]
pub(crate) enum Waiting<'a> {
    Here(&'a MessageEntry),
    /// The next message is not in memory.
    Paged(Priority, Offset),
}

impl Waiting<'_> {
    pub(crate) const fn priority(&self) -> Priority {
        match self {
            Self::Here(entry) => entry.priority,
            Self::Paged(priority, _) => *priority,
        }
    }

    pub(crate) const fn offset(&self) -> Offset {
        match self {
            Self::Here(entry) => entry.offset,
            Self::Paged(_, offset) => *offset,
        }
    }
}

impl Lanes {
    /// Where reading in the order of delivery begins.
    pub(crate) fn cursor(&self) -> Cursor {
        Cursor { lane: self.top().unwrap_or(self.lanes().len()), stretch: 0, entry: 0 }
    }

    /// Where reading in the order of delivery goes on behind this message, which may be gone.
    pub(crate) fn seek(&self, after: Option<(Priority, Offset)>) -> Cursor {
        let Some((priority, offset)) = after else { return self.cursor() };
        let lane = self.lanes().partition_point(|lane| lane.priority > priority);
        let next_lane = |lane| Cursor { lane, stretch: 0, entry: 0 };
        let Some(found) = self.lanes().get(lane).filter(|found| found.priority == priority) else {
            return next_lane(lane);
        };
        for (stretch, part) in found.stretches.iter().enumerate() {
            match part {
                Stretch::Resident(resident) => {
                    let entry = resident.entries.partition_point(|entry| entry.offset <= offset);
                    if entry < resident.entries.len() {
                        return Cursor { lane, stretch, entry };
                    }
                }
                Stretch::Paged(run) => {
                    if run.after(Some(offset)).next().is_some() {
                        return Cursor { lane, stretch, entry: 0 };
                    }
                }
            }
        }
        next_lane(lane + 1)
    }

    /// The messages behind `after` of the paged stretch at the cursor, at most `max`.
    pub(crate) fn page_at(
        &self,
        cursor: Cursor,
        after: Option<(Priority, Offset)>,
        max: usize,
    ) -> Option<PageRequest> {
        let lane = self.lanes().get(cursor.lane)?;
        let Stretch::Paged(run) = lane.stretches.get(cursor.stretch)? else { return None };
        let after = after.filter(|(priority, _)| *priority == lane.priority).map(|(_, offset)| offset);
        let offsets = run.after(after).take(max).collect();
        Some(PageRequest { lane: lane.priority, offsets })
    }

    /// Moves the cursor past the message it is at.
    pub(crate) const fn step(cursor: &mut Cursor) {
        cursor.entry += 1;
    }

    /// What is at the cursor, which moves to the next occupied place if its own has been read.
    pub(crate) fn at(&self, cursor: &mut Cursor) -> Option<Waiting<'_>> {
        loop {
            let lane = self.lanes().get(cursor.lane)?;
            match lane.stretches.get(cursor.stretch) {
                Some(Stretch::Resident(resident)) => match resident.entries.get(cursor.entry) {
                    Some(entry) => return Some(Waiting::Here(entry)),
                    None => *cursor = Cursor { stretch: cursor.stretch + 1, entry: 0, ..*cursor },
                },
                Some(Stretch::Paged(run)) => {
                    let first = run.offsets.first().expect("a run has offsets");
                    return Some(Waiting::Paged(lane.priority, first));
                }
                None => *cursor = Cursor { lane: cursor.lane + 1, stretch: 0, entry: 0 },
            }
        }
    }

    /// Where reading one lane begins, if it has messages.
    pub(crate) fn lane_cursor(&self, priority: Priority) -> Cursor {
        let lane = self.lane_index(priority).filter(|index| self.lanes()[*index].count > 0);
        Cursor { lane: lane.unwrap_or(self.lanes().len()), stretch: 0, entry: 0 }
    }
}
