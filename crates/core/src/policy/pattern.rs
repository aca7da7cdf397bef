//! Which names a policy is for: a regular expression that matches anywhere in a name. An empty one matches every name.
//!
//! Patterns are matched in time that is in proportion to the name, so there is no look-around, but for the one that
//! RabbitMQ's own examples begin with: `^(?!amq\.).*`, all names but some.

use std::fmt;

use crate::access::{Pattern, PatternError};

/// A regular expression for names.
#[derive(Clone)]
pub struct PolicyPattern {
    text: Box<str>,
    wanted: Pattern,
    /// Of names that match this one, none does.
    unless: Option<Pattern>,
}

impl PolicyPattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// If it is too long, too large, or none.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        let (wanted, unless) = match split_negation(text) {
            Some((unless, rest)) => {
                (Pattern::new(&format!("^(?:{rest})"))?, Some(Pattern::new(&format!("^(?:{unless})"))?))
            }
            None => (Pattern::new(if text.is_empty() { ".*" } else { text })?, None),
        };
        Ok(Self { text: text.into(), wanted, unless })
    }

    /// For a text that was a pattern once and is none for this build: it matches nothing.
    pub(super) fn or_nothing(text: &str) -> Self {
        Self::new(text).unwrap_or_else(|_| Self {
            text: text.into(),
            wanted: Pattern::nothing(text),
            unless: None,
        })
    }

    /// Whether a name matches.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let name = name.as_bytes();
        self.wanted.matches(name) && self.unless.as_ref().is_none_or(|unless| !unless.matches(name))
    }

    /// As it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// `^(?!A)B` as A and B.
fn split_negation(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix("^(?!")?;
    let (mut depth, mut in_class, mut bytes) = (1, false, inner.bytes().enumerate());
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' => _ = bytes.next(),
            b'[' if !in_class => in_class = true,
            b']' => in_class = false,
            b'(' if !in_class => depth += 1,
            b')' if !in_class => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let rest = &inner[at + 1..];
            // An alternative outside would not be bound to the beginning.
            return (!has_alternative(rest)).then_some((&inner[..at], rest));
        }
    }
    None
}

/// Whether a `|` is outside of all brackets; near enough, since where there is any bracket one says so as well.
fn has_alternative(text: &str) -> bool {
    text.contains('|')
}

impl PartialEq for PolicyPattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for PolicyPattern {}

impl fmt::Debug for PolicyPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        PolicyPattern::new(pattern).unwrap().matches(name)
    }

    #[test]
    fn a_pattern_matches_anywhere_unless_it_is_anchored() {
        assert!(matches("mail", "my-mail-1") && !matches("^mail", "my-mail"));
        assert!(matches("", "anything") && matches(".*", "anything") && !matches("^$", "anything"));
    }

    #[test]
    fn all_names_but_some_can_be_said_as_rabbitmqs_examples_say_it() {
        assert!(matches(r"^(?!amq\.).*", "mail") && !matches(r"^(?!amq\.).*", "amq.gen-1"));
        assert!(matches(r"^(?!(a|[)]b)\).)q", "qx") && !matches(r"^(?!(q|b)).*", "qx"));
        assert!(matches(r"^(?!amq\.)mail", "mail-1") && !matches(r"^(?!amq\.)mail", "my-mail"));
        assert!(PolicyPattern::new("^(?!amq").is_err() && PolicyPattern::new("a(?!b)").is_err());
        assert!(PolicyPattern::new("^(?!a)b|c").is_err(), "who may begin anywhere is not guessed");
    }
}
