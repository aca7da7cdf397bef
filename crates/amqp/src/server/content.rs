//! A publish whose content comes in several frames.

use bytes::{Bytes, BytesMut};
use nexo_types::limits;

use super::error::Refusal;
use crate::codec::method::basic;
use crate::codec::{CLASS_BASIC, ContentHeader, ReplyCode};

/// What a channel waits for.
#[derive(Debug, Default)]
pub(super) enum Content {
    /// A method.
    #[default]
    Nothing,
    /// The content header of a publish.
    Header(Publish),
    /// The rest of its body.
    Body(Partial),
}

/// A publish method, kept while its content arrives.
#[derive(Clone, Debug)]
pub(super) struct Publish {
    pub(super) exchange: Bytes,
    pub(super) routing_key: Bytes,
    pub(super) mandatory: bool,
    pub(super) immediate: bool,
}

/// A publish with a part of its body.
#[derive(Debug)]
pub(super) struct Partial {
    publish: Publish,
    properties: Bytes,
    body: BytesMut,
    body_bytes: usize,
}

/// A publish that is all there.
#[derive(Clone, Debug)]
pub(super) struct Whole {
    pub(super) publish: Publish,
    pub(super) properties: Bytes,
    pub(super) body: Bytes,
}

/// A body is allocated as it arrives, not as it is announced.
const BODY_FIRST_BYTES: usize = 1 << 20;

impl Publish {
    pub(super) fn new(method: &basic::Publish<'_>) -> Self {
        Self {
            exchange: Bytes::copy_from_slice(&method.exchange),
            routing_key: Bytes::copy_from_slice(&method.routing_key),
            mandatory: method.mandatory,
            immediate: method.immediate,
        }
    }
}

impl Content {
    pub(super) const fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// A method came where content was due.
    pub(super) fn refuse_method(&self) -> Result<(), Refusal> {
        match self {
            Self::Nothing => Ok(()),
            Self::Header(_) => Err(no_header("got non content header frame instead")),
            Self::Body(_) => Err(no_body()),
        }
    }

    /// Takes a content header; gives back the publish if it has no body.
    pub(super) fn take_header(&mut self, payload: &[u8]) -> Result<Option<Whole>, Refusal> {
        let publish = match std::mem::take(self) {
            Self::Header(publish) => publish,
            Self::Nothing => return Err(no_method()),
            Self::Body(_) => return Err(no_body()),
        };
        let header = ContentHeader::decode(payload).map_err(crate::codec::CodecError::from)?;
        if header.class_id != CLASS_BASIC {
            return Err(no_header(&format!("got one for class {} instead", header.class_id)));
        }
        if header.weight != 0 {
            return Err(no_header("got non content header frame instead"));
        }
        let max = limits::BODY_BYTES_MAX;
        let body_bytes = usize::try_from(header.body_bytes).unwrap_or(usize::MAX);
        if body_bytes > max {
            let size = header.body_bytes;
            return Err(Refusal::precondition(format!(
                "message size {size} is larger than configured max size {max}"
            )));
        }
        let properties = Bytes::copy_from_slice(header.properties);
        if body_bytes == 0 {
            return Ok(Some(Whole { publish, properties, body: Bytes::new() }));
        }
        let body = BytesMut::with_capacity(body_bytes.min(BODY_FIRST_BYTES));
        *self = Self::Body(Partial { publish, properties, body, body_bytes });
        Ok(None)
    }

    /// Takes a part of the body; gives back the publish when it was the last.
    pub(super) fn take_body(&mut self, payload: &[u8]) -> Result<Option<Whole>, Refusal> {
        let partial = match self {
            Self::Body(partial) => partial,
            Self::Nothing => return Err(no_method()),
            Self::Header(_) => return Err(no_header("got non content header frame instead")),
        };
        if partial.body.len() + payload.len() > partial.body_bytes {
            let text = format!("the body is longer than the {} bytes announced", partial.body_bytes);
            return Err(Refusal::new(ReplyCode::FrameError, text));
        }
        partial.body.extend_from_slice(payload);
        if partial.body.len() < partial.body_bytes {
            return Ok(None);
        }
        match std::mem::take(self) {
            Self::Body(Partial { publish, properties, body, .. }) => {
                Ok(Some(Whole { publish, properties, body: body.freeze() }))
            }
            Self::Nothing | Self::Header(_) => Ok(None),
        }
    }
}

fn unexpected(text: impl Into<String>) -> Refusal {
    Refusal::new(ReplyCode::UnexpectedFrame, text)
}

pub(super) fn no_method() -> Refusal {
    unexpected("expected method frame, got non method frame instead")
}

fn no_header(instead: &str) -> Refusal {
    unexpected(format!("expected content header for class {CLASS_BASIC}, {instead}"))
}

fn no_body() -> Refusal {
    unexpected("expected content body, got non content body frame instead")
}
