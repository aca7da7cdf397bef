//! Prints what patterns cost at worst: bytes of text a second, and nanoseconds for a step as the evaluation counts them.
//!
//!     cargo run --release -p nexo-expr --example patterns

use std::time::{Duration, Instant};

use nexo_expr::{Program, Schema, Type, Value};
use serde_json::json;

const RUN: Duration = Duration::from_millis(300);
const ITEM: Schema = Schema::new(&[("item", Type::Json)]);

fn main() {
    let letters = "abcdefgh".repeat(1_000);
    let same = "a".repeat(8_000);
    let mixed: String = (0..8_000u32)
        .map(|at| char::from(b'a' + (at.wrapping_mul(2_654_435_761) >> 24) as u8 % 26))
        .collect();
    let wide = "èéàù中文字".repeat(500);
    println!(
        "{:<56} {:<8} {:>10} {:>12} {:>10} {:>10}",
        "pattern", "text", "weight", "MB/s", "ns/step", "compile us"
    );
    for pattern in [
        "usato",
        r"\bcuffi[ae]\b",
        r"(?i)\bcuffi[ae]\b",
        r"\w+ \d+",
        "[a-h]{1,300}[a-g]{1,150}[0-9p-z]",
        "(?-u:[a-h]{1,300}[a-g]{1,150}[0-9p-z])",
        "(a|aa|aaa|aaaa){1,200}[0-9]",
        "[a-m][a-z]{400}[0-9]",
        r"\b[a-m][a-z]{1,400}[0-9]",
        "([a-m]|[h-z]|[a-s]|[d-p]){200}[0-9]",
    ] {
        for (name, text) in [("letters", &letters), ("same", &same), ("mixed", &mixed), ("wide", &wide)] {
            row(pattern, name, text);
        }
    }
}

fn row(pattern: &str, name: &str, text: &str) {
    let source = format!("item.matches(r'{pattern}')");
    let began = Instant::now();
    let program = match Program::compile(&source, &ITEM, Type::Bool) {
        Ok(program) => program,
        Err(error) => return println!("{pattern:<56} {name:<8} refused: {error}"),
    };
    let compiled = began.elapsed();
    let item = json!(text);
    let arguments = [Value::Json(&item)];
    let (began, mut runs, mut steps) = (Instant::now(), 0u32, 0);
    while began.elapsed() < RUN {
        let mut left = u64::MAX;
        let _ = program.eval_within(&arguments, &mut left);
        steps = u64::MAX - left;
        runs += 1;
    }
    let once = began.elapsed().as_secs_f64() / f64::from(runs);
    println!(
        "{pattern:<56} {name:<8} {:>10} {:>12.3} {:>10.3} {:>10.0}",
        steps / text.len() as u64,
        text.len() as f64 / once / 1e6,
        once * 1e9 / steps as f64,
        compiled.as_secs_f64() * 1e6,
    );
}
