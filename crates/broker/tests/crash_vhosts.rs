//! The power is cut at every operation of the disk in one run that makes a virtual host with users, policies and queues, changes
//! it, deletes it and makes it again: what was answered is there, what was asked for and not answered is there as a whole or
//! not at all, and nothing names a virtual host that is gone.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::*;
use nexo_broker::access::{
    Access, AccessError, AccessRecord, HashAlgorithm, PasswordHash, PermissionTexts, User, UserName,
};
use nexo_broker::policy::{ApplyTo, Policies, Policy, PolicyKind, PolicyRecord};
use nexo_broker::topology::{DefaultQueueType, VhostSpec};
use nexo_broker::{Broker, BrokerOptions, ListRequest, NewMessage, QueueConfig};
use nexo_log::disk::FaultyDisk;
use nexo_types::{QueueName, VhostName};
use serde_json::{Value, json};

fn options() -> BrokerOptions {
    BrokerOptions { segment_bytes: 16 * 1024, ..BrokerOptions::new("faulty") }
}

fn vhost(text: &str) -> VhostName {
    VhostName::new(text).unwrap()
}

/// One thing that is asked for.
enum Step {
    Users(Vec<AccessRecord>),
    Policies(Vec<PolicyRecord>),
    Put(VhostName, VhostSpec),
    Delete(VhostName),
    Create(QueueName),
}

fn add(user: &str) -> Step {
    let hash = PasswordHash { algorithm: HashAlgorithm::SaltedSha256, hash: user.as_bytes().into() };
    let user = UserName::new(user).unwrap();
    Step::Users(vec![AccessRecord::Add { user, password: Some(hash), tags: BTreeSet::new() }])
}

fn permissions(user: &str, host: &str) -> AccessRecord {
    let (user, permissions) = (UserName::new(user).unwrap(), PermissionTexts::all());
    AccessRecord::SetPermissions { user, vhost: host.into(), permissions }
}

fn topics(user: &str, host: &str) -> AccessRecord {
    AccessRecord::SetTopics {
        user: UserName::new(user).unwrap(),
        vhost: host.into(),
        exchange: "amq.topic".into(),
        write: "^{username}".into(),
        read: ".*".into(),
    }
}

fn policy(host: &str, kind: PolicyKind, name: &str, definition: Value) -> Step {
    let Value::Object(terms) = definition else { panic!("{definition} is no object") };
    let policy = Arc::new(Policy::new(kind, name, "", 0, ApplyTo::Queues, terms).unwrap());
    Step::Policies(vec![PolicyRecord::Put { kind, vhost: vhost(host), policy }])
}

fn parameter(host: &str, value: &str) -> Step {
    let (vhost, value) = (vhost(host), value.into());
    Step::Policies(vec![PolicyRecord::PutParameter { vhost, component: "c".into(), name: "n".into(), value }])
}

fn queue(host: &str, name: &str) -> Step {
    Step::Create(QueueName::at(&vhost(host), name).unwrap())
}

/// All of it for `shop`; `kept` is there to stay as it is.
fn steps() -> Vec<Step> {
    let spec = VhostSpec {
        description: "orders".to_owned(),
        tags: vec!["live".to_owned()],
        default_queue_type: Some(DefaultQueueType::Quorum),
        max_connections: Some(7),
        max_queues: Some(5),
    };
    let tagged = VhostSpec { tags: vec!["live".to_owned(), "eu".to_owned()], ..spec.clone() };
    let limited = VhostSpec { max_connections: None, max_queues: Some(2), ..tagged.clone() };
    let again =
        VhostSpec { description: "again".to_owned(), max_connections: Some(1), ..VhostSpec::default() };
    let ann = || UserName::new("ann").unwrap();
    vec![
        add("ann"),
        add("bob"),
        Step::Put(vhost("kept"), VhostSpec { description: "stays".to_owned(), ..VhostSpec::default() }),
        Step::Users(vec![permissions("ann", "kept"), permissions("bob", "kept"), topics("ann", "kept")]),
        policy("kept", PolicyKind::Regular, "p", json!({"max-length": 9})),
        parameter("kept", "1"),
        Step::Put(vhost("shop"), spec),
        Step::Users(vec![permissions("ann", "shop")]),
        Step::Users(vec![permissions("bob", "shop"), topics("bob", "shop"), topics("ann", "shop")]),
        Step::Users(vec![AccessRecord::SetDefaultVhost { user: ann(), vhost: Some("shop".into()) }]),
        policy("shop", PolicyKind::Regular, "p", json!({"max-length": 10})),
        policy("shop", PolicyKind::Operator, "bound", json!({"max-length": 5})),
        parameter("shop", "{}"),
        queue("shop", "q"),
        queue("kept", "q"),
        Step::Put(vhost("shop"), tagged),
        Step::Put(vhost("shop"), limited),
        queue("shop", "r"),
        Step::Delete(vhost("shop")),
        Step::Put(vhost("shop"), again),
        Step::Users(vec![permissions("bob", "shop")]),
        queue("shop", "q"),
        Step::Delete(vhost("shop")),
    ]
}

/// What there should be, by the rules alone. `/` is always there.
#[derive(Clone, Default)]
struct Model {
    vhosts: BTreeMap<VhostName, VhostSpec>,
    access: Access,
    policies: Policies,
    queues: BTreeSet<String>,
}

impl Model {
    fn after(&self, step: &Step) -> Self {
        let mut next = self.clone();
        match step {
            Step::Users(changes) => next.change_access(changes),
            Step::Policies(changes) => next.change_policies(changes),
            Step::Put(name, spec) => {
                next.vhosts.insert(name.clone(), spec.clone());
            }
            Step::Delete(name) => {
                next.vhosts.remove(name);
                next.change_access(&[AccessRecord::ForgetVhost { vhost: name.as_str().into() }]);
                next.change_policies(&[PolicyRecord::ForgetVhost { vhost: name.clone() }]);
                let end = format!(" in vhost '{}'", name.as_str());
                next.queues.retain(|queue| !queue.ends_with(&end));
            }
            Step::Create(queue) => {
                next.queues.insert(queue.in_full().to_string());
            }
        }
        next
    }

    fn change_access(&mut self, changes: &[AccessRecord]) {
        let records: Result<_, AccessError> = self.access.decide_changes(nexo_types::Timestamp(5), changes);
        records.unwrap().iter().for_each(|record| self.access.replay(record));
    }

    fn change_policies(&mut self, changes: &[PolicyRecord]) {
        let records = self.policies.decide_changes(changes).unwrap();
        records.iter().for_each(|record| self.policies.replay(record));
    }

    fn seen(&self) -> Seen {
        Seen {
            vhosts: self.vhosts.clone(),
            users: users(&self.access),
            policies: self.policies.snapshot(),
            queues: self.queues.clone(),
        }
    }
}

/// Everything that is compared.
#[derive(Debug, PartialEq)]
struct Seen {
    vhosts: BTreeMap<VhostName, VhostSpec>,
    users: BTreeMap<UserName, Arc<User>>,
    policies: bytes::Bytes,
    queues: BTreeSet<String>,
}

impl Seen {
    fn of(broker: &Broker) -> Self {
        let vhosts = broker.vhosts().into_iter().filter(|one| !one.name.is_default());
        let all = broker.list_queues(&ListRequest { limit: 1000, ..ListRequest::default() });
        let queues = all.iter().filter(|queue| !queue.name.vhost().is_default());
        Self {
            vhosts: vhosts.map(|one| (one.name, one.spec)).collect(),
            users: users(&broker.access()),
            policies: broker.policies().snapshot(),
            queues: queues.map(|queue| queue.name.in_full().to_string()).collect(),
        }
    }
}

fn users(access: &Access) -> BTreeMap<UserName, Arc<User>> {
    access.users().map(|user| (user.name.clone(), Arc::clone(user))).collect()
}

/// What a run was told: what there is as answered, and as it is if what was asked for last has come to be.
#[derive(Default)]
struct Told {
    answered: Model,
    asked: Model,
    steps: usize,
}

async fn run(disk: &FaultyDisk) -> Told {
    let mut told = Told::default();
    let Ok(broker) = Broker::open_on(Arc::new(disk.clone()), options()) else { return told };
    // The script ends where the power goes.
    let _ = script(&broker, &mut told).await;
    broker.shutdown().await;
    told
}

async fn script(broker: &Broker, told: &mut Told) -> Result<(), ()> {
    let filler = name("filler");
    broker.create_queue(&filler, QueueConfig::default()).await.map_err(|_| ())?;
    for step in steps() {
        told.asked = told.answered.after(&step);
        ask(broker, &step).await?;
        told.answered = told.asked.clone();
        told.steps += 1;
        assert_eq!(Seen::of(broker), told.answered.seen(), "after step {}", told.steps);
        // Enough to fill segments, so that there are checkpoints in between.
        if told.steps.is_multiple_of(2) {
            let message = NewMessage::new("x".repeat(3000));
            broker.push(&filler, vec![message]).await.map_err(|_| ())?;
        }
    }
    Ok(())
}

async fn ask(broker: &Broker, step: &Step) -> Result<(), ()> {
    match step {
        Step::Users(changes) => broker.change_access(changes).await.map(drop).map_err(|_| ()),
        Step::Policies(changes) => broker.change_policies(changes).await.map(drop).map_err(|_| ()),
        Step::Put(name, spec) => broker.put_vhost(name, spec.clone()).await.map(drop).map_err(|_| ()),
        Step::Delete(name) => broker.delete_vhost(name).await.map(drop).map_err(|_| ()),
        Step::Create(queue) => {
            broker.create_queue(queue, QueueConfig::default()).await.map_err(|_| ())?;
            broker.push(queue, vec![NewMessage::new("x".repeat(500))]).await.map(drop).map_err(|_| ())
        }
    }
}

/// All virtual hosts that users, policies and parameters name.
fn named(broker: &Broker) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    for user in broker.access().users() {
        named.extend(user.permissions.keys().map(ToString::to_string));
        named.extend(user.topics.keys().map(|(vhost, _)| vhost.to_string()));
        named.extend(user.default_vhost.iter().map(ToString::to_string));
    }
    let policies = broker.policies();
    for kind in [PolicyKind::Regular, PolicyKind::Operator] {
        named.extend(policies.policies(kind).map(|(vhost, _)| vhost.as_str().to_owned()));
    }
    named.extend(policies.parameters().map(|(vhost, ..)| vhost.as_str().to_owned()));
    named
}

async fn check(told: &Told, disk: FaultyDisk, what: &str) {
    let broker = Broker::open_on(Arc::new(disk), options()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let there: BTreeSet<String> = broker.vhosts().iter().map(|one| one.name.as_str().to_owned()).collect();
    for named in named(&broker) {
        assert!(there.contains(&named), "{what}: vhost '{named}' is gone, and something names it");
    }
    let (found, answered, asked) = (Seen::of(&broker), told.answered.seen(), told.asked.seen());
    assert!(found.vhosts == answered.vhosts || found.vhosts == asked.vhosts, "{what}: {:#?}", found.vhosts);
    // Each step is there as a whole or not at all, the deletion of a virtual host too.
    let is_known = found == answered || found == asked;
    assert!(is_known, "{what}: {found:#?} after {} steps with {answered:#?}", told.steps);
    assert!(there.contains("/"), "{what}");
    broker.shutdown().await;
}

#[test]
fn a_virtual_host_and_all_that_names_it_go_together_wherever_the_power_goes() {
    let expect = |told: &Told| {
        assert_eq!(told.steps, steps().len(), "the script does what it should");
        let left = told.answered.seen();
        assert_eq!((left.vhosts.len(), left.queues.len()), (1, 1), "what stays");
    };
    cut_power_everywhere(&run, expect, &check);
}
