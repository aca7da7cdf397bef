//! What can be wrong with bytes from a peer, and the reply code that each fault asks for.

use thiserror::Error;

use super::method::MethodId;
use super::properties::Property;
use super::reply_code::ReplyCode;

/// Why the bytes at the head of a buffer are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Known from the first seven bytes, before the payload is buffered.
    #[error("a frame announces {payload_bytes} bytes; the negotiated maximum is {frame_bytes_max}")]
    TooLarge {
        /// What the frame announces.
        payload_bytes: u32,
        /// What was negotiated.
        frame_bytes_max: u32,
    },
    /// The octet after the payload is another one: the peer and we disagree on where the frame ends.
    #[error("a frame ends with octet {found:#04x}; it must end with 0xce")]
    End {
        /// What stands there.
        found: u8,
    },
    /// No frame has this type.
    #[error("a frame has the unknown type {kind}")]
    UnknownKind {
        /// The first octet.
        kind: u8,
    },
    /// A heartbeat says nothing but that the peer is alive.
    #[error("a heartbeat carries {payload_bytes} bytes; it must be empty")]
    HeartbeatPayload {
        /// What the frame announces.
        payload_bytes: u32,
    },
}

/// Why the payload of a method frame is no method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MethodError {
    /// The payload ends before it has named a method.
    #[error("a method frame of {payload_bytes} bytes does not name a method")]
    Unnamed {
        /// What there is.
        payload_bytes: usize,
    },
    /// No class or no method has this id.
    #[error("there is no method {} in class {}", id.method_id, id.class_id)]
    Unknown {
        /// The method that the peer asked for.
        id: MethodId,
    },
    /// The payload ends too soon.
    #[error("{method} ends inside its field '{field}'")]
    Short {
        /// The method's name.
        method: &'static str,
        /// The first field that does not fit.
        field: &'static str,
    },
    /// The payload goes on after its last field.
    #[error("{method} has {bytes} bytes after its last field")]
    Trailing {
        /// The method's name.
        method: &'static str,
        /// How many.
        bytes: usize,
    },
    /// A field holds a malformed table.
    #[error("{method} has a malformed table in its field '{field}': {source}")]
    Table {
        /// The method's name.
        method: &'static str,
        /// The field's name.
        field: &'static str,
        /// What is wrong with it.
        source: TableError,
    },
}

/// Why bytes are no field table or field array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TableError {
    /// An entry's name or value ends too soon.
    #[error("an entry ends too soon")]
    Short,
    /// No value has this type.
    #[error("an entry has the unknown type '{}'", letter.escape_ascii())]
    UnknownType {
        /// The letter that stands before the value.
        letter: u8,
    },
    /// Tables and arrays inside each other beyond [`TABLE_DEPTH_MAX`](super::TABLE_DEPTH_MAX).
    #[error("tables and arrays are nested more than {max} deep")]
    TooDeep {
        /// The limit.
        max: usize,
    },
}

/// Why bytes are no basic properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PropertiesError {
    /// Not even the two octets of flags.
    #[error("the properties lack their flags")]
    NoFlags,
    /// A property that the flags announce is not there in full.
    #[error("the properties end inside '{property}'")]
    Short {
        /// The first one that does not fit.
        property: Property,
    },
    /// There is more than the flags announce.
    #[error("the properties have {bytes} bytes after the last one")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// The headers are malformed.
    #[error("the headers are malformed: {0}")]
    Headers(#[source] TableError),
}

/// Why the payload of a header frame is no content header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// The payload ends too soon.
    #[error("a content header of {payload_bytes} bytes is too short; class, weight and size take 12")]
    Short {
        /// What there is.
        payload_bytes: usize,
    },
}

/// Any fault that this codec finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CodecError {
    /// In a frame's own octets.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// In a method.
    #[error(transparent)]
    Method(#[from] MethodError),
    /// In a content header.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// In basic properties.
    #[error(transparent)]
    Properties(#[from] PropertiesError),
    /// In a table that stands alone.
    #[error(transparent)]
    Table(#[from] TableError),
}

impl CodecError {
    /// The code with which the connection ends. A caller that knows the state of the channel may know better
    /// for an unknown method, which is `503` where no method was due at all.
    #[must_use]
    pub const fn reply_code(&self) -> ReplyCode {
        match self {
            // RabbitMQ answers 501 to whatever it cannot take apart, methods and content headers included.
            Self::Frame(_) | Self::Header(_) => ReplyCode::FrameError,
            Self::Method(error) => match error {
                MethodError::Unnamed { .. } | MethodError::Short { .. } | MethodError::Trailing { .. } => {
                    ReplyCode::FrameError
                }
                MethodError::Unknown { .. } => ReplyCode::NotImplemented,
                MethodError::Table { .. } => ReplyCode::SyntaxError,
            },
            Self::Properties(_) | Self::Table(_) => ReplyCode::SyntaxError,
        }
    }
}
