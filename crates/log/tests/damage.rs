//! Bits that turn over on the disk are found, reported and set aside; never handed out as good.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use common::*;
use nexo_log::disk::{CutMode, Disk, FaultyDisk, MemoryDisk};
use nexo_log::{Damage, Log, LogOptions, ReadError, Recovered, Urgency};
use nexo_types::{Offset, Position, Priority, QueueId};

fn replay(log: &Log) -> (BTreeMap<Position, Vec<u8>>, Vec<Damage>) {
    let mut frames = BTreeMap::new();
    let damage = log
        .replay(Position::default(), &mut |frame| {
            frames.insert(frame.at, frame.entries[0].payload.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    (frames, damage)
}

/// A disk after `n` synced pushes and then a power cut, so that the last segment has no seal.
fn crashed(n: u64) -> (MemoryDisk, BTreeMap<Position, Vec<u8>>) {
    let memory = MemoryDisk::new();
    let disk = FaultyDisk::from_memory(memory.clone());
    let (log, _) = open(disk.clone());
    for n in 0..n {
        push(&log, n, 200, Urgency::Synced).unwrap();
        log.sync_blocking().unwrap();
    }
    let (frames, _) = replay(&log);
    eventually("seals", || log.segments().iter().rev().skip(1).all(|segment| segment.sealed));
    disk.cut_power();
    drop(log);
    (memory.after_power_cut(CutMode::Drop, 0), frames)
}

fn open_copy(disk: &MemoryDisk) -> (MemoryDisk, Log, Recovered) {
    let copy = disk.after_power_cut(CutMode::Drop, 0);
    let (log, recovered) = open(copy.clone());
    (copy, log, recovered)
}

#[test]
fn damage_in_the_middle_of_the_unsealed_segment_is_reported_and_set_aside() {
    let (disk, frames) = crashed(10);
    let victim = *frames.keys().nth(4).unwrap();
    disk.flip_bit("segments/0000000001.seg", victim.byte as usize + 50, 3);

    let (log, recovered) = open(disk.clone());
    assert_eq!(recovered.damage.len(), 1);
    assert_eq!(recovered.damage[0].at, victim);
    let copy = recovered.damage[0].copy.clone().expect("a copy of the damaged bytes");
    assert!(copy.starts_with(&format!("damaged/0000000001-{}-", victim.byte)), "{copy}");
    assert_eq!(disk.list("damaged").unwrap().len(), 1);
    assert!(matches!(log.read_frame(victim), Err(ReadError::Damaged { .. })));
    assert_eq!(log.stats().damage, 1);

    let (found, damage) = replay(&log);
    let expected: BTreeMap<_, _> =
        frames.iter().filter(|(at, _)| **at != victim).map(|(at, p)| (*at, p.clone())).collect();
    assert_eq!(found, expected, "everything else is still there");
    assert_eq!(damage.len(), 1, "replay says what it passed over");
}

#[test]
fn a_damaged_length_costs_one_frame_only() {
    let (disk, frames) = crashed(10);
    let victim = *frames.keys().nth(2).unwrap();
    disk.flip_bit("segments/0000000001.seg", victim.byte as usize + 1, 7);
    let (log, recovered) = open(disk);
    assert_eq!(recovered.damage.len(), 1);
    assert_eq!(replay(&log).0.len(), frames.len() - 1);
}

#[test]
fn no_flipped_bit_in_a_segment_is_ever_handed_out_as_good() {
    let (disk, frames) = crashed(45);
    let segments = disk.list("segments").unwrap();
    assert!(segments.len() >= 2, "a sealed and an unsealed one");
    let last = frames.keys().next_back().unwrap();
    for name in &segments {
        let path = format!("segments/{name}");
        let len = disk.open(&path).unwrap().len().unwrap() as usize;
        for byte in (0..len).step_by(61) {
            let copy = disk.after_power_cut(CutMode::Drop, 0);
            copy.flip_bit(&path, byte, (byte % 8) as u8);
            let (_, log, recovered) = open_copy(&copy);
            let (found, damage) = replay(&log);
            for (at, payload) in &found {
                assert_eq!(frames.get(at), Some(payload), "{path} byte {byte}");
            }
            // The group written last has no marker behind it that would prove it had been synced.
            let lost = frames.keys().filter(|at| !found.contains_key(at)).count();
            let known = !recovered.damage.is_empty() || !damage.is_empty();
            assert!(
                lost == 0 || known || (lost == 1 && !found.contains_key(last)),
                "{path} byte {byte}: {lost} frames vanished silently"
            );
            let lane = (QueueId(1), Priority(0));
            for segment in log.segments() {
                let all = Offset(0)..=Offset(u64::MAX);
                let refs = log.frames_of(segment.id, lane.0, lane.1, all, usize::MAX).unwrap();
                for found_ref in refs {
                    let at = Position { segment: segment.id, byte: found_ref.byte };
                    assert!(frames.contains_key(&at), "{path} byte {byte}: the index invents {at}");
                }
            }
        }
    }
}

#[test]
fn a_damaged_footer_is_rebuilt_from_the_frames() {
    let (disk, frames) = crashed(45);
    let sealed = frames.keys().next().unwrap().segment;
    let in_segment = frames.keys().filter(|at| at.segment == sealed).count();
    let end = frames.keys().rfind(|at| at.segment == sealed).unwrap().byte as usize;
    let path = format!("segments/{sealed}.seg");
    let len = disk.open(&path).unwrap().len().unwrap() as usize;
    let mut rebuilt = 0;
    // The footer lies behind the last frame of 200 bytes and a little.
    for byte in (end + 300..(end + 600).min(len)).step_by(5) {
        let copy = disk.after_power_cut(CutMode::Drop, 0);
        copy.flip_bit(&path, byte, 1);
        let (_, log, _) = open_copy(&copy);
        let refs =
            log.frames_of(sealed, QueueId(1), Priority(0), Offset(0)..=Offset(u64::MAX), usize::MAX).unwrap();
        assert_eq!(refs.len(), in_segment, "byte {byte}");
        rebuilt += log.stats().damage;
    }
    assert!(rebuilt > 20, "only {rebuilt} flips hit the footer");
}

fn zero(disk: &MemoryDisk, path: &str, from: usize, len: usize) {
    let file = disk.open(path).unwrap();
    file.write_at(&vec![0; len], from as u64).unwrap();
    file.sync_data().unwrap();
}

fn cut(disk: &MemoryDisk, path: &str, bytes: usize) {
    let file = disk.open(path).unwrap();
    file.set_len(bytes as u64).unwrap();
    file.sync_data().unwrap();
}

fn remove(disk: &MemoryDisk, path: &str) {
    disk.remove(path).unwrap();
    disk.sync_dir(path.rsplit_once('/').map_or("", |(dir, _)| dir)).unwrap();
}

fn len(disk: &MemoryDisk, path: &str) -> usize {
    disk.open(path).unwrap().len().unwrap() as usize
}

#[test]
fn a_lost_first_block_costs_nothing_because_the_end_knows_the_same() {
    let (disk, frames) = crashed(45);
    for segment in disk.list("segments").unwrap() {
        let copy = disk.after_power_cut(CutMode::Drop, 0);
        zero(&copy, &format!("segments/{segment}"), 0, 4096);
        let (copy, log, recovered) = open_copy(&copy);
        assert_eq!(recovered.damage.len(), 1, "{segment}");
        assert_eq!(recovered.lost_segments, []);
        assert_eq!(replay(&log).0, frames, "{segment}");
        assert_eq!(copy.list("damaged").unwrap().len(), 1);
        drop(log);
        assert_eq!(open(copy).1.damage, [], "it was repaired");
    }
}

#[test]
fn a_segment_without_any_header_is_moved_aside_and_the_rest_still_opens() {
    let (disk, frames) = crashed(45);
    let first = frames.keys().next().unwrap().segment;
    let path = format!("segments/{first}.seg");
    let before = len(&disk, &path);
    zero(&disk, &path, 0, 4096);
    zero(&disk, &path, before - 512, 512);
    let (log, recovered) = open(disk.clone());
    assert_eq!(recovered.damage.len(), 1);
    assert_eq!(recovered.lost_segments, [first]);
    let copy = recovered.damage[0].copy.clone().unwrap();
    assert_eq!(copy, format!("damaged/{first}.seg"));
    assert_eq!(len(&disk, &copy), before, "the whole file is kept");
    let (found, _) = replay(&log);
    assert!(!found.is_empty() && found.keys().all(|at| at.segment > first));
    drop(log);
    assert_eq!(open(disk).1.damage, [], "it is not missed again");
}

#[test]
fn a_missing_file_is_named_and_refused_until_the_loss_is_accepted() {
    let (disk, frames) = crashed(120);
    let segments = disk.list("segments").unwrap();
    assert!(segments.len() >= 4, "{segments:?}");
    for name in &segments {
        let copy = disk.after_power_cut(CutMode::Drop, 0);
        remove(&copy, &format!("segments/{name}"));
        let before: Vec<_> = ["segments", "spare", "damaged", ""].map(|dir| copy.list(dir).unwrap()).into();
        let error = Log::open(Arc::new(copy.clone()), small()).unwrap_err();
        assert!(error.to_string().contains(&format!("segments/{name} is missing")), "{error}");
        let after: Vec<_> = ["segments", "spare", "damaged", ""].map(|dir| copy.list(dir).unwrap()).into();
        assert_eq!(before, after, "nothing was changed");

        let (log, recovered) =
            Log::open(Arc::new(copy.clone()), LogOptions { accept_loss: true, ..small() }).unwrap();
        assert_eq!(recovered.lost_segments.len(), 1);
        let gone = recovered.lost_segments[0];
        assert_eq!(format!("{gone}.seg"), *name);
        let (found, _) = replay(&log);
        let rest: BTreeMap<_, _> = frames.clone().into_iter().filter(|(at, _)| at.segment != gone).collect();
        assert_eq!(found, rest, "everything else is still there");
        assert!(log.segments().last().unwrap().id > gone, "its number is not used again");
        drop(log);
        assert_eq!(open(copy).1.lost_segments, [], "and is not missed again");
    }
}

#[test]
fn without_its_list_of_segments_a_log_opens_and_says_so() {
    let (disk, frames) = crashed(45);
    remove(&disk, "INVENTORY");
    let (log, recovered) = open(disk.clone());
    assert!(recovered.damage[0].fact.contains("INVENTORY"), "{:?}", recovered.damage);
    assert_eq!(replay(&log).0, frames);
    drop(log);
    assert_eq!(open(disk).1.damage, [], "there is a new one");
}

#[test]
fn a_file_that_was_cut_loses_what_was_cut_off_and_says_so() {
    let (disk, frames) = crashed(45);
    let first = frames.keys().next().unwrap().segment;
    let last = frames.keys().next_back().unwrap().segment;
    assert!(first < last);
    for segment in [first, last] {
        let path = format!("segments/{segment}.seg");
        for keep in (4096..len(&disk, &path)).step_by(331) {
            let copy = disk.after_power_cut(CutMode::Drop, 0);
            cut(&copy, &path, keep);
            let (_, log, recovered) = open_copy(&copy);
            assert!(!recovered.damage.is_empty(), "{path} cut to {keep}");
            let (found, _) = replay(&log);
            let whole = |at: &Position, payload: &Vec<u8>| {
                at.segment != segment || (at.byte as usize + payload.len() + 40) < keep
            };
            for (at, payload) in frames.iter().filter(|(at, payload)| whole(at, payload)) {
                assert_eq!(found.get(at), Some(payload), "{path} cut to {keep}");
            }
        }
    }
}

#[test]
fn a_zeroed_stretch_is_one_damage_and_its_messages_are_counted() {
    let (disk, frames) = crashed(120);
    let first = frames.keys().next().unwrap().segment;
    let of_first: Vec<Position> = frames.keys().copied().filter(|at| at.segment == first).collect();
    let (from, to) = (of_first[3], of_first[6]);
    zero(&disk, &format!("segments/{first}.seg"), from.byte as usize, (to.byte - from.byte) as usize);
    let (log, _) = open(disk.clone());
    let starts: Vec<u32> = of_first.iter().map(|at| at.byte).collect();
    let read = log.read_frames(first, &starts);
    let lost = read.iter().filter(|frame| matches!(frame, Err(ReadError::Damaged { .. }))).count();
    assert_eq!(lost, 3);
    assert_eq!(log.stats().damage, 1, "one stretch");
    assert!(log.stats().damage_first.unwrap().contains(&format!("segment {first} at byte {}", from.byte)));
    assert_eq!(disk.list("damaged").unwrap().len(), 1);
    let (found, damage) = replay(&log);
    assert_eq!(found.len(), frames.len() - 3);
    assert_eq!(damage.len(), 1);
    assert_eq!(damage[0].lost, Some(vec![(QueueId(1), 3)]));
    assert_eq!(log.stats().damage, 1, "met again, counted once");
}

#[test]
fn one_lost_copy_of_a_header_is_repaired() {
    let (disk, frames) = crashed(45);
    let path = format!("segments/{}.seg", frames.keys().next().unwrap().segment);
    disk.flip_bit(&path, 9, 0);
    let (log, recovered) = open(disk.clone());
    assert_eq!(recovered.damage.len(), 1);
    assert_eq!(replay(&log).0, frames);
    drop(log);
    assert_eq!(open(disk).1.damage, []);
}
