//! The ways into the broker, and what differs between them for whoever only lets clients in and counts them.

/// A way into the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// AMQP 0-9-1.
    Amqp,
    /// The native API.
    Grpc,
    /// The SQS API.
    Sqs,
    /// The management port.
    Http,
}

/// In whose words a queue was asked for. All queues are alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueKind {
    /// The native API, or the broker itself for dead letters: what no other protocol knows as its own.
    #[default]
    Native,
    /// AMQP: what RabbitMQ calls a classic queue.
    Classic,
    /// AMQP: what RabbitMQ calls a quorum queue.
    Quorum,
    /// SQS: a standard queue.
    SqsStandard,
    /// SQS: a FIFO queue.
    SqsFifo,
}

/// What an HTTP client is told when there are too many connections.
const HTTP_BUSY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 21\r\n\r\ntoo many connections\n";

impl Protocol {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Amqp, Self::Grpc, Self::Sqs, Self::Http];

    /// What the settings, the log and the metrics call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Amqp => "amqp",
            Self::Grpc => "grpc",
            Self::Sqs => "sqs",
            Self::Http => "http",
        }
    }

    /// What RabbitMQ's tools call it, with its version where it has one.
    #[must_use]
    pub const fn full_name(self) -> &'static str {
        match self {
            Self::Amqp => "AMQP 0-9-1",
            Self::Grpc | Self::Sqs | Self::Http => self.name(),
        }
    }

    /// Its place among all of them.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether it is for those who look after the broker, and not for its clients.
    #[must_use]
    pub const fn is_management(self) -> bool {
        match self {
            Self::Http => true,
            Self::Amqp | Self::Grpc | Self::Sqs => false,
        }
    }

    /// Whether a connection may wait for its next request, and be closed meanwhile.
    #[must_use]
    pub const fn is_request_wise(self) -> bool {
        match self {
            Self::Sqs | Self::Http => true,
            Self::Amqp | Self::Grpc => false,
        }
    }

    /// The bytes that tell a client that there are too many connections, where the protocol has such.
    #[must_use]
    pub const fn too_many_connections(self) -> Option<&'static [u8]> {
        match self {
            Self::Sqs | Self::Http => Some(HTTP_BUSY),
            Self::Amqp | Self::Grpc => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_place_among_all() {
        for (place, protocol) in Protocol::ALL.into_iter().enumerate() {
            assert_eq!(protocol.index(), place, "{}", protocol.name());
        }
    }
}
