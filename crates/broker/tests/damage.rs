//! Every region of every file of a data directory is flipped, zeroed, cut off and deleted. Whatever is hit: the broker
//! opens or says by name what is missing, only messages that were hit are lost, and a loss is counted, reported and
//! makes the broker degraded.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;
mod image;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::*;
use image::{FileKind, Harm, Image, small};
use nexo_broker::{Broker, BrokerOptions, Health};
use nexo_log::Region;
use nexo_log::disk::{Disk, MemoryDisk, RealDisk};

/// What a broker gives out, queue by queue, when everything is taken out of it.
async fn drain(broker: &Broker, image: &Image) -> BTreeMap<&'static str, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    for queue in image.waiting.keys() {
        let mut bodies_found = BTreeSet::new();
        let Ok(_) = broker.queue_stats(&name(queue)) else { continue };
        for round in 0.. {
            assert!(round < 2000, "queue {queue} never runs empty: {:?}", broker.queue_stats(&name(queue)));
            let part = pop(broker, &name(queue), 100).await;
            bodies_found.extend(bodies(&part));
            ack(broker, &part).await;
            let stats = broker.queue_stats(&name(queue)).unwrap();
            if part.is_empty() && stats.ready + stats.delayed + stats.grouped + stats.leased == 0 {
                break;
            }
            if part.is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
        found.insert(*queue, bodies_found);
    }
    found
}

/// Opens the disk and compares what comes out of it with what must. Says how many messages are missing.
async fn judge(image: &Image, disk: &MemoryDisk, path: &str, harm: Harm, accept_loss: bool) -> usize {
    let what = format!("{path} {harm:?} ({})", if image.clean { "clean" } else { "crashed" });
    let touched = image.touched(disk, path);
    let options = BrokerOptions { accept_loss, ..small() };
    let broker = match Broker::open_on(Arc::new(disk.clone()), options) {
        Ok(broker) => broker,
        Err(error) => panic!("{what}: refused: {error}"),
    };
    let topology = broker.topology_outline();
    let found = drain(&broker, image).await;
    let stats = broker.stats();
    let damaged = |queue: &&str| broker.queue_stats(&name(queue)).ok().map(|stats| stats.damaged);
    let counted: u64 = image.waiting.keys().filter_map(damaged).sum();
    let (mut missing, mut back) = (BTreeSet::new(), 0);
    for (queue, waiting) in &image.waiting {
        let empty = BTreeSet::new();
        let found = found.get(queue).unwrap_or(&empty);
        missing.extend(waiting.difference(found).cloned());
        for extra in found.difference(waiting) {
            assert!(image.acked.contains(extra), "{what}: {extra} was never sent");
            back += 1;
        }
    }
    let degraded = matches!(stats.health, Health::Degraded { .. });
    let lost = missing.len();
    let text = format!("{what}: {lost} missing, {back} came back, {counted} counted, {:?}", stats.health);
    broker.shutdown().await;

    assert!(touched.gone.is_subset(&missing), "{text}: what is not there cannot be found");
    assert!(
        degraded || topology == image.topology,
        "{text}: routes are not as they were, and nobody is told"
    );
    if lost > 0 && !degraded && missing.is_subset(&touched.torn) {
        // It is in the nature of things that nobody can tell this from a crash in the middle of a write: it hit what was
        // written last to a segment that is not sealed.
        return lost;
    }
    let spared: Vec<&String> =
        missing.iter().filter(|body| !touched.hit.contains(*body) && !touched.torn.contains(*body)).collect();
    assert!(spared.is_empty(), "{text}: {} were not hit", spared.len());
    assert!(counted <= lost as u64, "{text}: more is counted than lost");
    assert_eq!(stats.damaged_messages, counted, "{text}");
    if lost > 0 || back > 0 {
        assert!(degraded && stats.log.damage > 0, "{text}");
        // Of what is behind the latest checkpoint only the segment's own index tells how much it was.
        let is_known = path != image.last_segment() || !touched.index;
        assert!(counted == lost as u64 || (stats.damaged_uncounted && !is_known), "{text}");
    }
    if lost > 0 && matches!(harm, Harm::Flip(_) | Harm::Zero(..)) {
        assert!(!disk.list("damaged").unwrap().is_empty(), "{text}: no copy was kept");
    }
    lost
}

async fn strike_all(image: &Image, harms: impl Fn(&Image, &str, usize) -> Vec<Harm>) {
    let mut lost = BTreeMap::new();
    for (path, kind, len) in image.files() {
        if kind == FileKind::Format {
            continue;
        }
        for harm in harms(image, &path, len) {
            let disk = image.copy();
            harm.strike(&disk, &path);
            *lost.entry(kind).or_insert(0) += judge(image, &disk, &path, harm, false).await;
        }
    }
    for kind in [FileKind::Sealed, FileKind::Oversize] {
        assert!(lost[&kind] > 0, "some of it must have hit messages: {lost:?}");
    }
    assert_eq!(
        (lost.get(&FileKind::Inventory), lost.get(&FileKind::Spare).copied().unwrap_or(0)),
        (Some(&0), 0)
    );
}

/// The first byte, one in the middle and the last one of each region that there is one of in a file, and of some frames.
fn named_places(image: &Image, path: &str) -> Vec<usize> {
    let regions = image.regions(path).iter();
    let regions = regions.filter(|(region, _)| !matches!(region, Region::Frame | Region::Marker));
    let places = regions
        .flat_map(|(_, range)| [range.start, range.start + (range.end - range.start) / 2, range.end - 1]);
    places.map(|at| at as usize).collect()
}

fn flips(image: &Image, path: &str, len: usize) -> Vec<Harm> {
    let step = if len > 20_000 { 2111 } else { 211 };
    let mut places: BTreeSet<usize> = (0..len).step_by(step).chain(named_places(image, path)).collect();
    if path == "INVENTORY" {
        places.extend((0..64).chain(len / 2..len / 2 + 64));
    }
    places.into_iter().map(Harm::Flip).collect()
}

fn zeros(image: &Image, path: &str, len: usize) -> Vec<Harm> {
    let zero = |at| Harm::Zero(at, 512.min(len - at));
    let step = if len > 20_000 { 4096 } else { 1024 };
    let mut harms: Vec<Harm> = (0..len).step_by(step).map(zero).collect();
    let single = |range: &std::ops::Range<u32>| Harm::Zero(range.start as usize, range.len());
    let regions = image.regions(path).iter().filter(|(region, _)| *region != Region::Frame);
    harms.extend(regions.filter(|(region, _)| *region != Region::Marker).map(|(_, range)| single(range)));
    // The whole first block, and the whole last one.
    harms.push(Harm::Zero(0, 4096.min(len)));
    harms.push(Harm::Zero(len.saturating_sub(4096), 4096.min(len)));
    harms
}

fn cuts(_: &Image, _: &str, len: usize) -> Vec<Harm> {
    let step = if len > 20_000 { 9000 } else { 1500 };
    [0, 1, len / 2, len.saturating_sub(4096), len.saturating_sub(512), len.saturating_sub(1)]
        .into_iter()
        .chain((4096..len).step_by(step))
        .map(Harm::Cut)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_wrong_with_an_image_that_nobody_harmed() {
    for clean in [true, false] {
        let open_end = if clean { FileKind::Spare } else { FileKind::Unsealed };
        let kinds_of = |image: &Image| -> BTreeSet<FileKind> {
            image.files().into_iter().map(|(_, kind, _)| kind).collect()
        };
        let mut image = Image::make(clean).await;
        // Spare files are made by a thread that may be behind when the broker stops.
        for _ in 0..5 {
            if kinds_of(&image).contains(&open_end) {
                break;
            }
            image = Image::make(clean).await;
        }
        let kinds = kinds_of(&image);
        for kind in [FileKind::Sealed, FileKind::Oversize, FileKind::Inventory, FileKind::Format, open_end] {
            assert!(kinds.contains(&kind), "there is no {kind:?}: {kinds:?}");
        }
        let sealed = image.files().into_iter().filter(|(_, kind, _)| *kind == FileKind::Sealed);
        for (path, _, _) in sealed {
            let regions: BTreeSet<Region> = image.regions(&path).iter().map(|(region, _)| *region).collect();
            assert!(Region::ALL.into_iter().all(|region| regions.contains(&region)), "{path}: {regions:?}");
        }
        let disk = image.copy();
        let broker = open_with(&disk, small());
        assert_eq!(broker.health(), Health::Ok);
        assert_eq!(broker.topology_outline(), image.topology);
        assert_eq!(drain(&broker, &image).await, image.waiting);
        broker.shutdown().await;
        assert_eq!(disk.list("damaged").unwrap(), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_costs_one_frame_at_most_after_a_clean_stop() {
    strike_all(&Image::make(true).await, flips).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_costs_one_frame_at_most_after_a_crash() {
    strike_all(&Image::make(false).await, flips).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zeroed_bytes_cost_the_frames_they_hit_after_a_clean_stop() {
    strike_all(&Image::make(true).await, zeros).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zeroed_bytes_cost_the_frames_they_hit_after_a_crash() {
    strike_all(&Image::make(false).await, zeros).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_file_costs_what_was_cut_off() {
    strike_all(&Image::make(true).await, cuts).await;
    strike_all(&Image::make(false).await, cuts).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_segment_is_named_and_its_loss_must_be_accepted() {
    for clean in [true, false] {
        let image = Image::make(clean).await;
        for (path, _, _) in image.files().into_iter().filter(|(path, _, _)| path.starts_with("segments/")) {
            let disk = image.copy();
            Harm::Delete.strike(&disk, &path);
            let error = Broker::open_on(Arc::new(disk.clone()), small()).unwrap_err().to_string();
            assert!(
                error.contains(&format!("{path} is missing")) && error.contains("accept-loss"),
                "{error}"
            );
            judge(&image, &disk, &path, Harm::Delete, true).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_files_may_be_deleted_without_a_loss() {
    for clean in [true, false] {
        let image = Image::make(clean).await;
        for (path, kind, _) in image.files() {
            if path.starts_with("segments/") || kind == FileKind::Format {
                continue;
            }
            let disk = image.copy();
            Harm::Delete.strike(&disk, &path);
            let missing = judge(&image, &disk, &path, Harm::Delete, false).await;
            assert_eq!(missing, 0, "{path}");
        }
    }
}

/// The lock is held by the open file, not by what is in it. In memory there is no such file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_file_may_be_damaged_or_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.path()).unwrap());
        Broker::open_on(disk, small())
    };
    let broker = open().unwrap();
    broker.create_queue(&name("q"), Default::default()).await.unwrap();
    push(&broker, &name("q"), "message").await;
    assert!(open().is_err(), "it is in use");
    broker.shutdown().await;
    drop(broker);
    let lock = dir.path().join("LOCK");
    for harm in [Some(&b"garbage"[..]), Some(&b""[..]), None] {
        match harm {
            Some(bytes) => std::fs::write(&lock, bytes).unwrap(),
            None => std::fs::remove_file(&lock).unwrap(),
        }
        let broker = open().unwrap();
        assert_eq!(broker.health(), Health::Ok, "{harm:?}");
        assert!(open().is_err(), "{harm:?}: it is in use all the same");
        assert_eq!(broker.queue_stats(&name("q")).unwrap().ready, 1);
        broker.shutdown().await;
    }
}

#[tokio::test]
async fn a_directory_whose_format_is_not_known_is_refused_and_not_touched() {
    let image = Image::make(true).await;
    for harm in [Harm::Flip(3), Harm::Zero(0, 5), Harm::Cut(4), Harm::Delete] {
        let disk = image.copy();
        harm.strike(&disk, "FORMAT");
        let before = disk.list("segments").unwrap();
        let error = Broker::open_on(Arc::new(disk.clone()), small()).unwrap_err().to_string();
        assert!(error.contains("FORMAT"), "{harm:?}: {error}");
        assert_eq!(disk.list("segments").unwrap(), before);
    }
}
