//! What waits to be written to the socket: one run of bytes, so that one write carries many frames. Large bodies are not
//! copied into it: they are written from where they are stored.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

use super::write_size::{BusyWriters, WriteSize};
use crate::codec::{
    self, AmqpMethod, BodyFrames, ContentMethod, FRAME_END, FrameMax, encode_message, encode_message_head,
    encode_method,
};

/// Above this, nothing is read either: a peer that asks and does not listen is not answered further.
pub(super) const HARD_BYTES: usize = 8 << 20;
/// A part of a body of this size is not copied. It keeps the batch that it is stored in from being freed, which is a few
/// times as large at most; and of small ones many are written with one slice.
const LARGE_BYTES: usize = 32 << 10;
/// Slices of one write: enough for a few megabytes in frames of the usual size.
const SLICES_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Output {
    /// Everything but the large parts.
    pub(super) bytes: Vec<u8>,
    start: usize,
    large: VecDeque<Large>,
    large_bytes: usize,
    size: WriteSize,
}

/// A large part of a body, or what is left of it.
#[derive(Debug)]
struct Large {
    /// Where in the other bytes it belongs. Some always follow it.
    at: usize,
    rest: Bytes,
}

impl Output {
    pub(super) fn new(busy: Arc<BusyWriters>) -> Self {
        Self { size: WriteSize::new(busy), ..Self::default() }
    }

    pub(super) fn method<M: AmqpMethod>(&mut self, channel: u16, method: &M) {
        encode_method(&mut self.bytes, channel, method);
        self.note_buffer();
    }

    /// A frame that was encoded before.
    pub(super) fn frame(&mut self, frame: &[u8]) {
        self.bytes.extend_from_slice(frame);
        self.note_buffer();
    }

    pub(super) fn heartbeat(&mut self) {
        codec::encode_heartbeat(&mut self.bytes);
        self.note_buffer();
    }

    /// A message with a body that is copied.
    pub(super) fn message<M: ContentMethod>(
        &mut self,
        channel: u16,
        method: &M,
        properties: &[u8],
        body: &[u8],
        max: FrameMax,
    ) {
        encode_message(&mut self.bytes, channel, method, properties, body, max);
        self.note_buffer();
    }

    /// A message with a body that is a part of `stored`.
    #[inline]
    pub(super) fn stored_message<M: ContentMethod>(
        &mut self,
        channel: u16,
        method: &M,
        properties: &[u8],
        (body, stored): (&[u8], &Bytes),
        max: FrameMax,
    ) {
        if body.len() < LARGE_BYTES {
            self.message(channel, method, properties, body, max);
        } else {
            self.large_message(channel, method, properties, (body, stored), max);
        }
    }

    fn large_message<M: ContentMethod>(
        &mut self,
        channel: u16,
        method: &M,
        properties: &[u8],
        (body, stored): (&[u8], &Bytes),
        max: FrameMax,
    ) {
        encode_message_head(&mut self.bytes, channel, method, properties, body.len());
        for (head, part) in BodyFrames::new(channel, body, max) {
            self.bytes.extend_from_slice(&head);
            if part.len() < LARGE_BYTES {
                self.bytes.extend_from_slice(part);
            } else {
                self.large.push_back(Large { at: self.bytes.len(), rest: stored.slice_ref(part) });
                self.large_bytes += part.len();
            }
            self.bytes.push(FRAME_END);
        }
        self.note_buffer();
    }

    /// Tells of the buffer as soon as it has another size: it takes memory, whether or not its peer ever reads.
    #[inline]
    fn note_buffer(&mut self) {
        self.size.has_buffer(self.bytes.capacity());
    }

    /// How much waits.
    pub(super) const fn len(&self) -> usize {
        self.bytes.len() - self.start + self.large_bytes
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Above this, deliveries wait: a peer that does not read stops its own consumers.
    pub(super) fn deliveries_max(&self) -> usize {
        self.size.bytes()
    }

    pub(super) fn has_room(&self) -> bool {
        self.len() < self.deliveries_max()
    }

    /// Writes what the socket takes; [`Self::advance`] must be told of it.
    pub(super) fn poll_write(
        &self,
        writer: Pin<&mut impl AsyncWrite>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.large.is_empty() {
            return writer.poll_write(context, &self.bytes[self.start..]);
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = self.fill(&mut slices);
        writer.poll_write_vectored(context, &slices[..count])
    }

    /// Lays out what comes next, as far as there are slices for it; answers how many were needed.
    fn fill<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let (mut at, mut count) = (self.start, 0);
        let mut add = |part: &'a [u8]| {
            if !part.is_empty() && count < slices.len() {
                slices[count] = IoSlice::new(part);
                count += 1;
            }
        };
        for large in self.large.iter().take(SLICES_MAX) {
            add(&self.bytes[at..large.at]);
            add(&large.rest);
            at = large.at;
        }
        add(&self.bytes[at..]);
        count
    }

    /// Gives back the memory that is not needed just now.
    pub(super) fn release(&mut self) {
        if self.is_empty() {
            (self.bytes, self.start, self.large) = (Vec::new(), 0, VecDeque::new());
            self.size.has_buffer(0);
        }
    }

    /// Notes that this much was written.
    pub(super) fn advance(&mut self, mut written: usize) {
        while let Some(large) = self.large.front_mut()
            && let Some(beyond) = written.checked_sub(large.at - self.start)
        {
            self.start = large.at;
            let of_it = beyond.min(large.rest.len());
            large.rest.advance(of_it);
            self.large_bytes -= of_it;
            written = beyond - of_it;
            if !large.rest.is_empty() {
                break;
            }
            self.large.pop_front();
        }
        self.start += written;
        // What is written makes room for what comes, and a buffer that was far larger for once is given back.
        let most = self.size.bytes();
        if self.start >= self.bytes.len() {
            self.start = 0;
            self.bytes.clear();
        } else if self.start > most && self.start >= self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            for large in &mut self.large {
                large.at -= self.start;
            }
            self.start = 0;
        }
        if self.bytes.capacity() > 4 * most && self.bytes.len() <= 2 * most {
            self.bytes.shrink_to(2 * most);
        }
        self.note_buffer();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::ShortStr;
    use crate::codec::method::basic;

    /// A socket that takes a few bytes at a time, or one slice and a little.
    struct Slow {
        taken: Vec<u8>,
        at_once: usize,
    }

    impl AsyncWrite for Slow {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            let count = buf.len().min(self.at_once);
            self.taken.extend_from_slice(&buf[..count]);
            Poll::Ready(Ok(count))
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let mut left = self.at_once;
            for buf in bufs {
                assert!(!buf.is_empty(), "no slice is empty");
                let count = buf.len().min(left);
                self.taken.extend_from_slice(&buf[..count]);
                left -= count;
            }
            Poll::Ready(Ok(self.at_once - left))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn deliver(delivery_tag: u64) -> basic::Deliver<'static> {
        basic::Deliver {
            consumer_tag: ShortStr::from_static("ctag-1"),
            delivery_tag,
            redelivered: false,
            exchange: ShortStr::EMPTY,
            routing_key: ShortStr::from_static("q"),
        }
    }

    fn write_once(out: &mut Output, socket: &mut Slow) -> usize {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let Poll::Ready(Ok(count)) = out.poll_write(Pin::new(socket), &mut context) else {
            panic!("it always takes some")
        };
        let before = out.len();
        out.advance(count);
        assert_eq!(out.len(), before - count);
        count
    }

    #[test]
    fn what_a_socket_takes_in_pieces_is_what_one_write_would_have_carried() {
        let stored: Bytes = (0..3u32 << 20).map(|at| (at * 31 % 253) as u8).collect::<Vec<_>>().into();
        let sizes = [5, LARGE_BYTES - 1, 0, LARGE_BYTES, 1 << 20, 9, 131_064, 131_065, 131_064 + LARGE_BYTES];
        for max in [4096, 50_001, 131_072] {
            let max = FrameMax::new(max).unwrap();
            for at_once in [1013, 7, 32_771, 131_073, usize::MAX] {
                let sizes = if at_once == 7 { &sizes[..4] } else { &sizes[..] };
                let mut out = Output::default();
                let mut socket = Slow { taken: Vec::new(), at_once };
                let mut expected = Vec::new();
                for (tag, &size) in sizes.iter().enumerate() {
                    let body = &stored[tag * 1000..][..size];
                    out.stored_message(1, &deliver(tag as u64), &[0, 0], (body, &stored), max);
                    encode_message(&mut expected, 1, &deliver(tag as u64), &[0, 0], body, max);
                    // More is added while a part of what was there is written.
                    write_once(&mut out, &mut socket);
                    out.heartbeat();
                    codec::encode_heartbeat(&mut expected);
                    assert_eq!(out.len(), expected.len() - socket.taken.len());
                }
                while !out.is_empty() {
                    write_once(&mut out, &mut socket);
                }
                assert_eq!((out.large.len(), out.large_bytes), (0, 0));
                assert!(socket.taken == expected, "frames of {max:?}, {at_once} bytes at once");
            }
        }
    }

    #[test]
    fn a_backlog_of_many_parts_and_much_between_them_keeps_its_order() {
        let stored: Bytes = vec![7; LARGE_BYTES].into();
        let max = FrameMax::new(131_072).unwrap();
        let (mut out, mut expected) = (Output::default(), Vec::new());
        let small = vec![8; 30_000];
        for tag in 0..3 * SLICES_MAX as u64 {
            out.stored_message(1, &deliver(tag), &[0, 0], (&stored, &stored), max);
            out.message(1, &deliver(tag), &[0, 0], &small, max);
            encode_message(&mut expected, 1, &deliver(tag), &[0, 0], &stored, max);
            encode_message(&mut expected, 1, &deliver(tag), &[0, 0], &small, max);
        }
        assert_eq!(out.len(), expected.len());
        let mut socket = Slow { taken: Vec::new(), at_once: 1 << 20 };
        while !out.is_empty() {
            write_once(&mut out, &mut socket);
        }
        assert!(socket.taken == expected);
    }

    #[test]
    fn a_buffer_is_told_of_before_any_of_it_is_written() {
        let buffers = Arc::new(nexo_broker::ConnectionBuffers::default());
        let mut out = Output::new(Arc::new(BusyWriters::new(Arc::clone(&buffers))));
        let max = FrameMax::new(131_072).unwrap();
        out.message(1, &deliver(1), &[0, 0], &vec![7; 300_000], max);
        assert_eq!(buffers.bytes(), out.bytes.capacity() as u64);
        assert!(buffers.bytes() >= 300_000);
        for _ in 0..10 {
            let frame = vec![7; 100_000];
            out.frame(&frame);
            assert_eq!(buffers.bytes(), out.bytes.capacity() as u64);
        }
        let mut socket = Slow { taken: Vec::new(), at_once: 100_000 };
        while !out.is_empty() {
            write_once(&mut out, &mut socket);
            assert_eq!(buffers.bytes(), out.bytes.capacity() as u64, "also when it has become smaller");
        }
        out.heartbeat();
        drop(out);
        assert_eq!(buffers.bytes(), 0);
    }

    #[test]
    fn large_parts_are_not_copied() {
        let stored: Bytes = vec![7; 1 << 20].into();
        let mut out = Output::default();
        let max = FrameMax::new(131_072).unwrap();
        out.stored_message(1, &deliver(1), &[0, 0], (&stored[5..], &stored), max);
        assert!(out.bytes.len() < 300, "{} bytes were copied", out.bytes.len());
        assert_eq!(out.large[0].rest.as_ptr(), stored[5..].as_ptr());
    }
}
