//! Frames on their way to the disk: a buffer that appends go into, in pieces that each belong to one segment.
//!
//! There are two of them. While the writer writes one, the other fills; a frame can be read from either.

use std::sync::Arc;

use bytes::Bytes;
use nexo_types::Position;

use crate::frame::{self, MARKER_BYTES};
use crate::segment::Segment;

/// One commit group.
#[derive(Debug, Default)]
pub(crate) struct CommitGroup {
    pub(crate) bytes: Vec<u8>,
    pieces: Vec<Piece>,
    pub(crate) frames: u64,
    /// The length of all large frames; they are not in `bytes`.
    large_bytes: usize,
}

/// The part of a group that goes into one segment. It starts with a commit marker.
#[derive(Debug)]
struct Piece {
    segment: Arc<Segment>,
    /// Where in the segment.
    at: u32,
    /// Where in the buffer.
    start: usize,
    /// A frame that comes between the marker and what else the buffer holds of this piece. It is kept as it
    /// came: copying it would hold up everybody who appends.
    large: Option<Bytes>,
    /// For a segment that ends with this group: the latest manifest so far.
    ends: Option<Option<Position>>,
}

/// A piece as the writer sees it.
pub(crate) struct PieceRef<'a> {
    pub(crate) segment: &'a Arc<Segment>,
    at: u32,
    /// Everything, or the marker alone if a large frame follows it.
    head: &'a [u8],
    large: Option<&'a Bytes>,
    /// What comes behind the large frame.
    tail: &'a [u8],
    /// Set if the segment ends here: the latest manifest so far.
    pub(crate) ends: Option<Option<Position>>,
}

/// Bytes in a group, from a position on.
pub(crate) enum Buffered<'a> {
    /// Part of the buffer, which moves when it grows.
    Part(&'a [u8]),
    /// A whole frame that stays where it is.
    Large(&'a Bytes),
}

impl CommitGroup {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// How much there is to write.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + self.large_bytes
    }

    /// Empties the group and keeps its memory for the next, within reason. Gives back the large frames: letting
    /// go of that much memory takes long, and the caller holds a lock.
    pub(crate) fn clear(&mut self, keep_bytes_max: usize) -> Vec<Bytes> {
        self.bytes.clear();
        self.bytes.shrink_to(keep_bytes_max);
        self.frames = 0;
        self.large_bytes = 0;
        self.pieces.drain(..).filter_map(|piece| piece.large).collect()
    }

    /// Whether the next frame for `segment` needs a commit marker before it.
    pub(crate) fn needs_piece(&self, segment: &Arc<Segment>) -> bool {
        self.pieces.last().is_none_or(|piece| !Arc::ptr_eq(&piece.segment, segment))
    }

    /// Starts a piece with its marker. What the marker says is filled in when the group is taken.
    pub(crate) fn start_piece(&mut self, segment: &Arc<Segment>, at: u32) {
        self.push_piece(segment, at, None);
    }

    /// Starts a piece with its marker and a frame that was encoded before.
    pub(crate) fn start_large_piece(&mut self, segment: &Arc<Segment>, at: u32, frame: Bytes) {
        self.large_bytes += frame.len();
        self.frames += 1;
        self.push_piece(segment, at, Some(frame));
    }

    fn push_piece(&mut self, segment: &Arc<Segment>, at: u32, large: Option<Bytes>) {
        let start = self.bytes.len();
        frame::put_marker(&mut self.bytes, segment.header.salt, at, Position::default());
        self.pieces.push(Piece { segment: segment.clone(), at, start, large, ends: None });
    }

    /// Marks the last piece as the end of its segment.
    pub(crate) fn end_segment(&mut self, last_manifest: Option<Position>) {
        if let Some(piece) = self.pieces.last_mut() {
            piece.ends = Some(last_manifest);
        }
    }

    /// Fills in the markers, given how far the log is synced. The writer syncs each segment before it writes to
    /// the next, so a later piece may say that everything before it is synced.
    pub(crate) fn fill_in_markers(&mut self, synced: Position) {
        let mut synced = synced;
        for i in 0..self.pieces.len() {
            let end = self.piece(i).end();
            let Piece { segment, at, start, .. } = &self.pieces[i];
            frame::renew_marker(&mut self.bytes, *start, segment.header.salt, *at, synced);
            synced = end;
        }
    }

    /// The pieces in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = PieceRef<'_>> {
        (0..self.pieces.len()).map(|i| self.piece(i))
    }

    fn piece(&self, i: usize) -> PieceRef<'_> {
        let Piece { segment, at, start, large, ends } = &self.pieces[i];
        let end = self.pieces.get(i + 1).map_or(self.bytes.len(), |next| next.start);
        let head_end = if large.is_some() { start + MARKER_BYTES } else { end };
        PieceRef {
            segment,
            at: *at,
            head: &self.bytes[*start..head_end],
            large: large.as_ref(),
            tail: &self.bytes[head_end..end],
            ends: *ends,
        }
    }

    /// The buffered bytes from `at` on, with the segment they are for.
    pub(crate) fn find(&self, at: Position) -> Option<(Arc<Segment>, Buffered<'_>)> {
        self.pieces()
            .filter(|piece| piece.segment.id() == at.segment)
            .find_map(|piece| Some((piece.segment.clone(), piece.find(at.byte)?)))
    }
}

impl<'a> PieceRef<'a> {
    /// What to write, in order, and where in the segment.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u32, &'a [u8])> {
        let parts =
            [(self.at, self.head), (self.large_at(), self.large_bytes()), (self.tail_at(), self.tail)];
        parts.into_iter().filter(|(_, bytes)| !bytes.is_empty())
    }

    /// Where in the log the piece ends.
    pub(crate) fn end(&self) -> Position {
        self.segment.position(self.tail_at() + self.tail.len() as u32)
    }

    fn find(&self, byte: u32) -> Option<Buffered<'a>> {
        if let Some(large) = self.large.filter(|_| byte == self.large_at()) {
            return Some(Buffered::Large(large));
        }
        let from = |at: u32, bytes: &'a [u8]| {
            let rest = bytes.get(byte.checked_sub(at)? as usize..)?;
            (!rest.is_empty()).then_some(Buffered::Part(rest))
        };
        from(self.at, self.head).or_else(|| from(self.tail_at(), self.tail))
    }

    fn large_bytes(&self) -> &'a [u8] {
        self.large.map(|large| &large[..]).unwrap_or_default()
    }

    fn large_at(&self) -> u32 {
        self.at + self.head.len() as u32
    }

    fn tail_at(&self) -> u32 {
        self.large_at() + self.large_bytes().len() as u32
    }
}
