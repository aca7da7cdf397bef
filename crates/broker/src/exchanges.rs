//! Exchanges and bindings of this node: the rules are `nexo_core::topology`'s; here they get a lock, the log, and a
//! snapshot that publishing reads without one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use nexo_core::topology::{
    BindError, Binding, DeclareError, DeleteError, DeleteIf, Destination, ExchangeSpec, PassiveError, Plan,
    Routes, Topology, UnbindError,
};
use nexo_log::{Claim, EntryKind, EntryRef, Patience, Urgency};
use nexo_types::{ExchangeName, Position, QueueId};
use parking_lot::Mutex;

use crate::broker::Broker;
use crate::error::{ExchangeError, QueueError};
use crate::journal::{Encoded, ProposeError, Proposed, Written};
use crate::manifest::{Demand, Snapshot};
use crate::shared::Shared;

/// Records of exchanges and bindings are written under this id, which no queue has.
pub(crate) const TOPOLOGY: QueueId = QueueId(0);

/// All exchanges and bindings.
#[derive(Debug)]
pub(crate) struct Exchanges {
    state: Mutex<State>,
    routes: ArcSwap<Routes>,
    /// Of the routes, for whoever only asks whether they have changed.
    generation: AtomicU64,
}

#[derive(Debug)]
struct State {
    topology: Topology,
    /// The latest change that was written down, which may not be safe yet.
    last_change: Written,
    dirty: bool,
    snapshot: Snapshot,
}

/// A change that was written down, if it had to be, and applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changed {
    /// Its frame.
    pub(crate) at: Position,
    /// What to wait for before anybody is told.
    pub(crate) written: Written,
}

impl Exchanges {
    /// What was in the log, with its latest snapshot.
    pub(crate) fn new(topology: Topology, snapshot: Snapshot) -> Self {
        let routes = ArcSwap::new(topology.routes());
        let generation = AtomicU64::new(topology.generation());
        let state = State { topology, last_change: Written::NOTHING, dirty: true, snapshot };
        Self { state: Mutex::new(state), routes, generation }
    }

    /// Where messages go, as of now.
    pub(crate) fn routes(&self) -> arc_swap::Guard<Arc<Routes>> {
        self.routes.load()
    }

    /// Looks at exchanges and bindings.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Topology) -> R) -> R {
        look(&self.state.lock().topology)
    }

    /// Changes exchanges or bindings without writing it down.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Topology) -> R) -> R {
        let mut state = self.state.lock();
        let result = change(&mut state.topology);
        self.publish(&state.topology);
        result
    }

    /// The latest change that was written down.
    pub(crate) fn last_change(&self) -> Written {
        self.state.lock().last_change
    }

    /// Has these exchanges and bindings instead of those there were.
    pub(crate) fn replace(&self, mut topology: Topology, snapshot: Snapshot) {
        let mut state = self.state.lock();
        topology.count_after(state.topology.generation());
        *state = State { topology, last_change: Written::NOTHING, dirty: true, snapshot };
        self.publish(&state.topology);
    }

    fn publish(&self, topology: &Topology) {
        self.routes.store(topology.routes());
        self.generation.store(topology.generation(), Ordering::Release);
    }
}

impl Shared {
    /// Decides, writes down and applies a change of exchanges or bindings, with records of a queue in the same frame. Where
    /// nothing is written down, its caller waits for the latest change before it: that everything is as asked for, or could
    /// be done, may be due to one that is not safe yet.
    ///
    /// # Errors
    /// If the log does not take it; then nothing has changed. It does not wait for room: it is busy.
    pub(crate) fn change_topology<E>(
        &self,
        beside: &[Encoded],
        decide: impl FnOnce(&Topology) -> Result<Plan, E>,
        urgency: Urgency,
    ) -> Result<Result<Changed, E>, ProposeError> {
        let mut state = self.catalog.exchanges.state.lock();
        let plan = match decide(&state.topology) {
            Ok(plan) => plan,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let payloads: Vec<bytes::Bytes> = plan.to_write().map(|record| record.encode()).collect();
        let mut changed = Changed { at: Position::default(), written: state.last_change };
        if !payloads.is_empty() || !beside.is_empty() {
            let entry = |payload| EntryRef { queue: TOPOLOGY, kind: EntryKind::Record, spans: &[], payload };
            let own = payloads.iter().map(|payload| entry(payload));
            let entries: Vec<EntryRef<'_>> = beside.iter().map(Encoded::as_entry).chain(own).collect();
            let Proposed { at, written } =
                self.journal.propose(&entries, urgency, Claim::Reserved, Patience::RefuseLast)?;
            changed = Changed { at, written };
            if !payloads.is_empty() {
                state.last_change = written.with(Urgency::Synced);
                state.dirty = true;
            }
        }
        if !plan.is_empty() {
            state.topology.apply(&plan);
            self.catalog.exchanges.publish(&state.topology);
        }
        Ok(Ok(changed))
    }

    /// The latest snapshot of exchanges and bindings, which is written if they have changed, or if the one before does not
    /// meet the demand.
    pub(crate) fn snapshot_topology(&self, demand: Demand<'_>) -> Result<Snapshot, ProposeError> {
        let (at, bytes, was_dirty) = {
            let mut state = self.catalog.exchanges.state.lock();
            if !state.dirty && state.snapshot.head_will_do(demand) {
                return Ok(state.snapshot.clone());
            }
            let was_dirty = std::mem::replace(&mut state.dirty, false);
            (self.log.next_position(), state.topology.snapshot(), was_dirty)
        };
        let written = self.write_parts(TOPOLOGY, &bytes);
        let mut state = self.catalog.exchanges.state.lock();
        match written {
            Ok(head) => {
                let head_copy = if was_dirty { Vec::new() } else { state.snapshot.kept_head(demand) };
                state.snapshot = Snapshot { at, head, head_copy, ..Snapshot::default() };
            }
            Err(error) => {
                state.dirty = true;
                return Err(error);
            }
        }
        Ok(state.snapshot.clone())
    }

    /// The latest snapshot of exchanges and bindings.
    pub(crate) fn topology_snapshot(&self) -> Snapshot {
        self.catalog.exchanges.state.lock().snapshot.clone()
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
        self.shared.catalog.exchanges.state.lock().topology.outline()
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
        self.change(|topology| topology.decide_declare(name, spec))
    }

    /// Whether there is such an exchange. Gives back what to wait for before anybody is told so.
    ///
    /// # Errors
    /// If there is none.
    pub fn check_exchange(&self, name: &ExchangeName) -> Result<Written, PassiveError> {
        let state = self.shared.catalog.exchanges.state.lock();
        state.topology.check(name).map(|_| state.last_change)
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
    async fn finish<E>(&self, begun: Result<Written, ExchangeError<E>>) -> Result<(), ExchangeError<E>> {
        let (written, outcome) = match begun {
            Ok(written) => (written, Ok(())),
            Err(refused @ ExchangeError::Refused(_)) => (self.last_change(), Err(refused)),
            Err(error) => return Err(error),
        };
        self.shared.wait_for(written).await?;
        outcome
    }

    /// Where the log has no room, it is decided anew when there is some.
    async fn when_room<E>(
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

    fn change<E>(
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
