//! Policies and parameters of this node: the rules are `nexo_core::policy`'s; `machine_cell.rs` gives them a lock and the
//! journal; here they get a copy that is read without a lock, and take effect.
//!
//! A queue carries what it was told to be itself, and what policies make of that. When a policy changes, a worker looks at the
//! queues of its virtual host one by one, each under its own lock, and writes down what differs as a record of the queue. So a
//! replay of a queue needs no policies. Where the disk has no room for that, maintenance tries again. What a crash cuts off, the
//! next start completes before it serves anybody. A new queue has its policies from the beginning: it is added under the lock
//! under which policies change.
//!
//! What policies say of exchanges is kept in memory, beside what was declared, and is made anew by a start.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use nexo_core::config::QueueConfig;
use nexo_core::machine::Step;
use nexo_core::message::Durability;
use nexo_core::policy::{Policies, PolicyError, PolicyPair, PolicyRecord, QueueFacts, Subject, effective};
use nexo_core::topology::Topology;
use nexo_log::{Claim, Patience, Urgency};
use nexo_types::{ExchangeName, QueueId, QueueKind, QueueName, VhostName};

use crate::broker::Broker;
use crate::error::{PolicyChangeError, QueueError};
use crate::event_kinds::log_policies;
use crate::journal::{ProposeError, Standing, Written};
use crate::machine_cell::{MachineCell, Replayed};
use crate::ordered_mutex::Rank;
use crate::queue_cell::QueueCell;
use crate::shared::Shared;
use crate::workers::Work;

/// Records of policies are written under this id, which no queue has: ids of queues count up from one.
pub(crate) const POLICIES: QueueId = QueueId(u64::MAX - 1);
/// Exchanges that are changed under one hold of their lock.
const EXCHANGES_AT_ONCE: usize = 256;

/// All policies and parameters.
#[derive(Debug)]
pub(crate) struct PolicyCell {
    cell: MachineCell<Policies>,
    latest: ArcSwap<Policies>,
}

impl PolicyCell {
    /// What was in the log, with its latest snapshot.
    pub(crate) fn new(restored: Replayed<Policies>) -> Self {
        let latest = ArcSwap::from_pointee(restored.machine.clone());
        Self { cell: MachineCell::new(POLICIES, Rank::Policies, restored), latest }
    }

    /// Their state, for checkpoints.
    pub(crate) const fn cell(&self) -> &MachineCell<Policies> {
        &self.cell
    }

    /// Has these policies instead of those there were.
    pub(crate) fn replace(&self, restored: Replayed<Policies>) {
        self.cell.replace(restored, |_, policies| self.publish(policies));
    }

    /// To be called under the cell's lock, so that the latest copy is the last.
    fn publish(&self, policies: &Policies) {
        self.latest.store(Arc::new(policies.clone()));
    }
}

/// In which virtual hosts queues and exchanges are looked at.
#[derive(Clone, Debug)]
enum Where {
    Everywhere,
    In(BTreeSet<VhostName>),
}

impl Where {
    /// Where these changes may make a difference.
    fn of(changes: &[PolicyRecord]) -> Self {
        let vhost = |change: &PolicyRecord| match change {
            PolicyRecord::Put { vhost, .. } | PolicyRecord::Delete { vhost, .. } => Some(vhost.clone()),
            PolicyRecord::PutParameter { .. }
            | PolicyRecord::DeleteParameter { .. }
            | PolicyRecord::PutGlobal { .. }
            | PolicyRecord::DeleteGlobal { .. }
            | PolicyRecord::ForgetVhost { .. } => None,
        };
        Self::In(changes.iter().filter_map(vhost).collect())
    }

    fn has(&self, vhost: &str) -> bool {
        match self {
            Self::Everywhere => true,
            Self::In(vhosts) => vhosts.iter().any(|known| known.as_str() == vhost),
        }
    }

    fn is_nowhere(&self) -> bool {
        matches!(self, Self::In(vhosts) if vhosts.is_empty())
    }
}

impl Broker {
    /// All policies and parameters, as of now. Taking it costs nothing, and it does not change.
    #[must_use]
    pub fn policies(&self) -> arc_swap::Guard<Arc<Policies>> {
        self.shared.policies.latest.load()
    }

    /// Which policies apply to a queue of this kind.
    #[must_use]
    pub fn policies_of_queue(&self, name: &QueueName, kind: QueueKind) -> PolicyPair {
        self.policies().of(&name.vhost(), Subject::Queue { name: name.as_str(), kind })
    }

    /// Which policies apply to an exchange.
    #[must_use]
    pub fn policies_of_exchange(&self, name: &ExchangeName) -> PolicyPair {
        self.policies().of(&name.vhost(), Subject::Exchange { name: name.as_str() })
    }

    /// Makes changes of policies and parameters, all of them or none. Returns when they are safe, and queues and exchanges are
    /// as they say; that goes on whether or not anybody waits for it.
    ///
    /// # Errors
    /// If one of them cannot be made, or the log takes no more.
    pub async fn change_policies(&self, changes: &[PolicyRecord]) -> Result<(), PolicyChangeError> {
        let begun = loop {
            match self.try_change_policies(changes) {
                Err(PolicyChangeError::Queue(QueueError::Busy { .. })) => self.shared.until_room().await,
                begun => break begun,
            }
        };
        let written = match begun {
            Ok(written) => written,
            // What it is refused for may not be safe yet.
            Err(refused @ PolicyChangeError::Refused(_)) => {
                self.shared.wait_for(self.shared.policies.cell.last_change()).await?;
                return Err(refused);
            }
            Err(error) => return Err(error),
        };
        let place = Where::of(changes);
        let applied = (!place.is_nowhere()).then(|| {
            let shared = Arc::clone(&self.shared);
            self.shared.begin_on_worker(Work::Chore, move || shared.apply_policies(&place))
        });
        self.shared.wait_for(written).await?;
        if let Some(applied) = applied {
            // If the broker stops before, the next start does it.
            let _ = applied.await;
        }
        Ok(())
    }

    fn try_change_policies(&self, changes: &[PolicyRecord]) -> Result<Written, PolicyChangeError> {
        self.shared.refuse_if_stopping()?;
        // Who adds a queue asks for its policies under this lock, and who deletes a virtual host begins under it.
        let _changing = self.shared.catalog.change();
        self.shared.refuse_if_rebuilding()?;
        for change in changes {
            if let PolicyRecord::Put { vhost, .. } | PolicyRecord::PutParameter { vhost, .. } = change {
                let open = |topology: &Topology| topology.open_vhost(vhost).is_ok();
                if !self.shared.catalog.exchanges.look(open) {
                    let refused = PolicyError::NoSuchVhost { name: vhost.clone() };
                    return Err(PolicyChangeError::Refused(refused));
                }
            }
        }
        match self.shared.change_policies(changes) {
            Ok(decided) => decided.map_err(PolicyChangeError::Refused),
            Err(error) => Err(self.shared.refused(&error).into()),
        }
    }
}

impl Shared {
    fn change_policies(
        &self,
        changes: &[PolicyRecord],
    ) -> Result<Result<Written, PolicyError>, ProposeError> {
        let policies = &self.policies;
        let decide = |known: &Policies| -> Result<Vec<Step<PolicyRecord>>, PolicyError> {
            let records = known.decide_changes(changes)?;
            let durable = |record| Step { record, durability: Durability::Durable };
            Ok(records.into_iter().map(durable).collect())
        };
        let is_told = Cell::new(false);
        let tell = || {
            if !is_told.replace(true) {
                self.events.policies_changed(changes);
            }
        };
        // Told under the lock: events come in the order of changes.
        let applied = |known: &Policies| {
            policies.publish(known);
            tell();
        };
        let changed =
            self.change_machine(&policies.cell, &[], decide, Urgency::Synced, Claim::Reserved, applied)?;
        if changed.is_ok() {
            // Also what was so already: somebody has set it.
            tell();
            log_policies(changes);
        }
        Ok(changed.map(|changed| changed.written))
    }

    /// Drops what is said in a virtual host that is on its way out.
    pub(crate) fn forget_policies_in(&self, vhost: &VhostName) -> Result<Written, QueueError> {
        match self.change_policies(&[PolicyRecord::ForgetVhost { vhost: vhost.clone() }]) {
            Ok(Ok(written)) => Ok(written),
            // Nothing can be wrong with that.
            Ok(Err(refused)) => Err(QueueError::Unavailable { reason: refused.to_string() }),
            Err(error) => Err(self.refused(&error)),
        }
    }

    /// What policies make of a queue that was told to be this.
    pub(crate) fn with_policies(&self, name: &QueueName, config: &QueueConfig) -> QueueConfig {
        let base = config.base();
        let policies = self.policies.latest.load();
        if policies.is_without_policies() {
            return base.clone();
        }
        let facts = self.facts_of(name, base);
        let pair = policies.of(&name.vhost(), Subject::Queue { name: name.as_str(), kind: facts.kind });
        effective(base, name, facts, pair.settings().as_deref())
    }

    fn facts_of(&self, name: &QueueName, base: &QueueConfig) -> QueueFacts {
        let codecs = &self.options.codecs;
        QueueFacts { kind: codecs.kind(name, base), names_overflow: codecs.names_overflow(name, base) }
    }

    /// Has all queues and exchanges be as policies say. What a crash cut off is completed so.
    pub(crate) fn apply_all_policies(self: &Arc<Self>) {
        self.apply_policies(&Where::Everywhere);
    }

    /// Runs on a worker, or at a start.
    fn apply_policies(self: &Arc<Self>, place: &Where) {
        self.apply_policies_to_exchanges(place);
        for cell in self.catalog.all() {
            if !place.has(cell.name.vhost_str()) {
                continue;
            }
            let applied = self.when_room_blocking(|| self.try_apply_policies_to(&cell));
            self.try_policies_later(&cell, applied);
        }
    }

    /// Has a queue be as its policies say: now, or as soon as the disk has room.
    pub(crate) fn apply_policies_to(self: &Arc<Self>, cell: &Arc<QueueCell>) {
        let applied = self.try_apply_policies_to(cell);
        self.try_policies_later(cell, applied);
    }

    /// Has maintenance try again what found no room.
    fn try_policies_later(&self, cell: &Arc<QueueCell>, applied: Result<(), QueueError>) {
        match applied {
            // One that went meanwhile needs nothing.
            Ok(()) | Err(QueueError::NotFound { .. }) => {}
            Err(error @ (QueueError::Alarm(_) | QueueError::Busy { .. })) => {
                let queue = cell.name.in_full();
                tracing::debug!(%queue, %error, "a queue cannot be set as its policies say yet");
                self.maintenance.note_stuck(cell);
            }
            // Another node leads, or the queue is somewhere else by now: whoever builds it does it.
            Err(QueueError::Unavailable { .. })
                if self.journal.standing() != Standing::Serving || cell.state.lock().replaced => {}
            // The log takes nothing more. The next start does it, or a rebuild.
            Err(error @ QueueError::Unavailable { .. }) => {
                let queue = cell.name.in_full();
                tracing::error!(%queue, %error, "a queue cannot be set as its policies say");
            }
        }
    }

    /// Writes down what policies make of a queue, if that is something else than it is.
    fn try_apply_policies_to(self: &Arc<Self>, cell: &Arc<QueueCell>) -> Result<(), QueueError> {
        let is_as_wanted = {
            let state = cell.state.lock();
            state.refuse_if_gone(&cell.name)?;
            let config = state.queue.config();
            self.with_policies(&cell.name, config) == *config
        };
        if is_as_wanted {
            return Ok(());
        }
        let committed = self.with(cell, |state, now| {
            let config = self.with_policies(&cell.name, state.queue.config());
            if config.expires != state.queue.config().expires {
                // The time that it may be unused begins now, as in RabbitMQ.
                state.last_used = now;
            }
            let record = state.queue.decide_configure(now, config);
            // Nobody waits for it: if it is lost, the next start does it again.
            self.commit(state, &[record], Urgency::Lazy, Claim::Reserved, Patience::RefuseLast).map(drop)
        })?;
        committed.map_err(|error| self.refused(&error))
    }

    /// What policies say is found out without the exchanges' lock: it takes a while where there are many.
    fn apply_policies_to_exchanges(&self, place: &Where) {
        let exchanges = &self.catalog.exchanges;
        let names: Vec<ExchangeName> = exchanges.look(|topology| {
            let names = topology.exchanges().map(|(name, _)| name);
            names.filter(|name| place.has(name.vhost_str())).cloned().collect()
        });
        for some in names.chunks(EXCHANGES_AT_ONCE) {
            while !self.set_alternates(some) {}
        }
    }

    /// Has some exchanges be as policies say. `false` if these have changed meanwhile.
    fn set_alternates(&self, names: &[ExchangeName]) -> bool {
        let (exchanges, policies) = (&self.catalog.exchanges, self.policies.latest.load_full());
        let wanted: Vec<(&ExchangeName, Option<ExchangeName>)> =
            names.iter().map(|name| (name, alternate_of(&policies, name))).collect();
        let differs = |topology: &Topology, (name, alternate): &(&ExchangeName, Option<ExchangeName>)| {
            topology.alternate_by_policy(name) != alternate.as_ref()
        };
        if !exchanges.look(|topology| wanted.iter().any(|one| differs(topology, one))) {
            return true;
        }
        exchanges.change(|topology| {
            // Whoever changes policies applies them afterwards, and what is older must not come on top of that.
            if !Arc::ptr_eq(&policies, &self.policies.latest.load()) {
                return false;
            }
            for (name, alternate) in
                wanted.into_iter().filter(|one| differs(topology, one)).collect::<Vec<_>>()
            {
                topology.set_alternate_by_policy(name, alternate);
            }
            true
        })
    }

    /// Has a new exchange be as policies say.
    pub(crate) fn apply_policies_to_exchange(&self, name: &ExchangeName) {
        if !self.policies.latest.load().is_without_policies() {
            while !self.set_alternates(std::slice::from_ref(name)) {}
        }
    }
}

/// Has all exchanges be as policies say that nobody else knows yet.
pub(crate) fn set_all_alternates(policies: &Policies, topology: &mut Topology) {
    if policies.is_without_policies() {
        return;
    }
    let names: Vec<ExchangeName> = topology.exchanges().map(|(name, _)| name.clone()).collect();
    for name in names {
        if let Some(alternate) = alternate_of(policies, &name) {
            topology.set_alternate_by_policy(&name, Some(alternate));
        }
    }
}

/// Where messages go that an exchange has no binding for, as policies say.
fn alternate_of(policies: &Policies, name: &ExchangeName) -> Option<ExchangeName> {
    let pair = policies.of(&name.vhost(), Subject::Exchange { name: name.as_str() });
    let settings = pair.settings()?;
    ExchangeName::at(&name.vhost(), settings.alternate_exchange.as_deref()?).ok()
}
