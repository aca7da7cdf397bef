//! Several brokers in one process that agree: on disks in memory, over a network that can be cut.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nexo_cluster::{Body, Change};
use nexo_core::access::{AccessRecord, UserName};
use nexo_core::config::QueueConfig;
use nexo_core::draft::PackedBatch;
use nexo_core::jobs::JobQueueConfig;
use nexo_core::message::{Durability, NewMessage};
use nexo_core::queue::{LeaseTerms, Terms};
use nexo_log::disk::{CutMode, Disk, FaultyDisk, GateDisk};
use nexo_types::{JobQueueName, Millis, NodeId, QueueName};
use parking_lot::Mutex;

use super::{ChangeError, ClusterOptions, ClusterStart, Role};
use crate::broker::Broker;
use crate::error::QueueError;
use crate::flow::Pacing;
use crate::jobs::{JobCallError, JobRequest};
use crate::options::BrokerOptions;
use crate::request::PopRequest;
use crate::share::SharedPush;

mod behind;
mod broken;
mod damage;
mod disks;
mod schedules;

/// What should happen at last has this long.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Network {
    nodes: Mutex<Vec<(NodeId, Broker)>>,
    /// Links that take nothing, in this direction.
    cut: Mutex<BTreeSet<(NodeId, NodeId)>>,
    /// The first message that this fits is lost, with the envelope that it is in.
    lost: Mutex<Option<Loses>>,
    /// How many processes each node has had. One that has crashed is not heard any more: what it still writes is lost.
    processes: Mutex<BTreeMap<NodeId, u64>>,
}

type Loses = Box<dyn Fn(NodeId, &Body) -> bool + Send>;

impl Network {
    fn running(&self, node: NodeId) -> Option<Broker> {
        self.nodes.lock().iter().find(|(id, _)| *id == node).map(|(_, broker)| broker.clone())
    }

    /// Who gets what a process of a node sends.
    fn find(&self, (from, process): (NodeId, u64), to: NodeId) -> Option<Broker> {
        let is_cut = self.cut.lock().contains(&(from, to)) || self.processes.lock()[&from] != process;
        if is_cut { None } else { self.running(to) }
    }

    /// From now on the earlier processes of a node are not heard.
    fn next_process(&self, node: NodeId) -> u64 {
        let mut processes = self.processes.lock();
        let process = processes.entry(node).or_default();
        *process += 1;
        *process
    }

    /// Whether an envelope of a node is lost.
    fn loses(&self, from: NodeId, envelope: &[u8]) -> bool {
        let mut lost = self.lost.lock();
        let Some(fits) = &*lost else { return false };
        let messages = nexo_cluster::wire::decode_envelope(&envelope.to_vec().into()).unwrap();
        let is_lost = messages.iter().any(|(_, message)| fits(from, &message.body));
        if is_lost {
            *lost = None;
        }
        is_lost
    }

    fn isolate(&self, node: NodeId) {
        let others: Vec<NodeId> = (1..10).map(NodeId).filter(|other| *other != node).collect();
        let mut cut = self.cut.lock();
        cut.extend(others.iter().flat_map(|other| [(node, *other), (*other, node)]));
    }

    fn heal(&self) {
        self.cut.lock().clear();
    }
}

struct Cluster {
    network: Arc<Network>,
    disks: Vec<Arc<FaultyDisk>>,
    /// In place of the disk of a node.
    gates: BTreeMap<NodeId, Arc<dyn Disk>>,
    segment_bytes: u32,
    kept_log_bytes: u64,
}

fn options(node: NodeId, start: ClusterStart, segment_bytes: u32, kept_log_bytes: u64) -> BrokerOptions {
    let cluster = Some(ClusterOptions { node, start, kept_log_bytes });
    BrokerOptions { cluster, segment_bytes, ..BrokerOptions::new("memory") }
}

impl Cluster {
    /// Starts nodes: the first begins the cluster, the others join it.
    async fn of(count: u64, segment_bytes: u32) -> Self {
        Self::keeping(0, count, segment_bytes).await
    }

    /// The same, with nodes that keep some of the log for others.
    async fn keeping(kept_log_bytes: u64, count: u64, segment_bytes: u32) -> Self {
        let disks = (0..count).map(|_| Arc::new(FaultyDisk::new())).collect();
        let (network, gates) = Default::default();
        let cluster = Self { network, disks, gates, segment_bytes, kept_log_bytes };
        cluster.begin(count).await
    }

    /// Three nodes, each with a disk that can be made slow.
    async fn gated(segment_bytes: u32) -> (Self, [GateDisk; 3]) {
        let disks: [GateDisk; 3] = Default::default();
        let gates = (1..).map(NodeId).zip(disks.iter().map(|disk| Arc::new(disk.clone()) as _)).collect();
        let cluster =
            Self { network: Arc::default(), disks: Vec::new(), gates, segment_bytes, kept_log_bytes: 0 };
        (cluster.begin(3).await, disks)
    }

    async fn begin(mut self, count: u64) -> Self {
        self.start(NodeId(1), ClusterStart::New).await;
        self.leader().await;
        for node in (2..=count).map(NodeId) {
            self.start(node, ClusterStart::Join).await;
            self.add(node).await;
        }
        self
    }

    async fn start(&mut self, node: NodeId, start: ClusterStart) {
        let disk: Arc<dyn Disk> = match self.gates.get(&node) {
            Some(gate) => Arc::clone(gate),
            None => self.disks[node.0 as usize - 1].clone(),
        };
        let options = options(node, start, self.segment_bytes, self.kept_log_bytes);
        let broker =
            tokio::task::spawn_blocking(move || Broker::open_on(disk, options).unwrap()).await.unwrap();
        let replication = broker.replication().unwrap();
        let from = (node, self.network.next_process(node));
        let network = Arc::clone(&self.network);
        replication.set_sender(Box::new(move |to, envelope| {
            if let Some(broker) = network.find(from, to)
                && !network.loses(node, &envelope)
            {
                broker.replication().unwrap().receive(node, envelope.into());
            }
        }));
        let network = Arc::clone(&self.network);
        replication.set_streams(Box::new(move |to| {
            let other = network.find(from, to);
            Box::pin(async move {
                let other = other.ok_or(std::io::ErrorKind::NotConnected)?;
                let (one_end, other_end) = tokio::io::duplex(64 * 1024);
                tokio::spawn(async move { other.receive_state(Box::new(other_end)).await });
                Ok(Box::new(one_end) as _)
            })
        }));
        self.network.nodes.lock().push((node, broker.clone()));
        broker.start_replication().unwrap();
    }

    /// Has a node that was started join.
    async fn add(&self, node: NodeId) {
        self.change(Change::AddLearner(node)).await;
        self.change(Change::AddVoter(node)).await;
    }

    async fn change(&self, change: Change) {
        let end = Instant::now() + PATIENCE;
        loop {
            let leader = self.leader().await;
            match leader.replication().unwrap().change(change).await {
                Ok(()) => return,
                Err(ChangeError::Refused(nexo_cluster::Refused::BadChange)) => {
                    // It was done before, and that was not known.
                    return;
                }
                Err(error) => assert!(Instant::now() < end, "{change:?}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The node that serves, as soon as there is one that others hear of.
    async fn leader(&self) -> Broker {
        let end = Instant::now() + PATIENCE;
        loop {
            let nodes: Vec<(NodeId, Broker)> = self.network.nodes.lock().clone();
            let leads = |(node, broker): &(NodeId, Broker)| {
                let others = nodes.iter().map(|(other, _)| *other).filter(|other| other != node);
                let cut = self.network.cut.lock().clone();
                let is_alone =
                    nodes.len() > 1 && others.into_iter().all(|other| cut.contains(&(*node, other)));
                !is_alone && broker.replication().unwrap().role().is_leading()
            };
            if let Some((_, broker)) = nodes.iter().find(|node| leads(node)) {
                return broker.clone();
            }
            assert!(Instant::now() < end, "nobody leads");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Has a node lead. Another may be quicker, so it is tried again.
    async fn lead(&self, node: NodeId) -> Broker {
        let end = Instant::now() + PATIENCE;
        loop {
            let leader = self.leader().await;
            if node_of(&leader) == node {
                return leader;
            }
            // Who has just been elected may be deposed by now.
            let _ = leader.replication().unwrap().transfer(Some(node)).await;
            assert!(Instant::now() < end, "node {node} does not lead");
        }
    }

    /// Ends a node as a crash does: what is not synced is lost.
    async fn crash(&mut self, node: NodeId) {
        self.network.next_process(node);
        self.network.nodes.lock().retain(|(id, _)| *id != node);
        let at = node.0 as usize - 1;
        self.disks[at] = Arc::new(self.disks[at].restart(CutMode::Tear, 7));
    }

    async fn in_step(&self) {
        let end = Instant::now() + PATIENCE;
        loop {
            let status = self.leader().await.replication().unwrap().status();
            let nodes = self.network.nodes.lock().clone();
            let commits: Vec<_> =
                nodes.iter().map(|(_, broker)| broker.replication().unwrap().status().applied).collect();
            if commits.iter().all(|commit| *commit >= status.last) {
                return;
            }
            assert!(Instant::now() < end, "{commits:?} of {status:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn queue() -> QueueName {
    QueueName::new("orders").unwrap()
}

fn node_of(broker: &Broker) -> NodeId {
    broker.replication().unwrap().status().node
}

async fn push(broker: &Broker, body: String) -> bool {
    broker.push(&queue(), vec![NewMessage::new(body)]).await.is_ok()
}

/// Takes everything out of the queue.
async fn drain(broker: &Broker) -> Vec<String> {
    let mut bodies = Vec::new();
    loop {
        let request = PopRequest {
            max: 100,
            wait: Millis::ZERO,
            visibility: Some(Millis::from_secs(600)),
            bytes_max: None,
        };
        let messages = broker.pop(&queue(), request).await.unwrap();
        if messages.is_empty() {
            return bodies;
        }
        bodies
            .extend(messages.iter().map(|message| String::from_utf8(message.message.body.to_vec()).unwrap()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_one_keeps_what_it_confirmed() {
    let mut cluster = Cluster::of(1, 1024 * 1024).await;
    let leader = cluster.leader().await;
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    for number in 0..100 {
        assert!(push(&leader, number.to_string()).await);
    }
    drop(leader);
    cluster.crash(NodeId(1)).await;
    cluster.start(NodeId(1), ClusterStart::Known).await;
    let leader = cluster.leader().await;
    assert_eq!(drain(&leader).await.len(), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_node_writes_checkpoints_while_it_is_busy() {
    let cluster = Cluster::of(1, 1024 * 1024).await;
    let leader = cluster.leader().await;
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let pushing: Vec<_> = (0..4)
        .map(|_| {
            let (leader, is_over) = (leader.clone(), Arc::clone(&is_over));
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    assert!(push(&leader, "x".repeat(10_000)).await);
                    // The lease is written down, and nobody waits for it.
                    let request = PopRequest {
                        max: 10,
                        wait: Millis::ZERO,
                        visibility: Some(Millis::from_secs(600)),
                        bytes_max: None,
                    };
                    leader.pop(&queue(), request).await.unwrap();
                }
            })
        })
        .collect();
    for number in 0..50 {
        let shared = Arc::clone(&leader.shared);
        let is_written = tokio::task::spawn_blocking(move || shared.checkpoint_now()).await.unwrap();
        assert!(is_written, "checkpoint {number}");
    }
    is_over.store(true, Ordering::Relaxed);
    for pushing in pushing {
        pushing.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_confirmed_is_there_when_the_leader_is_lost() {
    let mut cluster = Cluster::of(3, 1024 * 1024).await;
    let leader = cluster.leader().await;
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    let mut confirmed = BTreeSet::new();
    for round in 0..4 {
        let leader = cluster.leader().await;
        for number in 0..50 {
            let body = format!("{round}-{number}");
            if push(&leader, body.clone()).await {
                confirmed.insert(body);
            }
        }
        let node = node_of(&leader);
        drop(leader);
        cluster.crash(node).await;
        let successor = cluster.leader().await;
        assert_ne!(node_of(&successor), node);
        drop(successor);
        cluster.start(node, ClusterStart::Known).await;
    }
    cluster.in_step().await;
    let bodies = drain(&cluster.leader().await).await;
    assert_eq!(bodies.len(), bodies.iter().collect::<BTreeSet<_>>().len(), "none is there twice");
    assert!(confirmed.iter().all(|body| bodies.contains(body)));
    assert_eq!(confirmed.len(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_confirms_nothing_and_follows_when_it_is_back() {
    let cluster = Cluster::of(3, 1024 * 1024).await;
    let old = cluster.leader().await;
    old.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    assert!(push(&old, "before".into()).await);
    cluster.network.isolate(node_of(&old));
    assert!(!push(&old, "lost".into()).await, "no majority has it");
    let new = cluster.leader().await;
    assert_ne!(node_of(&new), node_of(&old));
    assert!(push(&new, "after".into()).await);
    cluster.network.heal();
    let end = Instant::now() + PATIENCE;
    while old.replication().unwrap().role() != (Role::Following { leader: Some(node_of(&new)) }) {
        assert!(Instant::now() < end, "{:?}", old.replication().unwrap().status());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    cluster.in_step().await;
    // It leads again, with what the other has written.
    let leader = cluster.lead(node_of(&old)).await;
    assert_eq!(drain(&leader).await, ["before", "after"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_deposed_forgets_users_that_were_never_committed() {
    let cluster = Cluster::of(3, 1024 * 1024).await;
    let old = cluster.leader().await;
    let add = |user: &str| {
        let user = UserName::new(user).unwrap();
        [AccessRecord::Add { user, password: None, tags: BTreeSet::new() }]
    };
    let has = |broker: &Broker, user: &str| broker.access().user(user).is_some();
    old.change_access(&add("ann")).await.unwrap();
    cluster.network.isolate(node_of(&old));
    assert!(old.change_access(&add("ben")).await.is_err(), "no majority has it");
    let new = cluster.leader().await;
    new.change_access(&add("eve")).await.unwrap();
    cluster.network.heal();
    let end = Instant::now() + PATIENCE;
    while has(&old, "ben") || !has(&old, "eve") {
        assert!(Instant::now() < end, "what was lost counts still");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(has(&old, "ann") && !has(&new, "ben"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_far_behind_gets_everything() {
    const SEGMENT: u32 = 128 * 1024;
    let mut cluster = Cluster::of(2, SEGMENT).await;
    let leader = cluster.leader().await;
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    let mut confirmed = Vec::new();
    // Much of it goes again, so that checkpoints are written and entries are purged.
    for number in 0..60 {
        let body = format!("{number}-{}", "x".repeat(20_000));
        assert!(push(&leader, body.clone()).await);
        confirmed.push(body);
        if number < 40 {
            assert_eq!(drain_and_settle(&leader).await, 1);
            confirmed.clear();
        }
    }
    let end = Instant::now() + PATIENCE;
    while leader.shared.replica.as_ref().unwrap().state.lock().group.purged().index.0 < 10 {
        let shared = Arc::clone(&leader.shared);
        tokio::task::spawn_blocking(move || shared.checkpoint()).await.unwrap().unwrap();
        assert!(Instant::now() < end, "nothing is purged");
    }
    let sent = || leader.replication().unwrap().status().snapshots_sent;
    let sent_before = sent();
    cluster.disks.push(Arc::new(FaultyDisk::new()));
    cluster.start(NodeId(3), ClusterStart::Join).await;
    cluster.add(NodeId(3)).await;
    cluster.in_step().await;
    assert!(push(&leader, "more".into()).await);
    confirmed.push("more".into());
    // Whoever sends it notes that a moment after the other has it.
    let end = Instant::now() + PATIENCE;
    while sent() == sent_before {
        assert!(Instant::now() < end, "no state was sent");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(sent(), sent_before + 1);
    cluster.in_step().await;
    // After a crash it has it still.
    cluster.crash(NodeId(3)).await;
    cluster.start(NodeId(3), ClusterStart::Known).await;
    cluster.in_step().await;
    let leader = cluster.lead(NodeId(3)).await;
    let bodies = drain(&leader).await;
    assert_eq!(bodies.len(), confirmed.len());
    assert!(bodies == confirmed);
}

async fn drain_and_settle(broker: &Broker) -> usize {
    let request = PopRequest { max: 100, wait: Millis::ZERO, visibility: None, bytes_max: None };
    let messages = broker.pop(&queue(), request).await.unwrap();
    let receipts: Vec<_> = messages.iter().map(crate::delivery::Delivery::receipt).collect();
    for outcome in broker.ack(&receipts).await {
        outcome.unwrap();
    }
    messages.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_data_of_its_own_becomes_a_cluster() {
    let disk = Arc::new(FaultyDisk::new());
    let alone = Broker::open_on(disk.clone(), BrokerOptions::new("memory")).unwrap();
    alone.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    assert!(push(&alone, "mine".into()).await);
    alone.shutdown().await;
    drop(alone);
    let disks = vec![disk, Arc::new(FaultyDisk::new())];
    let (network, gates) = (Arc::default(), BTreeMap::new());
    let mut cluster = Cluster { network, disks, gates, segment_bytes: 64 * 1024 * 1024, kept_log_bytes: 0 };
    cluster.start(NodeId(1), ClusterStart::New).await;
    assert!(push(&cluster.leader().await, "ours".into()).await);
    cluster.start(NodeId(2), ClusterStart::Join).await;
    cluster.add(NodeId(2)).await;
    cluster.in_step().await;
    let leader = cluster.lead(NodeId(2)).await;
    assert_eq!(drain(&leader).await, ["mine", "ours"]);
    // And it cannot be opened as a node by itself any more.
    let disk = Arc::clone(&cluster.disks[0]);
    drop(leader);
    cluster.network.nodes.lock().clear();
    let error = loop {
        let disk = Arc::clone(&disk);
        let opened = tokio::task::spawn_blocking(|| Broker::open_on(disk, BrokerOptions::new("memory")));
        let error = opened.await.unwrap().unwrap_err().to_string();
        // Whatever the node was doing for others may end a little later than it.
        if !error.contains("in use by another process") {
            break error;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(error.contains("belongs to a node of a cluster"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_for_several_queues_is_in_all_of_them_on_every_node() {
    let mut cluster = Cluster::of(3, 1024 * 1024).await;
    let leader = cluster.leader().await;
    let other = QueueName::new("mail").unwrap();
    for name in [&queue(), &other] {
        leader.create_queue(name, QueueConfig::default()).await.unwrap();
    }
    let bodies: Vec<String> = (0..20).map(|number| format!("{number}-{}", "x".repeat(5_000))).collect();
    for body in &bodies {
        let mut packed = PackedBatch::new(Durability::Durable, body.len() + 64, 1);
        packed.push(&NewMessage::new(body.clone()).as_draft());
        let handles = [&queue(), &other].map(|name| leader.queue(name).unwrap());
        let handles: Vec<_> = handles.iter().collect();
        for pushed in leader.push_shared(&handles, &leader.share(packed), Pacing::Unpaced).unwrap() {
            let SharedPush::Taken { written, .. } = pushed else { panic!("{pushed:?}") };
            leader.wait_for(written).await.unwrap();
        }
    }
    let node = node_of(&leader);
    drop(leader);
    cluster.crash(node).await;
    let peek = async |broker: &Broker, name: &QueueName| -> Vec<String> {
        let found = broker.peek(name, 100).await.unwrap();
        found.iter().map(|found| String::from_utf8(found.message.body.to_vec()).unwrap()).collect()
    };
    for name in [&queue(), &other] {
        assert!(peek(&cluster.leader().await, name).await == bodies, "{name}");
    }
    // The one that was lost can read its own frames too.
    cluster.start(node, ClusterStart::Known).await;
    cluster.in_step().await;
    let leader = cluster.lead(node).await;
    for name in [&queue(), &other] {
        assert!(peek(&leader, name).await == bodies, "{name}");
    }
}

/// What a client knows of its messages.
#[derive(Default)]
struct Book {
    sent: u64,
    confirmed: BTreeSet<u64>,
    /// Settled, and that was confirmed.
    done: BTreeSet<u64>,
    /// Settled, and nobody knows whether that counts.
    maybe_done: BTreeSet<u64>,
}

impl Book {
    /// Sends some messages, takes some, and settles most of those.
    async fn work(&mut self, broker: &Broker, rng: &mut fastrand::Rng) {
        for _ in 0..rng.usize(1..8) {
            self.sent += 1;
            let filler = "x".repeat(rng.usize(0..3000));
            if push(broker, format!("{}:{filler}", self.sent)).await {
                self.confirmed.insert(self.sent);
            }
        }
        let request = PopRequest {
            max: rng.usize(1..10),
            wait: Millis::ZERO,
            visibility: Some(Millis(rng.u64(200..2_000))),
            bytes_max: None,
        };
        let Ok(messages) = broker.pop(&queue(), request).await else { return };
        for message in messages {
            let number = number_of(&message.message.body);
            assert!(!self.done.contains(&number), "message {number} was settled, and comes again");
            if rng.u8(..) < 200 {
                self.maybe_done.insert(number);
                if broker.ack(&[message.receipt()]).await == [Ok(())] {
                    self.done.insert(number);
                }
            }
        }
    }
}

fn number_of(body: &[u8]) -> u64 {
    std::str::from_utf8(body).unwrap().split(':').next().unwrap().parse().unwrap()
}

/// Leaders are lost in every way, again and again, while a client works: nothing that was confirmed is lost, and nothing that
/// was settled comes back.
#[tokio::test(flavor = "multi_thread")]
async fn leaders_are_lost_again_and_again() {
    let seed = fastrand::u64(..);
    let mut rng = fastrand::Rng::with_seed(seed);
    println!("seed {seed}");
    let mut cluster = Cluster::of(3, 256 * 1024).await;
    let without_deaths = QueueConfig { max_attempts: None, ..QueueConfig::default() };
    cluster.leader().await.create_queue(&queue(), without_deaths).await.unwrap();
    let mut book = Book::default();
    for round in 0..12 {
        let leader = cluster.leader().await;
        let end = Instant::now() + Duration::from_millis(rng.u64(50..600));
        while Instant::now() < end {
            book.work(&leader, &mut rng).await;
        }
        let node = node_of(&leader);
        match round % 4 {
            0 | 2 => {
                drop(leader);
                cluster.crash(node).await;
                cluster.leader().await;
                cluster.start(node, ClusterStart::Known).await;
            }
            1 => {
                cluster.network.isolate(node);
                book.work(&leader, &mut rng).await;
                let successor = cluster.leader().await;
                book.work(&successor, &mut rng).await;
                cluster.network.heal();
            }
            _ => {
                cluster.in_step().await;
                // Another may have been elected meanwhile.
                let _ = leader.replication().unwrap().transfer(None).await;
            }
        }
    }
    cluster.in_step().await;
    let leader = cluster.leader().await;
    // What others hold comes back when its time is over.
    let wanted: BTreeSet<u64> = book.confirmed.difference(&book.maybe_done).copied().collect();
    let mut found = BTreeSet::new();
    let end = Instant::now() + PATIENCE;
    while !wanted.is_subset(&found) {
        for body in drain(&leader).await {
            found.insert(number_of(body.as_bytes()));
        }
        let missing: Vec<_> = wanted.difference(&found).take(5).collect();
        assert!(Instant::now() < end, "seed {seed}: messages {missing:?} are lost");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let resurrected: Vec<_> = found.intersection(&book.done).collect();
    assert!(resurrected.is_empty(), "seed {seed}: {resurrected:?} were settled, and came back");
    assert!(book.confirmed.len() > 100 && book.done.len() > 50);
}

/// A state that came whole is written down whole: no checkpoint knows any part of it before.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_came_with_a_whole_state_are_there_after_a_restart() {
    const JOBS: u64 = 200;
    let mut cluster = Cluster::of(1, 1024 * 1024).await;
    let leader = cluster.leader().await;
    let name = JobQueueName::new("deals").unwrap();
    leader.put_job_queue(&name, JobQueueConfig::default()).await.unwrap();
    for number in 0..JOBS {
        let request = JobRequest {
            kind: "search".into(),
            key: number.to_string(),
            payload: bytes::Bytes::from_static(b"{}"),
            ..JobRequest::default()
        };
        leader.ask_job(&name, &request).await.unwrap();
    }
    for node in [2, 3].map(NodeId) {
        cluster.disks.push(Arc::new(FaultyDisk::new()));
        cluster.start(node, ClusterStart::Join).await;
        cluster.add(node).await;
    }
    cluster.in_step().await;
    cluster.crash(NodeId(2)).await;
    cluster.start(NodeId(2), ClusterStart::Known).await;
    cluster.in_step().await;
    let leader = cluster.lead(NodeId(2)).await;
    let there = leader.look_at_jobs(|jobs, _| jobs.queue(&name).unwrap().jobs_from(0).count());
    assert_eq!(there as u64, JOBS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_does_not_say_what_is_not_there() {
    let cluster = Cluster::of(3, 1024 * 1024).await;
    let old = cluster.leader().await;
    let name = JobQueueName::new("reports").unwrap();
    old.put_job_queue(&name, JobQueueConfig::default()).await.unwrap();
    let empty = QueueName::new("empty").unwrap();
    old.create_queue(&empty, QueueConfig::default()).await.unwrap();
    // A waiter that the others may have heard of by then, a queue, and a message.
    let unknown = async |broker: &Broker| {
        let answer = broker.job_answer(&name, "nobody", Duration::ZERO).await.unwrap_err();
        let queue = broker.found(&queue()).await.unwrap_err();
        let terms = Terms { lease: LeaseTerms::Session, ..Terms::default() };
        let got = broker.queue(&empty).unwrap().get(terms).await;
        let is_refused = matches!(answer, JobCallError::Refused(_));
        (is_refused, matches!(queue, QueueError::NotFound { .. }), matches!(got, Ok(None)))
    };
    assert_eq!(unknown(&old).await, (true, true, true), "a majority says that it leads");
    cluster.network.isolate(node_of(&old));
    assert_eq!(unknown(&old).await, (false, false, false), "nobody says that it leads");
    let new = cluster.leader().await;
    assert_eq!(unknown(&new).await, (true, true, true));
}

/// A leader that hands over while it writes a checkpoint has begun it with one end of the state, and would finish with another.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_of_a_leader_that_hands_over_is_given_up() {
    let mut cluster = Cluster::of(3, 64 * 1024).await;
    let leader = cluster.leader().await;
    let node = node_of(&leader);
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    for number in 0..50 {
        assert!(push(&leader, number.to_string()).await);
    }
    let shared = Arc::clone(&leader.shared);
    let (begun, of_begin) = std::sync::mpsc::channel();
    let (go_on, until) = std::sync::mpsc::channel::<()>();
    let checkpoint = std::thread::spawn(move || {
        let changing = shared.catalog.change();
        let checkpoint = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.checkpoint())
        };
        // It has seen that this node serves, and waits for the catalog.
        while shared.maintenance.try_begin_checkpoint().is_some() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(300));
        begun.send(()).unwrap();
        until.recv().unwrap();
        drop(changing);
        checkpoint.join().unwrap()
    });
    tokio::task::spawn_blocking(move || of_begin.recv().unwrap()).await.unwrap();
    leader.replication().unwrap().transfer(None).await.unwrap();
    go_on.send(()).unwrap();
    let written = tokio::task::spawn_blocking(move || checkpoint.join().unwrap()).await.unwrap();
    assert!(written.is_err(), "{written:?}");

    cluster.crash(node).await;
    cluster.start(node, ClusterStart::Known).await;
    cluster.in_step().await;
    let leader = cluster.lead(node).await;
    let mut numbers: Vec<u64> = drain(&leader).await.iter().map(|body| body.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..50).collect::<Vec<u64>>());
}

/// What a node missed while it was away for a moment comes from the log, whatever checkpoints were written meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_away_for_a_moment_gets_what_it_missed_and_no_more() {
    let mut cluster = Cluster::keeping(1 << 20, 3, 64 * 1024).await;
    let leader = cluster.lead(NodeId(1)).await;
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    cluster.in_step().await;
    cluster.crash(NodeId(3)).await;
    for _ in 0..5 {
        for number in 0..50 {
            assert!(push(&leader, format!("{number:01000}")).await);
        }
        assert_eq!(drain_and_settle(&leader).await, 50);
        let shared = Arc::clone(&leader.shared);
        let kept = tokio::task::spawn_blocking(move || shared.checkpoint()).await.unwrap();
        kept.unwrap();
    }
    let sent = leader.replication().unwrap().status().snapshots_sent;
    cluster.start(NodeId(3), ClusterStart::Known).await;
    cluster.in_step().await;
    assert_eq!(leader.replication().unwrap().status().snapshots_sent, sent);
}
