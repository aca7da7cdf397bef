//! Headers of native messages: names and values, in the order they were given.
//!
//! They are stored as one property block: for each header its name, a byte for the kind of value and the
//! value, each length as a varint. The rules never look inside.

use bytes::Bytes;
use nexo_core::message::{Properties, PropertyFormat};
use nexo_types::{limits, varint};
use thiserror::Error;

use crate::property_codec::PropertyCodec;

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderValue {
    /// Text.
    Text(String),
    /// A number as decimal digits, as exact as it was given.
    Number(String),
    /// Anything else.
    Bytes(Bytes),
    /// A list or a table of another protocol, as JSON.
    Json(String),
}

/// Headers in the order they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(pub Vec<(String, HeaderValue)>);

/// Headers that cannot be stored, or bytes that are no headers.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HeadersError {
    /// Too many.
    #[error("a message has at most {max} headers; this one has {count}")]
    TooMany {
        /// The limit.
        max: usize,
        /// What was given.
        count: usize,
    },
    /// Too large in sum.
    #[error("headers have at most {max} bytes together; these have {bytes}")]
    TooLarge {
        /// The limit.
        max: usize,
        /// What was given.
        bytes: usize,
    },
    /// A header without a name.
    #[error("header {index} has no name")]
    NoName {
        /// Which, counting from 0.
        index: usize,
    },
    /// The property block is not one of native headers.
    #[error("the stored headers cannot be read")]
    Unreadable,
}

/// Reads headers that are stored as here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NativeHeaders;

impl PropertyCodec for NativeHeaders {
    fn format(&self) -> PropertyFormat {
        PropertyFormat::Native
    }

    fn headers(&self, properties: &Properties) -> Result<Headers, HeadersError> {
        Headers::from_properties(properties)
    }
}

impl Headers {
    /// The headers as a property block.
    ///
    /// # Errors
    /// If they are too many or too large.
    pub fn to_properties(&self) -> Result<Properties, HeadersError> {
        if self.0.len() > limits::HEADERS_MAX {
            return Err(HeadersError::TooMany { max: limits::HEADERS_MAX, count: self.0.len() });
        }
        let mut out = Vec::new();
        for (index, (name, value)) in self.0.iter().enumerate() {
            if name.is_empty() {
                return Err(HeadersError::NoName { index });
            }
            put(&mut out, name.as_bytes());
            match value {
                HeaderValue::Text(text) => {
                    out.push(0);
                    put(&mut out, text.as_bytes());
                }
                HeaderValue::Bytes(bytes) => {
                    out.push(1);
                    put(&mut out, bytes);
                }
                HeaderValue::Number(digits) => {
                    out.push(2);
                    put(&mut out, digits.as_bytes());
                }
                HeaderValue::Json(json) => {
                    out.push(3);
                    put(&mut out, json.as_bytes());
                }
            }
        }
        if out.len() > limits::PROPERTIES_BYTES_MAX {
            return Err(HeadersError::TooLarge { max: limits::PROPERTIES_BYTES_MAX, bytes: out.len() });
        }
        Ok(Properties { format: NativeHeaders.format(), bytes: out.into() })
    }

    /// The headers in a property block.
    ///
    /// # Errors
    /// If the block holds something else.
    pub fn from_properties(properties: &Properties) -> Result<Self, HeadersError> {
        if properties.format != NativeHeaders.format() {
            return Err(HeadersError::Unreadable);
        }
        let mut rest: &[u8] = &properties.bytes;
        let mut headers = Vec::new();
        while !rest.is_empty() {
            let name = take(&mut rest).and_then(text).ok_or(HeadersError::Unreadable)?;
            let (&kind, after) = rest.split_first().ok_or(HeadersError::Unreadable)?;
            rest = after;
            let value = take(&mut rest).ok_or(HeadersError::Unreadable)?;
            headers.push((
                name,
                match kind {
                    0 => HeaderValue::Text(text(value).ok_or(HeadersError::Unreadable)?),
                    1 => HeaderValue::Bytes(properties.bytes.slice_ref(value)),
                    2 => HeaderValue::Number(text(value).ok_or(HeadersError::Unreadable)?),
                    3 => HeaderValue::Json(text(value).ok_or(HeadersError::Unreadable)?),
                    _ => return Err(HeadersError::Unreadable),
                },
            ));
        }
        Ok(Self(headers))
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    varint::put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(varint::take(rest)?).ok()?;
    let (head, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(head)
}

fn text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_keep_their_order_and_kinds() {
        let headers = Headers(vec![
            ("b".into(), HeaderValue::Text("zwei".into())),
            ("a".into(), HeaderValue::Bytes(Bytes::from_static(&[0, 255]))),
            ("b".into(), HeaderValue::Text(String::new())),
            ("c".into(), HeaderValue::Number("1.50".into())),
            ("d".into(), HeaderValue::Json("[1]".into())),
        ]);
        assert_eq!(Headers::from_properties(&headers.to_properties().unwrap()), Ok(headers));
    }

    #[test]
    fn too_many_and_nameless_headers_are_refused() {
        let many = Headers(vec![("x".into(), HeaderValue::Text(String::new())); 257]);
        assert_eq!(many.to_properties(), Err(HeadersError::TooMany { max: 256, count: 257 }));
        let nameless = Headers(vec![(String::new(), HeaderValue::Text(String::new()))]);
        assert_eq!(nameless.to_properties(), Err(HeadersError::NoName { index: 0 }));
    }

    #[test]
    fn bytes_that_are_no_headers_are_refused() {
        for bytes in [&b"\x01"[..], b"\x01a", b"\x01a\x04\x00", b"\x01a\x00\x05x", b"\x01\xff\x00\x00"] {
            let block = Properties { format: PropertyFormat::Native, bytes: Bytes::copy_from_slice(bytes) };
            assert_eq!(Headers::from_properties(&block), Err(HeadersError::Unreadable));
        }
    }
}
