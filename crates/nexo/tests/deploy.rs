//! The files of `deploy` say what the broker understands.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use common::{Process, nexo};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// All words of a text that begin with `NEXO_`.
fn variables(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !(letter.is_ascii_uppercase() || letter == '_'));
    words.filter(|word| word.starts_with("NEXO_")).map(str::to_owned).collect()
}

fn help(args: &[&str]) -> String {
    Process::spawn(nexo().args(args)).finish().ok()
}

#[test]
fn every_variable_of_the_chart_is_a_setting() {
    let chart = deploy().join("helm/nexo/templates/statefulset.yaml");
    let used = variables(&fs::read_to_string(chart).unwrap());
    let mut known = variables(&help(&["serve", "--help"]));
    known.extend(variables(&help(&["cluster", "status", "--help"])));
    assert!(used.len() > 12, "{used:?}");
    let unknown: Vec<_> = used.difference(&known).collect();
    assert!(unknown.is_empty(), "{unknown:?} are not settings");
}

#[test]
fn the_ports_and_probes_of_the_chart_go_together() {
    let chart = deploy().join("helm/nexo/templates");
    let pods = fs::read_to_string(chart.join("statefulset.yaml")).unwrap();
    let services = fs::read_to_string(chart.join("services.yaml")).unwrap();
    for (name, port) in [("cluster", 7655), ("amqp", 5672), ("grpc", 7654), ("sqs", 9324), ("http", 15672)] {
        assert!(pods.contains(&format!("- name: {name}\n              containerPort: {port}\n")), "{name}");
        assert!(services.contains(&format!("port: {port}\n      targetPort: {name}\n")), "{name}");
        assert!(pods.contains(&format!("0.0.0.0:{port}\"")), "{name}");
    }
    assert!(
        services.contains("publishNotReadyAddresses: true"),
        "nodes find each other before they are ready"
    );
    assert_eq!(pods.matches("path: /health/live").count(), 2);
    assert_eq!(pods.matches("path: /health/ready").count(), 1);
}

/// It gets as far as the secret, which is not there: all settings before that were understood.
#[test]
fn the_settings_of_the_unit_are_understood() {
    let file = deploy().join("systemd/nexo.toml");
    let text = fs::read_to_string(&file).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (data, copy) = (dir.path().join("data"), dir.path().join("nexo.toml"));
    let missing = dir.path().join("no-secret");
    let text = text.replace("/var/lib/nexo", data.to_str().unwrap());
    let text = text.replace("/etc/nexo/secret", missing.to_str().unwrap());
    let ports = ["amqp", "grpc", "http"];
    let text = ports.iter().fold(text, |text, name| {
        let line = text.lines().find(|line| line.starts_with(&format!("{name} = "))).unwrap().to_owned();
        text.replace(&line, &format!("{name} = \"127.0.0.1:0\""))
    });
    fs::write(&copy, format!("{text}sqs = \"off\"\n")).unwrap();
    let refused = Process::spawn(nexo().args(["serve", "--config"]).arg(&copy)).finish().error();
    assert!(refused.contains("cannot read the cluster's secret"), "{refused}");
    let unit = fs::read_to_string(deploy().join("systemd/nexo.service")).unwrap();
    assert!(unit.contains("nexo serve --config /etc/nexo/nexo.toml"), "{unit}");
}
