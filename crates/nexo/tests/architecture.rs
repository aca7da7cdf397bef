//! Holds ARCHITECTURE.md against the sources and the running program.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> String {
    fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap()
}

/// The first cells of a table that begins with this heading, without their back-quotes.
fn column(page: &str, heading: &str) -> Vec<String> {
    let (_, table) = page.split_once(heading).unwrap_or_else(|| panic!("there is no table '{heading}'"));
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('|').nth(1).unwrap().split('`').nth(1).unwrap().to_owned()).collect()
}

/// What a crate needs to be built, of ours.
fn dependencies(manifest: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(manifest).unwrap();
    let (_, rest) = text.split_once("\n[dependencies]\n").unwrap_or_default();
    let lines = rest.lines().take_while(|line| !line.starts_with('['));
    let ours = lines.filter_map(|line| line.strip_prefix("nexo-"));
    ours.map(|line| line.split(['.', ' ', '=']).next().unwrap().to_owned()).collect()
}

#[test]
fn dependencies_point_down_only() {
    let crates = column(&page(), "| crate | owns | refuses |");
    let folders = fs::read_dir(root().join("crates")).unwrap();
    let there: BTreeSet<String> =
        folders.map(|folder| folder.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(crates.iter().cloned().collect::<BTreeSet<_>>(), there, "the map names all crates");
    let tools = column(&page(), "| tool | owns | refuses |");
    let mut found = 0;
    for (place, name) in crates.iter().enumerate() {
        for needed in dependencies(&root().join("crates").join(name).join("Cargo.toml")) {
            let at = crates.iter().position(|other| *other == needed);
            let is_tool_of_binary = name == "nexo" && tools.contains(&needed);
            assert!(at.is_some_and(|at| at > place) || is_tool_of_binary, "{name} depends on {needed}");
            found += 1;
        }
    }
    assert!(found > 15, "only {found} dependencies were found");
}

#[test]
fn every_path_is_there() {
    let page = page();
    let quoted = page.split('`').skip(1).step_by(2);
    let paths: Vec<&str> = quoted
        .filter(|text| text.contains('/') && !text.ends_with('/') && !text.contains([' ', '{', ':']))
        .collect();
    assert!(paths.len() > 30, "only {} paths were found", paths.len());
    for path in paths {
        let places = [root().join(path), root().join("crates").join(path)];
        assert!(places.iter().any(|place| place.exists()), "there is no {path}");
    }
}

/// All sources below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn no_comment_is_a_question_word() {
    let mut found = Vec::new();
    for folder in ["crates", "tools", "xtask"] {
        sources(&root().join(folder), &mut found);
    }
    assert!(found.len() > 500, "only {} sources were found", found.len());
    for path in found {
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            let comment = line.trim_start().strip_prefix("/// ");
            let is_empty = comment.is_some_and(|words| {
                matches!(words, "Which." | "When." | "Why." | "Who." | "How." | "Where." | "What.")
            });
            assert!(!is_empty, "{}:{}: '{}' says nothing", path.display(), number + 1, line.trim());
        }
    }
}

/// The words of a text that begin with a capital.
fn capitals(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_alphanumeric());
    words.filter(|word| word.starts_with(char::is_uppercase)).collect()
}

/// The variants of an enum, as its source names them.
fn variants<'a>(source: &'a str, heading: &str) -> BTreeSet<&'a str> {
    let (_, body) = source.split_once(heading).unwrap_or_else(|| panic!("there is no '{heading}'"));
    let lines = body.lines().skip(1).take_while(|line| *line != "}");
    let names =
        lines.filter_map(|line| line.strip_prefix("    ")?.split(|c: char| !c.is_alphanumeric()).next());
    names.filter(|name| name.starts_with(char::is_uppercase)).collect()
}

#[test]
fn the_life_of_a_message_is_told_in_records() {
    let page = page();
    let (_, life) = page.split_once("## The life of a message").unwrap();
    let (_, diagram) = life.split_once("```text").unwrap();
    let (diagram, _) = diagram.split_once("```").unwrap();
    let told = capitals(diagram);
    let source = fs::read_to_string(root().join("crates/core/src/record.rs")).unwrap();
    let records = variants(&source, "pub enum Record {");
    assert!(told.len() > 4 && records.len() > 10, "{told:?} of {records:?}");
    assert!(told.is_subset(&records), "no records: {:?}", told.difference(&records).collect::<Vec<_>>());
}

/// What the system shows of a name.
fn shown(name: &str) -> String {
    name.chars().take(15).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn every_thread_is_in_the_inventory() {
    let listed = |heading| column(&page(), heading).iter().map(|name| shown(name)).collect::<BTreeSet<_>>();
    let mut alone = listed("| thread | number |");
    assert!(alone.remove("jemalloc_bg_thd"));
    assert_runs(&[], &alone);
    let mut in_cluster = listed("| thread in a cluster | number |");
    assert!(
        in_cluster.remove(&shown("nexo-raft-state")),
        "it comes and goes, and a node alone sends nobody a state"
    );
    in_cluster.extend(alone);
    let [address] = nexo_harness::free_addresses::<1>().unwrap().map(|address| address.to_string());
    assert_runs(&["--node", "a", "--cluster", &address], &in_cluster);
}

/// Starts a broker with these arguments, which must have these threads.
#[cfg(target_os = "linux")]
fn assert_runs(args: &[&str], threads: &BTreeSet<String>) {
    let dir = tempfile::tempdir().unwrap();
    let broker = common::Server::start_in(&dir.path().join("data"), args);
    let deadline = Instant::now() + common::PATIENCE;
    // A thread has the name of the one that made it until it gives itself its own.
    while running(broker.pid()) != *threads && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(running(broker.pid()), *threads, "{args:?}");
}

/// The names of a process's threads, without those of its first one and of the allocator's, which come and go.
#[cfg(target_os = "linux")]
fn running(pid: u32) -> BTreeSet<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    let names = names.map(|name| name.trim().to_owned());
    names.filter(|name| !["nexo", "jemalloc_bg_thd"].contains(&name.as_str())).collect()
}
