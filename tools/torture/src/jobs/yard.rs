//! What clients, workers and readers of answers share: the books, where the broker is, and few connections for many clients.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, Semaphore, oneshot};

use super::books::{Books, WaiterId};
use super::setup::CONNECTIONS;
use super::wire::{Gone, Replied, Wire};
use crate::doors::Doors;
use crate::ledger::Violation;
use crate::world::World;

/// The part of the world that is about jobs.
#[derive(Debug)]
pub(crate) struct Yard {
    books: Mutex<Books>,
    /// Where the broker is.
    doors: Arc<Doors>,
    /// A worker has read of jobs that it was handed, and the books know.
    pub(crate) handed_out: Notify,
    /// Somebody was told that something was done with a job, and the books know.
    pub(crate) settled: Notify,
    permits: Semaphore,
    idle: Mutex<Vec<Wire>>,
    /// Clients that wait for a message.
    waiting: Mutex<HashMap<WaiterId, oneshot::Sender<()>>>,
}

impl Yard {
    pub(crate) fn new(doors: Arc<Doors>) -> Self {
        Self {
            books: Mutex::default(),
            doors,
            handed_out: Notify::new(),
            settled: Notify::new(),
            permits: Semaphore::new(CONNECTIONS),
            idle: Mutex::default(),
            waiting: Mutex::default(),
        }
    }

    /// Asks for something over one of the clients' connections.
    pub(super) async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Replied, Gone> {
        let _permit = self.permits.acquire().await.map_err(|_| Gone)?;
        let idle = self.idle.lock().pop();
        let mut wire = match idle {
            Some(wire) => wire,
            None => Wire::connect(self.doors.any().http).await?,
        };
        let replied = wire.call(method, path, body).await?;
        self.idle.lock().push(wire);
        Ok(replied)
    }

    /// Resolves when a message for this waiter has come.
    pub(super) fn until_told(&self, waiter: WaiterId) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        self.waiting.lock().insert(waiter, tell);
        told
    }

    pub(super) fn tell(&self, waiter: WaiterId) {
        if let Some(tell) = self.waiting.lock().remove(&waiter) {
            // The client may have gone home.
            let _ = tell.send(());
        }
    }
}

impl World {
    /// Tells the books something, and the ledger what is wrong with it.
    pub(crate) fn books<R>(&self, tell: impl FnOnce(&mut Books) -> R) -> R {
        let (result, found): (R, Vec<Violation>) = {
            let mut books = self.yard.books.lock();
            (tell(&mut books), books.take_found())
        };
        if !found.is_empty() {
            let mut ledger = self.ledger();
            found.into_iter().for_each(|violation| ledger.report(violation));
        }
        result
    }
}
