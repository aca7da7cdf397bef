//! A memory disk whose calls wait, fail or panic as long as a test wants: what happens while the disk is slow, and when a
//! thread of the log or of the broker goes down.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::{CutMode, Disk, DiskFile, DiskLock, MemoryDisk, Room};

/// How often a call that waits looks whether the gate has opened.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A [`MemoryDisk`] behind a gate. A clone is the same disk.
#[derive(Clone, Debug, Default)]
pub struct GateDisk {
    disk: MemoryDisk,
    mode: Arc<Mutex<Mode>>,
    reads_held: Arc<AtomicU64>,
    writes_held: Arc<AtomicU64>,
    syncs_held: Arc<AtomicU64>,
}

/// What the gate does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Open,
    FailReads,
    /// By threads whose names begin with this.
    HoldReadsBy(&'static str),
    /// That bring these bytes.
    HoldReadsOf(&'static str),
    HoldWrites,
    HoldSyncs,
    /// By so much.
    SlowSyncs(Duration),
    /// By the thread of this name.
    PanicOnWriteBy(&'static str),
}

#[derive(Debug)]
struct GateFile {
    file: Arc<dyn DiskFile>,
    gate: GateDisk,
}

impl GateDisk {
    /// Reads and writes work.
    pub fn open_gate(&self) {
        self.set(Mode::Open);
    }

    /// Reads fail.
    pub fn fail_reads(&self) {
        self.set(Mode::FailReads);
    }

    /// Reads by threads whose names begin with `threads` wait until the gate is open.
    pub fn hold_reads_by(&self, threads: &'static str) {
        self.set(Mode::HoldReadsBy(threads));
    }

    /// Reads that bring `text` wait until the gate is open, whoever reads.
    pub fn hold_reads_of(&self, text: &'static str) {
        self.set(Mode::HoldReadsOf(text));
    }

    /// Writes wait until the gate is open.
    pub fn hold_writes(&self) {
        self.set(Mode::HoldWrites);
    }

    /// Syncs of files wait until the gate is open.
    pub fn hold_syncs(&self) {
        self.set(Mode::HoldSyncs);
    }

    /// Syncs of files take so much longer.
    pub fn slow_syncs(&self, by: Duration) {
        self.set(Mode::SlowSyncs(by));
    }

    /// Writes by the thread of this name panic.
    pub fn panic_on_write_by(&self, thread: &'static str) {
        self.set(Mode::PanicOnWriteBy(thread));
    }

    /// How often a read has been found waiting.
    #[must_use]
    pub fn reads_held(&self) -> u64 {
        self.reads_held.load(Ordering::SeqCst)
    }

    /// How often a write has been found waiting.
    #[must_use]
    pub fn writes_held(&self) -> u64 {
        self.writes_held.load(Ordering::SeqCst)
    }

    /// How often a sync has been found waiting.
    #[must_use]
    pub fn syncs_held(&self) -> u64 {
        self.syncs_held.load(Ordering::SeqCst)
    }

    /// As [`MemoryDisk::after_power_cut`].
    #[must_use]
    pub fn after_power_cut(&self, mode: CutMode, seed: u64) -> MemoryDisk {
        self.disk.after_power_cut(mode, seed)
    }

    fn set(&self, mode: Mode) {
        *self.mode.lock() = mode;
    }

    fn mode(&self) -> Mode {
        *self.mode.lock()
    }

    /// Waits for as long as the gate is held like this.
    fn wait_while(&self, mode: Mode, held: &AtomicU64) {
        while self.mode() == mode {
            held.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn wrap(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(GateFile { file, gate: self.clone() })
    }
}

fn is_this_thread(fits: impl FnOnce(&str) -> bool) -> bool {
    std::thread::current().name().is_some_and(fits)
}

impl Disk for GateDisk {
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
        Ok(self.wrap(self.disk.open(path)?))
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
        let mode = self.gate.mode();
        match mode {
            Mode::FailReads => return Err(io::Error::other("the disk does not answer")),
            Mode::HoldReadsBy(threads) if is_this_thread(|name| name.starts_with(threads)) => {
                self.gate.wait_while(mode, &self.gate.reads_held);
            }
            _ => {}
        }
        let read = self.file.read_at(buf, at)?;
        let mode = self.gate.mode();
        if let Mode::HoldReadsOf(text) = mode
            && buf[..read].windows(text.len()).any(|part| part == text.as_bytes())
        {
            self.gate.wait_while(mode, &self.gate.reads_held);
        }
        Ok(read)
    }

    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<()> {
        self.gate.wait_while(Mode::HoldWrites, &self.gate.writes_held);
        if let Mode::PanicOnWriteBy(thread) = self.gate.mode() {
            assert!(!is_this_thread(|name| name == thread), "a test wants this thread to panic");
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
        self.gate.wait_while(Mode::HoldSyncs, &self.gate.syncs_held);
        if let Mode::SlowSyncs(by) = self.gate.mode() {
            std::thread::sleep(by);
        }
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn uncache(&self, from: u64, to: u64) {
        self.file.uncache(from, to);
    }
}
