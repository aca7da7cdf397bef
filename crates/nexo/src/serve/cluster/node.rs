//! A node of a cluster, while it runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nexo_admin::ClusterRefused;
use nexo_broker::Broker;
use nexo_broker::cluster_nodes::Nodes;
use nexo_broker::replication::{ChangeError, Replication, Role};
use nexo_net::{Gate, Tunnels};
use nexo_peer::{Forwarder, Peers, Purpose};
use nexo_types::NodeId;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::node_file::{Membership, NodeFile};
use super::request::{Answer, Asker, Request, ask};

/// How long an answer of the leader may take: it may wait for a majority, or for another to lead.
const LEADER_ANSWER_MAX: Duration = Duration::from_secs(20);
/// Questions of other nodes that are answered at the same time.
const ANSWERS_MAX: usize = 64;

/// A node.
#[derive(Debug)]
pub(crate) struct ClusterNode {
    pub(super) broker: Broker,
    pub(super) replication: Replication,
    pub(super) peers: Peers,
    pub(super) forwarder: Arc<Forwarder>,
    pub(super) tunnels: Tunnels,
    pub(super) membership: Membership,
    pub(super) file: Mutex<NodeFile>,
    pub(super) data_dir: PathBuf,
    /// Addresses of all nodes that were ever known. One that has left is still told so.
    pub(super) addresses: Mutex<BTreeMap<NodeId, String>>,
    /// Connections that others have passed on to this node.
    pub(super) tunnels_taken: AtomicU64,
    pub(super) is_draining: AtomicBool,
    pub(super) answers: Semaphore,
    /// Its data is damaged, and the others have let it in as another node: it is to be started anew.
    pub(super) replaced: CancellationToken,
    /// Something has changed that the upkeep should look at now.
    pub(super) wake: Notify,
}

impl ClusterNode {
    pub(super) fn new(
        (broker, replication): (Broker, Replication),
        (peers, forwarder): (Peers, Arc<Forwarder>),
        tunnels: Tunnels,
        (file, membership): (NodeFile, Membership),
        (data_dir, addresses): (PathBuf, BTreeMap<NodeId, String>),
    ) -> Self {
        Self {
            broker,
            replication,
            peers,
            forwarder,
            tunnels,
            membership,
            file: Mutex::new(file),
            data_dir,
            addresses: Mutex::new(addresses),
            tunnels_taken: AtomicU64::new(0),
            is_draining: AtomicBool::new(false),
            answers: Semaphore::new(ANSWERS_MAX),
            replaced: CancellationToken::new(),
            wake: Notify::new(),
        }
    }

    /// Where clients of this node are served.
    pub(crate) fn gate(&self) -> Arc<dyn Gate> {
        Arc::clone(&self.forwarder) as Arc<dyn Gate>
    }

    /// Who this node is.
    pub(super) const fn id(&self) -> NodeId {
        self.membership.node
    }

    /// Its name.
    pub(super) fn name(&self) -> String {
        self.file.lock().name.as_str().to_owned()
    }

    /// All nodes, as far as this one knows.
    pub(super) fn nodes(&self) -> Nodes {
        self.broker.nodes()
    }

    /// The name of a node, or its number if it has none here.
    pub(super) fn name_of(&self, id: NodeId) -> String {
        self.nodes().by_id(id).map_or_else(|| format!("node {id}"), |node| node.name.as_str().to_owned())
    }

    /// Whether this node leads.
    pub(crate) fn is_leading(&self) -> bool {
        self.replication.role().is_leading()
    }

    /// Returns when this node is to be started anew, because its data is damaged and comes from the others.
    pub(crate) async fn until_to_be_restarted(&self) {
        self.replaced.cancelled().await;
    }

    /// Tells of every change of what this node is.
    pub(crate) fn watch_role(&self) -> watch::Receiver<Role> {
        self.replication.watch_role()
    }

    /// Who leads, if that is known.
    pub(super) fn leader(&self) -> Option<NodeId> {
        match self.replication.role() {
            Role::Leading { .. } => Some(self.id()),
            Role::Following { leader } => leader,
        }
    }

    /// Whether it was taken out of the cluster.
    pub(super) fn is_removed(&self) -> bool {
        let nodes = self.nodes();
        !nodes.is_empty() && nodes.by_id(self.id()).is_none()
    }

    /// Asks another node, which does not ask anybody else.
    pub(super) async fn ask(
        &self,
        to: NodeId,
        request: &Request,
        patience: Duration,
    ) -> Result<Answer, ClusterRefused> {
        self.ask_as(Asker::Another, to, request, patience).await
    }

    async fn ask_as(
        &self,
        asker: Asker,
        to: NodeId,
        request: &Request,
        patience: Duration,
    ) -> Result<Answer, ClusterRefused> {
        let unavailable =
            |reason: String| ClusterRefused::Unavailable(format!("node '{}': {reason}", self.name_of(to)));
        let asked = async {
            let stream = self.peers.open(to, Purpose::Request).await.map_err(|error| error.to_string())?;
            ask(stream, request, asker, patience).await
        };
        let answer = tokio::time::timeout(patience, asked).await;
        let answer =
            answer.unwrap_or_else(|_| Err(format!("there is no answer within {} s", patience.as_secs())));
        match answer.map_err(unavailable)? {
            Answer::Refused(refused) => Err(refused),
            answer => Ok(answer),
        }
    }

    /// Asks the leader, which may be this node.
    pub(super) async fn ask_leader(&self, request: Request) -> Result<Answer, ClusterRefused> {
        match self.leader() {
            Some(leader) if leader == self.id() => self.lead(request).await,
            Some(leader) => self.ask(leader, &request, LEADER_ANSWER_MAX).await,
            None => Err(no_leader()),
        }
    }

    /// Has any other node ask the leader: this one may not know who that is, because the leader cannot reach it.
    pub(super) async fn ask_around(&self, request: &Request) -> Result<Answer, ClusterRefused> {
        let mut refused = no_leader();
        for other in self.nodes().iter().filter(|node| node.id != self.id()) {
            match self.ask_as(Asker::Itself, other.id, request, LEADER_ANSWER_MAX).await {
                Err(unavailable @ ClusterRefused::Unavailable(_)) => refused = unavailable,
                answered => return answered,
            }
        }
        Err(refused)
    }

    /// Hands leadership over, if this node has it, so that it can be stopped.
    pub(crate) async fn step_down(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
        if !self.is_leading() || self.replication.status().members.iter().filter(|it| it.is_voter).count() < 2
        {
            return;
        }
        match self.replication.transfer(None).await {
            Ok(()) => {
                let leader = self.leader().map(|leader| self.name_of(leader));
                tracing::info!(leader, "leadership is handed over");
            }
            Err(error) => {
                tracing::warn!(%error, "leadership could not be handed over; another node is elected in a moment")
            }
        }
    }

    /// Ends the connections with other nodes.
    pub(crate) async fn close(&self) {
        self.peers.close().await;
    }
}

/// What is said where nobody leads.
pub(super) fn no_leader() -> ClusterRefused {
    ClusterRefused::Unavailable(
        "no node is known to lead the cluster; a majority of its nodes must be up".to_owned(),
    )
}

/// Why a change of the group is refused, for whoever asked for it.
pub(super) fn refused(error: &ChangeError) -> ClusterRefused {
    match error {
        ChangeError::Refused(_) => ClusterRefused::Refused(error.to_string()),
        ChangeError::NotLeader { .. } | ChangeError::Unknown | ChangeError::NotTaken => {
            ClusterRefused::Unavailable(error.to_string())
        }
    }
}
