//! A publish whose content comes in several frames.

use bytes::Bytes;
use nexo_broker::BodyBuffer;

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
    pub(super) body: BodyBuffer,
    /// The memory for all of it, once that is granted.
    pub(super) hold: Option<Hold>,
}

/// A publish that is all there.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) publish: Publish,
    pub(super) properties: Bytes,
    pub(super) body: BodyBuffer,
    /// The memory that was held for it while it came.
    pub(super) hold: Option<Hold>,
}

/// What a message takes besides its body and its properties, near enough.
pub(super) const MESSAGE_OVERHEAD_BYTES: usize = 256;

impl Partial {
    /// What the message will take when it is whole.
    pub(super) fn memory_bytes(&self) -> usize {
        self.body.body_bytes() + self.properties.len() + MESSAGE_OVERHEAD_BYTES
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
    /// The body that comes, if there is memory for all of it.
    pub(super) const fn receiving(&mut self) -> Option<&mut BodyBuffer> {
        match self {
            Self::Body(partial) if partial.hold.is_some() => Some(&mut partial.body),
            Self::Nothing | Self::Header(_) | Self::Body(_) => None,
        }
    }

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

    /// Takes a content header; gives back the publish if it has no body. One that announces too large a body is refused.
    pub(super) fn take_header(
        &mut self,
        payload: &[u8],
        body_bytes_max: usize,
    ) -> Result<Option<Whole>, Refusal> {
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
        let body_bytes = usize::try_from(header.body_bytes).unwrap_or(usize::MAX);
        if body_bytes > body_bytes_max {
            let size = header.body_bytes;
            return Err(Refusal::precondition(format!(
                "message size {size} is larger than configured max size {body_bytes_max}"
            )));
        }
        let properties = Bytes::copy_from_slice(header.properties);
        if body_bytes == 0 {
            return Ok(Some(Whole { publish, properties, body: BodyBuffer::default(), hold: None }));
        }
        // Exchange and routing key come before the properties, each behind an octet.
        let described = 2 + publish.exchange.len() + publish.routing_key.len() + properties.len();
        let body = BodyBuffer::new(body_bytes, described);
        *self = Self::Body(Partial { publish, properties, body, hold: None });
        Ok(None)
    }

    /// Takes a part of the body; gives back the publish when it was the last.
    pub(super) fn take_body(&mut self, payload: &[u8]) -> Result<Option<Whole>, Refusal> {
        let partial = match self {
            Self::Body(partial) => partial,
            Self::Nothing => return Err(no_method()),
            Self::Header(_) => return Err(no_header("got non content header frame instead")),
        };
        if payload.len() > partial.body.missing_bytes() {
            let text = format!("the body is longer than the {} bytes announced", partial.body.body_bytes());
            return Err(Refusal::new(ReplyCode::FrameError, text));
        }
        partial.body.extend(payload);
        if partial.body.missing_bytes() > 0 {
            return Ok(None);
        }
        match std::mem::take(self) {
            Self::Body(Partial { publish, properties, body, hold, .. }) => {
                Ok(Some(Whole { publish, properties, body, hold }))
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
