//! The disk that the data lies on, which can be filled and kept busy.
//!
//! A file system of our own, small enough to fill: ext4 in a file, or memory where that cannot be had. Both need the
//! right to mount; without it the data lies in a plain directory and the disk is never filled.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::Context;
use rustix::fs::{FallocateFlags, fallocate, statvfs};

/// Room for the data of any backlog that clients let grow, several times.
const VOLUME_BYTES: u64 = 1 << 30;

/// Where the data lies.
#[derive(Debug)]
pub(crate) struct Disk {
    path: PathBuf,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// ext4 in a file.
    Loop,
    /// Memory.
    Tmpfs,
    /// A directory among others.
    Plain,
}

/// A file that takes all room; dropping it gives the room back.
#[derive(Debug)]
pub(crate) struct Filler {
    path: PathBuf,
}

/// Somebody else who writes and syncs all the time; dropping it ends that.
#[derive(Debug)]
pub(crate) struct Storm {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    /// Makes one under `home`.
    pub(crate) fn make(home: &Path) -> anyhow::Result<Self> {
        let path = home.join("volume");
        fs::create_dir_all(&path).with_context(|| format!("cannot make '{}'", path.display()))?;
        let image = home.join("volume.ext4");
        let kind = if mount_image(&image, &path).is_some() {
            Kind::Loop
        } else if mount_memory(&path).is_some() {
            Kind::Tmpfs
        } else {
            Kind::Plain
        };
        Ok(Self { path, kind })
    }

    /// Lets go of what a run that was killed has left mounted under `home`.
    pub(crate) fn release(home: &Path) {
        // Mostly there is nothing, or not the right to unmount what cannot be mounted either.
        run("umount", &["--lazy".as_ref(), home.join("volume").as_os_str()]);
    }

    /// What it is, for the reader.
    pub(crate) const fn describe(&self) -> &'static str {
        match self.kind {
            Kind::Loop => "ext4 of 1 GiB in a file",
            Kind::Tmpfs => "tmpfs of 1 GiB (ext4 in a file cannot be mounted here)",
            Kind::Plain => "a plain directory (mounting is not permitted here: the disk is never filled)",
        }
    }

    /// Where the broker's data goes.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.path.join("data")
    }

    /// Takes all room; `None` where that would hit others.
    pub(crate) fn fill(&self) -> Option<io::Result<Filler>> {
        match self.kind {
            Kind::Loop | Kind::Tmpfs => Some(Filler::grow(self.path.join("filler"))),
            Kind::Plain => None,
        }
    }

    /// Writes and syncs in competition with the broker.
    pub(crate) fn disturb(&self) -> io::Result<Storm> {
        Storm::start(self.path.join("storm"))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.kind != Kind::Plain {
            // If somebody looks at it just now, it goes when they are done.
            run("umount", &["--lazy".as_ref(), self.path.as_os_str()]);
        }
    }
}

impl Filler {
    fn grow(path: PathBuf) -> io::Result<Self> {
        let filler = Self { path };
        filler.top_up()?;
        Ok(filler)
    }

    /// Takes room that has become free since.
    pub(crate) fn top_up(&self) -> io::Result<()> {
        let file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        let mut step = 64 << 20;
        // Smaller and smaller steps, until not even a block is left.
        while step >= 4096 {
            let len = file.metadata()?.len();
            let free = statvfs(&self.path)?.f_bavail;
            if free == 0 || fallocate(&file, FallocateFlags::empty(), len, step).is_err() {
                step /= 2;
            }
        }
        Ok(())
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        // Without it the run goes on with a full disk, and says that the broker is stuck.
        let _ = fs::remove_file(&self.path);
    }
}

impl Storm {
    fn start(path: PathBuf) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("storm".into()).spawn(move || {
            // A full disk may refuse; then there is no storm, and that is a fault of its own.
            let _ = blow(&path, &stopped);
            let _ = fs::remove_file(&path);
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

fn blow(path: &Path, stopped: &AtomicBool) -> io::Result<()> {
    let block = vec![0xA5; 1 << 20];
    let mut file = File::create(path)?;
    while !stopped.load(Ordering::Relaxed) {
        file.seek(SeekFrom::Start(0))?;
        for _ in 0..8 {
            file.write_all(&block)?;
        }
        // Truncating makes the next round allocate again, which keeps the journal busy as well.
        file.sync_all()?;
        file.set_len(0)?;
    }
    Ok(())
}

fn mount_image(image: &Path, path: &Path) -> Option<()> {
    File::create(image).and_then(|file| file.set_len(VOLUME_BYTES)).ok()?;
    let made =
        run("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), "-m".as_ref(), "0".as_ref(), image.as_os_str()])
            .and_then(|()| {
                run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), path.as_os_str()])
            });
    if made.is_none() {
        // It is of no use then.
        let _ = fs::remove_file(image);
    }
    made
}

fn mount_memory(path: &Path) -> Option<()> {
    let size = format!("size={VOLUME_BYTES}");
    run(
        "mount",
        &["-t".as_ref(), "tmpfs".as_ref(), "-o".as_ref(), size.as_ref(), "none".as_ref(), path.as_os_str()],
    )
}

/// Runs a program quietly; `None` if it is not there or fails.
fn run(program: &str, args: &[&std::ffi::OsStr]) -> Option<()> {
    let mut command = Command::new(program);
    let quiet = command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().ok().filter(std::process::ExitStatus::success).map(drop)
}
