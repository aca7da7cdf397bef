//! What is in a directory of format 6: what format 3 has, and virtual hosts.

use nexo_broker::Broker;
use nexo_broker::topology::NoHeaders;
use nexo_types::{QueueName, VhostName};

use crate::common::*;
use crate::format_3;
use crate::story::{ROUNDS, vhost_of, vhost_spec};

/// Checks everything, and settles what clients hold.
pub(crate) async fn check(broker: &Broker, receipts: &[String]) {
    check_vhosts(broker).await;
    format_3::check(broker, receipts).await;
}

/// What is left after [`check`] and a restart.
pub(crate) async fn check_again(broker: &Broker) {
    check_vhosts(broker).await;
    format_3::check_again(broker).await;
}

async fn check_vhosts(broker: &Broker) {
    let names: Vec<VhostName> = broker.vhosts().into_iter().map(|vhost| vhost.name).collect();
    assert_eq!(names, [VhostName::DEFAULT, vhost_of("a"), vhost_of("b")]);
    for round in ROUNDS {
        let own = vhost_of(round);
        let vhost = broker.vhost(&own).unwrap();
        assert_eq!((vhost.spec, vhost.queues), (vhost_spec(round), 1));
        let queue = QueueName::at(&own, "plain").unwrap();
        assert_eq!(bodies(&broker.peek(&queue, 9).await.unwrap()), [format!("in vhost {round}")]);
        let id = broker.queue_stats(&queue).unwrap().id;
        for (exchange, key) in [("amq.direct", "key"), ("", "plain")] {
            let mut found = Vec::new();
            broker.routes().publish(&own, exchange, &[key.as_bytes()], &NoHeaders, &mut found).unwrap();
            assert_eq!(found, [id], "{round} '{exchange}'");
        }
    }
}
