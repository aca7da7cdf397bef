//! A memory disk that fails on command: power cuts at a chosen call, errors, a full disk, flipped bits.
//!
//! Every call that changes something (write, set length, allocate, sync, create, rename, remove, directory
//! sync) counts as one operation. A test runs once to learn how many there are, then once for each of them.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{CutMode, Disk, DiskFile, DiskLock, MemoryDisk, Room};
use crate::log::WRITER_THREAD;

/// `EIO`, as a dying disk gives it.
const EIO: i32 = 5;
/// `EMFILE`: too many open files.
const EMFILE: i32 = 24;
/// `ENOSPC`.
const ENOSPC: i32 = 28;

/// A [`MemoryDisk`] with faults. A clone is the same disk.
#[derive(Clone, Debug, Default)]
pub struct FaultyDisk {
    disk: MemoryDisk,
    faults: Arc<Mutex<Faults>>,
}

#[derive(Debug, Default)]
struct Faults {
    operations: u64,
    read_bytes: u64,
    cut_at: Option<u64>,
    is_cut: bool,
    fail_at: Option<u64>,
    fail_next_sync: bool,
    fail_next_write: bool,
    fail_next_rename: bool,
    bytes_max: Option<u64>,
    /// What a full disk says, if not `ENOSPC`.
    full_errno: Option<i32>,
    fail_writes_with: Option<i32>,
    short_at: Option<(u64, i32)>,
    open_files: usize,
    open_files_max: Option<usize>,
    /// What a disk that opens no more files says, if not `EMFILE`.
    open_files_errno: Option<i32>,
    /// Bytes of files that cannot be read.
    bad_bytes: Vec<(String, Range<u64>)>,
    failed_reads: u64,
}

#[derive(Debug)]
struct FaultyFile {
    /// As it was opened.
    path: String,
    file: Arc<dyn DiskFile>,
    disk: FaultyDisk,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Write,
    Sync,
    Other,
}

impl FaultyDisk {
    /// An empty disk without faults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A disk with these files and no faults.
    #[must_use]
    pub fn from_memory(disk: MemoryDisk) -> Self {
        Self { disk, faults: Arc::default() }
    }

    /// Cuts the power at the `n`-th operation from the start, counting from 1. That operation and every call
    /// after it fail; what it was doing may or may not have reached the disk.
    pub fn cut_power_at(&self, n: u64) {
        self.faults.lock().cut_at = Some(n);
    }

    /// Cuts the power now.
    pub fn cut_power(&self) {
        self.faults.lock().is_cut = true;
    }

    /// Whether the power is off.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.faults.lock().is_cut
    }

    /// The disk as the next boot finds it, with power and without faults.
    #[must_use]
    pub fn restart(&self, mode: CutMode, seed: u64) -> Self {
        Self::from_memory(self.disk.after_power_cut(mode, seed))
    }

    /// How many operations there have been.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.faults.lock().operations
    }

    /// How many bytes were read.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.faults.lock().read_bytes
    }

    /// Fails the `n`-th operation from the start with `EIO`, once.
    pub fn fail_at(&self, n: u64) {
        self.faults.lock().fail_at = Some(n);
    }

    /// Fails the next sync of what was appended to the log with `EIO`, once. Segments that are prepared or sealed beside it
    /// do not count: when that happens is chance.
    pub fn fail_next_sync(&self) {
        self.faults.lock().fail_next_sync = true;
    }

    /// Fails the next write of what was appended to the log with `EIO`, once. As above, nothing else counts.
    pub fn fail_next_write(&self) {
        self.faults.lock().fail_next_write = true;
    }

    /// Fails the next rename with `EIO`, once.
    pub fn fail_next_rename(&self) {
        self.faults.lock().fail_next_rename = true;
    }

    /// Fails every read of these bytes of a file with `EIO`, as a bad sector does.
    pub fn set_unreadable(&self, path: &str, bytes: Range<u64>) {
        self.faults.lock().bad_bytes.push((path.to_owned(), bytes));
    }

    /// Lets every byte be read again.
    pub fn set_readable(&self) {
        self.faults.lock().bad_bytes.clear();
    }

    /// How many reads met bytes that cannot be read.
    #[must_use]
    pub fn failed_reads(&self) -> u64 {
        self.faults.lock().failed_reads
    }

    /// Lets all files together grow to this many bytes; beyond it the disk is full. `None` is no limit.
    pub fn set_bytes_max(&self, bytes: Option<u64>) {
        self.faults.lock().bytes_max = bytes;
    }

    /// Has a full disk say something else than `ENOSPC`, such as `EDQUOT`.
    pub fn set_full_errno(&self, errno: i32) {
        self.faults.lock().full_errno = Some(errno);
    }

    /// Fails the `n`-th operation from the start with this error, once, unless it is a sync.
    pub fn run_short_at(&self, n: u64, errno: i32) {
        self.faults.lock().short_at = Some((n, errno));
    }

    /// Fails every write with this error until `None` is set.
    pub fn fail_writes_with(&self, errno: Option<i32>) {
        self.faults.lock().fail_writes_with = errno;
    }

    /// Lets so many files be open at once; beyond it no file is opened (`EMFILE`). `None` is no limit.
    pub fn set_open_files_max(&self, files: Option<usize>) {
        self.faults.lock().open_files_max = files;
    }

    /// Has a disk that opens no more files say something else than `EMFILE`, such as `ENFILE`.
    pub fn set_open_files_errno(&self, errno: i32) {
        self.faults.lock().open_files_errno = Some(errno);
    }

    /// How many files are open.
    #[must_use]
    pub fn open_files(&self) -> usize {
        self.faults.lock().open_files
    }

    /// As [`MemoryDisk::flip_bit`].
    pub fn flip_bit(&self, path: &str, byte: usize, bit: u8) {
        self.disk.flip_bit(path, byte, bit);
    }

    /// The sum of all files' lengths.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.disk.used_bytes()
    }

    /// Counts an operation, and does it unless a fault says otherwise.
    fn operate<T>(&self, kind: Operation, perform: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let mut faults = self.faults.lock();
        if faults.is_cut {
            return Err(power_is_off());
        }
        faults.operations += 1;
        let n = faults.operations;
        if let Some((_, errno)) = faults.short_at.take_if(|(at, _)| *at == n && kind != Operation::Sync) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let fails_next = match kind {
            Operation::Sync if is_log_writer() => std::mem::take(&mut faults.fail_next_sync),
            Operation::Write if is_log_writer() => std::mem::take(&mut faults.fail_next_write),
            Operation::Sync | Operation::Write | Operation::Other => false,
        };
        if fails_next || faults.fail_at.take_if(|at| *at == n).is_some() {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        if faults.cut_at == Some(n) {
            faults.is_cut = true;
            // A sync that was cut off proves nothing; anything else was on its way and may have arrived.
            if kind != Operation::Sync {
                perform()?;
            }
            return Err(power_is_off());
        }
        perform()
    }

    fn alive(&self) -> io::Result<()> {
        if self.is_cut() { Err(power_is_off()) } else { Ok(()) }
    }

    fn wrap(&self, path: &str, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        self.faults.lock().open_files += 1;
        Arc::new(FaultyFile { path: path.to_owned(), file, disk: self.clone() })
    }

    /// Whether another file may be opened.
    fn descriptor(&self) -> io::Result<()> {
        let faults = self.faults.lock();
        match faults.open_files_max {
            Some(max) if faults.open_files >= max => {
                Err(io::Error::from_raw_os_error(faults.open_files_errno.unwrap_or(EMFILE)))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Whether the disk has room for a file to grow. Looked up outside of [`FaultyDisk::operate`].
    fn room_to_grow(&self, file: &dyn DiskFile, end: u64) -> io::Result<()> {
        let (max, errno) = {
            let faults = self.faults.lock();
            (faults.bytes_max, faults.full_errno.unwrap_or(ENOSPC))
        };
        let Some(max) = max else { return Ok(()) };
        let growth = end.saturating_sub(file.len()?);
        if growth > 0 && self.disk.used_bytes() + growth > max {
            return Err(io::Error::from_raw_os_error(errno));
        }
        Ok(())
    }
}

/// Whether it is the thread that writes what was appended.
fn is_log_writer() -> bool {
    std::thread::current().name() == Some(WRITER_THREAD)
}

fn power_is_off() -> io::Error {
    io::Error::other("the power is off")
}

impl Disk for FaultyDisk {
    fn name(&self) -> String {
        self.disk.name()
    }

    fn lock(&self) -> io::Result<Box<dyn DiskLock>> {
        self.alive()?;
        self.disk.lock()
    }

    fn create_dir(&self, dir: &str) -> io::Result<()> {
        self.operate(Operation::Other, || self.disk.create_dir(dir))
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.alive()?;
        self.disk.list(dir)
    }

    fn create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.descriptor()?;
        self.operate(Operation::Other, || self.disk.create(path)).map(|file| self.wrap(path, file))
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.alive()?;
        self.descriptor()?;
        self.disk.open(path).map(|file| self.wrap(path, file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        if std::mem::take(&mut self.faults.lock().fail_next_rename) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.operate(Operation::Other, || self.disk.rename(from, to))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.operate(Operation::Other, || self.disk.remove(path))
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.operate(Operation::Sync, || self.disk.sync_dir(dir))
    }
}

impl Drop for FaultyFile {
    fn drop(&mut self) {
        self.disk.faults.lock().open_files -= 1;
    }
}

impl DiskFile for FaultyFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        self.disk.alive()?;
        let wanted = at..at + buf.len() as u64;
        {
            let mut faults = self.disk.faults.lock();
            let is_bad = |(path, bad): &(String, Range<u64>)| {
                *path == self.path && bad.start < wanted.end && wanted.start < bad.end
            };
            if faults.bad_bytes.iter().any(is_bad) {
                faults.failed_reads += 1;
                return Err(io::Error::from_raw_os_error(EIO));
            }
        }
        let read = self.file.read_at(buf, at)?;
        self.disk.faults.lock().read_bytes += read as u64;
        Ok(read)
    }

    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<()> {
        if let Some(errno) = self.disk.faults.lock().fail_writes_with {
            return Err(io::Error::from_raw_os_error(errno));
        }
        self.disk.room_to_grow(&*self.file, at + buf.len() as u64)?;
        self.disk.operate(Operation::Write, || self.file.write_at(buf, at))
    }

    fn allocate(&self, bytes: u64) -> io::Result<Room> {
        self.disk.room_to_grow(&*self.file, bytes)?;
        self.disk.operate(Operation::Other, || self.file.allocate(bytes))
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.disk.room_to_grow(&*self.file, bytes)?;
        self.disk.operate(Operation::Other, || self.file.set_len(bytes))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.operate(Operation::Sync, || self.file.sync_data())
    }

    fn len(&self) -> io::Result<u64> {
        self.disk.alive()?;
        self.file.len()
    }

    fn uncache(&self, from: u64, to: u64) {
        self.file.uncache(from, to);
    }
}
