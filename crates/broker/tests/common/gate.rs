//! A disk in memory whose reads can be made to fail or to wait, and whose writes can be made to wait.
#![allow(dead_code)] // Each test file uses its own part.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use nexo_log::disk::{Disk, DiskFile, DiskLock, MemoryDisk, Room};

const OPEN: u8 = 0;
const FAILING: u8 = 1;
const HOLDING: u8 = 2;
const HOLDING_WRITES: u8 = 3;
const HOLDING_MARKED: u8 = 4;
/// Messages with this in them can be held back: see [`Gate::hold_marked`].
pub(crate) const MARK: &str = "held back";

/// The disk. A clone is the same disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    disk: MemoryDisk,
    mode: Arc<AtomicU8>,
    held: Arc<AtomicU64>,
    writes_held: Arc<AtomicU64>,
}

#[derive(Debug)]
struct GateFile {
    file: Arc<dyn DiskFile>,
    gate: Gate,
}

impl Gate {
    /// Reads and writes work.
    pub(crate) fn open(&self) {
        self.mode.store(OPEN, Ordering::SeqCst);
    }

    /// Reads fail.
    pub(crate) fn fail(&self) {
        self.mode.store(FAILING, Ordering::SeqCst);
    }

    /// Reads by the broker's workers wait until the gate is open.
    pub(crate) fn hold(&self) {
        self.mode.store(HOLDING, Ordering::SeqCst);
    }

    /// Whether a read has had to wait.
    pub(crate) fn has_held(&self) -> bool {
        self.held.load(Ordering::SeqCst) > 0
    }

    /// Reads that bring a message with [`MARK`] in it wait until the gate is open, whoever reads.
    pub(crate) fn hold_marked(&self) {
        self.mode.store(HOLDING_MARKED, Ordering::SeqCst);
    }

    /// How often a read has been found waiting.
    pub(crate) fn reads_held(&self) -> u64 {
        self.held.load(Ordering::SeqCst)
    }

    /// Writes wait until the gate is open.
    pub(crate) fn hold_writes(&self) {
        self.mode.store(HOLDING_WRITES, Ordering::SeqCst);
    }

    /// How often a write has been found waiting.
    pub(crate) fn writes_held(&self) -> u64 {
        self.writes_held.load(Ordering::SeqCst)
    }

    fn mode(&self) -> u8 {
        self.mode.load(Ordering::SeqCst)
    }

    fn wrap(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(GateFile { file, gate: self.clone() })
    }
}

impl Disk for Gate {
    fn name(&self) -> String {
        self.disk.name()
    }

    fn lock(&self) -> io::Result<Box<dyn DiskLock>> {
        self.disk.lock()
    }

    fn create_dir(&self, dir: &str) -> io::Result<()> {
        self.disk.create_dir(dir)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(self.disk.create(path)?))
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(Disk::open(&self.disk, path)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
}

impl DiskFile for GateFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let by_worker = std::thread::current().name().is_some_and(|name| name.starts_with("nexo-worker"));
        if self.gate.mode() == FAILING {
            return Err(io::Error::other("the disk does not answer"));
        }
        while by_worker && self.gate.mode() == HOLDING {
            self.gate.held.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        let read = self.file.read_at(buf, at)?;
        let is_marked = |bytes: &[u8]| bytes.windows(MARK.len()).any(|part| part == MARK.as_bytes());
        if self.gate.mode() == HOLDING_MARKED && is_marked(&buf[..read]) {
            self.gate.held.fetch_add(1, Ordering::SeqCst);
            while self.gate.mode() == HOLDING_MARKED {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(read)
    }

    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<()> {
        while self.gate.mode() == HOLDING_WRITES {
            self.gate.writes_held.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.file.write_at(buf, at)
    }

    fn allocate(&self, bytes: u64) -> io::Result<Room> {
        self.file.allocate(bytes)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}
