//! The ticket for a change that was proposed: what to wait for before anybody is told.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use nexo_log::{Reached, Urgency};
use nexo_types::{Position, SegmentId};
use tokio::sync::oneshot;

use super::error::TicketError;

/// A change that has been applied, and how safe it must be before anybody is told.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    end: Position,
    /// The term of the journal in which it was proposed. A loss ends a term.
    term: u32,
    urgency: Urgency,
}

impl Written {
    /// Nothing that anybody has to wait for.
    pub const NOTHING: Self =
        Self { end: Position { segment: SegmentId(0), byte: 0 }, term: u32::MAX, urgency: Urgency::Lazy };

    /// A change that ends here.
    pub(crate) const fn new(end: Position, term: u32, urgency: Urgency) -> Self {
        Self { end, term, urgency }
    }

    /// The frame that starts here. Frames get safe as a whole, so its first byte tells.
    pub(crate) const fn frame_at(at: Position, term: u32) -> Self {
        let end = Position { segment: at.segment, byte: at.byte.saturating_add(1) };
        Self { end, term, urgency: Urgency::Synced }
    }

    /// Whether there is nothing to wait for.
    #[must_use]
    pub const fn is_nothing(self) -> bool {
        matches!(self.urgency, Urgency::Lazy)
    }

    /// Both changes. Where a loss lies between them, both count as lost: who asks is told less than is known.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        // What nobody waits for does not make the other wait longer.
        match (self.urgency, other.urgency) {
            (Urgency::Lazy, _) => other,
            (_, Urgency::Lazy) => self,
            _ => Self {
                end: self.end.max(other.end),
                term: self.term.min(other.term),
                urgency: self.urgency.max(other.urgency),
            },
        }
    }

    /// The same change, for whoever waits for it to be this safe.
    #[must_use]
    pub(crate) const fn with(self, urgency: Urgency) -> Self {
        Self { urgency, ..self }
    }

    pub(crate) const fn end(self) -> Position {
        self.end
    }

    pub(crate) const fn term(self) -> u32 {
        self.term
    }

    pub(crate) const fn urgency(self) -> Urgency {
        self.urgency
    }
}

/// Resolves when a change is safe, or when it cannot be any more.
#[derive(Debug)]
#[must_use = "nothing is known about the change until this was awaited"]
pub(crate) struct Waiting(Inner);

#[derive(Debug)]
enum Inner {
    Nothing,
    Log(Reached),
    Known(Result<(), TicketError>),
    /// A journal that is more than the log tells by itself.
    Told(oneshot::Receiver<Result<(), TicketError>>),
}

impl Waiting {
    /// There is nothing to wait for.
    pub(crate) const NOTHING: Self = Self(Inner::Nothing);

    /// For what the log tells.
    pub(crate) const fn log(reached: Reached) -> Self {
        Self(Inner::Log(reached))
    }

    /// It is known already.
    pub(crate) const fn known(outcome: Result<(), TicketError>) -> Self {
        Self(Inner::Known(outcome))
    }

    pub(crate) const fn told(receiver: oneshot::Receiver<Result<(), TicketError>>) -> Self {
        Self(Inner::Told(receiver))
    }

    /// Waits without an executor.
    pub(crate) fn wait_blocking(self) -> Result<(), TicketError> {
        match self.0 {
            Inner::Nothing => Ok(()),
            Inner::Log(reached) => Ok(reached.wait_blocking()?),
            Inner::Known(outcome) => outcome,
            Inner::Told(receiver) => receiver.blocking_recv().unwrap_or(Err(TicketError::Lost)),
        }
    }
}

impl Future for Waiting {
    type Output = Result<(), TicketError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Inner::Nothing => Poll::Ready(Ok(())),
            Inner::Log(reached) => Pin::new(reached).poll(cx).map_err(TicketError::from),
            Inner::Known(outcome) => Poll::Ready(outcome.clone()),
            Inner::Told(receiver) => {
                Pin::new(receiver).poll(cx).map(|told| told.unwrap_or(Err(TicketError::Lost)))
            }
        }
    }
}
