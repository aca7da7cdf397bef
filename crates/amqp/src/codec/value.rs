//! One value of a field table or array. The letters are RabbitMQ's, which differ from the specification's:
//! `s` is a signed number of 16 bits, not a short string, and both `l` and `L` are signed numbers of 64.

use super::error::TableError;
use super::read::Reader;
use super::table::{Array, Table};

/// A value, borrowed from its table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// `t`
    Bool(bool),
    /// `b`
    I8(i8),
    /// `B`
    U8(u8),
    /// `s`
    I16(i16),
    /// `u`
    U16(u16),
    /// `I`
    I32(i32),
    /// `i`
    U32(u32),
    /// `l`, and `L` when read
    I64(i64),
    /// `f`
    F32(f32),
    /// `d`
    F64(f64),
    /// `D`: `digits` divided by ten to the power of `scale`
    Decimal {
        /// How many of the digits stand after the point.
        scale: u8,
        /// The number without its point.
        digits: u32,
    },
    /// `T`: seconds since 1970
    Timestamp(u64),
    /// `S`: text by custom, any bytes by right
    LongStr(&'a [u8]),
    /// `x`
    Bytes(&'a [u8]),
    /// `A`
    Array(Array<'a>),
    /// `F`
    Table(Table<'a>),
    /// `V`
    Void,
}

impl<'a> Value<'a> {
    /// Any of the whole numbers: clients choose a width by the size of the number, not by its meaning.
    #[must_use]
    pub const fn as_integer(&self) -> Option<i64> {
        Some(match *self {
            Self::I8(number) => number as i64,
            Self::U8(number) => number as i64,
            Self::I16(number) => number as i64,
            Self::U16(number) => number as i64,
            Self::I32(number) => number as i64,
            Self::U32(number) => number as i64,
            Self::I64(number) => number,
            _ => return None,
        })
    }

    /// A truth value.
    #[must_use]
    pub const fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(truth) = *self { Some(truth) } else { None }
    }

    /// The bytes of a long string.
    #[must_use]
    pub const fn as_bytes(&self) -> Option<&'a [u8]> {
        if let Self::LongStr(bytes) = *self { Some(bytes) } else { None }
    }

    /// A long string that is UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&'a str> {
        std::str::from_utf8(self.as_bytes()?).ok()
    }

    /// A table within the table.
    #[must_use]
    pub const fn as_table(&self) -> Option<Table<'a>> {
        if let Self::Table(table) = *self { Some(table) } else { None }
    }

    /// An array within the table.
    #[must_use]
    pub const fn as_array(&self) -> Option<Array<'a>> {
        if let Self::Array(array) = *self { Some(array) } else { None }
    }

    /// The name that RabbitMQ has for this type, as its error texts show it.
    #[must_use]
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::Bool(_) => "bool",
            Self::I8(_) => "byte",
            Self::U8(_) => "unsignedbyte",
            Self::I16(_) => "short",
            Self::U16(_) => "unsignedshort",
            Self::I32(_) => "signedint",
            Self::U32(_) => "unsignedint",
            Self::I64(_) => "long",
            Self::F32(_) => "float",
            Self::F64(_) => "double",
            Self::Decimal { .. } => "decimal",
            Self::Timestamp(_) => "timestamp",
            Self::LongStr(_) => "longstr",
            Self::Bytes(_) => "binary",
            Self::Array(_) => "array",
            Self::Table(_) => "table",
            Self::Void => "void",
        }
    }

    /// Takes one value off the head of `reader`, its letter first. Does not look inside tables and arrays.
    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, TableError> {
        let letter = reader.u8().ok_or(TableError::Short)?;
        let value = match letter {
            b't' => reader.u8().map(|octet| Self::Bool(octet != 0)),
            b'b' => reader.u8().map(|octet| Self::I8(octet.cast_signed())),
            b'B' => reader.u8().map(Self::U8),
            b's' => reader.u16().map(|number| Self::I16(number.cast_signed())),
            b'u' => reader.u16().map(Self::U16),
            b'I' => reader.u32().map(|number| Self::I32(number.cast_signed())),
            b'i' => reader.u32().map(Self::U32),
            b'l' | b'L' => reader.u64().map(|number| Self::I64(number.cast_signed())),
            b'f' => reader.u32().map(|bits| Self::F32(f32::from_bits(bits))),
            b'd' => reader.u64().map(|bits| Self::F64(f64::from_bits(bits))),
            b'D' => reader.u8().zip(reader.u32()).map(|(scale, digits)| Self::Decimal { scale, digits }),
            b'T' => reader.u64().map(Self::Timestamp),
            b'S' => reader.long_bytes().map(Self::LongStr),
            b'x' => reader.long_bytes().map(Self::Bytes),
            b'A' => reader.long_bytes().map(|inside| Self::Array(Array::unchecked(inside))),
            b'F' => reader.long_bytes().map(|inside| Self::Table(Table::unchecked(inside))),
            b'V' => Some(Self::Void),
            letter => return Err(TableError::UnknownType { letter }),
        };
        value.ok_or(TableError::Short)
    }

    /// Appends the letter and the value.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Bool(truth) => out.extend_from_slice(&[b't', truth.into()]),
            Self::I8(number) => put_fixed(out, b'b', number.to_be_bytes()),
            Self::U8(number) => put_fixed(out, b'B', number.to_be_bytes()),
            Self::I16(number) => put_fixed(out, b's', number.to_be_bytes()),
            Self::U16(number) => put_fixed(out, b'u', number.to_be_bytes()),
            Self::I32(number) => put_fixed(out, b'I', number.to_be_bytes()),
            Self::U32(number) => put_fixed(out, b'i', number.to_be_bytes()),
            Self::I64(number) => put_fixed(out, b'l', number.to_be_bytes()),
            Self::F32(number) => put_fixed(out, b'f', number.to_be_bytes()),
            Self::F64(number) => put_fixed(out, b'd', number.to_be_bytes()),
            Self::Decimal { scale, digits } => {
                out.extend_from_slice(&[b'D', scale]);
                out.extend_from_slice(&digits.to_be_bytes());
            }
            Self::Timestamp(seconds) => put_fixed(out, b'T', seconds.to_be_bytes()),
            Self::LongStr(bytes) => put_lengthy(out, b'S', bytes),
            Self::Bytes(bytes) => put_lengthy(out, b'x', bytes),
            Self::Array(array) => put_lengthy(out, b'A', array.as_raw()),
            Self::Table(table) => put_lengthy(out, b'F', table.as_raw()),
            Self::Void => out.push(b'V'),
        }
    }
}

fn put_fixed<const N: usize>(out: &mut Vec<u8>, letter: u8, bytes: [u8; N]) {
    out.push(letter);
    out.extend_from_slice(&bytes);
}

fn put_lengthy(out: &mut Vec<u8>, letter: u8, bytes: &[u8]) {
    out.push(letter);
    put_long_bytes(out, bytes);
}

/// Appends a length of four octets and the bytes.
pub(crate) fn put_long_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).expect("what is written fits a frame, whose size is four octets");
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(bytes);
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::LongStr(text.as_bytes())
    }
}

impl From<bool> for Value<'_> {
    fn from(truth: bool) -> Self {
        Self::Bool(truth)
    }
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::I64(number)
    }
}

impl<'a> From<Table<'a>> for Value<'a> {
    fn from(table: Table<'a>) -> Self {
        Self::Table(table)
    }
}

impl<'a> From<Array<'a>> for Value<'a> {
    fn from(array: Array<'a>) -> Self {
        Self::Array(array)
    }
}
