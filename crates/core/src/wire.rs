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
