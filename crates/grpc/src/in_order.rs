//! Work that overlaps and is answered in the order it was begun.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::{FuturesOrdered, StreamExt};

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Calls to the broker that wait for their sync while later ones are already made.
///
/// Each is polled once as it is begun, before the next request is even read: that fixes the order of calls that need not
/// wait for room in the log.
pub(crate) struct InOrder<T> {
    waiting: FuturesOrdered<Work<T>>,
    /// Answers that came while nobody asked for them; they come before all others.
    answered: VecDeque<T>,
}

enum Begun<T> {
    Done(Option<T>),
    Waiting(Work<T>),
}

impl<T: Send + Unpin + 'static> InOrder<T> {
    pub(crate) fn new() -> Self {
        Self { waiting: FuturesOrdered::new(), answered: VecDeque::new() }
    }

    /// Begins `work`; its answer comes after those of all that was begun before.
    pub(crate) async fn begin(&mut self, work: impl Future<Output = T> + Send + 'static) {
        let mut work: Work<T> = Box::pin(work);
        let first = std::future::poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
        let begun = match first {
            Poll::Ready(answer) => Begun::Done(Some(answer)),
            Poll::Pending => Begun::Waiting(work),
        };
        self.waiting.push_back(Box::pin(begun));
    }

    /// How much has been begun and not been answered.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.answered.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.answered.is_empty()
    }

    /// The next answer; `None` if nothing is begun. Nothing is lost if the caller stops waiting.
    pub(crate) async fn next(&mut self) -> Option<T> {
        match self.answered.pop_front() {
            Some(answer) => Some(answer),
            None => self.waiting.next().await,
        }
    }

    /// Goes on with all that is begun until `other` is done, and keeps the answers: for whoever waits for something that
    /// what is begun may hold.
    pub(crate) async fn go_on_until<R>(&mut self, other: impl Future<Output = R>) -> R {
        let mut other = std::pin::pin!(other);
        loop {
            tokio::select! {
                biased;
                done = &mut other => return done,
                Some(answer) = self.waiting.next(), if !self.waiting.is_empty() => self.answered.push_back(answer),
            }
        }
    }
}

impl<T: Unpin> Future for Begun<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match &mut *self {
            Self::Done(answer) => Poll::Ready(answer.take().expect("a future is not polled after its end")),
            Self::Waiting(work) => work.as_mut().poll(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test]
    async fn work_begins_at_once_and_answers_come_in_order() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        let mut work = InOrder::new();
        let log = order.clone();
        work.begin(async move {
            log.lock().unwrap().push("first");
            released.await.unwrap();
            1
        })
        .await;
        let log = order.clone();
        work.begin(async move {
            log.lock().unwrap().push("second");
            2
        })
        .await;
        assert_eq!(*order.lock().unwrap(), ["first", "second"]);
        assert_eq!(work.len(), 2);
        release.send(()).unwrap();
        assert_eq!((work.next().await, work.next().await), (Some(1), Some(2)));
        assert!(work.is_empty());
    }

    #[tokio::test]
    async fn what_is_begun_goes_on_while_its_owner_waits_for_what_it_holds() {
        let memory = Arc::new(tokio::sync::Semaphore::new(1));
        let mut work = InOrder::new();
        for number in 1..=3 {
            let memory = memory.clone();
            work.begin(async move {
                let _held = memory.acquire().await.unwrap();
                tokio::task::yield_now().await;
                number
            })
            .await;
        }
        drop(work.go_on_until(memory.acquire()).await.unwrap());
        assert_eq!(work.len(), 3, "no answer is lost");
        assert_eq!((work.next().await, work.next().await, work.next().await), (Some(1), Some(2), Some(3)));
        assert!(work.is_empty());
    }
}
