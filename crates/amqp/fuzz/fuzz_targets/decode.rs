//! Feeds bytes to every decoder and checks what must hold whatever they are. What it finds goes to `seeds`,
//! which the crate's tests replay.
//!
//!     cd crates/amqp/fuzz && mkdir -p corpus/decode
//!     cargo fuzz run decode --sanitizer none --fuzz-dir . corpus/decode seeds -- -runs=10000000 -max_len=4096

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/common/exercise.rs"]
mod exercise;

fuzz_target!(|bytes: &[u8]| exercise::anything(bytes));
