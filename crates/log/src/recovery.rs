//! Opening: what is on the disk becomes a log again.
//!
//! Sealed segments are known from their first block. The others are scanned: usually the one that was being
//! written and the one prepared after it. Every opening goes on in a fresh segment, so a segment holds frames
//! of one run only, and what a torn tail left behind a cut can never come to life again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{Position, QueueId, SegmentId};
use tracing::{info, warn};

use crate::damage;
use crate::disk::{Disk, DiskFile};
use crate::entry::EntryKind;
use crate::error::{Damage, OpenError, is_out_of_space};
use crate::header::{HEADER_BYTES, Header, SEAL_SECTOR_AT, Seal, TRAILER_BYTES};
use crate::inventory::{Inventory, Leaves, Listed};
use crate::layout::{self, SEGMENTS, io_error, segment_path};
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
    /// There was no log before.
    pub is_new: bool,
    /// Places that were durable once and cannot be read.
    pub damage: Vec<Damage>,
    /// Bytes behind the end that had been written but never synced, as far as can be told. Nobody was promised
    /// them.
    pub truncated_bytes: u64,
    /// Segments that had to be scanned.
    pub scanned_segments: usize,
    /// Segments whose files are missing, or of which nothing could be read.
    pub lost_segments: Vec<SegmentId>,
    /// Segments that were lost before this opening, and told then. Records that lay there are missing still.
    pub lost_before: Vec<SegmentId>,
    /// The highest segment that was ever retired, 0 if none was; `None` if that is not known. Whoever needs what was
    /// appended in it or before cannot go by the log.
    pub retired_to: Option<SegmentId>,
    /// Places of manifests behind the latest that can be read: they cannot.
    pub lost_manifests: Vec<Position>,
    /// There was a manifest once, and none can be read.
    pub manifest_lost: bool,
    /// One of two copies could not be read and was written again, in words. Nothing is lost, and a crash may be the cause.
    pub repairs: Vec<String>,
}

impl Recovered {
    /// Whether something cannot be read that was durable once.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        !self.damage.is_empty()
            || !self.lost_segments.is_empty()
            || !self.lost_before.is_empty()
            || !self.lost_manifests.is_empty()
            || self.manifest_lost
    }
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
    /// The file is shorter than it was made.
    cut: bool,
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
    let (inventory, listed) =
        Inventory::open(disk).map_err(io_error(&**disk, "read the list of segments"))?;
    if inventory.lost_copy() {
        // Making the segment to go on in writes both copies.
        recovery.note_repair("one of the two copies of INVENTORY cannot be read; it is written again".into());
    }
    let present = recovery.list_segments()?;
    recovery.check_missing(&listed, &present, options)?;
    for id in present {
        recovery.read_header(id, &inventory).map_err(io_error(&**disk, format!("read segment {id}")))?;
    }
    let (spares, highest_spare) =
        Spares::open(disk.clone(), options.segment_bytes, options.spare_segments_max, inventory)
            .map_err(io_error(&**disk, "look through spare files"))?;
    recovery.highest = recovery.highest.max(highest_spare);
    recovery.settle_unsealed(&spares).map_err(io_error(&**disk, "recover the end of the log"))?;
    recovery.find_manifest();
    let active = recovery.start_segment(&spares, options)?;
    let Recovery { mut segments, mut recovered, .. } = recovery;
    recovered.is_new = segments.is_empty() && recovered.lost_segments.is_empty();
    recovered.end = segments
        .values()
        .next_back()
        .map_or(active.position(HEADER_BYTES), |segment| segment.position(segment.frames_end()));
    segments.insert(active.id(), active.clone());
    spares
        .list_segments(segments.keys().copied().collect(), &recovered.lost_segments)
        .map_err(io_error(&**disk, "write the list of segments"))?;
    if recovered.truncated_bytes > 0 {
        info!(bytes = recovered.truncated_bytes, end = %recovered.end, "cut what had never been synced");
    }
    Ok(Opened { segments, active, spares, recovered })
}

impl Recovery<'_> {
    fn list_segments(&mut self) -> Result<BTreeSet<SegmentId>, OpenError> {
        let mut present = BTreeSet::new();
        let names = self.disk.list(SEGMENTS).map_err(io_error(&**self.disk, "list segments"))?;
        for name in names {
            match layout::parse_segment_name(&name) {
                Some(id) => present.insert(id),
                None => {
                    warn!(name, "a file in segments/ is not a segment; left alone");
                    continue;
                }
            };
        }
        self.highest = present.last().copied().unwrap_or_default();
        Ok(present)
    }

    /// Refuses a log that is not complete before anything is changed, unless told to go on without the rest.
    fn check_missing(
        &mut self,
        listed: &Listed,
        present: &BTreeSet<SegmentId>,
        options: &LogOptions,
    ) -> Result<(), OpenError> {
        let must_be_there = match listed {
            Listed::Known(list) => {
                self.recovered.retired_to = list.retired_to;
                self.recovered.lost_before = list.lost.difference(present).copied().collect();
                &list.ids
            }
            Listed::Unreadable(fact) => {
                let fact = format!("{fact}: it is not known whether all segments are there");
                let at = Position::default();
                self.recovered.damage.push(Damage { at, end: 0, fact, copy: None, lost: Some(Vec::new()) });
                return Ok(());
            }
        };
        let segments: Vec<SegmentId> = must_be_there.difference(present).copied().collect();
        if !segments.is_empty() && !options.accept_loss {
            return Err(OpenError::Missing { dir: self.disk.name(), segments });
        }
        for id in segments {
            let at = Position { segment: id, byte: 0 };
            let fact = "the file is missing".to_owned();
            self.recovered.damage.push(Damage { at, end: u32::MAX, fact, copy: None, lost: None });
            self.recovered.lost_segments.push(id);
            self.highest = self.highest.max(id);
        }
        Ok(())
    }

    fn read_header(&mut self, id: SegmentId, inventory: &Inventory) -> io::Result<()> {
        let file = self.disk.open(&segment_path(id))?;
        let mut file_bytes = u32::try_from(file.len()?).unwrap_or(u32::MAX);
        let mut found = Headers::read(&*file, file_bytes, id)?;
        if let Some(seal) = found.seal.filter(|seal| seal.file_bytes < file_bytes) {
            // A crash came between the seal and the cut that ends sealing. The trailer may not have been written either.
            let header = found.header.unwrap_or(seal.header);
            file.write_at(&header.trailer(Some(&seal)), u64::from(seal.file_bytes - TRAILER_BYTES))?;
            file.sync_data()?;
            file.set_len(seal.file_bytes.into())?;
            file_bytes = seal.file_bytes;
            found = Headers::read(&*file, file_bytes, id)?;
        }
        let known = found.header.or(found.seal.map(|seal| seal.header));
        let Some(known) = known else {
            // Without the salt nothing in the file can be told from garbage.
            inventory.remove(id, Leaves::Lost)?;
            drop(file);
            let copy = damage::move_aside(&**self.disk, id)?;
            self.report_header(id, file_bytes, "no copy of the header can be read", Some(copy), None);
            self.recovered.lost_segments.push(id);
            return Ok(());
        };
        let expected = found.seal.map_or(known.file_bytes, |seal| seal.file_bytes);
        let cut = file_bytes < expected;
        if cut {
            let at = Position { segment: id, byte: file_bytes };
            let fact = format!("the file was cut from {expected} bytes to {file_bytes}");
            self.recovered.damage.push(Damage { at, end: expected, fact, copy: None, lost: None });
        }
        let only_cut = cut && found.front_is_whole;
        if !found.is_whole && !only_cut {
            let copy = damage::keep_copy(&**self.disk, id, 0, HEADER_BYTES, &found.block);
            let fact = "a copy of the header is damaged; it is repaired";
            // Damage at the end of a segment without a seal may have hit what was written last, which nothing proves.
            let is_sure = found.seal.is_some() || found.trailer_is_whole;
            self.report_header(id, HEADER_BYTES, fact, copy, is_sure.then(Vec::new));
            repair_header(&*file, file_bytes, &known, found.seal.as_ref(), cut)?;
        } else if found.lost_seal_copy && !cut {
            let path = segment_path(id);
            self.note_repair(format!(
                "one of the two copies of the seal of {path} cannot be read; it is written again"
            ));
            repair_header(&*file, file_bytes, &known, found.seal.as_ref(), cut)?;
        }
        match found.seal {
            Some(seal) => {
                let seal = Seal { header: known, ..seal };
                self.segments.insert(id, Arc::new(Segment::sealed(seal, file, file_bytes)));
            }
            None => self.unsealed.push(Unsealed { header: known, file, file_bytes, cut }),
        }
        Ok(())
    }

    /// Says what is mended although nothing is lost.
    fn note_repair(&mut self, fact: String) {
        warn!("{fact}");
        self.recovered.repairs.push(fact);
    }

    fn report_header(
        &mut self,
        id: SegmentId,
        end: u32,
        fact: &str,
        copy: Option<String>,
        lost: Option<Vec<(QueueId, u64)>>,
    ) {
        let at = Position { segment: id, byte: 0 };
        self.recovered.damage.push(Damage { at, end, fact: fact.to_owned(), copy, lost });
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
                self.report(id, &scan.damage, &bytes);
            }
            // Where it stopped at damage, the log went on behind that: what later segments hold may have been promised.
            let stopped_at_damage = scan.end < sure_to;
            if !scan.is_complete && proven.segment <= id && !stopped_at_damage {
                is_cut = true;
                self.recovered.truncated_bytes += u64::from(behind.end.saturating_sub(scan.end));
            }
            if !scan.has_entries && scan.damage.is_empty() {
                to_drop.push(unsealed);
                continue;
            }
            let Unsealed { header, file, file_bytes, cut } = unsealed;
            let manifest = scan.last_manifest.map(|byte| Position { segment: id, byte });
            let segment = Segment::with_frames(header, file, file_bytes, scan.end, scan.index);
            if cut || !scan.damage.is_empty() {
                segment.set_index_partial();
            }
            to_seal.push((Arc::new(segment), manifest));
        }
        // What lies behind a cut goes first: were the cut sealed before, a crash in between would leave a log
        // with a hole that looks whole.
        for unsealed in to_drop {
            spares.give(unsealed.header.id, unsealed.file_bytes, Leaves::Unused)?;
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

    fn report(&mut self, id: SegmentId, broken: &[Broken], file: &[u8]) {
        for broken in broken {
            let at = Position { segment: id, byte: broken.at };
            let copy = damage::keep_copy(&**self.disk, id, broken.at, broken.end, file);
            let (end, fact) = (broken.end, broken.fact.to_owned());
            self.recovered.damage.push(Damage { at, end, fact, copy, lost: None });
        }
    }

    /// Reads the latest manifest that can be read, and reports those that cannot. A seal names the last one only:
    /// where that is damaged, its segment is searched for the one before it.
    fn find_manifest(&mut self) {
        let mut places: Vec<Position> = self.segments.values().filter_map(|s| last_manifest(s)).collect();
        places.sort_unstable();
        places.dedup();
        for at in places.iter().rev() {
            let found = self.read_manifest(*at).or_else(|| {
                let segment = self.segments.get(&at.segment)?;
                last_manifest_in(segment, at.byte)
            });
            if found.as_ref().is_none_or(|(found, _)| found != at) {
                self.recovered.lost_manifests.push(*at);
            }
            if let Some(found) = found {
                self.recovered.last_manifest = Some(found);
                return;
            }
        }
        self.recovered.manifest_lost = !places.is_empty();
    }

    fn read_manifest(&mut self, at: Position) -> Option<(Position, Bytes)> {
        let segment = self.segments.get(&at.segment)?.clone();
        match read::frame_in_file(&segment, at.byte) {
            Ok(frame) => {
                let manifest = frame.entries.into_iter().rfind(|entry| entry.kind == EntryKind::Manifest);
                manifest.map(|entry| (at, entry.payload))
            }
            Err(error) => {
                warn!(%at, %error, "a manifest cannot be read; looking for an earlier one");
                let file = read::whole_file(&*segment.file, segment.file_bytes()).unwrap_or_default();
                let frames_end = segment.frames_end();
                let end = scan::next_frame(&file, segment.header.salt, at.byte + 1, frames_end);
                let end = end.unwrap_or(frames_end);
                let copy = damage::keep_copy(&**self.disk, at.segment, at.byte, end, &file);
                let fact = format!("a checkpoint cannot be read: {error}");
                self.recovered.damage.push(Damage { at, end, fact, copy, lost: Some(Vec::new()) });
                None
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

/// What the first block and the trailer of a segment file say.
struct Headers {
    block: Vec<u8>,
    header: Option<Header>,
    seal: Option<Seal>,
    front_is_whole: bool,
    trailer_is_whole: bool,
    /// Every copy of the header is good.
    is_whole: bool,
    /// The segment is sealed, and only one copy of the seal is good.
    lost_seal_copy: bool,
}

impl Headers {
    fn read(file: &dyn DiskFile, file_bytes: u32, id: SegmentId) -> io::Result<Self> {
        let mut block = vec![0; HEADER_BYTES as usize];
        let len = file.read_at(&mut block, 0)?;
        block.truncate(len);
        let mut trailer = vec![0; TRAILER_BYTES as usize];
        let trailer_at = file_bytes.saturating_sub(TRAILER_BYTES).max(HEADER_BYTES);
        let len = file.read_at(&mut trailer, trailer_at.into())?;
        trailer.truncate(len);
        let front = Header::read(&block).filter(|(header, _)| header.id == id);
        let back = Header::read_trailer(&trailer).filter(|header| header.id == id);
        let header = front.map(|(header, _)| header).or(back);
        let is_ours = |seal: &Seal| {
            seal.header.id == id && header.is_none_or(|header| header.is_same_use(&seal.header))
        };
        let front_is_whole = front.is_some_and(|(_, both)| both);
        let trailer_is_whole = back == header;
        let is_whole = front_is_whole && trailer_is_whole;
        let seals = [Seal::read(&block), Seal::read_trailer(&trailer)].map(|seal| seal.filter(is_ours));
        let seal = seals[0].or(seals[1]);
        let lost_seal_copy = seals[0] != seals[1];
        Ok(Self { block, header, seal, front_is_whole, trailer_is_whole, is_whole, lost_seal_copy })
    }
}

/// Writes every copy of the header again, so that the next damage to one of them is survived as well.
fn repair_header(
    file: &dyn DiskFile,
    file_bytes: u32,
    header: &Header,
    seal: Option<&Seal>,
    cut: bool,
) -> io::Result<()> {
    for (at, copy) in header.copies() {
        file.write_at(&copy, at)?;
    }
    if let Some(seal) = seal {
        file.write_at(&seal.sector(), SEAL_SECTOR_AT)?;
    }
    // Where a file was cut, frames may lie where the trailer would go.
    if !cut && file_bytes >= HEADER_BYTES + TRAILER_BYTES {
        file.write_at(&header.trailer(seal), u64::from(file_bytes - TRAILER_BYTES))?;
    }
    file.sync_data()
}

/// Searches the frames before `end` for the last manifest that can be read.
pub(crate) fn last_manifest_in(segment: &Segment, end: u32) -> Option<(Position, Bytes)> {
    let file = read::whole_file(&*segment.file, segment.file_bytes()).ok()?;
    let before = &file[..file.len().min(end as usize)];
    let at = scan::scan(before, segment.header.salt, end).last_manifest?;
    let frame = read::frame_in_file(segment, at).ok()?;
    let manifest = frame.entries.into_iter().rfind(|entry| entry.kind == EntryKind::Manifest)?;
    Some((segment.position(at), manifest.payload))
}

fn last_manifest(segment: &Segment) -> Option<Position> {
    segment.with_index(|index| match index {
        Index::Sealed(seal) => seal.last_manifest,
        Index::Memory(_) | Index::Rebuilt(_) => None,
    })
}
