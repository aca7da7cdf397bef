//! The file of a frame that is larger than a segment, harmed in every region, sealed and not: only that frame is lost, and
//! only if it was hit, and the log says so.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use common::*;
use nexo_log::disk::{CutMode, Disk, FaultyDisk, MemoryDisk};
use nexo_log::{Log, LogOptions, OpenError, Region, Urgency, regions_of};
use nexo_types::{Position, SegmentId};

const LARGE: usize = 40_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The log was closed.
    Sealed,
    /// The power went when a frame had been written behind it.
    Unsealed,
    /// The power went when it had just been synced.
    Last,
}

struct Image {
    disk: MemoryDisk,
    state: State,
    frames: BTreeMap<Position, Vec<u8>>,
    large: Position,
    path: String,
    regions: Vec<(Region, Range<u32>)>,
    bytes: Vec<u8>,
}

impl Image {
    fn make(state: State) -> Self {
        let memory = MemoryDisk::new();
        let disk = FaultyDisk::from_memory(memory.clone());
        let (log, _) = open(disk.clone());
        let sync = |n, size| {
            let appended = push(&log, n, size, Urgency::Synced).unwrap();
            block_on(log.synced(appended.end)).unwrap();
            appended.at
        };
        sync(0, 200);
        let large = sync(1, LARGE);
        // As it was before the segment manager came to seal it.
        let mut unsealed = memory.after_power_cut(CutMode::Drop, 0);
        if state != State::Last {
            sync(2, 200);
        }
        let path = format!("segments/{}.seg", large.segment);
        if state == State::Unsealed {
            unsealed = without_seal(&memory.after_power_cut(CutMode::Drop, 0), &path);
        }
        let frames = replay(&log).0;
        if state == State::Sealed {
            drop(log);
        } else {
            disk.cut_power();
            drop(log);
        }
        let disk = match state {
            State::Sealed => memory,
            State::Unsealed => unsealed,
            State::Last => without_seal(&unsealed, &path),
        };
        let regions = regions_of(&disk, &path).unwrap();
        let bytes = bytes(&disk, &path);
        Self { disk, state, frames, large, path, regions, bytes }
    }

    /// Opens what is left after `harm` and sees what is lost.
    fn judge(&self, what: &str, accept_loss: bool, harm: impl FnOnce(&MemoryDisk)) -> Judged {
        let disk = self.disk.after_power_cut(CutMode::Keep, 0);
        harm(&disk);
        let hit = self.is_hit(&disk);
        let options = LogOptions { accept_loss, ..small() };
        let (log, recovered) = match Log::open(Arc::new(disk.clone()), options) {
            Ok(opened) => opened,
            Err(error) => panic!("{what}: {error}"),
        };
        let (found, damage) = replay(&log);
        for (at, payload) in self.frames.iter().filter(|(at, _)| **at != self.large) {
            // Behind what looks like the end of the log there is nothing.
            let cut = self.state == State::Last && *at > self.large;
            assert!(cut || found.get(at) == Some(payload), "{what}: the frame at {at} is lost as well");
        }
        let lost = match found.get(&self.large) {
            Some(payload) => {
                assert_eq!(payload, &self.frames[&self.large], "{what}");
                false
            }
            None => true,
        };
        assert!(!lost || hit, "{what}: it was not hit, and it is lost");
        assert_eq!(found.len(), self.frames.len() - usize::from(lost), "{what}: nothing is invented");
        let told = !recovered.damage.is_empty() || !damage.is_empty() || log.damage().is_some();
        let copies = disk.list("damaged").unwrap().len();
        drop(log);
        assert_eq!(replay(&open(disk).0).0, found, "{what}: the next start finds the same");
        Judged { lost, told, copies, repairs: recovered.repairs.len() }
    }

    /// Whether a byte of the frame, or of the marker before it, without which it looks torn, has changed.
    fn is_hit(&self, disk: &MemoryDisk) -> bool {
        let Ok(file) = disk.open(&self.path) else { return true };
        let mut now = vec![0; file.len().unwrap() as usize];
        file.read_at(&mut now, 0).unwrap();
        let hit = |range: &Range<u32>| {
            let range = range.start as usize..range.end as usize;
            now.get(range.clone()) != Some(&self.bytes[range])
        };
        let may_tear = self.state == State::Last;
        self.regions.iter().any(|(region, range)| match region {
            Region::Frame => hit(range),
            Region::Marker => may_tear && hit(range),
            _ => false,
        })
    }

    fn flip_each_region(&self) {
        for (region, range) in &self.regions {
            for at in [range.start, range.start + (range.end - range.start) / 2, range.end - 1] {
                let what = format!("{:?}: a bit of {region:?} at {at}", self.state);
                let judged = self.judge(&what, false, |disk| disk.flip_bit(&self.path, at as usize, 3));
                match region {
                    Region::Frame => {
                        assert!(judged.lost, "{what}");
                        // Nobody can tell it from a write that the power cut off.
                        assert!(self.state == State::Last || (judged.told && judged.copies == 1), "{what}");
                    }
                    Region::Header | Region::HeaderCopy | Region::TrailerHeader => {
                        assert!(!judged.lost && judged.told, "{what}: one of three copies");
                    }
                    Region::Seal | Region::TrailerSeal if self.state == State::Sealed => {
                        assert!(
                            !judged.lost && !judged.told && judged.repairs == 1,
                            "{what}: one of two copies"
                        );
                    }
                    Region::Marker => assert!(!judged.lost || self.state == State::Last, "{what}"),
                    Region::Seal
                    | Region::TrailerSeal
                    | Region::End
                    | Region::Sections
                    | Region::Directory => {
                        assert!(!judged.lost, "{what}");
                    }
                }
            }
        }
    }
}

struct Judged {
    lost: bool,
    told: bool,
    copies: usize,
    repairs: usize,
}

fn replay(log: &Log) -> (BTreeMap<Position, Vec<u8>>, Vec<nexo_log::Damage>) {
    let mut frames = BTreeMap::new();
    let damage = log
        .replay(Position::default(), &mut |frame| {
            frames.insert(frame.at, frame.entries[0].payload.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    (frames, damage)
}

fn bytes(disk: &MemoryDisk, path: &str) -> Vec<u8> {
    let file = disk.open(path).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// The disk as it was before the segment was sealed: the seal is written last, so without it nothing says otherwise.
fn without_seal(disk: &MemoryDisk, path: &str) -> MemoryDisk {
    let file = disk.open(path).unwrap();
    for (region, range) in regions_of(disk, path).unwrap() {
        if matches!(region, Region::Seal | Region::TrailerSeal) {
            file.write_at(&vec![0; range.len()], range.start.into()).unwrap();
        }
    }
    file.sync_data().unwrap();
    disk.after_power_cut(CutMode::Keep, 0)
}

#[test]
fn an_image_that_nobody_harmed_is_whole() {
    for state in [State::Sealed, State::Unsealed, State::Last] {
        let image = Image::make(state);
        let kinds = |wanted: Region| image.regions.iter().filter(|(region, _)| *region == wanted).count();
        let sealed = usize::from(state == State::Sealed);
        assert_eq!((kinds(Region::Frame), kinds(Region::Directory)), (1, sealed), "{state:?}");
        let judged = image.judge("unharmed", false, |_| {});
        assert!(!judged.lost && !judged.told && judged.copies == 0 && judged.repairs == 0, "{state:?}");
    }
}

#[test]
fn a_flipped_bit_in_any_region_of_a_sealed_file() {
    Image::make(State::Sealed).flip_each_region();
}

#[test]
fn a_flipped_bit_in_any_region_of_a_file_that_is_not_sealed() {
    Image::make(State::Unsealed).flip_each_region();
    Image::make(State::Last).flip_each_region();
}

#[test]
fn zeros_in_any_region_cost_the_frame_at_most() {
    for state in [State::Sealed, State::Unsealed, State::Last] {
        let image = Image::make(state);
        let len = image.bytes.len();
        let stretches = (0..len).step_by(3000).map(|at| at..(at + 512).min(len));
        // The first block, the last, and each region by itself.
        let named = image.regions.iter().map(|(_, range)| range.start as usize..range.end as usize);
        for range in stretches.chain(named).chain([0..4096, len - 4096..len]) {
            let what = format!("{state:?}: zeros in {range:?}");
            let judged = image.judge(&what, false, |disk| {
                let file = disk.open(&image.path).unwrap();
                file.write_at(&vec![0; range.len()], range.start as u64).unwrap();
            });
            assert!(!judged.lost || judged.told || state == State::Last, "{what}: nobody is told");
        }
    }
}

#[test]
fn a_file_that_is_cut_is_told_and_costs_the_frame_only_if_it_was_cut() {
    for state in [State::Sealed, State::Unsealed, State::Last] {
        let image = Image::make(state);
        let len = image.bytes.len();
        let ends = image.regions.iter().flat_map(|(_, range)| [range.start as usize, range.end as usize]);
        for keep in ends.chain([0, 1, len / 2, len - 1, len - 512]).filter(|keep| *keep < len) {
            let what = format!("{state:?}: cut to {keep} of {len}");
            let judged = image.judge(&what, false, |disk| {
                disk.open(&image.path).unwrap().set_len(keep as u64).unwrap();
            });
            assert!(judged.told, "{what}: nobody is told");
        }
    }
}

#[test]
fn a_deleted_file_is_named_and_its_loss_must_be_accepted() {
    for state in [State::Sealed, State::Unsealed, State::Last] {
        let image = Image::make(state);
        let disk = image.disk.after_power_cut(CutMode::Keep, 0);
        disk.remove(&image.path).unwrap();
        let error = Log::open(Arc::new(disk), small()).unwrap_err();
        let id: SegmentId = image.large.segment;
        assert!(matches!(&error, OpenError::Missing { segments, .. } if *segments == [id]), "{error}");
        assert!(error.to_string().contains(&image.path), "{error}");
        let judged = image.judge("deleted", true, |disk| disk.remove(&image.path).unwrap());
        assert!(judged.lost && judged.told, "{state:?}");
    }
}
