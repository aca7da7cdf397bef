//! The first block of a segment file and its last sector: who it is, and whether it is sealed.
//!
//! The header is written three times while the file is still among the spares, and never again: twice in the first
//! block, each copy in a disk sector of its own, and once in the trailer, the file's last sector, so that one lost
//! block does not cost the segment. The seal has its own sector in the first block, so that writing it can never
//! harm the header, and a copy in the trailer.

use nexo_types::{Position, SegmentId};

/// Frames start here.
pub(crate) const HEADER_BYTES: u32 = 4096;

/// The trailer: the last bytes of the file. Nothing else is written there.
pub(crate) const TRAILER_BYTES: u32 = SECTOR_BYTES as u32;
/// Where in the trailer the seal's copy lies.
pub(crate) const TRAILER_SEAL_AT: u32 = 128;

/// Where the copies of the header lie in the first block.
pub(crate) const COPY_AT: [usize; 2] = [0, 1024];
const SEAL_AT: usize = 2048;
/// Where the seal's sector lies in the file.
pub(crate) const SEAL_SECTOR_AT: u64 = SEAL_AT as u64;
const SECTOR_BYTES: usize = 512;

const HEADER_MAGIC: [u8; 8] = *b"NEXOSEG\0";
const SEAL_MAGIC: [u8; 8] = *b"NEXOSEAL";
const VERSION: u32 = 2;
pub(crate) const HEADER_LEN: usize = 28;
pub(crate) const SEAL_LEN: usize = 56;

/// The index was made by a scan that met damage: it does not know of the frames that were lost.
const FLAG_PARTIAL_INDEX: u32 = 1;

/// Who a segment file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) id: SegmentId,
    /// Goes into every checksum. Random in a new file, one more each time the file is used again.
    pub(crate) salt: u32,
    /// The length that the file was made with. Only sealing may make it shorter.
    pub(crate) file_bytes: u32,
}

/// Where the frames of a sealed segment end and its index lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    pub(crate) header: Header,
    pub(crate) frames_end: u32,
    pub(crate) directory_at: u32,
    pub(crate) directory_len: u32,
    pub(crate) directory_crc: u32,
    /// The latest manifest in this or any earlier segment.
    pub(crate) last_manifest: Option<Position>,
    /// The file's length.
    pub(crate) file_bytes: u32,
    /// Whether the index knows every frame that ever was in the segment.
    pub(crate) index_is_whole: bool,
}

impl Header {
    /// The whole block: both copies, and no seal.
    pub(crate) fn block(&self) -> Vec<u8> {
        let mut block = vec![0; HEADER_BYTES as usize];
        for at in COPY_AT {
            block[at..at + HEADER_LEN].copy_from_slice(&self.encode());
        }
        block
    }

    /// Each copy in the first block with its place in the file.
    pub(crate) fn copies(&self) -> [(u64, [u8; HEADER_LEN]); 2] {
        COPY_AT.map(|at| (at as u64, self.encode()))
    }

    /// The trailer of a file, with the seal if there is one.
    pub(crate) fn trailer(&self, seal: Option<&Seal>) -> Vec<u8> {
        let mut trailer = vec![0; TRAILER_BYTES as usize];
        trailer[..HEADER_LEN].copy_from_slice(&self.encode());
        if let Some(seal) = seal {
            trailer[TRAILER_SEAL_AT as usize..][..SEAL_LEN].copy_from_slice(&seal.encode());
        }
        trailer
    }

    /// The header's copy in a trailer.
    pub(crate) fn read_trailer(trailer: &[u8]) -> Option<Self> {
        Self::read_copy(trailer.get(..HEADER_LEN)?)
    }

    /// Whether both are headers of the same use of a file.
    pub(crate) fn is_same_use(&self, other: &Self) -> bool {
        self.id == other.id && self.salt == other.salt
    }

    fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let mut out = Writer(&mut bytes, 0);
        out.bytes(&HEADER_MAGIC);
        out.u32(VERSION);
        out.u32(self.id.0);
        out.u32(self.salt);
        out.u32(self.file_bytes);
        out.crc();
        bytes
    }

    /// The header of a block, and whether both of its copies are good. While a file is prepared the copies may
    /// differ for a moment; the higher salt is the later one.
    pub(crate) fn read(block: &[u8]) -> Option<(Self, bool)> {
        let copies = COPY_AT.map(|at| Self::read_copy(block.get(at..at + HEADER_LEN)?));
        let best = copies.iter().flatten().max_by_key(|h| (h.id, h.salt)).copied()?;
        Some((best, copies[0] == copies[1]))
    }

    fn read_copy(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader::checked(bytes, &HEADER_MAGIC)?;
        if from.u32()? != VERSION {
            return None;
        }
        Some(Self { id: SegmentId(from.u32()?), salt: from.u32()?, file_bytes: from.u32()? })
    }
}

impl Seal {
    /// The seal's sector.
    pub(crate) fn sector(&self) -> Vec<u8> {
        let mut sector = vec![0; SECTOR_BYTES];
        sector[..SEAL_LEN].copy_from_slice(&self.encode());
        sector
    }

    /// The seal alone.
    pub(crate) fn encode(&self) -> [u8; SEAL_LEN] {
        let mut bytes = [0; SEAL_LEN];
        let mut out = Writer(&mut bytes, 0);
        out.bytes(&SEAL_MAGIC);
        out.u32(VERSION);
        out.u32(self.header.id.0);
        out.u32(self.header.salt);
        out.u32(self.frames_end);
        out.u32(self.directory_at);
        out.u32(self.directory_len);
        out.u32(self.directory_crc);
        // Segments count from 1, so an all-zero position is free to mean "none".
        let manifest = self.last_manifest.unwrap_or_default();
        out.u32(manifest.segment.0);
        out.u32(manifest.byte);
        out.u32(self.file_bytes);
        out.u32(if self.index_is_whole { 0 } else { FLAG_PARTIAL_INDEX });
        out.crc();
        bytes
    }

    /// The seal in a header block, if the segment was sealed.
    pub(crate) fn read(block: &[u8]) -> Option<Self> {
        Self::decode(block.get(SEAL_AT..SEAL_AT + SEAL_LEN)?)
    }

    /// The seal's copy in a trailer.
    pub(crate) fn read_trailer(trailer: &[u8]) -> Option<Self> {
        Self::decode(trailer.get(TRAILER_SEAL_AT as usize..)?.get(..SEAL_LEN)?)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader::checked(bytes, &SEAL_MAGIC)?;
        if from.u32()? != VERSION {
            return None;
        }
        let (id, salt) = (SegmentId(from.u32()?), from.u32()?);
        let frames_end = from.u32()?;
        let (directory_at, directory_len, directory_crc) = (from.u32()?, from.u32()?, from.u32()?);
        let manifest = Position { segment: SegmentId(from.u32()?), byte: from.u32()? };
        let last_manifest = Some(manifest).filter(|at| *at != Position::default());
        let file_bytes = from.u32()?;
        let index_is_whole = from.u32()? & FLAG_PARTIAL_INDEX == 0;
        let header = Header { id, salt, file_bytes };
        Some(Self {
            header,
            frames_end,
            directory_at,
            directory_len,
            directory_crc,
            last_manifest,
            file_bytes,
            index_is_whole,
        })
    }
}

struct Writer<'a>(&'a mut [u8], usize);

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0[self.1..self.1 + bytes.len()].copy_from_slice(bytes);
        self.1 += bytes.len();
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn crc(&mut self) {
        let crc = crc32c::crc32c(&self.0[..self.1]);
        self.u32(crc);
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Checks magic and checksum, and reads on between them.
    fn checked(bytes: &'a [u8], magic: &[u8; 8]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return None;
        }
        Some(Self(body.strip_prefix(magic)?))
    }

    fn u32(&mut self) -> Option<u32> {
        let (head, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_seal_come_back() {
        let header = Header { id: SegmentId(7), salt: 99, file_bytes: 9000 };
        let mut block = header.block();
        assert_eq!(Header::read(&block), Some((header, true)));
        assert_eq!(Seal::read(&block), None);

        let seal = Seal {
            header,
            frames_end: 5000,
            directory_at: 5100,
            directory_len: 32,
            directory_crc: 1,
            last_manifest: Some(Position { segment: SegmentId(2), byte: 4096 }),
            file_bytes: 9000,
            index_is_whole: false,
        };
        let trailer = header.trailer(Some(&seal));
        assert_eq!(Header::read_trailer(&trailer), Some(header));
        assert_eq!(Seal::read_trailer(&trailer), Some(seal));
        assert_eq!(Seal::read_trailer(&header.trailer(None)), None);
        block[SEAL_AT..SEAL_AT + SECTOR_BYTES].copy_from_slice(&seal.sector());
        assert_eq!(Seal::read(&block), Some(seal));
    }

    #[test]
    fn one_damaged_copy_of_the_header_is_survived_and_noticed() {
        let header = Header { id: SegmentId(7), salt: 99, file_bytes: 9000 };
        let mut block = header.block();
        block[10] ^= 1;
        assert_eq!(Header::read(&block), Some((header, false)));
        block[1024 + 10] ^= 1;
        assert_eq!(Header::read(&block), None);
    }
}
