//! Publishes that are pushed and declarations that are made, and wait for the disk. They are confirmed and answered in the
//! order in which they came.

use std::collections::VecDeque;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use nexo_broker::{Broker, ListedChannel, QueueError, Written};

use super::operations;
use super::outbox::Run;
use super::output::Output;
use crate::codec::method::basic;

/// Reads of one connection whose publishes wait for the disk, and answers that do.
const PENDING_MAX: usize = 10_000;

/// What waits to be confirmed.
#[derive(Default)]
pub(super) struct Confirms {
    queue: VecDeque<Pending>,
    /// The disk, as far as the first of the queue needs it.
    front: Option<BoxFuture<'static, Result<(), QueueError>>>,
    /// Answers in the queue.
    answers: usize,
    /// An answer could not be given. Those behind it are not given either: its client must not take one for another.
    has_failed: bool,
}

struct Pending {
    what: What,
    written: Written,
    /// Some of it was found to go nowhere, in a look that began then.
    look: Option<Written>,
}

enum What {
    Publishes {
        run: Run,
        /// Those that were not taken, ascending.
        refused: Vec<u64>,
    },
    Answer {
        channel: u16,
        serial: u64,
        /// Empty if the client does not wait for one.
        frame: Vec<u8>,
    },
}

/// Acknowledgements that may yet grow, so that many publishes are confirmed by one.
#[derive(Default)]
struct Acks {
    open: Option<Run>,
}

impl Confirms {
    pub(super) fn push(&mut self, run: Run, mut refused: Vec<u64>, written: Written, look: Option<Written>) {
        refused.sort_unstable();
        refused.dedup();
        self.queue.push_back(Pending { what: What::Publishes { run, refused }, written, look });
    }

    /// Adds the frame that answers a method of a channel.
    pub(super) fn push_answer(&mut self, channel: u16, serial: u64, frame: Vec<u8>, written: Written) {
        self.answers += 1;
        self.queue.push_back(Pending { what: What::Answer { channel, serial, frame }, written, look: None });
    }

    /// Whether an answer waits.
    pub(super) const fn owes_answers(&self) -> bool {
        self.answers > 0
    }

    /// Whether an answer of this channel waits.
    pub(super) fn owes_answer_to(&self, number: u16) -> bool {
        let is_owed =
            |pending: &Pending| matches!(pending.what, What::Answer { channel, .. } if channel == number);
        self.owes_answers() && self.queue.iter().any(is_owed)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether the disk is so far behind that no more should be taken in.
    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= PENDING_MAX
    }

    /// Confirms and answers all that need not wait any longer. `open` gives the channel if it is still the one of this
    /// serial. Gives back why an answer could not be given, if that is so.
    pub(super) fn confirm<'c>(
        &mut self,
        broker: &Broker,
        mut first: Option<Result<(), QueueError>>,
        out: &mut Output,
        open: impl Fn(u16, u64) -> Option<&'c ListedChannel>,
    ) -> Option<QueueError> {
        let mut acks = Acks::default();
        let mut failure = None;
        while let Some(outcome) =
            first.take().or_else(|| self.pending(broker).and_then(FutureExt::now_or_never))
        {
            self.front = None;
            let Some(pending) = self.queue.pop_front() else { break };
            if let What::Publishes { run, .. } = &pending.what {
                let Some(shown) = open(run.channel, run.serial) else { continue };
                shown.confirmed.set(run.last);
            }
            match (pending.what, outcome) {
                (What::Publishes { run, refused }, Ok(())) => acks.add(run, refused, out),
                (What::Publishes { run, .. }, Err(error)) => {
                    tracing::warn!(%error, "publishes could not be written and are refused");
                    acks.flush(out);
                    let Run { channel, first, last, .. } = run;
                    nack(out, channel, last, last > first);
                }
                (What::Answer { channel, serial, frame }, outcome) => {
                    self.answers -= 1;
                    acks.flush(out);
                    match outcome {
                        Err(error) => {
                            self.has_failed = true;
                            failure = failure.or(Some(error));
                        }
                        Ok(()) if !self.has_failed && open(channel, serial).is_some() => out.frame(&frame),
                        Ok(()) => {}
                    }
                }
            }
        }
        acks.flush(out);
        failure
    }

    /// What comes of the first, if there is one: it has reached the disk, or never will.
    pub(super) fn pending(
        &mut self,
        broker: &Broker,
    ) -> Option<&mut BoxFuture<'static, Result<(), QueueError>>> {
        let Pending { written, look, .. } = *self.queue.front()?;
        Some(self.front.get_or_insert_with(|| match look {
            Some(began) => operations::certain(broker, written, began),
            None => operations::safe(broker, written),
        }))
    }
}

impl Acks {
    fn add(&mut self, run: Run, refused: Vec<u64>, out: &mut Output) {
        let Run { channel, serial, last, .. } = run;
        match &mut self.open {
            Some(open) if open.serial == serial => open.last = last,
            Some(_) | None => {
                self.flush(out);
                self.open = Some(run);
            }
        }
        for tag in refused {
            // Everything before it is confirmed first, so that "all up to" never covers a refusal.
            if let Some(open) = &mut self.open {
                open.last = tag - 1;
                if open.first <= open.last {
                    self.flush(out);
                }
            }
            nack(out, channel, tag, false);
            let first = tag + 1;
            self.open = (first <= last).then_some(Run { channel, serial, first, last });
        }
    }

    fn flush(&mut self, out: &mut Output) {
        if let Some(Run { channel, first, last, .. }) = self.open.take() {
            out.method(channel, &basic::Ack { delivery_tag: last, multiple: last > first });
        }
    }
}

fn nack(out: &mut Output, channel: u16, tag: u64, multiple: bool) {
    out.method(channel, &basic::Nack { delivery_tag: tag, multiple, requeue: false });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::method::BasicMethod;
    use crate::codec::{FrameMax, Frames, Method};

    fn told(runs: Vec<(Run, Vec<u64>)>) -> Vec<(bool, u64, bool)> {
        let mut out = Output::default();
        let mut acks = Acks::default();
        for (run, refused) in runs {
            acks.add(run, refused, &mut out);
        }
        acks.flush(&mut out);
        let tell = |frame: Result<crate::codec::Frame<'_>, _>| match Method::decode(frame.unwrap().payload)
            .unwrap()
        {
            Method::Basic(BasicMethod::Ack(ack)) => (true, ack.delivery_tag, ack.multiple),
            Method::Basic(BasicMethod::Nack(nack)) => (false, nack.delivery_tag, nack.multiple),
            other => panic!("{other:?}"),
        };
        Frames::new(&out.bytes, FrameMax::BEFORE_TUNE).map(tell).collect()
    }

    fn pending(first: u64, last: u64, refused: &[u64]) -> (Run, Vec<u64>) {
        (Run { channel: 1, serial: 7, first, last }, refused.to_vec())
    }

    #[test]
    fn many_are_confirmed_by_one() {
        assert_eq!(told(vec![pending(1, 3, &[]), pending(4, 9, &[])]), [(true, 9, true)]);
        assert_eq!(told(vec![pending(1, 1, &[])]), [(true, 1, false)]);
    }

    #[test]
    fn refusals_stand_between_confirms_in_order() {
        assert_eq!(
            told(vec![pending(1, 5, &[2, 3])]),
            [(true, 1, false), (false, 2, false), (false, 3, false), (true, 5, true)]
        );
        assert_eq!(told(vec![pending(1, 2, &[1, 2])]), [(false, 1, false), (false, 2, false)]);
        assert_eq!(told(vec![pending(1, 2, &[]), pending(3, 4, &[4])]), [(true, 3, true), (false, 4, false)]);
    }
}
