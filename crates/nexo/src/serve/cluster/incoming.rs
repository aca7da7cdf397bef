//! What other nodes bring to this one: envelopes, states, tunnels and questions, each to whom it is for.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use nexo_admin::ClusterRefused;
use nexo_peer::{PeerHandler, PeerStream, Purpose, TunnelHead, read_message, write_message};
use nexo_types::NodeId;

use super::node::ClusterNode;
use super::request::{Answer, parse};

/// How long a question may take to come whole.
const QUESTION_MAX: Duration = Duration::from_secs(5);

/// Brings what comes to the node, once there is one. Before, it is dropped: Raft sends again, and clients come again.
#[derive(Debug, Default)]
pub(super) struct Incoming(OnceLock<Weak<ClusterNode>>);

impl Incoming {
    pub(super) fn set(&self, node: &Arc<ClusterNode>) {
        let _ = self.0.set(Arc::downgrade(node));
    }

    fn node(&self) -> Option<Arc<ClusterNode>> {
        self.0.get().and_then(Weak::upgrade)
    }
}

impl PeerHandler for Incoming {
    fn envelope(&self, from: NodeId, envelope: Bytes) {
        if let Some(node) = self.node() {
            node.replication.receive(from, envelope);
        }
    }

    fn lost_contact(&self, from: NodeId) {
        if let Some(node) = self.node() {
            node.replication.lost_contact(from);
        }
    }

    fn stream(&self, from: Option<NodeId>, purpose: Purpose, stream: PeerStream) {
        let Some(node) = self.node() else { return };
        match (purpose, from) {
            (Purpose::Snapshot, Some(from)) => take_state(node, from, stream),
            (Purpose::Tunnel(head), Some(_)) => take_tunnel(&node, head, stream),
            (Purpose::Request, from) => {
                tokio::spawn(async move { answer(&node, from, stream).await });
            }
            // Envelopes come otherwise, and who is in no cluster may only ask.
            (Purpose::Raft, _) | (Purpose::Snapshot | Purpose::Tunnel(_), None) => {}
        }
    }
}

fn take_state(node: Arc<ClusterNode>, from: NodeId, stream: PeerStream) {
    tokio::spawn(async move {
        if let Err(error) = node.broker.receive_state(Box::new(stream)).await {
            tracing::warn!(%from, %error, "a whole state of the leader did not come through; it is sent again");
        }
    });
}

fn take_tunnel(node: &ClusterNode, head: TunnelHead, stream: PeerStream) {
    match node.tunnels.bring(head, stream) {
        Ok(()) => drop(node.tunnels_taken.fetch_add(1, Ordering::Relaxed)),
        Err(error) => {
            tracing::warn!(%error, client = %head.client, "a connection that another node passed on is closed")
        }
    }
}

/// Answers one question.
async fn answer(node: &ClusterNode, from: Option<NodeId>, mut stream: PeerStream) {
    let Ok(_turn) = node.answers.try_acquire() else { return };
    let question = match tokio::time::timeout(QUESTION_MAX, read_message(&mut stream)).await {
        Ok(Ok(question)) => question,
        Ok(Err(error)) => return tracing::debug!(?from, %error, "a question did not come whole"),
        Err(_) => return tracing::debug!(?from, "a question did not come whole in time"),
    };
    let answered = match parse(&question) {
        Ok(asked) => node.answer(from, asked).await,
        Err(refused) => Err(refused),
    };
    let answer = answered.unwrap_or_else(Answer::Refused);
    let Ok(bytes) = serde_json::to_vec(&answer) else { return };
    if let Err(error) = write_message(&mut stream, &bytes).await {
        tracing::debug!(?from, %error, "an answer could not be given");
    }
}

/// What whoever may not ask is told.
pub(super) fn not_a_member() -> ClusterRefused {
    ClusterRefused::Refused("only nodes of this cluster may ask that".to_owned())
}
