//! A disk that does not keep what it was given: bytes of a sealed segment change while the broker is down.
//!
//! Mostly a message is hit that waits; it is lost then, and the broker must count it. Otherwise the place is left to chance:
//! it may be a snapshot, and then the checkpoint before it must do, or what nobody needs any more.
//!
//! Messages are found by their stamps, and frames by their lengths; nothing here believes what the broker says.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use memchr::memmem;

use crate::stamp::{HEADER, Stamp};

/// Where the seal of a segment lies in its file; see `docs/format.md`.
const SEAL_AT: usize = 2048;
const SEAL_MAGIC: &[u8] = b"NEXOSEAL";
/// Where in the seal it says how far the frames go.
const FRAMES_END_AT: usize = 20;
/// Where frames begin.
const FRAMES_AT: usize = 4096;
/// The length and the checksum of a frame.
const FRAME_HEAD_BYTES: usize = 8;
/// How many bytes change.
const BYTES: usize = 16;
/// Of four strikes, how many aim at a message that waits.
const AIMED_OF_FOUR: u8 = 3;
/// How far behind the name of its header a stamp begins, at most: protocols put types and lengths in between.
const STAMP_WITHIN: usize = 64;
/// No stamp is longer.
const STAMP_BYTES_MAX: usize = 80;

/// What was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strike {
    pub(crate) segment: String,
    pub(crate) at: usize,
    /// The message that was aimed at.
    pub(crate) aim: Option<Stamp>,
    /// The messages in the frames that were hit: no others can be lost by it.
    pub(crate) hit: Vec<Stamp>,
}

/// A segment's file.
#[derive(Debug)]
struct Segment {
    path: PathBuf,
    bytes: Vec<u8>,
    /// Where its frames end, if it is sealed and they can be told apart.
    frames_end: Option<usize>,
}

/// Changes some bytes of a sealed segment, but not of the last `spared`. `None` if there is none. `waits` says whether a
/// message is in a queue, as far as clients know.
pub(crate) fn strike(
    data_dir: &Path,
    chance: u64,
    spared: usize,
    waits: impl Fn(&Stamp) -> bool,
) -> anyhow::Result<Option<Strike>> {
    let mut rng = fastrand::Rng::with_seed(chance);
    let segments = read_segments(&data_dir.join("segments")).context("cannot look at the segments")?;
    let mut targets: Vec<usize> =
        (0..segments.len()).filter(|index| segments[*index].frames_end.is_some()).collect();
    targets.truncate(targets.len().saturating_sub(spared));
    let is_aimed = rng.u8(..4) < AIMED_OF_FOUR;
    let mut aims = if is_aimed { waiting(&segments, waits) } else { Vec::new() };
    aims.retain(|(index, ..)| targets.contains(index));
    let (index, at, aim) = match (rng.choice(&aims), rng.choice(&targets)) {
        (Some((index, at, stamp)), _) => (*index, *at, Some(*stamp)),
        (None, Some(index)) => {
            let end = segments[*index].frames_end.unwrap_or(FRAMES_AT);
            (*index, rng.usize(FRAMES_AT..end), None)
        }
        (None, None) => return Ok(None),
    };
    let segment = &segments[index];
    let name = segment.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    segment.change(at, &mut rng).with_context(|| format!("cannot damage '{name}'"))?;
    Ok(Some(Strike { segment: name, at, aim, hit: segment.hit(at) }))
}

/// Where messages lie that wait: the segment and the byte. Of one that was copied forward the last place counts.
fn waiting(segments: &[Segment], waits: impl Fn(&Stamp) -> bool) -> Vec<(usize, usize, Stamp)> {
    let mut places = HashMap::new();
    for (index, segment) in segments.iter().enumerate() {
        let stamps = stamps(&segment.bytes).filter(|(_, stamp)| waits(stamp));
        places.extend(stamps.map(|(at, stamp)| ((stamp.publisher, stamp.seq), (index, at, stamp))));
    }
    let mut places: Vec<_> = places.into_values().collect();
    // The same seed chooses the same of the same.
    places.sort_by_key(|(index, at, _)| (*index, *at));
    places
}

/// The stamps in these bytes, and where each begins.
fn stamps(bytes: &[u8]) -> impl Iterator<Item = (usize, Stamp)> {
    memmem::find_iter(bytes, HEADER).filter_map(|name| {
        let from = name + HEADER.len();
        (from..bytes.len().min(from + STAMP_WITHIN)).find_map(|at| {
            // Every protocol puts the length right before the text.
            let length = usize::from(bytes[at]).min(STAMP_BYTES_MAX);
            let text = bytes.get(at + 1..at + 1 + length)?;
            Some((at + 1, Stamp::parse(std::str::from_utf8(text).ok()?)?))
        })
    })
}

fn read_segments(dir: &Path) -> std::io::Result<Vec<Segment>> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(dir)? {
        paths.push(entry?.path());
    }
    paths.sort();
    paths.into_iter().map(Segment::read).collect()
}

impl Segment {
    fn read(path: PathBuf) -> std::io::Result<Self> {
        let bytes = fs::read(&path)?;
        let mut segment = Self { path, bytes, frames_end: None };
        segment.frames_end = segment.sealed_end().filter(|end| segment.frames(*end).last() == Some(*end));
        Ok(segment)
    }

    /// Where the seal says that frames end.
    fn sealed_end(&self) -> Option<usize> {
        let seal = self.bytes.get(SEAL_AT..)?.strip_prefix(SEAL_MAGIC)?;
        let end: [u8; 4] = *seal.get(FRAMES_END_AT - SEAL_MAGIC.len()..)?.first_chunk()?;
        usize::try_from(u32::from_le_bytes(end)).ok()
    }

    /// Where each frame ends. A frame whose length was damaged is the last, and does not end at `end`.
    fn frames(&self, end: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(FRAMES_AT), move |at| {
            let length: [u8; 4] = *self.bytes.get(*at..end)?.first_chunk()?;
            let next = at + FRAME_HEAD_BYTES + u32::from_le_bytes(length) as usize;
            (next <= end).then_some(next)
        })
        .skip(1)
    }

    /// The messages in the frames that a change of these bytes hits.
    fn hit(&self, at: usize) -> Vec<Stamp> {
        let end = self.frames_end.unwrap_or(FRAMES_AT);
        let first = self.frames(end).take_while(|end| *end <= at).last().unwrap_or(FRAMES_AT);
        let last = self.frames(end).find(|end| *end >= at + BYTES).unwrap_or(end);
        stamps(&self.bytes[first..last]).map(|(_, stamp)| stamp).collect()
    }

    fn change(&self, at: usize, rng: &mut fastrand::Rng) -> std::io::Result<()> {
        let changed: Vec<u8> =
            self.bytes.iter().skip(at).take(BYTES).map(|byte| byte ^ rng.u8(1..)).collect();
        let file: File = OpenOptions::new().write(true).open(&self.path)?;
        file.write_all_at(&changed, at as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::tests::stamp;

    /// A sealed segment of one frame for each of these messages.
    fn segment(messages: &[Stamp]) -> Vec<u8> {
        let mut file = vec![0; FRAMES_AT];
        for message in messages {
            let text = message.to_string();
            let mut payload = vec![7; 300];
            payload.extend_from_slice(HEADER.as_bytes());
            payload.extend_from_slice(&[b'S', 0, 0, 0, u8::try_from(text.len()).unwrap()]);
            payload.extend_from_slice(text.as_bytes());
            // A body that begins like more of the stamp.
            payload.extend_from_slice(b"0.1.2");
            payload.extend_from_slice(&[9; 300]);
            file.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
            file.extend_from_slice(&[0; 4]);
            file.extend_from_slice(&payload);
        }
        let end = u32::try_from(file.len()).unwrap().to_le_bytes();
        file[SEAL_AT..SEAL_AT + SEAL_MAGIC.len()].copy_from_slice(SEAL_MAGIC);
        file[SEAL_AT + FRAMES_END_AT..SEAL_AT + FRAMES_END_AT + 4].copy_from_slice(&end);
        file.extend_from_slice(&[0; 10_000]);
        file
    }

    struct Home(PathBuf);

    impl Home {
        fn new(name: &str) -> Self {
            let home = std::env::temp_dir().join(format!("nexo-torture-{name}-{}", std::process::id()));
            fs::create_dir_all(home.join("segments")).unwrap();
            Self(home)
        }

        fn write(&self, name: &str, bytes: &[u8]) {
            fs::write(self.0.join("segments").join(name), bytes).unwrap();
        }
    }

    impl Drop for Home {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn only_sealed_segments_are_struck_and_only_their_frames() {
        let home = Home::new("sealed");
        home.write("2.seg", &[0; 20_000]);
        assert_eq!(strike(&home.0, 1, 0, |_| true).unwrap(), None, "nothing is sealed");
        let file = segment(&[stamp(1), stamp(2), stamp(3)]);
        let end = file.len() - 10_000;
        let mut changed = vec![false; file.len()];
        for chance in 0..200 {
            home.write("1.seg", &file);
            assert_eq!(strike(&home.0, chance, 0, |_| false).unwrap().unwrap().segment, "1.seg");
            let struck = fs::read(home.0.join("segments/1.seg")).unwrap();
            (0..file.len()).for_each(|at| changed[at] |= file[at] != struck[at]);
        }
        let places: Vec<usize> = (0..file.len()).filter(|at| changed[*at]).collect();
        assert!(places.len() > 1_000 && places[0] >= FRAMES_AT && places[places.len() - 1] < end + BYTES);
        assert_eq!(strike(&home.0, 1, 1, |_| true).unwrap(), None, "the last is spared");
    }

    #[test]
    fn most_strikes_hit_a_message_that_waits_where_it_was_copied_to() {
        let home = Home::new("aimed");
        home.write("1.seg", &segment(&[stamp(1), stamp(2)]));
        home.write("2.seg", &segment(&[stamp(3), stamp(2), stamp(4)]));
        let mut aimed = 0;
        for chance in 0..100 {
            home.write("2.seg", &segment(&[stamp(3), stamp(2), stamp(4)]));
            let strike = strike(&home.0, chance, 0, |stamp| stamp.seq == 2).unwrap().unwrap();
            let Some(aim) = strike.aim else { continue };
            assert_eq!((aim, &*strike.segment, strike.hit), (stamp(2), "2.seg", vec![stamp(2)]));
            aimed += 1;
        }
        assert!((60..90).contains(&aimed), "{aimed}");
    }

    #[test]
    fn a_segment_whose_frames_cannot_be_told_apart_is_left_alone() {
        let home = Home::new("broken");
        let mut file = segment(&[stamp(1), stamp(2)]);
        file[FRAMES_AT] ^= 1;
        home.write("1.seg", &file);
        assert_eq!(strike(&home.0, 1, 0, |_| true).unwrap(), None);
    }
}
