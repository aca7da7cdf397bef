//! Messages that a full queue refuses and sends to its dead-letter exchange (`x-overflow` of `reject-publish-dlx`).

use nexo_broker::{
    DeadLetters, DeathInfo, DeathReason, NewMessage, Properties, PropertyCodec, QueueError, StoredMessage,
};
use nexo_types::QueueId;

use super::routing::Target;
use super::session::Session;
use crate::property_codec::AmqpPropertyCodec;

impl Session {
    /// Has a message be sent on. The publisher is told that it was refused whatever comes of this.
    pub(super) fn dead_letter_refused(&mut self, target: &Target, message: NewMessage) {
        let broker = self.shared.broker.clone();
        let DeadLetters::Exchange { exchange, routing_key } = target.queue.config().dead_letters else {
            return;
        };
        let note = DeathInfo {
            queue: target.queue.name(),
            reason: DeathReason::Overflow,
            at: broker.now(),
            exchange: &exchange,
            routing_key: routing_key.as_ref(),
        };
        let letter = AmqpPropertyCodec.dead_letter(stored(message), &note);
        let mut ids: Vec<QueueId> = Vec::new();
        {
            let headers = AmqpPropertyCodec.header_source(&letter.message.properties);
            let keys: Vec<&[u8]> = letter.routing_keys.iter().map(|key| &key[..]).collect();
            // RabbitMQ lets a message go whose dead-letter exchange is not there.
            let _ = broker.routes().route(exchange.as_str(), &keys, &*headers, &mut ids);
        }
        for queue in ids.into_iter().filter_map(|id| broker.queue_by_id(id)) {
            if AmqpPropertyCodec.is_cycle(&letter.message, queue.name()) {
                continue;
            }
            let message = AmqpPropertyCodec.for_queue(&letter.message, &queue.config());
            self.dead_letters.push_back((queue, message));
        }
    }

    /// Pushes the dead letters that wait. `false` if some have to wait for the disk.
    pub(super) fn push_dead_letters(&mut self) -> bool {
        while let Some((queue, message)) = self.dead_letters.front() {
            match queue.push(message) {
                Err(QueueError::Busy { .. }) => return false,
                Err(error) => tracing::warn!(queue = %queue.name(), %error, "a dead letter is lost"),
                Ok(_) => {}
            }
            self.dead_letters.pop_front();
        }
        true
    }
}

/// The message as it would be stored.
fn stored(message: NewMessage) -> StoredMessage {
    let mut bytes = message.address.to_vec();
    bytes.extend_from_slice(&message.properties.bytes);
    StoredMessage {
        priority: message.priority,
        durability: message.durability,
        delay: message.delay,
        lifetime: message.ttl,
        dedup: message.dedup,
        group: message.group,
        origin: message.origin,
        properties: Properties { format: message.properties.format, bytes: bytes.into() },
        body: message.body,
    }
}
