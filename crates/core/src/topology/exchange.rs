//! What an exchange is told to be.

use std::fmt;

use bytes::Bytes;
use nexo_types::ExchangeName;

use super::error::{Difference, KindError};
use super::header::{HeaderSource, Property};
use crate::message::Durability;
use crate::wire::{Reader, WireError, Writer};

/// An exchange as it was declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeSpec {
    /// How it chooses where a message goes.
    pub kind: ExchangeKind,
    /// Whether it survives a restart.
    pub durability: Durability,
    /// Whether it goes when its last binding goes.
    pub auto_delete: bool,
    /// Whether only other exchanges and the broker may publish to it.
    pub internal: bool,
    /// Where messages go that match none of its bindings. It need not exist.
    pub alternate: Option<ExchangeName>,
    /// The arguments as the client gave them, for listings; what matters of them is in the other fields.
    pub arguments: Bytes,
}

/// The type of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExchangeKind {
    /// Messages are routed when they arrive.
    Plain(Matching),
    /// Messages are routed after the delay that they ask for (`x-delayed-message`). Routing tells the queues;
    /// waiting is the caller's part.
    Delayed(Matching),
}

/// How an exchange compares messages and bindings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matching {
    /// The routing key is the binding key.
    Direct,
    /// Always.
    Fanout,
    /// The routing key fits the pattern in the binding key.
    Topic,
    /// The headers are those in the binding's arguments.
    Headers,
    /// One destination is chosen by a hash; the binding key is its weight.
    ConsistentHash(HashOn),
}

/// What a consistent-hash exchange hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashOn {
    /// The routing key; the first, if there are several.
    RoutingKey,
    /// The header of this name.
    Header(Bytes),
    /// A property.
    Property(Property),
}

impl ExchangeSpec {
    /// A durable exchange of this kind with nothing else said.
    #[must_use]
    pub const fn durable(kind: ExchangeKind) -> Self {
        Self {
            kind,
            durability: Durability::Durable,
            auto_delete: false,
            internal: false,
            alternate: None,
            arguments: Bytes::new(),
        }
    }

    /// The first property in which a redeclaration differs, in RabbitMQ's order. As there, only the type's
    /// name and one of the arguments count.
    pub(super) fn first_difference(&self, asked: &Self) -> Option<Difference> {
        let plain = |property, current: &dyn fmt::Display, received: &dyn fmt::Display| {
            Some(Difference { property, received: format!("'{received}'"), current: format!("'{current}'") })
        };
        let lasts = |spec: &Self| spec.durability == Durability::Durable;
        if self.kind.name() != asked.kind.name() {
            return plain("type", &self.kind.name(), &asked.kind.name());
        }
        if self.durability != asked.durability {
            return plain("durable", &lasts(self), &lasts(asked));
        }
        if self.auto_delete != asked.auto_delete {
            return plain("auto_delete", &self.auto_delete, &asked.auto_delete);
        }
        if self.internal != asked.internal {
            return plain("internal", &self.internal, &asked.internal);
        }
        let property = "alternate-exchange";
        let typed = |name: &ExchangeName| format!("the value '{name}' of type 'longstr'");
        match (&self.alternate, &asked.alternate) {
            (None, None) => None,
            (Some(current), Some(received)) if current == received => None,
            (Some(current), Some(received)) => plain(property, current, received),
            (Some(current), None) => {
                Some(Difference { property, received: "none".to_owned(), current: typed(current) })
            }
            (None, Some(received)) => {
                Some(Difference { property, received: typed(received), current: "none".to_owned() })
            }
        }
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        self.kind.encode(out);
        out.u8(u8::from(self.auto_delete));
        out.u8(u8::from(self.internal));
        match &self.alternate {
            None => out.u8(0),
            Some(name) => {
                out.u8(1);
                out.text(name.stored());
            }
        }
        out.bytes(&self.arguments);
    }

    /// Reads a durable exchange: others are not written.
    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            kind: ExchangeKind::decode(input)?,
            durability: Durability::Durable,
            auto_delete: input.flag()?,
            internal: input.flag()?,
            alternate: if input.flag()? { Some(decode_name(input)?) } else { None },
            arguments: Bytes::copy_from_slice(input.bytes()?),
        })
    }
}

impl ExchangeKind {
    /// The kind that a client means by a type's name and the arguments of its declaration (`x-delayed-type`,
    /// `hash-header`, `hash-property`).
    ///
    /// # Errors
    /// If there is no such type, or its arguments do not fit it.
    pub fn parse(name: &[u8], arguments: &dyn HeaderSource) -> Result<Self, KindError> {
        if name != b"x-delayed-message" {
            return Ok(Self::Plain(Matching::parse(name, arguments)?));
        }
        let inner = arguments.header(b"x-delayed-type");
        let inner = inner.as_ref().and_then(|value| value.as_text()).ok_or(KindError::NoDelayedType)?;
        match Matching::parse(inner, arguments) {
            Ok(matching) => Ok(Self::Delayed(matching)),
            Err(KindError::Unknown { .. }) => Err(KindError::NoDelayedType),
            Err(
                error @ (KindError::NoDelayedType
                | KindError::Property { .. }
                | KindError::TwoHashes
                | KindError::HashIsNoText),
            ) => Err(error),
        }
    }

    /// The type's name, as clients know it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Plain(matching) => matching.name(),
            Self::Delayed(_) => "x-delayed-message",
        }
    }

    /// How it compares messages and bindings.
    #[must_use]
    pub const fn matching(&self) -> &Matching {
        match self {
            Self::Plain(matching) | Self::Delayed(matching) => matching,
        }
    }

    /// Whether messages wait before they are routed.
    #[must_use]
    pub const fn is_delayed(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Delayed(_) => true,
        }
    }

    fn encode(&self, out: &mut Writer) {
        out.u8(u8::from(self.is_delayed()));
        match self.matching() {
            Matching::Direct => out.u8(0),
            Matching::Fanout => out.u8(1),
            Matching::Topic => out.u8(2),
            Matching::Headers => out.u8(3),
            Matching::ConsistentHash(HashOn::RoutingKey) => out.u8(4),
            Matching::ConsistentHash(HashOn::Header(name)) => {
                out.u8(5);
                out.bytes(name);
            }
            Matching::ConsistentHash(HashOn::Property(property)) => {
                out.u8(6);
                out.u8(match property {
                    Property::CorrelationId => 0,
                    Property::MessageId => 1,
                    Property::Timestamp => 2,
                });
            }
        }
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let delayed = input.flag()?;
        let matching = match input.u8()? {
            0 => Matching::Direct,
            1 => Matching::Fanout,
            2 => Matching::Topic,
            3 => Matching::Headers,
            4 => Matching::ConsistentHash(HashOn::RoutingKey),
            5 => Matching::ConsistentHash(HashOn::Header(Bytes::copy_from_slice(input.bytes()?))),
            6 => Matching::ConsistentHash(HashOn::Property(match input.u8()? {
                0 => Property::CorrelationId,
                1 => Property::MessageId,
                2 => Property::Timestamp,
                value => return Err(WireError::Unknown { what: "property", value }),
            })),
            value => return Err(WireError::Unknown { what: "type of exchange", value }),
        };
        Ok(if delayed { Self::Delayed(matching) } else { Self::Plain(matching) })
    }
}

impl Matching {
    fn parse(name: &[u8], arguments: &dyn HeaderSource) -> Result<Self, KindError> {
        match name {
            b"direct" => Ok(Self::Direct),
            b"fanout" => Ok(Self::Fanout),
            b"topic" => Ok(Self::Topic),
            b"headers" => Ok(Self::Headers),
            b"x-consistent-hash" => HashOn::parse(arguments).map(Self::ConsistentHash),
            other => Err(KindError::Unknown { name: String::from_utf8_lossy(other).into_owned() }),
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Topic => "topic",
            Self::Headers => "headers",
            Self::ConsistentHash(_) => "x-consistent-hash",
        }
    }
}

impl HashOn {
    fn parse(arguments: &dyn HeaderSource) -> Result<Self, KindError> {
        let (header, property) = (arguments.header(b"hash-header"), arguments.header(b"hash-property"));
        match (header, property) {
            (None, None) => Ok(Self::RoutingKey),
            (Some(_), Some(_)) => Err(KindError::TwoHashes),
            (Some(header), None) => {
                let name = header.as_text().ok_or(KindError::HashIsNoText)?;
                Ok(Self::Header(Bytes::copy_from_slice(name)))
            }
            (None, Some(property)) => match property.as_text().ok_or(KindError::HashIsNoText)? {
                b"correlation_id" => Ok(Self::Property(Property::CorrelationId)),
                b"message_id" => Ok(Self::Property(Property::MessageId)),
                b"timestamp" => Ok(Self::Property(Property::Timestamp)),
                other => Err(KindError::Property { name: String::from_utf8_lossy(other).into_owned() }),
            },
        }
    }
}

pub(super) fn decode_name(input: &mut Reader<'_>) -> Result<ExchangeName, WireError> {
    ExchangeName::from_stored(input.text()?).map_err(|_| WireError::BadName)
}

#[cfg(test)]
mod tests {
    use super::super::header::{HeaderValue, NoHeaders};
    use super::super::model::Headers;
    use super::*;

    fn arguments(pairs: &[(&'static str, &'static str)]) -> Headers {
        Headers(pairs.iter().map(|&(name, value)| (name.into(), HeaderValue::Text(value.into()))).collect())
    }

    #[test]
    fn a_type_is_read_with_its_arguments() {
        assert_eq!(ExchangeKind::parse(b"topic", &NoHeaders), Ok(ExchangeKind::Plain(Matching::Topic)));
        assert_eq!(
            ExchangeKind::parse(b"topics", &NoHeaders),
            Err(KindError::Unknown { name: "topics".to_owned() })
        );
        assert_eq!(
            ExchangeKind::parse(b"x-consistent-hash", &arguments(&[("hash-header", "id")])),
            Ok(ExchangeKind::Plain(Matching::ConsistentHash(HashOn::Header("id".into()))))
        );
        assert_eq!(
            ExchangeKind::parse(b"x-consistent-hash", &arguments(&[("hash-property", "app_id")])),
            Err(KindError::Property { name: "app_id".to_owned() })
        );
        assert_eq!(
            ExchangeKind::parse(
                b"x-consistent-hash",
                &arguments(&[("hash-property", "message_id"), ("hash-header", "id")])
            ),
            Err(KindError::TwoHashes)
        );
    }

    #[test]
    fn a_delayed_exchange_names_the_type_that_it_wraps() {
        let delayed =
            |inner| ExchangeKind::parse(b"x-delayed-message", &arguments(&[("x-delayed-type", inner)]));
        assert_eq!(delayed("fanout"), Ok(ExchangeKind::Delayed(Matching::Fanout)));
        assert_eq!(delayed("x-delayed-message"), Err(KindError::NoDelayedType));
        assert_eq!(ExchangeKind::parse(b"x-delayed-message", &NoHeaders), Err(KindError::NoDelayedType));
    }

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let one = ExchangeSpec::durable(ExchangeKind::Plain(Matching::Direct));
        let text = |other: ExchangeSpec| {
            let found = one.first_difference(&other)?;
            Some(format!("{}: {} / {}", found.property, found.received, found.current))
        };
        let alternate = |name| Some(ExchangeName::new(name).unwrap());
        assert_eq!(text(one.clone()), None);
        assert_eq!(text(ExchangeSpec { arguments: "other".into(), ..one.clone() }), None);
        assert_eq!(
            text(ExchangeSpec {
                kind: ExchangeKind::Plain(Matching::Topic),
                durability: Durability::Transient,
                ..one.clone()
            })
            .unwrap(),
            "type: 'topic' / 'direct'"
        );
        assert_eq!(
            text(ExchangeSpec { durability: Durability::Transient, ..one.clone() }).unwrap(),
            "durable: 'false' / 'true'"
        );
        assert_eq!(
            text(ExchangeSpec { alternate: alternate("ae"), ..one.clone() }).unwrap(),
            "alternate-exchange: the value 'ae' of type 'longstr' / none"
        );
        let two = ExchangeSpec { alternate: alternate("a"), ..one.clone() };
        let three = ExchangeSpec { alternate: alternate("b"), ..one.clone() };
        assert_eq!(
            two.first_difference(&three),
            Some(Difference {
                property: "alternate-exchange",
                received: "'b'".to_owned(),
                current: "'a'".to_owned()
            })
        );
    }
}
