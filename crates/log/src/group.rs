//! Frames on their way to the disk: a buffer that appends go into, in pieces that each belong to one segment.
//!
//! There are two of them. While the writer writes one, the other fills; a frame can be read from either.

use std::sync::Arc;

use nexo_types::Position;

use crate::frame;
use crate::segment::Segment;

/// One commit group.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) bytes: Vec<u8>,
    pieces: Vec<Piece>,
    pub(crate) frames: u64,
}

/// The part of a group that goes into one segment. It starts with a commit marker.
#[derive(Debug)]
struct Piece {
    segment: Arc<Segment>,
    /// Where in the segment.
    at: u32,
    /// Where in the buffer.
    start: usize,
    /// For a segment that ends with this group: the latest manifest so far.
    ends: Option<Option<Position>>,
}

/// A piece as the writer sees it.
pub(crate) struct PieceRef<'a> {
    pub(crate) segment: &'a Arc<Segment>,
    pub(crate) at: u32,
    pub(crate) bytes: &'a [u8],
    /// Set if the segment ends here: the latest manifest so far.
    pub(crate) ends: Option<Option<Position>>,
}

impl Group {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Empties the group and keeps its memory for the next, within reason.
    pub(crate) fn clear(&mut self, keep_bytes_max: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(keep_bytes_max);
        self.pieces.clear();
        self.frames = 0;
    }

    /// Whether the next frame for `segment` needs a commit marker before it.
    pub(crate) fn needs_piece(&self, segment: &Arc<Segment>) -> bool {
        self.pieces.last().is_none_or(|piece| !Arc::ptr_eq(&piece.segment, segment))
    }

    /// Starts a piece with its marker. What the marker says is filled in when the group is taken.
    pub(crate) fn start_piece(&mut self, segment: &Arc<Segment>, at: u32) {
        let start = self.bytes.len();
        frame::put_marker(&mut self.bytes, segment.header.salt, at, Position::default());
        self.pieces.push(Piece { segment: segment.clone(), at, start, ends: None });
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
            let Piece { segment, at, start, .. } = &self.pieces[i];
            frame::renew_marker(&mut self.bytes, *start, segment.header.salt, *at, synced);
            synced = segment.position(*at + (self.piece_end(i) - *start) as u32);
        }
    }

    fn piece_end(&self, i: usize) -> usize {
        self.pieces.get(i + 1).map_or(self.bytes.len(), |next| next.start)
    }

    /// The pieces in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = PieceRef<'_>> {
        self.pieces.iter().enumerate().map(|(i, piece)| PieceRef {
            segment: &piece.segment,
            at: piece.at,
            bytes: &self.bytes[piece.start..self.piece_end(i)],
            ends: piece.ends,
        })
    }

    /// The buffered bytes from `at` on, with the segment they are for.
    pub(crate) fn find(&self, at: Position) -> Option<(Arc<Segment>, &[u8])> {
        self.pieces().filter(|piece| piece.segment.id() == at.segment).find_map(|piece| {
            let skip = at.byte.checked_sub(piece.at)? as usize;
            let bytes = piece.bytes.get(skip..).filter(|rest| !rest.is_empty())?;
            Some((piece.segment.clone(), bytes))
        })
    }
}
