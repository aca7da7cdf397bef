//! Frames: one octet of type, two of channel, four of size, the payload and an end octet. What a payload means
//! is read by [`method`](super::method) and [`ContentHeader`](super::ContentHeader).

use super::constants::{
    FRAME_BODY, FRAME_END, FRAME_HEAD_BYTES, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD, FRAME_MIN_BYTES,
    FRAME_MIN_BYTES_LEGACY, FRAME_OVERHEAD_BYTES,
};
use super::error::FrameError;

/// The negotiated size of the largest frame, its head and end octet included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrameMax(u32);

impl FrameMax {
    /// What holds until the peers have agreed on more.
    pub const BEFORE_TUNE: Self = Self(FRAME_MIN_BYTES);
    /// What a client may log in with: its password may be a token, which has some kilobytes.
    pub const LOGIN: Self = Self(16 * 1024);

    /// Takes `bytes` as the maximum; `None` below the smallest that any version of the protocol allows, which
    /// includes the `0` with which a client says that it sets no limit of its own.
    #[must_use]
    pub const fn new(bytes: u32) -> Option<Self> {
        if bytes < FRAME_MIN_BYTES_LEGACY { None } else { Some(Self(bytes)) }
    }

    /// The maximum itself.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u32 {
        self.0
    }

    /// The longest payload that we may send.
    #[inline]
    #[must_use]
    pub const fn payload_bytes(self) -> usize {
        self.0 as usize - FRAME_OVERHEAD_BYTES
    }

    /// Whether a received payload of this size is within bounds. RabbitMQ lets the payload alone be as long as
    /// the maximum, for clients that forget the eight bytes around it.
    #[inline]
    #[must_use]
    pub const fn admits(self, payload_bytes: u32) -> bool {
        payload_bytes <= self.0
    }
}

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A method.
    Method = FRAME_METHOD,
    /// The properties and the size of a body that follows.
    Header = FRAME_HEADER,
    /// A part of a body.
    Body = FRAME_BODY,
    /// Nothing.
    Heartbeat = FRAME_HEARTBEAT,
}

impl FrameKind {
    const fn from_octet(octet: u8) -> Option<Self> {
        match octet {
            FRAME_METHOD => Some(Self::Method),
            FRAME_HEADER => Some(Self::Header),
            FRAME_BODY => Some(Self::Body),
            FRAME_HEARTBEAT => Some(Self::Heartbeat),
            _ => None,
        }
    }
}

/// One frame, borrowed from the buffer it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What it carries.
    pub kind: FrameKind,
    /// The channel; 0 is the connection itself.
    pub channel: u16,
    /// What stands between the head and the end octet.
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The frame at the head of `buf`, or `None` until all of it has arrived.
    ///
    /// # Errors
    /// If no frame begins so. A size above `max` is refused as soon as it is announced, so that nothing larger
    /// is ever buffered.
    #[inline]
    pub fn parse(buf: &'a [u8], max: FrameMax) -> Result<Option<Self>, FrameError> {
        let Some((&[octet, c0, c1, s0, s1, s2, s3], rest)) = buf.split_first_chunk::<FRAME_HEAD_BYTES>()
        else {
            return Ok(None);
        };
        let payload_bytes = u32::from_be_bytes([s0, s1, s2, s3]);
        let Some(kind) = FrameKind::from_octet(octet) else {
            return Err(FrameError::UnknownKind { kind: octet });
        };
        if !max.admits(payload_bytes) {
            return Err(FrameError::TooLarge { payload_bytes, frame_bytes_max: max.bytes() });
        }
        if kind == FrameKind::Heartbeat && payload_bytes != 0 {
            return Err(FrameError::HeartbeatPayload { payload_bytes });
        }
        match rest.split_at_checked(payload_bytes as usize) {
            Some((payload, [FRAME_END, ..])) => {
                Ok(Some(Self { kind, channel: u16::from_be_bytes([c0, c1]), payload }))
            }
            Some((_, [found, ..])) => Err(FrameError::End { found: *found }),
            Some((_, [])) | None => Ok(None),
        }
    }

    /// How many bytes of the buffer the whole frame takes.
    #[inline]
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.payload.len() + FRAME_OVERHEAD_BYTES
    }
}

/// Walks the complete frames at the head of a buffer. Ends at the first that is not all there; after an error
/// it yields nothing more, since nobody knows where the next frame would begin.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    buf: &'a [u8],
    max: FrameMax,
    consumed: usize,
    failed: bool,
}

impl<'a> Frames<'a> {
    /// Starts at the head of `buf`.
    #[must_use]
    pub const fn new(buf: &'a [u8], max: FrameMax) -> Self {
        Self { buf, max, consumed: 0, failed: false }
    }

    /// Steps over `bytes` that were read by other means, such as a
    /// [`PublishedMessage`](super::PublishedMessage) at the head of [`rest`](Self::rest).
    #[inline]
    pub fn skip_bytes(&mut self, bytes: usize) {
        self.consumed = self.buf.len().min(self.consumed + bytes);
    }

    /// Allows larger or smaller frames from here on: the peers agreed on it within this buffer.
    pub const fn set_max(&mut self, max: FrameMax) {
        self.max = max;
    }

    /// What has not been walked yet.
    #[inline]
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        &self.buf[self.consumed..]
    }

    /// How many bytes were walked and can be dropped from the buffer.
    #[inline]
    #[must_use]
    pub const fn consumed_bytes(&self) -> usize {
        self.consumed
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, FrameError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        match Frame::parse(self.rest(), self.max) {
            Ok(frame) => {
                let frame = frame?;
                self.consumed += frame.bytes();
                Some(Ok(frame))
            }
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}

/// The head of a frame whose payload has `payload_bytes` bytes.
#[inline]
pub(crate) fn frame_head(kind: FrameKind, channel: u16, payload_bytes: usize) -> [u8; FRAME_HEAD_BYTES] {
    debug_assert!(u32::try_from(payload_bytes).is_ok(), "a frame's size is four octets");
    let [c0, c1] = channel.to_be_bytes();
    let [s0, s1, s2, s3] = (payload_bytes as u32).to_be_bytes();
    [kind as u8, c0, c1, s0, s1, s2, s3]
}

/// Appends one frame.
#[inline]
pub fn encode_frame(out: &mut Vec<u8>, frame: &Frame<'_>) {
    out.reserve(frame.bytes());
    out.extend_from_slice(&frame_head(frame.kind, frame.channel, frame.payload.len()));
    out.extend_from_slice(frame.payload);
    out.push(FRAME_END);
}

/// Appends a heartbeat.
pub fn encode_heartbeat(out: &mut Vec<u8>) {
    encode_frame(out, &Frame { kind: FrameKind::Heartbeat, channel: 0, payload: &[] });
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: FrameMax = FrameMax::BEFORE_TUNE;

    fn body(channel: u16, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode_frame(&mut out, &Frame { kind: FrameKind::Body, channel, payload });
        out
    }

    #[test]
    fn a_frame_is_read_once_all_of_it_has_arrived() {
        let bytes = body(7, b"hello");
        for len in 0..bytes.len() {
            assert_eq!(Frame::parse(&bytes[..len], MAX), Ok(None), "{len} bytes");
        }
        let frame = Frame::parse(&bytes, MAX).unwrap().unwrap();
        assert_eq!(frame, Frame { kind: FrameKind::Body, channel: 7, payload: b"hello" });
        assert_eq!(frame.bytes(), bytes.len());
    }

    #[test]
    fn a_size_above_the_maximum_is_refused_before_the_payload_arrives() {
        let head = frame_head(FrameKind::Body, 1, 8193);
        let refused = FrameError::TooLarge { payload_bytes: 8193, frame_bytes_max: 8192 };
        assert_eq!(Frame::parse(&head, MAX), Err(refused));
        assert_eq!(Frame::parse(&frame_head(FrameKind::Body, 1, 8192), MAX), Ok(None));
    }

    #[test]
    fn a_wrong_end_octet_an_unknown_type_and_a_heartbeat_with_a_payload_are_refused() {
        let mut bytes = body(1, b"x");
        *bytes.last_mut().unwrap() = 0;
        assert_eq!(Frame::parse(&bytes, MAX), Err(FrameError::End { found: 0 }));
        assert_eq!(Frame::parse(&[4, 0, 0, 0, 0, 0, 0], MAX), Err(FrameError::UnknownKind { kind: 4 }));
        let heartbeat = [8, 0, 0, 0, 0, 0, 1, 0, FRAME_END];
        assert_eq!(Frame::parse(&heartbeat, MAX), Err(FrameError::HeartbeatPayload { payload_bytes: 1 }));
    }

    #[test]
    fn all_complete_frames_of_a_buffer_are_walked_and_counted() {
        let mut bytes = body(1, b"one");
        encode_heartbeat(&mut bytes);
        bytes.extend(body(2, b""));
        let complete = bytes.len();
        bytes.extend(&body(3, b"cut")[..5]);

        let mut frames = Frames::new(&bytes, MAX);
        let channels: Vec<u16> = frames.by_ref().map(|frame| frame.unwrap().channel).collect();

        assert_eq!(channels, [1, 0, 2]);
        assert_eq!(frames.consumed_bytes(), complete);
    }

    #[test]
    fn nothing_follows_an_error() {
        let mut bytes = vec![9; 8];
        bytes.extend(body(1, b"one"));
        let mut frames = Frames::new(&bytes, MAX);
        assert!(frames.next().unwrap().is_err());
        assert_eq!(frames.next(), None);
        assert_eq!(frames.consumed_bytes(), 0);
    }
}
