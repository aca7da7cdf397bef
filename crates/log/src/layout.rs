//! The data directory: what is called what, and whether it is ours at all.

use std::io;
use std::sync::Arc;

use nexo_types::SegmentId;

use crate::disk::{Disk, DiskLock};
use crate::error::OpenError;
use crate::inventory;

pub(crate) const SEGMENTS: &str = "segments";
pub(crate) const SPARE: &str = "spare";
pub(crate) const DAMAGED: &str = "damaged";
/// The list of segments; see `inventory`.
pub(crate) const INVENTORY: &str = "INVENTORY";

const FORMAT: &str = "FORMAT";
const FORMAT_NEW: &str = "FORMAT.new";
const FORMAT_NAME: &str = "nexo-data";
const FORMAT_VERSION: u32 = 9;
/// The oldest version whose data is read. It has no batches that share messages; version 3 has no messages that are dying.
const FORMAT_VERSION_MIN: u32 = 2;
/// Longer than any FORMAT file of ours.
const FORMAT_BYTES_MAX: usize = 256;

/// What an opening that was cut off may have left behind before it wrote `FORMAT`, what file systems put into a new volume by
/// themselves, and what a node of a cluster writes down of itself before it has any data, or keeps of damaged data that came anew.
const HARMLESS: [&str; 10] = [
    "LOCK",
    FORMAT_NEW,
    INVENTORY,
    SEGMENTS,
    SPARE,
    DAMAGED,
    "lost+found",
    "cluster.json",
    "cluster.json.new",
    "set-aside",
];

pub(crate) fn segment_path(id: SegmentId) -> String {
    format!("{SEGMENTS}/{id}.seg")
}

/// The segment that a file in [`SEGMENTS`] is named after.
pub(crate) fn parse_segment_name(name: &str) -> Option<SegmentId> {
    let digits = name.strip_suffix(".seg")?;
    let id = SegmentId(digits.parse().ok()?);
    (id.to_string() == digits && id.0 > 0).then_some(id)
}

/// Puts a name to what failed.
pub(crate) fn io_error(disk: &dyn Disk, action: impl Into<String>) -> impl FnOnce(io::Error) -> OpenError {
    let (dir, action) = (disk.name(), action.into());
    move |source| OpenError::Io { dir, action, source }
}

/// Makes sure that the directory is ours or empty, takes the lock, and lays out what is missing. Nothing is
/// changed in a directory that is not ours, and an older one keeps its mark until [`raise`].
pub(crate) fn claim(disk: &Arc<dyn Disk>) -> Result<Box<dyn DiskLock>, OpenError> {
    let found = inspect(&**disk)?;
    let lock = disk.lock().map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock => OpenError::InUse { dir: disk.name() },
        _ => io_error(&**disk, "lock LOCK")(source),
    })?;
    lay_out(&**disk, found).map_err(io_error(&**disk, "create files"))?;
    Ok(lock)
}

/// What a directory that may be used holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Nothing yet.
    New,
    /// Data of a version that is read.
    Data,
}

/// What the directory holds, if it may be used at all.
fn inspect(disk: &dyn Disk) -> Result<Found, OpenError> {
    let names = disk.list("").map_err(io_error(disk, "list files"))?;
    if names.iter().any(|name| name == FORMAT) {
        return check_format(disk).map(|_| Found::Data);
    }
    let foreign = |found: &str| OpenError::Foreign { dir: disk.name(), found: found.to_owned() };
    if let Some(found) = names.iter().find(|name| !HARMLESS.contains(&name.as_str())) {
        return Err(foreign(found));
    }
    for dir in [SEGMENTS, SPARE, DAMAGED].iter().filter(|dir| names.iter().any(|name| name == *dir)) {
        if let Some(found) = disk.list(dir).map_err(io_error(disk, "list files"))?.first() {
            return Err(foreign(&format!("{dir}/{found}")));
        }
    }
    Ok(Found::New)
}

fn check_format(disk: &dyn Disk) -> Result<u32, OpenError> {
    let mut buf = [0; FORMAT_BYTES_MAX];
    let len = disk
        .open(FORMAT)
        .and_then(|file| file.read_at(&mut buf, 0))
        .map_err(io_error(disk, "read FORMAT"))?;
    let text = String::from_utf8_lossy(&buf[..len]);
    let text = text.trim_end();
    let version = text
        .strip_prefix(FORMAT_NAME)
        .and_then(|rest| rest.strip_prefix(' '))
        .and_then(|version| version.parse::<u32>().ok());
    match version {
        Some(version @ FORMAT_VERSION_MIN..=FORMAT_VERSION) => Ok(version),
        Some(found) if found > FORMAT_VERSION => {
            Err(OpenError::Newer { dir: disk.name(), found, supported: FORMAT_VERSION })
        }
        Some(_) | None => Err(OpenError::UnknownFormat { dir: disk.name(), found: text.to_owned() }),
    }
}

/// Marks a directory of an older version as one of this version. Its own release could go on with it until then.
pub(crate) fn raise(disk: &dyn Disk) -> Result<(), OpenError> {
    if check_format(disk)? == FORMAT_VERSION {
        return Ok(());
    }
    write_format(disk).map_err(io_error(disk, "replace FORMAT"))
}

/// `FORMAT` comes last: as long as it is missing, the directory still counts as new.
fn lay_out(disk: &dyn Disk, found: Found) -> io::Result<()> {
    for dir in [SEGMENTS, SPARE, DAMAGED] {
        disk.create_dir(dir)?;
    }
    match found {
        Found::New => {
            inventory::set_up(disk)?;
            write_format(disk)
        }
        Found::Data => disk.sync_dir(""),
    }
}

/// Writes `FORMAT` whole, or leaves the one that is there.
fn write_format(disk: &dyn Disk) -> io::Result<()> {
    let file = disk.create(FORMAT_NEW)?;
    file.write_at(format!("{FORMAT_NAME} {FORMAT_VERSION}\n").as_bytes(), 0)?;
    file.sync_data()?;
    disk.sync_dir("")?;
    disk.rename(FORMAT_NEW, FORMAT)?;
    disk.sync_dir("")
}
