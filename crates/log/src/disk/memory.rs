//! A disk in memory that knows what would survive a power cut.
//!
//! Each file holds the bytes as a reader sees them and, apart from them, the bytes that are durable together
//! with the writes that are not yet. Names work alike: a journal of directory changes becomes durable as a
//! prefix, as on a journaling file system. [`MemoryDisk::after_power_cut`] plays out what the next boot finds.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Disk, DiskFile, DiskLock, Room, split};

/// Disks write this much at once or not at all.
const SECTOR_BYTES: usize = 512;

/// What a power cut does to writes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutMode {
    /// All of them reached the disk.
    Keep,
    /// None did.
    Drop,
    /// They reached it in order, up to a random sector.
    Tear,
    /// A random set of their sectors did, in no order.
    Reorder,
}

impl CutMode {
    /// Every mode, for tests that try them all.
    pub const ALL: [Self; 4] = [Self::Keep, Self::Drop, Self::Tear, Self::Reorder];
}

/// Files in memory. A clone is the same disk.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk {
    tree: Arc<Mutex<Tree>>,
    locked: Arc<Mutex<bool>>,
}

#[derive(Debug, Default)]
struct Tree {
    dirs: BTreeSet<String>,
    names: BTreeMap<String, Arc<MemoryFile>>,
    durable_dirs: BTreeSet<String>,
    durable_names: BTreeMap<String, Arc<MemoryFile>>,
    journal: Vec<NameChange>,
}

#[derive(Clone, Debug)]
enum NameChange {
    Dir(String),
    Link(String, Arc<MemoryFile>),
    Rename(String, String),
    Unlink(String),
}

#[derive(Debug, Default)]
struct MemoryFile {
    bytes: Mutex<FileBytes>,
}

#[derive(Debug, Default)]
struct FileBytes {
    seen: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Write { at: usize, bytes: Vec<u8> },
    Len(usize),
}

#[derive(Debug)]
struct MemoryLock(Arc<Mutex<bool>>);

impl MemoryDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The disk as the next boot finds it when the power goes now. `seed` decides what is left to chance.
    #[must_use]
    pub fn after_power_cut(&self, mode: CutMode, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let tree = self.tree.lock();
        let mut found =
            Tree { dirs: tree.durable_dirs.clone(), names: tree.durable_names.clone(), ..Tree::default() };
        let kept = match mode {
            CutMode::Keep => tree.journal.len(),
            CutMode::Drop => 0,
            CutMode::Tear | CutMode::Reorder => rng.usize(0..=tree.journal.len()),
        };
        for change in &tree.journal[..kept] {
            change.apply(&mut found.dirs, &mut found.names);
        }
        for file in found.names.values_mut() {
            *file = Arc::new(file.after_power_cut(mode, &mut rng));
        }
        found.durable_dirs = found.dirs.clone();
        found.durable_names = found.names.clone();
        Self { tree: Arc::new(Mutex::new(found)), locked: Arc::default() }
    }

    /// Turns over one bit of a stored byte, as a failing disk would: nobody is told.
    ///
    /// # Panics
    /// When there is no such file or byte.
    pub fn flip_bit(&self, path: &str, byte: usize, bit: u8) {
        let file = self.find(path).expect("the test names a file that exists");
        let mut bytes = file.bytes.lock();
        let mask = 1 << (bit & 7);
        bytes.seen[byte] ^= mask;
        if let Some(durable) = bytes.durable.get_mut(byte) {
            *durable ^= mask;
        }
    }

    /// The sum of all files' lengths.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.tree.lock().names.values().map(|file| file.bytes.lock().seen.len() as u64).sum()
    }

    fn find(&self, path: &str) -> io::Result<Arc<MemoryFile>> {
        let tree = self.tree.lock();
        let file = tree.names.get(path);
        file.cloned().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no file '{path}'")))
    }

    fn change(&self, change: NameChange) {
        let tree = &mut *self.tree.lock();
        change.apply(&mut tree.dirs, &mut tree.names);
        tree.journal.push(change);
    }
}

impl NameChange {
    fn apply(&self, dirs: &mut BTreeSet<String>, names: &mut BTreeMap<String, Arc<MemoryFile>>) {
        match self {
            Self::Dir(dir) => {
                dirs.insert(dir.clone());
            }
            Self::Link(path, file) => {
                names.insert(path.clone(), file.clone());
            }
            Self::Rename(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
            Self::Unlink(path) => {
                names.remove(path);
            }
        }
    }

    fn touches(&self, dir: &str) -> bool {
        match self {
            Self::Dir(path) | Self::Link(path, _) | Self::Unlink(path) => split(path).0 == dir,
            Self::Rename(from, to) => split(from).0 == dir || split(to).0 == dir,
        }
    }
}

impl MemoryFile {
    fn after_power_cut(&self, mode: CutMode, rng: &mut fastrand::Rng) -> Self {
        let bytes = self.bytes.lock();
        let mut durable = bytes.durable.clone();
        let mut sectors_left = match mode {
            CutMode::Tear => {
                let sectors = bytes.unsynced.iter().map(Change::sectors).sum::<usize>();
                rng.usize(0..=sectors)
            }
            CutMode::Keep | CutMode::Drop | CutMode::Reorder => 0,
        };
        for change in &bytes.unsynced {
            match (mode, change) {
                (CutMode::Drop, _) => {}
                (CutMode::Keep, _) => change.apply(&mut durable),
                (CutMode::Tear | CutMode::Reorder, Change::Len(_)) => {
                    if rng.bool() {
                        change.apply(&mut durable);
                    }
                }
                (CutMode::Tear | CutMode::Reorder, Change::Write { at, bytes }) => {
                    for (at, piece) in sectors(*at, bytes) {
                        let survives = match mode {
                            CutMode::Tear => sectors_left > 0,
                            CutMode::Keep | CutMode::Drop | CutMode::Reorder => rng.bool(),
                        };
                        sectors_left = sectors_left.saturating_sub(1);
                        if survives {
                            write(&mut durable, at, piece);
                        }
                    }
                }
            }
        }
        let bytes = FileBytes { seen: durable.clone(), durable, unsynced: Vec::new() };
        Self { bytes: Mutex::new(bytes) }
    }
}

impl Change {
    fn sectors(&self) -> usize {
        match self {
            Self::Write { at, bytes } => sectors(*at, bytes).count(),
            Self::Len(_) => 0,
        }
    }

    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Self::Write { at, bytes } => write(to, *at, bytes),
            Self::Len(len) => to.resize(*len, 0),
        }
    }
}

/// Cuts a write at the borders of sectors.
fn sectors(at: usize, mut bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = at;
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let (piece, rest) = bytes.split_at((SECTOR_BYTES - at % SECTOR_BYTES).min(bytes.len()));
        let start = at;
        at += piece.len();
        bytes = rest;
        Some((start, piece))
    })
}

fn write(to: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if to.len() < end {
        to.resize(end, 0);
    }
    to[at..end].copy_from_slice(bytes);
}

impl Disk for MemoryDisk {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn lock(&self) -> io::Result<Box<dyn DiskLock>> {
        let mut locked = self.locked.lock();
        if *locked {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        *locked = true;
        Ok(Box::new(MemoryLock(self.locked.clone())))
    }

    fn create_dir(&self, dir: &str) -> io::Result<()> {
        if !self.tree.lock().dirs.contains(dir) {
            self.change(NameChange::Dir(dir.to_owned()));
        }
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let tree = self.tree.lock();
        if !dir.is_empty() && !tree.dirs.contains(dir) {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("no directory '{dir}'")));
        }
        let mut names: Vec<String> = tree
            .dirs
            .iter()
            .chain(tree.names.keys())
            .map(|path| split(path))
            .filter(|(parent, _)| *parent == dir)
            .map(|(_, name)| name.to_owned())
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    fn create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = Arc::new(MemoryFile::default());
        self.change(NameChange::Link(path.to_owned(), file.clone()));
        Ok(file)
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.find(path)?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.find(from)?;
        self.change(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.find(path)?;
        self.change(NameChange::Unlink(path.to_owned()));
        Ok(())
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let tree = &mut *self.tree.lock();
        if let Some(last) = tree.journal.iter().rposition(|change| change.touches(dir)) {
            for change in tree.journal.drain(..=last) {
                change.apply(&mut tree.durable_dirs, &mut tree.durable_names);
            }
        }
        Ok(())
    }
}

impl DiskFile for MemoryFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let bytes = self.bytes.lock();
        let from = bytes.seen.get(at as usize..).unwrap_or_default();
        let n = from.len().min(buf.len());
        buf[..n].copy_from_slice(&from[..n]);
        Ok(n)
    }

    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<()> {
        let bytes = &mut *self.bytes.lock();
        write(&mut bytes.seen, at as usize, buf);
        bytes.unsynced.push(Change::Write { at: at as usize, bytes: buf.to_vec() });
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<Room> {
        if len > self.len()? {
            self.set_len(len)?;
        }
        Ok(Room::Reserved)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let bytes = &mut *self.bytes.lock();
        bytes.seen.resize(len as usize, 0);
        bytes.unsynced.push(Change::Len(len as usize));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let bytes = &mut *self.bytes.lock();
        for change in bytes.unsynced.drain(..) {
            change.apply(&mut bytes.durable);
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().seen.len() as u64)
    }
}

impl DiskLock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        *self.0.lock() = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(disk: &MemoryDisk, path: &str) -> Vec<u8> {
        disk.find(path).unwrap().bytes.lock().seen.clone()
    }

    #[test]
    fn a_cut_keeps_what_was_synced_and_may_drop_the_rest() {
        let disk = MemoryDisk::new();
        let file = disk.create("a").unwrap();
        file.write_at(b"synced", 0).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir("").unwrap();
        file.write_at(b"lost", 6).unwrap();

        assert_eq!(contents(&disk.after_power_cut(CutMode::Drop, 0), "a"), b"synced");
        assert_eq!(contents(&disk.after_power_cut(CutMode::Keep, 0), "a"), b"syncedlost");
    }

    #[test]
    fn a_name_that_was_not_synced_may_be_lost_although_its_bytes_were() {
        let disk = MemoryDisk::new();
        let file = disk.create("a").unwrap();
        file.write_at(b"x", 0).unwrap();
        file.sync_data().unwrap();

        assert!(disk.after_power_cut(CutMode::Drop, 0).find("a").is_err());
        assert!(disk.after_power_cut(CutMode::Keep, 0).find("a").is_ok());
    }

    #[test]
    fn a_torn_write_ends_at_a_sector() {
        let disk = MemoryDisk::new();
        let file = disk.create("a").unwrap();
        file.write_at(&[1; 2048], 0).unwrap();
        disk.sync_dir("").unwrap();

        for seed in 0..32 {
            assert_eq!(contents(&disk.after_power_cut(CutMode::Tear, seed), "a").len() % SECTOR_BYTES, 0);
        }
    }
}
