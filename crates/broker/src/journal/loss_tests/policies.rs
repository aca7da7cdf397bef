//! Policies over a loss: what they say of exchanges is in memory alone, and is there again before anybody publishes.

use nexo_core::policy::{ApplyTo, Policy, PolicyKind, PolicyRecord};
use nexo_core::topology::{Binding, Destination, NoHeaders};
use nexo_types::VhostName;
use serde_json::json;

use super::*;
use crate::workers::Work;

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_that_is_rebuilt_has_its_alternate_at_once() {
    let (broker, fake) = with_queue(QueueConfig::default()).await;
    let fanout = ExchangeName::new("amq.fanout").unwrap();
    let to = Destination::Queue(name("q"));
    broker.bind(Binding::new(fanout, to, "".into(), Vec::new())).await.unwrap();
    let terms = json!({"alternate-exchange": "amq.fanout"}).as_object().unwrap().clone();
    let (kind, vhost) = (PolicyKind::Regular, VhostName::DEFAULT);
    let policy = Policy::new(kind, "ae", "direct", 0, ApplyTo::Exchanges, terms).unwrap();
    let put = PolicyRecord::Put { kind, vhost, policy: Arc::new(policy) };
    broker.change_policies(&[put]).await.unwrap();
    let reached = || {
        let mut found = Vec::new();
        let vhost = VhostName::DEFAULT;
        broker.routes().publish(&vhost, "amq.direct", &[b"k"], &NoHeaders, &mut found).unwrap();
        found.len()
    };
    assert_eq!(reached(), 1);

    // Whatever a worker does afterwards, it does not do it now.
    let (release, released) = std::sync::mpsc::channel::<()>();
    broker.shared.workers.spawn(Work::Chore, move || {
        let _ = released.recv();
    });
    fake.set_pace(Pace::Held);
    let _ = broker.queue(&name("q")).unwrap().push(&NewMessage::new("lost"));
    while fake.pending() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    fake.lose_behind(0);
    fake.set_pace(Pace::AtOnce);
    rebuilt(&broker, &fake).await;
    assert_eq!(reached(), 1);
    drop(release);
    broker.shutdown().await;
}
