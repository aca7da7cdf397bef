//! Every region of every file of a data directory is flipped, zeroed, cut off and deleted. Whatever is hit: the broker
//! opens or says by name what is missing, only messages that were hit are lost, and a loss is counted, reported and
//! makes the broker degraded.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::*;
use nexo_broker::{Broker, BrokerOptions, Health, NewMessage, QueueConfig};
use nexo_log::disk::{CutMode, Disk, MemoryDisk};
use nexo_types::{GroupId, Millis};

const SEGMENT_BYTES: u32 = 16 * 1024;
/// Messages of one frame.
const BATCH: u32 = 3;
const PLAIN: u32 = 240;
const ACKED: u32 = 30;
const LOOSE: u32 = 24;

fn small() -> BrokerOptions {
    BrokerOptions { segment_bytes: SEGMENT_BYTES, ..BrokerOptions::new("memory") }
}

fn body(kind: &str, n: u32) -> String {
    format!("{kind}-{n:04}-{}", "x".repeat(150))
}

/// A disk with a history, and what must be on it. After a crash the last segment has no seal.
struct Image {
    disk: MemoryDisk,
    /// Bodies that wait in each queue.
    waiting: BTreeMap<&'static str, BTreeSet<String>>,
    /// Bodies that were acknowledged.
    acked: BTreeSet<String>,
    /// All bodies, in the order in which they were sent.
    sent: Vec<String>,
    clean: bool,
}

/// Waits until nothing has been written for a while.
async fn quiet(broker: &Broker) {
    let mut last = broker.stats().log;
    let mut same = 0;
    while same < 3 {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        let now = broker.stats().log;
        same = if (now.written_bytes, now.seals, now.retired)
            == (last.written_bytes, last.seals, last.retired)
        {
            same + 1
        } else {
            0
        };
        last = now;
    }
}

impl Image {
    async fn make(clean: bool) -> Self {
        let disk = MemoryDisk::new();
        let broker = open_with(&disk, small());
        let (plain, grouped, delayed) = (name("plain"), name("grouped"), name("delayed"));
        for queue in [&plain, &grouped, &delayed] {
            broker.create_queue(queue, QueueConfig::default()).await.unwrap();
        }
        let mut acked = BTreeSet::new();
        let mut sent: BTreeMap<&'static str, BTreeSet<String>> = BTreeMap::new();
        let mut order = Vec::new();
        let mut push = async |queue: &'static str, messages: Vec<NewMessage>| {
            for message in &messages {
                let text = String::from_utf8(message.body.to_vec()).unwrap();
                order.push(text.clone());
                sent.entry(queue).or_default().insert(text);
            }
            for answer in broker.push(&name(queue), messages).await.unwrap() {
                answer.unwrap();
            }
        };
        for start in (0..PLAIN).step_by(BATCH as usize) {
            let batch = (start..start + BATCH).map(|n| NewMessage::new(body("plain", n)));
            push("plain", batch.collect()).await;
            if start % 30 == 0 {
                let n = start / 10;
                let group = GroupId::new(&format!("group-{}", n % 4)).unwrap();
                push(
                    "grouped",
                    vec![NewMessage { group: Some(group), ..NewMessage::new(body("grouped", n)) }],
                )
                .await;
                let delay = Millis(1);
                push("delayed", vec![NewMessage { delay, ..NewMessage::new(body("delayed", n)) }]).await;
            }
            if start == 150 {
                let first = pop(&broker, &plain, ACKED as usize).await;
                acked.extend(bodies(&first));
                ack(&broker, &first).await;
            }
            // Checkpoints come in between: what is where must not depend on how busy the machine is.
            quiet(&broker).await;
        }
        for gone in &acked {
            sent.get_mut("plain").unwrap().remove(gone);
        }
        assert_eq!(acked.len(), ACKED as usize);
        assert_eq!(sent["grouped"].len(), LOOSE as usize / 3);
        let disk = if clean {
            broker.shutdown().await;
            disk
        } else {
            let stopped = disk.after_power_cut(CutMode::Drop, 0);
            broker.shutdown().await;
            stopped
        };
        assert!(disk.list("segments").unwrap().len() > 3, "{:?}", disk.list("segments"));
        Self { disk, waiting: sent, acked, sent: order, clean }
    }

    fn files(&self) -> Vec<(String, usize)> {
        let mut files = Vec::new();
        for dir in ["", "segments", "spare", "damaged"] {
            for file in self.disk.list(dir).unwrap() {
                let path = if dir.is_empty() { file } else { format!("{dir}/{file}") };
                if let Ok(open) = self.disk.open(&path) {
                    files.push((path, open.len().unwrap() as usize));
                }
            }
        }
        files
    }

    fn copy(&self) -> MemoryDisk {
        self.disk.after_power_cut(CutMode::Keep, 0)
    }
}

/// One thing that happens to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Flip(usize),
    Zero(usize, usize),
    Cut(usize),
    Delete,
}

impl Harm {
    fn strike(self, disk: &MemoryDisk, path: &str) {
        if self == Self::Delete {
            disk.remove(path).unwrap();
            return;
        }
        let file = disk.open(path).unwrap();
        match self {
            Self::Flip(at) => disk.flip_bit(path, at, (at % 8) as u8),
            Self::Zero(at, len) => file.write_at(&vec![0; len], at as u64).unwrap(),
            Self::Cut(len) => file.set_len(len as u64).unwrap(),
            Self::Delete => {}
        }
    }

    /// Whether the footers of all segments must tell what it cost.
    fn is_small_in(self, image: &Image) -> bool {
        image.clean && matches!(self, Self::Flip(_))
    }

    /// The most messages that may be lost by it: those of the frames it touches.
    fn lost_max(self) -> usize {
        match self {
            Self::Flip(_) => BATCH as usize,
            // A frame of one message has some 200 bytes.
            Self::Zero(_, len) => (len / 200 + 2) * BATCH as usize,
            // All that a segment can hold.
            Self::Cut(_) | Self::Delete => SEGMENT_BYTES as usize / 160,
        }
    }
}

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

/// Opens the disk and compares what comes out of it with what must.
async fn judge(image: &Image, disk: &MemoryDisk, what: &str, harm: Harm, accept_loss: bool) -> usize {
    let options = BrokerOptions { accept_loss, ..small() };
    let broker = match Broker::open_on(Arc::new(disk.clone()), options) {
        Ok(broker) => broker,
        Err(error) => panic!("{what}: refused: {error}"),
    };
    let found = drain(&broker, image).await;
    let stats = broker.stats();
    let counted: u64 = image
        .waiting
        .keys()
        .filter_map(|queue| broker.queue_stats(&name(queue)).ok())
        .map(|stats| stats.damaged)
        .sum();
    let mut missing = 0;
    let mut back = 0;
    for (queue, waiting) in &image.waiting {
        let empty = BTreeSet::new();
        let found = found.get(queue).unwrap_or(&empty);
        missing += waiting.difference(found).count();
        for extra in found.difference(waiting) {
            assert!(image.acked.contains(extra), "{what}: {extra} was never sent");
            back += 1;
        }
    }
    let degraded = matches!(stats.health, Health::Degraded { .. });
    if missing > 0 && may_look_torn(image, what) {
        // Only what was written last.
        let last: BTreeSet<String> = image.sent.iter().rev().take(harm.lost_max()).cloned().collect();
        let found: BTreeSet<String> = found.values().flatten().cloned().collect();
        let all: BTreeSet<String> = image.waiting.values().flatten().cloned().collect();
        let is_tail = all.difference(&found).all(|gone| last.contains(gone));
        if is_tail && !degraded {
            broker.shutdown().await;
            return missing;
        }
    }
    if missing > 0 || back > 0 {
        let text =
            format!("{what}: {missing} missing, {back} came back, {counted} counted, {:?}", stats.health);
        assert!(degraded && stats.log.damage > 0, "{text}");
        let is_counted = counted >= missing as u64 && stats.damaged_messages >= missing as u64;
        assert!(is_counted || (stats.damaged_uncounted && !harm.is_small_in(image)), "{text}");
        assert!(missing <= harm.lost_max(), "{text}");
    }
    broker.shutdown().await;
    missing
}

/// Whether it is in the nature of things that nobody can tell this from a crash in the middle of a write: it hit what was
/// written last to a segment that is not sealed.
fn may_look_torn(image: &Image, what: &str) -> bool {
    let path = what.split(' ').next().unwrap();
    let mut seal = [0; 8];
    let file = image.disk.open(path).unwrap();
    path.starts_with("segments/") && file.read_at(&mut seal, 2048).unwrap() == 8 && &seal != b"NEXOSEAL"
}

async fn strike_all(image: &Image, harms: impl Fn(usize) -> Vec<Harm>) {
    let mut lost = 0;
    for (path, len) in image.files() {
        if path == "FORMAT" {
            continue;
        }
        for harm in harms(len) {
            let disk = image.copy();
            harm.strike(&disk, &path);
            let what = format!("{path} {harm:?}");
            lost += judge(image, &disk, &what, harm, false).await;
        }
    }
    assert!(lost > 0, "some of it must have hit messages");
}

fn flips(len: usize) -> Vec<Harm> {
    (0..len).step_by(211).map(Harm::Flip).collect()
}

fn zeros(len: usize) -> Vec<Harm> {
    let zero = |at| Harm::Zero(at, 512.min(len - at));
    let mut harms: Vec<Harm> = (0..len).step_by(1024).map(zero).collect();
    // The whole first block, and the whole last one.
    harms.push(Harm::Zero(0, 4096.min(len)));
    harms.push(Harm::Zero(len.saturating_sub(4096), 4096.min(len)));
    harms
}

fn cuts(len: usize) -> Vec<Harm> {
    [0, 1, len / 2, len.saturating_sub(4096), len.saturating_sub(512), len.saturating_sub(1)]
        .into_iter()
        .chain((4096..len).step_by(1500))
        .map(Harm::Cut)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_wrong_with_an_image_that_nobody_harmed() {
    for clean in [true, false] {
        let image = Image::make(clean).await;
        let disk = image.copy();
        let broker = open_with(&disk, small());
        assert_eq!(broker.health(), Health::Ok);
        assert_eq!(drain(&broker, &image).await, image.waiting);
        broker.shutdown().await;
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
        for (path, _) in image.files().into_iter().filter(|(path, _)| path.starts_with("segments/")) {
            let disk = image.copy();
            Harm::Delete.strike(&disk, &path);
            let error = Broker::open_on(Arc::new(disk.clone()), small()).unwrap_err().to_string();
            assert!(
                error.contains(&format!("{path} is missing")) && error.contains("accept-loss"),
                "{error}"
            );
            judge(&image, &disk, &format!("{path} deleted"), Harm::Delete, true).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_files_may_be_deleted_without_a_loss() {
    let image = Image::make(true).await;
    for (path, _) in image.files() {
        if path.starts_with("segments/") || path == "FORMAT" {
            continue;
        }
        let disk = image.copy();
        Harm::Delete.strike(&disk, &path);
        let missing = judge(&image, &disk, &format!("{path} deleted"), Harm::Delete, false).await;
        assert_eq!(missing, 0, "{path}");
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
