//! One node has a full disk, or a slow one: the others go on.

use nexo_log::disk::GateDisk;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_with_a_full_disk_hands_over_and_comes_back_when_there_is_room() {
    let cluster = Cluster::of(3, 128 * 1024).await;
    let full = cluster.lead(NodeId(1)).await;
    full.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    let disk = &cluster.disks[0];
    disk.set_bytes_max(Some(disk.used_bytes() + 64 * 1024));
    let (mut confirmed, mut number) = (BTreeSet::new(), 0);
    let end = Instant::now() + PATIENCE;
    // Publishers wait or are refused, and come through when another leads.
    while node_of(&cluster.leader().await) == NodeId(1) || confirmed.len() < 80 {
        assert!(Instant::now() < end, "{} were confirmed; {:?}", confirmed.len(), full.health());
        let body = format!("{number}-{}", "x".repeat(5_000));
        number += 1;
        let leader = cluster.leader().await;
        let pushed = tokio::time::timeout(Duration::from_secs(10), push(&leader, body.clone())).await;
        if pushed == Ok(true) {
            confirmed.insert(body);
        }
    }
    disk.set_bytes_max(None);
    cluster.in_step().await;
    let leader = cluster.lead(NodeId(1)).await;
    let found: BTreeSet<String> = drain(&leader).await.into_iter().collect();
    assert!(confirmed.is_subset(&found), "{} of {} are there", found.len(), confirmed.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_disk_does_not_answer_holds_nobody_up() {
    let mut cluster = Cluster::of(2, 1024 * 1024).await;
    let gate = Arc::new(GateDisk::default());
    cluster.gates.insert(NodeId(3), gate.clone());
    cluster.disks.push(Arc::new(FaultyDisk::new()));
    cluster.start(NodeId(3), ClusterStart::Join).await;
    cluster.add(NodeId(3)).await;
    cluster.in_step().await;
    let leader = cluster.lead(NodeId(1)).await;
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    gate.hold_syncs();
    for number in 0..200 {
        assert!(push(&leader, number.to_string()).await, "{number}");
    }
    assert!(leader.replication().unwrap().role().is_leading(), "it led all the time");
    let behind = leader.replication().unwrap().status();
    let matched = behind.members.iter().find(|member| member.node == NodeId(3)).unwrap().matched;
    assert!(matched < Some(behind.commit), "the slow one has promised nothing: {behind:?}");
    gate.open_gate();
    cluster.in_step().await;
    let leader = cluster.lead(NodeId(3)).await;
    assert_eq!(drain(&leader).await.len(), 200);
}
