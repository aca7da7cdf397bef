//! How policies take effect, as only the broker's inside tells.

use std::collections::BTreeSet;
use std::sync::Arc;

use nexo_core::config::QueueConfig;
use nexo_core::policy::{ApplyTo, Policy, PolicyKind, PolicyRecord};
use nexo_log::disk::MemoryDisk;
use nexo_types::{QueueName, VhostName};
use serde_json::{Value, json};

use crate::broker::Broker;
use crate::options::BrokerOptions;

fn put(definition: Value) -> PolicyRecord {
    let Value::Object(terms) = definition else { panic!("no object") };
    let kind = PolicyKind::Regular;
    let policy = Policy::new(kind, "p", ".*", 0, ApplyTo::All, terms).unwrap();
    PolicyRecord::Put { kind, vhost: VhostName::DEFAULT, policy: Arc::new(policy) }
}

/// How many settings there are in memory, which queues share.
fn distinct_configs(broker: &Broker) -> usize {
    let cells = broker.shared.catalog.all();
    let places: BTreeSet<usize> =
        cells.iter().map(|cell| Arc::as_ptr(cell.state.lock().queue.shared_config()).addr()).collect();
    places.len()
}

#[tokio::test]
async fn ten_thousand_queues_under_a_policy_share_their_settings() {
    let broker = Broker::open_on(Arc::new(MemoryDisk::new()), BrokerOptions::new("memory")).unwrap();
    for number in 0..10_000 {
        let name = QueueName::new(&format!("q{number}")).unwrap();
        broker.create_queue(&name, QueueConfig::default()).await.unwrap();
    }
    assert_eq!(distinct_configs(&broker), 1);
    broker.change_policies(&[put(json!({"max-length": 5}))]).await.unwrap();
    assert_eq!(distinct_configs(&broker), 1);
    let name = QueueName::new("q77").unwrap();
    assert_eq!(broker.queue_stats(&name).unwrap().config.max_messages, Some(5));
    broker.pause_queue(&name, true).await.unwrap();
    assert_eq!(distinct_configs(&broker), 2);
    broker.pause_queue(&name, false).await.unwrap();
    assert_eq!(distinct_configs(&broker), 1);
    broker.shutdown().await;
}
