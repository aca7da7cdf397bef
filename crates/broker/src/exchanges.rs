//! Exchanges and bindings of this node: the rules are `nexo_core::topology`'s; `machine_cell.rs` gives them a lock and the
//! journal; here they get routes that publishing reads without a lock.
//!
//! Whoever publishes first after a change takes the new routes out, under the lock; until then a change copies nothing. So
//! thousands of queues that are declared one after the other cost no copies of the routes.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use nexo_core::message::Durability;
use nexo_core::topology::{
    BindError, Binding, DeclareError, DeleteError, DeleteIf, Destination, ExchangeSpec, PassiveError, Plan,
    Routes, Topology, UnbindError,
};
use nexo_log::{Claim, Urgency};
use nexo_types::{ExchangeName, QueueId, QueueName};

use crate::broker::Broker;
use crate::error::{ExchangeError, QueueError};
use crate::event_kinds::of_topology;
use crate::events::Events;
use crate::journal::{Encoded, ProposeError, Written};
use crate::machine_cell::{Changed, MachineCell, Replayed};
use crate::ordered_mutex::Rank;
use crate::shared::Shared;

/// Records of exchanges and bindings are written under this id, which no queue has.
pub(crate) const TOPOLOGY: QueueId = QueueId(0);

/// All exchanges and bindings.
#[derive(Debug)]
pub(crate) struct Exchanges {
    cell: MachineCell<Topology>,
    routes: ArcSwap<Routes>,
    /// Exchanges or bindings have changed since the routes were taken out. Set and cleared under the lock.
    is_stale: AtomicBool,
    /// Of the routes, for whoever only asks whether they have changed.
    generation: AtomicU64,
    /// Who is told whether anybody wants events.
    events: Arc<Events>,
}

impl Exchanges {
    /// What was in the log, with its latest snapshot.
    pub(crate) fn new(restored: Replayed<Topology>, events: Arc<Events>) -> Self {
        events.look_at(&restored.machine);
        let routes = ArcSwap::new(restored.machine.routes());
        let generation = AtomicU64::new(restored.machine.generation());
        let is_stale = AtomicBool::new(false);
        Self {
            cell: MachineCell::new(TOPOLOGY, Rank::Topology, restored),
            routes,
            is_stale,
            generation,
            events,
        }
    }

    /// Their state, for checkpoints.
    pub(crate) const fn cell(&self) -> &MachineCell<Topology> {
        &self.cell
    }

    /// Where messages go, as of now. After a change it takes the lock of the exchanges for a moment.
    pub(crate) fn routes(&self) -> arc_swap::Guard<Arc<Routes>> {
        if self.is_stale.load(Ordering::Acquire) {
            self.look(|topology| {
                // Somebody else may have been faster.
                if self.is_stale.swap(false, Ordering::AcqRel) {
                    self.routes.store(topology.routes());
                }
            });
        }
        self.routes.load()
    }

    /// Takes note of a queue.
    pub(crate) fn add_queue(&self, name: &QueueName, id: QueueId, durability: Durability) {
        self.cell.change(|topology| {
            topology.queue_added(name, id, durability);
            self.note_change(topology);
        });
    }

    /// Looks at exchanges and bindings.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Topology) -> R) -> R {
        self.cell.look(|topology, _| look(topology))
    }

    /// Changes exchanges or bindings without writing it down.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Topology) -> R) -> R {
        self.cell.change(|topology| {
            let result = change(topology);
            self.publish(topology);
            result
        })
    }

    /// The latest change that was written down.
    pub(crate) fn last_change(&self) -> Written {
        self.cell.last_change()
    }

    /// Has these exchanges and bindings instead of those there were.
    pub(crate) fn replace(&self, restored: Replayed<Topology>) {
        self.cell.replace(restored, |before, topology| {
            topology.count_after(before.generation());
            self.publish(topology);
        });
    }

    fn publish(&self, topology: &Topology) {
        self.events.look_at(topology);
        self.note_change(topology);
    }

    /// Has whoever publishes next look at exchanges and bindings again.
    fn note_change(&self, topology: &Topology) {
        self.is_stale.store(true, Ordering::Release);
        self.generation.store(topology.generation(), Ordering::Release);
    }
}

impl Shared {
    /// Decides, writes down and applies a change of exchanges or bindings, with records of a queue in the same frame: see
    /// [`Shared::change_machine`].
    ///
    /// # Errors
    /// If the log does not take it; then nothing has changed.
    pub(crate) fn change_topology<E>(
        &self,
        beside: &[Encoded],
        decide: impl FnOnce(&Topology) -> Result<Plan, E>,
        urgency: Urgency,
    ) -> Result<Result<Changed, E>, ProposeError> {
        let exchanges = &self.catalog.exchanges;
        let told = RefCell::new(Vec::new());
        let decide = |topology: &Topology| {
            decide(topology).map(|plan| {
                if self.events.is_wanted() {
                    *told.borrow_mut() = of_topology(topology, &plan.steps);
                }
                plan.steps
            })
        };
        // Told under the lock: events come in the order of changes.
        let applied = |topology: &Topology| {
            exchanges.publish(topology);
            self.events.emit_all(told.take());
        };
        self.change_machine(&exchanges.cell, beside, decide, urgency, Claim::Reserved, applied)
    }
}

impl Broker {
    /// Where messages go, as of now. Taking it costs nothing, and it does not change.
    #[must_use]
    pub fn routes(&self) -> arc_swap::Guard<Arc<Routes>> {
        self.shared.catalog.exchanges.routes()
    }

    /// Of [`Self::routes`]: as long as it is the same, they are.
    #[must_use]
    pub fn routes_generation(&self) -> u64 {
        self.shared.catalog.exchanges.generation.load(Ordering::Acquire)
    }

    /// The durable exchanges and bindings.
    #[must_use]
    pub fn topology_outline(&self) -> nexo_core::topology::Outline {
        self.shared.catalog.exchanges.look(Topology::outline)
    }

    /// Declares an exchange, if there is none of that name.
    ///
    /// # Errors
    /// If there is one that is otherwise, the name may not be used, or the log takes no more.
    pub async fn declare_exchange(
        &self,
        name: &ExchangeName,
        spec: ExchangeSpec,
    ) -> Result<(), ExchangeError<DeclareError>> {
        let begun = self.begin_declare_exchange(name, spec).await;
        self.finish(begun).await
    }

    /// As [`Self::declare_exchange`], and does not wait for the sync: gives back what to wait for before anybody is told.
    ///
    /// # Errors
    /// As there.
    pub async fn begin_declare_exchange(
        &self,
        name: &ExchangeName,
        spec: ExchangeSpec,
    ) -> Result<Written, ExchangeError<DeclareError>> {
        self.when_room(|| self.try_declare_exchange(name, spec.clone())).await
    }

    /// As [`Self::begin_declare_exchange`], for one who waits by itself: where the log has no room it is
    /// [`QueueError::Busy`], and may be tried again after [`Self::until_room`].
    ///
    /// # Errors
    /// As there.
    pub fn try_declare_exchange(
        &self,
        name: &ExchangeName,
        spec: ExchangeSpec,
    ) -> Result<Written, ExchangeError<DeclareError>> {
        let written = self.change(|topology| topology.decide_declare(name, spec))?;
        self.shared.apply_policies_to_exchange(name);
        Ok(written)
    }

    /// Whether there is such an exchange. Gives back what to wait for before anybody is told so.
    ///
    /// # Errors
    /// If there is none.
    pub fn check_exchange(&self, name: &ExchangeName) -> Result<Written, PassiveError> {
        let exchanges = &self.shared.catalog.exchanges;
        exchanges.cell.look(|topology, last_change| topology.check(name).map(|_| last_change))
    }

    /// What an exchange is told to be, if there is one. The default exchange is told nothing.
    #[must_use]
    pub fn exchange_spec(&self, name: &ExchangeName) -> Option<ExchangeSpec> {
        self.shared.catalog.exchanges.look(|topology| topology.spec(name).cloned())
    }

    /// Deletes an exchange with its bindings.
    ///
    /// # Errors
    /// If it may not be deleted, or the log takes no more.
    pub async fn delete_exchange(
        &self,
        name: &ExchangeName,
        only_if: DeleteIf,
    ) -> Result<(), ExchangeError<DeleteError>> {
        let begun = self.begin_delete_exchange(name, only_if).await;
        self.finish(begun).await
    }

    /// As [`Self::delete_exchange`], and does not wait for the sync: gives back what to wait for before anybody is told.
    ///
    /// # Errors
    /// As there.
    pub async fn begin_delete_exchange(
        &self,
        name: &ExchangeName,
        only_if: DeleteIf,
    ) -> Result<Written, ExchangeError<DeleteError>> {
        self.when_room(|| self.try_delete_exchange(name, only_if)).await
    }

    /// As [`Self::begin_delete_exchange`], for one who waits by itself, as in [`Self::try_declare_exchange`].
    ///
    /// # Errors
    /// As there.
    pub fn try_delete_exchange(
        &self,
        name: &ExchangeName,
        only_if: DeleteIf,
    ) -> Result<Written, ExchangeError<DeleteError>> {
        self.change(|topology| topology.decide_delete(name, only_if))
    }

    /// Binds a queue or an exchange to an exchange.
    ///
    /// # Errors
    /// If an end of it is not there, its arguments mean nothing, or the log takes no more.
    pub async fn bind(&self, binding: Binding) -> Result<(), ExchangeError<BindError>> {
        let begun = self.begin_bind(binding).await;
        self.finish(begun).await
    }

    /// As [`Self::bind`], and does not wait for the sync: gives back what to wait for before anybody is told.
    ///
    /// # Errors
    /// As there.
    pub async fn begin_bind(&self, binding: Binding) -> Result<Written, ExchangeError<BindError>> {
        self.when_room(|| self.try_bind(binding.clone())).await
    }

    /// As [`Self::begin_bind`], for one who waits by itself, as in [`Self::try_declare_exchange`].
    ///
    /// # Errors
    /// As there.
    pub fn try_bind(&self, binding: Binding) -> Result<Written, ExchangeError<BindError>> {
        let destination = binding.destination().clone();
        let written = self.change(|topology| topology.decide_bind(binding))?;
        // If the binding itself is not written down, the queue must be safe all the same.
        let queue = match &destination {
            Destination::Queue(name) => self.queue(name),
            Destination::Exchange(_) => None,
        };
        Ok(queue.map_or(written, |queue| written.and(queue.created())))
    }

    /// Takes a binding away, if it is there.
    ///
    /// # Errors
    /// If the log takes no more.
    pub async fn unbind(&self, binding: &Binding) -> Result<(), ExchangeError<UnbindError>> {
        let begun = self.begin_unbind(binding).await;
        self.finish(begun).await
    }

    /// As [`Self::unbind`], and does not wait for the sync: gives back what to wait for before anybody is told.
    ///
    /// # Errors
    /// As there.
    pub async fn begin_unbind(&self, binding: &Binding) -> Result<Written, ExchangeError<UnbindError>> {
        self.when_room(|| self.try_unbind(binding)).await
    }

    /// As [`Self::begin_unbind`], for one who waits by itself, as in [`Self::try_declare_exchange`].
    ///
    /// # Errors
    /// As there.
    pub fn try_unbind(&self, binding: &Binding) -> Result<Written, ExchangeError<UnbindError>> {
        self.change(|topology| topology.decide_unbind(binding))
    }

    /// Waits until a change is safe, or what it was refused for.
    pub(crate) async fn finish<E>(
        &self,
        begun: Result<Written, ExchangeError<E>>,
    ) -> Result<(), ExchangeError<E>> {
        let (written, outcome) = match begun {
            Ok(written) => (written, Ok(())),
            Err(refused @ ExchangeError::Refused(_)) => (self.last_change(), Err(refused)),
            Err(error) => return Err(error),
        };
        self.shared.wait_for(written).await?;
        outcome
    }

    /// Where the log has no room, it is decided anew when there is some.
    pub(crate) async fn when_room<E>(
        &self,
        attempt: impl Fn() -> Result<Written, ExchangeError<E>>,
    ) -> Result<Written, ExchangeError<E>> {
        loop {
            match attempt() {
                Err(ExchangeError::Queue(QueueError::Busy { .. })) => self.shared.until_room().await,
                done => return done,
            }
        }
    }

    pub(crate) fn change<E>(
        &self,
        decide: impl FnOnce(&Topology) -> Result<Plan, E>,
    ) -> Result<Written, ExchangeError<E>> {
        self.shared.refuse_if_stopping()?;
        match self.shared.change_topology(&[], decide, Urgency::Synced) {
            Ok(decided) => decided.map(|changed| changed.written).map_err(ExchangeError::Refused),
            Err(error) => Err(self.shared.refused(&error).into()),
        }
    }
}
