//! The language as a table: expressions, and what comes of them. Rows that say `error` fail when they are evaluated, those
//! that say `refused` when they are compiled.

mod compound;
mod literals;
mod operators;
mod refusals;
mod text;

use std::borrow::Cow;

use nexo_expr::{Program, Schema, Type, Value};
use serde_json::json;

pub(crate) type Row = (&'static str, &'static str);

const SCHEMA: Schema = Schema::new(&[
    ("b", Type::Bool),
    ("i", Type::Int),
    ("d", Type::Double),
    ("n", Type::Number),
    ("s", Type::String),
    ("j", Type::Json),
    ("few", Type::Json),
]);

fn show(value: &Value<'_>) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(truth) => truth.to_string(),
        Value::Int(int) => int.to_string(),
        Value::Double(double) => format!("{double:?}"),
        Value::String(text) => format!("{text:?}"),
        Value::Json(json) => json.to_string(),
        Value::List(list) => format!("[{}]", list.iter().map(show).collect::<Vec<_>>().join(", ")),
    }
}

/// `b` is true, `i` 7, `d` 2.5, `n` 4, `s` "hello", `few` the list [3, 1.5, 2].
fn outcome(source: &str) -> String {
    let json = json!({
        "i": 3, "d": 1.5, "whole": 2.0, "s": "text", "t": true, "f": false, "n": null,
        "l": [1, 2.0, "three", null, [5]], "e": [], "eo": {}, "o": {"a": {"b": 1}, "if": 2, "x-y": 3},
        "max": i64::MAX, "min": i64::MIN, "huge": u64::MAX, "title": "Cuffie USATE, come nuove", "è": "sì",
    });
    let few = json!([3, 1.5, 2]);
    let arguments = [
        Value::Bool(true),
        Value::Int(7),
        Value::Double(2.5),
        Value::Int(4),
        Value::String(Cow::Borrowed("hello")),
        Value::Json(&json),
        Value::Json(&few),
    ];
    let program = match Program::compile(source, &SCHEMA, Type::Json) {
        Ok(program) => program,
        Err(error) => return format!("refused: {error}"),
    };
    assert_eq!(program.source(), source);
    match program.eval(&arguments) {
        Ok(value) => show(&value),
        Err(error) => format!("error: {error}"),
    }
}

pub(crate) fn check(rows: &[Row]) {
    let wrong: Vec<String> = rows
        .iter()
        .map(|(source, expected)| (source, *expected, outcome(source)))
        .filter(|(_, expected, found)| expected != found)
        .map(|(source, expected, found)| format!("{source}\n  expected {expected}\n     found {found}"))
        .collect();
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}
