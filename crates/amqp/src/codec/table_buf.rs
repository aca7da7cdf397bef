//! Tables and arrays that are being written. An entry that is not touched keeps its bytes as they came, so
//! that a header of a type that only two clients understand passes through the broker unharmed.

use super::short_str::ShortStr;
use super::table::{Array, Table};
use super::value::Value;

/// A table that can be added to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableBuf {
    raw: Vec<u8>,
}

impl TableBuf {
    /// No entries yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { raw: Vec::new() }
    }

    /// Appends an entry, whether or not there is one with this name.
    pub fn put<'v>(&mut self, name: ShortStr<'_>, value: impl Into<Value<'v>>) -> &mut Self {
        name.put(&mut self.raw);
        value.into().put(&mut self.raw);
        self
    }

    /// Puts `value` in the place of the first entry with this name, or at the end if there is none. Further
    /// entries with the name go, so that a client that reads the last one sees the same.
    pub fn set<'v>(&mut self, name: ShortStr<'_>, value: impl Into<Value<'v>>) -> &mut Self {
        let first = self.as_table().ranges_of(name).next();
        self.remove(name);
        match first {
            Some(range) => {
                let mut entry = Vec::new();
                name.put(&mut entry);
                value.into().put(&mut entry);
                self.raw.splice(range.start..range.start, entry);
                self
            }
            None => self.put(name, value),
        }
    }

    /// Takes out every entry with this name.
    pub fn remove(&mut self, name: ShortStr<'_>) -> &mut Self {
        let ranges: Vec<_> = self.as_table().ranges_of(name).collect();
        for range in ranges.into_iter().rev() {
            self.raw.drain(range);
        }
        self
    }

    /// The table as it stands.
    #[must_use]
    pub fn as_table(&self) -> Table<'_> {
        Table::unchecked(&self.raw)
    }

    /// The inside, without the length before it.
    #[must_use]
    pub fn as_raw(&self) -> &[u8] {
        &self.raw
    }
}

impl From<Table<'_>> for TableBuf {
    fn from(table: Table<'_>) -> Self {
        Self { raw: table.as_raw().to_vec() }
    }
}

/// An array that can be added to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArrayBuf {
    raw: Vec<u8>,
}

impl ArrayBuf {
    /// No values yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { raw: Vec::new() }
    }

    /// Appends a value.
    pub fn push<'v>(&mut self, value: impl Into<Value<'v>>) -> &mut Self {
        value.into().put(&mut self.raw);
        self
    }

    /// The array as it stands.
    #[must_use]
    pub fn as_array(&self) -> Array<'_> {
        Array::unchecked(&self.raw)
    }
}

impl From<Array<'_>> for ArrayBuf {
    fn from(array: Array<'_>) -> Self {
        Self { raw: array.as_raw().to_vec() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ShortStr<'static> = ShortStr::from_static("a");
    const B: ShortStr<'static> = ShortStr::from_static("b");
    const C: ShortStr<'static> = ShortStr::from_static("c");

    /// `b` holds an `L`, which is read as an `l`: its letter survives only if its bytes are kept.
    fn table() -> TableBuf {
        let mut table = TableBuf::new();
        table.put(A, Value::U8(1));
        table.raw.extend(b"\x01bL\0\0\0\0\0\0\0\x05");
        table
    }

    #[test]
    fn an_entry_is_replaced_in_its_place_and_the_others_keep_their_bytes() {
        let mut table = table();
        table.set(A, "one");
        assert_eq!(table.as_raw(), b"\x01aS\0\0\0\x03one\x01bL\0\0\0\0\0\0\0\x05");
    }

    #[test]
    fn a_new_entry_goes_to_the_end() {
        let mut table = table();
        table.set(C, true);
        assert_eq!(table.as_raw(), b"\x01aB\x01\x01bL\0\0\0\0\0\0\0\x05\x01ct\x01");
    }

    #[test]
    fn replacing_a_name_that_stands_twice_leaves_it_once() {
        let mut table = table();
        table.put(A, Value::U8(2)).set(A, Value::U8(3));
        assert_eq!(table.as_raw(), b"\x01aB\x03\x01bL\0\0\0\0\0\0\0\x05");
    }

    #[test]
    fn removing_takes_every_entry_with_the_name() {
        let mut table = table();
        table.put(A, Value::Void).remove(A);
        assert_eq!(table.as_raw(), b"\x01bL\0\0\0\0\0\0\0\x05");
        assert!(table.remove(B).as_table().is_empty());
    }

    #[test]
    fn a_death_is_put_before_earlier_ones() {
        let mut earlier = ArrayBuf::new();
        earlier.push("first");
        let mut deaths = ArrayBuf::new();
        deaths.push("second");
        for death in earlier.as_array().iter() {
            deaths.push(death);
        }
        let mut headers = table();
        headers.set(C, deaths.as_array());
        let parsed = Table::parse(headers.as_raw()).unwrap();
        let texts: Vec<_> = parsed.get("c").unwrap().as_array().unwrap().iter().map(|v| v.as_str()).collect();
        assert_eq!(texts, [Some("second"), Some("first")]);
    }
}
