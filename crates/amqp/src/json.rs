//! Field tables as JSON, for clients that know no tables: lists and objects keep their shape and order, a time is a
//! number of seconds, and bytes that are no text are `{"base64": "…"}`.

use std::fmt::Write;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::codec::Value;

/// One value as JSON. Its depth is bounded, because a table that is nested too deep is refused when it arrives.
pub(crate) fn value(value: Value<'_>) -> String {
    let mut out = String::new();
    put(&mut out, value);
    out
}

fn put(out: &mut String, value: Value<'_>) {
    match value {
        Value::Bool(truth) => put_display(out, truth),
        Value::I8(_)
        | Value::U8(_)
        | Value::I16(_)
        | Value::U16(_)
        | Value::I32(_)
        | Value::U32(_)
        | Value::I64(_) => put_display(out, value.as_integer().unwrap_or_default()),
        Value::F32(real) if real.is_finite() => put_display(out, real),
        Value::F64(real) if real.is_finite() => put_display(out, real),
        Value::F32(real) => put_text(out, &real.to_string()),
        Value::F64(real) => put_text(out, &real.to_string()),
        Value::Decimal { scale, digits } => put_display(out, f64::from(digits) / 10f64.powi(scale.into())),
        Value::Timestamp(seconds) => put_display(out, seconds),
        Value::LongStr(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => put_text(out, text),
            Err(_) => put_base64(out, bytes),
        },
        Value::Bytes(bytes) => put_base64(out, bytes),
        Value::Void => out.push_str("null"),
        Value::Array(array) => {
            out.push('[');
            for (index, item) in array.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                put(out, item);
            }
            out.push(']');
        }
        Value::Table(table) => {
            out.push('{');
            for (index, (name, item)) in table.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                put_text(out, &String::from_utf8_lossy(name.as_bytes()));
                out.push(':');
                put(out, item);
            }
            out.push('}');
        }
    }
}

fn put_display(out: &mut String, value: impl std::fmt::Display) {
    // Writing into a text cannot fail.
    let _ = write!(out, "{value}");
}

fn put_base64(out: &mut String, bytes: &[u8]) {
    out.push_str("{\"base64\":\"");
    BASE64_STANDARD.encode_string(bytes, out);
    out.push_str("\"}");
}

fn put_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if u32::from(control) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{ArrayBuf, ShortStr, TableBuf};

    #[test]
    fn lists_and_tables_keep_their_shape() {
        let mut inner = TableBuf::new();
        inner.put(ShortStr::from_static("count"), 2i64);
        inner.put(ShortStr::from_static("reason"), "expired");
        inner.put(ShortStr::from_static("time"), Value::Timestamp(1_700_000_000));
        let mut deaths = ArrayBuf::new();
        deaths.push(inner.as_table());
        let json = value(Value::Array(deaths.as_array()));
        assert_eq!(json, r#"[{"count":2,"reason":"expired","time":1700000000}]"#);
    }

    #[test]
    fn every_kind_of_value_has_its_place() {
        let mut list = ArrayBuf::new();
        list.push(Value::Bool(true));
        list.push(Value::I8(-1));
        list.push(Value::F64(1.5));
        list.push(Value::F64(f64::NAN));
        list.push(Value::Decimal { scale: 2, digits: 314 });
        list.push(Value::Void);
        list.push(Value::Bytes(&[0, 255]));
        list.push(Value::LongStr(&[0xff]));
        list.push(Value::LongStr(b"a \"quote\", a \\ and a\nline \x01"));
        list.push(Value::Table(TableBuf::new().as_table()));
        assert_eq!(
            value(Value::Array(list.as_array())),
            "[true,-1,1.5,\"NaN\",3.14,null,{\"base64\":\"AP8=\"},{\"base64\":\"/w==\"},\"a \\\"quote\\\", a \\\\ and \
             a\\nline \\u0001\",{}]"
        );
    }
}
