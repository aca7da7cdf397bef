//! Reading frames back, from the buffers or from segment files.

use std::io;

use bytes::Bytes;
use nexo_types::Position;

use crate::disk::DiskFile;
use crate::entry::{self, Frame};
use crate::error::ReadError;
use crate::frame::{self, Bad, Content, FRAME_HEADER_BYTES};
use crate::group::Buffered;
use crate::header::HEADER_BYTES;
use crate::segment::Segment;
use crate::shared::LogInner;

/// Read at once when the length of a frame is not known yet.
const GUESS_BYTES: usize = 8 * 1024;
/// Frames this near to each other are read together.
const GAP_BYTES_MAX: u32 = 64 * 1024;
/// The most that is read together.
const RUN_BYTES_MAX: u32 = 1024 * 1024;

/// A frame as it was found, of whatever kind.
pub(crate) enum Found {
    /// Entries.
    Frame(Frame),
    /// Something of the log's own; the next frame is here.
    Other { end: u32 },
    /// The segment has no more frames.
    End,
}

impl Found {
    fn into_frame(self, at: Position) -> Result<Frame, ReadError> {
        match self {
            Self::Frame(frame) => Ok(frame),
            Self::Other { .. } | Self::End => Err(ReadError::NoFrame { at }),
        }
    }
}

impl LogInner {
    pub(crate) fn read_frame(&self, at: Position) -> Result<Frame, ReadError> {
        self.find(at)?.into_frame(at)
    }

    /// Whatever frame starts at `at`.
    pub(crate) fn find(&self, at: Position) -> Result<Found, ReadError> {
        if at >= self.written.get()
            && let Some(found) = self.find_in_memory(at)
        {
            return found;
        }
        let segment = self.segment(at.segment)?;
        self.noted(&segment, found_in_file(&segment, at.byte))
    }

    fn find_in_memory(&self, at: Position) -> Option<Result<Found, ReadError>> {
        let flying = {
            let state = self.state.lock();
            if let Some((segment, buffered)) = state.pending.find(at) {
                // Taken under the lock: the buffer moves when it grows.
                let bytes = buffered_frame(&segment, at, &buffered);
                drop(state);
                return Some(bytes.and_then(|bytes| decode(&segment, at.byte, &bytes)));
            }
            state.flying.clone()?
        };
        let (segment, buffered) = flying.find(at)?;
        let bytes = buffered_frame(&segment, at, &buffered);
        Some(bytes.and_then(|bytes| decode(&segment, at.byte, &bytes)))
    }

    pub(crate) fn read_frames(
        &self,
        segment: &Segment,
        starts: &[u32],
        out: &mut Vec<Result<Frame, ReadError>>,
    ) {
        let written = self.written.get();
        let mut rest = starts;
        while let Some((&first, _)) = rest.split_first() {
            if segment.position(first) >= written {
                out.push(self.read_frame(segment.position(first)));
                rest = &rest[1..];
                continue;
            }
            // What is not written yet is in memory, and must not be looked for in the file.
            let in_file = rest.partition_point(|start| segment.position(*start) < written);
            let run = run_len(&rest[..in_file]);
            let (now, later) = rest.split_at(run);
            rest = later;
            let before = out.len();
            if let [one] = now {
                out.push(frame_in_file(segment, *one));
            } else {
                read_run(segment, now, out);
            }
            for result in &mut out[before..] {
                if let Err(ReadError::Damaged { at, fact }) = result
                    && let Err(error) = self.note_damage(segment, at.byte, fact)
                {
                    *result = Err(error);
                }
            }
        }
    }
}

/// A checked frame that is not written yet.
fn buffered_frame(segment: &Segment, at: Position, buffered: &Buffered<'_>) -> Result<Bytes, ReadError> {
    match buffered {
        Buffered::Part(bytes) => match frame::check(bytes, segment.header.salt, at.byte) {
            Ok(checked) => Ok(Bytes::copy_from_slice(&bytes[..checked.len])),
            Err(_) => Err(ReadError::NoFrame { at }),
        },
        Buffered::Large(bytes) => Ok((*bytes).clone()),
    }
}

/// How many of the frames that start here are read together.
fn run_len(starts: &[u32]) -> usize {
    let first = starts[0];
    let near = |pair: &[u32]| {
        pair[1] >= pair[0] && pair[1] - pair[0] < GAP_BYTES_MAX && pair[1] - first < RUN_BYTES_MAX
    };
    1 + starts.windows(2).take_while(|pair| near(pair)).count()
}

fn read_run(segment: &Segment, starts: &[u32], out: &mut Vec<Result<Frame, ReadError>>) {
    let (first, last) = (starts[0], starts[starts.len() - 1]);
    let bytes = match read_bytes(segment, first, (last - first) as usize + GUESS_BYTES) {
        Ok(bytes) => bytes,
        // One bad sector must not cost its neighbours: each is read by itself.
        Err(ReadError::Io { .. }) => Bytes::new(),
        Err(error) => {
            out.extend(starts.iter().map(|_| Err(error.clone())));
            return;
        }
    };
    for &start in starts {
        let skip = (start - first) as usize;
        let frame = match frame::check(bytes.get(skip..).unwrap_or_default(), segment.header.salt, start) {
            // The last frames may be longer than was guessed; and an error is told by the one who knows how.
            Err(_) => frame_in_file(segment, start),
            Ok(checked) => decode(segment, start, &bytes.slice(skip..skip + checked.len))
                .and_then(|found| found.into_frame(segment.position(start))),
        };
        out.push(frame);
    }
}

/// Reads the frame with entries that starts at `byte`.
pub(crate) fn frame_in_file(segment: &Segment, byte: u32) -> Result<Frame, ReadError> {
    found_in_file(segment, byte)?.into_frame(segment.position(byte))
}

/// Reads whatever frame starts at `byte`.
pub(crate) fn found_in_file(segment: &Segment, byte: u32) -> Result<Found, ReadError> {
    let at = segment.position(byte);
    if byte < HEADER_BYTES || byte >= segment.frames_end() {
        return Err(ReadError::NoFrame { at });
    }
    let mut bytes = match read_bytes(segment, byte, GUESS_BYTES) {
        // What cannot be read may lie behind the frame.
        Err(ReadError::Io { .. }) => read_bytes(segment, byte, FRAME_HEADER_BYTES)?,
        read => read?,
    };
    let checked = match frame::check(&bytes, segment.header.salt, byte) {
        Err(Bad::Short(len)) if len as u64 + u64::from(byte) <= u64::from(segment.frames_end()) => {
            bytes = read_bytes(segment, byte, len)?;
            frame::check(&bytes, segment.header.salt, byte)
        }
        checked => checked,
    };
    let len = match checked {
        Ok(checked) => checked.len,
        Err(bad) => return Err(damaged(segment, byte, bad)),
    };
    decode(segment, byte, &bytes.slice(..len))
}

/// Decodes a frame that was checked.
pub(crate) fn decode(segment: &Segment, byte: u32, bytes: &Bytes) -> Result<Found, ReadError> {
    let end = byte + bytes.len() as u32;
    let checked = frame::checked_before(bytes).map_err(|bad| damaged(segment, byte, bad))?;
    match checked.content {
        Content::Entries(entries) => match entry::decode_entries(&bytes.slice_ref(entries)) {
            Some(entries) => {
                Ok(Found::Frame(Frame { at: segment.position(byte), end: segment.position(end), entries }))
            }
            None => Err(damaged(segment, byte, Bad::Broken("the entries are malformed"))),
        },
        Content::Marker(_) => Ok(Found::Other { end }),
        Content::End => Ok(Found::End),
    }
}

fn damaged(segment: &Segment, byte: u32, bad: Bad) -> ReadError {
    // The file of a retired segment may have become another segment while it was read.
    if segment.is_retired() {
        return ReadError::Retired { segment: segment.id() };
    }
    let fact = match bad {
        Bad::Short(_) => "the frame is cut off or its length is wrong",
        Bad::Broken(fact) => fact,
    };
    ReadError::Damaged { at: segment.position(byte), fact }
}

/// Reads up to `len` bytes from `at` on; fewer where the file ends.
pub(crate) fn read_bytes(segment: &Segment, at: u32, len: usize) -> Result<Bytes, ReadError> {
    let mut buf = vec![0; len];
    match segment.file.read_at(&mut buf, u64::from(at)) {
        Ok(_) | Err(_) if segment.is_retired() => Err(ReadError::Retired { segment: segment.id() }),
        Ok(n) => {
            buf.truncate(n);
            Ok(buf.into())
        }
        Err(error) => Err(ReadError::Io { segment: segment.id(), reason: error.to_string().into() }),
    }
}

/// The whole of a segment file.
pub(crate) fn whole_file(file: &dyn DiskFile, file_bytes: u32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; file_bytes as usize];
    let len = file.read_at(&mut bytes, 0)?;
    bytes.truncate(len);
    Ok(bytes)
}
