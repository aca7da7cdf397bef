//! The nodes of a cluster, in RabbitMQ's words: how they are, waiting for them, taking one out, and what the cluster is called.
//! `nexo cluster` has more, and its own words.

use std::time::Instant;

use nexo_admin::{ClusterReport, NodeReport, NodeRole};
use serde_json::{Value, json};

use super::checks::{PAUSE, STARTUP_MAX, await_startup};
use super::formatter::Formatter;
use super::status::{alarms, listener_lines};
use super::stop::{Stop, TRY_LATER, UNAVAILABLE, USAGE};
use super::{ApiPath, Ctl};
use crate::management::Failure;

/// A node, as far as RabbitMQ's tool tells of one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    name: String,
    is_running: bool,
    is_drained: bool,
    /// Known of nodes that run.
    version: Option<String>,
}

impl Node {
    fn of(report: &NodeReport) -> Self {
        Self {
            name: report.name.clone(),
            is_running: is_running(report),
            is_drained: report.is_draining,
            version: report.version.clone(),
        }
    }

    /// Whether it is under maintenance, in RabbitMQ's words.
    const fn maintenance(&self) -> &'static str {
        if self.is_drained { "marked for maintenance" } else { "not under maintenance" }
    }
}

/// Whether a node counts: it answers, and it is a member of the cluster.
fn is_running(node: &NodeReport) -> bool {
    node.is_reachable && node.role != NodeRole::Joining
}

/// What the asked node knows of its cluster; `None` from a broker by itself.
async fn report(ctl: &mut Ctl) -> Result<Option<ClusterReport>, Failure> {
    let answer = match ctl.api.get(&ApiPath::of(&["nexo", "cluster"])).await {
        Ok(answer) => answer,
        Err(failure) if failure.is_not_found() => return Ok(None),
        Err(failure) => return Err(failure),
    };
    let unknown =
        |_| Failure::NoAnswer("the broker tells of its cluster what this version does not know".to_owned());
    serde_json::from_value(answer).map(Some).map_err(unknown)
}

pub(super) async fn status(ctl: &mut Ctl) -> Result<(), Stop> {
    let report = report(ctl).await?;
    let overview = ctl.api.get(&ApiPath::of(&["overview"])).await?;
    let mut answering = overview["node"].as_str().unwrap_or("nexo").to_owned();
    let version = overview["product_version"].as_str().unwrap_or_default();
    let (asked, nodes) = match &report {
        None => {
            let (name, version) = (answering.clone(), Some(version.to_owned()));
            (answering.clone(), vec![Node { name, is_running: true, is_drained: false, version }])
        }
        Some(report) => {
            // Whoever leads answers for the broker as a whole.
            answering = report.leader.clone().unwrap_or(answering);
            (report.node.clone(), report.nodes.iter().map(Node::of).collect())
        }
    };
    ctl.say(format_args!("Cluster status of node {asked} ..."))?;
    let mut shown = ctl.api.list(&ApiPath::of(&["nodes"])).await?;
    for node in shown.iter_mut().filter(|_| report.is_some()) {
        node["name"] = answering.as_str().into();
    }
    let alarms: Vec<String> = shown.iter().flat_map(alarms).collect();
    if ctl.formatter == Formatter::Json {
        return ctl.line(as_json(&overview, &nodes, &alarms));
    }
    let list = |lines: Vec<String>| if lines.is_empty() { "(none)".to_owned() } else { lines.join("\n") };
    let cluster = overview["cluster_name"].as_str().unwrap_or_default();
    ctl.line(format_args!("Basics\n\nCluster name: {cluster}\n"))?;
    ctl.line(format_args!("Disk Nodes\n\n{}\n", list(names(&nodes, |_| true))))?;
    ctl.line(format_args!("Running Nodes\n\n{}\n", list(names(&nodes, |node| node.is_running))))?;
    let versions = nodes.iter().filter_map(|node| Some((&node.name, node.version.as_ref()?)));
    let versions = versions.map(|(name, version)| format!("{name}: Nexo {version}"));
    ctl.line(format_args!("Versions\n\n{}\n", list(versions.collect())))?;
    let maintenance = nodes.iter().filter(|node| node.is_running);
    let maintenance = maintenance.map(|node| format!("Node: {}, status: {}", node.name, node.maintenance()));
    ctl.line(format_args!("Maintenance status\n\n{}\n", list(maintenance.collect())))?;
    ctl.line(format_args!("Alarms\n\n{}\n", list(alarms)))?;
    ctl.line("Network Partitions\n\n(none)\n\nListeners\n")?;
    for line in listener_lines(&overview) {
        ctl.line(format_args!("Node: {answering}, {}", line.replacen('I', "i", 1)))?;
    }
    Ok(())
}

fn names(nodes: &[Node], wanted: fn(&Node) -> bool) -> Vec<String> {
    nodes.iter().filter(|node| wanted(node)).map(|node| node.name.clone()).collect()
}

fn as_json(overview: &Value, nodes: &[Node], alarms: &[String]) -> Value {
    let versions = nodes.iter().filter_map(|node| {
        let version = node.version.as_ref()?;
        let both = json!({ "rabbitmq_version": overview["rabbitmq_version"], "product_version": version });
        Some((node.name.clone(), both))
    });
    let maintenance = nodes.iter().filter(|node| node.is_running);
    let maintenance = maintenance.map(|node| (node.name.clone(), node.maintenance().into()));
    json!({
        "cluster_name": overview["cluster_name"],
        "disk_nodes": names(nodes, |_| true),
        "ram_nodes": [],
        "running_nodes": names(nodes, |node| node.is_running),
        "alarms": alarms,
        "partitions": {},
        "listeners": overview["listeners"],
        "versions": Value::Object(versions.collect()),
        "maintenance_status": Value::Object(maintenance.collect()),
    })
}

pub(super) async fn await_online_nodes(ctl: &mut Ctl) -> Result<(), Stop> {
    let count = ctl.word(0).to_owned();
    let wrong = |_| ctl.wrong(USAGE, format!("'{count}' is no number of nodes"));
    let wanted: usize = count.parse().map_err(wrong)?;
    let patience = if ctl.given.has("timeout") { ctl.given.patience()? } else { STARTUP_MAX };
    let (url, seconds) = (ctl.api.url().to_string(), patience.as_secs());
    ctl.say(format_args!(
        "Will wait for at least {wanted} nodes to join the cluster of {url}. Timeout: {seconds} seconds."
    ))?;
    if wanted <= 1 {
        return await_startup(ctl).await;
    }
    let began = Instant::now();
    loop {
        let failure = match report(ctl).await {
            Ok(Some(report)) => match report.nodes.iter().filter(|node| is_running(node)).count() {
                running if running >= wanted => return Ok(()),
                running => format!("{running} of {} nodes run", report.nodes.len()),
            },
            // To wait would not help.
            Ok(None) => return Err(Stop::error(UNAVAILABLE, ALONE)),
            Err(failure @ (Failure::NotLoggedIn(_) | Failure::NoAnswer(_))) => return Err(failure.into()),
            Err(failure) => failure.to_string(),
        };
        if began.elapsed() >= patience {
            return Err(Stop::error(
                TRY_LATER,
                format_args!(
                    "timed out while waiting. Not enough nodes joined the cluster of {url}: {failure}"
                ),
            ));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// What it means to wait for other nodes of a broker by itself.
const ALONE: &str = "this broker is not in a cluster, so no other nodes will come; 'nexo serve --node NAME --cluster HOST:PORT' \
    makes it the first node of one";

pub(super) async fn forget_node(ctl: &mut Ctl) -> Result<(), Stop> {
    let name = ctl.word(0).to_owned();
    if ctl.given.has("offline") {
        let instead =
            "when a majority is gone for good, 'nexo cluster recover' has the node that is left go on alone";
        return Err(Stop::error(USAGE, format_args!("'--offline' is not done by this broker: {instead}")));
    }
    ctl.say(format_args!("Removing node {name} from the cluster"))?;
    ctl.api.delete(&ApiPath::of(&["nexo", "cluster", "nodes", &name])).await?;
    Ok(())
}

/// It is a global parameter, as in RabbitMQ.
pub(super) async fn set_name(ctl: &mut Ctl) -> Result<(), Stop> {
    let name = ctl.word(0).to_owned();
    ctl.say(format_args!("Setting cluster name to {name} ..."))?;
    let body = json!({ "name": "cluster_name", "value": name });
    ctl.api.put(&ApiPath::of(&["global-parameters", "cluster_name"]), &body).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, is_running: bool) -> Node {
        let version = is_running.then(|| "1.0".to_owned());
        Node { name: name.to_owned(), is_running, is_drained: name == "b", version }
    }

    #[test]
    fn nodes_that_do_not_answer_are_known_and_do_not_run() {
        let nodes = [node("a", true), node("b", true), node("c", false)];
        let overview = json!({ "cluster_name": "ours", "rabbitmq_version": "3.13.7" });
        let shown = as_json(&overview, &nodes, &[]);
        assert_eq!(shown["disk_nodes"], json!(["a", "b", "c"]));
        assert_eq!(shown["running_nodes"], json!(["a", "b"]));
        assert_eq!(shown["versions"]["a"]["product_version"], "1.0");
        assert_eq!(shown["versions"].get("c"), None);
        let maintenance = json!({ "a": "not under maintenance", "b": "marked for maintenance" });
        assert_eq!(shown["maintenance_status"], maintenance);
    }
}
