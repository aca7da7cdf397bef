//! What happened to exchanges and bindings, as it is written down, and the steps of which a change consists.
//!
//! Only what outlives a restart is written: exchanges that are durable, and bindings between durable ends. The
//! other steps are applied without.

use bytes::Bytes;
use nexo_types::{ExchangeName, QueueId, VhostName};

use super::binding::Binding;
use super::exchange::{ExchangeSpec, decode_name};
use super::vhost::VhostSpec;
use crate::machine::Step;
use crate::message::Durability;
use crate::wire::{Reader, WireError, Writer};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopologyRecord {
    /// An exchange came to be.
    Declare {
        /// What it is called.
        name: ExchangeName,
        /// What it is told to be.
        spec: ExchangeSpec,
    },
    /// An exchange is gone, with all bindings from it and to it.
    Delete {
        /// What it was called.
        name: ExchangeName,
    },
    /// A binding came to be.
    Bind {
        /// The binding.
        binding: Binding,
        /// Which queue it leads to: another queue may have had the name before, or may have it later.
        queue: Option<QueueId>,
    },
    /// A binding is gone.
    Unbind {
        /// The binding.
        binding: Binding,
    },
    /// A queue is gone, with all bindings to it.
    QueueGone {
        /// The queue's id.
        queue: QueueId,
    },
    /// A virtual host came to be, with the exchanges that each has, or something else is said about it.
    PutVhost {
        /// What it is called.
        name: VhostName,
        /// What is said about it.
        spec: VhostSpec,
    },
    /// A virtual host is on its way out: its exchanges and bindings are gone, and its queues go.
    DeleteVhost {
        /// What it is called.
        name: VhostName,
    },
    /// A virtual host is gone, and its queues were before.
    VhostGone {
        /// What it was called.
        name: VhostName,
    },
}

/// A change that was decided: to be written as far as it is durable, then applied. Without steps there is
/// nothing to change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Plan {
    /// What happens, in this order.
    pub steps: Vec<Step<TopologyRecord>>,
}

impl Plan {
    pub(super) fn push(&mut self, record: TopologyRecord, durability: Durability) {
        self.steps.push(Step { record, durability });
    }

    /// Whether nothing changes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The records that must be written.
    pub fn to_write(&self) -> impl Iterator<Item = &TopologyRecord> {
        self.steps.iter().filter(|step| step.durability == Durability::Durable).map(|step| &step.record)
    }
}

/// The version in which records are written. Since version 2 there are virtual hosts.
const VERSION: u8 = 2;

impl TopologyRecord {
    /// The bytes to write down.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::with_capacity(64);
        match self {
            Self::Declare { name, spec } => {
                out.tag(VERSION, 0);
                out.text(name.stored());
                spec.encode(&mut out);
            }
            Self::Delete { name } => {
                out.tag(VERSION, 1);
                out.text(name.stored());
            }
            Self::Bind { binding, queue } => {
                out.tag(VERSION, 2);
                encode_bound(binding, *queue, &mut out);
            }
            Self::Unbind { binding } => {
                out.tag(VERSION, 3);
                binding.encode(&mut out);
            }
            Self::QueueGone { queue } => {
                out.tag(VERSION, 4);
                out.u64(queue.0);
            }
            Self::PutVhost { name, spec } => {
                out.tag(VERSION, 5);
                out.text(name.as_str());
                spec.encode(&mut out);
            }
            Self::DeleteVhost { name } => {
                out.tag(VERSION, 6);
                out.text(name.as_str());
            }
            Self::VhostGone { name } => {
                out.tag(VERSION, 7);
                out.text(name.as_str());
            }
        }
        out.into_bytes()
    }

    /// Reads a record back.
    ///
    /// # Errors
    /// If the bytes are not a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut input = Reader::new(bytes);
        let (_, kind) = input.tag("a record of an exchange", VERSION)?;
        let record = match kind {
            0 => Self::Declare { name: decode_name(&mut input)?, spec: ExchangeSpec::decode(&mut input)? },
            1 => Self::Delete { name: decode_name(&mut input)? },
            2 => {
                let (binding, queue) = decode_bound(&mut input)?;
                Self::Bind { binding, queue }
            }
            3 => Self::Unbind { binding: Binding::decode(&mut input)? },
            4 => Self::QueueGone { queue: QueueId(input.u64()?) },
            5 => Self::PutVhost { name: decode_vhost(&mut input)?, spec: VhostSpec::decode(&mut input)? },
            6 => Self::DeleteVhost { name: decode_vhost(&mut input)? },
            7 => Self::VhostGone { name: decode_vhost(&mut input)? },
            value => return Err(WireError::Unknown { what: "kind of topology record", value }),
        };
        input.finish()?;
        Ok(record)
    }
}

pub(super) fn encode_bound(binding: &Binding, queue: Option<QueueId>, out: &mut Writer) {
    binding.encode(out);
    out.optional(queue.map(|id| id.0));
}

pub(super) fn decode_bound(input: &mut Reader<'_>) -> Result<(Binding, Option<QueueId>), WireError> {
    Ok((Binding::decode(input)?, input.optional()?.map(QueueId)))
}

pub(super) fn decode_vhost(input: &mut Reader<'_>) -> Result<VhostName, WireError> {
    VhostName::new(input.text()?).map_err(|_| WireError::BadName)
}

#[cfg(test)]
mod tests {
    use nexo_types::QueueName;

    use super::super::binding::Destination;
    use super::super::exchange::{ExchangeKind, HashOn, Matching};
    use super::super::header::{HeaderValue, Property};
    use super::super::vhost::DefaultQueueType;
    use super::*;

    #[test]
    fn every_record_reads_back_as_it_was_written() {
        let name = |text| ExchangeName::new(text).unwrap();
        let acme = VhostName::new("acme").unwrap();
        let plain = |matching| ExchangeSpec::durable(ExchangeKind::Plain(matching));
        let values = [
            HeaderValue::Bool(true),
            HeaderValue::Signed(-7),
            HeaderValue::Unsigned(u64::MAX),
            HeaderValue::Float(1.5f64.to_bits()),
            HeaderValue::Text("text".into()),
            HeaderValue::Timestamp(5),
            HeaderValue::Void,
            HeaderValue::Other("F....".into()),
        ];
        let arguments =
            values.into_iter().enumerate().map(|(i, value)| (format!("h{i}").into(), value)).collect();
        let to_queue = Binding::new(
            name("x"),
            Destination::Queue(QueueName::new("q").unwrap()),
            b"\xff.key".as_slice().into(),
            arguments,
        );
        let to_exchange = Binding::new(name("x"), Destination::Exchange(name("y")), "k".into(), Vec::new());
        let mut records = vec![
            TopologyRecord::Declare {
                name: name("d"),
                spec: ExchangeSpec {
                    auto_delete: true,
                    internal: true,
                    alternate: Some(name("ae")),
                    arguments: "opaque".into(),
                    ..ExchangeSpec::durable(ExchangeKind::Delayed(Matching::Topic))
                },
            },
            TopologyRecord::Delete { name: name("d") },
            TopologyRecord::Bind { binding: to_queue.clone(), queue: Some(QueueId(0)) },
            TopologyRecord::Bind { binding: to_exchange, queue: None },
            TopologyRecord::Unbind { binding: to_queue },
            TopologyRecord::QueueGone { queue: QueueId(300) },
            TopologyRecord::PutVhost { name: VhostName::DEFAULT, spec: VhostSpec::default() },
            TopologyRecord::PutVhost {
                name: acme.clone(),
                spec: VhostSpec {
                    description: "Acme's".into(),
                    tags: vec!["production".into(), "eu".into()],
                    default_queue_type: Some(DefaultQueueType::Quorum),
                    max_connections: Some(0),
                    max_queues: Some(7),
                },
            },
            TopologyRecord::DeleteVhost { name: acme.clone() },
            TopologyRecord::VhostGone { name: acme.clone() },
            TopologyRecord::Delete { name: ExchangeName::at(&acme, "d").unwrap() },
        ];
        for matching in [
            Matching::Direct,
            Matching::Fanout,
            Matching::Headers,
            Matching::ConsistentHash(HashOn::RoutingKey),
            Matching::ConsistentHash(HashOn::Header("id".into())),
            Matching::ConsistentHash(HashOn::Property(Property::CorrelationId)),
            Matching::ConsistentHash(HashOn::Property(Property::MessageId)),
            Matching::ConsistentHash(HashOn::Property(Property::Timestamp)),
        ] {
            records.push(TopologyRecord::Declare { name: name("x"), spec: plain(matching) });
        }
        for record in records {
            let bytes = record.encode();
            assert_eq!(TopologyRecord::decode(&bytes), Ok(record));
            for cut in 0..bytes.len() {
                assert!(
                    TopologyRecord::decode(&bytes[..cut]).is_err(),
                    "a cut record was taken for a whole one"
                );
            }
        }
    }
}
