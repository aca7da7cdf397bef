//! Headers and properties as routing reads them.

use std::cell::OnceCell;

use hashbrown::HashMap;
use nexo_broker::topology::{HeaderSource, HeaderValue, Property as RoutingProperty};

use crate::codec::{Properties, ShortStr, Table, TableBuf, Value};

/// Properties travel in one frame, and clients negotiate 128 KiB for one. Other ways in take larger headers.
const NATIVE_TABLE_BYTES_MAX: usize = 100 * 1024;

/// With more headers than this they are put into a map when the first is looked for: an exchange may have thousands of
/// bindings that look for one each.
const UNMAPPED_HEADERS_MAX: usize = 16;

/// The headers and properties of one message.
pub(crate) struct MessageHeaders<'a> {
    properties: Properties<'a>,
    /// By name, if there are many.
    map: OnceCell<Option<HashMap<&'a [u8], Value<'a>, foldhash::fast::RandomState>>>,
}

impl<'a> MessageHeaders<'a> {
    pub(crate) const fn new(properties: Properties<'a>) -> Self {
        Self { properties, map: OnceCell::new() }
    }

    fn map(&self, table: Table<'a>) -> Option<&HashMap<&'a [u8], Value<'a>, foldhash::fast::RandomState>> {
        let map = self.map.get_or_init(|| {
            table.iter().nth(UNMAPPED_HEADERS_MAX)?;
            let mut map = HashMap::default();
            for (name, value) in table.iter() {
                // Of two with one name the first counts.
                map.entry(name.as_bytes()).or_insert(value);
            }
            Some(map)
        });
        map.as_ref()
    }
}

/// The arguments of a declaration.
#[derive(Clone, Copy)]
pub(crate) struct ArgumentHeaders<'a>(pub(crate) Table<'a>);

impl HeaderSource for MessageHeaders<'_> {
    fn header(&self, name: &[u8]) -> Option<HeaderValue<&[u8]>> {
        let table = self.properties.headers()?;
        match self.map(table) {
            Some(map) => map.get(name).map(|value| header_value(*value)),
            None => find(table, name),
        }
    }

    fn property(&self, property: RoutingProperty) -> Option<HeaderValue<&[u8]>> {
        match property {
            RoutingProperty::CorrelationId => {
                self.properties.correlation_id().map(|id| HeaderValue::Text(id.as_bytes()))
            }
            RoutingProperty::MessageId => {
                self.properties.message_id().map(|id| HeaderValue::Text(id.as_bytes()))
            }
            RoutingProperty::Timestamp => self.properties.timestamp().map(HeaderValue::Timestamp),
        }
    }
}

impl HeaderSource for ArgumentHeaders<'_> {
    fn header(&self, name: &[u8]) -> Option<HeaderValue<&[u8]>> {
        find(self.0, name)
    }

    fn property(&self, _property: RoutingProperty) -> Option<HeaderValue<&[u8]>> {
        None
    }
}

fn find<'a>(table: Table<'a>, name: &[u8]) -> Option<HeaderValue<&'a [u8]>> {
    table.iter().find_map(|(entry, value)| (entry.as_bytes() == name).then(|| header_value(value)))
}

/// A value as routing compares it.
pub(crate) fn header_value(value: Value<'_>) -> HeaderValue<&[u8]> {
    match value {
        Value::Bool(truth) => HeaderValue::Bool(truth),
        Value::I8(number) => HeaderValue::Signed(number.into()),
        Value::I16(number) => HeaderValue::Signed(number.into()),
        Value::I32(number) => HeaderValue::Signed(number.into()),
        Value::I64(number) => HeaderValue::Signed(number),
        Value::U8(number) => HeaderValue::Unsigned(number.into()),
        Value::U16(number) => HeaderValue::Unsigned(number.into()),
        Value::U32(number) => HeaderValue::Unsigned(number.into()),
        Value::F32(number) => HeaderValue::Float(f64::from(number).to_bits()),
        Value::F64(number) => HeaderValue::Float(number.to_bits()),
        Value::Timestamp(seconds) => HeaderValue::Timestamp(seconds),
        Value::LongStr(bytes) | Value::Bytes(bytes) => HeaderValue::Text(bytes),
        Value::Void => HeaderValue::Void,
        Value::Table(table) => HeaderValue::Other(table.as_raw()),
        Value::Array(array) => HeaderValue::Other(array.as_raw()),
        // A decimal as an exchange compares it: by its number, which loses nothing that two clients would differ in.
        Value::Decimal { scale, digits } => {
            HeaderValue::Float((f64::from(digits) / 10f64.powi(scale.into())).to_bits())
        }
    }
}

/// As [`header_value`], to be kept with a binding.
pub(crate) fn owned_value(value: Value<'_>) -> HeaderValue {
    let own = bytes::Bytes::copy_from_slice;
    match header_value(value) {
        HeaderValue::Bool(truth) => HeaderValue::Bool(truth),
        HeaderValue::Signed(number) => HeaderValue::Signed(number),
        HeaderValue::Unsigned(number) => HeaderValue::Unsigned(number),
        HeaderValue::Float(bits) => HeaderValue::Float(bits),
        HeaderValue::Text(bytes) => HeaderValue::Text(own(bytes)),
        HeaderValue::Timestamp(seconds) => HeaderValue::Timestamp(seconds),
        HeaderValue::Void => HeaderValue::Void,
        HeaderValue::Other(bytes) => HeaderValue::Other(own(bytes)),
    }
}

/// Native headers as an AMQP table, as far as they fit into one frame.
pub(crate) fn native_table(headers: &nexo_broker::Headers) -> TableBuf {
    use nexo_broker::HeaderValue as Native;
    let mut table = TableBuf::new();
    let mut bytes = 0;
    for (name, value) in &headers.0 {
        let (size, value) = match value {
            Native::Text(text) | Native::Json(text) => (text.len(), Value::LongStr(text.as_bytes())),
            Native::Bytes(bytes) => (bytes.len(), Value::Bytes(bytes)),
            Native::Number(digits) => (digits.len(), number(digits)),
        };
        bytes += name.len() + size;
        if bytes > NATIVE_TABLE_BYTES_MAX {
            break;
        }
        table.put(ShortStr::clipped(name.as_bytes()), value);
    }
    table
}

/// A whole number as one; any other as its digits, which are exact, and which pika would read as a whole number otherwise.
fn number(digits: &str) -> Value<'_> {
    digits.parse::<i64>().map_or(Value::LongStr(digits.as_bytes()), Value::I64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nexo_broker::{HeaderValue as Native, Headers};

    #[test]
    fn native_headers_keep_their_kinds() {
        let header = |name: &str, value| (name.to_owned(), value);
        let table = native_table(&Headers(vec![
            header("text", Native::Text("x".into())),
            header("whole", Native::Number("-42".into())),
            header("real", Native::Number("1.50".into())),
            header("bytes", Native::Bytes(bytes::Bytes::from_static(&[0, 255]))),
        ]));
        let get = |name| table.as_table().get(name);
        assert_eq!(get("text"), Some(Value::LongStr(b"x")));
        assert_eq!(get("whole"), Some(Value::I64(-42)));
        assert_eq!(get("real"), Some(Value::LongStr(b"1.50")));
        assert_eq!(get("bytes"), Some(Value::Bytes(&[0, 255])));
    }

    #[test]
    fn headers_that_fill_no_frame_are_left_out() {
        let large = |name: &str| (name.to_owned(), Native::Text("x".repeat(60 * 1024)));
        let table = native_table(&Headers(vec![large("a"), large("b")]));
        assert!(table.as_table().get("a").is_some() && table.as_table().get("b").is_none());
    }
}
