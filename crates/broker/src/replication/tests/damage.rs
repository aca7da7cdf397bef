//! Damage on the disk of one of three nodes: nothing that was confirmed is lost, and nothing is dropped.

use super::*;
use crate::error::OpenError;

const SEGMENT: u32 = 128 * 1024;
const MESSAGES: usize = 66;

fn body(number: usize) -> String {
    format!("message-{number:04}-{}", "x".repeat(6_000))
}

/// Three nodes, with messages in several segments, and checkpoints on all of them.
async fn filled() -> Cluster {
    let cluster = Cluster::of(3, SEGMENT).await;
    let leader = cluster.lead(NodeId(1)).await;
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    for number in 0..MESSAGES {
        assert!(push(&leader, body(number)).await);
    }
    cluster.in_step().await;
    cluster.checkpoint_all().await;
    cluster
}

impl Cluster {
    /// Has every node write a checkpoint: messages before it are not in memory after a start.
    async fn checkpoint_all(&self) {
        let nodes = self.network.nodes.lock().clone();
        for (_, broker) in nodes {
            let shared = Arc::clone(&broker.shared);
            let written = tokio::task::spawn_blocking(move || shared.checkpoint_now()).await.unwrap();
            assert!(written);
        }
    }

    fn disk(&self, node: NodeId) -> &Arc<FaultyDisk> {
        &self.disks[node.0 as usize - 1]
    }

    /// Replaces a node that is not running by a new one, as whoever starts nodes does.
    async fn replace(&mut self, old: NodeId, new: NodeId) {
        self.change(Change::Remove(old)).await;
        self.disks.push(Arc::new(FaultyDisk::new()));
        assert_eq!(self.disks.len() as u64, new.0);
        self.start(new, ClusterStart::Join).await;
        self.add(new).await;
        self.in_step().await;
    }
}

/// How a disk is harmed.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Flip,
    Zero,
    Delete,
}

/// Where a message lies on a disk: in which file, and at which byte.
fn find(disk: &FaultyDisk, text: &str) -> (String, u64) {
    for name in disk.list("segments").unwrap() {
        let path = format!("segments/{name}");
        let file = disk.open(&path).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        if let Some(at) = bytes.windows(text.len()).position(|window| window == text.as_bytes()) {
            return (path, at as u64);
        }
    }
    panic!("{text} is nowhere on the disk");
}

impl Harm {
    fn strike(self, disk: &FaultyDisk, (path, at): &(String, u64)) {
        match self {
            Self::Flip => disk.flip_bit(path, *at as usize, 3),
            Self::Zero => {
                let file = disk.open(path).unwrap();
                let end = file.len().unwrap().min(at + 4096);
                file.write_at(&vec![0; (end - at) as usize], *at).unwrap();
                file.sync_data().unwrap();
            }
            Self::Delete => {
                disk.remove(path).unwrap();
                disk.sync_dir("segments").unwrap();
            }
        }
    }
}

/// Opens a disk as that of a node that is part of the cluster, which it does not reach.
async fn try_open(disk: Arc<FaultyDisk>, node: NodeId) -> Result<Broker, OpenError> {
    let options = options(node, ClusterStart::Known, SEGMENT, 0);
    tokio::task::spawn_blocking(move || Broker::open_on(disk, options)).await.unwrap()
}

/// Whether a start reads what lies there.
async fn is_behind_checkpoints(disk: &FaultyDisk, (path, at): &(String, u64)) -> bool {
    let broker = try_open(Arc::new(disk.restart(CutMode::Tear, 1)), NodeId(3)).await.unwrap();
    let latest = broker.shared.maintenance.last_manifest();
    let digits: String = path.chars().filter(char::is_ascii_digit).collect();
    let place = (digits.parse::<u32>().unwrap(), *at);
    latest.is_none_or(|latest| (latest.segment.0, u64::from(latest.byte)) < place)
}

/// Takes everything out of the queue, whoever leads.
async fn drain_anywhere(cluster: &Cluster) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let end = Instant::now() + PATIENCE;
    while found.len() < MESSAGES {
        assert!(Instant::now() < end, "{} of {MESSAGES} have come", found.len());
        let request = PopRequest {
            max: 10,
            wait: Millis(100),
            visibility: Some(Millis::from_secs(600)),
            bytes_max: None,
        };
        // Who has just been deposed refuses.
        let Ok(messages) = cluster.leader().await.pop(&queue(), request).await else { continue };
        for message in messages {
            found.insert(String::from_utf8(message.message.body.to_vec()).unwrap());
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_starts_with_a_hole_takes_no_part_and_comes_back_whole() {
    let mut cluster = filled().await;
    let mut pushed = MESSAGES;
    let place = loop {
        let leader = cluster.leader().await;
        // With others behind it, so that it is no write that was cut off.
        let text = format!("the last but ten, {pushed}");
        assert!(push(&leader, text.clone()).await);
        for number in 0..10 {
            assert!(push(&leader, format!("{number}-{}", "y".repeat(1_000))).await);
        }
        pushed += 11;
        assert!(pushed < 2 * MESSAGES + 200, "there is always a checkpoint behind it");
        cluster.in_step().await;
        cluster.crash(NodeId(3)).await;
        let place = find(cluster.disk(NodeId(3)), &text);
        if is_behind_checkpoints(cluster.disk(NodeId(3)), &place).await {
            break place;
        }
        // The node has written one since, which stands for it: a start does not read it.
        cluster.start(NodeId(3), ClusterStart::Known).await;
    };
    for harm in [Harm::Flip, Harm::Zero, Harm::Delete] {
        let disk = Arc::new(cluster.disk(NodeId(3)).restart(CutMode::Tear, 1));
        harm.strike(&disk, &place);
        let opened = try_open(disk, NodeId(3)).await.map(|broker| {
            let (stats, manifest) = (broker.stats().log, broker.shared.maintenance.last_manifest());
            format!("segments {}, damage {}, checkpoint {manifest:?}", stats.segments, stats.damage)
        });
        let is_refused = matches!(opened, Err(OpenError::Damaged { .. }));
        assert!(is_refused, "{harm:?} at {place:?}: {opened:?}");
    }
    cluster.replace(NodeId(3), NodeId(4)).await;
    let leader = cluster.lead(NodeId(4)).await;
    let bodies = drain(&leader).await;
    assert_eq!(bodies.len(), pushed);
    assert!((0..MESSAGES).all(|number| bodies.contains(&body(number))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_meets_damage_hands_over_and_drops_nothing() {
    for harm in [Harm::Flip, Harm::Zero] {
        let mut cluster = filled().await;
        // A start leaves messages on the disk, where they are harmed.
        cluster.crash(NodeId(1)).await;
        cluster.start(NodeId(1), ClusterStart::Known).await;
        cluster.in_step().await;
        let damaged = cluster.lead(NodeId(1)).await;
        harm.strike(cluster.disk(NodeId(1)), &find(cluster.disk(NodeId(1)), "message-0031"));
        let found = drain_anywhere(&cluster).await;
        assert_eq!(found, (0..MESSAGES).map(body).collect::<BTreeSet<_>>(), "{harm:?}");
        let damage = damaged.replication().unwrap().watch_damage().borrow().clone();
        assert!(damage.is_some(), "{harm:?}: what was found is told");
        let leader = cluster.leader().await;
        assert_ne!(node_of(&leader), NodeId(1), "{harm:?}");
        assert_eq!(leader.queue_stats(&queue()).unwrap().damaged, 0, "{harm:?}");
        assert_eq!(damaged.stats().damaged_messages, 0, "{harm:?}");
        // It is not made to lead again.
        let asked = leader.replication().unwrap().transfer(Some(NodeId(1))).await;
        assert!(asked.is_err() && !damaged.replication().unwrap().role().is_leading(), "{harm:?}");
    }
}

/// A node that is alone has nobody to ask, and does as a broker by itself.
#[tokio::test(flavor = "multi_thread")]
async fn the_only_node_of_a_cluster_goes_on_without_what_is_damaged() {
    let mut cluster = Cluster::of(1, SEGMENT).await;
    let leader = cluster.leader().await;
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    for number in 0..MESSAGES {
        assert!(push(&leader, body(number)).await);
    }
    cluster.checkpoint_all().await;
    drop(leader);
    cluster.crash(NodeId(1)).await;
    Harm::Flip.strike(cluster.disk(NodeId(1)), &find(cluster.disk(NodeId(1)), "message-0031"));
    cluster.start(NodeId(1), ClusterStart::Known).await;
    let leader = cluster.leader().await;
    assert_eq!(drain(&leader).await.len(), MESSAGES - 1);
    assert_eq!(leader.stats().damaged_messages, 1);
}
