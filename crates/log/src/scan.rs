//! Reading a segment without its footer: after a crash, or because the footer is damaged.
//!
//! A scan walks from frame to frame. Where the next one does not verify, either the power went while it was
//! written, and the log ends there; or it was durable once and is damaged. Commit markers tell the two apart:
//! each says how far the log had been synced when it was written.

use nexo_types::{Position, SegmentId};

use crate::entry::{self, EntryKind};
use crate::frame::{self, Bad, Content};
use crate::header::HEADER_BYTES;
use crate::index::SegmentIndex;

/// What a scan found.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) index: SegmentIndex,
    /// Where the last good frame ends.
    pub(crate) end: u32,
    /// Whether the scan came to the frame that ends a segment.
    pub(crate) is_complete: bool,
    pub(crate) has_entries: bool,
    /// Where the last frame with a manifest starts.
    pub(crate) last_manifest: Option<u32>,
    pub(crate) damage: Vec<Broken>,
    /// The highest position that a marker among these frames says was synced.
    pub(crate) proof: Option<Position>,
}

/// What lies behind the point where a scan stopped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Behind {
    /// The highest position that a marker there says was synced.
    pub(crate) proof: Option<Position>,
    /// Where the last frame there ends, as far as can be told.
    pub(crate) end: u32,
}

/// A stretch of bytes that should have been frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) at: u32,
    pub(crate) end: u32,
    pub(crate) fact: &'static str,
}

/// Walks over a whole segment file. Everything before `sure_to` is known to have been synced.
pub(crate) fn scan(bytes: &[u8], salt: u32, sure_to: u32) -> Scan {
    let mut scan = Scan { end: HEADER_BYTES, ..Scan::default() };
    loop {
        let at = scan.end;
        let rest = bytes.get(at as usize..).unwrap_or_default();
        let fact = match frame::check(rest, salt, at) {
            Ok(checked) => match scan.take(at, &checked) {
                Ok(()) if scan.is_complete => return scan,
                Ok(()) => continue,
                Err(fact) => fact,
            },
            Err(Bad::Broken(fact)) => fact,
            Err(Bad::Short(_)) => "the frame is cut off or its length is wrong",
        };
        if at >= sure_to {
            return scan;
        }
        let Some(next) = next_frame(bytes, salt, at + 1, sure_to) else {
            scan.damage.push(Broken { at, end: sure_to.min(bytes.len() as u32).max(at), fact });
            return scan;
        };
        scan.damage.push(Broken { at, end: next, fact });
        scan.end = next;
    }
}

impl Scan {
    fn take(&mut self, at: u32, checked: &frame::Checked<'_>) -> Result<(), &'static str> {
        match checked.content {
            Content::Entries(entries) => {
                let mut has_manifest = false;
                entry::walk_entries(
                    entries,
                    |queue, span| self.index.add(at, queue, span),
                    |kind| has_manifest |= kind == EntryKind::Manifest,
                )
                .ok_or("the entries are malformed")?;
                self.has_entries = true;
                if has_manifest {
                    self.last_manifest = Some(at);
                }
            }
            Content::Marker(synced) => self.proof = self.proof.max(Some(synced)),
            Content::End => self.is_complete = true,
        }
        if !self.is_complete {
            self.end = at + checked.len as u32;
        }
        Ok(())
    }
}

/// The first place from `from` up to `to` (which is included, as a place where frames go on) with a good frame.
pub(crate) fn next_frame(bytes: &[u8], salt: u32, from: u32, to: u32) -> Option<u32> {
    let last = to.min(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    (from..=last).find(|&at| {
        let rest = bytes.get(at as usize..).unwrap_or_default();
        frame::check_if_plausible(rest, salt, at).is_some()
    })
}

/// Looks for markers, and frames after them, at every byte from `from` on.
pub(crate) fn look_behind(bytes: &[u8], salt: u32, from: u32) -> Behind {
    let mut behind = Behind { proof: None, end: from };
    let mut search = from as usize;
    while let Some((at, synced)) = frame::find_marker(bytes, salt, search) {
        behind.proof = behind.proof.max(Some(synced));
        let mut end = at;
        while let Ok(checked) = frame::check(bytes.get(end..).unwrap_or_default(), salt, end as u32) {
            if let Content::Marker(synced) = checked.content {
                behind.proof = behind.proof.max(Some(synced));
            }
            end += checked.len;
        }
        behind.end = end as u32;
        search = end;
    }
    behind
}

/// How far `segment` is sure to have been synced, given that the log was up to `proven`.
pub(crate) fn sure_to(segment: SegmentId, proven: Position) -> u32 {
    match proven.segment.cmp(&segment) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Equal => proven.byte,
        std::cmp::Ordering::Greater => u32::MAX,
    }
}
