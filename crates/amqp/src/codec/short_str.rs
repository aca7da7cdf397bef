//! Short strings: at most 255 bytes of any kind. RabbitMQ never looks inside a routing key, so neither does the
//! codec; whoever needs text asks for it with [`ShortStr::to_str`].

use std::fmt;
use std::ops::Deref;
use std::str::Utf8Error;

use thiserror::Error;

use super::constants::SHORT_STR_BYTES_MAX;

/// At most 255 borrowed bytes: a name, a routing key, a consumer tag.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShortStr<'a>(&'a [u8]);

/// More bytes than a short string holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a short string has at most 255 bytes; this one has {bytes}")]
pub struct TooLong {
    /// What was given.
    pub bytes: usize,
}

impl<'a> ShortStr<'a> {
    /// No bytes at all.
    pub const EMPTY: Self = Self(&[]);

    /// Takes `bytes` as they are.
    ///
    /// # Errors
    /// If there are more than 255.
    pub const fn new(bytes: &'a [u8]) -> Result<Self, TooLong> {
        if bytes.len() > SHORT_STR_BYTES_MAX { Err(TooLong { bytes: bytes.len() }) } else { Ok(Self(bytes)) }
    }

    /// Takes what fits of `bytes`: for texts to be read by people, and for names that were checked before.
    #[inline]
    #[must_use]
    pub fn clipped(bytes: &'a [u8]) -> Self {
        if bytes.len() <= SHORT_STR_BYTES_MAX { Self(bytes) } else { Self(clip(bytes)) }
    }

    /// A name that is written in the source.
    ///
    /// # Panics
    /// If it is longer than 255 bytes; in a constant, that is an error at compile time.
    #[must_use]
    pub const fn from_static(text: &'static str) -> ShortStr<'static> {
        assert!(text.len() <= SHORT_STR_BYTES_MAX, "a short string in the source is too long");
        ShortStr(text.as_bytes())
    }

    /// The bytes, for as long as the buffer lives that they came in.
    #[inline]
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The text, where text is demanded.
    ///
    /// # Errors
    /// If the bytes are not UTF-8.
    #[inline]
    pub const fn to_str(self) -> Result<&'a str, Utf8Error> {
        std::str::from_utf8(self.0)
    }

    /// Appends the length and the bytes.
    #[inline]
    pub(crate) fn put(self, out: &mut Vec<u8>) {
        debug_assert!(
            self.0.len() <= SHORT_STR_BYTES_MAX,
            "a short string is never longer than its length says"
        );
        out.push(self.0.len() as u8);
        out.extend_from_slice(self.0);
    }
}

/// The longest head of `bytes` that fits and does not cut a character in two.
fn clip(bytes: &[u8]) -> &[u8] {
    let mut end = SHORT_STR_BYTES_MAX;
    let is_continuation = |at: usize| bytes.get(at).is_some_and(|byte| byte & 0xC0 == 0x80);
    // A character has at most three continuation bytes; more of them are not UTF-8 and are cut anywhere.
    while end > SHORT_STR_BYTES_MAX - 3 && is_continuation(end) {
        end -= 1;
    }
    &bytes[..end]
}

impl Deref for ShortStr<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.0
    }
}

impl<'a> TryFrom<&'a [u8]> for ShortStr<'a> {
    type Error = TooLong;

    fn try_from(bytes: &'a [u8]) -> Result<Self, TooLong> {
        Self::new(bytes)
    }
}

impl<'a> TryFrom<&'a str> for ShortStr<'a> {
    type Error = TooLong;

    fn try_from(text: &'a str) -> Result<Self, TooLong> {
        Self::new(text.as_bytes())
    }
}

impl PartialEq<[u8]> for ShortStr<'_> {
    fn eq(&self, other: &[u8]) -> bool {
        self.0 == other
    }
}

impl PartialEq<str> for ShortStr<'_> {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for ShortStr<'_> {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl fmt::Display for ShortStr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.0))
    }
}

impl fmt::Debug for ShortStr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_routing_key_may_be_any_bytes() {
        let key = ShortStr::new(b"\xff\x00\xfe").unwrap();
        assert_eq!(key.as_bytes(), b"\xff\x00\xfe");
        assert!(key.to_str().is_err());
    }

    #[test]
    fn two_hundred_and_fifty_six_bytes_are_too_many() {
        assert_eq!(ShortStr::new(&[b'x'; 255]).unwrap().len(), 255);
        assert_eq!(ShortStr::new(&[b'x'; 256]), Err(TooLong { bytes: 256 }));
    }

    #[test]
    fn clipping_keeps_characters_whole() {
        let text = format!("{}ü and more", "x".repeat(254));
        assert_eq!(ShortStr::clipped(text.as_bytes()).to_str(), Ok("x".repeat(254).as_str()));
        let rocket = format!("{}🚀🚀", "x".repeat(252));
        assert_eq!(ShortStr::clipped(rocket.as_bytes()).to_str(), Ok("x".repeat(252).as_str()));
        assert_eq!(ShortStr::clipped(&[0x80; 300]).len(), 252);
        assert_eq!(ShortStr::clipped(b"short").as_bytes(), b"short");
    }
}
