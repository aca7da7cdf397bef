//! Values of headers, as far as routing looks at them, and where they are read from.
//!
//! A protocol's crate reads its own tables; what it hands over borrows from the message, so that matching
//! copies nothing. Bindings keep values of their own.

use bytes::Bytes;

use crate::wire::{Reader, WireError, Writer};

/// A header's value: borrowed from a message (`B` is `&[u8]`) or kept with a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HeaderValue<B = Bytes> {
    /// True or false.
    Bool(bool),
    /// A whole number of any width that may be negative.
    Signed(i64),
    /// A whole number of any width that may not.
    Unsigned(u64),
    /// The bits of an `f64`; narrower numbers are widened first.
    Float(u64),
    /// A text or a string of bytes: routing makes no difference.
    Text(B),
    /// Seconds since 1970.
    Timestamp(u64),
    /// Nothing. In a binding: the header only has to be there.
    Void,
    /// Anything else (tables, lists, decimals): the protocol's bytes, including those that name the type.
    Other(B),
}

/// Properties of a message, beside its headers, that an exchange may hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// `correlation_id`.
    CorrelationId,
    /// `message_id`.
    MessageId,
    /// `timestamp`.
    Timestamp,
}

/// Where routing reads the headers of a message, or of a table of arguments.
pub trait HeaderSource {
    /// The value of a header; the first, if there are several of that name.
    fn header(&self, name: &[u8]) -> Option<HeaderValue<&[u8]>>;

    /// The value of a property.
    fn property(&self, property: Property) -> Option<HeaderValue<&[u8]>>;
}

/// A message without headers.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHeaders;

impl HeaderSource for NoHeaders {
    fn header(&self, _name: &[u8]) -> Option<HeaderValue<&[u8]>> {
        None
    }

    fn property(&self, _property: Property) -> Option<HeaderValue<&[u8]>> {
        None
    }
}

impl<B: AsRef<[u8]>> HeaderValue<B> {
    /// Whether two values are the same to a headers exchange. As in RabbitMQ the value counts, not how it is
    /// written: numbers are equal across widths, signs and kinds, and a text equals a string of bytes.
    #[must_use]
    pub fn same<C: AsRef<[u8]>>(&self, other: &HeaderValue<C>) -> bool {
        match (self, other) {
            (Self::Bool(a), HeaderValue::Bool(b)) => a == b,
            (Self::Text(a), HeaderValue::Text(b)) | (Self::Other(a), HeaderValue::Other(b)) => {
                a.as_ref() == b.as_ref()
            }
            (Self::Void, HeaderValue::Void) => true,
            (a, b) => match (a.number(), b.number()) {
                (Some(a), Some(b)) => a.same(b),
                (None, _) | (_, None) => false,
            },
        }
    }

    /// The text, if it is one.
    #[must_use]
    pub fn as_text(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => Some(text.as_ref()),
            Self::Bool(_)
            | Self::Signed(_)
            | Self::Unsigned(_)
            | Self::Float(_)
            | Self::Timestamp(_)
            | Self::Void
            | Self::Other(_) => None,
        }
    }

    fn number(&self) -> Option<Number> {
        match self {
            Self::Signed(value) => Some(Number::Whole((*value).into())),
            Self::Unsigned(value) | Self::Timestamp(value) => Some(Number::Whole((*value).into())),
            Self::Float(bits) => Some(Number::Float(f64::from_bits(*bits))),
            Self::Bool(_) | Self::Text(_) | Self::Void | Self::Other(_) => None,
        }
    }
}

#[derive(Clone, Copy)]
enum Number {
    Whole(i128),
    Float(f64),
}

impl Number {
    #[expect(clippy::float_cmp, reason = "equal means equal here, as it does to clients")]
    fn same(self, other: Self) -> bool {
        match (self, other) {
            (Self::Whole(a), Self::Whole(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a == b,
            // Compared as whole numbers: the other way round, large ones would be rounded to equality. The
            // cast meets its ends only for floats that are beyond every whole number there is here.
            (Self::Whole(whole), Self::Float(float)) | (Self::Float(float), Self::Whole(whole)) => {
                float.fract() == 0.0 && float as i128 == whole
            }
        }
    }
}

impl HeaderValue {
    pub(super) fn encode(&self, out: &mut Writer) {
        match self {
            Self::Bool(value) => {
                out.u8(0);
                out.u8(u8::from(*value));
            }
            Self::Signed(value) => {
                out.u8(1);
                out.u64(value.cast_unsigned());
            }
            Self::Unsigned(value) => {
                out.u8(2);
                out.u64(*value);
            }
            Self::Float(bits) => {
                out.u8(3);
                out.u64(*bits);
            }
            Self::Text(bytes) => {
                out.u8(4);
                out.bytes(bytes);
            }
            Self::Timestamp(value) => {
                out.u8(5);
                out.u64(*value);
            }
            Self::Void => out.u8(6),
            Self::Other(bytes) => {
                out.u8(7);
                out.bytes(bytes);
            }
        }
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match input.u8()? {
            0 => Self::Bool(input.flag()?),
            1 => Self::Signed(input.u64()?.cast_signed()),
            2 => Self::Unsigned(input.u64()?),
            3 => Self::Float(input.u64()?),
            4 => Self::Text(Bytes::copy_from_slice(input.bytes()?)),
            5 => Self::Timestamp(input.u64()?),
            6 => Self::Void,
            7 => Self::Other(Bytes::copy_from_slice(input.bytes()?)),
            value => return Err(WireError::Unknown { what: "kind of header value", value }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Value = HeaderValue<&'static [u8]>;

    #[test]
    fn numbers_are_equal_whatever_their_kind() {
        let one = Value::Signed(1);
        assert!(one.same(&Value::Unsigned(1)) && one.same(&Value::Timestamp(1)));
        assert!(one.same(&Value::Float(1f64.to_bits())) && Value::Float(1f64.to_bits()).same(&one));
        assert!(Value::Float(0f64.to_bits()).same(&Value::Float((-0f64).to_bits())));
        assert!(!one.same(&Value::Float(1.5f64.to_bits())) && !one.same(&Value::Bool(true)));
        assert!(!Value::Unsigned(u64::MAX).same(&Value::Signed(-1)));
        let rounded = Value::Float((u64::MAX as f64).to_bits());
        assert!(!Value::Unsigned(u64::MAX).same(&rounded), "a float of 2^64 is not 2^64 - 1");
        assert!(
            !one.same(&Value::Float(f64::NAN.to_bits())) && !one.same(&Value::Float(f64::INFINITY.to_bits()))
        );
    }

    #[test]
    fn texts_are_equal_to_texts_only() {
        assert!(Value::Text(b"a").same(&HeaderValue::Text(Bytes::from_static(b"a"))));
        assert!(!Value::Text(b"1").same(&Value::Signed(1)));
        assert!(!Value::Text(b"a").same(&Value::Other(b"a")));
        assert!(!Value::Void.same(&Value::Text(b"")));
    }
}
