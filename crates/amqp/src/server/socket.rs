//! A connection's socket: reading to where bytes belong, writing what it takes, and noticing that it has failed.

use std::pin::Pin;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use nexo_broker::SocketState;
use nexo_net::{ReadHalf, WriteHalf};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::timeout;
use tokio_util::io::poll_read_buf;
use tokio_util::sync::CancellationToken;

use super::output::Output;
use super::read_size::READ_BYTES_MIN;
use super::receive::{Direct, receiving};
use super::session::Channels;

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Input(usize),
    Body(usize),
}

/// Reads from the socket: to the body of `direct`, or at most `input_max` bytes to the input, which gets room for
/// `input_room` bytes if it has little. A body whose channel was closed is there no more; the rest of it is read to the
/// input.
pub(super) async fn read_some(
    reader: &mut (impl AsyncRead + Unpin),
    input: &mut BytesMut,
    (input_room, input_max): (usize, usize),
    channels: &mut Channels,
    direct: Option<Direct>,
) -> std::io::Result<Read> {
    if let Some(direct) = direct
        && let Some(body) = receiving(channels, direct.channel)
    {
        return reader.read_buf(&mut body.room(direct.left)).await.map(Read::Body);
    }
    let read = std::future::poll_fn(|context| {
        if input.capacity() - input.len() < READ_BYTES_MIN / 2 {
            input.reserve(input_room);
        }
        let polled = poll_read_buf(Pin::new(&mut *reader), context, &mut (&mut *input).limit(input_max));
        if polled.is_pending() && input.is_empty() && input_room <= READ_BYTES_MIN {
            // Thousands of connections of which nothing comes need no buffers.
            *input = BytesMut::new();
        }
        polled
    });
    read.await.map(Read::Input)
}

/// Writes what the socket takes, and notes whether it takes anything. With nothing to write it has go out what TLS holds.
pub(super) async fn write_some(
    writer: &mut WriteHalf,
    out: &Output,
    socket: &SocketState,
) -> std::io::Result<usize> {
    let written = std::future::poll_fn(|context| {
        let writer = Pin::new(&mut *writer);
        let polled = if out.is_empty() {
            writer.poll_flush(context).map_ok(|()| 0)
        } else {
            out.poll_write(writer, context)
        };
        socket.set_stalled(polled.is_pending());
        polled
    });
    written.await
}

/// Resolves when the connection has failed, without reading from it.
pub(super) async fn failed(reader: &ReadHalf) -> std::io::Result<Read> {
    reader.failed().await?;
    Ok(Read::Input(0))
}

/// Reads and discards until the client closes its end, for a while: one that still writes when the socket is closed
/// gets a reset, which some clients take for a failure, and which may cost them the `close-ok` that they have not read.
pub(super) async fn drain(mut reader: ReadHalf, stop: CancellationToken, close_max: Duration) {
    // Not in the task of every connection, for which most have no use.
    let mut discarded = vec![0; 4096];
    let drained = async { while matches!(reader.read(&mut discarded).await, Ok(count) if count > 0) {} };
    tokio::select! {
        _ = timeout(close_max, drained) => {}
        () = stop.cancelled() => {}
    }
}
