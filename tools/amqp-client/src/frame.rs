//! A frame that is out of the buffer it came in.

use bytes::{Bytes, BytesMut};
use nexo_amqp::codec::{FRAME_HEAD_BYTES, Frame, FrameKind, FrameMax, Method};

use crate::error::Error;

/// A frame with its own bytes.
#[derive(Clone, Debug)]
pub struct OwnedFrame {
    /// What it carries.
    pub kind: FrameKind,
    /// The channel; 0 is the connection itself.
    pub channel: u16,
    /// What it says.
    pub payload: Bytes,
}

impl OwnedFrame {
    /// Takes the frame at the head of `input`, if all of it has come.
    pub(crate) fn take(input: &mut BytesMut, max: FrameMax) -> Result<Option<Self>, Error> {
        let Some(Frame { kind, channel, payload }) = Frame::parse(input, max)? else { return Ok(None) };
        let payload_bytes = payload.len();
        let bytes = Frame { kind, channel, payload }.bytes();
        let frame = input.split_to(bytes).freeze();
        let payload = frame.slice(FRAME_HEAD_BYTES..FRAME_HEAD_BYTES + payload_bytes);
        Ok(Some(Self { kind, channel, payload }))
    }

    /// The method that it carries.
    ///
    /// # Errors
    /// If it carries something else.
    pub fn method(&self) -> Result<Method<'_>, Error> {
        if self.kind != FrameKind::Method {
            return Err(Error::unexpected("a method", self.kind));
        }
        Ok(Method::decode(&self.payload)?)
    }

    /// An error if this is not the method of that name. If the broker closed something instead, the error says why.
    pub(crate) fn expect(&self, name: &str) -> Result<(), Error> {
        let method = self.method()?;
        if method.name() == name {
            return Ok(());
        }
        refuse(name, &method)
    }
}

fn refuse(due: &str, method: &Method<'_>) -> Result<(), Error> {
    crate::error::refuse_close(method)?;
    Err(Error::unexpected(due, method))
}
