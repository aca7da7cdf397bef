//! Three real nodes on loopback: any of them takes any client, what was confirmed survives the loss of a leader, and nodes come and
//! go. Secrets, wrong combinations of options, and the words of `nexo cluster`.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Finished, Process, Server, eventually, nexo, serve_command};
use lapin::options::*;
use lapin::types::FieldTable;
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

const SECRET: &str = "a secret that all nodes share";

/// A node, whether it runs or not.
struct Node {
    name: &'static str,
    address: SocketAddr,
    data: PathBuf,
    server: Option<Server>,
}

impl Node {
    /// The running broker.
    fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    fn status(&self) -> Option<Value> {
        let shown = self.server.as_ref()?.run(&["--output", "json", "cluster", "status"]);
        serde_json::from_str(&shown.stdout).ok()
    }

    /// What this node takes for the risk, or nothing if it does not answer.
    fn risk(&self) -> String {
        self.status().and_then(|status| status["risk"].as_str().map(str::to_owned)).unwrap_or_default()
    }

    fn kill(&mut self) {
        self.server.take().unwrap().kill();
    }
}

/// A node with this secret and data.
fn serve(secret: &Path, data: &Path, args: &[String]) -> Server {
    let mut command = serve_command(data);
    command.env("NEXO_CLUSTER_SECRET_FILE", secret).env("NEXO_AMQP", "127.0.0.1:0").args(args);
    Server::start_by(command, data)
}

/// Nodes that are one cluster. They end with it.
struct Cluster {
    dir: TempDir,
    nodes: Vec<Node>,
}

impl Cluster {
    /// So many nodes, which all know each other.
    fn start(names: &[&'static str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), SECRET).unwrap();
        let mut cluster = Self { dir, nodes: Vec::new() };
        for name in names {
            cluster.add(name);
        }
        cluster.until_in_step(names.len());
        cluster
    }

    /// Another node, which joins those that are there.
    fn add(&mut self, name: &'static str) {
        let [address] = nexo_harness::free_addresses().unwrap();
        let data = self.dir.path().join(name);
        let mut node = Node { name, address, data, server: None };
        let join: Vec<String> = self.nodes.iter().map(|node| node.address.to_string()).collect();
        let mut args =
            vec!["--node".to_owned(), name.to_owned(), "--cluster".to_owned(), address.to_string()];
        if !join.is_empty() {
            args.extend(["--join".to_owned(), join.join(",")]);
        }
        node.server = Some(self.serve(&node.data, &args));
        self.nodes.push(node);
    }

    fn serve(&self, data: &Path, args: &[String]) -> Server {
        serve(&self.dir.path().join("secret"), data, args)
    }

    /// Starts a node again, with nothing but its data.
    fn restart(&mut self, name: &str) {
        let server = self.serve(&self.node(name).data.clone(), &[]);
        self.nodes.iter_mut().find(|node| node.name == name).unwrap().server = Some(server);
    }

    fn node(&self, name: &str) -> &Node {
        self.nodes.iter().find(|node| node.name == name).unwrap()
    }

    fn node_mut(&mut self, name: &str) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.name == name).unwrap()
    }

    fn running(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.server.is_some())
    }

    /// Who leads, as soon as all that run agree on it.
    fn leader(&self) -> &'static str {
        let mut leader = None;
        eventually("all nodes know who leads", || {
            let told: BTreeSet<Option<String>> = self
                .running()
                .map(|node| node.status().and_then(|status| status["leader"].as_str().map(str::to_owned)))
                .collect();
            let [Some(told)] = &told.into_iter().collect::<Vec<_>>()[..] else { return false };
            leader = self.running().find(|node| node.name == told).map(|node| node.name);
            leader.is_some()
        });
        leader.unwrap()
    }

    /// One that runs and does not lead.
    fn follower(&self) -> &Node {
        let leader = self.leader();
        self.running().find(|node| node.name != leader).unwrap()
    }

    fn until_in_step(&self, count: usize) {
        let wanted = match count {
            1 => "one node votes".to_owned(),
            2 => "both nodes are in step".to_owned(),
            count => format!("all {count} nodes are in step"),
        };
        for node in self.running() {
            eventually(&format!("node '{}' says: {wanted}", node.name), || node.risk().starts_with(&wanted));
        }
    }
}

/// Runs a command until it succeeds: the leader may just have changed.
#[track_caller]
fn insist(server: &Server, args: &[&str]) -> String {
    let mut last: Option<Finished> = None;
    let mut printed = None;
    let deadline = std::time::Instant::now() + common::PATIENCE;
    while printed.is_none() {
        assert!(std::time::Instant::now() < deadline, "{args:?} does not succeed: {last:?}");
        let finished = server.run(args);
        if finished.code == Some(0) {
            printed = Some(finished.stdout);
        } else {
            last = Some(finished);
        }
    }
    printed.unwrap()
}

#[test]
fn any_node_takes_any_client() {
    let cluster = Cluster::start(&["a", "b", "c"]);
    for node in &cluster.nodes {
        node.server().ok(&["queue", "create", node.name]);
    }
    for (node, other) in cluster.nodes.iter().zip(cluster.nodes.iter().cycle().skip(1)) {
        node.server().ok(&["push", other.name, node.name]);
    }
    for (node, other) in cluster.nodes.iter().zip(cluster.nodes.iter().cycle().skip(1)) {
        let third = cluster.nodes.iter().find(|it| it.name != node.name && it.name != other.name).unwrap();
        assert_eq!(
            third.server().ok(&["pop", other.name, "--wait", "5s", "--ack"]),
            format!("{}\n", node.name)
        );
    }
    let queues = |node: &Node| {
        let listed: Vec<Value> = node.server().json(&["queue", "list"]);
        listed.iter().map(|queue| queue["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for node in &cluster.nodes {
        assert_eq!(queues(node), ["a", "b", "c"], "over node '{}'", node.name);
        let (status, body) = node.server().get("/health/ready");
        assert_eq!(status, 200, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_amqp_client_of_a_follower_publishes_and_consumes() {
    let cluster = Cluster::start(&["a", "b", "c"]);
    let (follower, leader) = (cluster.follower(), cluster.leader());
    let connect = async |node: &Node| {
        let connection =
            Connection::connect(&node.server().amqp_url(), ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        (connection, channel)
    };
    let (_there, channel) = connect(follower).await;
    channel
        .queue_declare("mail".into(), QueueDeclareOptions::durable(), FieldTable::default())
        .await
        .unwrap();
    for number in 0..100 {
        let body = format!("message {number}");
        let published = channel.basic_publish(
            "".into(),
            "mail".into(),
            BasicPublishOptions::default(),
            body.as_bytes(),
            BasicProperties::default().with_delivery_mode(2),
        );
        assert_eq!(published.await.unwrap().await.unwrap(), Confirmation::Ack(None));
    }
    let (_here, channel) = connect(cluster.node(leader)).await;
    for number in 0..100 {
        let got = channel.basic_get("mail".into(), BasicGetOptions { no_ack: true }).await.unwrap().unwrap();
        assert_eq!(got.delivery.data, format!("message {number}").as_bytes());
    }
    let (_, metrics) = follower.server().get("/metrics");
    assert!(metrics.lines().any(|line| line == "nexo_cluster_leading 0"), "{metrics}");
    let forwarded =
        metrics.lines().find_map(|line| line.strip_prefix("nexo_cluster_forwarded_connections_total "));
    assert!(forwarded.is_some_and(|count| count.parse::<u64>().unwrap() > 0), "{metrics}");
}

/// Pushes numbered messages through a node, and gives back those that were confirmed.
fn push_until(is_over: &AtomicBool, name: &str, url: &str) -> Vec<String> {
    let bodies = (0..).map(|number| format!("{name}-{number}"));
    let bodies = bodies.take_while(|_| !is_over.load(Ordering::Relaxed));
    let is_confirmed = |body: &String| {
        let mut command = nexo();
        command.args(["push", "work", body]).env("NEXO_SERVER", url);
        Process::spawn(&mut command).finish().code == Some(0)
    };
    bodies.filter(is_confirmed).collect()
}

#[test]
fn what_was_confirmed_survives_the_loss_of_the_leader() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let leader = cluster.leader();
    cluster.follower().server().ok(&["queue", "create", "work"]);
    let is_over = AtomicBool::new(false);
    let confirmed = std::thread::scope(|scope| {
        let pushers: Vec<_> = cluster
            .nodes
            .iter()
            .map(|node| {
                let (is_over, name, url) = (&is_over, node.name, node.server().url());
                scope.spawn(move || push_until(is_over, name, &url))
            })
            .collect();
        std::thread::sleep(std::time::Duration::from_secs(2));
        cluster.node(leader).server().signal(Signal::KILL);
        std::thread::sleep(std::time::Duration::from_secs(4));
        is_over.store(true, Ordering::Relaxed);
        pushers.into_iter().flat_map(|pusher| pusher.join().unwrap()).collect::<BTreeSet<String>>()
    });
    cluster.node_mut(leader).kill();
    assert!(confirmed.len() > 10, "only {} pushes were confirmed", confirmed.len());
    let next = cluster.leader();
    assert_ne!(next, leader);
    let through = cluster.follower().server();
    let mut found = BTreeSet::new();
    loop {
        let popped = insist(through, &["pop", "work", "--max", "100", "--ack"]);
        if popped.is_empty() {
            break;
        }
        found.extend(popped.lines().map(str::to_owned));
    }
    let lost: Vec<&String> = confirmed.difference(&found).collect();
    assert!(lost.is_empty(), "{lost:?} of {} are lost", confirmed.len());

    // The one that was lost comes back, follows, and has what came meanwhile.
    insist(through, &["push", "work", "while it was away"]);
    assert!(cluster.follower().risk().contains(&format!("node '{leader}' cannot be reached")));
    cluster.restart(leader);
    cluster.until_in_step(3);
    insist(cluster.node(leader).server(), &["cluster", "transfer", leader]);
    assert_eq!(cluster.leader(), leader);
    assert_eq!(
        insist(cluster.node(leader).server(), &["pop", "work", "--wait", "5s", "--ack"]),
        "while it was away\n"
    );
}

#[test]
fn a_leader_that_is_stopped_hands_over_first() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    cluster.follower().server().ok(&["queue", "create", "work"]);
    let leader = cluster.leader();
    let mut server = cluster.node_mut(leader).server.take().unwrap();
    let ended = server.stop();
    assert_eq!(ended.code(), Some(0));
    assert_ne!(cluster.leader(), leader);
    insist(cluster.follower().server(), &["push", "work", "x"]);
    cluster.restart(leader);
    cluster.until_in_step(3);
}

#[test]
fn all_nodes_are_killed_at_once_and_come_back() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    cluster.follower().server().ok(&["queue", "create", "work"]);
    let bodies: Vec<String> = (0..50).map(|number| format!("m{number}")).collect();
    let input = bodies.iter().map(|body| format!("{body}\n")).collect::<String>();
    cluster.follower().server().run_with_input(&["push", "work", "--stdin"], input).ok();
    for node in &cluster.nodes {
        node.server().signal(Signal::KILL);
    }
    for name in ["a", "b", "c"] {
        cluster.node_mut(name).kill();
    }
    // The first waits for another before it is of any use, but starts.
    std::thread::scope(|scope| {
        let secret = cluster.dir.path().join("secret");
        let servers: Vec<_> = cluster
            .nodes
            .iter()
            .map(|node| {
                let (secret, data) = (secret.clone(), node.data.clone());
                scope.spawn(move || serve(&secret, &data, &[]))
            })
            .collect();
        servers.into_iter().map(|server| server.join().unwrap()).collect::<Vec<_>>()
    })
    .into_iter()
    .zip(["a", "b", "c"])
    .for_each(|(server, name)| cluster.node_mut(name).server = Some(server));
    cluster.until_in_step(3);
    let popped = insist(cluster.follower().server(), &["pop", "work", "--max", "100", "--ack"]);
    assert_eq!(popped.lines().collect::<Vec<_>>(), bodies);
}

#[test]
fn nodes_are_drained_and_removed() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let leader = cluster.leader();
    let follower = cluster.follower().name;
    cluster.node(follower).server().ok(&["cluster", "drain", leader]);
    assert_ne!(cluster.leader(), leader);
    let (status, body) = cluster.node(leader).server().get("/health/ready");
    assert!(status == 503 && body.contains("drained"), "{status} {body}");
    assert_eq!(cluster.node(leader).server().get("/health/live").0, 200);
    let shown = cluster.node(follower).server().ok(&["cluster", "status"]);
    assert!(shown.starts_with("All 3 nodes are in step: any one may be lost."), "{shown}");
    assert!(shown.lines().any(|line| line.starts_with(leader) && line.contains("drained")), "{shown}");
    cluster.node(follower).server().ok(&["cluster", "drain", leader, "--end"]);
    assert_eq!(cluster.node(leader).server().get("/health/ready").0, 200);

    // One that leads can be removed through any other; it hands over first.
    let (leader, asked) = (cluster.leader(), cluster.follower());
    insist(asked.server(), &["cluster", "remove", leader, "--yes"]);
    cluster.node_mut(leader).kill();
    cluster.until_in_step(2);
    let missing = cluster.follower().server().run(&["cluster", "remove", leader, "--yes"]).error();
    assert!(missing.contains(&format!("there is no node '{leader}' in this cluster")), "{missing}");

    // Another takes its place, under a name of its own.
    cluster.nodes.retain(|node| node.server.is_some());
    cluster.add("d");
    cluster.until_in_step(3);
    let groups = cluster.follower().server().json(&["cluster", "groups"]);
    let voters: BTreeSet<&str> =
        groups[0]["voters"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(voters.contains("d") && !voters.contains(leader), "{voters:?}");
}

#[test]
fn a_removal_that_would_stop_the_cluster_is_refused() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let leader = cluster.leader();
    let (gone, stays) = {
        let mut followers = cluster.nodes.iter().filter(|node| node.name != leader).map(|node| node.name);
        (followers.next().unwrap(), followers.next().unwrap())
    };
    cluster.node_mut(gone).kill();
    eventually("the loss is noticed", || cluster.node(leader).risk().contains("cannot be reached"));
    let refused = cluster.node(leader).server().run(&["cluster", "remove", stays, "--yes"]).error();
    assert!(refused.contains("it would stop"), "{refused}");
    insist(cluster.node(leader).server(), &["cluster", "remove", gone, "--yes"]);
    cluster.until_in_step(2);
}

#[test]
fn a_broker_becomes_the_first_node_with_its_data() {
    let mut alone = Server::start();
    alone.ok(&["queue", "create", "mail"]);
    alone.ok(&["push", "mail", "from before"]);
    let text = alone.run(&["cluster", "status"]).error();
    assert!(text.contains("this broker is not in a cluster"), "{text}");
    assert_eq!(alone.stop().code(), Some(0));
    let [first, second] = nexo_harness::free_addresses::<2>().unwrap().map(|address| address.to_string());
    alone.restart_with(&["--node", "a", "--cluster", &first]);
    let other = Server::start_with(&["--node", "b", "--cluster", &second, "--join", &first]);
    eventually("the second has it too", || {
        let shown = other.run(&["--output", "json", "cluster", "status"]);
        shown.stdout.contains("both nodes are in step")
    });
    assert_eq!(insist(&other, &["pop", "mail", "--wait", "5s", "--ack"]), "from before\n");
}

/// How a broker ends that is started with these.
fn refused(data: &Path, args: &[&str]) -> String {
    let mut command = serve_command(data);
    command.args(args).env("NEXO_GRPC", "127.0.0.1:0").env("NEXO_HTTP", "127.0.0.1:0");
    Process::spawn(&mut command).finish().error()
}

#[test]
fn wrong_combinations_are_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty");
    for (args, words) in [
        (&["--node", "a"][..], "node needs cluster"),
        (&["--cluster", "127.0.0.1:1"], "cluster needs node"),
        (&["--join", "127.0.0.1:1"], "join needs cluster"),
        (&["--node", "a", "--cluster", "here"], "it must be HOST:PORT"),
        (&["--node", "a", "--cluster", "127.0.0.1:1", "--sync", "os"], "sync must be 'always'"),
        (&["--node", "a", "--cluster", "mq.example:1"], "cluster_secret_file"),
        (&["--node", "a", "--cluster", "127.0.0.1:1", "--cluster-tls-cert", "c.pem"], "go together"),
    ] {
        let text = refused(&empty, args);
        assert!(text.contains(words), "{args:?}: {text}");
    }
    let mut alone = Server::start();
    alone.stop();
    let text =
        refused(alone.data_dir(), &["--node", "a", "--cluster", "127.0.0.1:1", "--join", "127.0.0.1:2"]);
    assert!(text.contains("start it with an empty data directory"), "{text}");
}

#[test]
fn whoever_has_another_secret_is_kept_out() {
    let cluster = Cluster::start(&["a"]);
    let first = cluster.node("a").address.to_string();
    let secret = cluster.dir.path().join("other-secret");
    std::fs::write(&secret, "quite another secret than the others have").unwrap();
    let [address] = nexo_harness::free_addresses::<1>().unwrap().map(|address| address.to_string());
    let data = cluster.dir.path().join("x");
    let join = ["--node", "x", "--cluster", &address, "--join", &first];
    let mut command = serve_command(&data);
    command.args(join).env("NEXO_CLUSTER_SECRET_FILE", &secret).env("NEXO_GRPC", "127.0.0.1:0");
    command.env("NEXO_HTTP", "127.0.0.1:0").env("NEXO_LOG", "warn");
    let mut stranger = Process::spawn(&mut command);
    let mut said = String::new();
    while !said.contains("cluster secret") {
        said = stranger.first_error_line().expect("it says why it cannot join");
    }
    stranger.signal(Signal::KILL);
    stranger.wait();
    assert_eq!(cluster.node("a").status().unwrap()["nodes"].as_array().unwrap().len(), 1);
}

#[test]
fn a_node_whose_disk_was_wiped_comes_back_as_another() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let wiped = cluster.follower().name;
    cluster.node_mut(wiped).kill();
    let (data, address) = (cluster.node(wiped).data.clone(), cluster.node(wiped).address.to_string());
    std::fs::remove_dir_all(&data).unwrap();
    let others: Vec<String> = cluster.running().map(|node| node.address.to_string()).collect();
    let args = ["--node", wiped, "--cluster", &address, "--join", &others.join(",")].map(str::to_owned);
    let mut command = serve_command(&data);
    command.env("NEXO_CLUSTER_SECRET_FILE", cluster.dir.path().join("secret")).args(&args);
    command.env("NEXO_GRPC", "127.0.0.1:0").env("NEXO_HTTP", "127.0.0.1:0");
    let text = Process::spawn(&mut command).finish().error();
    assert!(text.contains(&format!("there is a node '{wiped}' already, with other data")), "{text}");
    insist(cluster.follower().server(), &["cluster", "remove", wiped, "--yes"]);
    let server = cluster.serve(&data, &args);
    cluster.node_mut(wiped).server = Some(server);
    cluster.until_in_step(3);
    let nodes = cluster.node(wiped).server().json(&["cluster", "nodes"]);
    let back = nodes.iter().find(|node| node["name"] == wiped).unwrap();
    assert_eq!(back["id"], 4, "{back}");
}

#[test]
fn three_nodes_to_try_out() {
    let [first] = nexo_harness::free_addresses::<1>().unwrap();
    let port = first.port().min(65_000).to_string();
    let mut command: Command = nexo();
    command.args(["cluster", "try", "--first-port", &port]);
    let mut tried = Process::spawn(&mut command);
    let line = tried.first_line().unwrap_or_else(|| panic!("it did not start: {:?}", tried.finish()));
    assert!(line.starts_with("ready: three nodes"), "{line}");
    let data = line.rsplit(' ').next().unwrap().to_owned();
    assert!(Path::new(&data).join("c").exists());
    tried.signal(Signal::INT);
    let finished = tried.finish();
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stdout.contains("cluster status --watch"), "{finished:?}");
    assert!(!Path::new(&data).exists(), "it leaves nothing behind");
}

#[test]
fn one_node_goes_on_alone_when_a_majority_is_gone_for_good() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let left = cluster.follower().name;
    cluster.node(left).server().ok(&["queue", "create", "work"]);
    cluster.node(left).server().ok(&["push", "work", "still here"]);
    cluster.until_in_step(3);
    let recover = |data: &Path| {
        Process::spawn(nexo().args(["cluster", "recover", "--yes", "--data-dir"]).arg(data)).finish()
    };
    let data = cluster.node(left).data.clone();
    let text = recover(&data).error();
    assert!(text.contains("is in use; stop the node first"), "{text}");
    for name in ["a", "b", "c"] {
        cluster.node_mut(name).kill();
    }
    let text = recover(&data).ok();
    assert!(text.contains(&format!("node '{left}' is alone from its next start on")), "{text}");
    cluster.restart(left);
    cluster.until_in_step(1);
    let shown = insist(cluster.node(left).server(), &["peek", "work"]);
    assert!(shown.contains("still here"), "{shown}");

    // One that comes back after all is not let in, and a new one is.
    let other = ["a", "b", "c"].into_iter().find(|name| *name != left).unwrap();
    cluster.restart(other);
    assert_eq!(cluster.node(other).server().get("/health/ready").0, 503);
    cluster.node_mut(other).kill();
    cluster.nodes.retain(|node| node.server.is_some());
    cluster.add("d");
    cluster.until_in_step(2);
    assert_eq!(insist(cluster.node("d").server(), &["pop", "work", "--wait", "5s", "--ack"]), "still here\n");
}
