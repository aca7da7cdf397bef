//! Texts as Erlang prints terms, because RabbitMQ's reply texts quote them and tests of clients compare them.

use std::fmt::Write;

use crate::codec::Value;

/// As `~p` prints a binary: as text if it can be read, else as numbers.
pub(super) fn binary(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "<<>>".to_owned();
    }
    if bytes.iter().all(|byte| (0x20..0x7f).contains(byte)) {
        return format!("<<\"{}\">>", String::from_utf8_lossy(bytes));
    }
    numbers(bytes)
}

/// As `~w` prints a binary: as numbers. Only as many as a reply text holds.
pub(super) fn numbers(bytes: &[u8]) -> String {
    let mut text = "<<".to_owned();
    for (at, byte) in bytes.iter().take(100).enumerate() {
        let comma = if at == 0 { "" } else { "," };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{byte}");
    }
    text.push_str(if bytes.len() > 100 { "...>>" } else { ">>" });
    text
}

/// A table's value as texts about arguments show it.
pub(super) fn value(value: Value<'_>) -> String {
    match value {
        Value::LongStr(bytes) | Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Bool(truth) => truth.to_string(),
        Value::F32(number) => number.to_string(),
        Value::F64(number) => number.to_string(),
        Value::Timestamp(seconds) => seconds.to_string(),
        Value::Decimal { scale, digits } => format!("{{{scale},{digits}}}"),
        Value::Void => "undefined".to_owned(),
        Value::Array(array) => format!("{array:?}"),
        Value::Table(table) => format!("{table:?}"),
        Value::I8(_)
        | Value::U8(_)
        | Value::I16(_)
        | Value::U16(_)
        | Value::I32(_)
        | Value::U32(_)
        | Value::I64(_) => value.as_integer().unwrap_or_default().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binaries_read_as_erlang_prints_them() {
        assert_eq!(binary(b"abc"), "<<\"abc\">>");
        assert_eq!(binary(b""), "<<>>");
        assert_eq!(binary(&[0, 32, 97]), "<<0,32,97>>");
        assert_eq!(numbers(b"ab"), "<<97,98>>");
    }
}
