//! Frames: the unit that is in the log whole or not at all. Encoding, checking, and telling the kinds apart.
//!
//! A frame's checksum begins with the segment's salt and the frame's own position. A segment file that is used
//! again gets another salt, so nothing that an earlier use left behind verifies, and the file need not be
//! zeroed. CRC-32C is a bijection of its first four bytes when the rest is the same: an old frame with the
//! same bytes at the same place is refused for certain, not just probably.

use nexo_types::{Position, SegmentId};

use crate::entry::{self, EntryRef};

/// Length and checksum.
pub(crate) const FRAME_HEADER_BYTES: usize = 8;
/// A commit marker, header included.
pub(crate) const MARKER_BYTES: usize = FRAME_HEADER_BYTES + MARKER_PAYLOAD_BYTES;
/// An end frame, header included.
pub(crate) const END_BYTES: usize = FRAME_HEADER_BYTES + END_PAYLOAD_BYTES;

const MARKER_PAYLOAD_BYTES: usize = 9;
const END_PAYLOAD_BYTES: usize = 1;

const KIND_ENTRIES: u8 = 1;
const KIND_MARKER: u8 = 2;
const KIND_END: u8 = 3;

/// What a checked frame holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content<'a> {
    /// Entries, still encoded.
    Entries(&'a [u8]),
    /// Everything before this position had been synced when the marker was written.
    Marker(Position),
    /// The segment has no more frames.
    End,
}

/// A frame that was checked.
#[derive(Debug)]
pub(crate) struct Checked<'a> {
    pub(crate) content: Content<'a>,
    /// Length of the whole frame.
    pub(crate) len: usize,
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    /// The frame is longer than the bytes at hand; it needs this many.
    Short(usize),
    /// It can never be one.
    Broken(&'static str),
}

fn checksum(salt: u32, byte: u32, payload: &[u8]) -> u32 {
    let mut seed = [0; 12];
    seed[..4].copy_from_slice(&salt.to_le_bytes());
    seed[4..8].copy_from_slice(&byte.to_le_bytes());
    seed[8..].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&seed), payload)
}

/// The length of a frame with these entries.
pub(crate) fn entries_frame_len(entries: &[EntryRef<'_>]) -> usize {
    FRAME_HEADER_BYTES + 1 + entries.iter().map(EntryRef::encoded_len).sum::<usize>()
}

/// Appends a frame with `entries`, which will lie at `byte` of its segment.
pub(crate) fn put_entries(out: &mut Vec<u8>, salt: u32, byte: u32, entries: &[EntryRef<'_>]) {
    let start = open(out, KIND_ENTRIES);
    for entry in entries {
        entry.encode(out);
    }
    close(out, start, salt, byte);
}

/// Appends a commit marker.
pub(crate) fn put_marker(out: &mut Vec<u8>, salt: u32, byte: u32, synced: Position) {
    let start = open(out, KIND_MARKER);
    out.extend_from_slice(&synced.segment.0.to_le_bytes());
    out.extend_from_slice(&synced.byte.to_le_bytes());
    close(out, start, salt, byte);
}

/// Writes a commit marker over the one at `start`, which says less.
pub(crate) fn renew_marker(buf: &mut [u8], start: usize, salt: u32, byte: u32, synced: Position) {
    let mut marker = Vec::with_capacity(MARKER_BYTES);
    put_marker(&mut marker, salt, byte, synced);
    buf[start..start + MARKER_BYTES].copy_from_slice(&marker);
}

/// Appends the frame that ends a segment.
pub(crate) fn put_end(out: &mut Vec<u8>, salt: u32, byte: u32) {
    let start = open(out, KIND_END);
    close(out, start, salt, byte);
}

fn open(out: &mut Vec<u8>, kind: u8) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
    out.push(kind);
    start
}

fn close(out: &mut [u8], start: usize, salt: u32, byte: u32) {
    let (header, payload) = out[start..].split_at_mut(FRAME_HEADER_BYTES);
    header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[4..].copy_from_slice(&checksum(salt, byte, payload).to_le_bytes());
}

/// Checks the frame at the head of `buf`, which lies at `byte` of its segment.
pub(crate) fn check(buf: &[u8], salt: u32, byte: u32) -> Result<Checked<'_>, Bad> {
    let (payload, stored) = outline(buf)?;
    if checksum(salt, byte, payload) != stored {
        return Err(Bad::Broken("the checksum does not match"));
    }
    content(payload)
}

/// Takes a frame apart that was checked before.
pub(crate) fn checked_before(buf: &[u8]) -> Result<Checked<'_>, Bad> {
    content(outline(buf)?.0)
}

fn content(payload: &[u8]) -> Result<Checked<'_>, Bad> {
    let content = match payload.split_first() {
        Some((&KIND_ENTRIES, rest)) => Content::Entries(rest),
        Some((&KIND_MARKER, rest)) => Content::Marker(marker(rest).ok_or(Bad::Broken("a malformed marker"))?),
        Some((&KIND_END, [])) => Content::End,
        _ => return Err(Bad::Broken("an unknown kind of frame")),
    };
    Ok(Checked { content, len: FRAME_HEADER_BYTES + payload.len() })
}

/// As [`check`], but turns away what does not look like a frame before summing it up. A scan over arbitrary
/// bytes would otherwise sum up to a whole segment at each of them. What it costs is taken from `budget`.
pub(crate) fn check_if_plausible<'a>(
    buf: &'a [u8],
    salt: u32,
    byte: u32,
    budget: &mut usize,
) -> Option<Checked<'a>> {
    let (payload, _) = outline(buf).ok()?;
    let plausible = match payload.split_first()? {
        (&KIND_ENTRIES, rest) => entry::look_like_entries(rest, budget),
        (&KIND_MARKER, rest) => rest.len() + 1 == MARKER_PAYLOAD_BYTES,
        (&KIND_END, rest) => rest.is_empty(),
        _ => false,
    };
    if !plausible || *budget == 0 {
        return None;
    }
    let checked = check(buf, salt, byte).ok();
    if checked.is_none() {
        *budget = budget.saturating_sub(payload.len());
    }
    checked
}

/// The next commit marker in `buf` from `from` on, where `buf` starts at the segment's first byte.
pub(crate) fn find_marker(buf: &[u8], salt: u32, from: usize) -> Option<(usize, Position)> {
    const LEN: [u8; 4] = (MARKER_PAYLOAD_BYTES as u32).to_le_bytes();
    let mut at = from;
    while let Some(rest) = buf.get(at..).filter(|rest| rest.len() >= MARKER_BYTES) {
        let step = rest.iter().position(|&byte| byte == LEN[0])?;
        at += step;
        let rest = &rest[step..];
        if rest.starts_with(&LEN)
            && rest.get(FRAME_HEADER_BYTES) == Some(&KIND_MARKER)
            && let Ok(Checked { content: Content::Marker(synced), .. }) = check(rest, salt, at as u32)
        {
            return Some((at, synced));
        }
        at += 1;
    }
    None
}

fn outline(buf: &[u8]) -> Result<(&[u8], u32), Bad> {
    let Some((header, rest)) = buf.split_first_chunk::<FRAME_HEADER_BYTES>() else {
        return Err(Bad::Short(FRAME_HEADER_BYTES));
    };
    let [a, b, c, d, e, f, g, h] = *header;
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    if len == 0 {
        return Err(Bad::Broken("there is no frame"));
    }
    let payload = rest.get(..len).ok_or(Bad::Short(FRAME_HEADER_BYTES + len))?;
    Ok((payload, u32::from_le_bytes([e, f, g, h])))
}

fn marker(bytes: &[u8]) -> Option<Position> {
    let &[a, b, c, d, e, f, g, h] = bytes else { return None };
    let segment = SegmentId(u32::from_le_bytes([a, b, c, d]));
    Some(Position { segment, byte: u32::from_le_bytes([e, f, g, h]) })
}

#[cfg(test)]
mod tests {
    use nexo_types::QueueId;

    use super::*;
    use crate::EntryKind;

    fn sample() -> Vec<u8> {
        let entry = EntryRef { queue: QueueId(7), kind: EntryKind::Record, spans: &[], payload: b"hello" };
        let mut out = Vec::new();
        put_entries(&mut out, 9, 4096, &[entry]);
        assert_eq!(out.len(), entries_frame_len(&[entry]));
        out
    }

    #[test]
    fn a_frame_verifies_only_at_its_place_and_with_its_salt() {
        let bytes = sample();
        assert!(check(&bytes, 9, 4096).is_ok());
        assert!(check(&bytes, 10, 4096).is_err());
        assert!(check(&bytes, 9, 4097).is_err());
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = sample();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(check(&bad, 9, 4096).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_marker_is_found_among_other_bytes() {
        let synced = Position { segment: SegmentId(3), byte: 77 };
        let mut out = vec![9; 100];
        put_marker(&mut out, 5, 100, synced);
        out.extend_from_slice(&[0; 50]);
        assert_eq!(find_marker(&out, 5, 0), Some((100, synced)));
        assert_eq!(find_marker(&out, 5, 101), None);
        assert_eq!(find_marker(&out, 6, 0), None);
    }
}
