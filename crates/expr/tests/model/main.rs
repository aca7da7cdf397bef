//! Random expressions, written as text, compiled and evaluated, have the results of a naive model of the language.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod ast;
mod naive;

use ast::{Ast, Tape};
use naive::Model;
use nexo_expr::{Program, Schema, Type, Value};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value as JsonValue, json};

const SCHEMA: Schema = Schema::new(&[
    ("yes", Type::Bool),
    ("int", Type::Int),
    ("double", Type::Double),
    ("number", Type::Number),
    ("text", Type::String),
    ("json", Type::Json),
]);

fn item() -> JsonValue {
    json!({
        "a": 3, "b": -2.5, "c": "ab", "d": [1, 2.0, "x", null], "e": {"a": 1, "c": "y"}, "f": null, "g": false,
        "max": i64::MAX, "min": i64::MIN,
    })
}

fn model_of(value: &Value<'_>) -> Model {
    match value {
        Value::Null => Model::Null,
        Value::Bool(truth) => Model::Bool(*truth),
        Value::Int(int) => Model::Int(*int),
        Value::Double(double) => Model::Double(*double),
        Value::String(text) => Model::Text(text.to_string()),
        Value::List(list) => Model::List(list.iter().map(model_of).collect()),
        Value::Json(json) => Model::from_json(json),
    }
}

/// Whether a refusal is one that types explain. The tree is sound, so there can be no other.
fn is_about_types(message: &str) -> bool {
    ["does not take", "branches", "cannot be indexed", "no such field", "no entry of the list"]
        .iter()
        .any(|words| message.contains(words))
}

/// Evaluates both ways; `None` if the expression was refused for its types.
fn compare(tree: &Ast, source: &str) -> Result<Option<bool>, TestCaseError> {
    let json = item();
    let arguments = [
        Value::Bool(true),
        Value::Int(7),
        Value::Double(0.5),
        Value::Double(2.0),
        Value::from("Hello"),
        Value::Json(&json),
    ];
    let names = SCHEMA.variables().iter().map(|(name, _)| *name);
    let variables = names.zip(arguments.iter().map(model_of)).collect();
    let program = match Program::compile(source, &SCHEMA, Type::Json) {
        Ok(program) => program,
        Err(error) => {
            prop_assert!(is_about_types(error.message()), "{source}: {error}");
            return Ok(None);
        }
    };
    let found = program.eval(&arguments).map(|value| model_of(&value));
    let expected = naive::eval(tree, &variables);
    match (&found, &expected) {
        (Ok(found), Some(expected)) => {
            prop_assert!(found.is_same(expected), "{source}: {found:?}, not {expected:?}")
        }
        (Err(_), None) => {}
        _ => prop_assert!(false, "{source}: {found:?}, not {expected:?}"),
    }
    Ok(Some(expected.is_some()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6000))]

    #[test]
    fn random_expressions_evaluate_like_the_model(choices in vec(any::<u16>(), 1..60)) {
        let tree = Ast::random(&mut Tape::new(&choices), 5);
        compare(&tree, &tree.to_text(&mut Tape::new(&choices)))?;
    }
}

/// The property would hold if everything was refused or failed.
#[test]
fn most_random_expressions_have_a_result() {
    let (mut refused, mut failed, mut evaluated) = (0, 0, 0);
    for seed in 0..2_000u32 {
        let mut state = seed;
        let choices: Vec<u16> = (0..40)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 16) as u16
            })
            .collect();
        let tree = Ast::random(&mut Tape::new(&choices), 5);
        match compare(&tree, &tree.to_text(&mut Tape::new(&[]))).unwrap() {
            None => refused += 1,
            Some(false) => failed += 1,
            Some(true) => evaluated += 1,
        }
    }
    assert!(evaluated > 1_000 && failed > 50 && refused > 50, "{evaluated} {failed} {refused}");
}
