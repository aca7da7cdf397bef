//! Nodes in this process that write down what comes. A failure is a panic here, so that tests read as stories.

// Each test program uses its own part of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod certificates;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nexo_net::PeerStream;
use nexo_peer::{
    ClusterId, PeerHandler, PeerIdentity, PeerOptions, PeerSecurity, PeerStatus, Peers, Purpose, Secret,
    Versions,
};
use nexo_types::NodeId;
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// Longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const CLUSTER: ClusterId = ClusterId([7; 16]);

/// What came.
pub struct Recorder {
    pub envelopes: Mutex<Vec<(NodeId, Bytes)>>,
    /// Whose connections have ended.
    pub lost: Mutex<Vec<NodeId>>,
    streams: mpsc::UnboundedSender<Came>,
}

/// A stream that came.
pub type Came = (Option<NodeId>, Purpose, PeerStream);

impl PeerHandler for Recorder {
    fn envelope(&self, from: NodeId, envelope: Bytes) {
        self.envelopes.lock().push((from, envelope));
    }

    fn lost_contact(&self, from: NodeId) {
        self.lost.lock().push(from);
    }

    fn stream(&self, from: Option<NodeId>, purpose: Purpose, stream: PeerStream) {
        let _ = self.streams.send((from, purpose, stream));
    }
}

/// A node.
pub struct Node {
    pub peers: Peers,
    pub recorder: Arc<Recorder>,
    pub streams: mpsc::UnboundedReceiver<Came>,
}

pub fn secret(text: &str) -> PeerSecurity {
    PeerSecurity { secret: Some(Secret::new(text)), tls: None }
}

pub fn options(node: u64, listen: &str, security: PeerSecurity) -> PeerOptions {
    let identity = PeerIdentity {
        cluster: CLUSTER,
        node: NodeId(node),
        name: format!("node-{node}"),
        advertise: listen.to_owned(),
        versions: Versions::OWN,
        clock_offset_ms: 0,
    };
    PeerOptions { listen: vec![listen.to_owned()], identity, security }
}

impl Node {
    /// A node on a free port that knows the secret of all tests.
    pub async fn start(node: u64) -> Self {
        Self::start_with(options(node, "127.0.0.1:0", secret("hush"))).await
    }

    pub async fn start_with(options: PeerOptions) -> Self {
        let (sender, streams) = mpsc::unbounded_channel();
        let recorder =
            Arc::new(Recorder { envelopes: Mutex::default(), lost: Mutex::default(), streams: sender });
        let handler = Arc::clone(&recorder) as Arc<dyn PeerHandler>;
        let peers = Peers::start(options, handler).await.unwrap();
        Self { peers, recorder, streams }
    }

    pub fn id(&self) -> NodeId {
        self.peers.identity().node
    }

    pub fn address(&self) -> String {
        self.peers.addresses()[0].to_string()
    }

    /// Tells it of others.
    pub fn knows(&self, others: &[&Self]) {
        let others: BTreeMap<_, _> = others.iter().map(|other| (other.id(), other.address())).collect();
        self.peers.set_peers(&others);
    }

    /// Tells it of one at an address.
    pub fn knows_at(&self, node: u64, address: &str) {
        self.peers.set_peers(&BTreeMap::from([(NodeId(node), address.to_owned())]));
    }

    pub fn status_of(&self, node: u64) -> PeerStatus {
        self.peers.status().into_iter().find(|status| status.node == NodeId(node)).unwrap()
    }

    pub async fn is_connected_to(&self, node: u64) {
        eventually("the connection", || self.status_of(node).connected_since.is_some()).await;
    }

    /// Waits until the last failure to reach a node has these words.
    pub async fn cannot_speak_with(&self, node: u64, words: &str) {
        let has_failed = || self.status_of(node).last_error.is_some_and(|error| error.contains(words));
        eventually(&format!("'{words}'"), has_failed).await;
    }

    pub fn received(&self) -> Vec<Vec<u8>> {
        self.recorder.envelopes.lock().iter().map(|(_, envelope)| envelope.to_vec()).collect()
    }

    pub async fn next_stream(&mut self) -> Came {
        within(self.streams.recv()).await.expect("a stream")
    }
}

pub async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it takes too long")
}

/// Waits until `done` says so.
pub async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let poll = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, poll).await.is_ok(), "{what} did not happen");
}
