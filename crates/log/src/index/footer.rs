//! The footer of a sealed segment: every lane's section, then a directory of them in the order of queue and
//! lane. The seal says where the directory is.

use nexo_types::{Priority, QueueId};

use super::{LaneKey, SegmentIndex};

/// A directory entry on disk.
pub(crate) const DIRECTORY_ENTRY_BYTES: usize = 32;

/// The directory of a footer, as it lies on disk. It is searched where it is.
#[derive(Debug)]
pub(crate) struct Directory {
    bytes: Box<[u8]>,
}

/// Where a section is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SectionPlace {
    pub(crate) at: u32,
    pub(crate) len: u32,
    pub(crate) blocks: u32,
    pub(crate) crc: u32,
}

/// A footer ready to be written.
pub(crate) struct Encoded {
    pub(crate) bytes: Vec<u8>,
    /// Where in the file the directory starts.
    pub(crate) directory_at: u32,
    pub(crate) directory_len: u32,
    pub(crate) directory_crc: u32,
}

/// Encodes the footer that will be written at `at`.
pub(crate) fn encode(index: &SegmentIndex, at: u32) -> Encoded {
    let mut bytes = Vec::with_capacity(index.footer_bytes_max());
    let mut directory = Vec::new();
    for ((queue, lane), builder) in index.sorted() {
        let start = bytes.len();
        let blocks = builder.encode(&mut bytes);
        directory.extend_from_slice(&queue.0.to_le_bytes());
        directory.extend_from_slice(&[lane.0, 0, 0, 0]);
        directory.extend_from_slice(&(at + start as u32).to_le_bytes());
        directory.extend_from_slice(&((bytes.len() - start) as u32).to_le_bytes());
        directory.extend_from_slice(&blocks.to_le_bytes());
        directory.extend_from_slice(&crc32c::crc32c(&bytes[start..]).to_le_bytes());
        directory.extend_from_slice(&[0; 4]);
    }
    let directory_at = at + bytes.len() as u32;
    let directory_crc = crc32c::crc32c(&directory);
    let directory_len = directory.len() as u32;
    bytes.append(&mut directory);
    debug_assert!(bytes.len() <= index.footer_bytes_max(), "the footer outgrew the room kept for it");
    Encoded { bytes, directory_at, directory_len, directory_crc }
}

impl Directory {
    /// Takes the directory's bytes if their checksum is right.
    pub(crate) fn new(bytes: Vec<u8>, crc: u32) -> Option<Self> {
        let whole = bytes.len().is_multiple_of(DIRECTORY_ENTRY_BYTES);
        (whole && crc32c::crc32c(&bytes) == crc).then(|| Self { bytes: bytes.into() })
    }

    /// Where the section of a lane is, if the segment has any of its messages.
    pub(crate) fn find(&self, key: LaneKey) -> Option<SectionPlace> {
        let (entries, _) = self.bytes.as_chunks::<DIRECTORY_ENTRY_BYTES>();
        let at = entries.binary_search_by_key(&key, key_of).ok()?;
        let entry = &entries[at];
        Some(SectionPlace {
            at: u32_at(entry, 12),
            len: u32_at(entry, 16),
            blocks: u32_at(entry, 20),
            crc: u32_at(entry, 24),
        })
    }

    /// Every lane that has a section.
    pub(crate) fn keys(&self) -> impl Iterator<Item = LaneKey> + '_ {
        let (entries, _) = self.bytes.as_chunks::<DIRECTORY_ENTRY_BYTES>();
        entries.iter().map(key_of)
    }

    /// What it costs to keep this in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.bytes.len()
    }
}

fn key_of(entry: &[u8; DIRECTORY_ENTRY_BYTES]) -> LaneKey {
    let queue = u64::from(u32_at(entry, 0)) | u64::from(u32_at(entry, 4)) << 32;
    (QueueId(queue), Priority(entry[8]))
}

fn u32_at(entry: &[u8; DIRECTORY_ENTRY_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
}
