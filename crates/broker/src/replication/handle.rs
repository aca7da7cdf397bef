//! What others may ask of a broker that is part of a cluster.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nexo_cluster::{Change, Refused};
use nexo_log::LogHealth;
use nexo_types::{LogIndex, NodeId, Term};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{oneshot, watch};

use super::state::{Arrival, Replica};
use super::{Role, driver};
use crate::threads::Threads;

/// What has come and was not looked at takes no more memory than this. An envelope may be larger by itself.
const INBOX_BYTES_MAX: usize = 64 * 1024 * 1024;
/// So long is waited for another node to lead.
const TRANSFER_MAX: Duration = Duration::from_secs(5);

/// A stream of bytes to another node.
pub trait NodeStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> NodeStream for T {}

/// Opens a stream to another node, for a whole state.
pub type StreamOpener = Box<dyn Fn(NodeId) -> OpeningStream + Send + Sync>;
type OpeningStream = Pin<Box<dyn Future<Output = std::io::Result<Box<dyn NodeStream>>> + Send>>;

/// Why something about the cluster cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChangeError {
    /// It has to be asked of another node, or there is no leader.
    #[error("this node does not lead the cluster")]
    NotLeader {
        /// Who leads, if that is known.
        leader: Option<NodeId>,
    },
    /// The group refuses it.
    #[error("{0}")]
    Refused(Refused),
    /// It was proposed, and whether it came to pass is not known: this node leads no more.
    #[error("this node was deposed before it was known whether the change came to pass")]
    Unknown,
    /// Nobody else took over in time.
    #[error("no other node has taken over the leadership in time")]
    NotTaken,
}

impl From<Refused> for ChangeError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NotLeader { leader } => Self::NotLeader { leader },
            other => Self::Refused(other),
        }
    }
}

/// How a member of the group stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member.
    pub node: NodeId,
    /// Whether it has a vote; otherwise it is catching up.
    pub is_voter: bool,
    /// As the leader knows it: the last entry that it has. Nothing on a node that does not lead.
    pub matched: Option<LogIndex>,
    /// As the leader knows it: it lacks entries, and has got none for two seconds.
    pub is_stuck: bool,
}

/// How the group stands, as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// This node.
    pub node: NodeId,
    /// What it is.
    pub role: Role,
    /// The latest term that it knows.
    pub term: Term,
    /// Who leads.
    pub leader: Option<NodeId>,
    /// The last entry that is known to be committed.
    pub commit: LogIndex,
    /// The last entry that was told as committed here.
    pub applied: LogIndex,
    /// The last entry, committed or not.
    pub last: LogIndex,
    /// Whether this node can write down what comes: its disk is not full, and its log has not failed.
    pub can_write: bool,
    /// The members.
    pub members: Vec<MemberStatus>,
    /// How often this node was elected since it was started.
    pub elections: u64,
    /// Whole states that it has sent to others.
    pub snapshots_sent: u64,
    /// Whole states that it has got.
    pub snapshots_received: u64,
    /// Bytes of those that it has sent.
    pub snapshot_bytes_sent: u64,
    /// Bytes of those that have come whole.
    pub snapshot_bytes_received: u64,
}

/// The part of a broker that takes part in a cluster. A clone is the same.
#[derive(Clone, Debug)]
pub struct Replication(pub(crate) Arc<Replica>);

impl Replication {
    /// What this node is.
    #[must_use]
    pub fn role(&self) -> Role {
        *self.0.role.borrow()
    }

    /// Tells of every change of that.
    #[must_use]
    pub fn watch_role(&self) -> watch::Receiver<Role> {
        self.0.role.subscribe()
    }

    /// Tells what was found of damage on the disk of this node, if others can mend it. It does not end by itself.
    #[must_use]
    pub fn watch_damage(&self) -> watch::Receiver<Option<String>> {
        self.0.damage.subscribe()
    }

    /// An envelope has come from another node. Never waits.
    pub fn receive(&self, from: NodeId, envelope: Bytes) {
        let mut inbox = self.0.inbox.lock();
        if inbox.bytes + envelope.len() > INBOX_BYTES_MAX && inbox.bytes > 0 {
            // It is as if it were lost on the way, which the group copes with.
            return;
        }
        inbox.bytes += envelope.len();
        inbox.arrivals.push((from, Arrival::Envelope(envelope)));
        drop(inbox);
        self.0.advance();
    }

    /// The connection over which envelopes came from another node has ended. Never waits.
    pub fn lost_contact(&self, from: NodeId) {
        self.0.inbox.lock().arrivals.push((from, Arrival::End));
        self.0.waker.wake();
    }

    /// Where envelopes for other nodes go. They may be lost there, but nobody may wait. Set once, before [`Self::start`].
    pub fn set_sender(&self, sender: Box<dyn Fn(NodeId, Vec<u8>) + Send + Sync>) {
        let _ = self.0.send.set(sender);
    }

    /// How a stream to another node is opened, for whole states. Set once, before [`Self::start`], on a runtime.
    pub fn set_streams(&self, opener: StreamOpener) {
        let _ = self.0.open_stream.set((tokio::runtime::Handle::current(), opener));
    }

    /// Takes part from now on.
    pub(crate) fn start(&self, threads: &Threads) -> std::io::Result<()> {
        {
            let mut state = self.0.state.lock();
            if std::mem::replace(&mut state.is_started, true) {
                return Ok(());
            }
            // Nobody else can lead, so nobody is waited for.
            if state.group.members().voters.iter().eq([&self.0.node]) {
                state.group.campaign();
                self.0.settle(&mut state);
                self.0.waker.wake();
            }
        }
        driver::start(&self.0, threads)
    }

    /// How the group stands.
    #[must_use]
    pub fn status(&self) -> GroupStatus {
        let role = self.role();
        let state = self.0.state.lock();
        let group = &state.group;
        let mut members = Vec::new();
        for node in group.members().all() {
            let matched = match role {
                Role::Leading { .. } if node == self.0.node => Some(group.last()),
                Role::Leading { .. } => group.progress().find(|(id, _)| *id == node).map(|(_, index)| index),
                Role::Following { .. } => None,
            };
            let is_voter = group.members().voters.contains(&node);
            members.push(MemberStatus { node, is_voter, matched, is_stuck: state.lags.is_stuck(node) });
        }
        GroupStatus {
            node: self.0.node,
            role,
            term: group.term(),
            leader: group.leader(),
            commit: group.commit(),
            applied: group.applied(),
            last: group.last(),
            can_write: !state.has_failed && self.0.log.health() == LogHealth::Ok,
            members,
            elections: state.elections,
            snapshots_sent: state.snapshots_sent,
            snapshots_received: state.snapshots_received,
            snapshot_bytes_sent: state.snapshot_bytes_sent,
            snapshot_bytes_received: state.snapshot_bytes_received,
        }
    }

    /// Changes who belongs to the group; returns when that is committed.
    ///
    /// # Errors
    /// If this node does not lead, the group refuses it, or the leader is lost meanwhile.
    pub async fn change(&self, change: Change) -> Result<(), ChangeError> {
        let receiver = {
            let mut state = self.0.state.lock();
            if state.takes_no_part() {
                return Err(ChangeError::NotLeader { leader: None });
            }
            let proposed = state.group.change_members(change);
            if proposed.is_err() {
                // What was proposed before it was given out all the same.
                self.0.settle(&mut state);
                self.0.waker.wake();
            }
            let id = proposed?;
            let (sender, receiver) = oneshot::channel();
            state.changes.push((id, sender));
            self.0.settle(&mut state);
            receiver
        };
        self.0.waker.wake();
        match receiver.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(ChangeError::Unknown),
        }
    }

    /// Hands leadership over, to one node or to whoever has most of the log; returns when another leads.
    ///
    /// # Errors
    /// If this node does not lead, there is nobody to hand over to, or nobody takes it in time.
    pub async fn transfer(&self, to: Option<NodeId>) -> Result<(), ChangeError> {
        let mut role = self.watch_role();
        {
            let mut state = self.0.state.lock();
            if state.takes_no_part() {
                return Err(ChangeError::NotLeader { leader: None });
            }
            let Some(to) = to.or_else(|| state.best_successor()) else { return Err(ChangeError::NotTaken) };
            state.group.hand_over(to)?;
            self.0.settle(&mut state);
        }
        self.0.waker.wake();
        let taken = role.wait_for(|role| matches!(role, Role::Following { leader: Some(_) }));
        match tokio::time::timeout(TRANSFER_MAX, taken).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(ChangeError::NotTaken),
        }
    }
}
