//! What the broker must know of queues that were created with SQS.

use nexo_broker::{Codecs, QueueCodec, QueueConfig, QueueKind};
use nexo_types::QueueName;

use crate::settings::ANNOTATION;

/// Knows queues by what SQS keeps with them.
#[derive(Debug)]
struct SqsQueues;

impl QueueCodec for SqsQueues {
    fn kind(&self, name: &QueueName, queue: &QueueConfig) -> Option<QueueKind> {
        // A queue that was declared with arguments is another protocol's, although SQS may keep something with it.
        let is_own = queue.annotations.contains_key(ANNOTATION) && queue.arguments.is_empty();
        let is_fifo = name.as_str().ends_with(".fifo");
        is_own.then_some(if is_fifo { QueueKind::SqsFifo } else { QueueKind::SqsStandard })
    }
}

/// Has a broker know queues of SQS.
#[must_use]
pub fn register(codecs: Codecs) -> Codecs {
    codecs.with_queues(&SqsQueues)
}
