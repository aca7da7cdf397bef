//! What all clients share: the books, where the broker is, and what they are told to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{broadcast, watch};

use crate::doors::{Door, Doors};
use crate::jobs::Yard;
use crate::ledger::Ledger;
use crate::plan::Clients;

/// Copies under way at which publishers wait for consumers.
const BACKLOG_MAX: usize = 40_000;
/// How often it is looked whether they should, at most.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How far the run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunPhase {
    /// Publishers publish, consumers consume.
    Load,
    /// Nothing new is published.
    Drain,
    /// Everybody goes home.
    Over,
}

/// What clients are told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// Reset the connection in the middle of a frame.
    Cut(Clients),
    /// Do not read for a while.
    Stall(Clients, Duration),
}

/// What a client is to do with an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Cut,
    Stall(Duration),
}

/// The shared world.
#[derive(Debug)]
pub(crate) struct World {
    ledger: Mutex<Ledger>,
    pub(crate) doors: Arc<Doors>,
    /// What part of the usual load there is.
    pub(crate) pace: f64,
    /// What is about jobs.
    pub(crate) yard: Yard,
    phase: watch::Sender<RunPhase>,
    orders: broadcast::Sender<Order>,
    next_publisher: AtomicU16,
    /// When it was last looked whether publishers should wait, and what was found.
    looked: Mutex<Option<(Instant, bool)>>,
    seed: u64,
}

/// A client's ear for orders and for how far the run is.
#[derive(Debug)]
pub(crate) struct Ear {
    client: usize,
    orders: broadcast::Receiver<Order>,
    phase: watch::Receiver<RunPhase>,
}

impl World {
    /// A world of one broker.
    pub(crate) fn new(door: Door, seed: u64) -> Arc<Self> {
        Self::of(Doors::new(door, Vec::new()), 1.0, seed)
    }

    /// A world of a broker with several doors.
    pub(crate) fn of(doors: Doors, pace: f64, seed: u64) -> Arc<Self> {
        let doors = Arc::new(doors);
        Arc::new(Self {
            ledger: Mutex::default(),
            yard: Yard::new(Arc::clone(&doors)),
            doors,
            pace,
            phase: watch::channel(RunPhase::Load).0,
            orders: broadcast::channel(1024).0,
            next_publisher: AtomicU16::new(1),
            looked: Mutex::default(),
            seed,
        })
    }

    /// The books. Not to be held across a wait.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    pub(crate) fn enter(&self, phase: RunPhase) {
        self.phase.send_replace(phase);
    }

    pub(crate) fn phase(&self) -> RunPhase {
        *self.phase.borrow()
    }

    /// How far the run is, to wait for.
    pub(crate) fn phases(&self) -> watch::Receiver<RunPhase> {
        self.phase.subscribe()
    }

    /// Chances that follow from the seed and a number of one's own.
    pub(crate) fn chances(&self, number: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed.wrapping_mul(1_000_033).wrapping_add(number))
    }

    pub(crate) fn order(&self, order: Order) {
        // Between sessions nobody may listen.
        let _ = self.orders.send(order);
    }

    pub(crate) fn ear(&self, client: usize) -> Ear {
        Ear { client, orders: self.orders.subscribe(), phase: self.phase.subscribe() }
    }

    /// A number of one's own, and the chances that follow from it and the seed.
    pub(crate) fn new_publisher(&self) -> (u16, fastrand::Rng) {
        let number = self.next_publisher.fetch_add(1, Ordering::Relaxed);
        (number, fastrand::Rng::with_seed(self.seed.wrapping_mul(1_000_003).wrapping_add(number.into())))
    }

    /// Whether publishers should wait. What may be done, and is never known to be, does not count: with every leader that is lost there
    /// is more of it. That takes a look at everything, so it is done now and then.
    pub(crate) fn is_behind(&self) -> bool {
        let ledger = self.ledger();
        if ledger.outstanding() <= BACKLOG_MAX {
            return false;
        }
        let mut looked = self.looked.lock();
        if looked.is_none_or(|(at, _)| at.elapsed() >= LOOK_AGAIN) {
            *looked = Some((Instant::now(), ledger.owed() > BACKLOG_MAX));
        }
        looked.is_some_and(|(_, is_behind)| is_behind)
    }
}

impl Ear {
    /// The next order for this client.
    pub(crate) async fn told(&mut self) -> Told {
        loop {
            match self.orders.recv().await {
                Ok(Order::Cut(clients)) if clients.contains(self.client) => return Told::Cut,
                Ok(Order::Stall(clients, span)) if clients.contains(self.client) => {
                    return Told::Stall(span);
                }
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    pub(crate) fn phase(&self) -> RunPhase {
        *self.phase.borrow()
    }
}
