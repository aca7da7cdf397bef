//! The numbers of the protocol: frame types, sizes and class ids. Method ids stand with the methods, in
//! [`method`](super::method); reply codes are [`ReplyCode`](super::ReplyCode).

/// First octet of a frame that carries a method.
pub const FRAME_METHOD: u8 = 1;
/// First octet of a frame that carries a content header.
pub const FRAME_HEADER: u8 = 2;
/// First octet of a frame that carries a part of a body.
pub const FRAME_BODY: u8 = 3;
/// First octet of a frame that only says that the peer is alive.
pub const FRAME_HEARTBEAT: u8 = 8;
/// Last octet of every frame.
pub const FRAME_END: u8 = 0xCE;

/// Bytes before a frame's payload: type, channel and payload size.
pub const FRAME_HEAD_BYTES: usize = 7;
/// Bytes of a frame that are not payload.
pub const FRAME_OVERHEAD_BYTES: usize = FRAME_HEAD_BYTES + 1;
/// Bytes that precede the properties in a content header: class, weight and body size.
pub const CONTENT_HEADER_BYTES: usize = 12;

/// The smallest `frame-max` of RabbitMQ's current specification. It also holds before tuning, where a larger
/// first frame would let a stranger make the broker buffer it.
pub const FRAME_MIN_BYTES: u32 = 8192;
/// The smallest `frame-max` of the original specification, which RabbitMQ 3 and older clients still ask for.
pub const FRAME_MIN_BYTES_LEGACY: u32 = 4096;

/// Tables in tables in tables: deeper than any client goes, and shallow enough to be walked by recursion.
pub const TABLE_DEPTH_MAX: usize = 16;
/// Most bytes of a short string, whose length is one octet.
pub const SHORT_STR_BYTES_MAX: usize = 255;

/// Class id of `connection`.
pub const CLASS_CONNECTION: u16 = 10;
/// Class id of `channel`.
pub const CLASS_CHANNEL: u16 = 20;
/// Class id of `access`, which 0-9-1 dropped and RabbitMQ still answers.
pub const CLASS_ACCESS: u16 = 30;
/// Class id of `exchange`.
pub const CLASS_EXCHANGE: u16 = 40;
/// Class id of `queue`.
pub const CLASS_QUEUE: u16 = 50;
/// Class id of `basic`, the only one with content.
pub const CLASS_BASIC: u16 = 60;
/// Class id of `confirm`.
pub const CLASS_CONFIRM: u16 = 85;
/// Class id of `tx`.
pub const CLASS_TX: u16 = 90;
