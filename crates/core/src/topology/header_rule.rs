//! What a binding of a headers exchange asks of a message.

use bytes::Bytes;

use super::error::BindError;
use super::header::{HeaderSource, HeaderValue};

const X_MATCH: &[u8] = b"x-match";

/// The headers that must be there, and whether all of them or any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeaderRule {
    mode: Mode,
    wanted: Vec<(Bytes, HeaderValue)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    All,
    Any,
}

impl HeaderRule {
    /// Reads a rule from a binding's arguments. Without `x-match` all are wanted; names with `x-` count only if
    /// `x-match` says so, and `x-match` itself never.
    pub(super) fn new(arguments: &[(Bytes, HeaderValue)]) -> Result<Self, BindError> {
        let (mode, with_x) = match arguments.iter().find(|(name, _)| name == X_MATCH).map(|(_, value)| value)
        {
            None => (Mode::All, false),
            Some(HeaderValue::Text(text)) => match text.as_ref() {
                b"all" => (Mode::All, false),
                b"any" => (Mode::Any, false),
                b"all-with-x" => (Mode::All, true),
                b"any-with-x" => (Mode::Any, true),
                other => {
                    return Err(BindError::UnknownMatch {
                        value: String::from_utf8_lossy(other).into_owned(),
                    });
                }
            },
            Some(_) => return Err(BindError::MatchIsNoText),
        };
        let counts = |name: &[u8]| name != X_MATCH && (with_x || !name.starts_with(b"x-"));
        let wanted = arguments.iter().filter(|(name, _)| counts(name)).cloned().collect();
        Ok(Self { mode, wanted })
    }

    /// Whether the message has what is asked for. Asking for all of nothing is granted, for any of nothing not.
    pub(super) fn matches(&self, headers: &dyn HeaderSource) -> bool {
        let has = |(name, value): &(Bytes, HeaderValue)| {
            headers.header(name).is_some_and(|found| *value == HeaderValue::Void || value.same(&found))
        };
        match self.mode {
            Mode::All => self.wanted.iter().all(has),
            Mode::Any => self.wanted.iter().any(has),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Headers;
    use super::*;

    fn pair(name: &'static str, value: i64) -> (Bytes, HeaderValue) {
        (name.into(), HeaderValue::Signed(value))
    }

    fn rule(mode: &'static str, mut pairs: Vec<(Bytes, HeaderValue)>) -> HeaderRule {
        pairs.push(("x-match".into(), HeaderValue::Text(mode.into())));
        HeaderRule::new(&pairs).unwrap()
    }

    #[test]
    fn all_wants_every_header_and_any_wants_one() {
        let message = Headers(vec![pair("a", 1), pair("b", 2)]);
        assert!(rule("all", vec![pair("a", 1), pair("b", 2)]).matches(&message));
        assert!(!rule("all", vec![pair("a", 1), pair("b", 3)]).matches(&message));
        assert!(rule("any", vec![pair("a", 1), pair("b", 3)]).matches(&message));
        assert!(!rule("any", vec![pair("a", 2), pair("c", 3)]).matches(&message));
        assert!(
            HeaderRule::new(&[pair("a", 1)]).unwrap().matches(&message),
            "all is what is meant by default"
        );
    }

    #[test]
    fn headers_with_x_count_only_when_asked_for() {
        let message = Headers(vec![pair("a", 1), pair("x-b", 2)]);
        assert!(rule("all", vec![pair("a", 1), pair("x-b", 9)]).matches(&message));
        assert!(!rule("all-with-x", vec![pair("a", 1), pair("x-b", 9)]).matches(&message));
        assert!(!rule("any", vec![pair("x-b", 2)]).matches(&message));
        assert!(rule("any-with-x", vec![pair("x-b", 2)]).matches(&message));
    }

    #[test]
    fn nothing_asked_for_is_all_but_not_any() {
        let message = Headers(vec![pair("a", 1)]);
        assert!(rule("all", vec![]).matches(&message));
        assert!(!rule("any", vec![]).matches(&message));
    }

    #[test]
    fn void_asks_only_that_the_header_is_there() {
        let wanted = vec![(Bytes::from_static(b"a"), HeaderValue::Void)];
        assert!(rule("all", wanted.clone()).matches(&Headers(vec![pair("a", 7)])));
        assert!(!rule("all", wanted).matches(&Headers(vec![pair("b", 7)])));
    }

    #[test]
    fn an_x_match_that_means_nothing_is_refused() {
        let with = |value| HeaderRule::new(&[(X_MATCH.into(), value)]);
        assert_eq!(
            with(HeaderValue::Text("most".into())),
            Err(BindError::UnknownMatch { value: "most".to_owned() })
        );
        assert_eq!(with(HeaderValue::Bool(true)), Err(BindError::MatchIsNoText));
    }
}
