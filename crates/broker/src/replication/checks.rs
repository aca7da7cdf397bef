//! Those who wait until it is certain that this node leads still. A majority is asked for all of them together, once at a time:
//! whoever comes meanwhile waits for the next question.

use tokio::sync::oneshot;

use super::waiters::Teller;
use crate::journal::TicketError;

#[derive(Debug, Default)]
pub(super) struct Checks {
    /// Those for whom nobody was asked yet.
    waiting: Vec<Teller>,
    /// The question that is under way, and those who wait for its answer.
    asked: Option<(u64, Vec<Teller>)>,
}

impl Checks {
    /// Somebody wants to know.
    pub(super) fn add(&mut self) -> oneshot::Receiver<Result<(), TicketError>> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.push(sender);
        receiver
    }

    /// Whether a majority is to be asked now.
    pub(super) const fn is_due(&self) -> bool {
        self.asked.is_none() && !self.waiting.is_empty()
    }

    /// A majority is asked for all who wait.
    pub(super) fn ask(&mut self, number: u64) {
        self.asked = Some((number, std::mem::take(&mut self.waiting)));
    }

    /// A majority has said that this node leads.
    pub(super) fn answered(&mut self, number: u64) {
        if let Some((_, tellers)) = self.asked.take_if(|(asked, _)| *asked <= number) {
            // Whoever is gone does not need to know.
            tellers.into_iter().for_each(|teller| drop(teller.send(Ok(()))));
        }
    }

    /// This node leads no more, or does not know.
    pub(super) fn fail(&mut self) {
        let asked = self.asked.take().map(|(_, tellers)| tellers).unwrap_or_default();
        for teller in asked.into_iter().chain(std::mem::take(&mut self.waiting)) {
            drop(teller.send(Err(TicketError::Lost)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_while_a_question_is_under_way_waits_for_the_next() {
        let mut checks = Checks::default();
        assert!(!checks.is_due());
        let mut first = checks.add();
        assert!(checks.is_due());
        checks.ask(1);
        let mut second = checks.add();
        assert!(!checks.is_due(), "one is under way");
        checks.answered(1);
        assert_eq!(first.try_recv(), Ok(Ok(())));
        assert!(second.try_recv().is_err() && checks.is_due());
        checks.ask(2);
        checks.answered(1);
        assert!(second.try_recv().is_err(), "that was said before it was asked");
        checks.fail();
        assert_eq!(second.try_recv(), Ok(Err(TicketError::Lost)));
    }
}
