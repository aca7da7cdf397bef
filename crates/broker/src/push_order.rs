//! The order of pushes that overlap: each goes into its queue after the one before it, however long that waits for room.

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Pushes of which each comes after the one before, although several wait for the disk at once.
#[derive(Debug, Default)]
pub struct PushOrder {
    /// Ends with the turn that was taken last.
    last: Mutex<Option<Before>>,
}

/// The place of one push in its order, fixed when it is taken. Dropping it lets the next one push, as soon as all those
/// before have.
#[derive(Debug)]
#[must_use = "dropping it gives the turn up"]
pub struct PushTurn {
    before: Option<Before>,
    after: Option<oneshot::Sender<Before>>,
}

/// The turn before. It ends without a word, or gives itself up and names the one before itself.
#[derive(Debug)]
struct Before(oneshot::Receiver<Before>);

impl PushOrder {
    /// The next turn. It does not depend on when its push is polled for the first time.
    pub fn turn(&self) -> PushTurn {
        let (after, last) = oneshot::channel();
        let before = self.last.lock().replace(Before(last));
        PushTurn { before, after: Some(after) }
    }
}

impl PushTurn {
    /// Waits until all turns before have ended. Nothing is lost if the caller stops waiting.
    pub(crate) async fn come(&mut self) {
        while let Some(before) = &mut self.before {
            self.before = (&mut before.0).await.ok();
        }
    }
}

impl Drop for PushTurn {
    fn drop(&mut self) {
        if let (Some(before), Some(after)) = (self.before.take(), self.after.take()) {
            // The one behind waits for it instead. If there is none, the order itself has ended.
            let _ = after.send(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn has_come(turn: &mut PushTurn) -> bool {
        pin!(turn.come()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[tokio::test]
    async fn a_turn_comes_when_those_before_have_ended() {
        let order = PushOrder::default();
        let (mut first, mut second, mut third) = (order.turn(), order.turn(), order.turn());
        assert!(!has_come(&mut third));
        assert!(!has_come(&mut second));
        assert!(has_come(&mut first));
        drop(first);
        assert!(!has_come(&mut third));
        assert!(has_come(&mut second));
        drop(second);
        assert!(has_come(&mut third));
        drop(third);
        assert!(has_come(&mut order.turn()));
    }

    #[tokio::test]
    async fn a_turn_that_is_given_up_does_not_let_others_past_those_before_it() {
        let order = PushOrder::default();
        let (first, second, third, mut fourth) = (order.turn(), order.turn(), order.turn(), order.turn());
        drop(third);
        assert!(!has_come(&mut fourth));
        drop(second);
        assert!(!has_come(&mut fourth));
        drop(first);
        assert!(has_come(&mut fourth));
    }

    /// A task that has used up its budget is told to wait by everything of tokio, without having taken a place anywhere.
    #[tokio::test]
    async fn the_order_does_not_depend_on_the_budget_of_a_task() {
        let order = PushOrder::default();
        let holding = order.turn();
        let mut first = std::future::poll_fn(|cx| {
            while tokio::task::coop::has_budget_remaining() {
                let _ = pin!(tokio::task::coop::consume_budget()).poll(cx);
            }
            let mut turn = order.turn();
            assert!(!has_come(&mut turn));
            Poll::Ready(turn)
        })
        .await;
        tokio::task::yield_now().await;
        let mut second = order.turn();
        assert!(!has_come(&mut second));
        drop(holding);
        assert!(!has_come(&mut second), "it came later");
        assert!(has_come(&mut first));
    }
}
