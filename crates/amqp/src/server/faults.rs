//! Bytes that are no frame. The connection ends; what follows them is read on only if it is known where they end.

use super::erlang;
use super::error::{Refusal, frame_refusal};
use super::session::Session;
use crate::codec::{FRAME_HEAD_BYTES, FRAME_OVERHEAD_BYTES, FrameError, ReplyCode};

/// What has come of a frame of an unknown kind.
enum Announced<'a> {
    Partly,
    TooLarge,
    Whole { kind: u8, payload: &'a [u8] },
}

/// How far a session came with bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Faulty {
    /// It is not known yet what they are.
    Partly,
    /// They are so many, and what follows can be read.
    Bytes(usize),
    /// Nothing can be read any more.
    Deaf,
}

impl Session {
    /// Refuses what stands at the head of the input.
    pub(super) fn refuse_bytes(&mut self, fault: FrameError, input: &[u8]) -> Faulty {
        let (refusal, faulty) = match fault {
            FrameError::UnknownKind { .. } | FrameError::HeartbeatPayload { .. } => {
                match self.announced(input) {
                    Announced::Partly => return Faulty::Partly,
                    Announced::TooLarge => (frame_refusal(fault), Faulty::Deaf),
                    Announced::Whole { kind, payload } => {
                        let octets = erlang::binary(payload);
                        let text = format!("type {kind}, all octets = {octets}: unknown_frame");
                        let whole = payload.len() + FRAME_OVERHEAD_BYTES;
                        (Refusal::new(ReplyCode::FrameError, text), Faulty::Bytes(whole))
                    }
                }
            }
            FrameError::TooLarge { .. } | FrameError::End { .. } => (frame_refusal(fault), Faulty::Deaf),
        };
        self.timing.is_deaf |= faulty == Faulty::Deaf;
        self.close(&refusal);
        faulty
    }

    /// The frame at the head of the input, which is of no known kind but has a length nevertheless.
    fn announced<'a>(&self, input: &'a [u8]) -> Announced<'a> {
        let Some((&[kind, _, _, s0, s1, s2, s3], rest)) = input.split_first_chunk::<FRAME_HEAD_BYTES>()
        else {
            return Announced::Partly;
        };
        let bytes = u32::from_be_bytes([s0, s1, s2, s3]);
        if !self.limits.frame_max.admits(bytes) {
            return Announced::TooLarge;
        }
        match rest.split_at_checked(bytes as usize) {
            Some((payload, [_, ..])) => Announced::Whole { kind, payload },
            Some((_, [])) | None => Announced::Partly,
        }
    }
}
