//! One segment file while the log is open: its index, its usage, and how it is sealed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};

use nexo_types::{Position, SegmentId};
use parking_lot::Mutex;

use crate::disk::DiskFile;
use crate::frame::{self, END_BYTES};
use crate::header::{HEADER_BYTES, Header, SEAL_SECTOR_AT, Seal, TRAILER_BYTES, TRAILER_SEAL_AT};
use crate::index::{SegmentIndex, footer};
use crate::layout::segment_path;

/// A sealed file that leaves more than this part of itself unused is cut to what it uses. Its space is worth
/// more than the time that reusing it would save.
const UNUSED_PART_MAX: u32 = 8;

/// A segment. Small: there are thousands of them. Once sealed it keeps no descriptor.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) header: Header,
    pub(crate) file: Arc<dyn DiskFile>,
    /// The file's length.
    file_bytes: AtomicU32,
    /// Where the last appended frame ends.
    frames_end: AtomicU32,
    has_entries: AtomicBool,
    live_bytes: AtomicI64,
    retired: AtomicBool,
    /// Frames of it were lost before its index was made.
    index_is_partial: AtomicBool,
    index: Mutex<Index>,
}

/// Where the index of a segment is.
#[derive(Debug)]
pub(crate) enum Index {
    /// In memory, as the segment is not sealed.
    Memory(Box<SegmentIndex>),
    /// On disk.
    Sealed(Seal),
    /// In memory, because the footer on disk turned out to be damaged.
    Rebuilt(Box<SegmentIndex>),
}

/// Whether the frame that ends a segment is in its file already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndFrame {
    Written,
    Missing,
}

impl Segment {
    /// A segment without frames.
    pub(crate) fn empty(header: Header, file: Arc<dyn DiskFile>, file_bytes: u32) -> Self {
        Self::new(header, file, file_bytes, HEADER_BYTES, Index::Memory(Box::default()))
    }

    /// A segment that was sealed before.
    pub(crate) fn sealed(seal: Seal, file: Arc<dyn DiskFile>, file_bytes: u32) -> Self {
        let segment = Self::new(seal.header, file, file_bytes, seal.frames_end, Index::Sealed(seal));
        segment.has_entries.store(true, Ordering::Relaxed);
        segment.release_file();
        segment
    }

    /// A segment that has frames and no seal.
    pub(crate) fn with_frames(
        header: Header,
        file: Arc<dyn DiskFile>,
        file_bytes: u32,
        frames_end: u32,
        index: SegmentIndex,
    ) -> Self {
        let segment = Self::new(header, file, file_bytes, frames_end, Index::Memory(Box::new(index)));
        segment.has_entries.store(true, Ordering::Relaxed);
        segment
    }

    fn new(header: Header, file: Arc<dyn DiskFile>, file_bytes: u32, frames_end: u32, index: Index) -> Self {
        Self {
            header,
            file,
            file_bytes: AtomicU32::new(file_bytes),
            frames_end: AtomicU32::new(frames_end),
            has_entries: AtomicBool::new(false),
            live_bytes: AtomicI64::new(0),
            retired: AtomicBool::new(false),
            index_is_partial: AtomicBool::new(false),
            index: Mutex::new(index),
        }
    }

    pub(crate) fn id(&self) -> SegmentId {
        self.header.id
    }

    pub(crate) fn position(&self, byte: u32) -> Position {
        Position { segment: self.id(), byte }
    }

    pub(crate) fn file_bytes(&self) -> u32 {
        self.file_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn frames_end(&self) -> u32 {
        self.frames_end.load(Ordering::Acquire)
    }

    pub(crate) fn set_frames_end(&self, end: u32) {
        self.frames_end.store(end, Ordering::Release);
    }

    pub(crate) fn has_entries(&self) -> bool {
        self.has_entries.load(Ordering::Relaxed)
    }

    pub(crate) fn set_has_entries(&self) {
        self.has_entries.store(true, Ordering::Relaxed);
    }

    pub(crate) fn account(&self, delta_bytes: i64) {
        self.live_bytes.fetch_add(delta_bytes, Ordering::Relaxed);
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        u64::try_from(self.live_bytes.load(Ordering::Relaxed)).unwrap_or(0)
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// From now on what is read from the file may belong to another segment.
    pub(crate) fn set_retired(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// Its index does not know of frames that were lost.
    pub(crate) fn set_index_partial(&self) {
        self.index_is_partial.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_sealed(&self) -> bool {
        matches!(*self.index.lock(), Index::Sealed(_) | Index::Rebuilt(_))
    }

    /// Looks at or changes the index.
    pub(crate) fn with_index<T>(&self, f: impl FnOnce(&mut Index) -> T) -> T {
        f(&mut self.index.lock())
    }

    /// Changes the index of a segment that is being written.
    pub(crate) fn with_growing<T>(&self, f: impl FnOnce(&mut SegmentIndex) -> T) -> T {
        match &mut *self.index.lock() {
            Index::Memory(index) => f(index),
            Index::Sealed(_) | Index::Rebuilt(_) => unreachable!("a sealed segment takes no frames"),
        }
    }

    /// Seals a segment whose frames are all synced: the footer first, then, when that is durable, the seal.
    pub(crate) fn seal(&self, last_manifest: Option<Position>, end_frame: EndFrame) -> io::Result<()> {
        let frames_end = self.frames_end();
        let footer_at = frames_end + END_BYTES as u32;
        let footer = match &*self.index.lock() {
            Index::Memory(index) => footer::encode(index, footer_at),
            Index::Sealed(_) | Index::Rebuilt(_) => return Ok(()),
        };
        match end_frame {
            EndFrame::Written => self.file.write_at(&footer.bytes, u64::from(footer_at))?,
            EndFrame::Missing => {
                let mut tail = Vec::with_capacity(END_BYTES + footer.bytes.len());
                frame::put_end(&mut tail, self.header.salt, frames_end);
                tail.extend_from_slice(&footer.bytes);
                self.file.write_at(&tail, u64::from(frames_end))?;
            }
        }
        self.file.sync_data()?;
        let used = footer_at + footer.bytes.len() as u32 + TRAILER_BYTES;
        let file_bytes = self.sealed_bytes(used);
        let seal = Seal {
            header: self.header,
            frames_end,
            directory_at: footer.directory_at,
            directory_len: footer.directory_len,
            directory_crc: footer.directory_crc,
            last_manifest,
            file_bytes,
            index_is_whole: !self.index_is_partial.load(Ordering::Relaxed),
        };
        self.write_seal(&seal)?;
        *self.index.lock() = Index::Sealed(seal);
        if file_bytes < self.file_bytes() {
            self.file.set_len(u64::from(file_bytes))?;
        }
        self.file_bytes.store(file_bytes, Ordering::Relaxed);
        self.release_file();
        Ok(())
    }

    /// A sealed segment is only read, and there may be many more of them than descriptors.
    fn release_file(&self) {
        self.file.release(&segment_path(self.id()));
    }

    /// Writes both copies of the seal, durably.
    fn write_seal(&self, seal: &Seal) -> io::Result<()> {
        self.file.write_at(&seal.sector(), SEAL_SECTOR_AT)?;
        let trailer_at = u64::from(seal.file_bytes - TRAILER_BYTES);
        if seal.file_bytes == self.file_bytes() {
            // The header's copy is there already and is not touched.
            self.file.write_at(&seal.encode(), trailer_at + u64::from(TRAILER_SEAL_AT))?;
        } else {
            self.file.write_at(&self.header.trailer(Some(seal)), trailer_at)?;
        }
        self.file.sync_data()
    }

    /// How long the file will be that needs `used` bytes.
    fn sealed_bytes(&self, used: u32) -> u32 {
        let file_bytes = self.file_bytes();
        if file_bytes.saturating_sub(used) > file_bytes / UNUSED_PART_MAX {
            used
        } else {
            // A footer made after damage may have outgrown the file.
            file_bytes.max(used)
        }
    }
}
