//! One node has a full disk, or a slow one: the others go on.

use super::*;
use crate::stats::Health;

/// Pushes through whoever leads, until this is so. Gives back what was confirmed.
async fn push_until(cluster: &Cluster, mut is_over: impl FnMut() -> bool) -> BTreeSet<String> {
    let (mut confirmed, mut number) = (BTreeSet::new(), 0);
    let end = Instant::now() + PATIENCE;
    while !is_over() {
        assert!(Instant::now() < end, "{} were confirmed", confirmed.len());
        let body = number.to_string();
        number += 1;
        if push(&cluster.leader().await, body.clone()).await {
            confirmed.insert(body);
        }
    }
    confirmed
}

/// Node 1 has everything that was confirmed.
async fn assert_node_1_has(cluster: &Cluster, confirmed: &BTreeSet<String>) {
    cluster.in_step().await;
    let leader = cluster.lead(NodeId(1)).await;
    let found: BTreeSet<String> = drain(&leader).await.into_iter().collect();
    assert!(confirmed.is_subset(&found), "{} of {} are there", found.len(), confirmed.len());
}

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
    assert_node_1_has(&cluster, &confirmed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_disk_hangs_hands_over_and_comes_back_when_it_answers() {
    let (cluster, disks) = Cluster::gated(1024 * 1024).await;
    let slow = cluster.lead(NodeId(1)).await;
    slow.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    cluster.in_step().await;
    disks[0].hold_syncs();
    let leads = || slow.replication().unwrap().role().is_leading();
    let mut confirmed = push_until(&cluster, || !leads()).await;
    // The others go on without it.
    let before = Instant::now();
    confirmed.extend(push_until(&cluster, || before.elapsed() > Duration::from_secs(1)).await);
    assert!(!confirmed.is_empty());
    disks[0].open_gate();
    assert_node_1_has(&cluster, &confirmed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_syncs_take_much_longer_than_those_of_others_hands_over() {
    let (cluster, disks) = Cluster::gated(1024 * 1024).await;
    let slow = cluster.lead(NodeId(1)).await;
    slow.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    cluster.in_step().await;
    disks[0].slow_syncs(Duration::from_millis(200));
    let confirmed = push_until(&cluster, || !slow.replication().unwrap().role().is_leading()).await;
    assert_node_1_has(&cluster, &confirmed).await;
}

/// As where all nodes are on one machine.
#[tokio::test(flavor = "multi_thread")]
async fn leadership_stays_where_it_is_if_all_disks_are_slow() {
    let (cluster, disks) = Cluster::gated(1024 * 1024).await;
    let leader = cluster.lead(NodeId(1)).await;
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    cluster.in_step().await;
    let term = leader.replication().unwrap().status().term;
    let mut confirmed = 0;
    for slow_ms in [100, 200] {
        disks.iter().for_each(|disk| disk.slow_syncs(Duration::from_millis(slow_ms)));
        // Time enough to judge disks.
        let begin = Instant::now();
        confirmed += push_until(&cluster, || begin.elapsed() > Duration::from_secs(13)).await.len();
    }
    assert!(confirmed > 50, "{confirmed}");
    let status = leader.replication().unwrap().status();
    assert_eq!(status.role, Role::Leading { term }, "it led all the time");
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

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_with_a_full_disk_holds_nobody_up_and_catches_up_when_there_is_room() {
    let cluster = Cluster::of(3, 128 * 1024).await;
    let leader = cluster.lead(NodeId(1)).await;
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    cluster.in_step().await;
    let disk = &cluster.disks[2];
    disk.set_bytes_max(Some(disk.used_bytes() + 64 * 1024));
    let body = |number| format!("{number}-{}", "x".repeat(5_000));
    let mut confirmed = BTreeSet::new();
    for number in 0..150 {
        assert!(push(&leader, body(number)).await, "{number}");
        confirmed.insert(body(number));
    }
    // Both say so: the leader that it gets nothing, and the follower why.
    let full = cluster.network.running(NodeId(3)).unwrap();
    let end = Instant::now() + PATIENCE;
    loop {
        let status = leader.replication().unwrap().status();
        let stuck: Vec<u64> =
            status.members.iter().filter(|member| member.is_stuck).map(|member| member.node.0).collect();
        let can_write = full.replication().unwrap().status().can_write;
        if stuck == [3] && !can_write && matches!(full.health(), Health::DiskFull { .. }) {
            break;
        }
        assert!(Instant::now() < end, "{status:?}, {:?}", full.health());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for number in 150..200 {
        assert!(push(&leader, body(number)).await, "{number}");
        confirmed.insert(body(number));
    }
    assert!(leader.replication().unwrap().role().is_leading(), "it led all the time");

    disk.set_bytes_max(None);
    cluster.in_step().await;
    assert!(full.replication().unwrap().status().can_write);
    let leader = cluster.lead(NodeId(3)).await;
    let found: BTreeSet<String> = drain(&leader).await.into_iter().collect();
    assert_eq!(found, confirmed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_with_a_slow_disk_slows_nobody() {
    let (cluster, disks) = Cluster::gated(1024 * 1024).await;
    let leader = cluster.lead(NodeId(1)).await;
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    cluster.in_step().await;
    disks[2].slow_syncs(Duration::from_millis(500));
    let begin = Instant::now();
    for number in 0..100 {
        assert!(push(&leader, number.to_string()).await, "{number}");
    }
    assert!(
        begin.elapsed() < Duration::from_secs(25),
        "half of what its syncs would take: {:?}",
        begin.elapsed()
    );
    assert!(leader.replication().unwrap().role().is_leading(), "it led all the time");
    cluster.in_step().await;
    let leader = cluster.lead(NodeId(3)).await;
    assert_eq!(drain(&leader).await.len(), 100);
}
