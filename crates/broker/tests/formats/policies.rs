//! Policies, operator policies and parameters, as format 7 has them, in the story that a fixture tells.

use std::sync::Arc;

use nexo_broker::policy::{ApplyTo, Policy, PolicyKind, PolicyRecord};
use nexo_broker::{Broker, QueueConfig};
use nexo_types::{Millis, VhostName};
use serde_json::{Value, json};

use crate::story::{ROUNDS, in_round, vhost_of};

fn policy(kind: PolicyKind, name: &str, pattern: &str, definition: &Value) -> Arc<Policy> {
    let terms = definition.as_object().unwrap().clone();
    Arc::new(Policy::new(kind, name, pattern, -3, ApplyTo::Queues, terms).unwrap())
}

fn put(kind: PolicyKind, vhost: &VhostName, name: &str, pattern: &str, definition: &Value) -> PolicyRecord {
    PolicyRecord::Put { kind, vhost: vhost.clone(), policy: policy(kind, name, pattern, definition) }
}

/// Queues that were there before their policies, and one that comes after them.
pub(crate) async fn tell(broker: &Broker, round: &str) {
    let (default, own) = (VhostName::DEFAULT, vhost_of(round));
    let base = QueueConfig { ttl: Some(Millis(9_000_000)), ..QueueConfig::default() };
    broker.create_queue(&in_round(round, "policy before"), base.clone()).await.unwrap();
    let pattern = format!("^{round} policy");
    let bounds = json!({"message-ttl": 8_000_000, "max-length": 9});
    let changes = [
        put(PolicyKind::Regular, &default, round, &pattern, &json!({"max-length": 7, "ha-mode": "all"})),
        put(PolicyKind::Operator, &default, round, &pattern, &bounds),
        put(PolicyKind::Regular, &own, "here", "", &json!({"visibility": 5000})),
        put(PolicyKind::Regular, &own, "gone", "", &json!({"visibility": 1})),
        PolicyRecord::Delete { kind: PolicyKind::Regular, vhost: own.clone(), name: "gone".into() },
        PolicyRecord::PutParameter {
            vhost: own.clone(),
            component: "federation-upstream".into(),
            name: "one".into(),
            value: r#"{"uri":"amqp://"}"#.into(),
        },
        PolicyRecord::PutParameter {
            vhost: own.clone(),
            component: "c".into(),
            name: "gone".into(),
            value: "1".into(),
        },
        PolicyRecord::DeleteParameter { vhost: own, component: "c".into(), name: "gone".into() },
        PolicyRecord::PutGlobal { name: round.into(), value: "[1]".into() },
        PolicyRecord::PutGlobal { name: "gone".into(), value: "1".into() },
        PolicyRecord::DeleteGlobal { name: "gone".into() },
    ];
    broker.change_policies(&changes).await.unwrap();
    broker.create_queue(&in_round(round, "policy after"), base).await.unwrap();
}

/// Checks everything. Queues that only this story has are gone afterwards, if they were there.
pub(crate) async fn check(broker: &Broker) {
    check_policies(broker);
    for round in ROUNDS {
        for text in ["policy before", "policy after"] {
            let queue = in_round(round, text);
            let Ok(stats) = broker.queue_stats(&queue) else { continue };
            let config = stats.config;
            assert_eq!((config.ttl, config.max_messages), (Some(Millis(8_000_000)), Some(7)), "{text}");
            assert_eq!((config.base().ttl, config.base().max_messages), (Some(Millis(9_000_000)), None));
            broker.delete_queue(&queue).await.unwrap();
        }
    }
}

fn check_policies(broker: &Broker) {
    let policies = broker.policies();
    assert_eq!(policies.policies(PolicyKind::Regular).count(), 2 * ROUNDS.len());
    assert_eq!(policies.policies(PolicyKind::Operator).count(), ROUNDS.len());
    assert_eq!((policies.parameters().count(), policies.globals().len()), (ROUNDS.len(), ROUNDS.len()));
    for round in ROUNDS {
        let kept = policies.policy(PolicyKind::Regular, &VhostName::DEFAULT, round).unwrap();
        let expected = json!({"max-length": 7, "ha-mode": "all"});
        let pattern = format!("^{round} policy");
        assert_eq!(*kept, policy(PolicyKind::Regular, round, &pattern, &expected));
        let value = policies.parameter(&vhost_of(round), "federation-upstream", "one").unwrap();
        assert_eq!((&**value, &*policies.globals()[round]), (r#"{"uri":"amqp://"}"#, "[1]"));
        let plain = nexo_types::QueueName::at(&vhost_of(round), "plain").unwrap();
        assert_eq!(broker.queue_stats(&plain).unwrap().config.visibility, Millis(5000));
    }
}
