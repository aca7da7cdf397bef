//! A whole publish in one step. Most of what a broker reads is a publish with its header and one body frame in
//! one piece; this recognises that without going through frames one by one. It never refuses: whatever it does
//! not recognise is left to [`Frames`](super::Frames), which says what is wrong, if anything. Whether a publish
//! may come at all, or the channel still waits for the content of another, is for the caller to know.

use super::constants::{
    CLASS_BASIC, CONTENT_HEADER_BYTES, FRAME_BODY, FRAME_END, FRAME_HEAD_BYTES, FRAME_HEADER, FRAME_METHOD,
};
use super::frame::FrameMax;
use super::method::{AmqpMethod, MethodId, basic};

/// A publish that is all there: its method, its header, and its body in one frame or empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedMessage<'a> {
    /// The channel of all its frames.
    pub channel: u16,
    /// The method.
    pub publish: basic::Publish<'a>,
    /// The properties, unchecked; see [`Properties::parse`](super::Properties::parse).
    pub properties: &'a [u8],
    /// The body.
    pub body: &'a [u8],
    /// How many bytes of the buffer its frames take.
    pub bytes: usize,
}

impl<'a> PublishedMessage<'a> {
    /// The publish at the head of `buf`, or `None` if something else stands there, it is not all there, its
    /// body has several frames or anything about it is wrong.
    #[inline]
    #[must_use]
    pub fn parse(buf: &'a [u8], max: FrameMax) -> Option<Self> {
        const ID: MethodId = basic::Publish::ID;

        let (method, c, rest) = split_frame(buf, FRAME_METHOD, max)?;
        let (&[c0, c1, m0, m1], fields) = method.split_first_chunk::<4>()?;
        if u16::from_be_bytes([c0, c1]) != ID.class_id || u16::from_be_bytes([m0, m1]) != ID.method_id {
            return None;
        }
        let publish = basic::Publish::decode(fields).ok()?;

        let (header, header_c, rest) = split_frame(rest, FRAME_HEADER, max)?;
        let (&[c0, c1, w0, w1, b @ ..], properties) = header.split_first_chunk::<CONTENT_HEADER_BYTES>()?;
        if header_c != c || u16::from_be_bytes([c0, c1]) != CLASS_BASIC || [w0, w1] != [0, 0] {
            return None;
        }
        let body_bytes = u64::from_be_bytes(b);

        let (body, body_c, rest) = match body_bytes {
            0 => (&[][..], c, rest),
            _ => split_frame(rest, FRAME_BODY, max)?,
        };
        if body_c != c || body.len() as u64 != body_bytes {
            return None;
        }
        let channel = u16::from_be_bytes(c);
        Some(Self { channel, publish, properties, body, bytes: buf.len() - rest.len() })
    }
}

/// The payload and the channel of the frame at the head of `buf`, and what follows it; `None` unless it is of
/// this kind, whole and sound.
#[inline]
fn split_frame(buf: &[u8], kind: u8, max: FrameMax) -> Option<(&[u8], [u8; 2], &[u8])> {
    let (&[octet, c0, c1, s0, s1, s2, s3], rest) = buf.split_first_chunk::<FRAME_HEAD_BYTES>()?;
    let payload_bytes = u32::from_be_bytes([s0, s1, s2, s3]);
    if octet != kind || !max.admits(payload_bytes) {
        return None;
    }
    let (payload, rest) = rest.split_at_checked(payload_bytes as usize)?;
    let (&end, rest) = rest.split_first()?;
    (end == FRAME_END).then_some((payload, [c0, c1], rest))
}

#[cfg(test)]
mod tests {
    use super::super::content::encode_message;
    use super::super::short_str::ShortStr;
    use super::*;

    const MAX: FrameMax = FrameMax::BEFORE_TUNE;

    fn publish() -> basic::Publish<'static> {
        basic::Publish {
            ticket: 0,
            exchange: ShortStr::from_static("events"),
            routing_key: ShortStr::from_static("user.created"),
            mandatory: true,
            immediate: false,
        }
    }

    fn message(body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode_message(&mut out, 5, &publish(), &[0x10, 0, 2], body, MAX);
        out
    }

    #[test]
    fn a_publish_is_taken_in_one_step() {
        for body in [&b"hello"[..], b""] {
            let mut buf = message(body);
            let bytes = buf.len();
            buf.extend(b"\x01more");
            let found = PublishedMessage::parse(&buf, MAX).unwrap();
            let expected =
                PublishedMessage { channel: 5, publish: publish(), properties: &[0x10, 0, 2], body, bytes };
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_publish_that_is_not_all_there_is_left_to_the_frames() {
        let buf = message(b"hello");
        for len in 0..buf.len() {
            assert_eq!(PublishedMessage::parse(&buf[..len], MAX), None, "{len} bytes");
        }
    }

    #[test]
    fn a_body_in_several_frames_is_left_to_the_frames() {
        assert_eq!(PublishedMessage::parse(&message(&[0; 9000]), MAX), None);
    }

    #[test]
    fn frames_of_another_channel_are_not_taken_for_its_own() {
        let buf = message(b"hello");
        let header_at = buf.iter().position(|&byte| byte == FRAME_END).unwrap() + 1;
        let mut other = buf.clone();
        other[header_at + 2] = 6;
        assert_eq!(PublishedMessage::parse(&other, MAX), None);
        let body_at = buf.len() - 5 - 8;
        let mut other = buf;
        other[body_at + 2] = 6;
        assert_eq!(PublishedMessage::parse(&other, MAX), None);
    }
}
