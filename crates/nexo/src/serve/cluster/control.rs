//! The cluster for the management port.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nexo_admin::{Answering, ClusterControl, ClusterFigures, ClusterRefused, ClusterReport, Drain, RemoveIf};

use super::node::ClusterNode;
use super::report::REMOVED;
use super::request::{Answer, Request};

/// How long a node may take to hand leadership over when it is drained.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// What the management port asks.
#[derive(Clone, Debug)]
pub(crate) struct Control(pub(crate) Arc<ClusterNode>);

impl ClusterControl for Control {
    fn report(&self) -> Answering<'_, ClusterReport> {
        Box::pin(self.0.report())
    }

    fn figures(&self) -> ClusterFigures {
        self.0.figures()
    }

    fn unready(&self) -> Option<String> {
        let node = &self.0;
        if node.is_removed() {
            return Some(REMOVED.to_owned());
        }
        if node.is_draining.load(Ordering::Relaxed) {
            return Some("this node is drained".to_owned());
        }
        node.leader().is_none().then(|| "no node is known to lead the cluster".to_owned())
    }

    fn transfer(&self, to: Option<String>) -> Answering<'_, Result<String, ClusterRefused>> {
        Box::pin(async move {
            match self.0.ask_leader(Request::Transfer { to }).await? {
                Answer::Leader(name) => Ok(name),
                _ => Err(other_answer()),
            }
        })
    }

    fn drain(&self, name: String, wanted: Drain) -> Answering<'_, Result<(), ClusterRefused>> {
        Box::pin(async move {
            let node = self.0.nodes().by_name(&name).map(|node| node.id);
            let id = node.ok_or(ClusterRefused::NoSuchNode(name))?;
            if id == self.0.id() {
                return self.0.drain_self(wanted).await;
            }
            self.0.ask(id, &Request::Drain { wanted }, DRAIN_MAX).await.map(drop)
        })
    }

    fn remove(&self, name: String, when: RemoveIf) -> Answering<'_, Result<(), ClusterRefused>> {
        Box::pin(async move { self.0.ask_leader(Request::Remove { name, when }).await.map(drop) })
    }
}

fn other_answer() -> ClusterRefused {
    ClusterRefused::Unavailable("the leader answers something else than was asked".to_owned())
}
