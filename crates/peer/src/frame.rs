//! What goes over a connection for envelopes: the envelopes themselves, and now and then a ping and its answer, by which the
//! round trip and the other clock are measured and a connection is known to be alive.

use std::io;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use nexo_types::Timestamp;
use nexo_types::limits::PEER_ENVELOPE_BYTES_MAX;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// The kind and the length.
pub(crate) const HEAD_BYTES: usize = 5;

const ENVELOPE: u8 = 1;
const PING: u8 = 2;
const PONG: u8 = 3;

const PING_BYTES: usize = 8;
const PONG_BYTES: usize = 16;
/// What is taken for an envelope before any of it is there.
const FIRST_BYTES: usize = 1 << 20;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Envelope(Bytes),
    /// Has a number that its answer brings back.
    Ping(u64),
    Pong {
        ping: u64,
        /// When it was answered, by the clock of whoever did.
        time: Timestamp,
    },
}

/// What stands before an envelope of so many bytes.
pub(crate) fn envelope_head(len: usize) -> [u8; HEAD_BYTES] {
    head(ENVELOPE, len)
}

pub(crate) fn ping(number: u64) -> Vec<u8> {
    let mut frame = head(PING, PING_BYTES).to_vec();
    frame.put_u64(number);
    frame
}

pub(crate) fn pong(ping: u64, time: Timestamp) -> Vec<u8> {
    let mut frame = head(PONG, PONG_BYTES).to_vec();
    frame.put_u64(ping);
    frame.put_u64(time.0);
    frame
}

fn head(kind: u8, len: usize) -> [u8; HEAD_BYTES] {
    let len = u32::try_from(len).expect("an envelope is shorter").to_be_bytes();
    [kind, len[0], len[1], len[2], len[3]]
}

/// The next frame. Nobody is waited for who sends no byte for `patience`.
pub(crate) async fn read_frame<R>(reader: &mut R, patience: Duration) -> io::Result<Frame>
where
    R: AsyncRead + Unpin,
{
    let mut head = [0; HEAD_BYTES];
    within(patience, reader.read_exact(&mut head)).await?;
    let [kind, len @ ..] = head;
    let len = u32::from_be_bytes(len) as usize;
    match (kind, len) {
        (ENVELOPE, len) if len <= PEER_ENVELOPE_BYTES_MAX => {
            Ok(Frame::Envelope(read_envelope(reader, len, patience).await?))
        }
        (PING, PING_BYTES) => Ok(Frame::Ping(within(patience, reader.read_u64()).await?)),
        (PONG, PONG_BYTES) => {
            let ping = within(patience, reader.read_u64()).await?;
            let time = Timestamp(within(patience, reader.read_u64()).await?);
            Ok(Frame::Pong { ping, time })
        }
        (kind, len) => {
            let words = format!("a frame of kind {kind} with {len} bytes means nothing to this node");
            Err(io::Error::new(io::ErrorKind::InvalidData, words))
        }
    }
}

/// Reads an envelope as it comes: memory is taken for what is there.
async fn read_envelope<R>(reader: &mut R, len: usize, patience: Duration) -> io::Result<Bytes>
where
    R: AsyncRead + Unpin,
{
    let mut envelope = BytesMut::with_capacity(len.min(FIRST_BYTES));
    while envelope.len() < len {
        let missing = len - envelope.len();
        if envelope.capacity() == envelope.len() {
            envelope.reserve(missing.min(envelope.len()));
        }
        let read = within(patience, reader.read_buf(&mut (&mut envelope).limit(missing))).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(envelope.freeze())
}

/// Writes all bytes. Nobody is waited for who takes none for `patience`.
pub(crate) async fn write_all<W>(writer: &mut W, mut bytes: &[u8], patience: Duration) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    while !bytes.is_empty() {
        let written = within(patience, writer.write(bytes)).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
    }
    Ok(())
}

/// What comes of it, or the end if it takes too long.
pub(crate) async fn within<T>(
    patience: Duration,
    what: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "the other node is silent");
    timeout(patience, what).await.unwrap_or_else(|_| Err(late()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    async fn read(bytes: &[u8]) -> io::Result<Frame> {
        read_frame(&mut &bytes[..], PATIENCE).await
    }

    #[tokio::test]
    async fn what_was_written_is_read() {
        for len in [0, 1, FIRST_BYTES - 1, FIRST_BYTES, 3 * FIRST_BYTES + 7] {
            let body: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let mut bytes = envelope_head(len).to_vec();
            bytes.extend_from_slice(&body);
            bytes.extend_from_slice(b"next");
            let mut reader = &bytes[..];
            let frame = read_frame(&mut reader, PATIENCE).await.unwrap();
            assert!(frame == Frame::Envelope(body.into()), "{len}");
            assert_eq!(reader, b"next");
        }
        assert_eq!(read(&ping(7)).await.unwrap(), Frame::Ping(7));
        let answer = Frame::Pong { ping: 7, time: Timestamp(9) };
        assert_eq!(read(&pong(7, Timestamp(9))).await.unwrap(), answer);
    }

    #[tokio::test]
    async fn what_means_nothing_is_refused_before_it_is_read() {
        for bytes in [[0, 0, 0, 0, 1], [9, 0, 0, 0, 0], [PING, 0, 0, 0, 9], [ENVELOPE, 255, 255, 255, 255]] {
            assert_eq!(read(&bytes).await.unwrap_err().kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        }
        assert_eq!(read(&envelope_head(10)).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
