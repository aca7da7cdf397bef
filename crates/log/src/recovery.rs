//! Opening: what is on the disk becomes a log again.
//!
//! Sealed segments are known from their first block. The others are scanned: usually the one that was being
//! written and the one prepared after it. Every opening goes on in a fresh segment, so a segment holds frames
//! of one run only, and what a torn tail left behind a cut can never come to life again.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{Position, SegmentId};
use tracing::{info, warn};

use crate::disk::{Disk, DiskFile};
use crate::entry::EntryKind;
use crate::error::{Damage, OpenError, is_out_of_space};
use crate::header::{HEADER_BYTES, Header, Seal};
use crate::layout::{self, DAMAGED, SEGMENTS, io_error, segment_path};
use crate::options::{LogOptions, SEGMENT_BYTES_MIN};
use crate::read;
use crate::scan::{self, Behind, Broken, Scan};
use crate::segment::{EndFrame, Index, Segment};
use crate::spares::Spares;

/// What opening found.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// The latest manifest: where its frame starts, and its payload.
    pub last_manifest: Option<(Position, Bytes)>,
    /// Where the last frame ends.
    pub end: Position,
    /// Places that were durable once and cannot be read.
    pub damage: Vec<Damage>,
    /// Bytes behind the end that had been written but never synced, as far as can be told. Nobody was promised
    /// them.
    pub truncated_bytes: u64,
    /// Segments that had to be scanned.
    pub scanned_segments: usize,
}

/// What the log starts with.
pub(crate) struct Opened {
    pub(crate) segments: BTreeMap<SegmentId, Arc<Segment>>,
    pub(crate) active: Arc<Segment>,
    pub(crate) spares: Spares,
    pub(crate) recovered: Recovered,
}

/// A segment file without a seal.
struct Unsealed {
    header: Header,
    file: Arc<dyn DiskFile>,
    file_bytes: u32,
}

struct Recovery<'a> {
    disk: &'a Arc<dyn Disk>,
    segments: BTreeMap<SegmentId, Arc<Segment>>,
    unsealed: Vec<Unsealed>,
    recovered: Recovered,
    highest: SegmentId,
}

/// Brings the log back. The caller holds the lock.
pub(crate) fn recover(disk: &Arc<dyn Disk>, options: &LogOptions) -> Result<Opened, OpenError> {
    let mut recovery = Recovery {
        disk,
        segments: BTreeMap::new(),
        unsealed: Vec::new(),
        recovered: Recovered::default(),
        highest: SegmentId(0),
    };
    recovery.read_headers()?;
    let (spares, highest_spare) =
        Spares::open(disk.clone(), options.segment_bytes, options.spare_segments_max)
            .map_err(io_error(&**disk, "look through spare files"))?;
    recovery.highest = recovery.highest.max(highest_spare);
    recovery.settle_unsealed(&spares).map_err(io_error(&**disk, "recover the end of the log"))?;
    recovery.find_manifest();
    let active = recovery.start_segment(&spares, options)?;
    let Recovery { mut segments, mut recovered, .. } = recovery;
    recovered.end = segments
        .values()
        .next_back()
        .map_or(active.position(HEADER_BYTES), |segment| segment.position(segment.frames_end()));
    segments.insert(active.id(), active.clone());
    if recovered.truncated_bytes > 0 {
        info!(bytes = recovered.truncated_bytes, end = %recovered.end, "cut what had never been synced");
    }
    Ok(Opened { segments, active, spares, recovered })
}

impl Recovery<'_> {
    fn read_headers(&mut self) -> Result<(), OpenError> {
        let names = self.disk.list(SEGMENTS).map_err(io_error(&**self.disk, "list segments"))?;
        for name in names {
            let Some(id) = layout::parse_segment_name(&name) else {
                warn!(name, "a file in segments/ is not a segment; left alone");
                continue;
            };
            self.highest = self.highest.max(id);
            self.read_header(id).map_err(io_error(&**self.disk, format!("read segment {id}")))?;
        }
        Ok(())
    }

    fn read_header(&mut self, id: SegmentId) -> io::Result<()> {
        let file = self.disk.open(&segment_path(id))?;
        let file_bytes = u32::try_from(file.len()?).unwrap_or(u32::MAX);
        let mut block = vec![0; HEADER_BYTES as usize];
        let len = file.read_at(&mut block, 0)?;
        let header = Header::read(&block[..len]).filter(|(header, _)| header.id == id);
        let seal = Seal::read(&block[..len])
            .filter(|seal| seal.header.id == id && header.is_none_or(|(header, _)| header == seal.header))
            .filter(|seal| seal.frames_end <= file_bytes);
        if !header.is_some_and(|(_, is_whole)| is_whole) {
            let copy = self.set_aside(id);
            let at = Position { segment: id, byte: 0 };
            let end = if header.is_none() && seal.is_none() { file_bytes } else { HEADER_BYTES };
            self.recovered.damage.push(Damage { at, end, fact: "the header is damaged".to_owned(), copy });
            if let Some(known) = header.map(|(header, _)| header).or(seal.map(|seal| seal.header)) {
                repair_header(&*file, &known)?;
            }
        }
        match (header, seal) {
            (_, Some(seal)) => {
                self.segments.insert(id, Arc::new(Segment::sealed(seal, file, file_bytes)));
            }
            (Some((header, _)), None) => self.unsealed.push(Unsealed { header, file, file_bytes }),
            // Without the salt nothing in the file can be told from garbage. The copy is all that is left.
            (None, None) => {
                self.disk.remove(&segment_path(id))?;
                self.disk.sync_dir(SEGMENTS)?;
            }
        }
        Ok(())
    }

    /// How far the log is sure to have been synced, judging from everything that was scanned.
    fn proven(&self, scanned: &[(Unsealed, Scan, Behind)]) -> Position {
        // Nothing is sealed before all earlier segments are synced.
        let sealed = self.segments.keys().next_back().map(|id| Position { segment: *id, byte: HEADER_BYTES });
        let markers = scanned.iter().flat_map(|(_, scan, behind)| [scan.proof, behind.proof]);
        markers.chain([sealed]).flatten().max().unwrap_or_default()
    }

    fn scan_unsealed(&mut self) -> io::Result<Vec<(Unsealed, Scan, Behind)>> {
        let mut scanned = Vec::new();
        for unsealed in std::mem::take(&mut self.unsealed) {
            let bytes = read::whole_file(&*unsealed.file, unsealed.file_bytes)?;
            let salt = unsealed.header.salt;
            let scan = scan::scan(&bytes, salt, 0);
            let behind = match scan.is_complete {
                true => Behind::default(),
                false => scan::look_behind(&bytes, salt, scan.end),
            };
            scanned.push((unsealed, scan, behind));
        }
        self.recovered.scanned_segments = scanned.len();
        Ok(scanned)
    }

    fn settle_unsealed(&mut self, spares: &Spares) -> io::Result<()> {
        let scanned = self.scan_unsealed()?;
        let proven = self.proven(&scanned);
        let mut to_seal = Vec::new();
        let mut to_drop = Vec::new();
        let mut is_cut = false;
        for (unsealed, mut scan, behind) in scanned {
            if is_cut {
                to_drop.push(unsealed);
                continue;
            }
            let id = unsealed.header.id;
            let sure_to = scan::sure_to(id, proven);
            if !scan.is_complete && scan.end < sure_to {
                // It stopped at damage. Knowing how far the log was synced, a second scan gets past it.
                let bytes = read::whole_file(&*unsealed.file, unsealed.file_bytes)?;
                scan = scan::scan(&bytes, unsealed.header.salt, sure_to);
                self.report(id, &scan.damage);
            }
            if !scan.is_complete && proven.segment <= id {
                is_cut = true;
                self.recovered.truncated_bytes += u64::from(behind.end.saturating_sub(scan.end));
            }
            if !scan.has_entries && scan.damage.is_empty() {
                to_drop.push(unsealed);
                continue;
            }
            let Unsealed { header, file, file_bytes } = unsealed;
            let manifest = scan.last_manifest.map(|byte| Position { segment: id, byte });
            let segment = Segment::with_frames(header, file, file_bytes, scan.end, scan.index);
            to_seal.push((Arc::new(segment), manifest));
        }
        // What lies behind a cut goes first: were the cut sealed before, a crash in between would leave a log
        // with a hole that looks whole.
        for unsealed in to_drop {
            spares.give(unsealed.header.id, unsealed.file_bytes)?;
        }
        for (segment, manifest) in to_seal {
            segment.seal(manifest.or_else(|| self.manifest_before(segment.id())), EndFrame::Missing)?;
            self.segments.insert(segment.id(), segment);
        }
        Ok(())
    }

    fn manifest_before(&self, id: SegmentId) -> Option<Position> {
        let (_, before) = self.segments.range(..id).next_back()?;
        last_manifest(before)
    }

    fn report(&mut self, id: SegmentId, broken: &[Broken]) {
        if broken.is_empty() {
            return;
        }
        let copy = self.set_aside(id);
        for broken in broken {
            let at = Position { segment: id, byte: broken.at };
            warn!(%at, end = broken.end, fact = broken.fact, "the log is damaged");
            let (end, fact) = (broken.end, broken.fact.to_owned());
            self.recovered.damage.push(Damage { at, end, fact, copy: copy.clone() });
        }
    }

    fn set_aside(&self, id: SegmentId) -> Option<String> {
        set_aside(&**self.disk, id)
    }

    /// Reads the latest manifest that can be read, and reports those that cannot.
    fn find_manifest(&mut self) {
        let mut places: Vec<Position> = self.segments.values().filter_map(|s| last_manifest(s)).collect();
        places.sort_unstable();
        places.dedup();
        for at in places.into_iter().rev() {
            let Some(segment) = self.segments.get(&at.segment) else { continue };
            match read::frame_in_file(segment, at.byte) {
                Ok(frame) => {
                    let manifest = frame.entries.into_iter().rfind(|entry| entry.kind == EntryKind::Manifest);
                    if let Some(entry) = manifest {
                        self.recovered.last_manifest = Some((at, entry.payload));
                        return;
                    }
                }
                Err(error) => {
                    warn!(%at, %error, "a manifest cannot be read; looking for an earlier one");
                    let copy = self.set_aside(at.segment);
                    let damage = Damage { at, end: at.byte, fact: error.to_string(), copy };
                    self.recovered.damage.push(damage);
                }
            }
        }
    }

    /// Makes the segment to go on in. On a full disk a small one will do: what frees space must still fit.
    fn start_segment(&self, spares: &Spares, options: &LogOptions) -> Result<Arc<Segment>, OpenError> {
        let id = SegmentId(self.highest.0 + 1);
        let mut result = spares.prepare(id);
        let mut bytes = options.segment_bytes;
        while bytes / 2 >= SEGMENT_BYTES_MIN && matches!(&result, Err(error) if is_out_of_space(error)) {
            bytes /= 2;
            result = spares.create(id, bytes);
        }
        result.map(Arc::new).map_err(|error| {
            if is_out_of_space(&error) {
                return OpenError::NoSpace { dir: self.disk.name(), bytes: u64::from(bytes) };
            }
            io_error(&**self.disk, "prepare a segment")(error)
        })
    }
}

/// Writes both copies of the header again, so that the next damage to one of them is survived as well.
fn repair_header(file: &dyn DiskFile, header: &Header) -> io::Result<()> {
    for (at, copy) in header.copies() {
        file.write_at(&copy, at)?;
    }
    file.sync_data()
}

fn last_manifest(segment: &Segment) -> Option<Position> {
    segment.with_index(|index| match index {
        Index::Sealed(seal) => seal.last_manifest,
        Index::Memory(_) | Index::Rebuilt(_) => None,
    })
}

/// Copies a segment file to `damaged/` and says where to. A copy that fails is no reason not to go on.
pub(crate) fn set_aside(disk: &dyn Disk, id: SegmentId) -> Option<String> {
    match copy_damaged(disk, id) {
        Ok(path) => Some(path),
        Err(error) => {
            warn!(segment = %id, %error, "cannot copy a damaged segment to damaged/");
            None
        }
    }
}

fn copy_damaged(disk: &dyn Disk, id: SegmentId) -> io::Result<String> {
    let read = |path: &str| -> io::Result<Vec<u8>> {
        let file = disk.open(path)?;
        read::whole_file(&*file, u32::try_from(file.len()?).unwrap_or(u32::MAX))
    };
    let bytes = read(&segment_path(id))?;
    let names = disk.list(DAMAGED)?;
    let mut path = format!("{DAMAGED}/{id}.seg");
    for n in 1.. {
        if !names.iter().any(|name| path.ends_with(name.as_str())) {
            break;
        }
        // The same damage is met at every start; one copy of it is enough.
        if read(&path)? == bytes {
            return Ok(path);
        }
        path = format!("{DAMAGED}/{id}-{n}.seg");
    }
    let to = disk.create(&path)?;
    to.write_at(&bytes, 0)?;
    to.sync_data()?;
    disk.sync_dir(DAMAGED)?;
    Ok(path)
}
