//! What the operating system says about this process and its disk.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use rustix::process::{Resource, getrlimit};

/// What this node is called, as tools of RabbitMQ's show it: the machine's name after `nexo@`.
#[must_use]
pub fn node_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let is_part = |character: &char| character.is_ascii_alphanumeric() || "-._".contains(*character);
        let name: String = name.trim().chars().filter(is_part).collect();
        format!("nexo@{}", if name.is_empty() { "localhost" } else { &name })
    })
}

/// What the operating system says about this process. A figure is 0 where the system does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessStats {
    /// Resident memory.
    pub resident_bytes: u64,
    /// Time of all processors that was used, in seconds.
    pub cpu_s: f64,
    /// Descriptors that are open.
    pub open_fds: u64,
    /// Descriptors that may be open.
    pub max_fds: u64,
    /// When the process was started, in seconds since 1970.
    pub started_at_s: f64,
}

impl ProcessStats {
    /// The figures now.
    #[must_use]
    pub fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let (cpu_s, up_since_s) = times(&stat).unwrap_or_default();
        let boot_s = fs::read_to_string("/proc/stat").ok().and_then(|text| boot_time(&text));
        Self {
            resident_bytes: resident_bytes().unwrap_or(0),
            cpu_s,
            // The directory that is read is a descriptor itself.
            open_fds: fs::read_dir("/proc/self/fd").map_or(0, |open| open.count().saturating_sub(1) as u64),
            max_fds: getrlimit(Resource::Nofile).current.unwrap_or(0),
            started_at_s: boot_s.map_or(0.0, |boot| boot + up_since_s),
        }
    }
}

/// Processor time, and the time from the machine's start to the process's, from `/proc/self/stat`.
fn times(stat: &str) -> Option<(f64, f64)> {
    // The name of the program is in brackets and may hold anything; after it the third field begins.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let user: f64 = fields.nth(11)?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    let started: f64 = fields.nth(6)?.parse().ok()?;
    Some(((user + system) / ticks, started / ticks))
}

/// When the machine was started, from `/proc/stat`.
fn boot_time(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Resident memory of this process, where the system says it. It is asked for many times a second, so the file stays open.
pub(crate) fn resident_bytes() -> Option<u64> {
    static STATM: OnceLock<File> = OnceLock::new();
    if STATM.get().is_none() {
        // Two at the same time may both open it; one of the two stays.
        let _ = STATM.set(File::open("/proc/self/statm").ok()?);
    }
    let statm = STATM.get()?;
    let mut bytes = [0; 256];
    let read = statm.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes[..read]).ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Bytes that may still be written where `path` is, if the system says so.
pub(crate) fn disk_free_bytes(path: &Path) -> Option<u64> {
    rustix::fs::statvfs(path).ok().map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_program_may_hold_anything() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 150 0 0 20 0 9 0 500 1 2";
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(times(stat), Some((400.0 / ticks, 500.0 / ticks)));
        assert_eq!(times("garbage"), None);
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\nprocesses 1\n"), Some(1_700_000_000.0));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_figures() {
        let first = ProcessStats::read();
        let file = fs::File::open("/proc/self/stat").unwrap();
        let second = ProcessStats::read();
        // Other tests run in this process and open files as well.
        assert!(first.open_fds > 0 && second.max_fds >= second.open_fds, "{second:?}");
        assert!(second.resident_bytes > 0 && second.cpu_s >= first.cpu_s, "{second:?}");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        assert!(
            second.started_at_s > now - 86_400.0 && second.started_at_s < now + 2.0,
            "{second:?} at {now}"
        );
        drop(file);
    }
}
