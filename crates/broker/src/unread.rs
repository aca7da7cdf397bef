//! Messages that a replay needs and that do not lie where it looks for them.
//!
//! A replay that begins at an earlier checkpoint meets messages whose segment has been given up since. Either they were
//! copied forward, and the copy is further on in the log. Or they have left their queue, and the log tells that further on:
//! until then an entry without bytes stands for each. What stands there at the end is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use nexo_core::batch::{BatchKind, MessageBatch};
use nexo_core::queue::{Entry, NeedsPage, Queue};
use nexo_core::record::{Leave, Pick, Record};
use nexo_log::{EntryKind, Log};
use nexo_types::{Offset, Position, Priority, QueueId, Timestamp};

use crate::paging;

/// Those of all queues, while the log is replayed.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    offsets: BTreeMap<(QueueId, Priority), BTreeSet<Offset>>,
    /// From where on the log is replayed.
    from: Position,
    /// Where the last copies of messages are. Looked for only when one is needed.
    copies: Option<BTreeMap<(QueueId, Offset), Position>>,
}

impl Unread {
    /// For a replay from there on.
    pub(crate) fn since(from: Position) -> Self {
        Self { from, ..Self::default() }
    }

    /// Applies a record, reading messages into memory where it needs them.
    ///
    /// # Errors
    /// If the log cannot be read now, or makes no sense.
    pub(crate) fn apply(
        &mut self,
        log: &Log,
        queue: &mut Queue,
        at: Position,
        record: &Record,
    ) -> Result<(), String> {
        let id = queue.id();
        while let Err(NeedsPage(page)) = queue.apply(at, record) {
            let mut entries = paging::read_page(log, id, &page).map_err(|error| error.to_string())?;
            for entry in entries.iter_mut().filter(|entry| entry.payload.is_none()) {
                match self.read_copy(log, id, entry.offset)? {
                    Some(copy) => *entry = copy,
                    None => {
                        self.offsets.entry((id, page.lane)).or_default().insert(entry.offset);
                    }
                }
            }
            if !queue.page_in(&page, entries, Timestamp(0)) {
                return Err(format!("messages {:?} are not where they should be", page.offsets.first()));
            }
        }
        Ok(())
    }

    /// Drops those that are still in their queue when all records have been applied. Says how many.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub(crate) fn drop_from(&mut self, log: &Log, queue: &mut Queue) -> Result<u64, String> {
        let id = queue.id();
        let lanes = self.offsets.range((id, Priority(0))..=(id, Priority(u8::MAX)));
        let picks: Vec<Pick> = lanes
            .map(|((_, lane), offsets)| Pick { lane: *lane, offsets: offsets.iter().copied().collect() })
            .collect();
        let before = queue.figures(Timestamp(0)).totals.damaged;
        let drop = Record::Drop { picks, why: Leave::Damaged, at: Timestamp(0) };
        self.apply(log, queue, Position::default(), &drop)?;
        Ok(queue.figures(Timestamp(0)).totals.damaged - before)
    }

    /// The message as it was copied forward, if it was.
    fn read_copy(&mut self, log: &Log, id: QueueId, offset: Offset) -> Result<Option<Entry>, String> {
        let copies = match &mut self.copies {
            Some(copies) => copies,
            none => none.insert(find_copies(log, self.from)?),
        };
        let Some(&at) = copies.get(&(id, offset)) else { return Ok(None) };
        // Damage is reported by whoever finds it first; this is one more message that it hit.
        let Ok(frame) = log.read_frame(at) else { return Ok(None) };
        let batches =
            frame.entries.iter().filter(|entry| entry.queue == id && entry.kind == EntryKind::Messages);
        let mut batches = batches.filter_map(|entry| MessageBatch::decode(entry.payload.clone()).ok());
        Ok(batches.find_map(|batch| Entry::from_batch(&batch, batch.find(offset)?, at).ok()))
    }
}

fn find_copies(log: &Log, from: Position) -> Result<BTreeMap<(QueueId, Offset), Position>, String> {
    let mut copies = BTreeMap::new();
    log.replay(from, &mut |frame| {
        for entry in frame.entries.iter().filter(|entry| entry.kind == EntryKind::Messages) {
            let Ok(batch) = MessageBatch::decode(entry.payload.clone()) else { continue };
            if batch.kind() == BatchKind::Relocated {
                copies.extend(batch.items().iter().map(|item| ((entry.queue, item.offset), frame.at)));
            }
        }
        ControlFlow::Continue(())
    })
    .map_err(|error| error.to_string())?;
    Ok(copies)
}
