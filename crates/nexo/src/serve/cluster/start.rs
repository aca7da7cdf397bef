//! From what a broker is told to a node that takes part in its cluster.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use nexo_broker::cluster_nodes::NodeChange;
use nexo_broker::replication::{ClusterOptions, ClusterStart, NodeStream, Replication, Role};
use nexo_broker::{Broker, BrokerOptions};
use nexo_net::{Place, Tunnels};
use nexo_peer::{Forwarder, PeerHandler, PeerIdentity, PeerOptions, Peers, Purpose, Versions, follow};
use nexo_types::NodeId;
use tokio_util::sync::CancellationToken;

use super::clocks::offset_ms;
use super::incoming::Incoming;
use super::join::{Bootstrap, join};
use super::mend::{damaged, mend};
use super::newcomer;
use super::node::ClusterNode;
use super::node_file::{Membership, NodeFile, Stage};
use super::part::{Data, decide};
use super::settings::ClusterSettings;
use super::upkeep;

/// How long a start waits until somebody leads. Then it goes on: the other nodes may be started later.
const LEADER_MAX: Duration = Duration::from_secs(10);

/// How long a node that has just joined waits for the state of the others.
const STATE_MAX: Duration = Duration::from_secs(60);
/// How often it looks.
const GLANCE: Duration = Duration::from_millis(20);

/// A node that listens for others, and whose broker is not open yet.
pub(crate) struct Prepared {
    file: NodeFile,
    membership: Membership,
    others: BTreeMap<NodeId, String>,
    peers: Peers,
    incoming: Arc<Incoming>,
    data_dir: PathBuf,
    kept_log_bytes: u64,
}

impl Prepared {
    /// Finds out who this node is, and joins a cluster if it is to. `None` if the broker is by itself. The data is not
    /// touched.
    pub(crate) async fn new(
        settings: &ClusterSettings,
        broker: &BrokerOptions,
    ) -> anyhow::Result<Option<Self>> {
        let data_dir = broker.data_dir.as_path();
        let found = NodeFile::read(data_dir)?;
        let Some(node) = decide(settings, found.clone(), Data::of(data_dir), broker.sync)? else {
            return Ok(None);
        };
        let security = settings.security(&node.address)?;
        let file = match &node.stage {
            Stage::Asking { at } => {
                // First, so that it is the same node if it has to ask again.
                node.write(data_dir)?;
                // The first of them, so that no two nodes begin one.
                let is_first =
                    settings.bootstrap && at.first().is_some_and(|first| first == node.address.as_str());
                let bootstrap = if is_first { Bootstrap::IfAllAreNew } else { Bootstrap::Never };
                let listening = newcomer::listen(&node, settings, &security).await?;
                let joined = join(&node, at, &security, bootstrap).await;
                listening.close().await;
                let joined = joined?;
                joined.write(data_dir)?;
                joined
            }
            Stage::Damaged(_) | Stage::Replaced(_) => mend(node, settings, &security, data_dir).await?,
            Stage::Founding(_) | Stage::Joining(_) | Stage::Member(_) | Stage::Alone(_) => node,
        };
        let membership = file.stage.membership().context("a node that was let in has a number")?;
        let identity = PeerIdentity {
            cluster: membership.cluster,
            node: membership.node,
            name: file.name.as_str().to_owned(),
            advertise: file.address.as_str().to_owned(),
            versions: Versions::OWN,
            clock_offset_ms: offset_ms(),
        };
        let options = PeerOptions { listen: settings.listen(&file.address), identity, security };
        let incoming = Arc::new(Incoming::default());
        let peers = Peers::start(options, Arc::clone(&incoming) as Arc<dyn PeerHandler>).await?;
        for address in peers.addresses() {
            tracing::info!(%address, name = %file.name, node = %membership.node, "listening for other nodes");
        }
        if found.as_ref() != Some(&file) {
            file.write(data_dir)?;
        }
        let others = match &file.stage {
            Stage::Joining(_) => file.others.clone(),
            _ => BTreeMap::new(),
        };
        let (data_dir, kept_log_bytes) = (data_dir.to_owned(), settings.kept_log_bytes());
        Ok(Some(Self { file, membership, others, peers, incoming, data_dir, kept_log_bytes }))
    }

    /// How the broker takes part.
    pub(crate) const fn options(&self) -> ClusterOptions {
        let start = match &self.file.stage {
            Stage::Founding(_) => ClusterStart::New,
            Stage::Asking { .. } | Stage::Joining(_) | Stage::Replaced(_) => ClusterStart::Join,
            Stage::Member(_) | Stage::Damaged(_) => ClusterStart::Known,
            Stage::Alone(_) => ClusterStart::Alone,
        };
        ClusterOptions { node: self.membership.node, start, kept_log_bytes: self.kept_log_bytes }
    }

    /// The data of this node is damaged. Notes that, so that the next start asks the others to have it come back as another.
    ///
    /// # Errors
    /// If there are no others.
    pub(crate) async fn note_damaged(
        self,
        error: &nexo_broker::OpenError,
        settings: &ClusterSettings,
    ) -> anyhow::Result<()> {
        let knows_others = !self.file.others.is_empty() || !settings.join.is_empty();
        anyhow::ensure!(knows_others, "{error}, and no other node is known");
        tracing::error!("{error}; it is to come from the others");
        self.peers.close().await;
        damaged(&self.file).write(&self.data_dir)
    }

    /// Where it listens for other nodes.
    pub(crate) fn addresses(&self) -> &[std::net::SocketAddr] {
        self.peers.addresses()
    }

    /// Takes part from now on. Returns when somebody leads, or after a while. Runs until `stop` is cancelled.
    pub(crate) async fn begin(
        self,
        broker: &Broker,
        tunnels: Tunnels,
        stop: CancellationToken,
    ) -> anyhow::Result<Arc<ClusterNode>> {
        let replication = broker.replication().context("a broker of a cluster takes part in it")?;
        let forwarder =
            Arc::new(Forwarder::new(self.peers.clone(), follow(replication.watch_role(), place_of)));
        connect(&replication, &self.peers);
        let node = Arc::new(ClusterNode::new(
            (broker.clone(), replication.clone()),
            (self.peers, forwarder),
            tunnels,
            (self.file, self.membership),
            (self.data_dir, self.others),
        ));
        self.incoming.set(&node);
        node.connect();
        broker.start_replication().context("cannot start the threads of the cluster")?;
        until_led(&replication).await;
        node.until_informed().await;
        node.found().await?;
        tokio::spawn(upkeep::run(Arc::clone(&node), stop));
        Ok(node)
    }
}

/// Has envelopes and states go out over the connections to other nodes.
fn connect(replication: &Replication, peers: &Peers) {
    let sender = peers.clone();
    replication.set_sender(Box::new(move |to, envelope| sender.send(to, envelope)));
    let opener = peers.clone();
    replication.set_streams(Box::new(move |to| {
        let peers = opener.clone();
        Box::pin(async move {
            let stream = peers.open(to, Purpose::Snapshot).await;
            stream.map(|stream| Box::new(stream) as Box<dyn NodeStream>).map_err(io::Error::other)
        })
    }));
}

/// Where clients are served.
const fn place_of(role: &Role) -> Place {
    match role {
        Role::Leading { term } => Place::Here { term: *term },
        Role::Following { leader: Some(leader) } => Place::Node(*leader),
        Role::Following { leader: None } => Place::Nowhere,
    }
}

async fn until_led(replication: &Replication) {
    let mut role = replication.watch_role();
    let led = role.wait_for(|role| !matches!(role, Role::Following { leader: None }));
    if tokio::time::timeout(LEADER_MAX, led).await.is_err() {
        tracing::warn!(
            "no node leads the cluster after {} s: clients are turned away until a majority of its nodes is up",
            LEADER_MAX.as_secs()
        );
    }
}

impl ClusterNode {
    /// A node that has just joined knows nobody, and would let nobody in: it waits for the state of the others, for a while.
    async fn until_informed(&self) {
        if !matches!(self.file.lock().stage, Stage::Joining(_)) {
            return;
        }
        let informed = async {
            while self.nodes().by_id(self.id()).is_none() {
                tokio::time::sleep(GLANCE).await;
            }
        };
        if tokio::time::timeout(STATE_MAX, informed).await.is_err() {
            tracing::warn!(
                "the state of the cluster is not here after {} s; nobody can log in until it is",
                STATE_MAX.as_secs()
            );
        }
    }

    /// Notes the first node of a cluster.
    async fn found(&self) -> anyhow::Result<()> {
        let (name, address, join, stage) = {
            let file = self.file.lock();
            (file.name.clone(), file.address.clone(), file.join, file.stage.clone())
        };
        match stage {
            Stage::Founding(_) => {}
            Stage::Alone(_) => return self.forget_others().await,
            Stage::Asking { .. }
            | Stage::Joining(_)
            | Stage::Member(_)
            | Stage::Damaged(_)
            | Stage::Replaced(_) => return Ok(()),
        }
        let added = self.broker.change_nodes(&NodeChange::Add { name, address, join }).await;
        let added = added.context("the first node of the cluster could not be noted")?;
        anyhow::ensure!(
            added.id == self.id(),
            "this data was part of another cluster; its nodes count on, and the first one is node {}",
            added.id
        );
        Ok(())
    }

    /// Removes all other nodes. They are no members any more.
    async fn forget_others(&self) -> anyhow::Result<()> {
        for other in self.nodes().iter().filter(|node| node.id != self.id()) {
            let removed = self.broker.change_nodes(&NodeChange::Remove { name: other.name.clone() }).await;
            removed.with_context(|| format!("node '{}', which is gone, could not be removed", other.name))?;
            tracing::warn!(node = %other.name, "a node that is gone for good is removed");
        }
        Ok(())
    }
}
