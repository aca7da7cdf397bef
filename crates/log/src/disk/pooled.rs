//! Bounds how many files of a disk are open at once.
//!
//! A log has as many segments as its backlog needs, and a process has few descriptors. So a file that is not
//! written to any more is *released*: it is closed, and opened again when it is read. The files that were read
//! last stay open, up to a limit. A file that has not been released stays open until it is dropped, since a
//! write must not fail for want of a descriptor.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::{Disk, DiskFile, DiskLock, Room};
use crate::error::is_out_of_files;

/// A disk that keeps at most so many released files open.
#[derive(Debug)]
pub(crate) struct PooledDisk {
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    disk: Arc<dyn Disk>,
    open: Mutex<Open>,
    open_max: usize,
}

/// Released files that are open all the same.
#[derive(Debug, Default)]
struct Open {
    /// The one that was used last is at the back. There are few, so they are searched one by one.
    files: VecDeque<(Arc<str>, Arc<dyn DiskFile>)>,
    /// Counts changes of names: what was opened before one may not be kept after it.
    name_changes: u64,
}

#[derive(Debug)]
struct PooledFile {
    pool: Arc<Pool>,
    held: RwLock<Held>,
}

#[derive(Debug)]
enum Held {
    Open(Arc<dyn DiskFile>),
    /// Closed, and found here when it is needed.
    Released(Arc<str>),
}

impl PooledDisk {
    /// The files of `disk`, with at most `open_max` released ones open.
    pub(crate) fn new(disk: Arc<dyn Disk>, open_max: usize) -> Self {
        Self { pool: Arc::new(Pool { disk, open: Mutex::default(), open_max }) }
    }

    fn wrap(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(PooledFile { pool: Arc::clone(&self.pool), held: RwLock::new(Held::Open(file)) })
    }
}

impl Pool {
    /// Opens a file. If the process has no descriptor left, those that are kept only for later are given up.
    fn open(&self, open: impl Fn() -> io::Result<Arc<dyn DiskFile>>) -> io::Result<Arc<dyn DiskFile>> {
        match open() {
            Err(error) if is_out_of_files(&error) => {
                let kept = std::mem::take(&mut self.open.lock().files);
                if kept.is_empty() {
                    return Err(error);
                }
                drop(kept);
                open()
            }
            opened => opened,
        }
    }

    fn reopen(&self, path: &Arc<str>) -> io::Result<Arc<dyn DiskFile>> {
        let name_changes = {
            let mut open = self.open.lock();
            if let Some(at) = open.files.iter().position(|(of, _)| of == path)
                && let Some((path, file)) = open.files.remove(at)
            {
                open.files.push_back((path, Arc::clone(&file)));
                return Ok(file);
            }
            open.name_changes
        };
        let file = self.open(|| self.disk.open(path))?;
        let _oldest = {
            let mut open = self.open.lock();
            if open.name_changes == name_changes {
                open.files.push_back((Arc::clone(path), Arc::clone(&file)));
            }
            if open.files.len() > self.open_max { open.files.pop_front() } else { None }
        };
        Ok(file)
    }

    /// A file has gone from `path`. Were it kept open, its space would not be freed.
    fn forget(&self, path: &str) {
        let mut open = self.open.lock();
        open.name_changes += 1;
        let (gone, kept): (VecDeque<_>, _) = open.files.drain(..).partition(|(of, _)| **of == *path);
        open.files = kept;
        drop(open);
        // To close it may take long: that is when the file system frees its space.
        drop(gone);
    }
}

impl Disk for PooledDisk {
    fn name(&self) -> String {
        self.pool.disk.name()
    }

    fn lock(&self) -> io::Result<Box<dyn DiskLock>> {
        self.pool.disk.lock()
    }

    fn create_dir(&self, dir: &str) -> io::Result<()> {
        self.pool.disk.create_dir(dir)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.pool.disk.list(dir)
    }

    fn create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.pool.open(|| self.pool.disk.create(path)).map(|file| self.wrap(file))
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.pool.open(|| self.pool.disk.open(path)).map(|file| self.wrap(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let renamed = self.pool.disk.rename(from, to);
        self.pool.forget(from);
        self.pool.forget(to);
        renamed
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let removed = self.pool.disk.remove(path);
        self.pool.forget(path);
        removed
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.pool.disk.sync_dir(dir)
    }
}

impl PooledFile {
    fn file(&self) -> io::Result<Arc<dyn DiskFile>> {
        match &*self.held.read() {
            Held::Open(file) => Ok(Arc::clone(file)),
            Held::Released(path) => self.pool.reopen(path),
        }
    }
}

impl DiskFile for PooledFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        self.file()?.read_at(buf, at)
    }

    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<()> {
        self.file()?.write_at(buf, at)
    }

    fn allocate(&self, bytes: u64) -> io::Result<Room> {
        self.file()?.allocate(bytes)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file()?.set_len(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file()?.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.file()?.len()
    }

    fn uncache(&self, from: u64, to: u64) {
        if let Ok(file) = self.file() {
            file.uncache(from, to);
        }
    }

    fn release(&self, path: &str) {
        let before = std::mem::replace(&mut *self.held.write(), Held::Released(path.into()));
        drop(before);
    }
}

#[cfg(test)]
mod tests {
    use super::super::FaultyDisk;
    use super::*;

    fn disk_with(files: usize) -> (FaultyDisk, PooledDisk, Vec<Arc<dyn DiskFile>>) {
        let faulty = FaultyDisk::new();
        let disk = PooledDisk::new(Arc::new(faulty.clone()), 3);
        let made = (0..files).map(|n| {
            let file = disk.create(&n.to_string()).unwrap();
            file.write_at(&[n as u8], 0).unwrap();
            file.release(&n.to_string());
            file
        });
        let made = made.collect();
        (faulty, disk, made)
    }

    fn byte(file: &Arc<dyn DiskFile>) -> io::Result<u8> {
        let mut byte = [0];
        file.read_at(&mut byte, 0).map(|_| byte[0])
    }

    #[test]
    fn however_many_files_are_read_few_are_open() {
        let (faulty, _disk, files) = disk_with(20);
        assert_eq!(faulty.open_files(), 0);
        for _ in 0..2 {
            for (n, file) in files.iter().enumerate() {
                assert_eq!(byte(file).unwrap(), n as u8);
                assert!(faulty.open_files() <= 3);
            }
        }
        assert_eq!(faulty.open_files(), 3);
    }

    #[test]
    fn a_file_that_is_gone_is_not_kept_open() {
        let (faulty, disk, files) = disk_with(2);
        assert!(files.iter().all(|file| byte(file).is_ok()));
        disk.remove("0").unwrap();
        disk.rename("1", "2").unwrap();
        assert_eq!(faulty.open_files(), 0);
        assert_eq!(byte(&files[0]).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(byte(&files[1]).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_is_kept_for_later_gives_way_when_descriptors_are_short() {
        let (faulty, disk, files) = disk_with(4);
        assert!(files[..3].iter().all(|file| byte(file).is_ok()));
        faulty.set_open_files_max(Some(3));
        assert_eq!(byte(&files[3]).unwrap(), 3);
        let written: Vec<_> = ["a", "b", "c"].map(|path| disk.create(path).unwrap()).into();
        assert!(is_out_of_files(&disk.create("d").unwrap_err()));
        drop(written);
        assert_eq!(byte(&files[0]).unwrap(), 0);
    }
}
