//! The first eight bytes of a connection, before there are frames.

/// The header of AMQP 0-9-1. It is also the answer to any other one: "this is what I speak", after which the
/// connection is closed.
pub const PROTOCOL_HEADER: [u8; 8] = *b"AMQP\0\0\x09\x01";

/// AMQP 0-9 differs from 0-9-1 in nothing that matters here; RabbitMQ takes its header for the same.
const PROTOCOL_HEADER_0_9: [u8; 8] = *b"AMQP\x01\x01\x00\x09";

/// What a peer's first bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolHeader {
    /// AMQP 0-9-1: answer with `connection.start`. The header took [`PROTOCOL_HEADER`]'s length.
    Accepted,
    /// Another version of AMQP, as its four octets after the name: answer with [`PROTOCOL_HEADER`] and close.
    OtherVersion([u8; 4]),
    /// Not AMQP at all: answer with [`PROTOCOL_HEADER`] and close.
    NotAmqp,
}

impl ProtocolHeader {
    /// Looks at the head of `buf`; `None` until enough has arrived to tell.
    #[must_use]
    pub fn parse(buf: &[u8]) -> Option<Self> {
        let known = buf.len().min(4);
        // Told apart as early as possible: a browser or a port scanner may send less than eight bytes and wait.
        if buf[..known] != PROTOCOL_HEADER[..known] {
            return Some(Self::NotAmqp);
        }
        let header: &[u8; 8] = buf.first_chunk()?;
        if *header == PROTOCOL_HEADER || *header == PROTOCOL_HEADER_0_9 {
            return Some(Self::Accepted);
        }
        let [_, _, _, _, version @ ..] = *header;
        Some(Self::OtherVersion(version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_known_once_it_is_complete() {
        for len in 0..PROTOCOL_HEADER.len() {
            assert_eq!(ProtocolHeader::parse(&PROTOCOL_HEADER[..len]), None);
        }
        assert_eq!(ProtocolHeader::parse(b"AMQP\0\0\x09\x01and more"), Some(ProtocolHeader::Accepted));
        assert_eq!(ProtocolHeader::parse(b"AMQP\x01\x01\x00\x09"), Some(ProtocolHeader::Accepted));
    }

    #[test]
    fn other_versions_and_other_protocols_are_told_apart() {
        let one_zero = ProtocolHeader::parse(b"AMQP\0\x01\0\0");
        assert_eq!(one_zero, Some(ProtocolHeader::OtherVersion([0, 1, 0, 0])));
        assert_eq!(ProtocolHeader::parse(b"GE"), Some(ProtocolHeader::NotAmqp));
        assert_eq!(ProtocolHeader::parse(b"GET / HTTP/1.1"), Some(ProtocolHeader::NotAmqp));
        assert_eq!(ProtocolHeader::parse(b"AMQX"), Some(ProtocolHeader::NotAmqp));
    }
}
