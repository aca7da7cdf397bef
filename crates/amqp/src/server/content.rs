//! A publish whose content comes in several frames.

use bytes::Bytes;
use nexo_types::limits;

use super::error::Refusal;
use super::intake::Hold;
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
    body: Vec<u8>,
    body_bytes: usize,
    /// The memory for all of it, once that is granted.
    pub(super) hold: Option<Hold>,
}

/// A publish that is all there.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) publish: Publish,
    pub(super) properties: Bytes,
    pub(super) body: Bytes,
    /// The memory that was held for it while it came.
    pub(super) hold: Option<Hold>,
}

/// What a message takes besides its body and its properties, near enough.
pub(super) const MESSAGE_OVERHEAD_BYTES: usize = 256;

impl Partial {
    /// What the message will take when it is whole.
    pub(super) fn memory_bytes(&self) -> usize {
        self.body_bytes + self.properties.len() + MESSAGE_OVERHEAD_BYTES
    }

    /// Adds a part. The body is allocated as it arrives, not as it is announced, and never larger than it will be.
    fn add(&mut self, part: &[u8]) {
        let (len, room) = (self.body.len(), self.body.capacity());
        if room - len < part.len() {
            let wanted = (room * 2).max(len + part.len()).min(self.body_bytes);
            self.body.reserve_exact(wanted - len);
        }
        self.body.extend_from_slice(part);
    }
}

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
            return Ok(Some(Whole { publish, properties, body: Bytes::new(), hold: None }));
        }
        *self = Self::Body(Partial { publish, properties, body: Vec::new(), body_bytes, hold: None });
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
        partial.add(payload);
        if partial.body.len() < partial.body_bytes {
            return Ok(None);
        }
        match std::mem::take(self) {
            Self::Body(Partial { publish, properties, body, hold, .. }) => {
                Ok(Some(Whole { publish, properties, body: body.into(), hold }))
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
