//! A node that is in no cluster yet listens while it asks to be let in, and says that it is new. So the first of several new nodes knows when
//! it may begin a cluster: when all others are there and none of them was ever in one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nexo_peer::{
    ClusterId, PeerHandler, PeerIdentity, PeerOptions, PeerSecurity, PeerStream, Peers, Purpose, Versions,
    read_message, write_message,
};
use nexo_types::NodeId;
use tokio::sync::Semaphore;

use super::clocks::offset_ms;
use super::node_file::NodeFile;
use super::request::{Answer, parse};
use super::settings::ClusterSettings;

/// How long a question may take to come whole.
const QUESTION_MAX: Duration = Duration::from_secs(5);
/// Questions that are answered at the same time.
const ANSWERS_MAX: usize = 64;

/// Says to all who ask that this node is new.
#[derive(Debug)]
struct Newcomer(Arc<Semaphore>);

impl PeerHandler for Newcomer {
    fn envelope(&self, _: NodeId, _: Bytes) {}

    fn stream(&self, _: Option<NodeId>, purpose: Purpose, stream: PeerStream) {
        let Ok(turn) = Arc::clone(&self.0).try_acquire_owned() else { return };
        if purpose == Purpose::Request {
            tokio::spawn(async move {
                say_new(stream).await;
                drop(turn);
            });
        }
    }
}

async fn say_new(mut stream: PeerStream) {
    let Ok(Ok(question)) = tokio::time::timeout(QUESTION_MAX, read_message(&mut stream)).await else {
        return;
    };
    let answer = parse(&question).map_or_else(Answer::Refused, |_| Answer::New);
    let Ok(bytes) = serde_json::to_vec(&answer) else { return };
    // Who does not hear it asks again.
    let _ = tokio::time::timeout(QUESTION_MAX, write_message(&mut stream, &bytes)).await;
}

/// Listens as a node that is in no cluster.
pub(super) async fn listen(
    node: &NodeFile,
    settings: &ClusterSettings,
    security: &PeerSecurity,
) -> anyhow::Result<Peers> {
    let identity = PeerIdentity {
        // No cluster and no node have these.
        cluster: ClusterId([0; ClusterId::BYTES]),
        node: NodeId(0),
        name: node.name.as_str().to_owned(),
        advertise: node.address.as_str().to_owned(),
        versions: Versions::OWN,
        clock_offset_ms: offset_ms(),
    };
    let options =
        PeerOptions { listen: settings.listen(&node.address), identity, security: security.clone() };
    let newcomer = Newcomer(Arc::new(Semaphore::new(ANSWERS_MAX)));
    Ok(Peers::start(options, Arc::new(newcomer)).await?)
}
