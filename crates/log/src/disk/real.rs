//! A directory of the file system.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Advice, FallocateFlags, FlockOperation, fadvise, fallocate, flock};

use super::{Disk, DiskFile, DiskLock, Room};

/// Directories are for the broker's own user: messages are nobody else's business.
const DIR_MODE: u32 = 0o700;
/// And so are files.
const FILE_MODE: u32 = 0o600;

/// Files in a directory, with real syncs.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
    /// Directories that were synced. They stay open: to make a name durable must not need another descriptor.
    dirs: Mutex<BTreeMap<String, Arc<File>>>,
}

#[derive(Debug)]
struct RealFile(File);

#[derive(Debug)]
struct RealLock {
    // The lock belongs to the open file and ends when it is closed.
    _file: File,
}

impl RealDisk {
    /// Uses the directory `root`, making it if it is not there.
    ///
    /// # Errors
    /// When the directory cannot be made or is not one.
    pub fn open(root: impl AsRef<Path>) -> io::Result<Self> {
        let root = root.as_ref();
        if root.is_dir() {
            tighten(root, DIR_MODE);
        } else {
            fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(root)?;
            if let Some(parent) = root.parent().filter(|p| !p.as_os_str().is_empty()) {
                File::open(parent)?.sync_all()?;
            }
        }
        Ok(Self { root: root.to_path_buf(), dirs: Mutex::default() })
    }

    fn path(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }
}

impl Disk for RealDisk {
    fn name(&self) -> String {
        self.root.display().to_string()
    }

    fn lock(&self) -> io::Result<Box<dyn DiskLock>> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let file = options.open(self.path("LOCK"))?;
        tighten(&self.path("LOCK"), FILE_MODE);
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(RealLock { _file: file }))
    }

    fn create_dir(&self, dir: &str) -> io::Result<()> {
        let path = self.path(dir);
        fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(&path)?;
        tighten(&path, DIR_MODE);
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path(dir))? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true).mode(FILE_MODE);
        let file = options.open(self.path(path))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path(path);
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        tighten(&path, FILE_MODE);
        Ok(Arc::new(RealFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.path(path))
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let kept = self.dirs.lock().get(dir).cloned();
        let opened = match kept {
            Some(opened) => opened,
            None => {
                let opened = Arc::new(File::open(self.path(dir))?);
                self.dirs.lock().insert(dir.to_owned(), Arc::clone(&opened));
                opened
            }
        };
        opened.sync_all()
    }
}

/// Takes away what others may do with a file or directory that was made before, or by hand. Where that is not
/// allowed, it is said.
fn tighten(path: &Path, mode: u32) {
    let Ok(metadata) = fs::metadata(path) else { return };
    let found = metadata.permissions().mode() & 0o7777;
    if found & !mode & 0o777 == 0 {
        return;
    }
    if let Err(error) = fs::set_permissions(path, fs::Permissions::from_mode(found & mode)) {
        let path = path.display();
        tracing::warn!(%path, mode = format_args!("{found:o}"), %error, "others can read the data, and that cannot be changed");
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.0.read_at(&mut buf[done..], at + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<()> {
        self.0.write_all_at(buf, at)
    }

    fn allocate(&self, bytes: u64) -> io::Result<Room> {
        match fallocate(&self.0, FallocateFlags::empty(), 0, bytes) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(Room::Unknown),
            Err(error) => Err(error.into()),
            Ok(()) => Ok(Room::Reserved),
        }
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn uncache(&self, from: u64, to: u64) {
        let Some(bytes) = to.checked_sub(from).and_then(std::num::NonZeroU64::new) else { return };
        // A hint: where the system does not take it, all is as before.
        if let Err(error) = fadvise(&self.0, from, Some(bytes), Advice::DontNeed) {
            tracing::debug!(%error, "the system keeps what was written in memory");
        }
    }
}

impl DiskLock for RealLock {}
