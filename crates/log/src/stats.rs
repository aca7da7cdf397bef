//! Figures about the log, kept in atomics by those who do the work and read as a whole by whoever asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets for the time of one sync, in microseconds.
pub const SYNC_MICROS_BOUNDS: [u64; 14] =
    [50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 102_400, 409_600, 1_638_400];
/// Upper bounds of the buckets for the number of frames in one group.
pub const GROUP_FRAMES_BOUNDS: [u64; 12] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 4_096];

/// Whether the log can take and keep what is appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogHealth {
    /// Yes.
    Ok,
    /// The disk has no room for another segment. The log looks for room by itself.
    Full {
        /// What the disk said.
        reason: Arc<str>,
    },
    /// A write or sync failed; the log takes nothing more until it is opened again.
    Failed {
        /// The first failure.
        reason: Arc<str>,
    },
}

/// A histogram as Prometheus wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Upper bounds of the buckets.
    pub bounds: &'static [u64],
    /// For each bound how many values were at most that, and last how many there were.
    pub cumulative: Vec<u64>,
    /// The sum of all values.
    pub sum: u64,
}

/// Figures since the log was opened, and its present state.
#[derive(Clone, Debug)]
pub struct LogStats {
    /// Frames appended.
    pub frames: u64,
    /// Bytes of those frames.
    pub frame_bytes: u64,
    /// Groups written.
    pub groups: u64,
    /// Bytes written, commit markers included.
    pub written_bytes: u64,
    /// Syncs of frames.
    pub syncs: u64,
    /// Segments sealed.
    pub seals: u64,
    /// Segments retired.
    pub retired: u64,
    /// Damaged places found, at opening and since.
    pub damage: u64,
    /// The first of them, in words.
    pub damage_first: Option<String>,
    /// Time of each sync in microseconds.
    pub sync_micros: Histogram,
    /// Frames of each group.
    pub group_frames: Histogram,
    /// Segments that hold frames or will next.
    pub segments: usize,
    /// Of these, the sealed ones.
    pub sealed_segments: usize,
    /// Files waiting to be used again.
    pub spare_segments: usize,
    /// The length of all segment files together, spare ones included.
    pub disk_bytes: u64,
    /// Whether the log works.
    pub health: LogHealth,
}

#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) frames: AtomicU64,
    pub(crate) frame_bytes: AtomicU64,
    pub(crate) groups: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) seals: AtomicU64,
    pub(crate) retired: AtomicU64,
    pub(crate) damage: AtomicU64,
    sync_micros: Buckets<15>,
    group_frames: Buckets<13>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            frames: AtomicU64::new(0),
            frame_bytes: AtomicU64::new(0),
            groups: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            seals: AtomicU64::new(0),
            retired: AtomicU64::new(0),
            damage: AtomicU64::new(0),
            sync_micros: Buckets::new(&SYNC_MICROS_BOUNDS),
            group_frames: Buckets::new(&GROUP_FRAMES_BOUNDS),
        }
    }
}

impl Metrics {
    pub(crate) fn group_written(&self, frames: u64, bytes: u64) {
        add(&self.groups, 1);
        add(&self.written_bytes, bytes);
        self.group_frames.observe(frames);
    }

    pub(crate) fn synced(&self, took: Duration) {
        self.sync_micros.observe(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// The figures that do not depend on the log's state.
    pub(crate) fn read(&self, health: LogHealth) -> LogStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let sync_micros = self.sync_micros.read();
        LogStats {
            frames: get(&self.frames),
            frame_bytes: get(&self.frame_bytes),
            groups: get(&self.groups),
            written_bytes: get(&self.written_bytes),
            syncs: sync_micros.cumulative.last().copied().unwrap_or(0),
            seals: get(&self.seals),
            retired: get(&self.retired),
            damage: get(&self.damage),
            damage_first: None,
            sync_micros,
            group_frames: self.group_frames.read(),
            segments: 0,
            sealed_segments: 0,
            spare_segments: 0,
            disk_bytes: 0,
            health,
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

#[derive(Debug)]
struct Buckets<const N: usize> {
    bounds: &'static [u64],
    counts: [AtomicU64; N],
    sum: AtomicU64,
}

impl<const N: usize> Buckets<N> {
    fn new(bounds: &'static [u64]) -> Self {
        assert_eq!(bounds.len() + 1, N, "one bucket more than bounds");
        Self { bounds, counts: std::array::from_fn(|_| AtomicU64::new(0)), sum: AtomicU64::new(0) }
    }

    fn observe(&self, value: u64) {
        add(&self.counts[self.bounds.partition_point(|bound| *bound < value)], 1);
        add(&self.sum, value);
    }

    fn read(&self) -> Histogram {
        let mut total = 0;
        let cumulative = self.counts.iter().map(|count| {
            total += count.load(Ordering::Relaxed);
            total
        });
        Histogram {
            bounds: self.bounds,
            cumulative: cumulative.collect(),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_up_to_each_bound() {
        let buckets: Buckets<13> = Buckets::new(&GROUP_FRAMES_BOUNDS);
        for value in [1, 2, 3, 9_999] {
            buckets.observe(value);
        }
        let histogram = buckets.read();
        assert_eq!(histogram.cumulative[..3], [1, 2, 3]);
        assert_eq!(histogram.cumulative.last(), Some(&4));
        assert_eq!(histogram.sum, 10_005);
    }
}
