//! A binding: from an exchange to a queue or another exchange.

use bytes::Bytes;
use nexo_types::{ExchangeName, QueueName};

use super::exchange::decode_name;
use super::header::HeaderValue;
use crate::wire::{Reader, WireError, Writer};

/// One binding. Two are the same if everything about them is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Binding {
    source: ExchangeName,
    destination: Destination,
    key: Bytes,
    arguments: Vec<(Bytes, HeaderValue)>,
}

/// Where a binding leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Destination {
    /// To a queue.
    Queue(QueueName),
    /// To another exchange.
    Exchange(ExchangeName),
}

impl Binding {
    /// A binding. The order of the arguments does not matter; of two with the same name the first counts.
    #[must_use]
    pub fn new(
        source: ExchangeName,
        destination: Destination,
        key: Bytes,
        mut arguments: Vec<(Bytes, HeaderValue)>,
    ) -> Self {
        arguments.sort_by(|(a, _), (b, _)| a.cmp(b));
        arguments.dedup_by(|(a, _), (b, _)| a == b);
        Self { source, destination, key, arguments }
    }

    /// The exchange that it leads from.
    #[must_use]
    pub const fn source(&self) -> &ExchangeName {
        &self.source
    }

    /// Where it leads.
    #[must_use]
    pub const fn destination(&self) -> &Destination {
        &self.destination
    }

    /// The binding key: what it means depends on the source.
    #[must_use]
    pub const fn key(&self) -> &Bytes {
        &self.key
    }

    /// The arguments, by name.
    #[must_use]
    pub fn arguments(&self) -> &[(Bytes, HeaderValue)] {
        &self.arguments
    }

    pub(super) fn touches_default(&self) -> bool {
        let to_default = match &self.destination {
            Destination::Queue(_) => false,
            Destination::Exchange(name) => name.is_default(),
        };
        self.source.is_default() || to_default
    }

    pub(super) fn crosses_vhosts(&self) -> bool {
        let to = match &self.destination {
            Destination::Queue(name) => name.vhost_str(),
            Destination::Exchange(name) => name.vhost_str(),
        };
        self.source.vhost_str() != to
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        out.text(self.source.stored());
        match &self.destination {
            Destination::Queue(name) => {
                out.u8(0);
                out.text(name.stored());
            }
            Destination::Exchange(name) => {
                out.u8(1);
                out.text(name.stored());
            }
        }
        out.bytes(&self.key);
        out.u64(self.arguments.len() as u64);
        for (name, value) in &self.arguments {
            out.bytes(name);
            value.encode(out);
        }
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let source = decode_name(input)?;
        let destination = match input.u8()? {
            0 => Destination::Queue(QueueName::from_stored(input.text()?).map_err(|_| WireError::BadName)?),
            1 => Destination::Exchange(decode_name(input)?),
            value => return Err(WireError::Unknown { what: "destination", value }),
        };
        let key = Bytes::copy_from_slice(input.bytes()?);
        let mut arguments = Vec::new();
        for _ in 0..input.u64()? {
            arguments.push((Bytes::copy_from_slice(input.bytes()?), HeaderValue::decode(input)?));
        }
        Ok(Self::new(source, destination, key, arguments))
    }
}
