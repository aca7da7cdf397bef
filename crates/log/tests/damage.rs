//! Bits that turn over on the disk are found, reported and set aside; never handed out as good.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use common::*;
use nexo_log::disk::{CutMode, Disk, FaultyDisk, MemoryDisk};
use nexo_log::{Damage, Log, ReadError, Recovered, Urgency};
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
    assert_eq!(recovered.damage[0].copy.as_deref(), Some("damaged/0000000001.seg"));
    assert_eq!(disk.list("damaged").unwrap(), ["0000000001.seg"]);
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

#[test]
fn a_header_that_is_lost_altogether_is_reported_and_the_rest_still_opens() {
    let (disk, frames) = crashed(45);
    let first = frames.keys().next().unwrap().segment;
    let path = format!("segments/{first}.seg");
    for byte in [9, 1024 + 9, 2048 + 9] {
        disk.flip_bit(&path, byte, 0);
    }
    let (log, recovered) = Log::open(Arc::new(disk.clone()), small()).unwrap();
    assert_eq!(recovered.damage.len(), 1);
    assert_eq!(recovered.damage[0].at.segment, first);
    assert_eq!(disk.list("damaged").unwrap().len(), 1);
    let (found, _) = replay(&log);
    assert!(found.keys().all(|at| at.segment > first));
    assert!(!found.is_empty());
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
