//! What the operating system says about this process and its disk.

use std::path::Path;

/// Resident memory of this process, or 0 where the system does not say.
pub(crate) fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.map_or(0, |pages| pages * rustix::param::page_size() as u64)
}

/// Bytes that may still be written where `path` is, if the system says so.
pub(crate) fn disk_free_bytes(path: &Path) -> Option<u64> {
    rustix::fs::statvfs(path).ok().map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize))
}
