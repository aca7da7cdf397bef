//! The regular expressions of permissions. As in RabbitMQ one matches anywhere in a name unless it is anchored, and an empty
//! one matches nothing but the empty name. They are compiled within bounds, and matching takes time in proportion to the
//! name: there is no backtracking, so there are no back references and no look-around either.

use std::fmt;

use nexo_types::limits;
use regex::bytes::{Regex, RegexBuilder};
use thiserror::Error;

/// A text that is no regular expression, or too large a one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PatternError {
    /// More bytes than the limit.
    #[error("a permission's pattern has at most {max} bytes; this one has {len}")]
    TooLong {
        /// The limit.
        max: usize,
        /// What was given.
        len: usize,
    },
    /// It means nothing.
    #[error("regular expression '{text}' is invalid: {reason}")]
    Invalid {
        /// What was given.
        text: String,
        /// What the compiler of expressions says.
        reason: String,
    },
}

/// A regular expression that was compiled.
#[derive(Clone)]
pub struct Pattern {
    text: Box<str>,
    rule: Rule,
}

/// What nearly all patterns are needs no regular expression.
#[derive(Clone)]
enum Rule {
    Everything,
    OnlyEmpty,
    Regex(Regex),
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// If it is too long, too large, or none.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        Self::compile(text, text)
    }

    /// Compiles a pattern for topics: `{username}` and `{vhost}` in it stand for these names.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn for_topics(text: &str, user: &str, vhost: &str) -> Result<Self, PatternError> {
        check_length(text)?;
        let expanded =
            text.replace("{username}", &regex::escape(user)).replace("{vhost}", &regex::escape(vhost));
        Self::compile(text, &expanded)
    }

    /// One that matches nothing, for a text that was a pattern once and is none for this build.
    pub(crate) fn nothing(text: &str) -> Self {
        Self { text: text.into(), rule: Rule::OnlyEmpty }
    }

    fn compile(text: &str, expanded: &str) -> Result<Self, PatternError> {
        check_length(text)?;
        let rule = match expanded {
            "" | "^$" => Rule::OnlyEmpty,
            ".*" | "^.*" | ".*$" | "^.*$" => Rule::Everything,
            _ => {
                let compiled = RegexBuilder::new(expanded)
                    .size_limit(limits::PATTERN_COMPILED_BYTES_MAX)
                    .dfa_size_limit(limits::PATTERN_COMPILED_BYTES_MAX)
                    .nest_limit(limits::PATTERN_NESTING_MAX)
                    .build();
                let invalid = |error: regex::Error| PatternError::Invalid {
                    text: text.to_owned(),
                    reason: error.to_string().lines().last().unwrap_or_default().to_owned(),
                };
                Rule::Regex(compiled.map_err(invalid)?)
            }
        };
        Ok(Self { text: text.into(), rule })
    }

    /// Whether it matches a name, or a routing key.
    #[must_use]
    pub fn matches(&self, name: &[u8]) -> bool {
        match &self.rule {
            Rule::Everything => true,
            Rule::OnlyEmpty => name.is_empty(),
            Rule::Regex(regex) => regex.is_match(name),
        }
    }

    /// As it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

fn check_length(text: &str) -> Result<(), PatternError> {
    let max = limits::PATTERN_BYTES_MAX;
    if text.len() > max { Err(PatternError::TooLong { max, len: text.len() }) } else { Ok(()) }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern::new(pattern).unwrap().matches(name.as_bytes())
    }

    #[test]
    fn a_pattern_matches_anywhere_unless_it_is_anchored() {
        assert!(matches("mail", "mail") && matches("mail", "my-mail-queue"));
        assert!(matches("^mail", "mail-1") && !matches("^mail", "my-mail"));
        assert!(matches("^(mail|sms)$", "sms") && !matches("^(mail|sms)$", "sms2"));
        assert!(matches("^mail-.*", "mail-ä") && !matches("[0-9]", "mail"));
    }

    #[test]
    fn an_empty_pattern_matches_nothing_and_dots_and_star_match_everything() {
        for pattern in ["", "^$"] {
            assert!(!matches(pattern, "mail") && matches(pattern, ""));
        }
        for pattern in [".*", "^.*$", "^.*", ".*$"] {
            assert!(matches(pattern, "mail") && matches(pattern, ""));
        }
    }

    #[test]
    fn what_is_no_pattern_or_too_large_is_refused() {
        let error = Pattern::new("(mail").unwrap_err();
        assert!(error.to_string().starts_with("regular expression '(mail' is invalid: "), "{error}");
        assert!(matches!(Pattern::new(&"x".repeat(2000)), Err(PatternError::TooLong { len: 2000, .. })));
        assert!(Pattern::new("((a{100}){100}){100}").is_err(), "it would take megabytes");
        assert!(Pattern::new(&"(".repeat(500)).is_err());
    }

    #[test]
    fn topics_name_their_user_and_vhost() {
        let topics = |text, user, vhost| Pattern::for_topics(text, user, vhost).unwrap();
        let own = topics("^{vhost}\\.{username}\\..*", "ann", "shop");
        assert!(own.matches(b"shop.ann.orders") && !own.matches(b"shop.bob.orders"));
        assert_eq!(own.as_str(), "^{vhost}\\.{username}\\..*");
        // A name is no pattern.
        assert!(!topics("^{username}$", ".*", "/").matches(b"ann"));
        assert!(topics("^{username}$", ".*", "/").matches(b".*"));
        assert!(topics("", "ann", "/").matches(b"") && !topics("", "ann", "/").matches(b"x"));
        assert!(topics("x", "ann", "/").matches(b"\xffx"), "a routing key need not be text");
    }
}
