//! Takes numbers and strings off the head of a byte slice. Says `None` where the bytes end too soon; what that
//! means is for the caller to say.

use super::short_str::ShortStr;

/// What is left to read.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    #[inline]
    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*head)
    }

    #[inline]
    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(head)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.chunk().map(u8::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.chunk().map(u16::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.chunk().map(u32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.chunk().map(u64::from_be_bytes)
    }

    #[inline]
    pub(crate) fn short_str(&mut self) -> Option<ShortStr<'a>> {
        let len = self.u8()?;
        self.bytes(len.into()).map(ShortStr::clipped)
    }

    /// A long string, or the inside of a table or array: a length of four octets, then as many.
    #[inline]
    pub(crate) fn long_bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.bytes(usize::try_from(len).ok()?)
    }

    #[inline]
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}
