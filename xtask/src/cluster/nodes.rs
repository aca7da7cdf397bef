//! Nodes of Nexo as it was built for release, on loopback, with their data on the disk of all contenders.

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
    processes: Vec<BrokerProcess>,
    home: PathBuf,
    /// Which of them leads.
    leader: usize,
}

impl NexoNodes {
    /// Starts so many nodes of a cluster, or one by itself if there are to be none.
    pub(super) fn start(nexo: &Path, count: usize) -> anyhow::Result<Self> {
        let home = target().join("rivals-data").join(format!("cluster-{}", std::process::id()));
        std::fs::create_dir_all(&home).with_context(|| format!("cannot make '{}'", home.display()))?;
        let secret = home.join("secret");
        write(&secret, "a secret of this measurement alone")?;
        let mut started = Self { processes: Vec::new(), home, leader: 0 };
        let addresses = free_addresses::<3>()?;
        for (number, address) in addresses.iter().enumerate().take(count.max(1)) {
            let mut command = Command::new(nexo);
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
            command.arg("--data-dir").arg(started.home.join(format!("node-{number}")));
            if count > 0 {
                command.args(["--node", &format!("n{number}"), "--cluster", &address.to_string()]);
                command.arg("--cluster-secret-file").arg(&secret);
            }
            if number > 0 {
                command.args(["--join", &addresses[0].to_string()]);
            }
            started.processes.push(BrokerProcess::start(&mut command)?);
        }
        if count > 0 {
            started.leader = started.wait_until_in_step()?;
        }
        Ok(started)
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
    fn wait_until_in_step(&self) -> anyhow::Result<usize> {
        let end = Instant::now() + PATIENCE;
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
        let address = self.processes[0].address("http").context("a node has no HTTP")?;
        let answer =
            http::exchange(address, &http::request("GET", "/api/nexo/cluster", LOGIN, ""), PATIENCE)?;
        serde_json::from_str(&answer.body).with_context(|| format!("the cluster says {}", answer.body))
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
