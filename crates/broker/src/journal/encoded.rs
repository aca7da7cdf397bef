//! A record in the form the journal takes.

use nexo_core::batch::LaneSpan;
use nexo_core::record::Record;
use nexo_core::shared_messages::SharedMessages;
use nexo_log::{EntryKind, EntryRef, Span};
use nexo_types::QueueId;

use crate::frame_batches::STORE;

/// A record of a queue, or messages that several queues share.
#[derive(Debug)]
pub(crate) struct Encoded {
    queue: QueueId,
    kind: EntryKind,
    spans: Vec<Span>,
    payload: bytes::Bytes,
}

impl Encoded {
    pub(crate) fn new(queue: QueueId, record: &Record) -> Self {
        let (kind, spans) = match record {
            Record::Messages(batch) => (EntryKind::Messages, batch.spans().iter().map(span).collect()),
            _ => (EntryKind::Record, Vec::new()),
        };
        Self { queue, kind, spans, payload: record.encode() }
    }

    /// Messages for batches of the same frame.
    pub(crate) fn store(messages: &SharedMessages) -> Self {
        Self { queue: STORE, kind: EntryKind::Messages, spans: Vec::new(), payload: messages.store().clone() }
    }

    pub(crate) fn as_entry(&self) -> EntryRef<'_> {
        EntryRef { queue: self.queue, kind: self.kind, spans: &self.spans, payload: &self.payload }
    }
}

fn span(span: &LaneSpan) -> Span {
    Span { lane: span.lane, first: span.first, last: span.last, count: span.count }
}
