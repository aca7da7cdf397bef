//! The routing snapshot: finds the queues of a message without a lock.
//!
//! Copying one shares all of its parts, so that [`super::Topology`] can keep a new one after every change while
//! publishers still read the old.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use nexo_types::{ExchangeName, QueueId, QueueName, VhostName};

use super::byte_map::ByteMap;
use super::error::RouteError;
use super::exchange::ExchangeSpec;
use super::header::HeaderSource;
use super::table::Table;
use super::targets::Matched;

/// All exchanges and bindings at one moment.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    pub(super) generation: u64,
    /// Of the virtual host "/", so that publishing there looks for no other.
    default: Option<Space>,
    /// Of the others, by name.
    others: ByteMap<Arc<Space>>,
}

/// The exchanges and queues of one virtual host, by their names in it. No way leads out of it.
#[derive(Clone, Debug, Default)]
struct Space {
    exchanges: ByteMap<Arc<Hop>>,
    queues: ByteMap<QueueId>,
}

/// What came of routing a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    /// Whether any queue gets it.
    pub matched: bool,
    /// Queues from this place on were reached only through an exchange that delays (`x-delayed-message`): if the
    /// message asks for a delay, they get it after that.
    pub delayed_from: usize,
    /// Whether headers or properties were looked at. If not, a message with the same exchange and routing keys
    /// goes the same way for as long as [`Routes::generation`] is the same.
    pub by_headers: bool,
}

/// An exchange, as far as routing needs it.
#[derive(Clone, Debug)]
pub(super) struct Hop {
    internal: bool,
    delayed: bool,
    alternate: Option<ExchangeName>,
    pub(super) table: Table,
}

impl Routes {
    /// Finds the queues that a client's message goes to and puts them into `out`: each once, ascending up to
    /// [`Routed::delayed_from`], and ascending again from there. What was in `out` is dropped.
    ///
    /// # Errors
    /// If there is no such exchange, or clients may not publish to it.
    pub fn publish(
        &self,
        vhost: &VhostName,
        exchange: &str,
        routing_keys: &[&[u8]],
        headers: &dyn HeaderSource,
        out: &mut Vec<QueueId>,
    ) -> Result<Routed, RouteError> {
        out.clear();
        let space = self.space(vhost.as_str()).ok_or(RouteError::NoSuchExchange)?;
        match space.entry(exchange)? {
            Some(hop) if hop.internal => Err(RouteError::Internal),
            entry => Ok(space.find(exchange, entry, routing_keys, headers, out)),
        }
    }

    /// As [`Self::publish`], for messages that the broker itself sends (dead letters): they may go to internal
    /// exchanges.
    ///
    /// # Errors
    /// If there is no such exchange.
    pub fn route(
        &self,
        exchange: &ExchangeName,
        routing_keys: &[&[u8]],
        headers: &dyn HeaderSource,
        out: &mut Vec<QueueId>,
    ) -> Result<Routed, RouteError> {
        out.clear();
        let space = self.space(exchange.vhost_str()).ok_or(RouteError::NoSuchExchange)?;
        let entry = space.entry(exchange.as_str())?;
        Ok(space.find(exchange.as_str(), entry, routing_keys, headers, out))
    }

    /// Counts the changes: as long as it is the same, messages go where they went.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether an exchange is of the type `x-delayed-message`.
    #[must_use]
    pub fn is_delayed(&self, exchange: &ExchangeName) -> bool {
        self.space(exchange.vhost_str()).is_some_and(|space| space.is_delayed(exchange.as_str()))
    }

    fn space(&self, vhost: &str) -> Option<&Space> {
        match vhost {
            "/" => self.default.as_ref(),
            other => self.others.get(other.as_bytes()).map(|space| &**space),
        }
    }

    fn space_mut(&mut self, vhost: &str) -> Option<&mut Space> {
        match vhost {
            "/" => self.default.as_mut(),
            other => self.others.get_mut(other.as_bytes()).map(Arc::make_mut),
        }
    }

    pub(super) fn add_vhost(&mut self, name: &VhostName) {
        if name.is_default() {
            self.default = Some(Space::default());
        } else {
            self.others.insert(name.as_str().as_bytes(), Arc::default());
        }
    }

    pub(super) fn remove_vhost(&mut self, name: &VhostName) {
        if name.is_default() {
            self.default = None;
        } else {
            self.others.remove(name.as_str().as_bytes());
        }
    }

    pub(super) fn add_exchange(&mut self, name: &ExchangeName, hop: Hop) {
        if let Some(space) = self.space_mut(name.vhost_str()) {
            space.exchanges.insert(name.as_str().as_bytes(), Arc::new(hop));
        }
    }

    pub(super) fn hop_mut(&mut self, name: &ExchangeName) -> Option<&mut Hop> {
        let space = self.space_mut(name.vhost_str())?;
        space.exchanges.get_mut(name.as_str().as_bytes()).map(Arc::make_mut)
    }

    pub(super) fn remove_exchange(&mut self, name: &ExchangeName) {
        if let Some(space) = self.space_mut(name.vhost_str()) {
            space.exchanges.remove(name.as_str().as_bytes());
        }
    }

    pub(super) fn add_queue(&mut self, name: &QueueName, id: QueueId) {
        if let Some(space) = self.space_mut(name.vhost_str()) {
            space.queues.insert(name.as_str().as_bytes(), id);
        }
    }

    pub(super) fn remove_queue(&mut self, name: &QueueName) {
        if let Some(space) = self.space_mut(name.vhost_str()) {
            space.queues.remove(name.as_str().as_bytes());
        }
    }
}

impl Space {
    fn is_delayed(&self, exchange: &str) -> bool {
        self.exchanges.get(exchange.as_bytes()).is_some_and(|hop| hop.delayed)
    }

    /// The exchange to begin with; `None` for the default exchange.
    fn entry(&self, exchange: &str) -> Result<Option<&Hop>, RouteError> {
        if exchange.is_empty() {
            return Ok(None);
        }
        self.exchanges.get(exchange.as_bytes()).map(|hop| Some(&**hop)).ok_or(RouteError::NoSuchExchange)
    }

    fn find(
        &self,
        exchange: &str,
        entry: Option<&Hop>,
        routing_keys: &[&[u8]],
        headers: &dyn HeaderSource,
        out: &mut Vec<QueueId>,
    ) -> Routed {
        let Some(hop) = entry else {
            self.by_queue_name(routing_keys, out);
            tidy(out, 0);
            return Routed { matched: !out.is_empty(), delayed_from: out.len(), by_headers: false };
        };
        let mut matched = Matched { queues: out, exchanges: Vec::new() };
        hop.table.matches(routing_keys, headers, &mut matched);
        let further = matched.exchanges;
        if further.is_empty() && (!out.is_empty() || hop.alternate.is_none()) {
            tidy(out, 0);
            let delayed_from = if hop.delayed { 0 } else { out.len() };
            return Routed {
                matched: !out.is_empty(),
                delayed_from,
                by_headers: hop.table.looks_at_headers(),
            };
        }
        let mut walk = Walk {
            space: self,
            seen: HashSet::default(),
            open: Vec::new(),
            later: Vec::new(),
            by_headers: false,
        };
        walk.seen.insert(exchange);
        walk.leave(hop, &further, out.is_empty(), hop.delayed);
        walk.finish(hop.delayed, routing_keys, headers, out)
    }

    fn by_queue_name(&self, routing_keys: &[&[u8]], out: &mut Vec<QueueId>) {
        out.extend(routing_keys.iter().filter_map(|key| self.queues.get(key).copied()));
    }
}

impl Hop {
    pub(super) fn new(spec: &ExchangeSpec) -> Self {
        Self {
            internal: spec.internal,
            delayed: spec.kind.is_delayed(),
            alternate: spec.alternate.clone(),
            table: Table::new(spec.kind.matching()),
        }
    }

    pub(super) fn set_alternate(&mut self, alternate: Option<ExchangeName>) {
        self.alternate = alternate;
    }
}

/// A message on its way through several exchanges, each of which it passes once. First those that it reaches
/// without a delay, then the others: what it reaches both ways it reaches without.
struct Walk<'a> {
    space: &'a Space,
    seen: HashSet<&'a str, FixedState>,
    open: Vec<&'a ExchangeName>,
    later: Vec<&'a ExchangeName>,
    by_headers: bool,
}

impl<'a> Walk<'a> {
    /// Notes where to go on from an exchange: where its bindings lead, or to its alternate if none matched.
    fn leave(&mut self, hop: &'a Hop, further: &[&'a ExchangeName], no_queue: bool, delayed: bool) {
        self.by_headers |= hop.table.looks_at_headers();
        let alternate = if no_queue && further.is_empty() { hop.alternate.as_ref() } else { None };
        for name in further.iter().copied().chain(alternate) {
            if self.seen.insert(name.as_str()) {
                if delayed || self.space.is_delayed(name.as_str()) {
                    self.later.push(name);
                } else {
                    self.open.push(name);
                }
            }
        }
    }

    fn finish(
        mut self,
        delayed: bool,
        routing_keys: &[&[u8]],
        headers: &dyn HeaderSource,
        out: &mut Vec<QueueId>,
    ) -> Routed {
        let mut delayed_from = 0;
        if !delayed {
            while let Some(name) = self.open.pop() {
                self.pass(name, false, routing_keys, headers, out);
            }
            tidy(out, 0);
            delayed_from = out.len();
        }
        while let Some(name) = self.later.pop() {
            self.pass(name, true, routing_keys, headers, out);
        }
        tidy(out, delayed_from);
        Routed { matched: !out.is_empty(), delayed_from, by_headers: self.by_headers }
    }

    fn pass(
        &mut self,
        name: &'a ExchangeName,
        delayed: bool,
        routing_keys: &[&[u8]],
        headers: &dyn HeaderSource,
        out: &mut Vec<QueueId>,
    ) {
        if name.is_default() {
            self.space.by_queue_name(routing_keys, out);
            return;
        }
        // An alternate exchange need not exist.
        let Some(hop) = self.space.exchanges.get(name.as_str().as_bytes()) else { return };
        let before = out.len();
        let mut matched = Matched { queues: out, exchanges: Vec::new() };
        hop.table.matches(routing_keys, headers, &mut matched);
        let further = matched.exchanges;
        self.leave(hop, &further, out.len() == before, delayed);
    }
}

/// Puts the queues from a place on in order, without repetitions and without those before it.
fn tidy(out: &mut Vec<QueueId>, from: usize) {
    if !out[from..].is_sorted_by(|a, b| a < b) {
        out[from..].sort_unstable();
    }
    let mut kept = from;
    for at in from..out.len() {
        let id = out[at];
        let repeated = kept > from && out[kept - 1] == id;
        if !repeated && (from == 0 || out[..from].binary_search(&id).is_err()) {
            out[kept] = id;
            kept += 1;
        }
    }
    out.truncate(kept);
}
