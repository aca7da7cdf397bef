//! A majority of which one node lacks what the others do not keep any more.

use super::*;

const SEGMENT: u32 = 128 * 1024;

impl Cluster {
    /// Has these nodes write checkpoints until they keep no entry before this one.
    async fn purge(&self, nodes: [NodeId; 2], before: u64) {
        let end = Instant::now() + PATIENCE;
        for node in nodes {
            let broker = self.network.running(node).unwrap();
            let replica = broker.shared.replica.clone().unwrap();
            while replica.state.lock().group.purged().index.0 < before {
                let shared = Arc::clone(&broker.shared);
                tokio::task::spawn_blocking(move || shared.checkpoint_now()).await.unwrap();
                assert!(Instant::now() < end, "node {node} keeps everything");
            }
        }
    }
}

/// What becomes of the word that a state has been taken over.
#[derive(PartialEq, Eq)]
enum Answer {
    Heard,
    Lost,
}

/// The others elect one of them, who must give the one that lacks entries a state before anything can be committed.
#[tokio::test(flavor = "multi_thread")]
async fn the_leader_is_lost_while_another_node_is_far_behind() {
    lose_the_leader(Cluster::of(3, SEGMENT).await, Answer::Heard).await;
}

/// The leader asks again, and is told again. Nothing else would be said while nothing can be committed.
#[tokio::test(flavor = "multi_thread")]
async fn it_is_not_heard_that_a_node_has_taken_over_a_state() {
    let cluster = Cluster::of(3, SEGMENT).await;
    let network = Arc::clone(&cluster.network);
    lose_the_leader(cluster, Answer::Lost).await;
    assert!(network.lost.lock().is_none(), "it was lost");
}

async fn lose_the_leader(mut cluster: Cluster, answer: Answer) {
    let leader = cluster.lead(NodeId(1)).await;
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    cluster.in_step().await;
    cluster.crash(NodeId(3)).await;
    let last = leader.replication().unwrap().status().last.0;
    let mut confirmed = Vec::new();
    for number in 0..60 {
        let body = format!("{number}-{}", "x".repeat(20_000));
        assert!(push(&leader, body.clone()).await);
        confirmed.push(body);
        if number < 40 {
            assert_eq!(drain_and_settle(&leader).await, 1);
            confirmed.clear();
        }
    }
    cluster.in_step().await;
    cluster.purge([1, 2].map(NodeId), last + 1).await;

    drop(leader);
    cluster.crash(NodeId(1)).await;
    if answer == Answer::Lost {
        let is_answer = |from, body: &Body| from == NodeId(3) && matches!(body, Body::Appended { .. });
        *cluster.network.lost.lock() = Some(Box::new(is_answer));
    }
    cluster.start(NodeId(3), ClusterStart::Known).await;
    let successor = cluster.leader().await;
    assert_eq!(node_of(&successor), NodeId(2), "the other cannot have been elected");
    assert!(push(&successor, "more".into()).await);
    confirmed.push("more".into());
    cluster.in_step().await;
    drop(successor);

    cluster.start(NodeId(1), ClusterStart::Known).await;
    cluster.in_step().await;
    let third = cluster.lead(NodeId(3)).await;
    assert_eq!(drain(&third).await, confirmed);
}
