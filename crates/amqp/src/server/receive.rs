//! Large bodies are read from the socket straight to where they are stored, not by way of the connection's input.
//!
//! The input then holds nothing but the head of a body frame, which says how much of the frame has not come: it is
//! counted down as the body is read. At 0 an empty frame is left, and its end is read and checked like any other's.

use bytes::BytesMut;
use nexo_broker::BodyBuffer;

use super::session::{ChannelState, Channels, ConnectionPhase, Session};
use crate::codec::{FRAME_BODY, FRAME_HEAD_BYTES, FRAME_OVERHEAD_BYTES};

/// What is left of a frame is worth reads of its own if it is this much. Less is copied in the time that they take.
const DIRECT_BYTES_MIN: usize = 32 << 10;

/// A body frame of which the rest is read to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Direct {
    pub(super) channel: u16,
    pub(super) left: usize,
}

impl Session {
    /// Moves what has come of a large body frame to its message, if such a frame is at the head of `input`. Frames that
    /// are not all there must have been left there by [`Self::take_frames`], which has looked at their heads.
    pub(super) fn begin_direct(&mut self, input: &mut BytesMut) -> Option<Direct> {
        let (&[kind, c0, c1, s0, s1, s2, s3], come) = input.split_first_chunk::<FRAME_HEAD_BYTES>()?;
        let channel = u16::from_be_bytes([c0, c1]);
        let payload_bytes = u32::from_be_bytes([s0, s1, s2, s3]) as usize;
        let left = payload_bytes.checked_sub(come.len())?;
        if kind != FRAME_BODY || left < DIRECT_BYTES_MIN || self.phase != ConnectionPhase::Running {
            return None;
        }
        let body = receiving(&mut self.channels, channel)?;
        // One that is too long is refused when it is whole.
        if payload_bytes > body.missing_bytes() {
            return None;
        }
        body.extend(come);
        input.truncate(FRAME_HEAD_BYTES);
        let direct = Direct { channel, left };
        direct.note_in(input);
        self.intake.progress = self.now;
        Some(direct)
    }

    /// Notes that the body of `direct` has got `count` bytes; `None` if the frame's payload is all there. Then only its end
    /// should be read, and the head of the next frame if the body goes on for long: so many bytes.
    pub(super) fn has_received(
        &mut self,
        direct: Direct,
        count: usize,
        input: &mut BytesMut,
    ) -> (Option<Direct>, Option<usize>) {
        let direct = Direct { left: direct.left.saturating_sub(count), ..direct };
        direct.note_in(input);
        self.intake.progress = self.now;
        if direct.left > 0 {
            return (Some(direct), None);
        }
        let missing = receiving(&mut self.channels, direct.channel).map_or(0, |body| body.missing_bytes());
        (None, (missing >= DIRECT_BYTES_MIN).then_some(FRAME_OVERHEAD_BYTES))
    }
}

impl Direct {
    /// Puts what is left into the head of the frame.
    fn note_in(self, input: &mut BytesMut) {
        debug_assert_eq!(input.len(), FRAME_HEAD_BYTES, "the input is the head of a frame");
        input[3..FRAME_HEAD_BYTES].copy_from_slice(&(self.left as u32).to_be_bytes());
    }
}

/// The body that a channel receives, if there is memory for all of it.
pub(super) fn receiving(channels: &mut Channels, number: u16) -> Option<&mut BodyBuffer> {
    match channels.get_mut(&number)? {
        ChannelState::Open(channel) => channel.content.receiving(),
        ChannelState::Closing => None,
    }
}
