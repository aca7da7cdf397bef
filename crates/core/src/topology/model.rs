//! Exchanges, bindings and routing against a naive model: random changes, and after each of them messages whose
//! way is compared, a replay of what was written, and a snapshot that is restored.
//!
//! The model keeps bindings in one list and walks all of it for every question.

use std::collections::BTreeSet;

use bytes::Bytes;
use nexo_types::{ExchangeName, QueueId, QueueName, VhostName};
use proptest::prelude::*;

use super::ring;
use super::trie;
use super::*;
use crate::message::Durability;

/// Headers of a test message, as pairs.
pub(super) struct Headers(pub(super) Vec<(Bytes, HeaderValue)>);

impl HeaderSource for Headers {
    fn header(&self, name: &[u8]) -> Option<HeaderValue<&[u8]>> {
        let (_, value) = self.0.iter().find(|(held, _)| held == name)?;
        Some(match value {
            HeaderValue::Bool(value) => HeaderValue::Bool(*value),
            HeaderValue::Signed(value) => HeaderValue::Signed(*value),
            HeaderValue::Unsigned(value) => HeaderValue::Unsigned(*value),
            HeaderValue::Float(bits) => HeaderValue::Float(*bits),
            HeaderValue::Text(text) => HeaderValue::Text(text),
            HeaderValue::Timestamp(value) => HeaderValue::Timestamp(*value),
            HeaderValue::Void => HeaderValue::Void,
            HeaderValue::Other(bytes) => HeaderValue::Other(bytes),
        })
    }

    fn property(&self, property: Property) -> Option<HeaderValue<&[u8]>> {
        match property {
            Property::MessageId => self.header(b"id"),
            Property::CorrelationId | Property::Timestamp => None,
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Declare(ExchangeName, ExchangeSpec),
    Delete(ExchangeName, DeleteIf),
    Bind(Binding),
    Unbind(prop::sample::Index),
    UnbindAsGiven(Binding),
    AddQueue(QueueName, Durability),
    RemoveQueue(QueueName),
    PutVhost(VhostName, VhostSpec),
    DeleteVhost(VhostName),
}

#[derive(Clone, Debug)]
struct Message {
    exchange: ExchangeName,
    keys: Vec<&'static str>,
    headers: Vec<(Bytes, HeaderValue)>,
}

/// Everything in lists.
#[derive(Default)]
struct Naive {
    vhosts: Vec<(VhostName, VhostSpec)>,
    exchanges: Vec<(ExchangeName, ExchangeSpec)>,
    queues: Vec<(QueueName, QueueId, Durability)>,
    bindings: Vec<Binding>,
}

impl Naive {
    fn new() -> Self {
        let mut naive = Self::default();
        naive.put_vhost(VhostName::DEFAULT, VhostSpec::default());
        naive
    }

    fn put_vhost(&mut self, vhost: VhostName, spec: VhostSpec) {
        if let Some((_, held)) = self.vhosts.iter_mut().find(|(name, _)| *name == vhost) {
            *held = spec;
            return;
        }
        for (name, kind) in [
            ("amq.direct", Matching::Direct),
            ("amq.fanout", Matching::Fanout),
            ("amq.topic", Matching::Topic),
            ("amq.headers", Matching::Headers),
            ("amq.match", Matching::Headers),
            ("amq.rabbitmq.trace", Matching::Topic),
        ] {
            let internal = name.contains("trace");
            let spec = ExchangeSpec { internal, ..ExchangeSpec::durable(ExchangeKind::Plain(kind)) };
            self.exchanges.push((ExchangeName::at(&vhost, name).unwrap(), spec));
        }
        self.vhosts.push((vhost, spec));
    }

    fn delete_vhost(&mut self, vhost: &VhostName) {
        self.vhosts.retain(|(name, _)| name != vhost);
        self.exchanges.retain(|(name, _)| name.vhost() != *vhost);
        self.queues.retain(|(name, ..)| name.vhost() != *vhost);
        self.bindings.retain(|binding| binding.source().vhost() != *vhost);
    }

    fn vhost(&self, vhost: &VhostName) -> Option<&VhostSpec> {
        self.vhosts.iter().find(|(name, _)| name == vhost).map(|(_, spec)| spec)
    }

    fn spec(&self, name: &ExchangeName) -> Option<&ExchangeSpec> {
        self.exchanges.iter().find(|(held, _)| held == name).map(|(_, spec)| spec)
    }

    fn queue(&self, name: &QueueName) -> Option<(QueueId, Durability)> {
        self.queues.iter().find(|(held, ..)| held == name).map(|&(_, id, durability)| (id, durability))
    }

    fn can_bind(&self, binding: &Binding) -> bool {
        let Some(source) = self.spec(binding.source()) else { return false };
        let there = match binding.destination() {
            Destination::Queue(name) => self.queue(name).is_some(),
            Destination::Exchange(name) => self.spec(name).is_some(),
        };
        let understood = match source.kind.matching() {
            Matching::ConsistentHash(_) => binding.key().iter().all(u8::is_ascii_digit),
            Matching::Direct | Matching::Fanout | Matching::Topic | Matching::Headers => true,
        };
        let source = binding.source().vhost();
        let stays = match binding.destination() {
            Destination::Queue(name) => name.vhost() == source,
            Destination::Exchange(name) => name.vhost() == source,
        };
        there && understood && stays
    }

    fn bind(&mut self, binding: Binding) {
        if !self.bindings.contains(&binding) {
            self.bindings.push(binding);
        }
    }

    /// Drops bindings, then exchanges that go with their last one, then their bindings, and so on.
    fn drop_bindings(&mut self, which: impl Fn(&Binding) -> bool) {
        let (dropped, kept): (Vec<_>, Vec<_>) = self.bindings.drain(..).partition(which);
        self.bindings = kept;
        for binding in dropped {
            let name = binding.source();
            let bare = !self.bindings.iter().any(|other| other.source() == name);
            if bare && self.spec(name).is_some_and(|spec| spec.auto_delete) {
                self.delete(&name.clone());
            }
        }
    }

    fn delete(&mut self, name: &ExchangeName) {
        self.exchanges.retain(|(held, _)| held != name);
        let to = Destination::Exchange(name.clone());
        self.drop_bindings(|binding| binding.source() == name || *binding.destination() == to);
    }

    fn remove_queue(&mut self, name: &QueueName) {
        self.queues.retain(|(held, ..)| held != name);
        let to = Destination::Queue(name.clone());
        self.drop_bindings(|binding| *binding.destination() == to);
    }

    fn outline(&self) -> Outline {
        let lasts = |name: &ExchangeName| self.spec(name).unwrap().durability == Durability::Durable;
        let mut bindings: Vec<(Binding, Option<QueueId>)> = Vec::new();
        for binding in self.bindings.iter().filter(|binding| lasts(binding.source())) {
            match binding.destination() {
                Destination::Queue(name) => {
                    let (id, durability) = self.queue(name).unwrap();
                    if durability == Durability::Durable {
                        bindings.push((binding.clone(), Some(id)));
                    }
                }
                Destination::Exchange(name) if lasts(name) => bindings.push((binding.clone(), None)),
                Destination::Exchange(_) => {}
            }
        }
        bindings.sort_by(|(a, _), (b, _)| a.source().cmp(b.source()));
        let exchanges = self.exchanges.iter().filter(|(name, _)| lasts(name)).cloned().collect();
        let vhosts = self.vhosts.iter().cloned().map(|(name, spec)| (name, (spec, VhostStage::Open)));
        Outline { vhosts: vhosts.collect(), exchanges, bindings }
    }

    /// Which bindings of an exchange match a message.
    fn matching(&self, name: &ExchangeName, message: &Message) -> Vec<&Destination> {
        let spec = self.spec(name).unwrap();
        let bindings: Vec<&Binding> =
            self.bindings.iter().filter(|binding| binding.source() == name).collect();
        let any_key = |fits: &dyn Fn(&[u8]) -> bool| message.keys.iter().any(|key| fits(key.as_bytes()));
        let matches = |binding: &&&Binding| match spec.kind.matching() {
            Matching::Fanout => true,
            Matching::Direct => any_key(&|key| key == binding.key()),
            Matching::Topic => any_key(&|key| trie::fits(binding.key(), key)),
            Matching::Headers => headers_match(binding.arguments(), &message.headers),
            Matching::ConsistentHash(_) => false,
        };
        if let Matching::ConsistentHash(on) = spec.kind.matching() {
            return hashed(on, &bindings, message).into_iter().collect();
        }
        bindings.iter().filter(matches).map(|binding| binding.destination()).collect()
    }

    /// The exchanges after this one, and its queues.
    fn next(&self, name: &ExchangeName, message: &Message) -> (Vec<ExchangeName>, Vec<QueueId>) {
        let by_name = |key: &&str| self.queue(&QueueName::at(&name.vhost(), key).ok()?).map(|(id, _)| id);
        if name.is_default() {
            return (Vec::new(), message.keys.iter().filter_map(by_name).collect());
        }
        let Some(spec) = self.spec(name) else { return (Vec::new(), Vec::new()) };
        let matched = self.matching(name, message);
        if matched.is_empty() {
            return (spec.alternate.clone().into_iter().collect(), Vec::new());
        }
        let (mut exchanges, mut queues) = (Vec::new(), Vec::new());
        for destination in matched {
            match destination {
                Destination::Queue(name) => queues.push(self.queue(name).unwrap().0),
                Destination::Exchange(name) => exchanges.push(name.clone()),
            }
        }
        (exchanges, queues)
    }

    /// The queues that a message reaches from an exchange, in exchanges that `passable` lets it through.
    fn reach(&self, message: &Message, passable: &dyn Fn(&ExchangeName) -> bool) -> BTreeSet<QueueId> {
        let mut seen = BTreeSet::new();
        let mut queues = BTreeSet::new();
        let mut open = vec![message.exchange.clone()];
        while let Some(name) = open.pop() {
            if passable(&name) && seen.insert(name.clone()) {
                let (further, found) = self.next(&name, message);
                open.extend(further);
                queues.extend(found);
            }
        }
        queues
    }

    /// The queues that a message reaches at once, and those that it reaches only with a delay.
    fn route(&self, message: &Message) -> Option<(Vec<QueueId>, Vec<QueueId>)> {
        let there = if message.exchange.is_default() {
            self.vhost(&message.exchange.vhost()).is_some()
        } else {
            self.spec(&message.exchange).is_some()
        };
        if !there {
            return None;
        }
        let at_once = |name: &ExchangeName| !self.spec(name).is_some_and(|spec| spec.kind.is_delayed());
        let soon = self.reach(message, &at_once);
        let all = self.reach(message, &|_| true);
        Some((soon.iter().copied().collect(), all.difference(&soon).copied().collect()))
    }
}

fn headers_match(wanted: &[(Bytes, HeaderValue)], headers: &[(Bytes, HeaderValue)]) -> bool {
    let mode = wanted.iter().find(|(name, _)| name == "x-match").and_then(|(_, value)| value.as_text());
    let wanted: Vec<_> = wanted.iter().filter(|(name, _)| name != "x-match").collect();
    let found = wanted
        .iter()
        .filter(|(name, value)| {
            headers.iter().find(|(held, _)| held == name).is_some_and(|(_, had)| value.same(had))
        })
        .count();
    if mode == Some(b"any") { found > 0 } else { found == wanted.len() }
}

/// The destination in the bucket that the hash falls on, with every bucket written out.
fn hashed<'a>(on: &HashOn, bindings: &[&'a Binding], message: &Message) -> Option<&'a Destination> {
    let mut buckets: Vec<&Destination> = Vec::new();
    for binding in bindings {
        let weight: usize = std::str::from_utf8(binding.key()).unwrap().parse().unwrap();
        if !buckets.contains(&binding.destination()) {
            buckets.extend(std::iter::repeat_n(binding.destination(), weight));
        }
    }
    let headers = Headers(message.headers.clone());
    let hash = ring::hash_value(match on {
        HashOn::RoutingKey => message.keys.first().map(|key| HeaderValue::Text(key.as_bytes())),
        HashOn::Header(name) => headers.header(name),
        HashOn::Property(property) => headers.property(*property),
    });
    if buckets.is_empty() {
        return None;
    }
    buckets.get(usize::try_from(ring::jump(hash, buckets.len() as u64)).unwrap()).copied()
}

fn exchange(name: &str) -> ExchangeName {
    ExchangeName::new(name).unwrap()
}

pub(super) fn a_vhost() -> impl Strategy<Value = VhostName> {
    prop::sample::select(vec!["/", "/", "/", "v", "v", "w"]).prop_map(|name| VhostName::new(name).unwrap())
}

pub(super) fn a_vhost_spec() -> impl Strategy<Value = VhostSpec> {
    let kind = prop::sample::select(vec![None, Some(DefaultQueueType::Quorum)]);
    ("[ab]", prop::collection::vec("[cd]", 0..2), kind, prop::option::of(0u64..3)).prop_map(
        |(description, tags, default_queue_type, max_queues)| VhostSpec {
            description,
            tags,
            default_queue_type,
            max_connections: max_queues.map(|max| max + 1),
            max_queues,
        },
    )
}

pub(super) fn an_exchange() -> impl Strategy<Value = ExchangeName> {
    let name = prop::sample::select(vec!["a", "b", "c", "d", "e", "amq.topic"]);
    (a_vhost(), name).prop_map(|(vhost, name)| ExchangeName::at(&vhost, name).unwrap())
}

pub(super) fn a_queue() -> impl Strategy<Value = QueueName> {
    let name = prop::sample::select(vec!["p", "q", "r", "s"]);
    (a_vhost(), name).prop_map(|(vhost, name)| QueueName::at(&vhost, name).unwrap())
}

/// An exchange with what it is told to be; its alternate is in its own virtual host.
pub(super) fn a_declaration() -> impl Strategy<Value = (ExchangeName, ExchangeSpec)> {
    (an_exchange(), a_spec()).prop_map(|(name, mut spec)| {
        spec.alternate = spec.alternate.map(|held| ExchangeName::at(&name.vhost(), held.as_str()).unwrap());
        (name, spec)
    })
}

fn a_durability() -> impl Strategy<Value = Durability> {
    prop::sample::select(vec![Durability::Durable, Durability::Transient])
}

fn a_spec() -> impl Strategy<Value = ExchangeSpec> {
    let matching = prop::sample::select(vec![
        Matching::Direct,
        Matching::Fanout,
        Matching::Topic,
        Matching::Headers,
        Matching::ConsistentHash(HashOn::RoutingKey),
        Matching::ConsistentHash(HashOn::Header("h".into())),
        Matching::ConsistentHash(HashOn::Property(Property::MessageId)),
    ]);
    let alternate = prop::sample::select(vec![None, Some(""), Some("a"), Some("b"), Some("missing")]);
    (matching, prop::bool::weighted(0.2), a_durability(), any::<bool>(), alternate).prop_map(
        |(matching, delayed, durability, auto_delete, alternate)| ExchangeSpec {
            kind: if delayed { ExchangeKind::Delayed(matching) } else { ExchangeKind::Plain(matching) },
            durability,
            auto_delete,
            alternate: alternate.map(exchange),
            ..ExchangeSpec::durable(ExchangeKind::Plain(Matching::Direct))
        },
    )
}

fn some_headers() -> impl Strategy<Value = Vec<(Bytes, HeaderValue)>> {
    let name = prop::sample::select(vec!["h", "id", "k"]);
    let pair = (name, 0i64..3).prop_map(|(name, value)| (Bytes::from(name), HeaderValue::Signed(value)));
    prop::collection::vec(pair, 0..3)
}

pub(super) fn a_binding() -> impl Strategy<Value = Binding> {
    let destination =
        prop_oneof![a_queue().prop_map(Destination::Queue), an_exchange().prop_map(Destination::Exchange),];
    let key = prop::sample::select(vec!["1", "2", "x", "x.y", "x.*", "#", "#.y", "*.*"]);
    let mode = prop::sample::select(vec![None, Some("any"), Some("all")]);
    (an_exchange(), destination, key, some_headers(), mode).prop_map(
        |(source, destination, key, mut pairs, mode)| {
            if let Some(mode) = mode {
                pairs.push(("x-match".into(), HeaderValue::Text(mode.into())));
            }
            Binding::new(source, destination, key.into(), pairs)
        },
    )
}

fn an_op() -> impl Strategy<Value = Op> {
    let condition = prop::sample::select(vec![DeleteIf::Always, DeleteIf::Unused]);
    prop_oneof![
        4 => a_declaration().prop_map(|(name, spec)| Op::Declare(name, spec)),
        1 => (an_exchange(), condition).prop_map(|(name, condition)| Op::Delete(name, condition)),
        10 => a_binding().prop_map(Op::Bind),
        2 => any::<prop::sample::Index>().prop_map(Op::Unbind),
        1 => a_binding().prop_map(Op::UnbindAsGiven),
        2 => (a_queue(), a_durability()).prop_map(|(name, durability)| Op::AddQueue(name, durability)),
        1 => a_queue().prop_map(Op::RemoveQueue),
        2 => (a_vhost(), a_vhost_spec()).prop_map(|(name, spec)| Op::PutVhost(name, spec)),
        1 => prop::sample::select(vec!["/", "v", "v", "w", "w"])
            .prop_map(|name| Op::DeleteVhost(VhostName::new(name).unwrap())),
    ]
}

fn a_message() -> impl Strategy<Value = Message> {
    let default = a_vhost().prop_map(|vhost| ExchangeName::at(&vhost, "").unwrap());
    let exchange = prop_oneof![4 => an_exchange(), 1 => default];
    let key = prop::sample::select(vec!["1", "x", "x.y", "z.y", "p", "q", ""]);
    (exchange, prop::collection::vec(key, 1..3), some_headers())
        .prop_map(|(exchange, keys, headers)| Message { exchange, keys, headers })
}

/// The rules and the model side by side, and what was written so far.
struct Pair {
    topology: Topology,
    naive: Naive,
    written: Vec<Bytes>,
    next_queue: u64,
}

impl Pair {
    fn carry_out(&mut self, plan: &Plan) {
        self.written.extend(plan.to_write().map(TopologyRecord::encode));
        let (before, routes) = (self.topology.generation(), self.topology.routes());
        self.topology.apply(plan);
        assert_eq!(routes.generation(), before, "a snapshot has changed");
        assert_eq!(plan.is_empty(), self.topology.generation() == before, "generations do not count changes");
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Declare(name, spec) => match self.topology.decide_declare(&name, spec.clone()) {
                Ok(plan) => {
                    assert_eq!(plan.is_empty(), self.naive.spec(&name).is_some());
                    self.carry_out(&plan);
                    if !plan.is_empty() {
                        self.naive.exchanges.push((name, spec));
                    }
                }
                Err(DeclareError::Vhost(_)) => assert_eq!(self.naive.vhost(&name.vhost()), None),
                Err(error) => {
                    assert!(matches!(error, DeclareError::Differs { .. }));
                    assert_ne!(self.naive.spec(&name), Some(&spec));
                }
            },
            Op::Delete(name, condition) => match self.topology.decide_delete(&name, condition) {
                Ok(plan) => {
                    self.carry_out(&plan);
                    self.naive.delete(&name);
                }
                Err(DeleteError::Reserved { .. }) => assert!(name.is_reserved()),
                Err(error) => {
                    assert_eq!(
                        (error, condition),
                        (DeleteError::InUse { name: name.clone() }, DeleteIf::Unused)
                    );
                    assert!(self.naive.bindings.iter().any(|binding| *binding.source() == name));
                }
            },
            Op::Bind(binding) => match self.topology.decide_bind(binding.clone()) {
                Ok(plan) => {
                    assert!(self.naive.can_bind(&binding));
                    self.carry_out(&plan);
                    self.naive.bind(binding);
                }
                Err(_) => assert!(!self.naive.can_bind(&binding)),
            },
            Op::Unbind(index) => {
                if !self.naive.bindings.is_empty() {
                    let binding = index.get(&self.naive.bindings).clone();
                    self.step(Op::UnbindAsGiven(binding));
                }
            }
            Op::UnbindAsGiven(binding) => {
                let plan = self.topology.decide_unbind(&binding).unwrap();
                self.carry_out(&plan);
                self.naive.drop_bindings(|held| *held == binding);
            }
            Op::AddQueue(name, durability) => {
                let fits = self.topology.check_new_queue(&name.vhost()).is_ok();
                let held = self.naive.queues.iter().filter(|(held, ..)| held.vhost() == name.vhost()).count();
                let spec = self.naive.vhost(&name.vhost());
                assert_eq!(
                    fits,
                    spec.is_some_and(|spec| spec.max_queues.is_none_or(|max| max > held as u64))
                );
                if fits && self.naive.queue(&name).is_none() {
                    let id = QueueId(self.next_queue);
                    self.next_queue += 1;
                    self.topology.queue_added(&name, id, durability);
                    self.naive.queues.push((name, id, durability));
                }
            }
            Op::RemoveQueue(name) => {
                let plan = self.topology.decide_queue_removed(&name);
                self.carry_out(&plan);
                self.naive.remove_queue(&name);
            }
            Op::PutVhost(name, spec) => {
                let plan = self.topology.decide_put_vhost(&name, spec.clone()).unwrap();
                assert_eq!(plan.is_empty(), self.naive.vhost(&name) == Some(&spec));
                self.carry_out(&plan);
                self.naive.put_vhost(name, spec);
            }
            Op::DeleteVhost(name) => self.delete_vhost(&name),
        }
    }

    fn delete_vhost(&mut self, name: &VhostName) {
        let Ok(plan) = self.topology.decide_delete_vhost(name) else {
            assert_eq!(self.naive.vhost(name), None);
            return;
        };
        self.carry_out(&plan);
        let restored = Topology::restore(&self.topology.snapshot()).unwrap();
        assert_eq!(
            restored.outline(),
            self.topology.outline(),
            "a snapshot on its way out gave another state"
        );
        let refused = self.topology.decide_put_vhost(name, VhostSpec::default());
        assert_eq!(refused, Err(VhostError::Deleting { name: name.clone() }));
        assert!(self.topology.check_new_queue(name).is_err());
        let own = self.naive.queues.iter().filter(|(queue, ..)| queue.vhost() == *name);
        for queue in own.map(|(queue, ..)| queue.clone()).collect::<Vec<_>>() {
            assert!(self.topology.decide_vhost_gone(name).is_empty(), "it has queues");
            let plan = self.topology.decide_queue_removed(&queue);
            self.carry_out(&plan);
        }
        let plan = self.topology.decide_vhost_gone(name);
        self.carry_out(&plan);
        self.naive.delete_vhost(name);
    }

    fn compare_routes(&self, messages: &[Message]) {
        let routes = self.topology.routes();
        let mut out = vec![QueueId(u64::MAX)];
        for message in messages {
            let keys: Vec<&[u8]> = message.keys.iter().map(|key| key.as_bytes()).collect();
            let headers = Headers(message.headers.clone());
            let routed = routes.route(&message.exchange, &keys, &headers, &mut out);
            let found = routed.map(|routed| {
                assert_eq!(routed.matched, !out.is_empty());
                let (soon, later) = out.split_at(routed.delayed_from);
                (soon.to_vec(), later.to_vec())
            });
            assert_eq!(found.ok(), self.naive.route(message), "{message:?}");
        }
    }

    fn compare_durable_state(&self) {
        let outline = self.topology.outline();
        assert_eq!(outline, self.naive.outline());
        assert_eq!(self.topology.binding_count(), self.naive.bindings.len());
        assert_eq!(self.topology.bindings().count(), self.naive.bindings.len());
        let mut replayed = Topology::new();
        for bytes in &self.written {
            replayed.replay(&TopologyRecord::decode(bytes).unwrap());
        }
        assert_eq!(replayed.outline(), outline, "replaying gave another state");
        let restored = Topology::restore(&self.topology.snapshot()).unwrap();
        assert_eq!(restored.outline(), outline, "the snapshot gave another state");
        assert_eq!(restored.snapshot(), self.topology.snapshot());
    }
}

proptest! {
    #[test]
    fn changes_and_routes_are_those_of_the_naive_model(
        ops in prop::collection::vec(an_op(), 1..60),
        messages in prop::collection::vec(a_message(), 12),
    ) {
        let mut pair = Pair { topology: Topology::new(), naive: Naive::new(), written: Vec::new(), next_queue: 0 };
        pair.step(Op::PutVhost(VhostName::new("v").unwrap(), VhostSpec::default()));
        for name in ["p", "q", "\u{1}v\u{1}p", "\u{1}v\u{1}q"] {
            pair.step(Op::AddQueue(QueueName::from_stored(name).unwrap(), Durability::Durable));
        }
        for op in ops {
            pair.step(op);
            pair.compare_routes(&messages);
        }
        pair.compare_durable_state();
    }

    #[test]
    fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        _ = TopologyRecord::decode(&bytes);
        _ = Topology::restore(&bytes);
    }
}
