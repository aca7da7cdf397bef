//! Files waiting to become segments.
//!
//! An `fdatasync` after a write into a file that has its full length and whose blocks have been written before
//! flushes data alone; in a growing file it also commits the file system's own records, which takes about twice
//! as long. So a new file is filled with zeros before it is used, and the file of a retired segment is used
//! again. It is not zeroed then: it gets another salt, and with that none of its old frames verify.
//!
//! Zeros take the disk's time from those who wait for it. They are written in steps, so that a sync in between waits for
//! little; and not at all while segments fill one after the other, when every sync is large and the file system's own
//! records do not count.
//!
//! The file of an oversize frame is as large as that frame needs. It is written once, so it is not zeroed, and
//! it is removed when it is not needed any more.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nexo_types::SegmentId;
use parking_lot::Mutex;
use tracing::warn;

use crate::disk::{Disk, DiskFile, Room};
use crate::error::is_shortage;
use crate::header::{HEADER_BYTES, Header, TRAILER_BYTES};
use crate::inventory::{Inventory, Leaves};
use crate::layout::{SEGMENTS, SPARE, segment_path};
use crate::segment::Segment;

/// Zeros that are written and synced at once.
const ZEROS_BYTES: usize = 1024 * 1024;
/// If a new file is wanted so soon after the one before it, segments fill faster than zeros should be written.
const HURRY: Duration = Duration::from_secs(1);

/// The pool of files in `spare/`.
#[derive(Debug)]
pub(crate) struct Spares {
    disk: Arc<dyn Disk>,
    segment_bytes: u32,
    files_max: usize,
    names: Mutex<Vec<String>>,
    inventory: Inventory,
    /// When the latest new file was wanted.
    created_at: Mutex<Option<Instant>>,
}

impl Spares {
    /// Looks through `spare/`, removes what cannot be used, and says the highest segment any file was.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        segment_bytes: u32,
        files_max: usize,
        inventory: Inventory,
    ) -> io::Result<(Self, SegmentId)> {
        let mut highest = SegmentId(0);
        let mut names = Vec::new();
        for name in disk.list(SPARE)? {
            let path = format!("{SPARE}/{name}");
            // A file without a header is one whose preparation was cut off.
            if let Some((header, len)) = read_header(&*disk.open(&path)?)? {
                highest = highest.max(header.id);
                if len == u64::from(segment_bytes) && names.len() < files_max {
                    names.push(name);
                    continue;
                }
            }
            disk.remove(&path)?;
        }
        let (names, created_at) = (Mutex::new(names), Mutex::new(None));
        Ok((Self { disk, segment_bytes, files_max, names, inventory, created_at }, highest))
    }

    pub(crate) fn count(&self) -> usize {
        self.names.lock().len()
    }

    /// Makes a durable, empty segment, from a spare file if there is one.
    ///
    /// # Errors
    /// A shortage of space or descriptors leaves nothing behind, and it may be tried again.
    pub(crate) fn prepare(&self, id: SegmentId) -> io::Result<Segment> {
        let name = self.names.lock().pop();
        match name {
            Some(name) => self.reuse(name, id),
            None => self.create(id, self.segment_bytes),
        }
    }

    /// Makes a new segment of a size of its own, to be written bit by bit.
    pub(crate) fn create(&self, id: SegmentId, bytes: u32) -> io::Result<Segment> {
        let header = Header { id, salt: random_salt(), file_bytes: bytes };
        let before = self.created_at.lock().replace(Instant::now());
        let in_a_hurry = before.is_some_and(|before| before.elapsed() < HURRY);
        let zeros = if in_a_hurry { Zeros::UnlessReserved } else { Zeros::Always };
        let file = self.create_file(&header, bytes, zeros)?;
        Ok(Segment::empty(header, file, bytes))
    }

    /// Makes the file of a segment that is written at once, and durable in its place. It has room for `bytes`.
    pub(crate) fn create_oversize(&self, header: &Header, bytes: u32) -> io::Result<Arc<dyn DiskFile>> {
        self.create_file(header, bytes, Zeros::UnlessReserved)
    }

    fn create_file(&self, header: &Header, bytes: u32, zeros: Zeros) -> io::Result<Arc<dyn DiskFile>> {
        let id = header.id;
        let path = format!("{SPARE}/{id}.new");
        let file = self.disk.create(&path)?;
        if let Err(error) = fill(&*file, header, bytes, zeros) {
            if let Err(error) = self.disk.remove(&path) {
                warn!(path, %error, "cannot remove a segment file that could not be prepared");
            }
            return Err(error);
        }
        self.disk.sync_dir(SPARE)?;
        self.settle(&path, id)?;
        Ok(file)
    }

    /// Gives a prepared segment that nothing was written to another number.
    pub(crate) fn renumber(&self, unused: SegmentId, id: SegmentId) -> io::Result<Segment> {
        let name = self.take_out(unused, Leaves::Unused)?;
        self.reuse(name, id)
    }

    fn reuse(&self, name: String, id: SegmentId) -> io::Result<Segment> {
        let path = format!("{SPARE}/{name}");
        self.give_another_number(&path, id).inspect_err(|error| {
            // It is as good as before.
            if is_shortage(error) {
                self.names.lock().push(name);
            }
        })
    }

    fn give_another_number(&self, path: &str, id: SegmentId) -> io::Result<Segment> {
        let file = self.disk.open(path)?;
        let old = read_header(&*file)?.filter(|(_, len)| *len == u64::from(self.segment_bytes));
        let Some((old, _)) = old else {
            // It holds nothing, so nothing is lost with it.
            warn!(path, "a spare file is damaged; it is removed");
            drop(file);
            self.disk.remove(path)?;
            return self.create(id, self.segment_bytes);
        };
        let header = Header { id, salt: old.salt.wrapping_add(1), file_bytes: self.segment_bytes };
        file.write_at(&header.block(), 0)?;
        file.write_at(&header.trailer(None), trailer_at(self.segment_bytes))?;
        file.sync_data()?;
        self.settle(path, id)?;
        Ok(Segment::empty(header, file, self.segment_bytes))
    }

    fn settle(&self, path: &str, id: SegmentId) -> io::Result<()> {
        self.disk.rename(path, &segment_path(id))?;
        self.disk.sync_dir(SEGMENTS)?;
        self.disk.sync_dir(SPARE)?;
        match self.inventory.add(id) {
            Err(error) if is_shortage(&error) => {
                warn!(segment = %id, %error, "no room to list a segment; its loss would go unnoticed");
                Ok(())
            }
            added => added,
        }
    }

    /// Makes the list of segments say what is there, and what was lost.
    pub(crate) fn list_segments(&self, ids: BTreeSet<SegmentId>, lost: &[SegmentId]) -> io::Result<()> {
        self.inventory.set(ids, lost)
    }

    /// Takes the file of a segment that is not needed any more. Durable when this returns, so that the header
    /// can be rewritten without a crash bringing the old name back.
    pub(crate) fn give(&self, id: SegmentId, file_bytes: u32, why: Leaves) -> io::Result<()> {
        let mut names = self.names.lock();
        if file_bytes == self.segment_bytes && names.len() < self.files_max {
            match self.take_out(id, why) {
                Ok(name) => {
                    names.push(name);
                    return Ok(());
                }
                // A new name may need space, and a name that goes does not.
                Err(error) if is_shortage(&error) => {}
                Err(error) => return Err(error),
            }
        }
        self.inventory.remove(id, why)?;
        self.disk.remove(&segment_path(id))?;
        self.disk.sync_dir(SEGMENTS)
    }

    /// Moves a segment's file to `spare/`, durably, and says its name there.
    fn take_out(&self, id: SegmentId, why: Leaves) -> io::Result<String> {
        let name = format!("{id}.seg");
        self.inventory.remove(id, why)?;
        self.disk.rename(&segment_path(id), &format!("{SPARE}/{name}"))?;
        self.disk.sync_dir(SPARE)?;
        self.disk.sync_dir(SEGMENTS)?;
        Ok(name)
    }
}

/// Whether a new file is filled with zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zeros {
    /// Many small durable writes will follow, and each is faster for it.
    Always,
    /// Large writes will follow: all they need is that there is room.
    UnlessReserved,
}

/// Random, so that nobody can push a message whose bytes would pass for a frame.
pub(crate) fn random_salt() -> u32 {
    fastrand::u32(..)
}

fn read_header(file: &dyn DiskFile) -> io::Result<Option<(Header, u64)>> {
    let mut block = vec![0; HEADER_BYTES as usize];
    let len = file.read_at(&mut block, 0)?;
    let file_bytes = file.len()?;
    let mut trailer = vec![0; TRAILER_BYTES as usize];
    let trailer_len = file.read_at(&mut trailer, file_bytes.saturating_sub(u64::from(TRAILER_BYTES)))?;
    // The two differ while a file is prepared. The one with the higher number is the later.
    let front = Header::read(&block[..len]).map(|(header, _)| header);
    let header = front.into_iter().chain(Header::read_trailer(&trailer[..trailer_len]));
    Ok(header.max_by_key(|header| (header.id, header.salt)).map(|header| (header, file_bytes)))
}

fn trailer_at(file_bytes: u32) -> u64 {
    u64::from(file_bytes - TRAILER_BYTES)
}

fn fill(file: &dyn DiskFile, header: &Header, bytes: u32, zeros: Zeros) -> io::Result<()> {
    let room = file.allocate(u64::from(bytes))?;
    if zeros == Zeros::Always || room == Room::Unknown {
        write_zeros(file, bytes)?;
    }
    file.write_at(&header.block(), 0)?;
    file.write_at(&header.trailer(None), trailer_at(bytes))?;
    file.sync_data()
}

fn write_zeros(file: &dyn DiskFile, bytes: u32) -> io::Result<()> {
    let zeros = vec![0; ZEROS_BYTES.min(bytes as usize)];
    let mut at = u64::from(HEADER_BYTES);
    while at < u64::from(bytes) {
        let len = zeros.len().min((u64::from(bytes) - at) as usize);
        file.write_at(&zeros[..len], at)?;
        file.sync_data()?;
        at += len as u64;
    }
    Ok(())
}
