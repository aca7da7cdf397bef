//! Field tables and arrays, read from their raw bytes as they are asked for. They are checked once, when they
//! are parsed; from then on every entry is known to be whole. [`TableBuf`](super::TableBuf) writes them.

use std::fmt;

use super::constants::TABLE_DEPTH_MAX;
use super::error::TableError;
use super::read::Reader;
use super::short_str::ShortStr;
use super::value::Value;

/// Named values. Two tables are equal if their bytes are.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Table<'a> {
    raw: &'a [u8],
}

impl<'a> Table<'a> {
    /// No entries.
    pub const EMPTY: Self = Self { raw: &[] };

    /// Checks the inside of a table, without the length before it.
    ///
    /// # Errors
    /// If an entry is cut, has an unknown type or lies too deep.
    #[inline]
    pub fn parse(raw: &'a [u8]) -> Result<Self, TableError> {
        check_table(raw, TABLE_DEPTH_MAX)?;
        Ok(Self { raw })
    }

    /// Takes bytes that were checked before, as part of a larger table or by having been written here.
    pub(crate) const fn unchecked(raw: &'a [u8]) -> Self {
        Self { raw }
    }

    /// The first value with this name. RabbitMQ, too, takes the first where a name stands twice.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Value<'a>> {
        self.iter().find_map(|(entry, value)| (entry == name).then_some(value))
    }

    /// All entries in their order.
    pub fn iter(&self) -> impl Iterator<Item = (ShortStr<'a>, Value<'a>)> + Clone + use<'a> {
        let mut reader = Reader::new(self.raw);
        std::iter::from_fn(move || {
            let name = reader.short_str()?;
            let value = Value::read(&mut reader).ok();
            debug_assert!(value.is_some(), "a table was checked before it is walked");
            Some((name, value?))
        })
    }

    /// Where the entries with this name stand in the raw bytes.
    pub(crate) fn ranges_of(&self, name: ShortStr<'_>) -> impl Iterator<Item = std::ops::Range<usize>> {
        let mut reader = Reader::new(self.raw);
        std::iter::from_fn(move || {
            loop {
                let start = self.raw.len() - reader.rest().len();
                let entry = reader.short_str()?;
                Value::read(&mut reader).ok()?;
                if entry == name {
                    return Some(start..self.raw.len() - reader.rest().len());
                }
            }
        })
    }

    /// Whether there are no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// The inside as it came, without the length before it.
    #[must_use]
    pub const fn as_raw(&self) -> &'a [u8] {
        self.raw
    }
}

impl fmt::Debug for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Values without names. Two arrays are equal if their bytes are.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Array<'a> {
    raw: &'a [u8],
}

impl<'a> Array<'a> {
    /// No values.
    pub const EMPTY: Self = Self { raw: &[] };

    /// Takes bytes that were checked before.
    pub(crate) const fn unchecked(raw: &'a [u8]) -> Self {
        Self { raw }
    }

    /// All values in their order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + Clone + use<'a> {
        let mut reader = Reader::new(self.raw);
        std::iter::from_fn(move || {
            if reader.is_empty() {
                return None;
            }
            let value = Value::read(&mut reader).ok();
            debug_assert!(value.is_some(), "an array was checked before it is walked");
            value
        })
    }

    /// The inside as it came, without the length before it.
    #[must_use]
    pub const fn as_raw(&self) -> &'a [u8] {
        self.raw
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Checks every entry, and those of tables within to the depth that is left.
fn check_table(raw: &[u8], depth_left: usize) -> Result<(), TableError> {
    let depth_left = one_deeper(depth_left)?;
    let mut reader = Reader::new(raw);
    while !reader.is_empty() {
        reader.short_str().ok_or(TableError::Short)?;
        check_value(&mut reader, depth_left)?;
    }
    Ok(())
}

fn check_array(raw: &[u8], depth_left: usize) -> Result<(), TableError> {
    let depth_left = one_deeper(depth_left)?;
    let mut reader = Reader::new(raw);
    while !reader.is_empty() {
        check_value(&mut reader, depth_left)?;
    }
    Ok(())
}

fn check_value(reader: &mut Reader<'_>, depth_left: usize) -> Result<(), TableError> {
    match Value::read(reader)? {
        Value::Table(table) => check_table(table.raw, depth_left),
        Value::Array(array) => check_array(array.raw, depth_left),
        _ => Ok(()),
    }
}

fn one_deeper(depth_left: usize) -> Result<usize, TableError> {
    depth_left.checked_sub(1).ok_or(TableError::TooDeep { max: TABLE_DEPTH_MAX })
}

#[cfg(test)]
mod tests {
    use super::super::table_buf::{ArrayBuf, TableBuf};
    use super::*;

    fn nested_arrays(count: usize) -> Vec<u8> {
        let mut inside = Vec::new();
        for _ in 0..count {
            let mut outer = vec![b'A'];
            outer.extend((inside.len() as u32).to_be_bytes());
            outer.append(&mut inside);
            inside = outer;
        }
        let mut table = vec![1, b'a'];
        table.append(&mut inside);
        table
    }

    #[test]
    fn values_are_found_by_name() {
        let mut table = TableBuf::new();
        table.put(ShortStr::from_static("x-message-ttl"), Value::I32(60_000));
        table.put(ShortStr::from_static("x-queue-type"), Value::from("quorum"));
        let table = Table::parse(table.as_raw()).unwrap();

        assert_eq!(table.get("x-message-ttl").unwrap().as_integer(), Some(60_000));
        assert_eq!(table.get("x-queue-type").unwrap().as_str(), Some("quorum"));
        assert_eq!(table.get("x-expires"), None);
        assert_eq!(table.iter().count(), 2);
    }

    #[test]
    fn the_first_of_two_equal_names_counts() {
        let mut table = TableBuf::new();
        table.put(ShortStr::from_static("a"), Value::U8(1));
        table.put(ShortStr::from_static("a"), Value::U8(2));
        assert_eq!(table.as_table().get("a"), Some(Value::U8(1)));
    }

    #[test]
    fn the_letters_mean_what_rabbitmq_takes_them_for() {
        let read = |bytes: &[u8]| {
            let mut raw = vec![1, b'k'];
            raw.extend(bytes);
            format!("{:?}", Table::parse(&raw).map(|table| table.get("k").unwrap()))
        };
        assert_eq!(read(b"s\xff\xfe"), "Ok(I16(-2))");
        assert_eq!(read(b"u\xff\xfe"), "Ok(U16(65534))");
        assert_eq!(read(b"b\xff"), "Ok(I8(-1))");
        assert_eq!(read(b"B\xff"), "Ok(U8(255))");
        assert_eq!(read(b"I\xff\xff\xff\xff"), "Ok(I32(-1))");
        assert_eq!(read(b"i\xff\xff\xff\xff"), "Ok(U32(4294967295))");
        assert_eq!(read(b"l\xff\xff\xff\xff\xff\xff\xff\xff"), "Ok(I64(-1))");
        assert_eq!(read(b"L\xff\xff\xff\xff\xff\xff\xff\xff"), "Ok(I64(-1))");
        assert_eq!(read(b"t\x02"), "Ok(Bool(true))");
        assert_eq!(read(b"D\x02\x00\x00\x01\x3a"), "Ok(Decimal { scale: 2, digits: 314 })");
        assert_eq!(read(b"V"), "Ok(Void)");
        assert_eq!(read(b"U\x00\x00"), "Err(UnknownType { letter: 85 })");
    }

    #[test]
    fn cut_tables_are_refused_at_every_length() {
        let mut array = ArrayBuf::new();
        array.push(Value::from("one"));
        array.push(Value::F64(0.5));
        let mut table = TableBuf::new();
        table.put(ShortStr::from_static("list"), Value::Array(array.as_array()));
        let raw = table.as_raw();
        assert!(Table::parse(raw).is_ok());
        for len in 1..raw.len() {
            assert_eq!(Table::parse(&raw[..len]), Err(TableError::Short), "{len} bytes");
        }
    }

    #[test]
    fn nesting_is_allowed_to_its_limit() {
        assert!(Table::parse(&nested_arrays(TABLE_DEPTH_MAX - 1)).is_ok());
        let refused = Err(TableError::TooDeep { max: TABLE_DEPTH_MAX });
        assert_eq!(Table::parse(&nested_arrays(TABLE_DEPTH_MAX)), refused);
    }

    #[test]
    fn twenty_thousand_nested_arrays_are_refused_without_overflowing_the_stack() {
        let refused = Err(TableError::TooDeep { max: TABLE_DEPTH_MAX });
        assert_eq!(Table::parse(&nested_arrays(20_000)), refused);
    }
}
