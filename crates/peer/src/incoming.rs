//! The connection over which envelopes come from one node, in the order in which they were sent. A later one of the same node
//! takes the place of an earlier one, which may be only half gone.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nexo_net::PeerStream;
use nexo_types::NodeId;
use tokio::io::{AsyncWriteExt, BufReader};

use crate::dial::watch_closely;
use crate::frame::{Frame, pong, read_frame, within, write_all};
use crate::handshake::wall_clock;
use crate::peers::PeersState;

/// What is read at once, so that small envelopes are read together.
const READ_BYTES: usize = 64 << 10;
/// A node that sends no byte for this long is gone: it pings every second.
const SILENT_MAX: Duration = Duration::from_secs(10);
/// How long it may not take an answer to a ping.
const WRITE_STALL_MAX: Duration = Duration::from_secs(5);

/// Hands on what comes until the connection ends, or another takes its place.
pub(crate) async fn run(shared: &PeersState, from: NodeId, stream: PeerStream) {
    watch_closely(&stream);
    let replaced = shared.receives_from(from);
    let ended = tokio::select! {
        // One that has ended and was replaced is no loss.
        biased;
        () = replaced.cancelled() => return,
        ended = receive(shared, from, stream) => ended,
    };
    if let Err(error) = ended {
        tracing::debug!(node = %from, %error, "envelopes of another node come no more");
        shared.handler.lost_contact(from);
    }
}

/// Ends with an error only.
async fn receive(shared: &PeersState, from: NodeId, stream: PeerStream) -> io::Result<()> {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = BufReader::with_capacity(READ_BYTES, reader);
    loop {
        match read_frame(&mut reader, SILENT_MAX).await? {
            Frame::Envelope(envelope) => {
                if let Some(link) = shared.link(from) {
                    link.figures.received_bytes.fetch_add(envelope.len() as u64, Ordering::Relaxed);
                }
                shared.handler.envelope(from, envelope);
            }
            Frame::Ping(number) => {
                write_all(&mut writer, &pong(number, wall_clock(Some(&shared.identity))), WRITE_STALL_MAX)
                    .await?;
                within(WRITE_STALL_MAX, writer.flush()).await?;
            }
            Frame::Pong { .. } => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer to nothing"));
            }
        }
    }
}
