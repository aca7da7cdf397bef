//! Prints what expressions cost: nanoseconds for an evaluation, and for compiling.
//!
//!     cargo run --release -p nexo-expr --example evaluate

use std::hint::black_box;
use std::time::{Duration, Instant};

use nexo_expr::{Program, Schema, Type, Value};
use serde_json::json;

const RUN: Duration = Duration::from_millis(200);
const JOB: Schema = Schema::new(&[
    ("prefetch", Type::Bool),
    ("due_minutes", Type::Number),
    ("waiters", Type::Int),
    ("class", Type::Int),
]);
const PAYLOAD: Schema = Schema::new(&[("payload", Type::Json)]);
const ITEM: Schema = Schema::new(&[("item", Type::Json)]);

fn main() {
    println!("{:<108} {:>8} {:>8}", "nanoseconds, best of 5", "evaluate", "compile");
    let job = [Value::Bool(false), Value::Int(12), Value::Int(3), Value::Int(5)];
    row(
        "prefetch ? 100 : min(30, max(0, due_minutes)) + max(0, 20 - 2 * waiters) + class",
        &JOB,
        Type::Number,
        &job,
    );
    row("waiters", &JOB, Type::Number, &job);
    row("due_minutes * 2 + class", &JOB, Type::Number, &job);

    let payload = json!({ "products": ["B0C1234567", "B0C7654321", "B0C1111111"], "country": "IT" });
    let payload = [Value::Json(&payload)];
    row("size(payload.products) * 2", &PAYLOAD, Type::Int, &payload);
    row("has(payload.pages) ? payload.pages : 1", &PAYLOAD, Type::Int, &payload);

    let item = json!({
        "id": "B0C1234567", "title": "Cuffie Bluetooth senza fili con cancellazione del rumore", "price": 79, "discount": 35,
        "url": "https://example.com/dp/B0C1234567", "brand": "Acme", "rating": 4.5, "reviews": 1234,
        "seller": { "name": "Acme", "country": "IT" }, "tags": ["audio", "wireless"],
    });
    let item = [Value::Json(&item)];
    for filter in [
        r#"item.discount >= 30 && item.price <= 100 && !item.title.contains("usato")"#,
        r#"item.discount >= 50 && item.price <= 100 && !item.title.contains("usato")"#,
        r#"item.brand in ["Sony", "Bose", "JBL", "Acme"] && item.seller.country == "IT""#,
        r#"item.title.lowerAscii().matches("\\bcuffi[ae]\\b")"#,
        r#"item.nothing > 3 || item.rating >= 4"#,
    ] {
        row(filter, &ITEM, Type::Bool, &item);
    }
}

fn row(source: &str, schema: &Schema, expected: Type, arguments: &[Value<'_>]) {
    let compile = || Program::compile(source, schema, expected).expect("the examples are sound");
    let program = compile();
    let evaluation = best(|| {
        let _ = black_box(black_box(&program).eval(black_box(arguments)));
    });
    let compiling = best(|| {
        black_box(compile());
    });
    println!("{source:<108} {evaluation:>8.1} {compiling:>8.0}");
}

fn best(mut work: impl FnMut()) -> f64 {
    (0..5).map(|_| time(&mut work)).fold(f64::MAX, f64::min)
}

fn time(work: &mut impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut done = 0u32;
    while start.elapsed() < RUN {
        for _ in 0..100 {
            work();
        }
        done += 100;
    }
    start.elapsed().as_nanos() as f64 / f64::from(done)
}
