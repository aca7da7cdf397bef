//! What consumers say about messages that they hold, or held: done, failed, arrived, more time.

use super::*;

impl Rig {
    pub(super) fn receipt(&self, pick: usize) -> Option<(Offset, u32)> {
        (!self.held.is_empty()).then(|| self.held[pick % self.held.len()])
    }

    /// What the model says of a receipt.
    pub(super) fn holds(&mut self, (offset, attempt): (Offset, u32)) -> bool {
        self.model.get(offset).is_some_and(|m| m.is_leased() && m.attempts == attempt)
    }

    pub(super) fn ack(&mut self, pick: usize, stale: bool) {
        let Some(mut receipt) = self.receipt(pick) else { return };
        receipt.1 += u32::from(stale);
        let holds = self.holds(receipt);
        // The second of two equal receipts in one call does not hold.
        let verdict = self.queue.decide_ack(self.now, &[receipt, receipt]);
        assert_eq!(verdict.answers[0].is_ok(), holds, "{:?}", verdict.answers);
        assert!(verdict.answers[1].is_err());
        for record in &verdict.records {
            self.run(record, verdict.durable);
        }
        if holds {
            self.model.remove(receipt.0);
        }
        self.dispatch();
    }

    pub(super) fn late_ack(&mut self, pick: usize) {
        let Some((offset, attempt)) = self.receipt(pick) else { return };
        self.due();
        let past = PastDelivery { offset, attempt, granted_at: self.now };
        let known = self.model.get(offset).filter(|m| m.attempts >= attempt).cloned();
        let back = known.as_ref().is_some_and(|m| m.place == Where::Waiting);
        match self.queue.standing(&past) {
            Standing::Waiting => assert!(back),
            Standing::Leased { attempt: current } => {
                assert_eq!(known.filter(|m| m.is_leased()).map(|m| m.attempts), Some(current));
            }
            // The moment of this delivery is not that of the lease, so the same attempt is another one.
            Standing::Gone => {
                let same = |m: Naive| m.attempts == attempt || m.place == Where::Aside;
                assert!(!back && known.is_none_or(same));
            }
        }
        // The second of two equal ones in one call does not hold.
        let verdict = self.queue.decide_late_ack(self.now, &[past, past]);
        assert_eq!(verdict.answers[0].is_ok(), back, "{:?}", verdict.answers);
        assert!(verdict.answers[1].is_err());
        for record in &verdict.records {
            self.run(record, verdict.durable);
        }
        if back {
            self.model.remove(offset);
        }
        self.dispatch();
    }

    pub(super) fn give_back(&mut self, pick: usize, cause: ReturnCause) {
        let Some(receipt) = self.receipt(pick) else { return };
        let holds = self.holds(receipt);
        let config = self.queue.config().clone();
        let (answers, plan) = self.queue.decide_return(self.now, &[receipt], cause);
        assert_eq!(answers[0].is_ok(), holds);
        for record in &plan.records {
            self.run(record, plan.durable);
        }
        if holds {
            let now = self.now;
            let undone = cause == ReturnCause::Undelivered;
            let message = self.model.get(receipt.0).unwrap();
            if message.dying.is_some() {
                assert_eq!((plan.records.len(), plan.deaths.len()), (0, 1), "it is to be moved already");
            } else if !undone && config.max_attempts.is_some_and(|max| message.attempts >= max) {
                assert_eq!(plan.deaths.len(), 1);
                self.model.die(&plan.deaths[0]);
            } else {
                message.place = Where::Waiting;
                message.ready_at = now.plus(match cause {
                    ReturnCause::Nack(Some(delay)) => delay,
                    ReturnCause::Nack(None) => config.retry.wait_after(message.attempts),
                    _ => Millis::ZERO,
                });
                message.attempts -= u32::from(undone);
            }
        }
        self.wait(0);
    }

    pub(super) fn received(&mut self, pick: usize) {
        let Some(receipt) = self.receipt(pick) else { return };
        let now = self.now;
        let expected = self.holds(receipt).then(|| self.model.get(receipt.0).unwrap().place.clone());
        let verdict = self.queue.decide_received(now, &[receipt]);
        for record in &verdict.records {
            self.run(record, verdict.durable);
        }
        match expected {
            Some(Where::Leased { phase: LeasePhase::Receipt, visibility, .. }) => {
                let until = now.plus(visibility);
                assert_eq!(verdict.answers[0], Ok(until));
                let done = Where::Leased { until: Some(until), phase: LeasePhase::Done, visibility };
                self.model.get(receipt.0).unwrap().place = done;
            }
            Some(_) => assert!(matches!(verdict.answers[0], Err(LeaseError::AlreadyReceived { .. }))),
            None => assert!(verdict.answers[0].is_err()),
        }
    }

    pub(super) fn extend(&mut self, pick: usize, span: u64) {
        let Some(receipt) = self.receipt(pick) else { return };
        let holds = self.holds(receipt);
        let until = self.now.plus(Millis(span));
        let verdict = self.queue.decide_extend(self.now, &[receipt], Millis(span));
        assert_eq!(verdict.answers[0].is_ok(), holds);
        for record in &verdict.records {
            self.run(record, verdict.durable);
        }
        if holds {
            let message = self.model.get(receipt.0).unwrap();
            let Where::Leased { visibility, .. } = message.place else { unreachable!() };
            message.place = Where::Leased { until: Some(until), phase: LeasePhase::Done, visibility };
        }
        self.wait(0);
    }
}
