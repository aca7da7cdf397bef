//! What the rig does to have messages handed out, and how it checks each of them against the model.

use super::*;
use crate::offsets::OffsetSet;

impl Rig {
    pub(super) fn dispatch(&mut self) {
        loop {
            self.queue.check_invariants();
            let before = self.queue.outline(self.now);
            let decided = self.queue.decide_dispatch(self.now, 5);
            assert_eq!(self.queue.outline(self.now), before, "a decision changes nothing that lasts");
            let Some(dispatch) = decided else {
                let pages = self.queue.wanted_pages(|ranges| OffsetSet::from_ranges(ranges));
                if pages.is_empty() {
                    break;
                }
                for page in pages {
                    self.page_in(&page);
                }
                // What comes in may have died while it was out.
                self.due();
                continue;
            };
            // A dispatch that cannot be written down is undone, and the next one is the same but for whose turn it is;
            // the model has no turns to undo, so it is tried where there is one consumer.
            let dispatch = if self.log.len().is_multiple_of(5) && self.model.turn.len() == 1 {
                self.queue.undo_dispatch(&dispatch);
                self.queue.decide_dispatch(self.now, 5).expect("what was undone can be done again")
            } else {
                dispatch
            };
            // On a full disk a lease is not written down, unless messages leave by it.
            let is_unwritten =
                dispatch.durable && !dispatch.must_be_written() && self.log.len().is_multiple_of(3);
            if dispatch.durable && !is_unwritten {
                self.append(&dispatch.record);
            }
            let handed = self.queue.commit_dispatch(&dispatch).unwrap();
            if is_unwritten {
                self.queue.note_unwritten(&dispatch);
            }
            let mut turns = dispatch
                .turns
                .iter()
                .flat_map(|turn| std::iter::repeat_n(turn.consumer, turn.count as usize));
            let mut last = None;
            for one in &handed {
                let consumer = turns.next().expect("every message has a consumer");
                self.check_delivery(one, consumer, last.take());
                last = Some((consumer, one.offset));
            }
            assert!(turns.next().is_none());
            if handed.len() < 5 && self.queue.config().rate_limit.is_none() {
                assert!(self.next_of_run(last).is_none(), "a run of a group ended before its time");
            }
            self.settle_read();
        }
        let someone = !self.model.turn.is_empty();
        let paused = self.queue.config().paused;
        if someone && !paused && self.queue.config().rate_limit.is_none() {
            let alive: Vec<_> =
                self.model.ready(self.now).into_iter().filter(|m| m.expires_at > self.now).cloned().collect();
            assert!(alive.is_empty(), "a consumer waits although there are messages: {alive:?}");
        }
    }

    /// What a consumer that takes runs must get after its last message.
    fn next_of_run(&mut self, last: Option<(ConsumerId, Offset)>) -> Option<Naive> {
        let (consumer, offset) = last?;
        let (terms, credit) = *self.model.consumers.get(&consumer.0)?;
        if terms.groups == GroupTake::Head || credit == 0 {
            return None;
        }
        let group = self.model.get(offset)?.group.clone()?;
        self.model.follower(&group, offset, self.now).cloned()
    }

    /// Checks a delivery that came after `last` in the same dispatch.
    pub(super) fn check_delivery(
        &mut self,
        handed: &Handed,
        consumer: ConsumerId,
        last: Option<(ConsumerId, Offset)>,
    ) {
        let now = self.now;
        assert!(!self.queue.config().paused, "a paused queue hands nothing out");
        assert!(self.model.allowed(self.queue.config().rate_limit, now), "the rate limit holds");
        let follower = self.next_of_run(last).zip(last);
        let (next, terms) = match follower {
            Some((next, (holder, _))) => {
                assert_eq!(consumer, holder, "a run of a group goes to one consumer");
                (next, self.model.take_one_more(holder.0))
            }
            None => {
                let (expected, terms) = self.model.next_consumer().expect("somebody has credit");
                assert_eq!(consumer.0, expected, "consumers are served in turn");
                let next = self.model.ready(now).into_iter().find(|m| m.expires_at > now).cloned();
                (next.expect("something is ready"), terms)
            }
        };
        assert_eq!(handed.offset, next.offset, "the most urgent, oldest message goes first");
        assert_eq!(handed.attempts, next.attempts + 1);
        let payload = handed.payload.clone().unwrap_or_else(|| {
            let batch = &self.store[&handed.offset];
            batch.payload(batch.find(handed.offset).unwrap())
        });
        assert_eq!(StoredMessage::parse(&payload).unwrap().body, body(handed.offset.0));
        self.model.delivered_at.push(now);
        let config = self.queue.config().clone();
        if terms.settle == SettleMode::Automatic && handed.payload.is_some() {
            self.model.remove(handed.offset);
            return;
        }
        let visibility = match terms.lease {
            LeaseTerms::For(span) => span,
            LeaseTerms::Queue | LeaseTerms::Session => config.visibility,
        };
        let (until, phase) = match (terms.lease, config.receipt_timeout) {
            (LeaseTerms::Session, _) => (None, LeasePhase::Done),
            _ if terms.settle == SettleMode::Automatic => (None, LeasePhase::Done),
            (_, Some(timeout)) => (Some(now.plus(timeout)), LeasePhase::Receipt),
            (_, None) => (Some(now.plus(visibility)), LeasePhase::Done),
        };
        assert_eq!(handed.until, until);
        let message = self.model.get(handed.offset).unwrap();
        message.attempts += 1;
        message.place = Where::Leased { until, phase, visibility };
        match terms.settle {
            SettleMode::Manual => self.held.push((handed.offset, handed.attempts)),
            SettleMode::Automatic => self.read.push((handed.offset, handed.attempts)),
        }
    }

    /// What had to be read before a consumer without acknowledgements could have it is settled then.
    pub(super) fn settle_read(&mut self) {
        let read = std::mem::take(&mut self.read);
        let verdict = self.queue.decide_ack(self.now, &read);
        assert!(verdict.answers.iter().all(Result::is_ok));
        for record in &verdict.records {
            self.run(record, verdict.durable);
        }
        for (offset, _) in read {
            self.model.remove(offset);
        }
    }
}
