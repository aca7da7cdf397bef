//! The power is cut at every operation of the disk while policies and virtual hosts change: what was answered is there, what was
//! asked for and not answered is there as a whole or not at all, and every queue is what its policies make of it.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::*;
use nexo_broker::policy::{
    ApplyTo, Policies, Policy, PolicyKind, PolicyRecord, QueueFacts, Subject, effective,
};
use nexo_broker::topology::VhostSpec;
use nexo_broker::{Broker, BrokerOptions, Health, NewMessage, QueueConfig, QueueKind};
use nexo_log::disk::FaultyDisk;
use nexo_types::{QueueName, VhostName};
use serde_json::{Value, json};

fn options() -> BrokerOptions {
    BrokerOptions { segment_bytes: 16 * 1024, ..BrokerOptions::new("faulty") }
}

fn shop() -> VhostName {
    VhostName::new("shop").unwrap()
}

fn queues() -> Vec<QueueName> {
    vec![name("a-1"), name("b-1"), QueueName::at(&shop(), "a-1").unwrap()]
}

fn put(vhost: VhostName, kind: PolicyKind, name: &str, pattern: &str, definition: Value) -> Step {
    let Value::Object(terms) = definition else { panic!("{definition} is no object") };
    let policy = Arc::new(Policy::new(kind, name, pattern, 0, ApplyTo::Queues, terms).unwrap());
    Step::Change(vec![PolicyRecord::Put { kind, vhost, policy }])
}

fn delete(vhost: VhostName, name: &str) -> Step {
    Step::Change(vec![PolicyRecord::Delete { kind: PolicyKind::Regular, vhost, name: name.into() }])
}

/// One thing that is asked for.
enum Step {
    Change(Vec<PolicyRecord>),
    PutVhost,
    DeleteVhost,
    Create(QueueName),
}

fn steps() -> Vec<Step> {
    let here = || VhostName::DEFAULT;
    let regular = PolicyKind::Regular;
    let parameter = |value: &str| PolicyRecord::PutParameter {
        vhost: here(),
        component: "c".into(),
        name: "n".into(),
        value: value.into(),
    };
    vec![
        Step::Create(name("a-1")),
        put(here(), regular, "a", "^a", json!({"max-length": 10, "message-ttl": 500_000})),
        Step::Create(name("b-1")),
        put(here(), PolicyKind::Operator, "bound", "", json!({"max-length": 5})),
        Step::PutVhost,
        put(shop(), regular, "all", "", json!({"visibility": 4000})),
        Step::Create(QueueName::at(&shop(), "a-1").unwrap()),
        Step::Change(vec![parameter("1"), PolicyRecord::PutGlobal { name: "g".into(), value: "{}".into() }]),
        put(here(), regular, "a", "^[ab]", json!({"max-length": 3, "overflow": "drop-head"})),
        put(shop(), regular, "more", "^a", json!({"expires": 900_000})),
        delete(shop(), "all"),
        Step::Change(vec![parameter("[2]"), PolicyRecord::DeleteGlobal { name: "g".into() }]),
        Step::DeleteVhost,
        delete(here(), "a"),
        Step::PutVhost,
        Step::Create(QueueName::at(&shop(), "a-1").unwrap()),
    ]
}

/// Everything that is said, to compare.
fn shown(policies: &Policies) -> bytes::Bytes {
    policies.snapshot()
}

/// What a run was told: the policies as answered, and as they are if what was asked for last has come to be.
#[derive(Default)]
struct Told {
    answered: Policies,
    asked: Policies,
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
    for (number, step) in steps().iter().enumerate() {
        match step {
            Step::Change(changes) => {
                told.asked = after(&told.answered, changes);
                broker.change_policies(changes).await.map_err(|_| ())?;
                // Where the power has gone meanwhile, the next start does the rest.
                if broker.health() == Health::Ok {
                    check_queues(broker, "while it runs");
                }
            }
            Step::PutVhost => {
                broker.put_vhost(&shop(), VhostSpec::default()).await.map_err(|_| ())?;
            }
            Step::DeleteVhost => {
                told.asked = after(&told.answered, &[PolicyRecord::ForgetVhost { vhost: shop() }]);
                broker.delete_vhost(&shop()).await.map_err(|_| ())?;
            }
            Step::Create(queue) => {
                broker.create_queue(queue, QueueConfig::default()).await.map_err(|_| ())?;
            }
        }
        told.answered = told.asked.clone();
        told.steps += 1;
        assert_eq!(shown(&broker.policies()), shown(&told.answered));
        // Enough to fill segments, so that there are checkpoints in between.
        if number % 2 == 0 {
            let message = NewMessage::new("x".repeat(3000));
            broker.push(&filler, vec![message]).await.map_err(|_| ())?;
        }
    }
    Ok(())
}

/// By the rules alone.
fn after(policies: &Policies, changes: &[PolicyRecord]) -> Policies {
    let mut policies = policies.clone();
    for record in policies.decide_changes(changes).unwrap() {
        policies.replay(&record);
    }
    policies
}

/// Every queue is what the policies that there are make of it.
fn check_queues(broker: &Broker, what: &str) {
    let policies = broker.policies();
    let facts = QueueFacts { kind: QueueKind::Native, names_overflow: false };
    for queue in queues() {
        let Ok(stats) = broker.queue_stats(&queue) else { continue };
        let pair = policies.of(&queue.vhost(), Subject::Queue { name: queue.as_str(), kind: facts.kind });
        let expected = effective(&QueueConfig::default(), &queue, facts, pair.settings().as_deref());
        assert_eq!(stats.config, expected, "{what}: {}", queue.in_full());
    }
}

async fn check(told: &Told, disk: FaultyDisk, what: &str) {
    let broker = Broker::open_on(Arc::new(disk), options()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = shown(&broker.policies());
    let is_known = found == shown(&told.answered) || found == shown(&told.asked);
    assert!(is_known, "{what}: {:#?} after {:#?}", &**broker.policies(), told.answered);
    check_queues(&broker, what);
    let by_vhost: BTreeMap<VhostName, usize> =
        broker.policies().policies(PolicyKind::Regular).fold(BTreeMap::new(), |mut all, (vhost, _)| {
            *all.entry(vhost.clone()).or_default() += 1;
            all
        });
    for vhost in by_vhost.keys() {
        assert!(broker.vhost(vhost).is_some(), "{what}: policies of '{vhost}', which is gone");
    }
    broker.shutdown().await;
}

#[test]
fn what_was_answered_is_there_and_in_effect_wherever_the_power_goes() {
    let expect = |told: &Told| {
        assert_eq!(told.steps, steps().len(), "the script does what it should");
        assert_eq!(told.answered.policies(PolicyKind::Operator).count(), 1);
    };
    cut_power_everywhere(&run, expect, &check);
}
