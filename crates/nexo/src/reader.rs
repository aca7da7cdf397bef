//! Standard output, with the word of its reader: a message counts as handed over when whoever reads has read it.
//!
//! A pipe takes some 64 KiB before anybody reads, and when its reader goes (`nexo consume mail | head -5`) they are lost.
//! So while a pipe is written to, it is made as small as it can be, one page. Such a pipe says that it can be written to
//! when it is empty, that is, when the reader has taken all.

use std::io::{self, Stdout, Write};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;

/// Standard output and what is known of its reader.
#[derive(Debug)]
pub(crate) struct Reader {
    out: Stdout,
    /// The size that the pipe had, if it is one whose reader can be waited for.
    pipe_bytes: Option<usize>,
}

impl Reader {
    pub(crate) fn new() -> Self {
        let out = io::stdout();
        let pipe_bytes = shrink(&out);
        Self { out, pipe_bytes }
    }

    /// Writes `bytes` and waits until they were read, where that can be known.
    ///
    /// # Errors
    /// With [`io::ErrorKind::BrokenPipe`] if the reader is gone and has not read them.
    pub(crate) fn hand_over(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.out.flush()?;
        if self.pipe_bytes.is_none() {
            return Ok(());
        }
        loop {
            let mut fds = [PollFd::new(&self.out, PollFlags::OUT)];
            match poll(&mut fds, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let said = fds[0].revents();
            if said.contains(PollFlags::OUT) {
                return Ok(());
            }
            if said.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(bytes) = self.pipe_bytes {
            restore(&self.out, bytes);
        }
    }
}

/// Makes the pipe as small as it can be and gives back its size before; `None` if that is not possible.
#[cfg(target_os = "linux")]
fn shrink(out: &Stdout) -> Option<usize> {
    let kind = fstat(out).ok().map(|stat| FileType::from_raw_mode(stat.st_mode));
    if kind != Some(FileType::Fifo) {
        return None;
    }
    let before = rustix::pipe::fcntl_getpipe_size(out).ok()?;
    // The kernel rounds up to one page.
    rustix::pipe::fcntl_setpipe_size(out, 1).ok()?;
    Some(before)
}

#[cfg(target_os = "linux")]
fn restore(out: &Stdout, bytes: usize) {
    // Whoever writes next has a smaller pipe, which is slower and no worse.
    let _ = rustix::pipe::fcntl_setpipe_size(out, bytes);
}

#[cfg(not(target_os = "linux"))]
fn shrink(_: &Stdout) -> Option<usize> {
    None
}

#[cfg(not(target_os = "linux"))]
fn restore(_: &Stdout, _: usize) {}
