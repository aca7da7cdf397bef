//! Work that overlaps and is answered in the order it was begun.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::{FuturesOrdered, StreamExt};

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Calls to the broker that wait for their sync while later ones are already made.
///
/// The broker fixes the order of two calls when they are first polled, or those that must wait for room in the log get it in
/// that order; so each is polled once as it is begun, before the next request is even read.
pub(crate) struct InOrder<T> {
    waiting: FuturesOrdered<Work<T>>,
}

enum Begun<T> {
    Done(Option<T>),
    Waiting(Work<T>),
}

impl<T: Send + Unpin + 'static> InOrder<T> {
    pub(crate) fn new() -> Self {
        Self { waiting: FuturesOrdered::new() }
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
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next answer; `None` if nothing is begun. Nothing is lost if the caller stops waiting.
    pub(crate) async fn next(&mut self) -> Option<T> {
        self.waiting.next().await
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
}
