//! Those who wait for proposals to be committed, in the order of what they wait for.

use std::collections::VecDeque;

use nexo_types::Position;
use tokio::sync::oneshot;

use crate::journal::TicketError;

/// Told when it is known what became of a proposal.
pub(super) type Teller = oneshot::Sender<Result<(), TicketError>>;

#[derive(Debug, Default)]
pub(super) struct Waiters(VecDeque<(Position, Teller)>);

impl Waiters {
    /// Somebody waits for all before a position.
    pub(super) fn add(&mut self, until: Position) -> oneshot::Receiver<Result<(), TicketError>> {
        let (sender, receiver) = oneshot::channel();
        // Nearly always the last; the search is for those who ask late.
        let at = match self.0.back() {
            Some((last, _)) if *last > until => self.0.partition_point(|(other, _)| *other <= until),
            Some(_) | None => self.0.len(),
        };
        self.0.insert(at, (until, sender));
        receiver
    }

    /// Those who waited for no more than this.
    pub(super) fn take_until(&mut self, reached: Position) -> impl Iterator<Item = Teller> + '_ {
        let count = self.0.partition_point(|(until, _)| *until <= reached);
        self.0.drain(..count).map(|(_, teller)| teller)
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Teller> + '_ {
        self.0.drain(..).map(|(_, teller)| teller)
    }
}
