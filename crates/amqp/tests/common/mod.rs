//! What the tests share: the specification's methods, random values for their fields, and a walk through
//! everything that the codec offers.

#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part of this, and it is all test code")]

pub(crate) mod exercise;
pub(crate) mod spec;
pub(crate) mod values;
