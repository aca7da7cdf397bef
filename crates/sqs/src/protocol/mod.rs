//! Bytes to requests, answers to bytes. Pure.

pub(crate) mod form;
pub(crate) mod json;
pub(crate) mod query;
pub(crate) mod query_json;
pub(crate) mod xml;

/// How a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// AWS JSON 1.0.
    Json,
    /// Parameters of a form, and answers in XML.
    Query,
}

impl Protocol {
    /// What answers are, as HTTP says it.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/x-amz-json-1.0",
            Self::Query => "text/xml",
        }
    }
}
