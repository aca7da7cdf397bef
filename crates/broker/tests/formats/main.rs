//! Data directories of earlier formats, kept as they were written: each opens, and everything in it is there.
//!
//! `fixtures/format-N` holds the files of a directory of format N as a crash left them, without the zeros at their ends,
//! which `lengths.txt` counts. `format-N-cluster` is that of a node of a cluster, which has its Raft group in the log, and
//! `format-N-jobs` one with nothing but job queues, whose snapshots have had versions of their own. A change of the format adds
//! directories beside those that are there:
//! `NEXO_FIXTURE=$PWD/crates/broker/tests/fixtures/format-N cargo test -p nexo-broker --test formats -- --ignored write_a_fixture`
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

#[path = "../common/mod.rs"]
mod common;
mod format_2;
mod format_3;
mod format_6;
mod jobs;
mod node;
mod policies;
mod refused;
mod schedules;
mod story;
mod users;

use std::fs;
use std::path::{Path, PathBuf};

use nexo_broker::{Broker, BrokerOptions};

use node::Node;

/// What is kept beside the files of the broker.
const LENGTHS: &str = "lengths.txt";
const RECEIPTS: &str = "receipts.txt";

fn fixture(format: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(format)
}

/// The files of a data directory that say something; spare ones hold nothing.
fn data_files(dir: &Path) -> Vec<String> {
    let segments = fs::read_dir(dir.join("segments")).unwrap();
    let mut files: Vec<String> = segments
        .map(|file| format!("segments/{}", file.unwrap().file_name().into_string().unwrap()))
        .collect();
    files.extend(["FORMAT".to_owned(), "INVENTORY".to_owned()]);
    files.sort_unstable();
    files
}

/// Keeps a copy of a data directory as it is now.
fn keep(data: &Path, fixture: &Path, receipts: &[String]) {
    fs::create_dir_all(fixture.join("segments")).unwrap();
    let mut lengths = String::new();
    for file in data_files(data) {
        let mut bytes = fs::read(data.join(&file)).unwrap();
        lengths.push_str(&format!("{file} {}\n", bytes.len()));
        bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        fs::write(fixture.join(file), bytes).unwrap();
    }
    fs::write(fixture.join(LENGTHS), lengths).unwrap();
    fs::write(fixture.join(RECEIPTS), receipts.join("\n")).unwrap();
}

/// Makes the data directory again; gives back receipts that clients had.
fn unpack(fixture: &Path, data: &Path) -> Vec<String> {
    fs::create_dir_all(data.join("segments")).unwrap();
    for line in fs::read_to_string(fixture.join(LENGTHS)).unwrap().lines() {
        let (file, length) = line.split_once(' ').unwrap();
        fs::copy(fixture.join(file), data.join(file)).unwrap();
        let file = fs::OpenOptions::new().write(true).open(data.join(file)).unwrap();
        file.set_len(length.parse().unwrap()).unwrap();
    }
    fs::read_to_string(fixture.join(RECEIPTS)).unwrap().lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn format_2_opens_with_everything_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let receipts = unpack(&fixture("format-2"), dir.path());
    let broker = Broker::open(BrokerOptions::new(dir.path())).unwrap();
    assert_eq!(receipts.len(), 2 * 5);
    format_2::check(&broker, &receipts, &[]).await;
    broker.shutdown().await;
    drop(broker);
    // What this build has made of it opens as well.
    let broker = Broker::open(BrokerOptions::new(dir.path())).unwrap();
    format_2::check_again(&broker, &[]).await;
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn format_3_opens_with_everything_in_it() {
    opens_with_everything_in_it("format-3").await;
}

/// The same story as before; its dead letters are records of their own.
#[tokio::test(flavor = "multi_thread")]
async fn format_4_opens_with_everything_in_it() {
    opens_with_everything_in_it("format-4").await;
}

/// The same story; where messages lie is beside the snapshots and not in them.
#[tokio::test(flavor = "multi_thread")]
async fn format_5_opens_with_everything_in_it() {
    opens_with_everything_in_it("format-5").await;
}

/// The same story, with virtual hosts and users.
#[tokio::test(flavor = "multi_thread")]
async fn format_6_opens_with_everything_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let receipts = unpack(&fixture("format-6"), dir.path());
    check_format_6(dir.path(), Node::ByItself, &receipts, Policies::NotYet, Schedules::NotYet).await;
}

/// The same story, with policies and parameters.
#[tokio::test(flavor = "multi_thread")]
async fn format_7_opens_with_everything_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let receipts = unpack(&fixture("format-7"), dir.path());
    check_format_6(dir.path(), Node::ByItself, &receipts, Policies::Told, Schedules::NotYet).await;
}

/// The same story, with schedules and job queues.
#[tokio::test(flavor = "multi_thread")]
async fn format_8_opens_with_everything_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let receipts = unpack(&fixture("format-8"), dir.path());
    check_format_6(dir.path(), Node::ByItself, &receipts, Policies::Told, Schedules::Told).await;
}

/// The same story; checkpoints may say what is known of a Raft group, and a schedule asks for a job.
#[tokio::test(flavor = "multi_thread")]
async fn format_9_opens_with_everything_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let receipts = unpack(&fixture("format-9"), dir.path());
    check_format_6(dir.path(), Node::ByItself, &receipts, Policies::Told, Schedules::WithJobs).await;
}

/// The same story, told by a node of a cluster: entries of the group, its promises, and a manifest that says where it stands.
/// Snapshots of job queues are of their second version.
#[tokio::test(flavor = "multi_thread")]
async fn format_9_of_a_node_of_a_cluster_opens_with_everything_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let receipts = unpack(&fixture("format-9-cluster"), dir.path());
    check_format_6(dir.path(), Node::OfCluster, &receipts, Policies::Told, Schedules::WithFigures).await;
}

/// Nobody takes the data of a node for that of a broker by itself: entries that do not count would be taken for the rest.
#[tokio::test(flavor = "multi_thread")]
async fn the_data_of_a_node_of_a_cluster_is_not_opened_by_a_broker_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    unpack(&fixture("format-9-cluster"), dir.path());
    let refused = Broker::open(BrokerOptions::new(dir.path())).unwrap_err().to_string();
    assert!(refused.contains("the data belongs to a node of a cluster; start it as one"), "{refused}");
}

/// Job queues alone, with snapshots of their second version.
#[tokio::test(flavor = "multi_thread")]
async fn format_9_with_later_snapshots_of_job_queues_opens_with_everything_in_it() {
    let dir = tempfile::tempdir().unwrap();
    unpack(&fixture("format-9-jobs"), dir.path());
    for _ in 0..2 {
        let broker = Broker::open(BrokerOptions::new(dir.path())).unwrap();
        jobs::check(&broker, 5).await;
        jobs::check_figures(&broker);
        broker.shutdown().await;
    }
}

/// What this build writes, as a crash leaves it.
#[tokio::test(flavor = "multi_thread")]
async fn the_latest_format_opens_with_everything_in_it() {
    written_now_opens(Node::ByItself).await;
}

/// What this build writes as a node of a cluster, as a crash leaves it.
#[tokio::test(flavor = "multi_thread")]
async fn the_latest_format_of_a_node_of_a_cluster_opens_with_everything_in_it() {
    written_now_opens(Node::OfCluster).await;
}

async fn written_now_opens(node: Node) {
    let (told, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let copy = crashed.path().join("copy");
    let (broker, receipts) = story::tell(told.path(), node).await;
    keep(told.path(), &copy, &receipts);
    broker.shutdown().await;
    let data = crashed.path().join("data");
    let receipts = unpack(&copy, &data);
    check_format_6(&data, node, &receipts, Policies::Told, Schedules::WithFigures).await;
}

/// Whether a story tells of policies.
#[derive(Clone, Copy)]
enum Policies {
    NotYet,
    Told,
}

impl Policies {
    async fn check(self, broker: &Broker) {
        match self {
            Self::NotYet => assert!(broker.policies().is_without_policies()),
            Self::Told => policies::check(broker).await,
        }
    }
}

/// Whether a story tells of schedules and of job queues: they came with the same format.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Schedules {
    NotYet,
    Told,
    /// There are some that ask for jobs.
    WithJobs,
    /// And snapshots of job queues are of their second version.
    WithFigures,
}

impl Schedules {
    async fn check(self, broker: &Broker) {
        match self {
            Self::NotYet => {
                assert!(broker.schedules().is_empty());
                assert!(broker.look_at_jobs(|jobs, _| jobs.queues().next().is_none()));
            }
            Self::Told => {
                schedules::check(broker, 3).await;
                jobs::check(broker, 5).await;
            }
            Self::WithJobs | Self::WithFigures => {
                schedules::check(broker, 4).await;
                jobs::check(broker, 6).await;
                jobs::check_schedules(broker);
                if self == Self::WithFigures {
                    jobs::check_figures(broker);
                }
            }
        }
    }
}

async fn check_format_6(
    data: &Path,
    node: Node,
    receipts: &[String],
    policies: Policies,
    schedules: Schedules,
) {
    let broker = node.open(BrokerOptions::new(data)).await;
    if node == Node::OfCluster {
        node::check_group(&broker);
    }
    users::check(&broker);
    policies.check(&broker).await;
    schedules.check(&broker).await;
    format_6::check(&broker, receipts).await;
    broker.shutdown().await;
    drop(broker);
    let broker = node.open(BrokerOptions::new(data)).await;
    users::check(&broker);
    policies.check(&broker).await;
    schedules.check(&broker).await;
    format_6::check_again(&broker).await;
    broker.shutdown().await;
}

async fn opens_with_everything_in_it(format: &str) {
    let dir = tempfile::tempdir().unwrap();
    let receipts = unpack(&fixture(format), dir.path());
    let broker = Broker::open(BrokerOptions::new(dir.path())).unwrap();
    format_3::check(&broker, &receipts).await;
    broker.shutdown().await;
    drop(broker);
    let broker = Broker::open(BrokerOptions::new(dir.path())).unwrap();
    format_3::check_again(&broker).await;
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes a fixture, once for each format; the command is at the head of this file"]
async fn write_a_fixture() {
    let target = PathBuf::from(std::env::var_os("NEXO_FIXTURE").expect("NEXO_FIXTURE says where to"));
    assert!(!target.exists(), "a fixture is never written again: {}", target.display());
    let dir = tempfile::tempdir().unwrap();
    let name = target.file_name().unwrap().to_str().unwrap();
    let (broker, receipts) = match name.rsplit_once('-').unwrap().1 {
        "jobs" => (story::tell_of_jobs(dir.path()).await, Vec::new()),
        "cluster" => story::tell(dir.path(), Node::OfCluster).await,
        _ => story::tell(dir.path(), Node::ByItself).await,
    };
    // Everything is synced: this is what a crash would leave.
    keep(dir.path(), &target, &receipts);
    broker.shutdown().await;
}
