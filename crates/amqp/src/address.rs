//! How a message that was published over AMQP is kept: exchange and routing key, each a length byte and bytes, then the
//! basic properties as they came.

use bytes::Bytes;

use crate::codec::ShortStr;

/// Where a message was published to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address<'a> {
    pub(crate) exchange: &'a [u8],
    pub(crate) routing_key: &'a [u8],
}

impl<'a> Address<'a> {
    /// The bytes that stand before the properties.
    pub(crate) fn encode(self) -> Bytes {
        let mut out = Vec::with_capacity(2 + self.exchange.len() + self.routing_key.len());
        for part in [self.exchange, self.routing_key] {
            // Both came as short strings, or as names that are no longer than those.
            let part = ShortStr::clipped(part).as_bytes();
            out.push(part.len() as u8);
            out.extend_from_slice(part);
        }
        out.into()
    }

    /// The address and the properties behind it; `None` if the block is none of ours.
    pub(crate) fn split(block: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let mut rest = block;
        let mut part = || {
            let (&len, after) = rest.split_first()?;
            let (part, after) = after.split_at_checked(usize::from(len))?;
            rest = after;
            Some(part)
        };
        let (exchange, routing_key) = (part()?, part()?);
        Some((Self { exchange, routing_key }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_before_the_properties() {
        let address = Address { exchange: b"amq.topic", routing_key: b"a.b\xff" };
        let mut block = address.encode().to_vec();
        block.extend_from_slice(&[0, 0]);
        assert_eq!(Address::split(&block), Some((address, &[0u8, 0][..])));
        assert_eq!(Address::split(&block[..4]), None);
        assert_eq!(Address::split(&[]), None);
    }
}
