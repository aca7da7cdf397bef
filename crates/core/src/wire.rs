//! The byte layout's smallest parts, shared by records, batches and snapshots. `docs/format.md` describes them.

use bytes::Bytes;
use nexo_types::varint;
use thiserror::Error;

/// Why stored bytes could not be understood. With a checksum over them that is a bug or a newer format, never
/// chance, so the texts are for whoever looks into it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The bytes end in the middle of something.
    #[error("the bytes end too soon")]
    Short,
    /// A number that stands for nothing.
    #[error("{value} is no {what}")]
    Unknown {
        /// What was expected.
        what: &'static str,
        /// What was found.
        value: u8,
    },
    /// A batch shares messages that are not there.
    #[error("the frame's entry {place} holds no messages to share")]
    NoSuchEntry {
        /// The place of the entry that should hold them.
        place: u64,
    },
    /// Something of a version that this build does not know.
    #[error("{what} is of version {version}; this build of Nexo knows versions up to {known}")]
    LaterVersion {
        /// What it is.
        what: &'static str,
        /// Its version.
        version: u64,
        /// The latest that is known.
        known: u64,
    },
    /// A number too large for its place.
    #[error("a number is out of range")]
    Range,
    /// Text that is not UTF-8.
    #[error("a text is not UTF-8")]
    NotText,
    /// A name that breaks the rules for names.
    #[error("a name breaks the rules for names")]
    BadName,
    /// More bytes than the content needs.
    #[error("{count} bytes are left over")]
    LeftOver {
        /// How many.
        count: usize,
    },
}

/// Stands before a version. No number begins with these bytes, since zero is one byte.
const VERSION_MARK: [u8; 2] = [0x80, 0];
/// Bits of a tag that say the kind; the others say the version, less one.
const KIND_BITS: u32 = 5;

/// Writes the layout.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    out: Vec<u8>,
}

impl Writer {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { out: Vec::with_capacity(bytes) }
    }

    /// Over bytes that are written already.
    pub(crate) const fn over(out: Vec<u8>) -> Self {
        Self { out }
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.out.push(value);
    }

    /// The kind of what follows, and the version in which it is written, in one byte.
    pub(crate) fn tag(&mut self, version: u8, kind: u8) {
        debug_assert!(kind < 1 << KIND_BITS && (1..=8).contains(&version), "both fit into a byte");
        self.u8((version - 1) << KIND_BITS | kind);
    }

    /// The version of what follows.
    pub(crate) fn version(&mut self, version: u64) {
        self.raw(&VERSION_MARK);
        self.u64(version);
    }

    pub(crate) fn u64(&mut self, value: u64) {
        varint::put(&mut self.out, value);
    }

    /// A number that may be missing: 0 for none, else the number plus one. The largest number of all is kept
    /// as the one below it; nothing that is optional comes near.
    pub(crate) fn optional(&mut self, value: Option<u64>) {
        self.u64(value.map_or(0, |v| v.saturating_add(1)));
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(crate) fn len(&self) -> usize {
        self.out.len()
    }

    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.out.reserve(bytes);
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.out.capacity()
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.out
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.out
    }

    pub(crate) fn into_vec(self) -> Vec<u8> {
        self.out
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.out.into()
    }
}

/// Reads the layout, never past its end.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        let (&first, rest) = self.rest.split_first().ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(first)
    }

    /// Reads a tag: the version, which is at most `known`, and the kind.
    pub(crate) fn tag(&mut self, what: &'static str, known: u8) -> Result<(u8, u8), WireError> {
        let tag = self.u8()?;
        let version = (tag >> KIND_BITS) + 1;
        if version > known {
            return Err(WireError::LaterVersion { what, version: version.into(), known: known.into() });
        }
        Ok((version, tag & ((1 << KIND_BITS) - 1)))
    }

    /// Reads a version, which is at most `known`. What was written without one is of version 1.
    pub(crate) fn version(&mut self, what: &'static str, known: u64) -> Result<u64, WireError> {
        let Some(rest) = self.rest.strip_prefix(&VERSION_MARK) else { return Ok(1) };
        self.rest = rest;
        match self.u64()? {
            version if version > known => Err(WireError::LaterVersion { what, version, known }),
            version => Ok(version),
        }
    }

    pub(crate) fn flag(&mut self) -> Result<bool, WireError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(WireError::Unknown { what: "flag", value }),
        }
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        varint::take(&mut self.rest).ok_or(WireError::Short)
    }

    /// A number of eight bytes, the highest first.
    pub(crate) fn u64_fixed(&mut self) -> Result<u64, WireError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(u64::from_be_bytes(*head))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        u32::try_from(self.u64()?).map_err(|_| WireError::Range)
    }

    pub(crate) fn optional(&mut self) -> Result<Option<u64>, WireError> {
        Ok(self.u64()?.checked_sub(1))
    }

    pub(crate) fn optional_u32(&mut self) -> Result<Option<u32>, WireError> {
        self.optional()?.map(u32::try_from).transpose().map_err(|_| WireError::Range)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], WireError> {
        let len = usize::try_from(self.u64()?).map_err(|_| WireError::Range)?;
        let (head, rest) = self.rest.split_at_checked(len).ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| WireError::NotText)
    }

    pub(crate) const fn left(&self) -> usize {
        self.rest.len()
    }

    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn finish(self) -> Result<(), WireError> {
        match self.rest.len() {
            0 => Ok(()),
            count => Err(WireError::LeftOver { count }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_version_is_refused_by_name() {
        let mut out = Writer::default();
        out.version(3);
        out.tag(2, 7);
        let bytes = out.into_vec();
        let mut input = Reader::new(&bytes);
        assert_eq!(input.version("a thing", 3), Ok(3));
        assert_eq!(input.tag("a part", 2), Ok((2, 7)));
        let later = Reader::new(&bytes).version("a thing", 2).unwrap_err();
        assert_eq!(later.to_string(), "a thing is of version 3; this build of Nexo knows versions up to 2");
        let later = Reader::new(&bytes[3..]).tag("a part", 1).unwrap_err();
        assert_eq!(later, WireError::LaterVersion { what: "a part", version: 2, known: 1 });
    }

    #[test]
    fn what_has_no_version_is_of_the_first() {
        // Whatever number comes first, since none begins as a version does.
        for first in [0, 1, 0x80, 0x4000, u64::MAX] {
            let mut out = Writer::default();
            out.u64(first);
            let bytes = out.into_vec();
            let mut input = Reader::new(&bytes);
            assert_eq!((input.version("a thing", 9), input.u64()), (Ok(1), Ok(first)));
        }
    }
}
