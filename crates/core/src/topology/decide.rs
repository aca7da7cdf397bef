//! Deciding: what a declaration, a deletion or a binding comes to. Nothing changes here.
//!
//! An exchange that goes by itself when its last binding goes is deleted by a step of its own: bindings that are
//! not durable are not in the log, so replaying could not tell which binding was the last.

use std::collections::{BTreeMap, BTreeSet};

use nexo_types::{ExchangeName, QueueId, QueueName, limits};

use super::binding::{Binding, Destination};
use super::error::{BindError, DeclareError, DeleteError, UnbindError};
use super::exchange::{ExchangeSpec, Matching};
use super::header_rule::HeaderRule;
use super::record::{Plan, TopologyRecord};
use super::ring;
use super::state::Topology;
use super::targets::Target;
use crate::message::Durability;

/// On what condition an exchange is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteIf {
    /// On none.
    Always,
    /// If no binding leads from it.
    Unused,
}

impl Topology {
    /// Declares an exchange. If it exists as asked for, the plan is empty.
    ///
    /// # Errors
    /// If the name is reserved, or the exchange exists and is otherwise.
    pub fn decide_declare(&self, name: &ExchangeName, spec: ExchangeSpec) -> Result<Plan, DeclareError> {
        if name.is_default() {
            return Err(DeclareError::DefaultExchange);
        }
        if let Some(exchange) = self.exchanges.get(name) {
            return match exchange.spec.first_difference(&spec) {
                None => Ok(Plan::default()),
                Some(difference) => Err(DeclareError::Differs { name: name.clone(), difference }),
            };
        }
        self.open_vhost(&name.vhost())?;
        let is_elsewhere = |alternate: &ExchangeName| alternate.vhost_str() != name.vhost_str();
        if spec.alternate.as_ref().is_some_and(is_elsewhere) {
            return Err(DeclareError::AlternateElsewhere { name: name.clone() });
        }
        // Asked only now: declaring what the broker brings with it, as it is, is allowed.
        if name.is_reserved() {
            return Err(DeclareError::Reserved { name: name.clone() });
        }
        if self.exchanges.len() >= limits::EXCHANGES_MAX {
            return Err(DeclareError::TooMany { name: name.clone(), max: limits::EXCHANGES_MAX });
        }
        let mut plan = Plan::default();
        let durability = spec.durability;
        plan.push(TopologyRecord::Declare { name: name.clone(), spec }, durability);
        Ok(plan)
    }

    /// Deletes an exchange with its bindings. If there is none, the plan is empty.
    ///
    /// # Errors
    /// If it belongs to the broker, or is in use and must not be.
    pub fn decide_delete(&self, name: &ExchangeName, condition: DeleteIf) -> Result<Plan, DeleteError> {
        if name.is_default() {
            return Err(DeleteError::DefaultExchange);
        }
        if name.is_reserved() {
            return Err(DeleteError::Reserved { name: name.clone() });
        }
        let mut plan = Plan::default();
        let Some(exchange) = self.exchanges.get(name) else { return Ok(plan) };
        match condition {
            DeleteIf::Unused if !exchange.bindings.is_empty() => {
                return Err(DeleteError::InUse { name: name.clone() });
            }
            DeleteIf::Unused | DeleteIf::Always => {}
        }
        let mut cascade = Cascade::new(self);
        cascade.delete(name, &mut plan);
        cascade.finish(&mut plan);
        Ok(plan)
    }

    /// Makes a binding. If it exists, the plan is empty.
    ///
    /// # Errors
    /// If an end is missing or the default exchange, or the source cannot understand the binding.
    pub fn decide_bind(&self, binding: Binding) -> Result<Plan, BindError> {
        if binding.touches_default() {
            return Err(BindError::DefaultExchange);
        }
        if binding.crosses_vhosts() {
            return Err(BindError::AcrossVhosts);
        }
        // RabbitMQ names the source when both ends are missing.
        let source = binding.source();
        let exchange =
            self.exchanges.get(source).ok_or_else(|| BindError::NoSuchExchange { name: source.clone() })?;
        let (queue, to_durable) = match binding.destination() {
            Destination::Queue(name) => {
                let missing = || BindError::NoSuchQueue { name: name.clone() };
                let &(id, durability) = self.queues.get(name).ok_or_else(missing)?;
                (Some(id), durability == Durability::Durable)
            }
            Destination::Exchange(name) => {
                let missing = || BindError::NoSuchExchange { name: name.clone() };
                (None, self.exchanges.get(name).ok_or_else(missing)?.is_durable())
            }
        };
        match exchange.spec.kind.matching() {
            Matching::Direct | Matching::Fanout | Matching::Topic => {}
            Matching::Headers => drop(HeaderRule::new(binding.arguments())?),
            Matching::ConsistentHash(_) => _ = ring::weight(binding.key())?,
        }
        let mut plan = Plan::default();
        if exchange.orders.contains_key(&binding) {
            return Ok(plan);
        }
        if self.binding_count >= limits::BINDINGS_MAX {
            return Err(BindError::TooMany { max: limits::BINDINGS_MAX });
        }
        let durable = exchange.is_durable() && to_durable;
        let durability = if durable { Durability::Durable } else { Durability::Transient };
        plan.push(TopologyRecord::Bind { binding, queue }, durability);
        Ok(plan)
    }

    /// Undoes a binding. If there is none, also because an end of it is missing, the plan is empty.
    ///
    /// # Errors
    /// If an end is the default exchange.
    pub fn decide_unbind(&self, binding: &Binding) -> Result<Plan, UnbindError> {
        if binding.touches_default() {
            return Err(UnbindError::DefaultExchange);
        }
        let mut plan = Plan::default();
        let Some(exchange) = self.exchanges.get(binding.source()) else { return Ok(plan) };
        let Some(bound) = exchange.orders.get(binding).and_then(|order| exchange.bindings.get(order)) else {
            return Ok(plan);
        };
        plan.push(TopologyRecord::Unbind { binding: binding.clone() }, bound.durability);
        let mut cascade = Cascade::new(self);
        cascade.lost_binding(binding.source());
        cascade.finish(&mut plan);
        Ok(plan)
    }

    /// What the end of a queue means for exchanges and bindings. To be applied even if nothing of it needs to
    /// be written: the queue's name is forgotten with it.
    pub fn decide_queue_removed(&self, name: &QueueName) -> Plan {
        let mut plan = Plan::default();
        if let Some(&(id, _)) = self.queues.get(name) {
            self.plan_queue_gone(id, &mut Cascade::new(self), &mut plan);
        }
        plan
    }

    /// To be decided once after a restart, when all records are replayed and all queues are known: bindings to
    /// queues that have not come back go, as if the queues had been deleted now.
    pub fn decide_recovered(&self) -> Plan {
        let mut plan = Plan::default();
        let mut cascade = Cascade::new(self);
        for target in self.inbound.keys() {
            match target {
                Target::Queue(id) if !self.queue_names.contains_key(id) => {
                    self.plan_queue_gone(*id, &mut cascade, &mut plan);
                }
                Target::Queue(_) | Target::Exchange(_) => {}
            }
        }
        plan
    }

    fn plan_queue_gone<'a>(&'a self, id: QueueId, cascade: &mut Cascade<'a>, plan: &mut Plan) {
        let target = Target::Queue(id);
        let written = self.inbound_of(&target).any(|bound| bound.durability == Durability::Durable);
        let durability = if written { Durability::Durable } else { Durability::Transient };
        plan.push(TopologyRecord::QueueGone { queue: id }, durability);
        for bound in self.inbound_of(&target) {
            cascade.lost_binding(bound.binding.source());
        }
        cascade.finish(plan);
    }
}

/// Which exchanges go because their last binding goes, and which go because of that.
struct Cascade<'a> {
    topology: &'a Topology,
    /// For each exchange, how many of its bindings go.
    lost: BTreeMap<&'a ExchangeName, usize>,
    /// Those that have lost one and have not been looked at since.
    open: BTreeSet<&'a ExchangeName>,
    gone: BTreeSet<&'a ExchangeName>,
}

impl<'a> Cascade<'a> {
    const fn new(topology: &'a Topology) -> Self {
        Self { topology, lost: BTreeMap::new(), open: BTreeSet::new(), gone: BTreeSet::new() }
    }

    fn lost_binding(&mut self, source: &ExchangeName) {
        if let Some((source, _)) = self.topology.exchanges.get_key_value(source)
            && !self.gone.contains(source)
        {
            *self.lost.entry(source).or_default() += 1;
            self.open.insert(source);
        }
    }

    fn delete(&mut self, name: &ExchangeName, plan: &mut Plan) {
        let Some((name, exchange)) = self.topology.exchanges.get_key_value(name) else { return };
        self.gone.insert(name);
        plan.push(TopologyRecord::Delete { name: name.clone() }, exchange.spec.durability);
        for bound in self.topology.inbound_of(&Target::Exchange(name.clone())) {
            self.lost_binding(bound.binding.source());
        }
    }

    fn finish(&mut self, plan: &mut Plan) {
        while let Some(name) = self.open.pop_first() {
            let exchange = &self.topology.exchanges[name];
            let all_lost = self.lost.get(name) == Some(&exchange.bindings.len());
            if exchange.spec.auto_delete && all_lost && !self.gone.contains(name) {
                self.delete(name, plan);
            }
        }
    }
}
