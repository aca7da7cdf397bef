//! A body that is received where it will be stored. [`PackedBatch::of_received`](crate::draft::PackedBatch::of_received) makes the
//! stored form of it by writing what stands before a body into the room that was left for that.

use bytes::BufMut;

use crate::batch::HEAD_BYTES_MAX;

/// A body of this size is worth a packed batch of its own. A smaller one is copied to join others.
const IN_PLACE_BYTES_MIN: usize = 32 << 10;
/// What stands before a body besides its address and properties takes no more, unless somebody has unusual wishes.
const HEAD_ROOM_BYTES: usize = HEAD_BYTES_MAX + 512;
/// Up to this size a body gets all its memory with its first part. Pages that nothing is written to cost nothing.
const FIRST_BYTES_MAX: usize = 4 << 20;
/// A larger one gets so many times as much, each time it has filled what it has.
const GROWTH: usize = 4;

/// A body of which the length is known and some part has come.
#[derive(Debug, Default)]
pub struct BodyBuffer {
    /// Empty until the first part comes; then room for the head, and the body.
    bytes: Vec<u8>,
    head_room: usize,
    body_bytes: usize,
}

impl BodyBuffer {
    /// For a body of `body_bytes`. Its address and properties take `described_bytes`, near enough.
    #[must_use]
    pub const fn new(body_bytes: usize, described_bytes: usize) -> Self {
        let in_place = body_bytes >= IN_PLACE_BYTES_MIN;
        let head_room = if in_place { HEAD_ROOM_BYTES + described_bytes } else { 0 };
        Self { bytes: Vec::new(), head_room, body_bytes }
    }

    /// A copy of a body that is all there.
    #[must_use]
    pub fn copy_of(body: &[u8]) -> Self {
        Self { bytes: body.to_vec(), head_room: 0, body_bytes: body.len() }
    }

    /// Appends a part.
    pub fn extend(&mut self, part: &[u8]) {
        debug_assert!(part.len() <= self.missing_bytes(), "a body is no longer than it was said to be");
        if !part.is_empty() {
            self.reserve(part.len());
            self.bytes.extend_from_slice(part);
        }
    }

    /// Room for at most `max` bytes of what is missing, to be written to directly. There is some unless nothing is
    /// missing.
    pub fn room(&mut self, max: usize) -> impl BufMut + '_ {
        let max = max.min(self.missing_bytes());
        if max > 0 {
            self.reserve(1);
        }
        let spare = self.bytes.capacity() - self.bytes.len();
        (&mut self.bytes).limit(max.min(spare))
    }

    /// What has come.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(self.head_room..).unwrap_or_default()
    }

    /// How much has come.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len().saturating_sub(self.head_room)
    }

    /// Whether nothing has come.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How long the body is.
    #[must_use]
    pub const fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// How much has not come yet.
    #[must_use]
    pub const fn missing_bytes(&self) -> usize {
        self.body_bytes - self.len()
    }

    /// The bytes, and how many of them stand before the body.
    pub(crate) const fn parts_mut(&mut self) -> (&mut Vec<u8>, usize) {
        (&mut self.bytes, self.head_room)
    }

    /// Makes room. A large body is allocated as it arrives, not as it is announced; none gets more than it will need.
    fn reserve(&mut self, more: usize) {
        let (len, room) = (self.bytes.len(), self.bytes.capacity());
        if len == 0 {
            let first = self.body_bytes.min(FIRST_BYTES_MAX.max(more));
            self.bytes.reserve_exact(self.head_room + first);
            self.bytes.resize(self.head_room, 0);
        } else if room - len < more {
            let wanted = (room * GROWTH).max(len + more).min(self.head_room + self.body_bytes);
            self.bytes.reserve_exact(wanted - len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_gathers_parts_that_are_copied_and_parts_that_are_written_to_its_room() {
        for body_bytes in [1, 5000, IN_PLACE_BYTES_MIN, FIRST_BYTES_MAX + 77, 3 * GROWTH * FIRST_BYTES_MAX] {
            let whole: Vec<u8> = (0..body_bytes).map(|at| (at * 7 % 251) as u8).collect();
            let mut body = BodyBuffer::new(body_bytes, 40);
            assert_eq!((body.len(), body.missing_bytes()), (0, body_bytes));
            while body.missing_bytes() > 0 {
                let come = body.len();
                if come.is_multiple_of(2) {
                    let part = body.missing_bytes().min(100_001);
                    body.extend(&whole[come..come + part]);
                } else {
                    let mut room = body.room(70_001);
                    let part = room.remaining_mut();
                    assert!(part > 0 && part <= 70_001);
                    room.put_slice(&whole[come..come + part]);
                }
            }
            assert_eq!(body.as_slice(), whole);
            assert_eq!(body.room(10).remaining_mut(), 0);
        }
    }

    #[test]
    fn memory_is_taken_as_a_body_arrives_and_never_more_than_it_needs() {
        let mut body = BodyBuffer::new(128 << 20, 0);
        assert_eq!(body.bytes.capacity(), 0, "nothing has come");
        body.extend(&[1]);
        assert!(body.bytes.capacity() <= FIRST_BYTES_MAX + HEAD_ROOM_BYTES);
        while body.missing_bytes() > 0 {
            let part = body.missing_bytes().min(1 << 20);
            body.extend(&vec![1; part]);
            assert!(body.bytes.capacity() <= (GROWTH + 1) * (body.len() + FIRST_BYTES_MAX));
        }
        assert!(body.bytes.capacity() <= (128 << 20) + HEAD_ROOM_BYTES);
    }
}
