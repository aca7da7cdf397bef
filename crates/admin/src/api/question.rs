//! What stands behind the `?` of an address. Which words a handler may read is in the type of what it takes, and the description
//! of the API takes them from there: a word that is not described cannot be read.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use axum::Extension;
use axum::extract::{FromRequestParts, Path, Query, Request, State};
use axum::http::HeaderMap;
use axum::http::request::Parts;

use super::Api;
use super::access::Caller;
use super::body::{JsonBody, LoginBody};
use super::error::ApiError;

/// A word that can be asked for, and what it means.
pub(super) type Word = (&'static str, &'static str);

/// The words of a question.
pub(super) trait Words {
    const WORDS: &'static [Word];
}

/// A question of which only the words of `W` can be read.
pub(super) struct Question<W> {
    known: BTreeMap<String, String>,
    /// A word that is none of those.
    unknown: Option<String>,
    words: PhantomData<fn() -> W>,
}

impl<W> fmt::Debug for Question<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question").field("known", &self.known).field("unknown", &self.unknown).finish()
    }
}

impl<W: Words> Question<W> {
    /// Of a word that is given twice the last counts.
    pub(super) fn of(given: impl IntoIterator<Item = (String, String)>) -> Self {
        let is_known = |name: &str| W::WORDS.iter().any(|(word, _)| *word == name);
        let (known, unknown): (BTreeMap<_, _>, BTreeMap<_, _>) =
            given.into_iter().partition(|(name, _)| is_known(name));
        Self { known, unknown: unknown.into_keys().next(), words: PhantomData }
    }

    /// What was given for a word.
    pub(super) fn get(&self, word: &str) -> Option<&str> {
        debug_assert!(W::WORDS.iter().any(|(known, _)| *known == word), "'{word}' is not described");
        self.known.get(word).map(String::as_str)
    }

    /// Whether `true` was given for a word.
    pub(super) fn is_true(&self, word: &str) -> bool {
        self.get(word) == Some("true")
    }

    /// A whole number, if one was given.
    pub(super) fn whole<N: FromStr>(&self, word: &str) -> Result<Option<N>, ApiError> {
        let wrong = |_| ApiError::bad_request(format!("{word} must be a whole number"));
        self.get(word).map(|text| text.parse().map_err(wrong)).transpose()
    }

    /// Refuses what nobody knows: a word that was spelt wrong would be without effect.
    pub(super) fn refuse_unknown(&self) -> Result<(), ApiError> {
        let Some(name) = &self.unknown else { return Ok(()) };
        let known: Vec<&str> = W::WORDS.iter().map(|(word, _)| *word).collect();
        Err(ApiError::bad_request(format!("'{name}' is not known here; known are {}", known.join(", "))))
    }
}

impl<S: Sync, W: Words> FromRequestParts<S> for Question<W> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let given = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
        let Query(given) = given.map_err(|error| ApiError::bad_request(error.body_text()))?;
        Ok(Self::of(given))
    }
}

/// What a handler takes of a request.
pub(super) trait Taken {
    /// The words that it reads of the question.
    const WORDS: &'static [Word] = &[];
}

impl<W: Words> Taken for Question<W> {
    const WORDS: &'static [Word] = W::WORDS;
}

impl<W: Words> Taken for Query<W> {
    const WORDS: &'static [Word] = W::WORDS;
}

impl<T: Taken, E> Taken for Result<T, E> {
    const WORDS: &'static [Word] = T::WORDS;
}

impl Taken for State<Api> {}
impl Taken for Caller {}
impl<T> Taken for Path<T> {}
impl<T> Taken for Extension<T> {}
impl Taken for HeaderMap {}
impl Taken for JsonBody {}
impl Taken for LoginBody {}
impl Taken for Request {}

/// All that a handler takes, as axum has it in the type of a handler: behind a mark that says nothing.
pub(super) trait AllTaken {
    fn words() -> Vec<Word>;
}

macro_rules! all_taken {
    ($($taken:ident)*) => {
        impl<M, $($taken: Taken),*> AllTaken for (M, $($taken,)*) {
            fn words() -> Vec<Word> {
                let all: &[&[Word]] = &[$($taken::WORDS),*];
                all.concat()
            }
        }
    };
}

all_taken! {}
all_taken! { A }
all_taken! { A B }
all_taken! { A B C }
all_taken! { A B C D }
all_taken! { A B C D E }

/// The one handler that reads a map, of the nodes of a cluster.
impl Words for BTreeMap<String, String> {
    const WORDS: &'static [Word] =
        &[("force", "true: also a node without which the others have no majority")];
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fruit;

    impl Words for Fruit {
        const WORDS: &'static [Word] = &[("apples", "how many"), ("ripe", "whether they are")];
    }

    fn question(pairs: &[(&str, &str)]) -> Question<Fruit> {
        Question::of(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn only_words_that_are_described_are_read() {
        let asked = question(&[("apples", "1"), ("pears", "2"), ("apples", "3"), ("ripe", "true")]);
        assert_eq!(asked.whole::<u64>("apples"), Ok(Some(3)));
        assert!(asked.is_true("ripe") && !question(&[("ripe", "yes")]).is_true("ripe"));
        assert!(!asked.known.contains_key("pears"));
        let refused = asked.refuse_unknown().unwrap_err();
        assert_eq!(*refused.reason(), "'pears' is not known here; known are apples, ripe");
        assert_eq!(question(&[]).refuse_unknown(), Ok(()));
        assert_eq!(question(&[]).whole::<u64>("apples"), Ok(None));
        let wrong = question(&[("apples", "few")]).whole::<u64>("apples").unwrap_err();
        assert_eq!(*wrong.reason(), "apples must be a whole number");
    }
}
