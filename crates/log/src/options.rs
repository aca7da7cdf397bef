//! How the log is set up, and how an append wants to be treated.

use std::time::Duration;

use crate::error::OpenError;
use crate::header::HEADER_BYTES;

/// Default size of a segment file.
pub const SEGMENT_BYTES_DEFAULT: u32 = 64 * 1024 * 1024;
/// A header block and room for some frames; such small segments are for tests.
pub const SEGMENT_BYTES_MIN: u32 = 3 * HEADER_BYTES;
/// Positions are 32-bit, and a scan reads a segment whole.
pub const SEGMENT_BYTES_MAX: u32 = 1024 * 1024 * 1024;

/// The largest frame, whatever the size of a segment: the largest message (128 MiB) with its properties, and
/// what a batch of smaller ones needs around it. A frame is encoded and read back in one piece of memory.
pub const FRAME_BYTES_MAX: usize = 160 * 1024 * 1024;

/// Settings of a log. They may differ from one opening to the next.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Size of a segment file. A frame that does not fit gets a segment of its own, as large as it needs.
    pub segment_bytes: u32,
    /// Written bytes are synced at least this often although nobody waits; `None` leaves it to the system.
    pub background_sync: Option<Duration>,
    /// How many files of retired segments are kept for reuse.
    pub spare_segments_max: usize,
    /// How long an append that nobody waits for may stay in memory.
    pub lazy_write_delay: Duration,
    /// Room in the last segment that [`Claim::Normal`] appends may not use once the disk is full. `None` is an
    /// eighth of a segment.
    pub reserve_bytes: Option<u32>,
    /// Whether to open a log some of whose files are missing, without what was in them.
    pub accept_loss: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            segment_bytes: SEGMENT_BYTES_DEFAULT,
            background_sync: Some(Duration::from_millis(200)),
            spare_segments_max: 4,
            lazy_write_delay: Duration::from_millis(10),
            reserve_bytes: None,
            accept_loss: false,
        }
    }
}

/// The part of the reserve that is kept for checkpoints: one in four.
const CHECKPOINT_SHARE: u32 = 4;

impl LogOptions {
    /// What an append must leave free in the last segment.
    pub(crate) fn keep_bytes(&self, claim: Claim) -> u32 {
        match claim {
            Claim::Normal => self.reserve_bytes(),
            Claim::Reserved => self.reserve_bytes() / CHECKPOINT_SHARE,
            Claim::Checkpoint => 0,
        }
    }

    /// The reserve in bytes.
    #[must_use]
    pub fn reserve_bytes(&self) -> u32 {
        self.reserve_bytes.unwrap_or(self.segment_bytes / 8)
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes) {
            return Err(OpenError::BadOption {
                option: "segment_bytes",
                value: u64::from(self.segment_bytes),
                demand: "from 12288 (12 KiB) to 1073741824 (1 GiB)",
            });
        }
        if self.reserve_bytes() > self.segment_bytes / 2 {
            return Err(OpenError::BadOption {
                option: "reserve_bytes",
                value: u64::from(self.reserve_bytes()),
                demand: "at most half of segment_bytes",
            });
        }
        Ok(())
    }
}

/// Who waits for an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Nobody. It goes out with the next group, or after [`LogOptions::lazy_write_delay`].
    Lazy,
    /// Somebody waits for it to be written, not for a sync.
    Written,
    /// Somebody waits for it to be synced.
    Synced,
}

/// Whether an append may wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Until there is room, on the caller's thread.
    Wait,
    /// It is refused instead, as [`AppendError::Busy`](crate::AppendError::Busy).
    Refuse,
    /// It is refused instead, but later than others. Such appends are small and make others move on, so they have some
    /// room that the others leave to them.
    RefuseLast,
}

/// What an append may use when the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Not the reserve: what brings in more data, such as a push.
    Normal,
    /// Also the reserve, but for the part that is kept for checkpoints: what leads to space being freed, such as an
    /// acknowledgement.
    Reserved,
    /// All there is: a checkpoint's snapshots and manifest. Without them nothing is freed, whatever is acknowledged.
    Checkpoint,
}
