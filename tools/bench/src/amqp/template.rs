//! Publishes that are ready to be sent: the same frames again and again, laid out once.
//!
//! All of them have the same length, so that any number of them is one slice of bytes, or two where the ring ends.

use anyhow::ensure;
use nexo_amqp::codec::{FrameMax, PropertiesBuilder, encode_message};
use nexo_amqp_client::{methods, short};

use crate::work::{MessageShape, Persistence, mixed};

/// About how many bytes go into one write: large enough that the system call does not matter, small enough to stay
/// in the processor's cache beside what the broker does.
const WRITE_BYTES: usize = 64 * 1024;

/// A ring of publishes.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    bytes: Vec<u8>,
    message_bytes: usize,
    body_offset: usize,
    /// Which message of the ring is next.
    next: usize,
}

impl Template {
    /// Lays out the frames for channel 1.
    pub(crate) fn new(shape: &MessageShape, frame_max: FrameMax) -> anyhow::Result<Self> {
        ensure!(!shape.routing_keys.is_empty(), "a publisher needs a queue to publish to");
        let cycle = shape.routing_keys.len() * usize::from(shape.priorities.unwrap_or(1).max(1));
        let mut bytes = Vec::new();
        let mut message_bytes = 0;
        let mut count = 0;
        while count < cycle || bytes.len() + message_bytes <= WRITE_BYTES || !count.is_multiple_of(cycle) {
            encode_one(&mut bytes, shape, count, frame_max)?;
            if message_bytes == 0 {
                message_bytes = bytes.len();
            }
            count += 1;
        }
        ensure!(bytes.len() == count * message_bytes, "all routing keys must have the same length");
        // The body is last, in one frame or in several, each with eight bytes around it.
        let frames = shape.body_bytes.div_ceil(frame_max.payload_bytes());
        let body_offset = message_bytes - shape.body_bytes - frames * 8 + 7;
        Ok(Self { bytes, message_bytes, body_offset, next: 0 })
    }

    /// The frames of the next messages, at most `count` of them and at least one.
    pub(crate) fn take(&mut self, count: usize) -> &[u8] {
        let all = self.len();
        let from = self.next;
        let to = all.min(from + count.max(1));
        self.next = if to == all { 0 } else { to };
        &self.bytes[from * self.message_bytes..to * self.message_bytes]
    }

    /// The next message with these bytes at the beginning of its body.
    pub(crate) fn take_marked(&mut self, mark: [u8; 8]) -> &[u8] {
        let from = self.next * self.message_bytes + self.body_offset;
        self.bytes[from..from + mark.len()].copy_from_slice(&mark);
        self.take(1)
    }

    /// How many messages the frames hold.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / self.message_bytes
    }

    /// How many messages these frames are.
    pub(crate) fn count(&self, frames_bytes: usize) -> u64 {
        (frames_bytes / self.message_bytes) as u64
    }
}

fn encode_one(
    out: &mut Vec<u8>,
    shape: &MessageShape,
    index: usize,
    frame_max: FrameMax,
) -> anyhow::Result<()> {
    let routing_key = short(&shape.routing_keys[index % shape.routing_keys.len()])?;
    let publish = methods::publish(short(&shape.exchange)?, routing_key);
    let mut properties = PropertiesBuilder::new();
    if shape.persistence == Persistence::Persistent {
        properties = properties.delivery_mode(2);
    }
    if let Some(priorities) = shape.priorities {
        properties = properties.priority(mixed(index / shape.routing_keys.len(), priorities));
    }
    let body = vec![b'x'; shape.body_bytes];
    encode_message(out, 1, &publish, &properties.to_vec(), &body, frame_max);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nexo_amqp::codec::{Properties, PublishedMessage};

    use super::*;

    const MAX: FrameMax = FrameMax::new(131_072).unwrap();

    fn shape() -> MessageShape {
        MessageShape {
            exchange: String::new(),
            routing_keys: vec!["q-0".into(), "q-1".into()],
            body_bytes: 16,
            persistence: Persistence::Persistent,
            priorities: Some(10),
            batch: 1,
        }
    }

    fn parse_all(mut bytes: &[u8]) -> Vec<PublishedMessage<'_>> {
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let message = PublishedMessage::parse(bytes, MAX).unwrap();
            bytes = &bytes[message.bytes..];
            all.push(message);
        }
        all
    }

    #[test]
    fn the_codec_reads_what_was_laid_out() {
        let mut template = Template::new(&shape(), MAX).unwrap();
        let all = template.len();
        let bytes = template.take(all).to_vec();
        let messages = parse_all(&bytes);
        assert_eq!(messages.len(), all);
        assert_eq!(template.count(bytes.len()), all as u64);
        for (index, message) in messages.iter().enumerate() {
            assert_eq!(message.channel, 1);
            assert_eq!(message.body, [b'x'; 16]);
            assert_eq!(message.publish.routing_key.as_bytes(), [b"q-0", b"q-1"][index % 2]);
            assert_eq!(Properties::parse(message.properties).unwrap().delivery_mode(), Some(2));
        }
    }

    #[test]
    fn every_queue_gets_every_priority() {
        let mut template = Template::new(&shape(), MAX).unwrap();
        let bytes = template.take(20).to_vec();
        let seen: BTreeSet<_> = parse_all(&bytes)
            .iter()
            .map(|message| {
                let priority = Properties::parse(message.properties).unwrap().priority();
                (message.publish.routing_key.as_bytes().to_vec(), priority)
            })
            .collect();
        assert_eq!(seen.len(), 20);
    }

    #[test]
    fn taking_goes_round() {
        let mut template = Template::new(&shape(), MAX).unwrap();
        let all = template.len();
        template.take(all - 1);
        let last = template.take(5).len();
        assert_eq!(template.count(last), 1, "the ring ends here");
        let first = template.take(5).len();
        assert_eq!(template.count(first), 5);
    }

    #[test]
    fn a_mark_stands_at_the_beginning_of_the_body() {
        for body_bytes in [8, 16, 300_000] {
            let mut template = Template::new(&MessageShape { body_bytes, ..shape() }, MAX).unwrap();
            let bytes = template.take_marked(*b"MARKMARK").to_vec();
            let at = bytes.windows(8).position(|window| window == b"MARKMARK").unwrap();
            assert_eq!(bytes[at - 7], 3, "a body frame begins seven bytes before");
            assert_eq!(
                &bytes[at + 8..at + 8 + body_bytes.min(100_000) - 8],
                &vec![b'x'; body_bytes.min(100_000) - 8]
            );
        }
    }
}
