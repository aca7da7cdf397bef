//! Quantities as people write them: times, sizes, rates.

mod memory_high;
mod rate;
mod size;
mod span;

pub(crate) use memory_high::Watermark;
pub(crate) use rate::Rate;
pub(crate) use size::Size;
pub(crate) use span::Span;
