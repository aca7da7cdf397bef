//! The figures of a cluster for Prometheus, as one node knows them. The tables below are the whole list of what there is; a broker by
//! itself has none of them.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::cluster::{ClusterFigures, PeerFigures};

type Of<T, V> = (&'static str, &'static str, fn(&T) -> V);

const GAUGES: &[Of<ClusterFigures, u64>] = &[
    ("nexo_cluster_leading", "1 while this node leads", |c| c.is_leading.into()),
    ("nexo_cluster_has_leader", "1 while this node knows who leads", |c| c.has_leader.into()),
    ("nexo_cluster_term", "The latest term that this node knows", |c| c.term),
    ("nexo_cluster_commit_index", "The last entry that is known to be committed", |c| c.commit),
    ("nexo_cluster_applied_index", "The last committed entry that this node has taken over", |c| c.applied),
    ("nexo_cluster_last_index", "The last entry that this node has", |c| c.last),
    ("nexo_cluster_peers_connected", "Other nodes to which there is a connection", |c| {
        c.peers.iter().filter(|peer| peer.is_connected).count() as u64
    }),
];

const COUNTERS: &[Of<ClusterFigures, u64>] = &[
    ("nexo_cluster_elections", "Elections that this node has won", |c| c.elections),
    ("nexo_cluster_snapshots_sent", "Whole states sent to nodes that were far behind", |c| c.snapshots_sent),
    ("nexo_cluster_snapshots_received", "Whole states got from a leader", |c| c.snapshots_received),
    ("nexo_cluster_snapshot_sent_bytes", "Bytes of whole states sent", |c| c.snapshot_bytes_sent),
    ("nexo_cluster_snapshot_received_bytes", "Bytes of whole states got", |c| c.snapshot_bytes_received),
    ("nexo_cluster_forwarded_connections", "Connections of clients passed on to the leader", |c| {
        c.tunnels_opened
    }),
    ("nexo_cluster_forwarded_bytes", "Bytes passed on for clients, both ways", |c| c.tunnel_bytes),
    ("nexo_cluster_taken_connections", "Connections of clients that other nodes have passed on", |c| {
        c.tunnels_taken
    }),
];

const PEER_GAUGES: &[Of<PeerFigures, f64>] = &[
    ("nexo_cluster_peer_connected", "1 while there is a connection to the node", |p| {
        f64::from(u8::from(p.is_connected))
    }),
    ("nexo_cluster_peer_round_trip_seconds", "How long an answer of the node took", |p| p.round_trip_s),
    ("nexo_cluster_clock_skew_seconds", "How much the node's clock is ahead of this node's", |p| p.skew_s),
];

const PEER_COUNTERS: &[Of<PeerFigures, u64>] = &[
    ("nexo_cluster_peer_sent_bytes", "Bytes sent to the node", |p| p.bytes_sent),
    ("nexo_cluster_peer_received_bytes", "Bytes got from the node", |p| p.bytes_received),
    (
        "nexo_cluster_peer_dropped_messages",
        "Messages for the node that were dropped, to be sent again",
        |p| p.dropped,
    ),
];

impl Collector for ClusterFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, value) in GAUGES {
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value(self))?;
        }
        for (name, help, value) in COUNTERS {
            encoder
                .encode_descriptor(name, help, None, MetricType::Counter)?
                .encode_counter::<NoLabelSet, _, u64>(&value(self), None)?;
        }
        let help = "Entries that a follower does not have yet, as its leader knows";
        let mut lag =
            encoder.encode_descriptor("nexo_cluster_follower_lag_entries", help, None, MetricType::Gauge)?;
        for (node, entries) in &self.followers {
            lag.encode_family(&[("node", node.as_str())])?.encode_gauge(entries)?;
        }
        for (name, help, value) in PEER_GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for peer in &self.peers {
                metric.encode_family(&[("node", peer.name.as_str())])?.encode_gauge(&value(peer))?;
            }
        }
        for (name, help, value) in PEER_COUNTERS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for peer in &self.peers {
                metric
                    .encode_family(&[("node", peer.name.as_str())])?
                    .encode_counter::<NoLabelSet, _, u64>(&value(peer), None)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn followers_and_peers_are_told_by_name() {
        let figures = ClusterFigures {
            is_leading: true,
            term: 4,
            elections: 2,
            followers: vec![("b".to_owned(), 17)],
            peers: vec![PeerFigures {
                name: "b".to_owned(),
                is_connected: true,
                skew_s: -0.25,
                ..PeerFigures::default()
            }],
            ..ClusterFigures::default()
        };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(figures));
        let mut out = String::new();
        text::encode(&mut out, &registry).unwrap();
        for line in [
            "nexo_cluster_leading 1",
            "nexo_cluster_term 4",
            "nexo_cluster_peers_connected 1",
            "nexo_cluster_elections_total 2",
            "nexo_cluster_follower_lag_entries{node=\"b\"} 17",
            "nexo_cluster_clock_skew_seconds{node=\"b\"} -0.25",
        ] {
            assert!(out.lines().any(|known| known == line), "{line} is not in\n{out}");
        }
    }
}
