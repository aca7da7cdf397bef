//! What a consumer reads: deliveries, counted in place. A message whose three frames are all there is taken in one
//! step; everything else goes frame by frame through the codec.

use anyhow::{bail, ensure};
use nexo_amqp::codec::method::BasicMethod;
use nexo_amqp::codec::{ContentHeader, FRAME_END, Frame, FrameKind, FrameMax, Method};
use nexo_amqp_client::refuse_close;

/// The first four bytes of the payload of a `basic.deliver`.
const DELIVER: [u8; 4] = [0, 60, 0, 60];

/// The state of a scan between two reads.
#[derive(Clone, Debug)]
pub(crate) struct Deliveries {
    frame_max: FrameMax,
    /// Messages that have come complete.
    pub(crate) count: u64,
    /// Messages that had been delivered to somebody before.
    pub(crate) redelivered: u64,
    /// The tag of the last delivery; tags are counted from 1 on without gaps.
    pub(crate) last_tag: u64,
    part: Part,
}

/// Where in a message a read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Between two messages.
    Method,
    /// After the method.
    Header,
    /// In the body, of which this much is to come.
    Body { seen_bytes: u64, left_bytes: u64 },
}

impl Deliveries {
    pub(crate) fn new(frame_max: FrameMax) -> Self {
        Self { frame_max, count: 0, redelivered: 0, last_tag: 0, part: Part::Method }
    }

    /// Scans the messages at the head of `bytes` and shows the beginning of each body to `seen`. Gives back how
    /// many bytes can be dropped.
    #[inline]
    pub(crate) fn scan(&mut self, bytes: &[u8], mut seen: impl FnMut(&[u8])) -> anyhow::Result<usize> {
        let mut at = 0;
        loop {
            if self.part == Part::Method
                && let Some(whole) = Whole::parse(&bytes[at..])
            {
                self.tagged(whole.tag)?;
                self.redelivered += u64::from(whole.redelivered);
                self.count += 1;
                seen(whole.body);
                at += whole.bytes;
                continue;
            }
            let Some(frame) = Frame::parse(&bytes[at..], self.frame_max)? else { return Ok(at) };
            at += frame.bytes();
            self.take(&frame, &mut seen)?;
        }
    }

    /// One frame of a message that is not all there, or of something else.
    fn take(&mut self, frame: &Frame<'_>, seen: &mut impl FnMut(&[u8])) -> anyhow::Result<()> {
        match (frame.kind, self.part) {
            (FrameKind::Heartbeat, _) => {}
            (FrameKind::Method, Part::Method) => match Method::decode(frame.payload)? {
                Method::Basic(BasicMethod::Deliver(deliver)) => {
                    self.tagged(deliver.delivery_tag)?;
                    self.redelivered += u64::from(deliver.redelivered);
                    self.part = Part::Header;
                }
                Method::Basic(BasicMethod::Cancel(_)) => {
                    bail!("the broker ended the consumer; was its queue deleted?")
                }
                other => refuse_close(&other)?,
            },
            (FrameKind::Header, Part::Header) => {
                let left_bytes = ContentHeader::decode(frame.payload)?.body_bytes;
                self.part = Part::Body { seen_bytes: 0, left_bytes };
                if left_bytes == 0 {
                    seen(&[]);
                    self.complete();
                }
            }
            (FrameKind::Body, Part::Body { seen_bytes, left_bytes }) => {
                let bytes = frame.payload.len() as u64;
                ensure!(bytes <= left_bytes, "a body is longer than its header says");
                if seen_bytes == 0 {
                    seen(frame.payload);
                }
                self.part = Part::Body { seen_bytes: seen_bytes + bytes, left_bytes: left_bytes - bytes };
                if bytes == left_bytes {
                    self.complete();
                }
            }
            (kind, part) => bail!("a frame of kind {kind:?} came where {part:?} was due"),
        }
        Ok(())
    }

    fn complete(&mut self) {
        self.count += 1;
        self.part = Part::Method;
    }

    #[inline]
    fn tagged(&mut self, tag: u64) -> anyhow::Result<()> {
        ensure!(tag == self.last_tag + 1, "delivery {tag} came after delivery {}", self.last_tag);
        self.last_tag = tag;
        Ok(())
    }
}

/// A delivery that is all there, with its body in one frame.
struct Whole<'a> {
    tag: u64,
    redelivered: bool,
    body: &'a [u8],
    bytes: usize,
}

impl<'a> Whole<'a> {
    #[inline]
    fn parse(buf: &'a [u8]) -> Option<Self> {
        let (method, rest) = split(buf, FrameKind::Method)?;
        let (id, fields) = method.split_first_chunk::<4>()?;
        let (&tag_bytes, fields) = fields.split_first()?;
        let (tag, fields) = fields.get(usize::from(tag_bytes)..)?.split_first_chunk::<8>()?;
        if *id != DELIVER {
            return None;
        }
        let (header, rest) = split(rest, FrameKind::Header)?;
        let body_bytes = u64::from_be_bytes(*header.get(4..)?.first_chunk::<8>()?);
        let (body, rest) = split(rest, FrameKind::Body)?;
        (body.len() as u64 == body_bytes).then(|| Self {
            tag: u64::from_be_bytes(*tag),
            redelivered: fields.first().is_some_and(|bits| bits & 1 == 1),
            body,
            bytes: buf.len() - rest.len(),
        })
    }
}

/// The payload of the frame at the head of `buf`, if it is of this kind and whole, and what follows.
#[inline]
fn split(buf: &[u8], kind: FrameKind) -> Option<(&[u8], &[u8])> {
    let (&[octet, _, _, s0, s1, s2, s3], rest) = buf.split_first_chunk::<7>()?;
    let (payload, rest) = rest.split_at_checked(u32::from_be_bytes([s0, s1, s2, s3]) as usize)?;
    let (&end, rest) = rest.split_first()?;
    (octet == kind as u8 && end == FRAME_END).then_some((payload, rest))
}

#[cfg(test)]
mod tests {
    use nexo_amqp::codec::method::{basic, channel};
    use nexo_amqp::codec::{ShortStr, encode_heartbeat, encode_message, encode_method};

    use super::*;

    const MAX: FrameMax = FrameMax::new(8192).unwrap();

    fn deliver(out: &mut Vec<u8>, tag: u64, body: &[u8]) {
        let method = basic::Deliver {
            consumer_tag: ShortStr::from_static("tag"),
            delivery_tag: tag,
            redelivered: tag == 3,
            exchange: ShortStr::EMPTY,
            routing_key: ShortStr::from_static("queue"),
        };
        encode_message(out, 1, &method, &[0, 0], body, MAX);
    }

    fn messages() -> Vec<u8> {
        let mut out = Vec::new();
        deliver(&mut out, 1, b"one");
        deliver(&mut out, 2, b"");
        encode_heartbeat(&mut out);
        deliver(&mut out, 3, &[3; 20_000]);
        deliver(&mut out, 4, b"four");
        out
    }

    #[test]
    fn messages_are_counted_however_the_reads_cut_them() {
        let bytes = messages();
        for read in [1, 7, 100, 9_000, bytes.len()] {
            let mut deliveries = Deliveries::new(MAX);
            let mut bodies = Vec::new();
            let mut buffer = Vec::new();
            for part in bytes.chunks(read) {
                buffer.extend_from_slice(part);
                let done = deliveries.scan(&buffer, |body| bodies.push(body.first().copied())).unwrap();
                buffer.drain(..done);
            }
            assert_eq!((deliveries.count, deliveries.redelivered), (4, 1), "{read} bytes a read");
            assert_eq!(bodies, [Some(b'o'), None, Some(3), Some(b'f')], "{read} bytes a read");
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn a_lost_delivery_is_noticed() {
        let mut bytes = Vec::new();
        deliver(&mut bytes, 1, b"one");
        deliver(&mut bytes, 3, b"three");
        let error = Deliveries::new(MAX).scan(&bytes, |_| ()).unwrap_err();
        assert_eq!(error.to_string(), "delivery 3 came after delivery 1");
    }

    #[test]
    fn a_close_is_told_with_its_reason() {
        let mut bytes = Vec::new();
        let reply_text = ShortStr::from_static("NOT_FOUND");
        encode_method(
            &mut bytes,
            1,
            &channel::Close { reply_code: 404, reply_text, class_id: 0, method_id: 0 },
        );
        let error = Deliveries::new(MAX).scan(&bytes, |_| ()).unwrap_err();
        assert_eq!(error.to_string(), "the broker closed the channel: 404 NOT_FOUND");
    }
}
