//! A cluster as text.

use std::fmt::Write;

use comfy_table::Table;
use nexo_admin::{ClusterReport, NodeReport};

use crate::view::{Figures, columns};

/// The whole of it: what it can lose first.
pub(super) fn status(report: &ClusterReport) -> String {
    let mut figures = Figures::default();
    figures
        .add("cluster", &report.cluster)
        .add("health", report.health.word())
        .add("leader", report.leader.as_deref().unwrap_or("none"))
        .add("term", report.term)
        .add("told by", &report.node);
    let mut text = format!("{}\n\n{figures}\n\n{}", sentence(&report.risk), table(report));
    for (name, reason) in report.nodes.iter().filter_map(|node| Some((&node.name, node.reason.as_ref()?))) {
        // A text takes whatever is written to it.
        let _ = write!(text, "\n{name}: {reason}");
    }
    text
}

/// What is known of each node.
pub(super) fn nodes(report: &ClusterReport) -> String {
    table(report).to_string()
}

/// Who leads and who votes.
pub(super) fn groups(report: &ClusterReport) -> String {
    let mut table = columns(&["GROUP", "LEADER", "TERM", "COMMIT", "LAST", "VOTERS", "LEARNERS"]);
    for group in &report.groups {
        let list = |names: &[String]| if names.is_empty() { "-".to_owned() } else { names.join(",") };
        table.add_row([
            group.id.to_string(),
            group.leader.clone().unwrap_or_else(|| "none".to_owned()),
            group.term.to_string(),
            group.commit.to_string(),
            group.last.to_string(),
            list(&group.voters),
            list(&group.learners),
        ]);
    }
    table.to_string()
}

fn table(report: &ClusterReport) -> Table {
    let mut table = columns(&["NODE", "ROLE", "HEALTH", "LAG", "ROUND TRIP", "SKEW", "VERSION", "ADDRESS"]);
    for node in &report.nodes {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        table.add_row([
            node.name.clone(),
            node.role.word().to_owned(),
            health(node),
            or_dash(node.lag_entries.map(|lag| lag.to_string())),
            or_dash(node.round_trip_ms.map(|ms| format!("{ms:.1} ms"))),
            or_dash(node.skew_ms.map(|ms| format!("{ms} ms"))),
            or_dash(node.version.clone()),
            node.address.clone(),
        ]);
    }
    table
}

fn health(node: &NodeReport) -> String {
    if node.is_draining { format!("{}, drained", node.health.word()) } else { node.health.word().to_owned() }
}

/// With a capital letter and a full stop.
fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    format!("{first}{}.", letters.as_str())
}

#[cfg(test)]
mod tests {
    use nexo_admin::{ClusterHealth, GroupReport, NodeRole};

    use super::*;

    fn report() -> ClusterReport {
        let node = |id, name: &str, role| NodeReport {
            id,
            name: name.to_owned(),
            address: format!("{name}:7655"),
            added_at_ms: 0,
            role,
            is_reachable: true,
            health: ClusterHealth::Ok,
            reason: None,
            is_stuck: false,
            lag_entries: Some(0),
            round_trip_ms: None,
            skew_ms: None,
            version: Some("1.2.3".to_owned()),
            is_draining: false,
        };
        let mut nodes = vec![node(1, "a", NodeRole::Leader), node(2, "b", NodeRole::Follower)];
        nodes[1].reason = Some("its clock is off by 3000 ms".to_owned());
        nodes[1].health = ClusterHealth::AtRisk;
        nodes[1].round_trip_ms = Some(0.44);
        nodes[1].skew_ms = Some(3000);
        ClusterReport {
            cluster: "00ff".to_owned(),
            node: "a".to_owned(),
            leader: Some("a".to_owned()),
            term: 3,
            health: ClusterHealth::AtRisk,
            risk: "both nodes are in step: losing either stops the cluster".to_owned(),
            nodes,
            groups: vec![GroupReport {
                id: 0,
                leader: Some("a".to_owned()),
                term: 3,
                commit: 10,
                last: 11,
                voters: vec!["a".to_owned(), "b".to_owned()],
                learners: Vec::new(),
            }],
        }
    }

    #[test]
    fn what_can_be_lost_comes_first_and_each_node_has_a_line() {
        let text = status(&report());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "Both nodes are in step: losing either stops the cluster.");
        assert!(lines.iter().any(|line| line.starts_with("leader") && line.ends_with('a')), "{text}");
        let b = lines.iter().find(|line| line.starts_with("b ")).unwrap();
        assert!(b.contains("follower") && b.contains("0.4 ms") && b.contains("3000 ms"), "{b}");
        assert_eq!(lines.last(), Some(&"b: its clock is off by 3000 ms"));
        assert!(groups(&report()).contains("a,b"));
    }
}
