//! Applying: the only way in which exchanges and bindings change. The same steps give the same state.
//!
//! What a step names and does not find is passed over: it was not durable, and is not in the log.

use std::sync::Arc;

use nexo_types::{ExchangeName, QueueId};

use super::binding::{Binding, Destination};
use super::record::{Plan, TopologyRecord};
use super::state::{Bound, Topology};
use super::targets::Target;
use crate::message::Durability;

impl Topology {
    /// Applies a plan.
    pub fn apply(&mut self, plan: &Plan) {
        for step in &plan.steps {
            self.apply_record(&step.record, step.durability);
        }
    }

    /// Applies a record that was read from the log.
    pub fn replay(&mut self, record: &TopologyRecord) {
        self.apply_record(record, Durability::Durable);
    }

    pub(super) fn apply_record(&mut self, record: &TopologyRecord, durability: Durability) {
        match record {
            TopologyRecord::Declare { name, spec } => {
                if !self.exchanges.contains_key(name) {
                    self.add_exchange(name, spec);
                }
            }
            TopologyRecord::Delete { name } => self.delete_exchange(name),
            TopologyRecord::Bind { binding, queue } => self.bind(binding, *queue, durability),
            TopologyRecord::Unbind { binding } => {
                if let Some(order) = self.order_of(binding) {
                    self.remove_binding(binding.source(), order);
                }
            }
            TopologyRecord::QueueGone { queue } => self.forget_queue(*queue),
            TopologyRecord::PutVhost { name, spec } => self.put_vhost(name, spec),
            TopologyRecord::DeleteVhost { name } => self.begin_delete_vhost(name),
            TopologyRecord::VhostGone { name } => self.forget_vhost(name),
        }
    }

    fn bind(&mut self, binding: &Binding, queue: Option<QueueId>, durability: Durability) {
        let target = match (binding.destination(), queue) {
            (Destination::Queue(_), Some(id)) => Target::Queue(id),
            (Destination::Exchange(name), _) if self.exchanges.contains_key(name) => {
                Target::Exchange(name.clone())
            }
            (Destination::Queue(_), None) | (Destination::Exchange(_), _) => return,
        };
        if let Some(order) = self.order_of(binding) {
            // It may have led to an earlier queue of that name, whose end never reached the log.
            let held = &self.exchanges[binding.source()].bindings[&order];
            if held.target == target {
                return;
            }
            self.remove_binding(binding.source(), order);
        }
        let order = self.next_order;
        let Some(exchange) = self.exchanges.get_mut(binding.source()) else { return };
        let binding = Arc::new(binding.clone());
        exchange.orders.insert(Arc::clone(&binding), order);
        exchange
            .bindings
            .insert(order, Bound { binding: Arc::clone(&binding), target: target.clone(), durability });
        self.next_order += 1;
        self.binding_count += 1;
        if let Some(hop) = self.routes_mut().hop_mut(binding.source()) {
            hop.table.add(order, &binding, &target);
        }
        self.inbound.entry(target).or_default().insert((binding.source().clone(), order));
    }

    fn order_of(&self, binding: &Binding) -> Option<u64> {
        self.exchanges.get(binding.source())?.orders.get(binding).copied()
    }

    fn remove_binding(&mut self, source: &ExchangeName, order: u64) {
        let Some(exchange) = self.exchanges.get_mut(source) else { return };
        let Some(bound) = exchange.bindings.remove(&order) else { return };
        exchange.orders.remove(&bound.binding);
        if let Some(hop) = self.routes_mut().hop_mut(source) {
            hop.table.remove(order, &bound.binding, &bound.target);
        }
        self.uncount(source, order, &bound.target);
    }

    fn uncount(&mut self, source: &ExchangeName, order: u64, target: &Target) {
        self.binding_count -= 1;
        if let Some(places) = self.inbound.get_mut(target) {
            places.remove(&(source.clone(), order));
            if places.is_empty() {
                self.inbound.remove(target);
            }
        }
    }

    pub(super) fn delete_exchange(&mut self, name: &ExchangeName) {
        self.remove_bindings_to(&Target::Exchange(name.clone()));
        let Some(exchange) = self.exchanges.remove(name) else { return };
        for (order, bound) in &exchange.bindings {
            self.uncount(name, *order, &bound.target);
        }
        self.routes_mut().remove_exchange(name);
    }

    fn forget_queue(&mut self, id: QueueId) {
        self.remove_bindings_to(&Target::Queue(id));
        if let Some(name) = self.queue_names.remove(&id) {
            self.queues.remove(&name);
            self.routes_mut().remove_queue(&name);
            if let Some(vhost) = self.vhosts.get_mut(&name.vhost()) {
                vhost.queues = vhost.queues.saturating_sub(1);
            }
        }
    }

    fn remove_bindings_to(&mut self, target: &Target) {
        let places = self.inbound.get(target).cloned().unwrap_or_default();
        for (source, order) in places.iter() {
            self.remove_binding(source, *order);
        }
    }
}
