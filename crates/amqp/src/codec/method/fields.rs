//! The fields of methods, by their Rust types. Truth values that follow one another share an octet, lowest bit
//! first, which is why reading and writing remember whether the last field was one.

use crate::codec::error::{MethodError, TableError};
use crate::codec::read::Reader;
use crate::codec::short_str::ShortStr;
use crate::codec::table::Table;
use crate::codec::value::put_long_bytes;

/// Reads one field after the other.
pub(crate) struct FieldsReader<'a> {
    reader: Reader<'a>,
    /// The octet that truth values are being read from, shifted so that the next is lowest.
    bits: u8,
    /// How many of its bits are left; 0 if the last field was no truth value.
    bits_left: u8,
}

/// Writes one field after the other, to the end of a buffer.
pub struct FieldsWriter<'o> {
    out: &'o mut Vec<u8>,
    /// How many bits of the last octet are taken; 0 if the last field was no truth value.
    bits_taken: u8,
}

/// What is wrong with a field; the method and the field's name are added by the caller.
pub(crate) enum FieldError {
    Short,
    Table(TableError),
}

/// A type that a field can have.
pub(crate) trait Field<'a>: Sized {
    fn read(reader: &mut FieldsReader<'a>) -> Result<Self, FieldError>;
    fn put(&self, writer: &mut FieldsWriter<'_>);
    /// At least as many bytes as [`put`](Self::put) appends.
    fn bytes_max(&self) -> usize;
}

impl<'a> FieldsReader<'a> {
    #[inline]
    pub(crate) const fn new(fields: &'a [u8]) -> Self {
        Self { reader: Reader::new(fields), bits: 0, bits_left: 0 }
    }

    #[inline]
    pub(crate) fn field<F: Field<'a>>(
        &mut self,
        method: &'static str,
        field: &'static str,
    ) -> Result<F, MethodError> {
        F::read(self).map_err(|error| match error {
            FieldError::Short => MethodError::Short { method, field },
            FieldError::Table(source) => MethodError::Table { method, field, source },
        })
    }

    /// Ends the method, which must have no more bytes.
    #[inline]
    pub(crate) fn finish(&mut self, method: &'static str) -> Result<(), MethodError> {
        match self.reader.rest().len() {
            0 => Ok(()),
            bytes => Err(MethodError::Trailing { method, bytes }),
        }
    }

    #[inline]
    fn whole(&mut self) -> &mut Reader<'a> {
        self.bits_left = 0;
        &mut self.reader
    }
}

impl<'o> FieldsWriter<'o> {
    #[inline]
    pub(crate) const fn new(out: &'o mut Vec<u8>) -> Self {
        Self { out, bits_taken: 0 }
    }

    #[inline]
    const fn whole(&mut self) -> &mut Vec<u8> {
        self.bits_taken = 0;
        self.out
    }
}

impl<'a> Field<'a> for bool {
    #[inline]
    fn read(reader: &mut FieldsReader<'a>) -> Result<Self, FieldError> {
        if reader.bits_left == 0 {
            // Bits that the specification does not use are ignored, as RabbitMQ does.
            reader.bits = reader.reader.u8().ok_or(FieldError::Short)?;
            reader.bits_left = 8;
        }
        let bit = reader.bits & 1 != 0;
        reader.bits >>= 1;
        reader.bits_left -= 1;
        Ok(bit)
    }

    #[inline]
    fn put(&self, writer: &mut FieldsWriter<'_>) {
        let bit = u8::from(*self);
        match writer.out.last_mut() {
            Some(octet) if (1..8).contains(&writer.bits_taken) => *octet |= bit << writer.bits_taken,
            _ => {
                writer.out.push(bit);
                writer.bits_taken = 0;
            }
        }
        writer.bits_taken += 1;
    }

    #[inline]
    fn bytes_max(&self) -> usize {
        1
    }
}

macro_rules! number_field {
    ($($number:ident)*) => {$(
        impl<'a> Field<'a> for $number {
            #[inline]
            fn read(reader: &mut FieldsReader<'a>) -> Result<Self, FieldError> {
                reader.whole().$number().ok_or(FieldError::Short)
            }

            #[inline]
            fn put(&self, writer: &mut FieldsWriter<'_>) {
                writer.whole().extend_from_slice(&self.to_be_bytes());
            }

            #[inline]
            fn bytes_max(&self) -> usize {
                size_of::<Self>()
            }
        }
    )*};
}

number_field! { u8 u16 u32 u64 }

impl<'a> Field<'a> for ShortStr<'a> {
    #[inline]
    fn read(reader: &mut FieldsReader<'a>) -> Result<Self, FieldError> {
        reader.whole().short_str().ok_or(FieldError::Short)
    }

    #[inline]
    fn put(&self, writer: &mut FieldsWriter<'_>) {
        ShortStr::put(*self, writer.whole());
    }

    #[inline]
    fn bytes_max(&self) -> usize {
        1 + self.len()
    }
}

/// A long string.
impl<'a> Field<'a> for &'a [u8] {
    #[inline]
    fn read(reader: &mut FieldsReader<'a>) -> Result<Self, FieldError> {
        reader.whole().long_bytes().ok_or(FieldError::Short)
    }

    #[inline]
    fn put(&self, writer: &mut FieldsWriter<'_>) {
        put_long_bytes(writer.whole(), self);
    }

    #[inline]
    fn bytes_max(&self) -> usize {
        4 + self.len()
    }
}

impl<'a> Field<'a> for Table<'a> {
    #[inline]
    fn read(reader: &mut FieldsReader<'a>) -> Result<Self, FieldError> {
        let inside = reader.whole().long_bytes().ok_or(FieldError::Short)?;
        Table::parse(inside).map_err(FieldError::Table)
    }

    #[inline]
    fn put(&self, writer: &mut FieldsWriter<'_>) {
        put_long_bytes(writer.whole(), self.as_raw());
    }

    #[inline]
    fn bytes_max(&self) -> usize {
        4 + self.as_raw().len()
    }
}
