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

/// What a search for the next frame may sum up, as a multiple of the segment: bytes can look like frames at
/// many places, and each would have to be summed up to its end.
const SEARCH_FACTOR: usize = 4;
/// What it may sum up in a small segment.
const SEARCH_BYTES_MIN: usize = 1024 * 1024;

/// The first place from `from` up to `to` (which is included, as a place where frames go on) with a good frame.
/// Among bytes that only look like frames, at too many places, it is the first commit marker: every group that
/// was written has one.
pub(crate) fn next_frame(bytes: &[u8], salt: u32, from: u32, to: u32) -> Option<u32> {
    let last = to.min(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    let mut budget = bytes.len().saturating_mul(SEARCH_FACTOR).max(SEARCH_BYTES_MIN);
    for at in from..=last {
        let rest = bytes.get(at as usize..).unwrap_or_default();
        if frame::check_if_plausible(rest, salt, at, &mut budget).is_some() {
            return Some(at);
        }
        if budget == 0 {
            let (marker, _) = frame::find_marker(bytes, salt, at as usize)?;
            return u32::try_from(marker).ok().filter(|marker| *marker <= last);
        }
    }
    None
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that look like the head of a large frame at every few bytes.
    fn hostile(bytes: &mut Vec<u8>, len: usize, whole: usize) {
        while bytes.len() < len {
            // Length, checksum, kind, queue, kind of entry, length of the payload: all fits to the end.
            let payload = (whole - bytes.len() - 8) as u32;
            bytes.extend_from_slice(&payload.to_le_bytes());
            bytes.extend_from_slice(&[7; 4]);
            bytes.extend_from_slice(&[1, 1, 1]);
            let rest = u64::from(payload) - 3 - 4;
            let mut number = Vec::new();
            nexo_types::varint::put(&mut number, rest);
            number.resize(4, 0);
            for byte in &mut number[..3] {
                *byte |= 0x80;
            }
            bytes.extend_from_slice(&number);
        }
    }

    #[test]
    fn a_search_among_bytes_that_look_like_frames_costs_little_and_ends_at_a_marker() {
        const WHOLE: usize = 8 * 1024 * 1024;
        let salt = 5;
        let mut bytes = vec![0; HEADER_BYTES as usize];
        hostile(&mut bytes, WHOLE / 2, WHOLE);
        let marker_at = bytes.len() as u32;
        frame::put_marker(&mut bytes, salt, marker_at, Position::default());
        bytes.resize(WHOLE, 0);
        let heads = (marker_at as usize - HEADER_BYTES as usize) / 15;
        let mut budget = usize::MAX;
        let plausible = (HEADER_BYTES..HEADER_BYTES + 300).filter(|&at| {
            let before = budget;
            frame::check_if_plausible(&bytes[at as usize..], salt, at, &mut budget);
            before - budget > WHOLE / 4
        });
        assert!(plausible.count() >= 15 && heads > 200_000, "each of them would be summed up");
        // Summing all up would take an hour; the test's own time limit is the judge.
        assert_eq!(next_frame(&bytes, salt, HEADER_BYTES, WHOLE as u32), Some(marker_at));
    }
}
