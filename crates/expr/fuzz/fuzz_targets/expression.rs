//! Compiles and evaluates expressions, and checks what must hold whatever they are. What it finds goes to `seeds`,
//! which the crate's tests replay.
//!
//!     cd crates/expr/fuzz && mkdir -p corpus/expression
//!     cargo fuzz run expression --sanitizer none --fuzz-dir . corpus/expression seeds -- -runs=1000000 -max_len=4500

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/common/exercise.rs"]
mod exercise;

fuzz_target!(|bytes: &[u8]| exercise::anything(bytes));
