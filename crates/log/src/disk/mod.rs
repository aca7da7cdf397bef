//! The disk as the log sees it: a few directories of files that are read and written at byte positions.
//!
//! [`RealDisk`] is a directory of the file system. [`MemoryDisk`] keeps what a page cache and a platter would
//! hold apart, so that a power cut can be played out. [`FaultyDisk`] wraps it and makes calls fail, [`GateDisk`] makes them wait. The log puts
//! a `PooledDisk` around whichever it is given, which bounds how many files are open. Nothing above this module
//! opens a file by itself.

mod faulty;
mod gate;
mod memory;
mod pooled;
mod real;

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

pub use faulty::FaultyDisk;
pub use gate::GateDisk;
pub use memory::{CutMode, MemoryDisk};
pub(crate) use pooled::PooledDisk;
pub use real::RealDisk;

/// A place for files. Paths are relative to it, with `/` between a directory and a file; `""` is the root.
///
/// No name survives a power cut for sure until [`Disk::sync_dir`] was called for its directory.
pub trait Disk: Send + Sync + Debug {
    /// What to call this disk in an error: its path.
    fn name(&self) -> String;

    /// Takes the disk for this process until the guard is dropped.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when somebody else has it.
    fn lock(&self) -> io::Result<Box<dyn DiskLock>>;

    /// Makes a directory; fine if it exists.
    ///
    /// # Errors
    /// What the disk says.
    fn create_dir(&self, dir: &str) -> io::Result<()>;

    /// Names of the files and directories in `dir`, in order.
    ///
    /// # Errors
    /// What the disk says.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;

    /// Makes an empty file, or empties the one that is there.
    ///
    /// # Errors
    /// What the disk says.
    fn create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when there is none, else what the disk says.
    fn open(&self, path: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Gives a file another name, replacing a file of that name.
    ///
    /// # Errors
    /// What the disk says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// What the disk says.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Makes the names in `dir` durable.
    ///
    /// # Errors
    /// What the disk says.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
}

/// What came of reserving room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Writes there will not find the disk full.
    Reserved,
    /// The disk cannot reserve; only writing tells.
    Unknown,
}

/// An open file. Reads and writes may come from several threads at once.
pub trait DiskFile: Send + Sync + Debug {
    /// Reads into `buf` from byte `at` on and says how much there was: less than asked only at the file's end.
    ///
    /// # Errors
    /// What the disk says.
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize>;

    /// Writes all of `buf` at byte `at`, making the file longer if need be.
    ///
    /// # Errors
    /// What the disk says; [`io::ErrorKind::StorageFull`] when there is no room.
    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<()>;

    /// Reserves room for `bytes` bytes from the start of the file, so that a full disk is noticed now. The file
    /// is that long then.
    ///
    /// # Errors
    /// As for [`DiskFile::write_at`].
    fn allocate(&self, bytes: u64) -> io::Result<Room>;

    /// Cuts the file to `bytes` bytes or lengthens it with zeros.
    ///
    /// # Errors
    /// What the disk says.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Makes everything written to this file durable (`fdatasync`).
    ///
    /// # Errors
    /// What the disk says. After an error nothing is known about what reached the disk, and calling again
    /// proves nothing.
    fn sync_data(&self) -> io::Result<()>;

    /// How long the file is.
    ///
    /// # Errors
    /// What the disk says.
    fn len(&self) -> io::Result<u64>;

    /// Says that nothing will be written to this file for now. A disk that bounds its open files may close it, and
    /// open it again at `path` when it is read.
    fn release(&self, path: &str) {
        let _ = path;
    }

    /// Says that these bytes, which are synced, will not be read soon. A system that keeps them in memory may use that for
    /// something else.
    fn uncache(&self, from: u64, to: u64) {
        let _ = (from, to);
    }

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// What the disk says.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// Keeps a disk locked for as long as it lives.
pub trait DiskLock: Send + Sync + Debug {}

/// Splits a path into its directory and its name.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}
