//! A thread of the log that panics fails the log by its name: nobody waits for it in vain.

use std::io;
use std::sync::Arc;

use nexo_log::disk::{Disk, DiskFile, DiskLock, MemoryDisk, Room};
use nexo_log::{Claim, EntryKind, EntryRef, Health, Log, LogOptions, Urgency};
use nexo_types::QueueId;

/// A disk whose files panic when a thread of this name writes to them.
#[derive(Clone, Debug)]
struct Panicking {
    disk: MemoryDisk,
    thread: &'static str,
}

#[derive(Debug)]
struct PanickingFile {
    file: Arc<dyn DiskFile>,
    thread: &'static str,
}

impl Panicking {
    fn wrap(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(PanickingFile { file, thread: self.thread })
    }
}

impl Disk for Panicking {
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

impl DiskFile for PanickingFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(buf, at)
    }

    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<()> {
        let here = std::thread::current().name() == Some(self.thread);
        assert!(!here, "a test wants this thread to panic");
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

#[test]
fn a_thread_that_panics_fails_the_log_by_its_name() {
    for thread in ["nexo-log-writer", "nexo-log-keeper"] {
        let disk = Panicking { disk: MemoryDisk::new(), thread };
        let options = LogOptions { segment_bytes: 64 * 1024, ..LogOptions::default() };
        let (log, _) = Log::open(Arc::new(disk), options).unwrap();
        let payload = [7; 1000];
        let entry = EntryRef { queue: QueueId(1), kind: EntryKind::Record, spans: &[], payload: &payload };
        // More than one segment, so that the keeper has something to do.
        let failed = (0..200).any(|_| match log.append(&[entry], Urgency::Synced, Claim::Normal) {
            Ok(appended) => log.synced(appended.end).wait_blocking().is_err(),
            Err(_) => true,
        });
        assert!(failed, "an append or a sync tells");
        let Health::Failed { reason } = log.health() else {
            panic!("{thread} panicked, and the log is well")
        };
        assert!(reason.contains(thread), "{reason}");
    }
}
