//! The clusters that are compared, each running alone with its data on the same disk.

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::nodes::NexoNodes;
use crate::nats::NatsCluster;
use crate::rabbitmq::RabbitCluster;
use crate::run::first_line;

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Contender {
    /// Three nodes of Nexo.
    Nexo,
    RabbitMq,
    Nats,
    /// Nexo by itself.
    Alone,
    /// Nexo as a cluster of one.
    One,
}

/// How a cluster is reached: a column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    Leader,
    Follower,
    RabbitMq,
    Nats,
    Alone,
    One,
}

impl Contender {
    pub(super) const ALL: [Self; 5] = [Self::Nexo, Self::RabbitMq, Self::Nats, Self::Alone, Self::One];

    /// Those who may be missing.
    pub(super) const fn is_rival(self) -> bool {
        matches!(self, Self::RabbitMq | Self::Nats)
    }

    /// Those of the second table.
    pub(super) const fn is_single(self) -> bool {
        matches!(self, Self::Alone | Self::One)
    }

    /// What kills a node comes last on the last of them.
    pub(super) const fn ways(self) -> &'static [Way] {
        match self {
            Self::Nexo => &[Way::Follower, Way::Leader],
            Self::RabbitMq => &[Way::RabbitMq],
            Self::Nats => &[Way::Nats],
            Self::Alone => &[Way::Alone],
            Self::One => &[Way::One],
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nexo => "Nexo, three nodes",
            Self::RabbitMq => "RabbitMQ quorum, three nodes",
            Self::Nats => "NATS JetStream R3",
            Self::Alone => "Nexo by itself",
            Self::One => "Nexo, a cluster of one",
        })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leader => "Nexo, at its leader",
            Self::Follower => "Nexo, through a follower",
            Self::RabbitMq => "RabbitMQ quorum",
            Self::Nats => "NATS JetStream R3",
            Self::Alone => "by itself",
            Self::One => "a cluster of one",
        })
    }
}

/// A node that runs.
pub(super) struct Node {
    pub(super) url: String,
    pub(super) pid: u32,
}

/// A cluster that was started, ended when dropped. Its leader is the first of its nodes.
pub(super) struct Cluster {
    pub(super) nodes: Vec<Node>,
    pub(super) version: String,
    _processes: Processes,
}

/// What has to be ended, which dropping it does.
#[expect(dead_code, reason = "they are only held")]
enum Processes {
    Nexo(NexoNodes),
    RabbitMq(RabbitCluster),
    Nats(NatsCluster),
}

impl Cluster {
    /// Starts the cluster of a contender with nothing in it.
    pub(super) fn start(contender: Contender, nexo: &Path) -> anyhow::Result<Self> {
        let of_nexo = |started: NexoNodes| -> anyhow::Result<Self> {
            let version = first_line(Command::new(nexo).arg("--version"))?;
            Ok(Self { nodes: started.nodes()?, version, _processes: Processes::Nexo(started) })
        };
        match contender {
            Contender::Nexo => of_nexo(NexoNodes::start(nexo, 3)?),
            Contender::One => of_nexo(NexoNodes::start(nexo, 1)?),
            Contender::Alone => of_nexo(NexoNodes::start(nexo, 0)?),
            Contender::RabbitMq => {
                let started = RabbitCluster::start(3).context("RabbitMQ")?;
                let nodes = started.nodes().iter().map(|node| Ok(Node { url: node.url(), pid: node.pid()? }));
                let nodes = nodes.collect::<anyhow::Result<_>>()?;
                let version = format!("RabbitMQ {}", started.nodes()[0].version()?);
                Ok(Self { nodes, version, _processes: Processes::RabbitMq(started) })
            }
            Contender::Nats => {
                let started = NatsCluster::start().context("NATS")?;
                let nodes = started.nodes().map(|(url, pid)| Node { url, pid }).collect();
                Ok(Self { nodes, version: started.version()?, _processes: Processes::Nats(started) })
            }
        }
    }

    /// Where a load connects.
    pub(super) fn url(&self, way: Way) -> &str {
        let at = match way {
            Way::Follower => 1,
            Way::Leader | Way::RabbitMq | Way::Nats | Way::Alone | Way::One => 0,
        };
        &self.nodes[at].url
    }
}
