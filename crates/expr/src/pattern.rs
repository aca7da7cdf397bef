//! The patterns of `matches`, and what they may cost.
//!
//! Mostly a pattern looks at each byte of a text once. At worst it tries all its parts at each byte: `[a-h]{1,300}` has 300 parts.
//! How it will be with a text is not known before, so the worst is counted. The result of an evaluation must not depend on the
//! machine or the moment: a waiter that asks for its answer again gets the same one.

use regex::{Regex, RegexBuilder};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};

use crate::limits::{PATTERN_CACHE_BYTES_MAX, PATTERN_COMPILED_BYTES_MAX, PATTERN_DEPTH_MAX};

/// What every pattern costs for each byte: it may match from any place of the text on.
const WEIGHT_LEAST: u64 = 2;
/// A set of characters that take more than one byte.
const WIDE_CLASS_WEIGHT: u64 = 4;

/// A compiled pattern.
#[derive(Debug)]
pub(crate) struct Pattern {
    regex: Regex,
    weight: u64,
}

impl Pattern {
    /// Compiles a pattern, or says what is wrong with it.
    pub(crate) fn new(source: &str) -> Result<Pattern, String> {
        let parsed = ParserBuilder::new().nest_limit(PATTERN_DEPTH_MAX).build().parse(source);
        let parsed = parsed.map_err(|error| refusal(&error.to_string()))?;
        let compiled = RegexBuilder::new(source)
            .size_limit(PATTERN_COMPILED_BYTES_MAX)
            .dfa_size_limit(PATTERN_CACHE_BYTES_MAX)
            .nest_limit(PATTERN_DEPTH_MAX)
            .build();
        match compiled {
            Ok(regex) => Ok(Pattern { regex, weight: weight(&parsed).saturating_add(WEIGHT_LEAST) }),
            Err(regex::Error::CompiledTooBig(most)) => {
                Err(format!("the pattern takes more than {most} bytes when compiled"))
            }
            Err(error) => Err(refusal(&error.to_string())),
        }
    }

    /// The steps that it takes at most to look at a text.
    pub(crate) fn steps(&self, text: &str) -> u64 {
        self.weight.saturating_mul(text.len() as u64)
    }

    /// Whether it matches anywhere in a text.
    pub(crate) fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }
}

/// The last line of an error has the reason; those before draw the pattern.
fn refusal(error: &str) -> String {
    let reason = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
    format!("the pattern is no regular expression: {reason}")
}

/// How many parts may have to be tried at one byte. It recurses as deep as the pattern is nested, which is bounded.
fn weight(pattern: &Hir) -> u64 {
    match pattern.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(literal) => literal.0.len() as u64,
        HirKind::Class(Class::Bytes(_)) => 1,
        HirKind::Class(Class::Unicode(class)) if class.is_ascii() => 1,
        HirKind::Class(Class::Unicode(_)) => WIDE_CLASS_WEIGHT,
        HirKind::Capture(capture) => weight(&capture.sub),
        HirKind::Repetition(repetition) => {
            // What is repeated is there so many times; without an upper bound the last one goes round.
            let times = repetition.max.unwrap_or_else(|| repetition.min.saturating_add(1));
            weight(&repetition.sub).saturating_add(1).saturating_mul(times.into())
        }
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().map(weight).fold(1, u64::saturating_add)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_weighs_what_it_may_try_at_each_byte() {
        let weight = |source: &str| Pattern::new(source).unwrap().weight;
        assert!(weight("usato") < 10);
        assert!(weight(r"\bcuffi[ae]\b") < 20);
        assert!(weight(r"\w+ \d+") < 30, "the size of a table is no work");
        assert!(weight("[a-h]{1,300}[a-g]{1,150}[0-9p-z]") > 450);
        assert!(
            weight("(?:(?:a{1,10}){1,10}){1,10}") > 1_000,
            "repetitions within repetitions are a product"
        );
    }

    #[test]
    fn a_pattern_without_end_costs_what_it_can_and_no_more() {
        let pattern = Pattern::new("a*").unwrap();
        assert!(pattern.steps(&"a".repeat(1_000)) < 10_000);
        assert_eq!(pattern.steps(""), 0);
    }
}
