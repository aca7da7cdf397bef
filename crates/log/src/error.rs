//! What can go wrong, one type for each thing that is asked of the log.

use std::fmt;
use std::io;
use std::sync::Arc;

use nexo_types::{Position, QueueId, SegmentId};
use rustix::io::Errno;
use thiserror::Error;

/// Whether a file could not be opened because the process or the system has too many open.
pub(crate) fn is_out_of_files(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Whether there is no space: the disk is full, or what the process may use of it.
pub(crate) fn is_out_of_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether something was short that may be there again later: space, or descriptors. Nothing is wrong with what was
/// written before, and trying again is safe, unless a sync said so.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    is_out_of_space(error) || is_out_of_files(error)
}

/// Why a data directory could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process holds the lock.
    #[error("data directory '{dir}' is in use by another process; only one may use it at a time")]
    InUse {
        /// The directory.
        dir: String,
    },
    /// There are files but no `FORMAT`.
    #[error(
        "'{dir}' is not a Nexo data directory: it holds '{found}' but no FORMAT file; name an empty directory or one made by Nexo"
    )]
    Foreign {
        /// The directory.
        dir: String,
        /// One of the things in it.
        found: String,
    },
    /// `FORMAT` says something else than a Nexo data format.
    #[error("'{dir}' is not a Nexo data directory: its FORMAT file says '{found}'")]
    UnknownFormat {
        /// The directory.
        dir: String,
        /// What the file says.
        found: String,
    },
    /// The data was written by a later release.
    #[error(
        "data directory '{dir}' has format version {found}; this release reads up to version {supported}, so a newer one is needed"
    )]
    Newer {
        /// The directory.
        dir: String,
        /// The version that the directory names.
        found: u32,
        /// The newest version this release knows.
        supported: u32,
    },
    /// An option makes no sense.
    #[error("{option} is {value}; it must be {demand}")]
    BadOption {
        /// Which one.
        option: &'static str,
        /// What was given.
        value: u64,
        /// What is allowed.
        demand: &'static str,
    },
    /// Files that must be there are not.
    #[error(
        "data directory '{dir}' is not complete: {} missing; put the files back, or start with accept-loss to go on without what was in them", missing_segments(.segments)
    )]
    Missing {
        /// The directory.
        dir: String,
        /// The segments whose files are gone.
        segments: Vec<SegmentId>,
    },
    /// The disk has no room for even a small segment.
    #[error("no space left in data directory '{dir}': not even {bytes} bytes for a new segment")]
    NoSpace {
        /// The directory.
        dir: String,
        /// What was asked for at last.
        bytes: u64,
    },
    /// The disk failed.
    #[error("cannot {action} in data directory '{dir}': {source}")]
    Io {
        /// The directory.
        dir: String,
        /// What was being done.
        action: String,
        /// What the disk said.
        source: io::Error,
    },
}

/// How many segments an error names one by one.
const NAMED_MAX: usize = 20;

fn missing_segments(segments: &[SegmentId]) -> String {
    let named: Vec<String> = segments.iter().take(NAMED_MAX).map(|id| format!("segments/{id}.seg")).collect();
    let more = segments.len().saturating_sub(NAMED_MAX);
    let and_more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{and_more} {}", named.join(", "), if segments.len() == 1 { "is" } else { "are" })
}

/// Why a frame was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AppendError {
    /// No room, now. Nothing was written; try again when space was freed.
    #[error("the disk is full: {reason}")]
    Full {
        /// What the disk said, and when it was asked.
        reason: Arc<str>,
    },
    /// An earlier write or sync failed, and nothing can be promised any more.
    #[error("the log has failed and takes no more writes: {reason}")]
    Failed {
        /// What failed first, after which nothing more is taken.
        reason: Arc<str>,
    },
    /// A frame has a largest size.
    #[error("a frame of {bytes} bytes is too large for the log, which takes at most {max}")]
    TooLarge {
        /// The length of the frame, in bytes.
        bytes: usize,
        /// The longest frame, in bytes.
        max: usize,
    },
    /// It would have had to wait, and was told not to: see [`Patience`](crate::Patience).
    #[error("the disk is behind")]
    Busy,
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
}

/// Why a promise about appended frames could not be kept, or a segment not be retired.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LogError {
    /// A write or sync failed; whether the frame is on disk is not known.
    #[error("the log has failed: {reason}")]
    Failed {
        /// What failed first, after which nothing more is taken.
        reason: Arc<str>,
    },
    /// The log was closed before.
    #[error("the log is closed")]
    Closed,
    /// Only sealed segments can be retired.
    #[error("segment {segment} is not sealed yet and cannot be retired")]
    NotSealed {
        /// The segment's id.
        segment: SegmentId,
    },
    /// There is no such segment.
    #[error("there is no segment {segment}")]
    NoSegment {
        /// The segment's id.
        segment: SegmentId,
    },
}

/// Why something could not be read back.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The bytes are not what was written.
    #[error("segment {} is damaged at byte {}: {fact}", .at.segment, .at.byte)]
    Damaged {
        /// The position that was read.
        at: Position,
        /// What is wrong with it.
        fact: &'static str,
    },
    /// The segment is gone, since nothing in it was needed.
    #[error("segment {segment} was retired")]
    Retired {
        /// The segment's id.
        segment: SegmentId,
    },
    /// No frame starts there: the position lies past the end of the log or in a segment's header.
    #[error("the log holds no frame at {at}")]
    NoFrame {
        /// The position that was read.
        at: Position,
    },
    /// The disk failed.
    #[error("cannot read segment {segment}: {reason}")]
    Io {
        /// The segment's id.
        segment: SegmentId,
        /// What the disk said.
        reason: Arc<str>,
    },
}

/// A stretch of the log that was durable once and cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where it starts.
    pub at: Position,
    /// Where the next good frame starts, or where the segment's frames end.
    pub end: u32,
    /// What is wrong.
    pub fact: String,
    /// Where a copy of the damaged bytes was put, relative to the data directory, if that was possible.
    pub copy: Option<String>,
    /// How many messages of each queue lay there, if the segment's index tells. Some of them may have been
    /// settled.
    pub lost: Option<Vec<(QueueId, u64)>>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {} at byte {}: {}", self.at.segment, self.at.byte, self.fact)
    }
}
