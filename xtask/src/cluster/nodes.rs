//! Nodes of Nexo as it was built for release, on loopback, with their data on the disk of all contenders.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nexo_harness::{BrokerProcess, PATIENCE, free_addresses, http};
use serde_json::Value;

use super::contender::Node;
use crate::run::{target, write};

/// `guest:guest`.
const LOGIN: &str = "Host: localhost\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n";

/// Running nodes, ended when dropped.
pub(super) struct NexoNodes {
    nexo: PathBuf,
    processes: Vec<BrokerProcess>,
    home: PathBuf,
    /// Where the nodes reach each other. A node by itself has none.
    addresses: Vec<SocketAddr>,
    /// Which of them leads.
    leader: usize,
}

impl NexoNodes {
    /// Starts so many nodes of a cluster, or one by itself if there are to be none.
    pub(super) fn start(nexo: &Path, count: usize) -> anyhow::Result<Self> {
        let home = target().join("rivals-data").join(format!("cluster-{}", std::process::id()));
        std::fs::create_dir_all(&home).with_context(|| format!("cannot make '{}'", home.display()))?;
        write(&home.join("secret"), "a secret of this measurement alone")?;
        let addresses = free_addresses::<3>()?[..count].to_vec();
        let mut started = Self { nexo: nexo.into(), processes: Vec::new(), home, addresses, leader: 0 };
        for number in 0..count.max(1) {
            let process = BrokerProcess::start(&mut started.command(number))?;
            started.processes.push(process);
        }
        if count > 0 {
            started.leader = started.wait_until_in_step(PATIENCE)?;
        }
        Ok(started)
    }

    /// What starts a node, the first time and later.
    fn command(&self, number: usize) -> Command {
        let mut command = Command::new(&self.nexo);
        command.args([
            "serve",
            "--amqp",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--grpc",
            "off",
            "--sqs",
            "off",
        ]);
        command.arg("--data-dir").arg(self.data_dir(number));
        if let Some(address) = self.addresses.get(number) {
            command.args(["--node", &format!("n{number}"), "--cluster", &address.to_string()]);
            command.arg("--cluster-secret-file").arg(self.home.join("secret"));
            let others = self.addresses.iter().filter(|other| *other != address).map(ToString::to_string);
            if number > 0 {
                command.args(["--join", &others.collect::<Vec<_>>().join(",")]);
            }
        }
        command
    }

    fn data_dir(&self, number: usize) -> PathBuf {
        self.home.join(format!("node-{number}"))
    }

    /// One that does not lead, and may lose its disk: the first node would begin another cluster then.
    pub(super) fn follower(&self) -> usize {
        if self.leader == 2 { 1 } else { 2 }
    }

    /// Ends a node as a power cut would.
    pub(super) fn kill(&mut self, number: usize) {
        self.processes[number].kill();
    }

    /// Starts one again that was ended.
    pub(super) fn start_again(&mut self, number: usize) -> anyhow::Result<()> {
        self.processes[number] = BrokerProcess::start(&mut self.command(number))?;
        Ok(())
    }

    /// Has the others forget a node that was ended, and takes away its disk.
    pub(super) fn wipe(&self, number: usize) -> anyhow::Result<()> {
        let path = format!("/api/nexo/cluster/nodes/n{number}");
        let answer = http::exchange(self.http()?, &http::request("DELETE", &path, LOGIN, ""), PATIENCE)?;
        ensure!(answer.status == 204, "node n{number} is not removed: {} {}", answer.status, answer.body);
        std::fs::remove_dir_all(self.data_dir(number)).context("cannot remove the data of a node")
    }

    /// Bytes of whole states that the leader has sent.
    pub(super) fn state_bytes_sent(&self) -> anyhow::Result<u64> {
        let answer = http::exchange(self.http()?, &http::request("GET", "/metrics", LOGIN, ""), PATIENCE)?;
        let line =
            answer.body.lines().find_map(|line| line.strip_prefix("nexo_cluster_snapshot_sent_bytes_total "));
        line.and_then(|value| value.trim().parse().ok()).context("the metrics do not tell what was sent")
    }

    /// Declares so many durable queues.
    pub(super) fn declare_queues(&self, count: u32) -> anyhow::Result<()> {
        let queue =
            |number| serde_json::json!({"name": format!("idle-{number}"), "vhost": "/", "durable": true});
        let queues: Vec<Value> = (0..count).map(queue).collect();
        let body = serde_json::json!({ "queues": queues }).to_string();
        let head = format!("{LOGIN}Content-Type: application/json\r\n");
        let request = http::request("POST", "/api/definitions", &head, &body);
        let answer = http::exchange(self.http()?, &request, PATIENCE)?;
        ensure!(answer.status == 204, "the queues are not declared: {} {}", answer.status, answer.body);
        Ok(())
    }

    /// Messages in all queues, as the leader tells.
    pub(super) fn messages(&self) -> anyhow::Result<u64> {
        let overview = self.get("/api/overview")?;
        overview
            .pointer("/queue_totals/messages")
            .and_then(Value::as_u64)
            .context("the overview counts nothing")
    }

    /// The nodes, the leader first.
    pub(super) fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        let count = self.processes.len();
        let order = (0..count).map(|at| &self.processes[(self.leader + at) % count]);
        let nodes = order.map(|process| {
            let amqp = process.address("amqp").context("a node has no AMQP")?;
            Ok(Node { url: format!("amqp://guest:guest@{amqp}/%2F"), pid: process.pid() })
        });
        nodes.collect()
    }

    /// Waits until all have everything, and says which leads.
    pub(super) fn wait_until_in_step(&self, patience: Duration) -> anyhow::Result<usize> {
        let end = Instant::now() + patience;
        loop {
            let told = self.report();
            if let Ok(report) = &told
                && let Some(leader) = leader_in(report, self.processes.len())
            {
                return Ok(leader);
            }
            ensure!(Instant::now() < end, "the nodes do not find together: {told:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn report(&self) -> anyhow::Result<Value> {
        self.get("/api/nexo/cluster")
    }

    fn get(&self, path: &str) -> anyhow::Result<Value> {
        let answer = http::exchange(self.http()?, &http::request("GET", path, LOGIN, ""), PATIENCE)?;
        serde_json::from_str(&answer.body).with_context(|| format!("{path} says {}", answer.body))
    }

    /// The management port of the leader.
    fn http(&self) -> anyhow::Result<&str> {
        self.processes[self.leader].address("http").context("a node has no HTTP")
    }
}

impl Drop for NexoNodes {
    fn drop(&mut self) {
        self.processes.iter_mut().for_each(BrokerProcess::kill);
        std::fs::remove_dir_all(&self.home).ok();
    }
}

/// The number of the leader, if all nodes are voters and lack nothing.
fn leader_in(report: &Value, count: usize) -> Option<usize> {
    let nodes = report.get("nodes")?.as_array()?;
    let voters = report.pointer("/groups/0/voters")?.as_array()?;
    let is_in_step = |node: &Value| node.get("lag_entries").and_then(Value::as_u64) == Some(0);
    if voters.len() != count || nodes.len() != count || !nodes.iter().all(is_in_step) {
        return None;
    }
    report.get("leader")?.as_str()?.strip_prefix('n')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_leader_counts_when_all_are_in_step() {
        let report = |lag: u64| {
            json!({"leader": "n1", "nodes": [{"lag_entries": 0}, {"lag_entries": lag}],
                   "groups": [{"voters": ["n0", "n1"]}]})
        };
        assert_eq!(leader_in(&report(0), 2), Some(1));
        assert_eq!(leader_in(&report(3), 2), None);
        assert_eq!(leader_in(&report(0), 3), None);
        assert_eq!(leader_in(&json!({}), 1), None);
    }
}
