//! No text and no data panics, recurses without bound or takes more than the limits say.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::exercise;
use nexo_expr::limits::{
    DEPTH_MAX, EVAL_STEPS_MAX, LIST_ENTRIES_MAX, NODES_MAX, SOURCE_BYTES_MAX, TEXT_BYTES_MAX,
};
use nexo_expr::{EvalError, Program, Schema, Type, Value};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;

const SCHEMA: Schema =
    Schema::new(&[("b", Type::Bool), ("i", Type::Int), ("s", Type::String), ("j", Type::Json)]);

fn refusal(source: &str) -> String {
    Program::compile(source, &SCHEMA, Type::Json).unwrap_err().message().to_owned()
}

fn compiles(source: &str) -> bool {
    Program::compile(source, &SCHEMA, Type::Json).is_ok()
}

/// Whether this many levels compile and one more does not, whatever a level is.
fn is_deepest(levels: usize, nested: impl Fn(usize) -> String) {
    assert!(compiles(&nested(levels)), "{}", refusal(&nested(levels)));
    assert_eq!(
        refusal(&nested(levels + 1)),
        format!("the expression is nested deeper than {DEPTH_MAX} levels")
    );
    // As deep as a text can be.
    let most = (1..).take_while(|&levels| nested(levels).len() <= SOURCE_BYTES_MAX).last().unwrap();
    assert!(most > 2 * DEPTH_MAX);
    assert!(!compiles(&nested(most)));
}

#[test]
fn depth_is_bounded_whatever_it_is_made_of() {
    is_deepest(DEPTH_MAX - 1, |levels| format!("{}1{}", "(".repeat(levels), ")".repeat(levels)));
    is_deepest(DEPTH_MAX - 1, |levels| format!("{}1{}", "[".repeat(levels), "]".repeat(levels)));
    is_deepest(DEPTH_MAX - 1, |levels| format!("{}1{}", "abs(".repeat(levels), ")".repeat(levels)));
    is_deepest(DEPTH_MAX - 1, |levels| "!".repeat(levels) + "b");
    is_deepest(DEPTH_MAX - 1, |levels| "-".repeat(levels) + "i");
    is_deepest(DEPTH_MAX - 1, |levels| "j".to_owned() + &".a".repeat(levels));
    is_deepest(DEPTH_MAX - 1, |levels| "j".to_owned() + &"[0]".repeat(levels));
    is_deepest(DEPTH_MAX - 1, |levels| "s".to_owned() + &".trim()".repeat(levels));
    is_deepest(DEPTH_MAX - 1, |levels| "b ? 1 : ".repeat(levels) + "1");
    is_deepest(DEPTH_MAX - 1, |levels| format!("{}0{}", "j[".repeat(levels), "]".repeat(levels)));
}

#[test]
fn what_is_not_closed_is_refused_at_the_bound() {
    for opening in ["(", "[", "!(", "-(", "abs(", "j[", "b ? (", "has(", "!!(!!!!!!(!!!!(((((!!(!!(!!!!(("] {
        let source = opening.repeat(SOURCE_BYTES_MAX / opening.len());
        assert_eq!(
            refusal(&source),
            format!("the expression is nested deeper than {DEPTH_MAX} levels"),
            "{opening}"
        );
    }
}

#[test]
fn operators_side_by_side_are_one_level() {
    for (operand, operator) in [("1", "+"), ("b", "&&"), ("b", "||"), ("i", "-"), ("2", "/"), ("b", "==")] {
        let source = vec![operand; 250].join(operator);
        assert!(compiles(&source), "{}", refusal(&source));
    }
}

#[test]
fn nodes_bytes_and_entries_are_bounded() {
    let sum = |operands: usize| vec!["1"; operands].join("+");
    assert!(compiles(&sum(NODES_MAX - 1)));
    assert_eq!(refusal(&sum(NODES_MAX)), format!("the expression has more than {NODES_MAX} parts"));
    let list = |entries: usize| format!("[{}]", vec!["1"; entries].join(","));
    assert!(compiles(&list(LIST_ENTRIES_MAX)));
    assert_eq!(
        refusal(&list(LIST_ENTRIES_MAX + 1)),
        format!("the list is longer than {LIST_ENTRIES_MAX} entries")
    );
    let text = |bytes: usize| format!("'{}'", "x".repeat(bytes - 2));
    assert!(compiles(&text(SOURCE_BYTES_MAX)));
    let refused = refusal(&text(SOURCE_BYTES_MAX + 1));
    assert_eq!(
        refused,
        format!("the expression has {} bytes; the most are {SOURCE_BYTES_MAX}", SOURCE_BYTES_MAX + 1)
    );
    let patterns = |count: usize| vec!["s.matches('a')"; count].join("||");
    assert!(compiles(&patterns(8)));
    assert_eq!(refusal(&patterns(9)), "there are more than 8 patterns");
}

#[test]
fn text_that_an_evaluation_builds_is_bounded() {
    let long = "X".repeat(TEXT_BYTES_MAX / 4);
    let item = json!({ "s": long });
    let arguments = [Value::Bool(true), Value::Int(1), Value::from(""), Value::Json(&item)];
    let eval = |source: &str| {
        let program = Program::compile(source, &SCHEMA, Type::Json).unwrap();
        program.eval(&arguments).map(|value| value.as_str().map(str::len))
    };
    assert_eq!(eval("j.s + j.s"), Ok(Some(TEXT_BYTES_MAX / 2)));
    assert_eq!(eval("j.s + j.s + j.s + j.s"), Ok(Some(TEXT_BYTES_MAX)));
    assert_eq!(eval("j.s + j.s + j.s + j.s + 'x'"), Err(EvalError::TooMuchText));
    assert_eq!(eval("(j.s + j.s) + (j.s + j.s) + 'x'"), Err(EvalError::TooMuchText));
    assert_eq!(eval("j.s.lowerAscii() + j.s.lowerAscii() + j.s.lowerAscii()"), Err(EvalError::TooMuchText));
    let parts = ["j.s.lowerAscii()"; 5].join(", ");
    assert_eq!(eval(&format!("[{parts}][0]")), Err(EvalError::TooMuchText));
    // Looking at text is free.
    assert_eq!(eval(&format!("[{}][0]", ["j.s.trim()"; 100].join(", "))), Ok(Some(TEXT_BYTES_MAX / 4)));
}

/// What an evaluation over this JSON comes to within so many steps, and how many it took.
fn within(steps: u64, source: &str, item: &serde_json::Value) -> (Result<Option<bool>, EvalError>, u64) {
    let arguments = [Value::Bool(true), Value::Int(1), Value::from(""), Value::Json(item)];
    let program = Program::compile(source, &SCHEMA, Type::Json).unwrap();
    let mut left = steps;
    let result = program.eval_within(&arguments, &mut left).map(|value| value.as_bool());
    (result, steps - left)
}

#[test]
fn a_pattern_with_many_parts_is_not_tried_on_much_text() {
    // Eight of these over 400 KB of text were minutes of work.
    let pattern =
        |at: usize| format!("j.s.matches('(?-u:[a-h]{{1,{}}}[a-g]{{1,{}}}[0-9p-z])')", 300 + at, 150 + at);
    let source = (0..8).map(pattern).collect::<Vec<_>>().join(" || ");
    let (result, taken) = within(EVAL_STEPS_MAX, &source, &json!({ "s": "abcdefgh".repeat(1_000) }));
    assert_eq!(result, Err(EvalError::TooMuchWork { max: EVAL_STEPS_MAX }));
    assert!(taken <= EVAL_STEPS_MAX);
    let error = EvalError::TooMuchWork { max: EVAL_STEPS_MAX }.to_string();
    assert_eq!(error, "the evaluation takes more than 10000000 steps of work");
    // Over a title they are.
    assert_eq!(within(EVAL_STEPS_MAX, &source, &json!({ "s": "abcdefgh".repeat(10) })).0, Ok(Some(false)));
}

#[test]
fn an_evaluation_that_takes_too_many_steps_fails_whatever_else_would_decide() {
    let item = json!({ "s": "x".repeat(10_000), "list": vec![1; 10_000] });
    for source in [
        "j.s.contains('y')",
        "j.s == j.s",
        "j.s < j.s",
        "j.s.matches('y')",
        "j.s.upperAscii() == 'X'",
        "j.s + 'x' == 'x'",
        "j.s.trim() == 'x'",
        "size(j.s) > 1",
        "j[j.s] == 1",
        "j.s in j",
        "2 in j.list",
        "max(j.list) > 2",
        "j.list == j.list",
        "j == j",
        "j.s.matches('y') || true",
        "!(j.s.matches('y') && false)",
    ] {
        let (result, taken) = within(1_000, source, &item);
        assert_eq!(result, Err(EvalError::TooMuchWork { max: 1_000 }), "{source}");
        assert!(taken <= 1_000, "{source}");
        assert!(
            !matches!(within(1_000_000, source, &item).0, Err(EvalError::TooMuchWork { .. })),
            "{source}"
        );
    }
    assert_eq!(within(3, "i + i > 3", &item), (Err(EvalError::TooMuchWork { max: 3 }), 0));
}

#[test]
fn what_is_refused_for_its_length_costs_nothing() {
    let item = json!({ "s": "x".repeat(10_000) });
    let (result, taken) = within(1_000, "j.s.matches('y')", &item);
    assert!(result.is_err() && taken < 10, "{taken}");
}

#[test]
fn usual_expressions_take_few_steps() {
    let item =
        json!({ "title": "Cuffie Bluetooth senza fili", "price": 79, "discount": 35, "tags": ["audio"] });
    for source in [
        r#"j.discount >= 30 && j.price <= 100 && !j.title.contains("usato")"#,
        "'audio' in j.tags && size(j.title) > 3 && min(j.price, 100) < 90",
    ] {
        let (result, taken) = within(EVAL_STEPS_MAX, source, &item);
        assert!(result == Ok(Some(true)) && taken < 40, "{source}: {result:?} in {taken}");
    }
    let (result, taken) = within(EVAL_STEPS_MAX, r"j.title.lowerAscii().matches('\\bcuffi[ae]\\b')", &item);
    assert!(result == Ok(Some(true)) && taken < 600, "{result:?} in {taken}");
}

#[test]
fn long_data_makes_no_long_errors() {
    let item = json!({ "s": "\n".repeat(1_000_000) });
    let arguments = [Value::Bool(true), Value::Int(1), Value::from(""), Value::Json(&item)];
    for source in ["j[j.s]", "int(j.s)", "double(j.s)"] {
        let program = Program::compile(source, &SCHEMA, Type::Json).unwrap();
        let error = program.eval(&arguments).unwrap_err().to_string();
        assert!(error.len() < 200 && !error.contains('\n'), "{source}: {} bytes", error.len());
    }
}

#[test]
fn what_the_fuzzer_starts_from_and_has_found_passes() {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds");
    let mut count = 0;
    for seed in std::fs::read_dir(seeds).unwrap() {
        exercise::anything(&std::fs::read(seed.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count >= 7, "there are {count} seeds");
}

/// Pieces of expressions, sound by themselves or not.
fn piece() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "1",
        "0",
        "-",
        "9223372036854775807",
        "1.5",
        "'a'",
        "\"",
        "'''",
        "r'",
        "\\",
        "true",
        "false",
        "null",
        "item",
        "waiters",
        "prefetch",
        "due_minutes",
        "class",
        "title",
        ".price",
        ".tags",
        "[",
        "]",
        "(",
        ")",
        ",",
        "?",
        ":",
        "&&",
        "||",
        "!",
        "==",
        "<",
        ">=",
        "+",
        "*",
        "/",
        "%",
        " in ",
        "has(",
        "size(",
        "min(",
        "max(",
        "int(",
        "string(",
        "double(",
        "abs(",
        ".contains(",
        ".matches('",
        ".lowerAscii()",
        ".trim()",
        "math.least(",
        ".all(",
        "//",
        "\n",
        " ",
        "è",
        "0x",
        "e",
        "1u",
        "b'",
        "`",
        "{",
        "item.a",
        "item.b",
        "item.c",
        "item['d']",
        "[1, 'x']",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        exercise::anything(&bytes);
    }

    #[test]
    fn random_pieces_never_panic(pieces in vec(piece(), 0..40)) {
        exercise::anything(pieces.concat().as_bytes());
    }

    #[test]
    fn mutated_expressions_never_panic(
        which in 0usize..4,
        edits in vec((any::<prop::sample::Index>(), piece()), 0..4),
    ) {
        let mut source = [
            "prefetch ? 100 : min(30, max(0, due_minutes)) + max(0, 20 - 2 * waiters) + class",
            r#"item.discount >= 30 && item.price <= 100 && !item.title.contains("usato")"#,
            "size(item.tags) * 2 + (has(item.seller) ? int('7') : 1)",
            r"item.title.lowerAscii().matches('^cuf\\w+') || item.seller['country'] in ['IT', title, string(1.5)]",
        ][which].to_owned();
        for (at, piece) in edits {
            let places: Vec<usize> = source.char_indices().map(|(place, _)| place).collect();
            source.insert_str(places[at.index(places.len())], piece);
        }
        exercise::anything(source.as_bytes());
    }
}
