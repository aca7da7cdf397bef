//! Where a channel's messages go. A channel mostly publishes to one place, so it remembers the last route for as long as
//! no exchange, binding or queue changes.

use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashMap;
use nexo_broker::topology::{HeaderSource, RouteError};
use nexo_broker::{Broker, QueueHandle};
use nexo_types::{QueueId, VhostName, same_bytes};

use super::arguments::Traits;
use super::error::{Refusal, route_refusal};
use crate::address::Address;

/// A queue that messages go to.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) queue: QueueHandle,
    pub(super) traits: Traits,
}

/// Queues that a connection publishes to, so that their arguments are read once.
#[derive(Debug, Default)]
pub(super) struct Targets {
    /// The connection's virtual host, in which they are.
    pub(super) vhost: VhostName,
    known: HashMap<QueueId, Arc<Target>, foldhash::fast::FixedState>,
}

/// Beyond this they are looked up again: some of them may be gone for good.
const TARGETS_MAX: usize = 4_096;

impl Targets {
    fn get(&mut self, broker: &Broker, id: QueueId) -> Option<Arc<Target>> {
        if let Some(target) = self.known.get(&id) {
            return Some(Arc::clone(target));
        }
        let queue = broker.queue_by_id(id)?;
        let traits = Traits::of(&queue.config());
        let target = Arc::new(Target { queue, traits });
        if self.known.len() >= TARGETS_MAX {
            self.known.clear();
        }
        self.known.insert(id, Arc::clone(&target));
        Some(target)
    }
}

/// The last route of a channel.
#[derive(Debug, Default)]
pub(super) struct RouteCache {
    exchange: Vec<u8>,
    routing_key: Vec<u8>,
    /// The address in the form in which it is stored.
    address: Bytes,
    /// Of the routes that `targets` were found in; `None` if they hold for one message only.
    generation: Option<u64>,
    targets: Vec<Arc<Target>>,
    delayed: bool,
    ids: Vec<QueueId>,
}

/// Where one message goes.
#[derive(Debug)]
pub(super) struct Route<'a> {
    pub(super) address: &'a Bytes,
    pub(super) targets: &'a [Arc<Target>],
    /// Whether an exchange on its way delays.
    pub(super) delayed: bool,
    /// Whether all queues were found that it goes to, and there is one.
    pub(super) is_whole: bool,
}

impl RouteCache {
    /// Finds the way of a message; `copies` are further routing keys.
    pub(super) fn find<'a>(
        &'a mut self,
        broker: &Broker,
        known: &mut Targets,
        exchange: &[u8],
        routing_key: &[u8],
        copies: &[&[u8]],
        headers: &dyn HeaderSource,
    ) -> Result<Route<'a>, Refusal> {
        if !self.is_from(exchange, routing_key) {
            self.exchange.clear();
            self.exchange.extend_from_slice(exchange);
            self.routing_key.clear();
            self.routing_key.extend_from_slice(routing_key);
            self.address = Address { exchange, routing_key }.encode();
            self.generation = None;
        }
        let routes = broker.routes();
        if copies.is_empty() && self.generation == Some(routes.generation()) {
            return Ok(self.last());
        }
        let name = std::str::from_utf8(exchange).unwrap_or("\u{fffd}");
        let mut keys = vec![routing_key];
        keys.extend_from_slice(copies);
        let before = routes.generation();
        let routed = routes.publish(&known.vhost, name, &keys, headers, &mut self.ids);
        let routed = routed.map_err(|error: RouteError| {
            self.generation = None;
            route_refusal(&error, &String::from_utf8_lossy(exchange), &known.vhost)
        })?;
        drop(routes);
        self.targets.clear();
        self.targets.extend(self.ids.iter().filter_map(|id| known.get(broker, *id)));
        self.delayed = routed.delayed_from < self.ids.len();
        self.generation = (copies.is_empty() && !routed.by_headers).then_some(before);
        Ok(self.last())
    }

    /// The next message is looked for anew.
    pub(super) fn forget(&mut self) {
        self.generation = None;
    }

    /// The way of the last message, if this one goes the same.
    #[inline]
    pub(super) fn recall(&self, generation: u64, exchange: &[u8], routing_key: &[u8]) -> Option<Route<'_>> {
        let is_same = self.generation == Some(generation) && self.is_from(exchange, routing_key);
        is_same.then(|| self.last())
    }

    /// Whether it is the route of messages with this exchange and this routing key.
    #[inline]
    fn is_from(&self, exchange: &[u8], routing_key: &[u8]) -> bool {
        same_bytes(&self.exchange, exchange)
            && same_bytes(&self.routing_key, routing_key)
            && !self.address.is_empty()
    }

    /// The way of the last message.
    pub(super) fn last(&self) -> Route<'_> {
        let is_whole = !self.targets.is_empty() && self.targets.len() == self.ids.len();
        Route { address: &self.address, targets: &self.targets, delayed: self.delayed, is_whole }
    }
}
