//! A message's content, put together from the frames it came in. Pure: the frames come from the caller.

use bytes::{Bytes, BytesMut};
use nexo_amqp::codec::ContentHeader;

use crate::error::Error;
use crate::frame::OwnedFrame;
use nexo_amqp::codec::FrameKind;

/// Most bytes that are reserved because a header announces them. What comes beyond grows as it comes.
const RESERVED_BYTES_MAX: usize = 1 << 20;

/// What follows a method that carries a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The properties, as they stand in the header.
    pub properties: Bytes,
    /// The body.
    pub body: Bytes,
}

/// A content of which something may be missing.
#[derive(Debug)]
pub(crate) struct Assembly {
    properties: Bytes,
    body: BytesMut,
    body_bytes: usize,
}

impl Assembly {
    /// Begins with the frame that must be a header.
    pub(crate) fn begin(frame: &OwnedFrame) -> Result<Self, Error> {
        if frame.kind != FrameKind::Header {
            return Err(Error::unexpected("a content header", frame));
        }
        let header = ContentHeader::decode(&frame.payload)?;
        let body_bytes = usize::try_from(header.body_bytes).unwrap_or(usize::MAX);
        let properties = frame.payload.slice_ref(header.properties);
        let body = BytesMut::with_capacity(body_bytes.min(RESERVED_BYTES_MAX));
        Ok(Self { properties, body, body_bytes })
    }

    /// Adds the frame that must be a part of the body.
    pub(crate) fn add(&mut self, frame: &OwnedFrame) -> Result<(), Error> {
        if frame.kind != FrameKind::Body {
            return Err(Error::unexpected("a body", frame));
        }
        self.body.extend_from_slice(&frame.payload);
        Ok(())
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.body.len() >= self.body_bytes
    }

    /// What came.
    pub(crate) fn finish(self) -> Content {
        Content { properties: self.properties, body: self.body.freeze() }
    }
}

#[cfg(test)]
mod tests {
    use nexo_amqp::codec::{FrameMax, ShortStr, encode_message};

    use super::*;
    use crate::methods;

    #[test]
    fn a_body_in_several_frames_is_one_again() {
        for size in [0, 1, 8184, 8185, 50_000] {
            let (max, body) = (FrameMax::BEFORE_TUNE, vec![b'x'; size]);
            let mut out = Vec::new();
            let publish = methods::publish(ShortStr::EMPTY, ShortStr::from_static("q"));
            encode_message(&mut out, 1, &publish, crate::PERSISTENT, &body, max);
            let mut input = BytesMut::from(&out[..]);
            OwnedFrame::take(&mut input, max).unwrap().unwrap().expect("basic.publish").unwrap();
            let mut content = Assembly::begin(&OwnedFrame::take(&mut input, max).unwrap().unwrap()).unwrap();
            while let Some(part) = OwnedFrame::take(&mut input, max).unwrap() {
                assert!(!content.is_complete(), "{size} bytes");
                content.add(&part).unwrap();
            }
            assert!(content.is_complete(), "{size} bytes");
            let content = content.finish();
            assert_eq!((&content.properties[..], &content.body[..]), (crate::PERSISTENT, &body[..]));
        }
    }
}
