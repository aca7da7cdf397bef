//! What goes wrong between nodes. The words of a refusal are the same on both sides, since each logs them.

use std::io;

use nexo_net::TlsError;
use nexo_types::NodeId;
use thiserror::Error;

use crate::hello::Versions;
use crate::identity::ClusterId;

/// Why a node cannot be spoken with.
#[derive(Debug, Error)]
pub enum PeerError {
    /// An address of this node cannot be had.
    #[error("cannot listen on {address} for other nodes: {source}")]
    Listen {
        /// The address that was asked for.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// The machine gives no thread.
    #[error("cannot start a thread for other nodes: {0}")]
    Thread(io::Error),
    /// Files of certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Nobody has said where it is.
    #[error("there is no node {0} that this node knows of")]
    Unknown(NodeId),
    /// There is no connection.
    #[error("cannot connect to '{address}': {source}")]
    Connect {
        /// The address of the other node.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// It does not answer.
    #[error("'{address}' does not answer within {seconds} s")]
    Late {
        /// The address of the other node.
        address: String,
        /// How long it had.
        seconds: u64,
    },
    /// It answers, and does not go on.
    #[error("'{address}' was reached, but {source}")]
    Hello {
        /// The address of the other node.
        address: String,
        /// Why not.
        source: HelloError,
    },
    /// This node has closed its connections.
    #[error("this node has closed its connections to others")]
    Closed,
}

/// Why two nodes do not go on after they have met.
#[derive(Debug, Error)]
pub enum HelloError {
    /// The connection has failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// It is something else.
    #[error("it is no node of Nexo")]
    NotANode,
    /// Only one of them has certificates.
    #[error("one of the two nodes speaks TLS and the other does not")]
    OneSpeaksTls,
    /// Bytes that mean nothing.
    #[error("what it says cannot be read: {0}")]
    Malformed(&'static str),
    /// They have no version in common.
    #[error(
        "the node that connects speaks {connecting} of the protocol between nodes and the other {other}; \
         update the older one to a release in between first"
    )]
    Version {
        /// What the one that connects knows.
        connecting: Versions,
        /// What the other knows.
        other: Versions,
    },
    /// One of them does not know the secret.
    #[error("the two nodes do not have the same cluster secret")]
    Secret,
    /// They are in different clusters.
    #[error("the node that connects is in the cluster {connecting} and the other in {other}")]
    Cluster {
        /// Of the one that connects.
        connecting: ClusterId,
        /// Of the other.
        other: ClusterId,
    },
    /// Two nodes have one number, or one has reached itself.
    #[error("both ends are node {0}")]
    SameNode(NodeId),
    /// Another node is at the address.
    #[error("it is node {found} and not node {expected}")]
    OtherNode {
        /// Whom it was meant for.
        expected: NodeId,
        /// Who is there.
        found: NodeId,
    },
    /// Who is in no cluster yet may ask, and nothing else.
    #[error("a node that is not in the cluster may only ask questions")]
    NotAMember,
    /// A later release asks for something that this one does not have.
    #[error("purpose {0} of a connection is not known to the node that was asked")]
    Purpose(u8),
    /// The other says why.
    #[error("it refused: {0}")]
    Refused(String),
}

impl HelloError {
    /// What the other side is told, if it can be told.
    pub(crate) fn to_tell(&self) -> Option<String> {
        match self {
            Self::Io(_) | Self::NotANode | Self::OneSpeaksTls | Self::Refused(_) => None,
            Self::Malformed(_)
            | Self::Version { .. }
            | Self::Secret
            | Self::Cluster { .. }
            | Self::SameNode(_)
            | Self::OtherNode { .. }
            | Self::NotAMember
            | Self::Purpose(_) => Some(self.to_string()),
        }
    }
}
