//! What a publisher with confirms reads: which messages the broker has taken care of, and how long that took.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use anyhow::bail;
use hdrhistogram::Histogram;
use nexo_amqp::codec::method::BasicMethod;
use nexo_amqp::codec::{FrameKind, FrameMax, Frames, Method};
use nexo_amqp_client::refuse_close;

use crate::percentiles;

/// From when on the time of a message counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    /// From this moment.
    From(Instant),
    /// Not at all: the load is still warming up.
    Ignored,
}

/// The messages that are not confirmed yet.
#[derive(Debug)]
pub(crate) struct Confirms {
    frame_max: FrameMax,
    /// Every message up to this one is confirmed.
    through: u64,
    /// Confirmed ones beyond it: a broker may confirm in another order than messages came.
    ahead: BTreeSet<u64>,
    /// When messages were due, for each run that was sent at once: its last and the moment.
    sent: VecDeque<(u64, Times)>,
    /// Nanoseconds from sending to confirm. Those confirmed out of order count when all before them are.
    pub(crate) nanos: Histogram<u64>,
}

impl Confirms {
    pub(crate) fn new(frame_max: FrameMax) -> Self {
        Self {
            frame_max,
            through: 0,
            ahead: BTreeSet::new(),
            sent: VecDeque::new(),
            nanos: percentiles::nanos(),
        }
    }

    /// Notes that all up to number `last` were sent.
    pub(crate) fn sent(&mut self, last: u64, times: Times) {
        self.sent.push_back((last, times));
    }

    /// How many are confirmed.
    pub(crate) fn confirmed(&self) -> u64 {
        self.through + self.ahead.len() as u64
    }

    /// Scans what came; gives back how many bytes can be dropped.
    pub(crate) fn scan(&mut self, bytes: &[u8], now: Instant) -> anyhow::Result<usize> {
        let mut frames = Frames::new(bytes, self.frame_max);
        let before = self.through;
        for frame in frames.by_ref() {
            let frame = frame?;
            if frame.kind != FrameKind::Method {
                continue;
            }
            match Method::decode(frame.payload)? {
                Method::Basic(BasicMethod::Ack(ack)) if ack.multiple => self.all_through(ack.delivery_tag),
                Method::Basic(BasicMethod::Ack(ack)) => self.one(ack.delivery_tag),
                Method::Basic(BasicMethod::Nack(nack)) => {
                    bail!("the broker refused message {}", nack.delivery_tag)
                }
                other => refuse_close(&other)?,
            }
        }
        if self.through > before {
            self.note_times(before, now);
        }
        Ok(frames.consumed_bytes())
    }

    fn one(&mut self, tag: u64) {
        if tag == self.through + 1 {
            self.all_through(tag);
        } else if tag > self.through {
            self.ahead.insert(tag);
        }
    }

    fn all_through(&mut self, tag: u64) {
        self.through = self.through.max(tag);
        while let Some(&first) = self.ahead.first()
            && first <= self.through + 1
        {
            self.ahead.pop_first();
            self.through = self.through.max(first);
        }
    }

    fn note_times(&mut self, mut from: u64, now: Instant) {
        while from < self.through
            && let Some(&(last, times)) = self.sent.front()
        {
            let to = last.min(self.through);
            if let Times::From(when) = times {
                percentiles::note(&mut self.nanos, now.saturating_duration_since(when), to - from);
            }
            if to == last {
                self.sent.pop_front();
            }
            from = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nexo_amqp::codec::encode_method;
    use nexo_amqp::codec::method::basic;

    use super::*;

    fn confirms() -> Confirms {
        Confirms::new(FrameMax::BEFORE_TUNE)
    }

    fn ack(delivery_tag: u64, multiple: bool) -> Vec<u8> {
        let mut out = Vec::new();
        encode_method(&mut out, 1, &basic::Ack { delivery_tag, multiple });
        out
    }

    #[test]
    fn confirms_count_in_any_order() {
        let mut confirms = confirms();
        let now = Instant::now();
        for (tag, multiple, confirmed) in
            [(2, false, 1), (4, false, 2), (1, false, 3), (3, false, 4), (9, true, 9), (5, true, 9)]
        {
            let bytes = ack(tag, multiple);
            assert_eq!(confirms.scan(&bytes, now).unwrap(), bytes.len());
            assert_eq!(confirms.confirmed(), confirmed, "after {tag}");
        }
        assert!(confirms.ahead.is_empty());
    }

    #[test]
    fn every_message_has_a_time() {
        let mut confirms = confirms();
        let began = Instant::now();
        confirms.sent(10, Times::From(began));
        confirms.sent(20, Times::From(began + Duration::from_millis(5)));
        confirms.scan(&ack(15, true), began + Duration::from_millis(10)).unwrap();
        assert_eq!(confirms.nanos.len(), 15);
        assert_eq!(confirms.nanos.count_between(9_900_000, 10_100_000), 10);
        confirms.scan(&ack(20, true), began + Duration::from_millis(20)).unwrap();
        assert_eq!(confirms.nanos.len(), 20);
        assert!(confirms.sent.is_empty());
    }

    #[test]
    fn messages_of_the_warm_up_have_none() {
        let mut confirms = confirms();
        confirms.sent(10, Times::Ignored);
        confirms.scan(&ack(10, true), Instant::now()).unwrap();
        assert_eq!((confirms.confirmed(), confirms.nanos.len()), (10, 0));
    }

    #[test]
    fn half_a_confirm_waits_for_the_rest() {
        let bytes = ack(1, false);
        assert_eq!(confirms().scan(&bytes[..10], Instant::now()).unwrap(), 0);
    }

    #[test]
    fn a_refusal_is_an_error() {
        let mut bytes = Vec::new();
        encode_method(&mut bytes, 1, &basic::Nack { delivery_tag: 3, multiple: false, requeue: false });
        let error = confirms().scan(&bytes, Instant::now()).unwrap_err();
        assert_eq!(error.to_string(), "the broker refused message 3");
    }
}
