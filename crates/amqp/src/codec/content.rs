//! Content: the header frame that follows a content method, and the body frames that follow it.

use super::constants::{
    CLASS_BASIC, CONTENT_HEADER_BYTES, FRAME_END, FRAME_HEAD_BYTES, FRAME_OVERHEAD_BYTES,
};
use super::error::HeaderError;
use super::frame::{FrameKind, FrameMax, frame_head};
use super::method::{ContentMethod, encode_method_unreserved};
use super::properties::Properties;
use super::read::Reader;

/// The payload of a header frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentHeader<'a> {
    /// The class of the method that it follows: always `basic` in 0-9-1.
    pub class_id: u16,
    /// Always 0.
    pub weight: u16,
    /// The length of the body, over all its frames.
    pub body_bytes: u64,
    /// The properties, unchecked; see [`Properties::parse`](super::Properties::parse).
    pub properties: &'a [u8],
}

impl<'a> ContentHeader<'a> {
    /// Decodes the payload of a header frame.
    ///
    /// # Errors
    /// If it is too short.
    #[inline]
    pub fn decode(payload: &'a [u8]) -> Result<Self, HeaderError> {
        let mut reader = Reader::new(payload);
        let fixed = (reader.u16(), reader.u16(), reader.u64());
        let (Some(class_id), Some(weight), Some(body_bytes)) = fixed else {
            return Err(HeaderError::Short { payload_bytes: payload.len() });
        };
        Ok(Self { class_id, weight, body_bytes, properties: reader.rest() })
    }

    /// Appends it as a frame.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>, channel: u16) {
        let payload_bytes = CONTENT_HEADER_BYTES + self.properties.len();
        let mut head = [0; FRAME_HEAD_BYTES + CONTENT_HEADER_BYTES];
        head[..7].copy_from_slice(&frame_head(FrameKind::Header, channel, payload_bytes));
        head[7..9].copy_from_slice(&self.class_id.to_be_bytes());
        head[9..11].copy_from_slice(&self.weight.to_be_bytes());
        head[11..].copy_from_slice(&self.body_bytes.to_be_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(self.properties);
        out.push(FRAME_END);
    }
}

/// Appends a whole message: `method`, a content header with `properties` as they are, and `body` in as many
/// frames as `max` demands. An empty body has no frame. The properties stand in one frame whatever their size,
/// since the protocol has no way to split them; where a message has none, not even flags, empty ones are sent.
#[inline]
pub fn encode_message<M: ContentMethod>(
    out: &mut Vec<u8>,
    channel: u16,
    method: &M,
    properties: &[u8],
    body: &[u8],
    max: FrameMax,
) {
    let frames = BodyFrames::new(channel, body, max);
    let body_frames_bytes = body.len() + frames.len() * FRAME_OVERHEAD_BYTES;
    encode_head_reserving(out, channel, method, properties, body.len(), body_frames_bytes);
    for (head, part) in frames {
        out.extend_from_slice(&head);
        out.extend_from_slice(part);
        out.push(FRAME_END);
    }
}

/// As [`encode_message`] without the body, for a caller that writes a large body from where it lies: each of
/// [`BodyFrames`], then [`FRAME_END`].
#[inline]
pub fn encode_message_head<M: ContentMethod>(
    out: &mut Vec<u8>,
    channel: u16,
    method: &M,
    properties: &[u8],
    body_bytes: usize,
) {
    encode_head_reserving(out, channel, method, properties, body_bytes, 0);
}

#[inline]
fn encode_head_reserving<M: ContentMethod>(
    out: &mut Vec<u8>,
    channel: u16,
    method: &M,
    properties: &[u8],
    body_bytes: usize,
    more_bytes: usize,
) {
    const FIXED_BYTES: usize = 2 * FRAME_OVERHEAD_BYTES + 4 + CONTENT_HEADER_BYTES;
    let properties = if properties.is_empty() { Properties::EMPTY.as_raw() } else { properties };
    out.reserve(FIXED_BYTES + method.fields_bytes_max() + properties.len() + more_bytes);
    encode_method_unreserved(out, channel, method);
    let header =
        ContentHeader { class_id: CLASS_BASIC, weight: 0, body_bytes: body_bytes as u64, properties };
    header.encode(out, channel);
}

/// A body cut into frames: for each its head and its part of the body. [`FRAME_END`] follows each part.
#[derive(Clone, Debug)]
pub struct BodyFrames<'a> {
    channel: u16,
    rest: &'a [u8],
    payload_bytes_max: usize,
}

impl<'a> BodyFrames<'a> {
    /// Cuts `body` into frames of at most `max`.
    #[inline]
    #[must_use]
    pub const fn new(channel: u16, body: &'a [u8], max: FrameMax) -> Self {
        Self { channel, rest: body, payload_bytes_max: max.payload_bytes() }
    }
}

impl<'a> Iterator for BodyFrames<'a> {
    type Item = ([u8; FRAME_HEAD_BYTES], &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let (part, rest) = self.rest.split_at(self.rest.len().min(self.payload_bytes_max));
        self.rest = rest;
        Some((frame_head(FrameKind::Body, self.channel, part.len()), part))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        // Nearly every body fits one frame, which spares it the division.
        let frames = match self.rest.len() {
            0 => 0,
            len if len <= self.payload_bytes_max => 1,
            len => len.div_ceil(self.payload_bytes_max),
        };
        (frames, Some(frames))
    }
}

impl ExactSizeIterator for BodyFrames<'_> {}

#[cfg(test)]
mod tests {
    use super::super::frame::Frames;
    use super::super::method::{Method, basic};
    use super::super::short_str::ShortStr;
    use super::*;

    const MAX: FrameMax = FrameMax::BEFORE_TUNE;

    fn deliver() -> basic::Deliver<'static> {
        basic::Deliver {
            consumer_tag: ShortStr::from_static("ctag-1"),
            delivery_tag: 7,
            redelivered: true,
            exchange: ShortStr::from_static("events"),
            routing_key: ShortStr::from_static("user.created"),
        }
    }

    fn round_trip(body: &[u8]) -> Vec<usize> {
        let mut out = b"before".to_vec();
        encode_message(&mut out, 3, &deliver(), &[0x10, 0, 2], body, MAX);

        let mut frames = Frames::new(&out[6..], MAX);
        let method = frames.next().unwrap().unwrap();
        assert_eq!(Method::decode(method.payload), Ok(deliver().into()));
        let header = ContentHeader::decode(frames.next().unwrap().unwrap().payload).unwrap();
        assert_eq!(header.class_id, CLASS_BASIC);
        assert_eq!(header.body_bytes, body.len() as u64);
        assert_eq!(header.properties, [0x10, 0, 2]);

        let parts: Vec<_> = frames.by_ref().map(Result::unwrap).collect();
        assert_eq!(frames.consumed_bytes(), out.len() - 6);
        assert!(parts.iter().all(|frame| frame.channel == 3 && frame.kind == FrameKind::Body));
        assert!(parts.iter().all(|frame| frame.bytes() <= MAX.bytes() as usize));
        assert_eq!(parts.iter().map(|frame| frame.payload).collect::<Vec<_>>().concat(), body);
        parts.iter().map(|frame| frame.payload.len()).collect()
    }

    #[test]
    fn a_small_body_takes_one_frame_and_an_empty_one_none() {
        assert_eq!(round_trip(b"hello"), [5]);
        assert_eq!(round_trip(b""), Vec::<usize>::new());
    }

    #[test]
    fn a_large_body_is_cut_into_full_frames_and_a_rest() {
        assert_eq!(round_trip(&[7; 8184]), [8184]);
        assert_eq!(round_trip(&[7; 8185]), [8184, 1]);
        assert_eq!(round_trip(&[7; 20_000]), [8184, 8184, 3632]);
    }

    #[test]
    fn the_buffer_is_grown_once_for_all_frames() {
        let mut out = Vec::new();
        encode_message(&mut out, 3, &deliver(), &[0, 0], &[7; 20_000], MAX);
        let needed = out.len();
        let mut exact = Vec::with_capacity(needed);
        encode_message(&mut exact, 3, &deliver(), &[0, 0], &[7; 20_000], MAX);
        assert_eq!(exact.capacity(), needed);
    }

    #[test]
    fn a_body_written_from_where_it_lies_gives_the_same_bytes() {
        let body = [7; 20_000];
        let mut whole = Vec::new();
        encode_message(&mut whole, 3, &deliver(), &[0, 0], &body, MAX);
        let mut parts = Vec::new();
        encode_message_head(&mut parts, 3, &deliver(), &[0, 0], body.len());
        for (head, part) in BodyFrames::new(3, &body, MAX) {
            parts.extend(head);
            parts.extend(part);
            parts.push(FRAME_END);
        }
        assert_eq!(parts, whole);
    }

    #[test]
    fn a_message_without_properties_is_sent_with_empty_ones() {
        let (mut without, mut empty) = (Vec::new(), Vec::new());
        encode_message(&mut without, 3, &deliver(), &[], b"x", MAX);
        encode_message(&mut empty, 3, &deliver(), &[0, 0], b"x", MAX);
        assert_eq!(without, empty);
    }

    #[test]
    fn a_short_header_is_refused() {
        let refused = Err(HeaderError::Short { payload_bytes: 11 });
        assert_eq!(ContentHeader::decode(&[0; 11]), refused);
        assert!(ContentHeader::decode(&[0; 12]).is_ok());
    }
}
