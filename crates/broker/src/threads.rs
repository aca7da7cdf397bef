//! The broker's own threads, and which of them has panicked. Without the timer no delay ends, without maintenance no disk
//! space is given back: health must say so.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

/// What is known of the threads. A clone is about the same threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Threads {
    panicked: Arc<Mutex<Option<String>>>,
    /// The thread that a test wants to panic.
    #[cfg(test)]
    victim: Arc<Mutex<Option<String>>>,
}

impl Threads {
    /// Starts a thread. If it panics, that is noted.
    pub(crate) fn spawn(
        &self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        let (threads, own_name) = (self.clone(), name.to_owned());
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            if panic::catch_unwind(AssertUnwindSafe(run)).is_err() {
                threads.note_panic(&own_name);
            }
        })
    }

    /// A thread of this name has panicked, or a piece of its work.
    pub(crate) fn note_panic(&self, name: &str) {
        tracing::error!(thread = name, "a thread of the broker panicked; restart it as soon as possible");
        self.panicked.lock().get_or_insert_with(|| name.to_owned());
    }

    #[cfg(test)]
    pub(crate) fn ask_to_panic(&self, name: &str) {
        *self.victim.lock() = Some(name.to_owned());
    }

    #[cfg(test)]
    pub(crate) fn panic_if_asked(&self, name: &str) {
        let asked = self.victim.lock().as_deref() == Some(name);
        assert!(!asked, "a test wants this thread to panic");
    }

    /// The first thread that has panicked, if one has.
    pub(crate) fn panicked(&self) -> Option<String> {
        self.panicked.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nexo_core::config::QueueConfig;
    use nexo_core::message::NewMessage;
    use nexo_log::disk::MemoryDisk;
    use nexo_types::{Millis, QueueName};

    use super::*;
    use crate::broker::Broker;
    use crate::options::BrokerOptions;
    use crate::stats::Health;
    use crate::workers::Work;

    #[test]
    fn the_first_thread_that_panics_is_known_by_name() {
        let threads = Threads::default();
        threads.spawn("calm", || {}).unwrap().join().unwrap();
        assert_eq!(threads.panicked(), None);
        threads.spawn("first", || panic!("a bug")).unwrap().join().unwrap();
        threads.spawn("second", || panic!("another")).unwrap().join().unwrap();
        assert_eq!(threads.panicked().as_deref(), Some("first"));
    }

    async fn unhealthy(broker: &Broker) -> String {
        for _ in 0..2000 {
            if let Health::Unhealthy { reason } = broker.health() {
                return reason;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("nobody noticed");
    }

    async fn with_queue() -> (Broker, QueueName) {
        let options = BrokerOptions { segment_bytes: 64 * 1024, ..BrokerOptions::new("memory") };
        let broker = Broker::open_on(Arc::new(MemoryDisk::new()), options).unwrap();
        let queue = QueueName::new("q").unwrap();
        broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
        assert_eq!(broker.health(), Health::Ok);
        (broker, queue)
    }

    #[tokio::test]
    async fn health_knows_that_the_timer_has_panicked() {
        let (broker, queue) = with_queue().await;
        broker.shared.threads.ask_to_panic("nexo-timer");
        let delayed = NewMessage { delay: Millis(1), ..NewMessage::new("x") };
        broker.push(&queue, vec![delayed]).await.unwrap();
        assert!(unhealthy(&broker).await.contains("'nexo-timer'"));
        broker.shutdown().await;
    }

    #[tokio::test]
    async fn health_knows_that_maintenance_has_panicked() {
        let (broker, queue) = with_queue().await;
        broker.shared.threads.ask_to_panic("nexo-maintain");
        for _ in 0..100 {
            broker.push(&queue, vec![NewMessage::new(vec![0; 1000])]).await.unwrap();
        }
        assert!(unhealthy(&broker).await.contains("'nexo-maintain'"));
        broker.shutdown().await;
    }

    #[tokio::test]
    async fn health_knows_that_a_workers_job_has_panicked() {
        let (broker, queue) = with_queue().await;
        broker.shared.workers.spawn(Work::Look, || panic!("a bug"));
        assert!(unhealthy(&broker).await.contains("'nexo-worker-look-0'"));
        assert_eq!(broker.peek(&queue, 1).await.unwrap().len(), 0, "the thread goes on");
        broker.shutdown().await;
    }
}
