//! A disk with a history of queues, exchanges, bindings and a message larger than a segment; where on it each message
//! lies; and the ways to harm it.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bytes::Bytes;
use nexo_broker::topology::{Binding, Destination, ExchangeKind, ExchangeSpec, Matching, Outline};
use nexo_broker::{Broker, BrokerOptions, NewMessage, QueueConfig};
use nexo_log::disk::{CutMode, Disk, MemoryDisk};
use nexo_log::{Log, LogOptions, Region, regions_of};
use nexo_types::{ExchangeName, GroupId, Millis, Position, SegmentId};

use crate::common::*;

pub(crate) const SEGMENT_BYTES: u32 = 16 * 1024;
/// Messages of one frame.
const BATCH: u32 = 3;
const PLAIN: u32 = 240;
const ACKED: u32 = 30;
const LOOSE: u32 = 24;
/// More than a segment holds.
const LARGE: usize = 40_000;

pub(crate) fn small() -> BrokerOptions {
    BrokerOptions { segment_bytes: SEGMENT_BYTES, ..BrokerOptions::new("memory") }
}

/// A body. Its first bytes are in no other one.
fn body(kind: &str, n: u32, len: usize) -> String {
    format!("{kind}-{n:04}-{}", "x".repeat(len))
}

fn exchange(name: &str) -> ExchangeName {
    ExchangeName::new(name).unwrap()
}

fn binding(source: &str, destination: Destination, key: &'static str) -> Binding {
    Binding::new(exchange(source), destination, Bytes::from_static(key.as_bytes()), Vec::new())
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FileKind {
    Sealed,
    Unsealed,
    /// The file of one frame that is larger than a segment.
    Oversize,
    Spare,
    Inventory,
    Format,
}

/// The bytes of a file, and where its parts lie.
type File = (Vec<u8>, Vec<(Region, Range<u32>)>);

/// A frame with messages, and the bytes that it takes.
#[derive(Debug)]
struct Stored {
    at: Position,
    end: u32,
    bodies: Vec<String>,
}

/// A disk with a history, and what must be on it. After a crash the last segment has no seal.
pub(crate) struct Image {
    pub(crate) disk: MemoryDisk,
    /// Bodies that wait in each queue.
    pub(crate) waiting: BTreeMap<&'static str, BTreeSet<String>>,
    /// Bodies that were acknowledged.
    pub(crate) acked: BTreeSet<String>,
    pub(crate) topology: Outline,
    pub(crate) clean: bool,
    /// The files as they were, and where their parts lie.
    files: BTreeMap<String, File>,
    stored: Vec<Stored>,
}

/// What harm has touched.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    /// Every place where these messages lie.
    pub(crate) gone: BTreeSet<String>,
    /// A place where these messages lie.
    pub(crate) hit: BTreeSet<String>,
    /// Messages of groups of writes that were hit in a segment without a seal. If nothing was written after them, it looks
    /// as if the power had gone while they were.
    pub(crate) torn: BTreeSet<String>,
    /// The index of the segment, or it has none.
    pub(crate) index: bool,
}

/// Waits until nothing has been written for a while.
async fn quiet(broker: &Broker) {
    let mut last = broker.stats().log;
    let mut same = 0;
    while same < 3 {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        let now = broker.stats().log;
        let is_same =
            (now.written_bytes, now.seals, now.retired) == (last.written_bytes, last.seals, last.retired);
        same = if is_same { same + 1 } else { 0 };
        last = now;
    }
}

impl Image {
    pub(crate) async fn make(clean: bool) -> Self {
        let disk = MemoryDisk::new();
        let broker = open_with(&disk, small());
        for queue in ["plain", "grouped", "delayed", "large"] {
            broker.create_queue(&name(queue), QueueConfig::default()).await.unwrap();
        }
        let to_queue = |queue: &str| Destination::Queue(name(queue));
        for (kind, matching) in [("events", Matching::Topic), ("all", Matching::Fanout)] {
            let spec = ExchangeSpec::durable(ExchangeKind::Plain(matching));
            broker.declare_exchange(&exchange(kind), spec).await.unwrap();
        }
        broker.bind(binding("events", to_queue("plain"), "orders.#")).await.unwrap();
        broker.bind(binding("all", Destination::Exchange(exchange("events")), "")).await.unwrap();
        broker.bind(binding("all", to_queue("delayed"), "short-lived")).await.unwrap();

        let mut acked = BTreeSet::new();
        let mut sent: BTreeMap<&'static str, BTreeSet<String>> = BTreeMap::new();
        let mut push = async |queue: &'static str, messages: Vec<NewMessage>| {
            let texts = messages.iter().map(|message| String::from_utf8(message.body.to_vec()).unwrap());
            sent.entry(queue).or_default().extend(texts);
            for answer in broker.push(&name(queue), messages).await.unwrap() {
                answer.unwrap();
            }
        };
        for start in (0..PLAIN).step_by(BATCH as usize) {
            let batch = (start..start + BATCH).map(|n| NewMessage::new(body("plain", n, 150)));
            push("plain", batch.collect()).await;
            if start % 30 == 0 {
                let n = start / 10;
                let group = Some(GroupId::new(&format!("group-{}", n % 4)).unwrap());
                push("grouped", vec![NewMessage { group, ..NewMessage::new(body("grouped", n, 150)) }]).await;
                let delay = Millis(1);
                push("delayed", vec![NewMessage { delay, ..NewMessage::new(body("delayed", n, 150)) }]).await;
            }
            match start {
                90 => push("large", vec![NewMessage::new(body("large", 0, LARGE))]).await,
                120 => broker.unbind(&binding("all", to_queue("delayed"), "short-lived")).await.unwrap(),
                150 => {
                    let first = pop(&broker, &name("plain"), ACKED as usize).await;
                    acked.extend(bodies(&first));
                    ack(&broker, &first).await;
                }
                // Between checkpoints, so that only the log tells at first. Neither is written last: nobody could tell that
                // from a write that the power has torn.
                201 => broker.bind(binding("events", to_queue("grouped"), "*.eu")).await.unwrap(),
                219 => broker.bind(binding("events", to_queue("large"), "late")).await.unwrap(),
                _ => {}
            }
            // Checkpoints come in between: what is where must not depend on how busy the machine is.
            quiet(&broker).await;
        }
        for gone in &acked {
            sent.get_mut("plain").unwrap().remove(gone);
        }
        assert_eq!(acked.len(), ACKED as usize);
        assert_eq!((sent["grouped"].len(), sent["large"].len()), (LOOSE as usize / 3, 1));
        let topology = broker.topology_outline();
        assert_eq!(topology.bindings.len(), 4);
        let disk = if clean {
            broker.shutdown().await;
            disk
        } else {
            let stopped = disk.after_power_cut(CutMode::Drop, 0);
            broker.shutdown().await;
            stopped
        };
        let (files, stored) = (read_files(&disk), find_stored(&disk, &sent, &acked));
        Self { disk, waiting: sent, acked, topology, clean, files, stored }
    }

    /// Every file with its kind and length.
    pub(crate) fn files(&self) -> Vec<(String, FileKind, usize)> {
        let files = self.files.iter();
        files
            .map(|(path, (bytes, regions))| (path.clone(), kind_of(path, bytes, regions), bytes.len()))
            .collect()
    }

    /// The regions of a segment's file.
    pub(crate) fn regions(&self, path: &str) -> &[(Region, Range<u32>)] {
        &self.files[path].1
    }

    pub(crate) fn copy(&self) -> MemoryDisk {
        self.disk.after_power_cut(CutMode::Keep, 0)
    }

    /// The last segment with messages.
    pub(crate) fn last_segment(&self) -> String {
        let last = self.stored.iter().map(|stored| stored.at.segment).max().unwrap();
        format!("segments/{last}.seg")
    }

    /// All bodies that wait.
    pub(crate) fn all_waiting(&self) -> BTreeSet<String> {
        self.waiting.values().flatten().cloned().collect()
    }

    /// Which messages lie where the file at `path` is not what it was.
    pub(crate) fn touched(&self, disk: &MemoryDisk, path: &str) -> Touched {
        let mut touched = Touched::default();
        let Some(segment) = path.strip_prefix("segments/").and_then(|name| name.strip_suffix(".seg")) else {
            return touched;
        };
        let segment = SegmentId(segment.parse().unwrap());
        let now = read_file(disk, path);
        let (before, regions) = &self.files[path];
        let is_hit = |range: Range<u32>| {
            let range = range.start as usize..range.end as usize;
            now.get(range.clone()) != Some(&before[range])
        };
        let is_unsealed = kind_of(path, before, regions) == FileKind::Unsealed;
        let index =
            regions.iter().filter(|(region, _)| matches!(region, Region::Sections | Region::Directory));
        touched.index = is_unsealed || index.cloned().any(|(_, range)| is_hit(range));
        // A group begins with a marker.
        let markers = regions.iter().filter(|(region, _)| *region == Region::Marker).map(|(_, at)| at.start);
        let markers: Vec<u32> = markers.collect();
        let mut places: BTreeMap<&String, (usize, usize)> = BTreeMap::new();
        for stored in &self.stored {
            let is_here = stored.at.segment == segment;
            let hit = is_here && is_hit(stored.at.byte..stored.end);
            for body in &stored.bodies {
                let (all, lost) = places.entry(body).or_default();
                *all += 1;
                *lost += usize::from(hit);
            }
            if is_here && is_unsealed {
                let group = markers.partition_point(|at| *at < stored.at.byte);
                let start = group.checked_sub(1).map_or(0, |before| markers[before]);
                let end = markers.get(group).copied().unwrap_or(before.len() as u32);
                if is_hit(start..end) {
                    touched.torn.extend(stored.bodies.iter().cloned());
                }
            }
        }
        let waiting = self.all_waiting();
        for (body, (all, lost)) in places.into_iter().filter(|(body, _)| waiting.contains(*body)) {
            if lost > 0 {
                touched.hit.insert(body.clone());
            }
            if lost == all {
                touched.gone.insert(body.clone());
            }
        }
        touched
    }
}

fn kind_of(path: &str, bytes: &[u8], regions: &[(Region, Range<u32>)]) -> FileKind {
    match path {
        "INVENTORY" => FileKind::Inventory,
        "FORMAT" => FileKind::Format,
        _ if path.starts_with("spare/") => FileKind::Spare,
        _ if bytes.len() > 2 * SEGMENT_BYTES as usize => FileKind::Oversize,
        _ if regions.iter().any(|(region, _)| *region == Region::Directory) => FileKind::Sealed,
        _ => FileKind::Unsealed,
    }
}

fn read_file(disk: &MemoryDisk, path: &str) -> Vec<u8> {
    let Ok(file) = disk.open(path) else { return Vec::new() };
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn read_files(disk: &MemoryDisk) -> BTreeMap<String, File> {
    let mut files = BTreeMap::new();
    for dir in ["", "segments", "spare", "damaged"] {
        for file in disk.list(dir).unwrap() {
            let path = if dir.is_empty() { file } else { format!("{dir}/{file}") };
            if disk.open(&path).is_ok() {
                let regions = if dir == "segments" { regions_of(disk, &path).unwrap() } else { Vec::new() };
                files.insert(path.clone(), (read_file(disk, &path), regions));
            }
        }
    }
    files
}

/// Where each message lies, by the first bytes of its body.
fn find_stored(
    disk: &MemoryDisk,
    sent: &BTreeMap<&'static str, BTreeSet<String>>,
    acked: &BTreeSet<String>,
) -> Vec<Stored> {
    let options = LogOptions { segment_bytes: SEGMENT_BYTES, ..LogOptions::default() };
    let (log, _) = Log::open(Arc::new(disk.after_power_cut(CutMode::Keep, 0)), options).unwrap();
    let all: Vec<&String> = sent.values().flatten().chain(acked).collect();
    let head = |body: &String| body.split_inclusive('-').take(2).collect::<String>();
    let heads: Vec<(String, &String)> = all.iter().map(|body| (head(body), *body)).collect();
    let mut stored = Vec::new();
    log.replay(Position::default(), &mut |frame| {
        let holds = |head: &str| {
            let is_head = |window: &[u8]| window == head.as_bytes();
            frame.entries.iter().any(|entry| entry.payload.windows(head.len()).any(is_head))
        };
        let bodies: Vec<String> =
            heads.iter().filter(|(head, _)| holds(head)).map(|(_, body)| (*body).clone()).collect();
        if !bodies.is_empty() {
            stored.push(Stored { at: frame.at, end: frame.end.byte, bodies });
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    log.close();
    let found: BTreeSet<&String> = stored.iter().flat_map(|stored| &stored.bodies).collect();
    for body in sent.values().flatten() {
        assert!(found.contains(body), "{} is nowhere", head(body));
    }
    stored
}

/// One thing that happens to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    Flip(usize),
    Zero(usize, usize),
    Cut(usize),
    Delete,
}

impl Harm {
    pub(crate) fn strike(self, disk: &MemoryDisk, path: &str) {
        match self {
            Self::Flip(at) => disk.flip_bit(path, at, (at % 8) as u8),
            Self::Zero(at, len) => disk.open(path).unwrap().write_at(&vec![0; len], at as u64).unwrap(),
            Self::Cut(len) => disk.open(path).unwrap().set_len(len as u64).unwrap(),
            Self::Delete => disk.remove(path).unwrap(),
        }
    }
}
