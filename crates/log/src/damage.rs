//! What is known of damage since the log was opened: each place once, with a copy of its bytes in `damaged/`.
//!
//! Damage costs the frames it touches and no others: reading goes on at the next frame that verifies. What lay
//! between is counted from the segment's index, where that is whole.

use std::collections::BTreeMap;
use std::io;

use nexo_types::{Position, QueueId, SegmentId};
use parking_lot::Mutex;
use tracing::{error, warn};

use crate::disk::Disk;
use crate::error::{Damage, ReadError};
use crate::layout::{DAMAGED, SEGMENTS, segment_path};
use crate::read;
use crate::scan;
use crate::segment::Segment;
use crate::shared::LogInner;
use crate::stats::add;

/// Places that are remembered one by one. Further ones are counted; a disk with so many is beyond copies.
const PLACES_MAX: usize = 10_000;
/// Files kept in `damaged/`: enough to look into what happened, without filling the disk.
const COPIES_MAX: usize = 1_000;
/// The most that is kept of one damaged stretch.
const COPY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Damage found since the log was opened.
#[derive(Debug, Default)]
pub(crate) struct KnownDamage(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    first: Option<String>,
    by_start: BTreeMap<Position, Damage>,
}

impl KnownDamage {
    /// Starts with what opening found.
    pub(crate) fn new(found: &[Damage]) -> Self {
        let known = Self::default();
        for damage in found {
            known.add(damage.clone());
        }
        known
    }

    /// The first place that was found, in words.
    pub(crate) fn first(&self) -> Option<String> {
        self.0.lock().first.clone()
    }

    /// What is known of the stretch that this position lies in.
    fn around(&self, at: Position) -> Option<Damage> {
        let places = self.0.lock();
        let (start, damage) = places.by_start.range(..=at).next_back()?;
        let covers = start.segment == at.segment && (*start == at || at.byte < damage.end);
        covers.then(|| damage.clone())
    }

    fn add(&self, damage: Damage) {
        let mut places = self.0.lock();
        places.first.get_or_insert_with(|| damage.to_string());
        if places.by_start.len() < PLACES_MAX {
            places.by_start.insert(damage.at, damage);
        }
    }
}

impl LogInner {
    /// Takes note of damage at `at`, once, and says how far it goes.
    ///
    /// # Errors
    /// When the segment cannot be read to find out.
    pub(crate) fn note_damage(&self, segment: &Segment, at: u32, fact: &str) -> Result<Damage, ReadError> {
        let position = segment.position(at);
        if let Some(known) = self.known_damage.around(position) {
            return Ok(known);
        }
        let bytes = read::whole_file(&*segment.file, segment.file_bytes())
            .map_err(|error| ReadError::Io { segment: segment.id(), reason: error.to_string().into() })?;
        if segment.is_retired() {
            return Err(ReadError::Retired { segment: segment.id() });
        }
        let frames_end = segment.frames_end();
        let end = scan::next_frame(&bytes, segment.header.salt, at + 1, frames_end).unwrap_or(frames_end);
        let lost = self.messages_between(segment, at, end);
        let copy = keep_copy(&*self.disk, segment.id(), at, end, &bytes);
        let damage = Damage { at: position, end, fact: fact.to_owned(), copy, lost };
        self.add_damage(&damage);
        Ok(damage)
    }

    /// Takes note of an index that cannot be read. Nothing is lost with it.
    pub(crate) fn note_damaged_footer(&self, at: Position, fact: &'static str) {
        if self.known_damage.around(at).is_none() {
            let fact = format!("{fact}; the segment is read instead");
            self.add_damage(&Damage { at, end: at.byte, fact, copy: None, lost: Some(Vec::new()) });
        }
    }

    pub(crate) fn add_damage(&self, damage: &Damage) {
        let copy = damage.copy.as_deref().unwrap_or("nowhere");
        error!(at = %damage.at, end = damage.end, fact = %damage.fact, copy, "the log is damaged");
        add(&self.metrics.damage, 1);
        self.known_damage.add(damage.clone());
    }

    /// Takes note of the damage behind an error, if it is that.
    pub(crate) fn noted<T>(&self, segment: &Segment, result: Result<T, ReadError>) -> Result<T, ReadError> {
        match result {
            Err(ReadError::Damaged { at, fact }) => {
                self.note_damage(segment, at.byte, fact)?;
                Err(ReadError::Damaged { at, fact })
            }
            other => other,
        }
    }
}

/// Keeps the damaged bytes from `at` to `end` and says where. That it fails is no reason not to go on.
pub(crate) fn keep_copy(disk: &dyn Disk, id: SegmentId, at: u32, end: u32, file: &[u8]) -> Option<String> {
    let end = (end as usize).min(file.len()).min((at as usize).saturating_add(COPY_BYTES_MAX));
    let bytes = file.get(at as usize..end).filter(|bytes| !bytes.is_empty())?;
    let name = format!("{id}-{at}-{end}.part");
    match write_copy(disk, &name, bytes) {
        Ok(copied) => copied.then(|| format!("{DAMAGED}/{name}")),
        Err(error) => {
            warn!(segment = %id, %error, "cannot keep a copy of damaged bytes");
            None
        }
    }
}

fn write_copy(disk: &dyn Disk, name: &str, bytes: &[u8]) -> io::Result<bool> {
    let names = disk.list(DAMAGED)?;
    // The same damage is met at every start; one copy of it is enough.
    if names.iter().any(|known| known == name) {
        return Ok(true);
    }
    if names.len() >= COPIES_MAX {
        warn!(name, max = COPIES_MAX, "damaged/ is full; no copy is kept");
        return Ok(false);
    }
    let to = disk.create(&format!("{DAMAGED}/{name}"))?;
    to.write_at(bytes, 0)?;
    to.sync_data()?;
    disk.sync_dir(DAMAGED)?;
    Ok(true)
}

/// Moves a segment file of which nothing can be read to `damaged/`. It stays where it is if that fails.
pub(crate) fn move_aside(disk: &dyn Disk, id: SegmentId) -> io::Result<String> {
    let names = disk.list(DAMAGED)?;
    let mut name = format!("{id}.seg");
    for n in 1.. {
        if !names.contains(&name) {
            break;
        }
        name = format!("{id}-{n}.seg");
    }
    let path = format!("{DAMAGED}/{name}");
    disk.rename(&segment_path(id), &path)?;
    disk.sync_dir(DAMAGED)?;
    disk.sync_dir(SEGMENTS)?;
    Ok(path)
}

/// Sums up messages by queue.
#[derive(Debug, Default)]
pub(crate) struct LostCount(BTreeMap<QueueId, u64>);

impl LostCount {
    pub(crate) fn add(&mut self, queue: QueueId, count: u64) {
        if count > 0 {
            *self.0.entry(queue).or_default() += count;
        }
    }

    pub(crate) fn into_vec(self) -> Vec<(QueueId, u64)> {
        self.0.into_iter().collect()
    }
}
