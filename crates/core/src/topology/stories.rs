//! Exchanges and bindings as their users know them.

use bytes::Bytes;
use nexo_types::{ExchangeName, QueueId, QueueName, VhostName};

use super::model::Headers;
use super::*;
use crate::message::Durability;

/// No queue at all.
const NOWHERE: [u64; 0] = [];

/// A topology with queues `q0` to `q4`, of which the last is transient.
struct World {
    topology: Topology,
}

impl World {
    fn new() -> Self {
        let mut topology = Topology::new();
        for id in 0..5 {
            let durability = if id == 4 { Durability::Transient } else { Durability::Durable };
            topology.queue_added(&queue(&format!("q{id}")), QueueId(id), durability);
        }
        Self { topology }
    }

    fn declare(&mut self, name: &str, spec: ExchangeSpec) -> Vec<TopologyRecord> {
        let plan = self.topology.decide_declare(&exchange(name), spec).unwrap();
        self.carry_out(&plan)
    }

    fn bind(&mut self, binding: Binding) -> Vec<TopologyRecord> {
        let plan = self.topology.decide_bind(binding).unwrap();
        self.carry_out(&plan)
    }

    fn unbind(&mut self, binding: &Binding) {
        let plan = self.topology.decide_unbind(binding).unwrap();
        self.carry_out(&plan);
    }

    fn carry_out(&mut self, plan: &Plan) -> Vec<TopologyRecord> {
        self.topology.apply(plan);
        plan.to_write().cloned().collect()
    }

    fn has(&self, name: &str) -> bool {
        self.topology.spec(&exchange(name)).is_some()
    }

    fn publish(&self, exchange: &str, key: &str) -> Vec<u64> {
        self.publish_with(exchange, &[key], &NoHeaders).1
    }

    fn publish_with(&self, exchange: &str, keys: &[&str], headers: &dyn HeaderSource) -> (Routed, Vec<u64>) {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        let mut out = Vec::new();
        let routed =
            self.topology.routes().publish(&VhostName::DEFAULT, exchange, &keys, headers, &mut out).unwrap();
        (routed, out.into_iter().map(|id| id.0).collect())
    }
}

fn exchange(name: &str) -> ExchangeName {
    ExchangeName::new(name).unwrap()
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn plain(matching: Matching) -> ExchangeSpec {
    ExchangeSpec::durable(ExchangeKind::Plain(matching))
}

fn auto_delete(matching: Matching) -> ExchangeSpec {
    ExchangeSpec { auto_delete: true, ..plain(matching) }
}

fn transient(matching: Matching) -> ExchangeSpec {
    ExchangeSpec { durability: Durability::Transient, ..plain(matching) }
}

fn to_queue(source: &str, key: &'static str, name: &str) -> Binding {
    Binding::new(exchange(source), Destination::Queue(queue(name)), key.into(), Vec::new())
}

fn to_exchange(source: &str, key: &'static str, name: &str) -> Binding {
    Binding::new(exchange(source), Destination::Exchange(exchange(name)), key.into(), Vec::new())
}

#[test]
fn the_default_exchange_leads_to_every_queue_by_its_name() {
    let mut world = World::new();
    assert_eq!(world.publish("", "q3"), [3]);
    assert_eq!(world.publish("", "nobody"), NOWHERE);
    let (routed, queues) = world.publish_with("", &["q3", "q1", "q3"], &NoHeaders);
    assert_eq!((routed.matched, queues), (true, vec![1, 3]));
    let plan = world.topology.decide_queue_removed(&queue("q3"));
    world.carry_out(&plan);
    assert_eq!(world.publish("", "q3"), NOWHERE);
}

#[test]
fn the_default_exchange_can_be_neither_declared_nor_bound_nor_deleted() {
    let topology = World::new().topology;
    let default = exchange("");
    assert_eq!(
        topology.decide_declare(&default, plain(Matching::Direct)),
        Err(DeclareError::DefaultExchange)
    );
    assert_eq!(topology.check(&default), Err(PassiveError::DefaultExchange));
    assert_eq!(topology.decide_delete(&default, DeleteIf::Always), Err(DeleteError::DefaultExchange));
    assert_eq!(topology.decide_bind(to_queue("", "k", "q0")), Err(BindError::DefaultExchange));
    assert_eq!(topology.decide_bind(to_exchange("amq.topic", "k", "")), Err(BindError::DefaultExchange));
    assert_eq!(topology.decide_unbind(&to_queue("", "q0", "q0")), Err(UnbindError::DefaultExchange));
}

#[test]
fn reserved_names_are_for_what_the_broker_brings() {
    let topology = Topology::new();
    let reserved = DeclareError::Reserved { name: exchange("amq.mine") };
    assert_eq!(topology.decide_declare(&exchange("amq.mine"), plain(Matching::Direct)), Err(reserved));
    assert_eq!(
        topology.decide_declare(&exchange("amq.direct"), plain(Matching::Direct)),
        Ok(Plan::default())
    );
    let differs = topology.decide_declare(&exchange("amq.direct"), plain(Matching::Topic));
    assert!(matches!(differs, Err(DeclareError::Differs { .. })));
    assert_eq!(
        topology.decide_delete(&exchange("amq.topic"), DeleteIf::Always),
        Err(DeleteError::Reserved { name: exchange("amq.topic") })
    );
    for name in ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"] {
        assert!(topology.check(&exchange(name)).is_ok());
    }
}

#[test]
fn declaring_again_otherwise_names_the_difference() {
    let mut world = World::new();
    world.declare("x", transient(Matching::Direct));
    let error = world.topology.decide_declare(&exchange("x"), plain(Matching::Direct)).unwrap_err();
    assert_eq!(error.to_string(), "exchange 'x' exists with durable 'false'; this declare asks for 'true'");
    let DeclareError::Differs { name, difference } = error else { panic!("{error}") };
    let Difference { property, received, current } = difference;
    assert_eq!(
        format!(
            "inequivalent arg '{property}' for exchange '{name}' in vhost '/': received {received} but current is {current}"
        ),
        "inequivalent arg 'durable' for exchange 'x' in vhost '/': received 'true' but current is 'false'"
    );
}

#[test]
fn a_missing_end_is_named_the_source_first() {
    let topology = World::new().topology;
    let no_exchange = |name| Err(BindError::NoSuchExchange { name: exchange(name) });
    assert_eq!(topology.decide_bind(to_queue("x", "k", "nobody")), no_exchange("x"));
    assert_eq!(topology.decide_bind(to_exchange("amq.topic", "k", "y")), no_exchange("y"));
    assert_eq!(
        topology.decide_bind(to_queue("amq.topic", "k", "nobody")),
        Err(BindError::NoSuchQueue { name: queue("nobody") })
    );
    assert_eq!(topology.decide_unbind(&to_queue("x", "k", "nobody")), Ok(Plan::default()));
}

#[test]
fn bindings_that_mean_nothing_to_their_source_are_refused() {
    let mut world = World::new();
    world.declare("hash", plain(Matching::ConsistentHash(HashOn::RoutingKey)));
    assert!(matches!(
        world.topology.decide_bind(to_queue("hash", "heavy", "q0")),
        Err(BindError::WeightIsNoNumber { .. })
    ));
    let arguments = vec![("x-match".into(), HeaderValue::Text("some".into()))];
    let binding =
        Binding::new(exchange("amq.match"), Destination::Queue(queue("q0")), Bytes::new(), arguments);
    assert_eq!(
        world.topology.decide_bind(binding.clone()),
        Err(BindError::UnknownMatch { value: "some".to_owned() })
    );
}

#[test]
fn an_auto_delete_exchange_goes_with_its_last_binding_and_not_before_the_first() {
    let mut world = World::new();
    world.declare("x", auto_delete(Matching::Direct));
    assert!(world.has("x"));
    world.bind(to_queue("x", "a", "q0"));
    world.bind(to_queue("x", "b", "q1"));
    world.unbind(&to_queue("x", "a", "q0"));
    assert!(world.has("x"));
    let plan = world.topology.decide_queue_removed(&queue("q1"));
    world.carry_out(&plan);
    assert!(!world.has("x"));
}

#[test]
fn bindings_to_an_exchange_do_not_keep_it_and_auto_deletion_cascades() {
    let mut world = World::new();
    for name in ["first", "second", "third"] {
        world.declare(name, auto_delete(Matching::Fanout));
    }
    world.declare("loop", auto_delete(Matching::Fanout));
    world.bind(to_exchange("first", "", "second"));
    world.bind(to_exchange("second", "", "third"));
    world.bind(to_queue("third", "", "q0"));
    world.bind(to_exchange("loop", "", "loop"));
    let plan = world.topology.decide_queue_removed(&queue("q0"));
    let written = world.carry_out(&plan);
    assert_eq!(written.len(), 4, "the queue and three exchanges: {written:?}");
    assert!(!world.has("first") && !world.has("second") && !world.has("third") && world.has("loop"));
    assert_eq!(world.topology.binding_count(), 1);
}

#[test]
fn deleting_only_if_unused_looks_at_bindings_from_the_exchange() {
    let mut world = World::new();
    world.declare("x", plain(Matching::Fanout));
    world.bind(to_exchange("amq.fanout", "", "x"));
    world.bind(to_queue("x", "", "q0"));
    let name = exchange("x");
    let in_use = Err(DeleteError::InUse { name: name.clone() });
    assert_eq!(world.topology.decide_delete(&name, DeleteIf::Unused), in_use);
    world.unbind(&to_queue("x", "", "q0"));
    let plan = world.topology.decide_delete(&name, DeleteIf::Unused).unwrap();
    world.carry_out(&plan);
    assert!(!world.has("x"));
    assert_eq!(world.topology.binding_count(), 0);
    assert_eq!(world.topology.decide_delete(&name, DeleteIf::Unused), Ok(Plan::default()));
}

#[test]
fn only_what_lies_between_durable_ends_is_written() {
    let mut world = World::new();
    assert_eq!(world.declare("d", plain(Matching::Direct)).len(), 1);
    assert_eq!(world.declare("t", transient(Matching::Direct)).len(), 0);
    assert_eq!(world.bind(to_queue("d", "k", "q0")).len(), 1);
    assert_eq!(world.bind(to_queue("d", "k", "q0")).len(), 0, "it is there already");
    assert_eq!(world.bind(to_queue("d", "k", "q4")).len(), 0, "the queue is transient");
    assert_eq!(world.bind(to_queue("t", "k", "q0")).len(), 0);
    assert_eq!(world.bind(to_exchange("d", "k", "t")).len(), 0);
    assert_eq!(world.bind(to_exchange("d", "k", "amq.topic")).len(), 1);
    assert_eq!(world.topology.outline().bindings.len(), 2);
    let gone = world.topology.decide_queue_removed(&queue("q4"));
    assert_eq!(world.carry_out(&gone), []);
    let gone = world.topology.decide_queue_removed(&queue("q0"));
    assert_eq!(world.carry_out(&gone), [TopologyRecord::QueueGone { queue: QueueId(0) }]);
}

#[test]
fn bindings_to_queues_that_do_not_come_back_go_after_a_restart() {
    let mut world = World::new();
    world.declare("x", auto_delete(Matching::Direct));
    world.bind(to_queue("x", "k", "q0"));
    world.bind(to_queue("amq.direct", "k", "q1"));
    world.bind(to_queue("amq.direct", "k", "q2"));
    let mut topology = Topology::restore(&world.topology.snapshot()).unwrap();
    topology.queue_added(&queue("q1"), QueueId(1), Durability::Durable);
    // A later queue of the same name is not the one that was bound.
    topology.queue_added(&queue("q2"), QueueId(77), Durability::Durable);
    let mut world = World { topology };
    let plan = world.topology.decide_recovered();
    assert_eq!(plan.to_write().count(), 3, "two queues and the exchange that goes with one of them");
    world.carry_out(&plan);
    assert_eq!(world.publish("amq.direct", "k"), [1]);
    assert_eq!(world.publish("", "q2"), [77]);
    assert!(!world.has("x"));
    assert!(world.topology.decide_recovered().is_empty());
}

#[test]
fn a_queue_is_reached_once_however_many_ways_lead_to_it() {
    let mut world = World::new();
    world.declare("x", plain(Matching::Topic));
    world.bind(to_queue("x", "a.#", "q1"));
    world.bind(to_queue("x", "#.b", "q1"));
    world.bind(to_queue("x", "*.*", "q0"));
    world.bind(to_exchange("x", "#", "amq.fanout"));
    world.bind(to_queue("amq.fanout", "", "q1"));
    world.bind(to_queue("amq.fanout", "", "q2"));
    assert_eq!(world.publish("x", "a.b"), [0, 1, 2]);
}

#[test]
fn exchanges_bound_in_a_circle_pass_a_message_once() {
    let mut world = World::new();
    for (name, next) in [("a", "b"), ("b", "c"), ("c", "a")] {
        for name in [name, next] {
            world.declare(name, plain(Matching::Fanout));
        }
        world.bind(to_exchange(name, "", next));
    }
    world.bind(to_queue("c", "", "q2"));
    world.bind(to_exchange("c", "", "c"));
    assert_eq!(world.publish("a", "k"), [2]);
}

#[test]
fn unmatched_messages_go_to_the_alternate_exchange() {
    let mut world = World::new();
    let with = |alternate| ExchangeSpec { alternate: Some(exchange(alternate)), ..plain(Matching::Direct) };
    world.declare("a", with("b"));
    world.declare("b", with("a"));
    world.declare("lost", with("missing"));
    world.declare("by-name", with(""));
    world.bind(to_queue("a", "k", "q0"));
    assert_eq!(world.publish("a", "k"), [0]);
    assert_eq!(world.publish("b", "k"), [0], "what b does not match goes to a");
    assert_eq!(world.publish("a", "other"), NOWHERE, "a and b are each other's alternate");
    assert_eq!(world.publish("lost", "k"), NOWHERE);
    assert_eq!(world.publish("by-name", "q3"), [3]);
    // A match that leads to another exchange is a match, even if nothing comes of it.
    world.bind(to_exchange("b", "k", "amq.fanout"));
    assert_eq!(world.publish("b", "k"), NOWHERE);
}

#[test]
fn a_policy_names_an_alternate_where_the_declaration_does_not() {
    let mut world = World::new();
    let own = ExchangeSpec { alternate: Some(exchange("amq.fanout")), ..plain(Matching::Direct) };
    world.declare("plain", plain(Matching::Direct));
    world.declare("own", own);
    world.bind(to_queue("amq.fanout", "", "q0"));
    let before = world.topology.outline();
    for name in ["plain", "own"] {
        world.topology.set_alternate_by_policy(&exchange(name), Some(exchange("")));
    }
    assert_eq!((world.publish("plain", "q3"), world.publish("own", "q3")), (vec![3], vec![0]));
    assert_eq!(world.topology.outline(), before, "it is no part of what is written down");
    world.topology.set_alternate_by_policy(&exchange("plain"), None);
    assert_eq!(world.publish("plain", "q3"), NOWHERE);
}

#[test]
fn clients_cannot_publish_to_internal_exchanges_but_the_broker_can() {
    let mut world = World::new();
    world.declare("x", ExchangeSpec { internal: true, ..plain(Matching::Fanout) });
    world.bind(to_queue("x", "", "q0"));
    world.bind(to_exchange("amq.fanout", "", "x"));
    let routes = world.topology.routes();
    let mut out = Vec::new();
    assert_eq!(
        routes.publish(&VhostName::DEFAULT, "x", &[b""], &NoHeaders, &mut out),
        Err(RouteError::Internal)
    );
    assert_eq!(
        routes.publish(&VhostName::DEFAULT, "y", &[b""], &NoHeaders, &mut out),
        Err(RouteError::NoSuchExchange)
    );
    assert!(routes.route(&exchange("x"), &[b""], &NoHeaders, &mut out).unwrap().matched);
    assert_eq!(world.publish("amq.fanout", ""), [0]);
}

#[test]
fn queues_behind_a_delayed_exchange_come_after_the_others() {
    let mut world = World::new();
    world.declare("delayed", ExchangeSpec::durable(ExchangeKind::Delayed(Matching::Fanout)));
    world.bind(to_queue("delayed", "", "q0"));
    world.bind(to_queue("delayed", "", "q2"));
    world.bind(to_exchange("amq.fanout", "", "delayed"));
    world.bind(to_queue("amq.fanout", "", "q1"));
    world.bind(to_queue("amq.fanout", "", "q2"));
    let (routed, queues) = world.publish_with("delayed", &["k"], &NoHeaders);
    assert_eq!((routed.delayed_from, queues), (0, vec![0, 2]));
    let (routed, queues) = world.publish_with("amq.fanout", &["k"], &NoHeaders);
    assert_eq!((routed.delayed_from, queues), (2, vec![1, 2, 0]));
    assert!(world.topology.routes().is_delayed(&exchange("delayed")));
}

#[test]
fn a_route_says_whether_headers_decided() {
    let mut world = World::new();
    let arguments = vec![("kind".into(), HeaderValue::Text("mail".into()))];
    world.bind(Binding::new(
        exchange("amq.match"),
        Destination::Queue(queue("q0")),
        Bytes::new(),
        arguments.clone(),
    ));
    world.bind(to_exchange("amq.topic", "#", "amq.match"));
    world.bind(to_queue("amq.direct", "k", "q1"));
    let (routed, queues) = world.publish_with("amq.topic", &["k"], &Headers(arguments));
    assert_eq!((routed.by_headers, queues), (true, vec![0]));
    let (routed, queues) = world.publish_with("amq.direct", &["k"], &NoHeaders);
    assert_eq!((routed.by_headers, queues), (false, vec![1]));
}

#[test]
fn a_snapshot_of_the_routes_stays_as_it_was() {
    let mut world = World::new();
    world.bind(to_queue("amq.direct", "k", "q0"));
    let before = world.topology.routes();
    world.bind(to_queue("amq.direct", "k", "q1"));
    let mut out = Vec::new();
    before.route(&exchange("amq.direct"), &[b"k"], &NoHeaders, &mut out).unwrap();
    assert_eq!(out, [QueueId(0)]);
    assert_eq!(world.publish("amq.direct", "k"), [0, 1]);
    assert_ne!(before.generation(), world.topology.generation());
}

#[test]
fn bindings_can_be_listed_from_both_ends() {
    let mut world = World::new();
    world.bind(to_queue("amq.topic", "b", "q0"));
    world.bind(to_queue("amq.topic", "a", "q0"));
    world.bind(to_queue("amq.direct", "c", "q1"));
    let topic = exchange("amq.topic");
    let from: Vec<&Bytes> = world.topology.bindings_from(&topic).map(Binding::key).collect();
    assert_eq!(from, ["b", "a"]);
    let to = Destination::Queue(queue("q0"));
    assert_eq!(world.topology.bindings_to(&to).count(), 2);
    assert_eq!(world.topology.bindings().count(), 3);
    assert_eq!(world.topology.exchanges().count(), 6);
}

fn acme() -> VhostName {
    VhostName::new("acme").unwrap()
}

fn in_acme(name: &str) -> ExchangeName {
    ExchangeName::at(&acme(), name).unwrap()
}

/// A world with a virtual host in which queue `q0`, with the id 10, has the name of one in "/".
fn two_vhosts() -> World {
    let mut world = World::new();
    let plan = world.topology.decide_put_vhost(&acme(), VhostSpec::default()).unwrap();
    world.carry_out(&plan);
    let q0 = QueueName::at(&acme(), "q0").unwrap();
    world.topology.queue_added(&q0, QueueId(10), Durability::Durable);
    world
}

fn reached(world: &World, vhost: &VhostName, exchange: &str, key: &str) -> Option<Vec<u64>> {
    let mut out = Vec::new();
    let routes = world.topology.routes();
    routes.publish(vhost, exchange, &[key.as_bytes()], &NoHeaders, &mut out).ok()?;
    Some(out.into_iter().map(|id| id.0).collect())
}

#[test]
fn names_are_apart_in_two_virtual_hosts() {
    let mut world = two_vhosts();
    assert_eq!(reached(&world, &VhostName::DEFAULT, "", "q0"), Some(vec![0]));
    assert_eq!(reached(&world, &acme(), "", "q0"), Some(vec![10]));
    assert_eq!(reached(&world, &acme(), "", "q1"), Some(vec![]));
    let q0 = Destination::Queue(QueueName::at(&acme(), "q0").unwrap());
    world.bind(Binding::new(in_acme("amq.fanout"), q0, Bytes::new(), Vec::new()));
    world.bind(to_queue("amq.fanout", "", "q3"));
    assert_eq!(reached(&world, &VhostName::DEFAULT, "amq.fanout", ""), Some(vec![3]));
    assert_eq!(reached(&world, &acme(), "amq.fanout", ""), Some(vec![10]));
    assert_eq!(reached(&world, &VhostName::new("none").unwrap(), "", "q0"), None);
}

#[test]
fn nothing_leads_from_one_virtual_host_to_another() {
    let world = two_vhosts();
    let to = |destination| Binding::new(in_acme("amq.topic"), destination, Bytes::new(), Vec::new());
    for destination in [Destination::Queue(queue("q0")), Destination::Exchange(exchange("amq.direct"))] {
        assert_eq!(world.topology.decide_bind(to(destination)), Err(BindError::AcrossVhosts));
    }
    let spec = ExchangeSpec { alternate: Some(exchange("amq.direct")), ..plain(Matching::Direct) };
    let refused = world.topology.decide_declare(&in_acme("x"), spec);
    assert_eq!(refused, Err(DeclareError::AlternateElsewhere { name: in_acme("x") }));
    let none = VhostName::new("none").unwrap();
    let refused =
        world.topology.decide_declare(&ExchangeName::at(&none, "x").unwrap(), plain(Matching::Direct));
    assert_eq!(refused, Err(DeclareError::Vhost(VhostError::NotFound { name: none })));
}

#[test]
fn a_virtual_host_goes_with_its_exchanges_and_when_its_queues_have_gone() {
    let mut world = two_vhosts();
    let plan = world.topology.decide_declare(&in_acme("x"), plain(Matching::Fanout)).unwrap();
    world.carry_out(&plan);
    world.declare("x", plain(Matching::Fanout));
    let plan = world.topology.decide_delete_vhost(&acme()).unwrap();
    assert_eq!(world.carry_out(&plan), [TopologyRecord::DeleteVhost { name: acme() }]);
    assert_eq!(world.topology.exchanges().filter(|(name, _)| name.vhost() == acme()).count(), 0);
    assert!(world.has("x"));
    assert_eq!(reached(&world, &acme(), "", "q0"), None);
    assert!(world.topology.decide_delete_vhost(&acme()).unwrap().is_empty(), "it has begun");
    assert!(world.topology.decide_vhost_gone(&acme()).is_empty(), "it has a queue");
    let plan = world.topology.decide_queue_removed(&QueueName::at(&acme(), "q0").unwrap());
    world.carry_out(&plan);
    let plan = world.topology.decide_vhost_gone(&acme());
    assert_eq!(world.carry_out(&plan), [TopologyRecord::VhostGone { name: acme() }]);
    let gone = VhostError::NotFound { name: acme() };
    assert_eq!(world.topology.decide_delete_vhost(&acme()), Err(gone.clone()));
    assert_eq!(world.topology.open_vhost(&acme()), Err(gone));
    assert_eq!(world.publish("", "q0"), [0]);
}

#[test]
fn a_virtual_host_has_a_limit_of_queues() {
    let mut world = two_vhosts();
    let spec = VhostSpec { max_queues: Some(1), ..VhostSpec::default() };
    let plan = world.topology.decide_put_vhost(&acme(), spec).unwrap();
    world.carry_out(&plan);
    let full = VhostError::QueueLimit { name: acme(), max: 1 };
    assert_eq!(world.topology.check_new_queue(&acme()), Err(full));
    assert_eq!(world.topology.check_new_queue(&VhostName::DEFAULT), Ok(()));
    let plan = world.topology.decide_queue_removed(&QueueName::at(&acme(), "q0").unwrap());
    world.carry_out(&plan);
    assert_eq!(world.topology.check_new_queue(&acme()), Ok(()));
}

#[test]
fn what_is_said_about_a_virtual_host_has_limits() {
    let topology = Topology::new();
    for spec in [
        VhostSpec { description: "x".repeat(5000), ..VhostSpec::default() },
        VhostSpec { description: "two\nlines".into(), ..VhostSpec::default() },
        VhostSpec { tags: vec!["x".into(); 65], ..VhostSpec::default() },
        VhostSpec { tags: vec!["x".repeat(256)], ..VhostSpec::default() },
    ] {
        assert!(topology.decide_put_vhost(&acme(), spec).is_err());
    }
}

/// As it was written before there were virtual hosts.
#[test]
fn an_old_snapshot_is_all_in_the_default() {
    let mut old = crate::wire::Writer::with_capacity(64);
    old.version(1);
    old.u64(1);
    old.text("x");
    plain(Matching::Topic).encode(&mut old);
    old.u64(0);
    let topology = Topology::restore(&old.into_bytes()).unwrap();
    assert_eq!(topology.vhosts().count(), 1);
    assert_eq!(topology.spec(&exchange("x")), Some(&plain(Matching::Topic)));
    assert!(topology.spec(&exchange("amq.topic")).is_some());
}
