//! A bug in the middle of something: the node takes no part any more, says so, and the others go on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nexo_log::Urgency;

use super::*;
use crate::journal::{Journal, TicketError};
use crate::replication::GroupJournal;
use crate::replication::state::Memory;
use crate::stats::Health;

/// Whoever has the lock of the group's state panics.
fn panic_with_the_state(broker: &Broker) {
    let replica = Arc::clone(&broker.replication().unwrap().0);
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _state = replica.state.lock();
        panic!("a test wants this");
    }));
    assert!(panicked.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_committed_when_a_leader_broke_is_never_told_as_safe() {
    let cluster = Cluster::of(3, 64 * 1024).await;
    let leader = cluster.lead(NodeId(1)).await;
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    let replica = Arc::clone(&leader.replication().unwrap().0);
    cluster.network.isolate(NodeId(1));
    let pushing = tokio::spawn({
        let leader = leader.clone();
        async move { push(&leader, "not committed".to_owned()).await }
    });
    let end = Instant::now() + PATIENCE;
    while replica.state.lock().pending.is_empty() {
        assert!(Instant::now() < end, "nothing is proposed");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Somebody who has proposed it and does not wait for it yet.
    let journal = GroupJournal(Arc::clone(&replica));
    let written = journal.so_far(Urgency::Synced);
    panic_with_the_state(&leader);
    assert!(!journal.is_safe(written));
    assert_eq!(journal.wait(written).await, Err(TicketError::Lost));
    assert!(!pushing.await.unwrap());
    // The driver has done its part by then.
    while !replica.state.lock().takes_no_part() || !replica.state.lock().pending.is_empty() {
        assert!(Instant::now() < end, "the node goes on");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!journal.is_safe(written));
    assert_eq!(journal.wait(written).await, Err(TicketError::Lost));
    let change = leader.replication().unwrap().change(Change::Remove(NodeId(3))).await;
    assert_eq!(change, Err(ChangeError::NotLeader { leader: None }));
}

/// Gives something back while it is dropped.
struct Settles(Arc<super::super::Replica>);

impl Drop for Settles {
    fn drop(&mut self) {
        self.0.settle(&mut self.0.state.lock());
        // As whoever proposes something does. Now and then somebody else is at it.
        for _ in 0..100 {
            self.0.advance();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_panics_in_the_middle_of_something_is_replaced() {
    let cluster = Cluster::of(3, 64 * 1024).await;
    let leader = cluster.lead(NodeId(1)).await;
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    assert!(push(&leader, "before".to_owned()).await);
    panic_with_the_state(&leader);
    assert!(!push(&leader, "into nothing".to_owned()).await);
    let end = Instant::now() + PATIENCE;
    while !matches!(leader.health(), Health::Unhealthy { .. })
        || leader.replication().unwrap().role() != (Role::Following { leader: None })
    {
        assert!(Instant::now() < end, "{:?}", leader.health());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Maintenance may have been about to make it serve.
    let replica = Arc::clone(&leader.replication().unwrap().0);
    let term = replica.state.lock().group.term();
    replica.state.lock().memory = Memory::Promoted(term);
    assert!(!GroupJournal(replica).resume());
    let next = cluster.leader().await;
    assert_ne!(node_of(&next), NodeId(1));
    assert_eq!(drain(&next).await, ["before"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_back_by_a_task_that_panics_is_no_concern_of_the_group() {
    let cluster = Cluster::of(1, 64 * 1024).await;
    let leader = cluster.leader().await;
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    let replica = Arc::clone(&leader.replication().unwrap().0);
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _settles = Settles(replica);
        panic!("a test wants this");
    }));
    assert!(panicked.is_err());
    assert!(push(&leader, "afterwards".to_owned()).await);
    assert_eq!(leader.health(), Health::Ok);
}
