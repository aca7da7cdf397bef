//! Compiles and evaluates whatever the bytes say, and checks what must hold whatever they are. The fuzz target does the
//! same with more bytes.

use nexo_expr::limits::{SOURCE_BYTES_MAX, TEXT_BYTES_MAX};
use nexo_expr::{Kind, Program, Schema, Type, Value};
use serde_json::{Value as JsonValue, json};

const SCHEMA: Schema = Schema::new(&[
    ("prefetch", Type::Bool),
    ("waiters", Type::Int),
    ("due_minutes", Type::Double),
    ("class", Type::Number),
    ("title", Type::String),
    ("item", Type::Json),
]);
const TYPES: [Type; 6] = [Type::Bool, Type::Int, Type::Double, Type::Number, Type::String, Type::Json];
/// A name in an error is at most as long as the source, and each of its characters is escaped by at most ten.
const ERROR_BYTES_MAX: usize = 10 * SOURCE_BYTES_MAX + 1024;

/// Takes `bytes` for an expression, and after a zero byte for a JSON item.
pub(crate) fn anything(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |&byte| byte == 0);
    let source = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let item = parts.next().and_then(|json| serde_json::from_slice(json).ok());
    expression(&source, &item.unwrap_or_else(some_item));
}

fn some_item() -> JsonValue {
    json!({
        "price": 79.9, "discount": 35, "title": "Cuffie", "tags": ["audio", 1, null, 2.5], "seller": {"country": "IT"},
        "a": i64::MAX, "b": i64::MIN, "c": u64::MAX, "d": -1, "e": "", "f": 0, "g": true, "h": [[1], [2]],
    })
}

/// Compiles for every type of result and evaluates what compiles.
pub(crate) fn expression(source: &str, item: &JsonValue) {
    let arguments = [
        Value::Bool(false),
        Value::Int(3),
        Value::Double(12.5),
        Value::Int(-1),
        Value::from("Cuffie usate"),
        Value::Json(item),
    ];
    for expected in TYPES {
        match Program::compile(source, &SCHEMA, expected) {
            Ok(program) => evaluate(&program, expected, &arguments),
            Err(error) => {
                assert!(error.offset() <= source.len() && source.is_char_boundary(error.offset()));
                assert!(error.line() >= 1 && error.column() >= 1);
                one_line(&error.to_string());
                assert!(error.caret(source).ends_with('^'));
            }
        }
    }
}

fn evaluate(program: &Program, expected: Type, arguments: &[Value<'_>]) {
    assert!(program.source().len() <= SOURCE_BYTES_MAX);
    for (variable, _) in SCHEMA.variables() {
        assert!(!program.uses(variable) || program.source().contains(variable));
    }
    let result = program.eval(arguments);
    // NaN is not equal to itself, but is printed alike.
    assert_eq!(
        format!("{result:?}"),
        format!("{:?}", program.clone().eval(arguments)),
        "the same every time"
    );
    match result {
        Ok(value) => {
            assert!(is(value.kind(), expected), "{:?} is not {expected}", value);
            if let Value::String(std::borrow::Cow::Owned(text)) = &value {
                assert!(text.len() <= TEXT_BYTES_MAX);
            }
        }
        Err(error) => one_line(&error.to_string()),
    }
}

fn is(kind: Kind, expected: Type) -> bool {
    match expected {
        Type::Bool => kind == Kind::Bool,
        Type::Int => kind == Kind::Int,
        Type::Double => kind == Kind::Double,
        Type::Number => matches!(kind, Kind::Int | Kind::Double),
        Type::String => kind == Kind::String,
        Type::Json => true,
    }
}

fn one_line(error: &str) {
    assert!(!error.is_empty() && !error.contains(['\n', '\r']), "an error is one line: {error:?}");
    assert!(error.len() <= ERROR_BYTES_MAX, "an error of {} bytes", error.len());
}
