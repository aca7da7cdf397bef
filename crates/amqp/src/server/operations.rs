//! What a session waits for. The session itself never waits: it says what it needs, the connection's task awaits that on its
//! behalf, and tells it what came of it. Every future of a session is made here.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use nexo_broker::{
    Broker, Handed, Intake, IntakeHold, QueueError, QueueHandle, SessionId, Settling, Subscription, Terms,
    Written,
};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::consume::Cancelled;
use super::held_up::Waited;
use super::leaving::Leaving;
use super::pace::{Awaits, Pace};
use super::source::{Arrival, News, Source, UnwrittenBatch};

/// When one of many queues that share a message was locked for long, it is tried again after this.
const RETRY_BUSY: Duration = Duration::from_millis(2);

/// What publishes and commits wait for, and every frame behind them.
#[derive(Debug)]
pub(super) enum Wait {
    /// Others have their turn.
    Turn,
    /// The disk catches up, and others have their turn.
    CatchUp,
    /// As above, and a queue that others hold may be free.
    BusyQueue,
    /// A change is as safe as its queue promises. What came of it is looked at afterwards.
    Safe(Written),
    /// As above, and it is certain that what was looked at since the second moment may be told.
    Certain(Written, Written),
    /// What a commit settles is as safe as it must be.
    Settled(Vec<Settling>),
    /// Messages that full queues refused are where dead letters go.
    DeadLetters(Vec<Settling>),
}

/// What a session does that may take a while. No frame is taken before its end.
#[derive(Debug)]
pub(super) enum Operation {
    /// Others have their turn.
    Turn,
    /// The log takes more.
    Room,
    /// A change is as safe as its queue promises.
    Safe(Written),
    /// One message is taken, if there is one; it may have to be read from the log.
    Get { channel: u16, queue: QueueHandle, terms: Terms },
    /// Everything that waits in a queue is taken out of it.
    Purge { channel: u16, queue: QueueHandle, nowait: bool },
    /// A consumer without acknowledgements ends. What it was handed may have to be read from the log.
    Close { cancelled: Cancelled, source: Arc<Source>, subscription: Subscription },
    /// What is left behind is given back: there is so much of it that others need the thread.
    Leave(Leaving),
    /// The queues go that belong to the connection.
    EndSession(SessionId),
}

impl Operation {
    /// Whether it does nothing but wait.
    pub(super) const fn only_waits(&self) -> bool {
        match self {
            Self::Turn | Self::Room | Self::Safe(_) => true,
            Self::Get { .. }
            | Self::Purge { .. }
            | Self::Close { .. }
            | Self::Leave(_)
            | Self::EndSession(_) => false,
        }
    }
}

/// What came of an operation.
#[derive(Debug)]
pub(super) enum Done {
    /// It is over, and there is no more to say.
    Over,
    Safe(Result<(), QueueError>),
    Got {
        channel: u16,
        queue: QueueHandle,
        terms: Terms,
        got: Result<Option<(Handed, u64)>, QueueError>,
    },
    Purged {
        channel: u16,
        nowait: bool,
        purged: Result<u64, QueueError>,
    },
    Closed {
        cancelled: Cancelled,
        rest: UnwrittenBatch,
    },
}

pub(super) fn wait(broker: &Broker, until: Wait) -> BoxFuture<'static, Waited> {
    let broker = broker.clone();
    Box::pin(async move {
        match until {
            Wait::Turn => tokio::task::yield_now().await,
            Wait::CatchUp => {
                broker.disk_caught_up().await;
                tokio::task::yield_now().await;
            }
            Wait::BusyQueue => {
                broker.disk_caught_up().await;
                // Nobody tells when the lock of a queue is free.
                tokio::time::sleep(RETRY_BUSY).await;
            }
            Wait::Safe(written) => {
                let _ = broker.wait_for(written).await;
            }
            Wait::Certain(written, began) => {
                return Waited::Certain(certain(&broker, written, began).await);
            }
            Wait::Settled(mut left) => {
                let outcome = settled(&mut left).await;
                return Waited::Settled { left, outcome };
            }
            Wait::DeadLetters(dead_letters) => {
                for mut dead_letters in dead_letters {
                    // What cannot be moved now is moved later; the publisher is told the same.
                    let _ = dead_letters.done().await;
                }
            }
        }
        Waited::Turn
    })
}

/// Waits until all is done, and forgets what is. What found no room is left.
async fn settled(settling: &mut Vec<Settling>) -> Result<(), QueueError> {
    while let Some(last) = settling.last_mut() {
        last.done().await?;
        settling.pop();
    }
    Ok(())
}

pub(super) fn perform(broker: &Broker, operation: Operation) -> BoxFuture<'static, Done> {
    let broker = broker.clone();
    Box::pin(async move {
        match operation {
            Operation::Turn => {
                tokio::task::yield_now().await;
                Done::Over
            }
            Operation::Room => {
                broker.until_room().await;
                Done::Over
            }
            Operation::Safe(written) => Done::Safe(broker.wait_for(written).await),
            Operation::Get { channel, queue, terms } => {
                let got = queue.get(terms).await;
                Done::Got { channel, queue, terms, got }
            }
            Operation::Purge { channel, queue, nowait } => {
                let purged = queue.purge().await;
                Done::Purged { channel, nowait, purged }
            }
            Operation::Close { cancelled, source, subscription } => {
                let rest = subscription.close().await.into_iter();
                Done::Closed { cancelled, rest: UnwrittenBatch { source, rest } }
            }
            Operation::Leave(leaving) => {
                // Millions take seconds, which others need.
                let _ = tokio::task::spawn_blocking(move || drop(leaving)).await;
                Done::Over
            }
            Operation::EndSession(id) => {
                broker.end_session(id).await;
                Done::Over
            }
        }
    })
}

/// Resolves when a change is as safe as its queue promises, or never will be.
pub(super) fn safe(broker: &Broker, written: Written) -> BoxFuture<'static, Result<(), QueueError>> {
    let broker = broker.clone();
    Box::pin(async move { broker.wait_for(written).await })
}

/// The same, and when it is certain that what was looked at since then may be told.
pub(super) fn certain(
    broker: &Broker,
    written: Written,
    began: Written,
) -> BoxFuture<'static, Result<(), QueueError>> {
    let broker = broker.clone();
    Box::pin(async move {
        broker.wait_for(written).await?;
        broker.confirm_look(began).await
    })
}

/// Whether a change is as safe as its queue promises; `None` if it is not known yet.
pub(super) fn is_safe(broker: &Broker, written: Written) -> Option<Result<(), QueueError>> {
    broker.wait_for(written).now_or_never()
}

/// Resolves when the disk has written so much, or never will.
pub(super) fn written(broker: &Broker, written: Written) -> BoxFuture<'static, ()> {
    // If it failed, whoever publishes next is told.
    Box::pin(safe(broker, written).map(drop))
}

/// Resolves when the consumers of all these queues have been served.
pub(super) fn even(queues: Vec<QueueHandle>) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        for queue in queues {
            queue.until_even().await;
        }
    })
}

/// Resolves when there is memory for so much.
pub(super) fn memory(intake: &Intake, bytes: usize) -> BoxFuture<'static, IntakeHold> {
    let intake = intake.clone();
    Box::pin(async move { intake.hold(bytes).await })
}

/// Has the queues go that belong to a connection which did not end as it should.
pub(super) fn end_session_soon(broker: &Broker, id: SessionId) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        let broker = broker.clone();
        runtime.spawn(async move { broker.end_session(id).await });
    }
}

/// Resolves with what comes of something, if there is something; never otherwise.
pub(super) async fn outcome<T>(pending: Option<&mut BoxFuture<'static, T>>) -> T {
    match pending {
        Some(pending) => pending.await,
        None => std::future::pending().await,
    }
}

/// Resolves when the disk has caught up, or never will, and consumers have been served, or the pause has lasted long
/// enough.
pub(super) async fn caught_up(pace: &mut Pace, awaits: Awaits) {
    if let Some(disk) = pace.disk() {
        disk.await;
        pace.disk_has_caught_up();
    }
    if let Some((served, until)) = pace.pause(awaits, Instant::now().into_std()) {
        let in_time = timeout_at(until.into(), served).await.is_ok();
        pace.end_pause(in_time);
    }
}

/// Subscriptions of a connection's consumers, which wait for messages.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    waiting: FuturesUnordered<BoxFuture<'static, Arrival>>,
}

impl Subscriptions {
    /// Has a subscription wait for its next messages, or for being told to stop.
    pub(super) fn push(&self, source: Arc<Source>, mut subscription: Subscription, stop: Arc<Notify>) {
        self.waiting.push(Box::pin(async move {
            let news = tokio::select! {
                biased;
                () = stop.notified() => News::Stopped,
                next = subscription.next_handed() => match next {
                    Some(messages) => {
                        News::Messages(UnwrittenBatch { source: Arc::clone(&source), rest: messages.into_iter() })
                    }
                    None => News::Gone,
                },
            };
            Arrival { source, subscription, stop, news }
        }));
    }

    /// What the next of them brought, as soon as one brings something; `None` if there is none.
    pub(super) async fn next(&mut self) -> Option<Arrival> {
        self.waiting.next().await
    }

    /// What one of them has brought by now, if any has. One that was told to stop is among them, also when the task has used
    /// up its turn: nobody else is held up by this.
    pub(super) fn next_ready(&mut self) -> Option<Arrival> {
        tokio::task::unconstrained(self.waiting.next()).now_or_never().flatten()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;

    use nexo_broker::Pacing;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pause_never_waits_for_the_connections_own_acknowledgements() {
        let mut pace = Pace::default();
        pace.pause_until(Box::pin(pending()));
        assert!(pace.is_behind());
        caught_up(&mut pace, Awaits::Acks).await;
        assert!(!pace.is_behind() && pace.is_rationed());
        assert_eq!(pace.pacing(), Pacing::Unpaced);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_ends_early_when_acknowledgements_become_due_meanwhile() {
        let mut pace = Pace::default();
        pace.pause_until(Box::pin(pending()));
        let short = Duration::from_millis(4);
        assert!(tokio::time::timeout(short, caught_up(&mut pace, Awaits::NoAcks)).await.is_err());
        assert!(pace.is_behind(), "it goes on waiting");
        caught_up(&mut pace, Awaits::Acks).await;
        assert!(!pace.is_behind());
    }

    #[tokio::test(start_paused = true)]
    async fn a_hundred_paced_publishers_wait_for_their_turns() {
        // One goes on every 50 milliseconds, in the order in which they came.
        let gate = Arc::new(Semaphore::new(0));
        let publishers: Vec<_> = (0..100)
            .map(|_| {
                let gate = Arc::clone(&gate);
                tokio::spawn(async move {
                    let mut pace = Pace::default();
                    for _ in 0..3 {
                        let gate = Arc::clone(&gate);
                        let turn = async move { gate.acquire().await.unwrap().forget() };
                        pace.pause_until(Box::pin(turn));
                        caught_up(&mut pace, Awaits::NoAcks).await;
                        assert_eq!(
                            pace.pacing(),
                            Pacing::Paced,
                            "one that gives up takes the turns of others"
                        );
                    }
                })
            })
            .collect();
        for _ in 0..300 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            gate.add_permits(1);
        }
        for publisher in publishers {
            publisher.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn every_pause_ends_and_one_that_ended_in_time_rations_nobody() {
        let mut pace = Pace::default();
        pace.pause_until(Box::pin(pending()));
        caught_up(&mut pace, Awaits::NoAcks).await;
        assert!(!pace.is_behind() && pace.is_rationed());
        pace.pause_until(Box::pin(std::future::ready(())));
        caught_up(&mut pace, Awaits::NoAcks).await;
        assert!(!pace.is_rationed());
        assert_eq!(pace.pacing(), Pacing::Paced);
    }
}
