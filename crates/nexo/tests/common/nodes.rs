//! Nodes of a cluster as real processes, for the tests of clusters.

// Each test program uses its own part of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{self, Finished, Process, Server, eventually, nexo, serve_command};

pub const SECRET: &str = "a secret that all nodes share";

/// A node, whether it runs or not.
pub struct Node {
    pub name: &'static str,
    pub address: SocketAddr,
    pub data: PathBuf,
    pub server: Option<Server>,
}

impl Node {
    /// The running broker.
    pub fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub fn status(&self) -> Option<Value> {
        let shown = self.server.as_ref()?.run(&["--output", "json", "cluster", "status"]);
        serde_json::from_str(&shown.stdout).ok()
    }

    /// What this node takes for the risk, or nothing if it does not answer.
    pub fn risk(&self) -> String {
        self.status().and_then(|status| status["risk"].as_str().map(str::to_owned)).unwrap_or_default()
    }

    pub fn kill(&mut self) {
        self.server.take().unwrap().kill();
    }
}

/// A node with this secret and data.
pub fn serve(secret: &Path, data: &Path, args: &[String]) -> Server {
    let mut command = serve_command(data);
    command.env("NEXO_CLUSTER_SECRET_FILE", secret).env("NEXO_AMQP", "127.0.0.1:0").args(args);
    command.env("NEXO_SQS", "127.0.0.1:0");
    // So that little data is in several.
    command.env("NEXO_SEGMENT_BYTES", "1MiB");
    Server::start_by(command, data)
}

/// Nodes that are one cluster. They end with it.
pub struct Cluster {
    pub dir: TempDir,
    pub nodes: Vec<Node>,
}

impl Cluster {
    /// So many nodes, which all know each other.
    pub fn start(names: &[&'static str]) -> Self {
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
    pub fn add(&mut self, name: &'static str) {
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

    pub fn serve(&self, data: &Path, args: &[String]) -> Server {
        serve(&self.dir.path().join("secret"), data, args)
    }

    /// Starts a node again, with nothing but its data.
    pub fn restart(&mut self, name: &str) {
        let server = self.serve(&self.node(name).data.clone(), &[]);
        self.nodes.iter_mut().find(|node| node.name == name).unwrap().server = Some(server);
    }

    /// Starts all nodes again at the same time: none of them gets ready alone.
    pub fn restart_all(&mut self) {
        let secret = self.dir.path().join("secret");
        let servers: Vec<Server> = std::thread::scope(|scope| {
            let started: Vec<_> = self
                .nodes
                .iter()
                .map(|node| {
                    let (secret, data) = (&secret, &node.data);
                    scope.spawn(move || serve(secret, data, &[]))
                })
                .collect();
            started.into_iter().map(|server| server.join().unwrap()).collect()
        });
        for (node, server) in self.nodes.iter_mut().zip(servers) {
            node.server = Some(server);
        }
    }

    pub fn node(&self, name: &str) -> &Node {
        self.nodes.iter().find(|node| node.name == name).unwrap()
    }

    pub fn node_mut(&mut self, name: &str) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.name == name).unwrap()
    }

    pub fn running(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.server.is_some())
    }

    /// Who leads, as soon as all that run agree on it.
    pub fn leader(&self) -> &'static str {
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
    pub fn follower(&self) -> &Node {
        let leader = self.leader();
        self.running().find(|node| node.name != leader).unwrap()
    }

    pub fn until_in_step(&self, count: usize) {
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
pub fn insist(server: &Server, args: &[&str]) -> String {
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

/// Pushes numbered messages through a node, and gives back those that were confirmed.
pub fn push_until(is_over: &AtomicBool, name: &str, url: &str) -> Vec<String> {
    let bodies = (0..).map(|number| format!("{name}-{number}"));
    let bodies = bodies.take_while(|_| !is_over.load(Ordering::Relaxed));
    let is_confirmed = |body: &String| {
        let mut command = nexo();
        command.args(["push", "work", body]).env("NEXO_SERVER", url);
        Process::spawn(&mut command).finish().code == Some(0)
    };
    bodies.filter(is_confirmed).collect()
}
