//! Bytes to frames, methods, tables and properties, and back.
//!
//! Everything that is read borrows from the buffer that it came in, so that a publish costs no allocation; a
//! caller that holds the buffer as `bytes::Bytes` keeps a part of it with `slice_ref`. Everything that is
//! written is appended to a `Vec<u8>`, so that one buffer can carry many frames to one write.
//!
//! | to | see |
//! |---|---|
//! | answer the first eight bytes of a connection | [`ProtocolHeader`] |
//! | walk the frames that one read brought | [`Frames`] |
//! | take a whole publish in one step | [`PublishedMessage`] |
//! | read and write methods | [`method`] |
//! | read and write content | [`ContentHeader`], [`encode_message`], [`Properties`], [`PropertiesBuilder`] |
//! | read and write tables | [`Table`], [`TableBuf`], [`Value`] |
//!
//! Where the specification and RabbitMQ differ, this follows RabbitMQ and says so in place.

mod constants;
mod content;
mod error;
mod frame;
pub mod method;
mod properties;
mod properties_builder;
mod protocol_header;
mod publish;
mod read;
mod reply_code;
mod short_str;
mod table;
mod table_buf;
mod value;

pub use constants::*;
pub use content::{BodyFrames, ContentHeader, encode_message, encode_message_head};
pub use error::{CodecError, FrameError, HeaderError, MethodError, PropertiesError, TableError};
pub use frame::{Frame, FrameKind, FrameMax, Frames, encode_frame, encode_heartbeat};
pub use method::{AmqpMethod, ContentMethod, Method, MethodId, encode_method};
pub use properties::{Properties, Property};
pub use properties_builder::PropertiesBuilder;
pub use protocol_header::{PROTOCOL_HEADER, ProtocolHeader};
pub use publish::PublishedMessage;
pub use reply_code::ReplyCode;
pub use short_str::{ShortStr, TooLong};
pub use table::{Array, Table};
pub use table_buf::{ArrayBuf, TableBuf};
pub use value::Value;
