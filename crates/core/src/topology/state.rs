//! All exchanges and bindings there are, and the questions that others ask about them.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use nexo_types::{ExchangeName, QueueId, QueueName, VhostName};

use super::binding::{Binding, Destination};
use super::error::PassiveError;
use super::exchange::ExchangeSpec;
use super::places::Places;
use super::routes::{Hop, Routes};
use super::targets::Target;
use super::vhost::{Vhost, VhostSpec};
use crate::message::Durability;

/// Virtual hosts, exchanges, bindings and the names of queues.
#[derive(Debug)]
pub struct Topology {
    pub(super) vhosts: BTreeMap<VhostName, Vhost>,
    pub(super) exchanges: BTreeMap<ExchangeName, Exchange>,
    pub(super) queues: HashMap<QueueName, (QueueId, Durability), FixedState>,
    pub(super) queue_names: HashMap<QueueId, QueueName, FixedState>,
    /// For every destination the bindings that lead to it: source and order.
    pub(super) inbound: BTreeMap<Target, Places>,
    pub(super) binding_count: usize,
    /// The order of the next binding.
    pub(super) next_order: u64,
    pub(super) routes: Arc<Routes>,
}

/// An exchange and the bindings that lead from it.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) spec: ExchangeSpec,
    /// Where messages go that match none of its bindings, as policies say. What was declared goes before it.
    by_policy: Option<ExchangeName>,
    pub(super) bindings: BTreeMap<u64, Bound>,
    pub(super) orders: BTreeMap<Arc<Binding>, u64>,
}

/// A binding that is in force.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) binding: Arc<Binding>,
    pub(super) target: Target,
    pub(super) durability: Durability,
}

impl Default for Topology {
    fn default() -> Self {
        Self::new()
    }
}

impl Topology {
    /// The virtual host "/" with the exchanges that it has from the beginning, and no binding.
    #[must_use]
    pub fn new() -> Self {
        let mut topology = Self::without_vhosts();
        topology.add_vhost(&VhostName::DEFAULT, VhostSpec::default());
        topology
    }

    /// Nothing at all.
    pub(super) fn without_vhosts() -> Self {
        Self {
            vhosts: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            queues: HashMap::default(),
            queue_names: HashMap::default(),
            inbound: BTreeMap::new(),
            binding_count: 0,
            next_order: 0,
            routes: Arc::default(),
        }
    }

    /// Takes note of a queue: the default exchange leads to it, and it can be bound.
    pub fn queue_added(&mut self, name: &QueueName, id: QueueId, durability: Durability) {
        if let Some((old, _)) = self.queues.insert(name.clone(), (id, durability)) {
            self.queue_names.remove(&old);
        } else if let Some(vhost) = self.vhosts.get_mut(&name.vhost()) {
            vhost.queues += 1;
        }
        self.queue_names.insert(id, name.clone());
        self.routes_mut().add_queue(name, id);
    }

    /// Takes note of where messages go that match no binding of an exchange, as policies say. It is no part of what is written
    /// down: policies are.
    pub fn set_alternate_by_policy(&mut self, name: &ExchangeName, alternate: Option<ExchangeName>) {
        let Some(exchange) = self.exchanges.get_mut(name) else { return };
        exchange.by_policy = alternate;
        let effective = exchange.spec.alternate.clone().or_else(|| exchange.by_policy.clone());
        if let Some(hop) = self.routes_mut().hop_mut(name) {
            hop.set_alternate(effective);
        }
    }

    /// What was last noted of that.
    #[must_use]
    pub fn alternate_by_policy(&self, name: &ExchangeName) -> Option<&ExchangeName> {
        self.exchanges.get(name)?.by_policy.as_ref()
    }

    /// What publishing reads, as of now. Costs nothing; to be taken after every change.
    #[must_use]
    pub fn routes(&self) -> Arc<Routes> {
        Arc::clone(&self.routes)
    }

    /// Counts the changes.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.routes.generation
    }

    /// Goes on counting changes behind those of the topology that this one takes the place of: whoever asks whether the
    /// routes have changed finds that they have.
    pub fn count_after(&mut self, generation: u64) {
        let routes = self.routes_mut();
        routes.generation = routes.generation.max(generation.saturating_add(1));
    }

    /// What an exchange is told to be: the answer to a passive declare.
    ///
    /// # Errors
    /// If there is none of that name, or it is the default one.
    pub fn check(&self, name: &ExchangeName) -> Result<&ExchangeSpec, PassiveError> {
        if name.is_default() {
            return Err(PassiveError::DefaultExchange);
        }
        self.spec(name).ok_or_else(|| PassiveError::NoSuchExchange { name: name.clone() })
    }

    /// What an exchange is told to be. The default exchange is not among them.
    #[must_use]
    pub fn spec(&self, name: &ExchangeName) -> Option<&ExchangeSpec> {
        self.exchanges.get(name).map(|exchange| &exchange.spec)
    }

    /// All exchanges but the default one, by name.
    pub fn exchanges(&self) -> impl Iterator<Item = (&ExchangeName, &ExchangeSpec)> {
        self.exchanges.iter().map(|(name, exchange)| (name, &exchange.spec))
    }

    /// All bindings, by source, in the order in which they were made. Those of the default exchange, one for
    /// each queue, are not among them.
    pub fn bindings(&self) -> impl Iterator<Item = &Binding> {
        self.exchanges.values().flat_map(Exchange::bindings)
    }

    /// The bindings that lead from an exchange, in the order in which they were made.
    pub fn bindings_from<'a>(&'a self, source: &ExchangeName) -> impl Iterator<Item = &'a Binding> + use<'a> {
        self.exchanges.get(source).into_iter().flat_map(Exchange::bindings)
    }

    /// The bindings that lead to a queue or an exchange, by source.
    pub fn bindings_to<'a>(
        &'a self,
        destination: &Destination,
    ) -> impl Iterator<Item = &'a Binding> + use<'a> {
        let target = match destination {
            Destination::Queue(name) => self.queues.get(name).map(|&(id, _)| Target::Queue(id)),
            Destination::Exchange(name) => Some(Target::Exchange(name.clone())),
        };
        target.into_iter().flat_map(|target| self.inbound_of(&target)).map(|bound| &*bound.binding)
    }

    /// How many bindings there are, without those of the default exchange.
    #[must_use]
    pub const fn binding_count(&self) -> usize {
        self.binding_count
    }

    pub(super) fn inbound_of<'a>(&'a self, target: &Target) -> impl Iterator<Item = &'a Bound> + use<'a> {
        let places = self.inbound.get(target).into_iter().flat_map(Places::iter);
        places.filter_map(|(source, order)| self.exchanges.get(source)?.bindings.get(order))
    }

    pub(super) fn routes_mut(&mut self) -> &mut Routes {
        let routes = Arc::make_mut(&mut self.routes);
        routes.generation += 1;
        routes
    }

    pub(super) fn add_exchange(&mut self, name: &ExchangeName, spec: &ExchangeSpec) {
        let exchange = Exchange {
            spec: spec.clone(),
            by_policy: None,
            bindings: BTreeMap::new(),
            orders: BTreeMap::new(),
        };
        self.exchanges.insert(name.clone(), exchange);
        self.routes_mut().add_exchange(name, Hop::new(spec));
    }
}

impl Exchange {
    fn bindings(&self) -> impl Iterator<Item = &Binding> {
        self.bindings.values().map(|bound| &*bound.binding)
    }

    pub(super) fn is_durable(&self) -> bool {
        self.spec.durability == Durability::Durable
    }
}
