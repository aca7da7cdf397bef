//! What a program promises besides its results.

use nexo_expr::{CompileError, EvalError, Kind, Program, Schema, Type, Value};
use serde_json::json;

const SCHEMA: Schema = Schema::new(&[("waiters", Type::Int), ("age", Type::Double), ("item", Type::Json)]);

fn compile(source: &str, expected: Type) -> Result<Program, CompileError> {
    Program::compile(source, &SCHEMA, expected)
}

#[test]
fn the_result_must_be_what_is_expected() {
    for (source, expected) in [
        ("waiters", Type::Int),
        ("waiters", Type::Number),
        ("age", Type::Double),
        ("age + waiters", Type::Number),
        ("waiters > 1", Type::Bool),
        ("string(waiters)", Type::String),
        ("[waiters]", Type::Json),
        ("item.a", Type::Bool),
        ("item.a", Type::Int),
    ] {
        assert!(compile(source, expected).is_ok(), "{source}");
    }
    for (source, expected, message) in [
        ("waiters", Type::Bool, "the result is an int; expected a bool"),
        ("waiters", Type::Double, "the result is an int; expected a double"),
        ("age", Type::Int, "the result is a double; expected an int"),
        ("waiters > 1", Type::Number, "the result is a bool; expected a number"),
        ("'a' + 'b'", Type::Number, "the result is a string; expected a number"),
        ("null", Type::String, "the result is null; expected a string"),
        ("[1]", Type::Number, "the result is a list; expected a number"),
    ] {
        assert_eq!(compile(source, expected).unwrap_err().message(), message, "{source}");
    }
}

#[test]
fn json_shows_its_type_when_it_is_evaluated() {
    let item = json!({ "a": "text", "b": 3, "c": true });
    let arguments = [Value::Int(1), Value::Double(2.0), Value::Json(&item)];
    let program = compile("item.a", Type::Bool).unwrap();
    let error = program.eval(&arguments).unwrap_err();
    assert_eq!(error, EvalError::Result { expected: Type::Bool, found: Kind::String });
    assert_eq!(error.to_string(), "the result is a string; expected a bool");
    assert_eq!(compile("item.b", Type::Number).unwrap().eval(&arguments), Ok(Value::Int(3)));
    assert_eq!(compile("item.c", Type::Bool).unwrap().eval(&arguments), Ok(Value::Bool(true)));
}

#[test]
fn every_variable_needs_its_argument() {
    let program = compile("waiters + 1", Type::Int).unwrap();
    let error = program.eval(&[Value::Int(1)]).unwrap_err();
    assert_eq!(error.to_string(), "1 arguments for 3 variables");
}

/// Whoever calls may be mistaken about its own schema; that is an error, and no panic.
#[test]
fn an_argument_of_another_type_is_an_error() {
    let program = compile("waiters * 2 > 3 ? 1 : 2", Type::Int).unwrap();
    let arguments = [Value::from("x"), Value::Null, Value::Null];
    assert_eq!(program.eval(&arguments).unwrap_err().to_string(), "'*' does not take a string");
    let item = json!(21);
    let arguments = [Value::Json(&item), Value::Null, Value::Null];
    assert_eq!(program.eval(&arguments), Ok(Value::Int(1)));
}

#[test]
fn a_program_knows_its_text_and_its_variables() {
    let program = compile("waiters > 1 || item.age > 3", Type::Bool).unwrap();
    assert_eq!(program.source(), "waiters > 1 || item.age > 3");
    assert!(program.uses("waiters") && program.uses("item"));
    assert!(!program.uses("age") && !program.uses("nothing"));
    assert_eq!(program, program.clone());
    assert_ne!(program, compile("waiters > 1", Type::Bool).unwrap());
    assert_eq!(format!("{program:?}"), r#"Program("waiters > 1 || item.age > 3")"#);
}

#[test]
fn an_error_points_at_its_place() {
    let source = "waiters > 1\n\t&& 'è' + 1 == 'x'";
    let error = compile(source, Type::Bool).unwrap_err();
    assert_eq!(error.to_string(), "line 2, column 9: '+' does not take a string and an int");
    assert_eq!((error.line(), error.column(), &source[error.offset()..=error.offset()]), (2, 9, "+"));
    assert_eq!(error.caret(source), "\t&& 'è' + 1 == 'x'\n\t       ^");
}

#[test]
fn text_of_the_data_is_borrowed() {
    let item = json!({ "title": "Cuffie" });
    let arguments = [Value::Int(1), Value::Double(2.0), Value::Json(&item)];
    let program = compile("item.title.trim()", Type::String).unwrap();
    let Ok(Value::String(std::borrow::Cow::Borrowed(title))) = program.eval(&arguments) else {
        panic!("the title was copied");
    };
    assert_eq!(title.as_ptr(), item["title"].as_str().unwrap().as_ptr());
}
