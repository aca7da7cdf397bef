//! Whose data it is: a broker by itself, or the only node of a cluster, which has its Raft group in the same log.

use nexo_broker::replication::{ClusterOptions, ClusterStart};
use nexo_broker::{Broker, BrokerOptions};
use nexo_types::NodeId;

use crate::common::*;

/// The number of the only node.
const NODE: NodeId = NodeId(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    ByItself,
    OfCluster,
}

impl Node {
    /// Opens a directory in which there is nothing yet.
    pub(crate) async fn begin(self, options: BrokerOptions) -> Broker {
        self.start(options, ClusterStart::New).await
    }

    /// Opens a directory that it has had before.
    pub(crate) async fn open(self, options: BrokerOptions) -> Broker {
        self.start(options, ClusterStart::Known).await
    }

    async fn start(self, options: BrokerOptions, start: ClusterStart) -> Broker {
        let cluster = match self {
            Self::ByItself => None,
            Self::OfCluster => Some(ClusterOptions { node: NODE, start, kept_log_bytes: 0 }),
        };
        // A cluster begins with a sync that is waited for, and no thread of the runtime may wait.
        let opened = tokio::task::spawn_blocking(move || Broker::open(BrokerOptions { cluster, ..options }));
        let broker = opened.await.unwrap().unwrap();
        if let Some(replication) = broker.replication() {
            broker.start_replication().unwrap();
            eventually("the only node leads", || replication.role().is_leading()).await;
        }
        broker
    }
}

/// Checks what a start has found of the group, which began before all that the fixture has: by the entries alone, without the
/// mark in the manifest, nobody would know the members.
pub(crate) fn check_group(broker: &Broker) {
    let status = broker.replication().unwrap().status();
    assert_eq!(status.node, NODE);
    let members: Vec<_> = status.members.iter().map(|member| (member.node, member.is_voter)).collect();
    assert_eq!(members, [(NODE, true)]);
    // It was elected when the cluster began, when the fixture was written on, and now.
    assert!(status.term.0 >= 3, "{status:?}");
    assert!(status.commit.0 > 100 && status.commit <= status.last, "{status:?}");
}
