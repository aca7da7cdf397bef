//! What several tests use.

pub(crate) mod exercise;
