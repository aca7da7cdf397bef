//! What is kept twice, so that the loss of one copy costs nothing: it is mended at the next start and told. And a
//! segment of which nothing can be read: its file is never removed.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;

use common::*;
use nexo_log::disk::{CutMode, Disk, FaultyDisk, MemoryDisk};
use nexo_log::{Frame, Log, LogHealth, Region, Urgency, regions_of};

/// A log that was closed, with a few sealed segments, and what is in it.
fn closed() -> (MemoryDisk, Vec<Frame>) {
    let disk = MemoryDisk::new();
    let (log, _) = open(disk.clone());
    for n in 0..60 {
        push(&log, n, 200, Urgency::Lazy).unwrap();
    }
    log.sync_blocking().unwrap();
    let frames = all_frames(&log);
    drop(log);
    assert!(disk.list("segments").unwrap().len() > 1);
    (disk, frames)
}

fn first_segment(disk: &MemoryDisk) -> String {
    format!("segments/{}", disk.list("segments").unwrap()[0])
}

/// Where a region of a segment begins.
fn place(disk: &MemoryDisk, path: &str, region: Region) -> usize {
    let regions = regions_of(disk, path).unwrap();
    let (_, range) = regions.into_iter().find(|(here, _)| *here == region).unwrap();
    range.start as usize
}

fn bytes(disk: &MemoryDisk, path: &str) -> Vec<u8> {
    let file = disk.open(path).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn one_lost_copy_of_a_seal_is_mended_and_told() {
    let (image, frames) = closed();
    let path = first_segment(&image);
    let whole = bytes(&image, &path);
    for region in [Region::Seal, Region::TrailerSeal] {
        let disk = image.after_power_cut(CutMode::Keep, 0);
        disk.flip_bit(&path, place(&disk, &path, region) + 9, 5);
        let (log, recovered) = open(disk.clone());
        assert_eq!(recovered.damage, [], "{region:?}: nothing is lost");
        assert!(recovered.repairs.len() == 1 && recovered.repairs[0].contains(&path), "{recovered:?}");
        assert_eq!((log.health(), log.damage()), (LogHealth::Ok, None));
        assert_eq!(recovered.scanned_segments, 0, "the other copy was found");
        assert_eq!(all_frames(&log), frames);
        assert_eq!(bytes(&disk, &path), whole, "{region:?}: as it was");
        drop(log);
        assert!(open(disk).1.repairs.is_empty());
    }
}

#[test]
fn one_lost_copy_of_the_list_of_segments_is_mended_and_told() {
    let (image, frames) = closed();
    let half = image.open("INVENTORY").unwrap().len().unwrap() as usize / 2;
    for (lost, other) in [(0, half), (half, 0)] {
        let disk = image.after_power_cut(CutMode::Keep, 0);
        disk.flip_bit("INVENTORY", lost + 9, 5);
        let (log, recovered) = open(disk.clone());
        assert_eq!(recovered.damage, []);
        assert!(recovered.repairs.len() == 1 && recovered.repairs[0].contains("INVENTORY"), "{recovered:?}");
        assert_eq!(all_frames(&log), frames);
        drop(log);
        // The other one may be lost now.
        disk.flip_bit("INVENTORY", other + 9, 5);
        let (_, recovered) = open(disk.clone());
        assert_eq!((recovered.damage, recovered.repairs.len()), (vec![], 1));
        assert!(open(disk).1.repairs.is_empty());
    }
}

#[test]
fn a_file_that_cannot_be_moved_aside_stays_and_the_error_names_it() {
    let (image, frames) = closed();
    let path = first_segment(&image);
    for region in
        [Region::Header, Region::HeaderCopy, Region::TrailerHeader, Region::Seal, Region::TrailerSeal]
    {
        image.flip_bit(&path, place_of_whole(&image, &path, region), 1);
    }
    let harmed = bytes(&image, &path);
    let disk = FaultyDisk::from_memory(image.clone());
    disk.fail_next_rename();
    let error = Log::open(Arc::new(disk.clone()), small()).unwrap_err().to_string();
    let id = path.trim_start_matches("segments/").trim_end_matches(".seg").to_owned();
    assert!(error.contains(&format!("segment {id}")), "{error}");
    assert_eq!(bytes(&image, &path), harmed, "the file is where it was, as it was");
    assert_eq!(image.list("damaged").unwrap(), [""; 0]);

    let (log, recovered) = open(disk);
    assert_eq!(recovered.lost_segments.len(), 1);
    assert_eq!(bytes(&image, &format!("damaged/{id}.seg")), harmed);
    assert!(!image.list("segments").unwrap().contains(&format!("{id}.seg")));
    drop(log);
    assert!(frames.len() > 30);
}

/// As [`place`], also when the header's first copies are harmed already.
fn place_of_whole(disk: &MemoryDisk, path: &str, region: Region) -> usize {
    let other = disk.list("segments").unwrap().into_iter().map(|name| format!("segments/{name}"));
    let other = other
        .filter(|name| name != path)
        .find(|name| disk.open(name).unwrap().len().unwrap() == disk.open(path).unwrap().len().unwrap());
    place(disk, &other.expect("another segment of that size"), region)
}
