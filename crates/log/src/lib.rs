//! Bytes on disk: one segmented, append-only log that is both the write-ahead log and the message store.
//!
//! The log stores *entries* (whose, of what kind, some bytes) in *frames* that are in the log whole or not at
//! all. It does not know what a payload means. It promises: what [`Log::synced`] has resolved for is there
//! after any crash, in order and without holes before it; what is read back is what was appended, or an error;
//! and what was cut never comes back.
//!
//! - [`Log`] is the handle. Appends go through `append` into a `group`, which the `writer` thread writes and
//!   syncs; `wait` tells those who wait. The `segment_manager` thread prepares segments and seals them. A frame larger
//!   than a segment takes another way in, `oversize`.
//! - `frame`, `entry`, `header` and `index` are the bytes, described in `docs/format.md`.
//! - `recovery` opens a log with the help of `scan`; `layout` knows the directory, `spares` the files to reuse,
//!   `inventory` which segments must be there.
//! - `read` and `lookup` find frames again; `damage` keeps account of what cannot be read.
//! - `regions` tells where the parts of a segment file lie, for tests that harm them.
//! - [`disk`] is everything below, with fakes that fail on command.

mod append;
mod damage;
pub mod disk;
mod entry;
mod error;
mod frame;
mod group;
mod header;
mod index;
mod inventory;
mod layout;
mod log;
mod lookup;
mod options;
mod oversize;
mod read;
mod recovery;
mod regions;
mod scan;
mod segment;
mod segment_manager;
mod shared;
mod spares;
mod stats;
mod wait;
mod writer;

pub use append::Appended;
pub use entry::{
    Entry, EntryKind, EntryRef, Frame, Span, decode_entries, encode_entries, encoded_len, walk_queues,
};
pub use error::{AppendError, Damage, LogError, OpenError, ReadError};
pub use index::FrameRef;
pub use log::{Log, OPEN_FILES_MAX, SEALED_FILES_OPEN_MAX, SegmentUsage};
pub use options::{
    Claim, FRAME_BYTES_MAX, LogOptions, Patience, SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN, Urgency,
};
pub use recovery::Recovered;
pub use regions::{Region, regions_of};
pub use stats::{GROUP_FRAMES_BOUNDS, Histogram, LogHealth, LogStats, SYNC_MICROS_BOUNDS};
pub use wait::Reached;
