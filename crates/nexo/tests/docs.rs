//! The commands in README.md and docs/ run as they are written, in order, against a real broker in a directory of their
//! own. What differs from a reader's terminal is said here:
//!
//! - The broker has free ports. Client commands find it by `NEXO_SERVER` and `NEXO_MANAGEMENT`; `nexo bench` is given its addresses in place of
//!   the usual ones.
//! - `nexo serve` gets free ports and data of its own by the environment, or in place of those that it is given, and is
//!   ended after three seconds.
//! - `nexo bench` measures for a moment only.
//! - `curl` asks the broker's management port in place of the usual one, and an answer that is an error fails.
//! - Lines of [`ELSEWHERE`] are not run here, each for its reason.
//!
//! A block that begins with anything else fails, unless it is one of [`NO_COMMANDS`].

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Process, Server, nexo};

/// How lines begin that are not run here, and why.
const ELSEWHERE: [(&str, &str); 10] = [
    ("cargo run", "it builds for release, and then serves as 'nexo serve' does, which is run"),
    (
        "examples/",
        "it builds for release; 'cargo xtask conformance nexo' runs it on the broker that was just built",
    ),
    ("cargo xtask", "it takes minutes; that there is such a command is checked"),
    ("aws ", "the AWS command line may not be installed; 'cargo xtask conformance sqs' does what it says"),
    ("import boto3", "the block is Python, and runs in 'cargo xtask conformance sqs', or that of 'nexo'"),
    ("import ssl", "the block is Python, and runs in 'cargo xtask conformance nexo'"),
    ("nexo --server https", "it needs a broker with TLS, of which tests/tls.rs has one"),
    ("helm ", "it needs Kubernetes; tests/deploy.rs holds the chart against the settings of the broker"),
    ("nexo serve --node", "it needs other nodes, which tests/cluster.rs starts"),
    (
        "nexo cluster",
        "it needs a cluster, of which tests/cluster_nodes.rs has one; that there is such a command is checked",
    ),
];

/// How blocks begin that hold no commands, and what they are.
const NO_COMMANDS: [(&str, &str); 10] = [
    ("0        header block", "the layout of a file"),
    ("Resurrected: ", "what a torture prints"),
    ("push ─┬─", "the life of a message"),
    ("client ── any node", "the path of a message through three nodes"),
    ("ask ──►", "the life of a job"),
    ("{", "an answer, as JSON"),
    ("[Unit]", "a unit of systemd"),
    ("data_dir = ", "a file of settings"),
    ("services:", "containers that are started together"),
    ("prefetch ? 100", "expressions, which the tests of 'expr' evaluate"),
];

/// What stands before a command in the shell that runs it: `nexo` with what differs from a reader's terminal.
const SHIM: &str = r#"#!/bin/sh
# Args: as typed. AMQP, SQS: addresses of the broker. NEXO: the program.
case "$1" in
serve)
    shift; n=$#; secure=
    case "$*" in *--tls-cert*)
        for port in AMQPS GRPC_TLS SQS_TLS HTTPS; do secure="$secure NEXO_$port=127.0.0.1:0"; done ;;
    esac
    while [ $n -gt 0 ]; do
        set -- "$@" "$(echo "$1" | sed -E 's/(127\.0\.0\.1|\[::1\]):[0-9]+/\1:0/g')"; shift; n=$((n - 1))
    done
    # In the foreground: otherwise it signals the whole group, and the second signal ends a broker at once.
    exec timeout --foreground --preserve-status -s TERM 3 env NEXO_AMQP=127.0.0.1:0 NEXO_GRPC=127.0.0.1:0 NEXO_SQS=127.0.0.1:0 \
        NEXO_HTTP=127.0.0.1:0 NEXO_DATA_DIR=other-data $secure "$NEXO" serve "$@" ;;
bench)
    case "$2" in throughput | latency) ;; *) exec "$NEXO" "$@" ;; esac
    mode=$2; shift 2; url="amqp://guest:guest@$AMQP/%2F"; n=$#
    while [ $n -gt 0 ]; do
        word=$1; shift; n=$((n - 1))
        case "$word" in
        --url) url=$1; shift; n=$((n - 1)) ;;
        *) set -- "$@" "$word" ;;
        esac
    done
    url=$(echo "$url" | sed -e "s/127.0.0.1:5672/$AMQP/" -e "s/127.0.0.1:9324/$SQS/")
    exec "$NEXO" bench "$mode" "$@" --url "$url" --duration 300ms --warmup 100ms ;;
*) exec "$NEXO" "$@" ;;
esac
"#;

/// The same for `curl`. HTTP: address of the management port. CURL: the program.
const CURL_SHIM: &str = r#"#!/bin/sh
n=$#
while [ $n -gt 0 ]; do
    set -- "$@" "$(printf %s "$1" | sed "s/127.0.0.1:15672/$HTTP/")"; shift; n=$((n - 1))
done
exec "$CURL" --silent --show-error --fail-with-body "$@"
"#;

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// README.md and docs/*.md, with what they hold.
fn pages() -> Vec<(String, String)> {
    let mut paths = vec![root().join("README.md"), root().join("ARCHITECTURE.md")];
    paths.extend(fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    paths.retain(|path| path.extension().is_some_and(|end| end == "md"));
    paths.sort();
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

/// Blocks of a page that hold commands: indented by four spaces or fenced.
fn blocks(page: &str) -> Vec<Vec<String>> {
    let is_command = |line: &str| {
        ["nexo ", "openssl ", "curl "].iter().any(|begin| line.starts_with(begin)) || elsewhere(line)
    };
    let is_none = |line: &str| NO_COMMANDS.iter().any(|(begin, _)| line.starts_with(begin));
    let mut blocks = vec![Vec::new()];
    let mut fenced = false;
    for line in page.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
            blocks.push(Vec::new());
        } else if let Some(line) = line.strip_prefix("    ").or(fenced.then_some(line)) {
            blocks.last_mut().unwrap().push(line.to_owned());
        } else if !line.is_empty() {
            blocks.push(Vec::new());
        }
    }
    blocks.retain(|block| block.first().is_some_and(|line| !is_none(line)));
    for block in &blocks {
        assert!(
            is_command(&block[0]),
            "nobody knows what to do with a block that begins with {:?}",
            block[0]
        );
    }
    blocks
}

/// Code within sentences that is a command of this program.
fn mentioned<'a>(page: &'a str, program: &str) -> Vec<&'a str> {
    let spans = page.split('`').skip(1).step_by(2);
    spans.filter(|span| !span.contains('\n') && span.starts_with(program)).collect()
}

/// Where a program is.
fn found_on_path(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("the pages use '{program}', which is not installed"))
}

fn elsewhere(line: &str) -> bool {
    ELSEWHERE.iter().any(|(begin, _)| line.starts_with(begin))
}

/// Runs the lines of one page in order, in one directory; gives what each printed.
fn run_page(name: &str, page: &str) -> Vec<(String, String)> {
    let dir = tempfile::tempdir().unwrap();
    // A reader's broker has its data here too.
    let data = dir.path().join("nexo-data");
    let server = Server::start_in(&data, &["--amqp", "127.0.0.1:0", "--sqs", "127.0.0.1:0"]);
    let address = |name| nexo_harness::address_in(&server.ready, name).unwrap();
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    for (name, shim) in [("nexo", SHIM), ("curl", CURL_SHIM)] {
        fs::write(bin.join(name), shim).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let curl = found_on_path("curl");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut printed = Vec::new();
    let lines = blocks(page).into_iter().filter(|block| !block[0].starts_with("import ")).flatten();
    for line in lines.filter(|line| !elsewhere(line)) {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &line])
            .current_dir(dir.path())
            .env("PATH", &path)
            .env("NEXO", env!("CARGO_BIN_EXE_nexo"))
            .env("NEXO_SERVER", server.url())
            .env("NEXO_MANAGEMENT", format!("http://{}", server.http))
            .env("AMQP", address("amqp"))
            .env("SQS", address("sqs"))
            .env("HTTP", &server.http)
            .env("CURL", &curl)
            .stdin(Stdio::null());
        let finished = Process::spawn(&mut shell).finish();
        assert_eq!(finished.code, Some(0), "{name}: {line}\n{finished:?}");
        printed.push((line, finished.stdout));
    }
    for (file, content) in [("outbox.txt", "later")] {
        if page.contains(file) {
            assert_eq!(fs::read_to_string(dir.path().join(file)).unwrap(), content, "{name}");
        }
    }
    printed
}

#[test]
fn the_first_minute_of_the_readme_works() {
    let (name, page) = pages().into_iter().find(|(name, _)| name == "README.md").unwrap();
    let printed = run_page(&name, &page);
    let of = |begin: &str| {
        let found = printed.iter().find(|(line, _)| line.starts_with(begin));
        found.unwrap_or_else(|| panic!("no '{begin}' in {printed:?}")).1.as_str()
    };
    assert_eq!(of("nexo pop mail"), "hello\n");
    assert_eq!(of("nexo jobs answer deals ann"), "[{\"price\":80}]\n");
    assert!(of("nexo queue redrive mail_dlq").starts_with("moved 1 message "), "{printed:?}");
    assert!(of("nexo bench throughput --persistent").contains(" msg/s"), "{printed:?}");
}

#[test]
fn the_commands_of_the_other_pages_work() {
    let mut ran = 0;
    for (name, page) in pages().into_iter().filter(|(name, _)| name != "README.md") {
        ran += run_page(&name, &page).len();
    }
    assert!(ran >= 4, "only {ran} commands were found");
}

#[test]
#[should_panic(expected = "a block that begins with \"wget ")]
fn a_block_that_nobody_runs_is_found() {
    blocks("Ask for it:\n\n    wget http://127.0.0.1:15672/health\n");
}

#[test]
#[should_panic(expected = "there is no job queue 'none'")]
fn an_answer_that_is_an_error_is_found() {
    run_page("a page", "    curl -u guest:guest http://127.0.0.1:15672/api/jobs/queues/%2F/none\n");
}

#[test]
fn commands_that_are_mentioned_exist() {
    let xtask = fs::read_to_string(root().join("xtask/src/main.rs")).unwrap();
    let mut seen = 0;
    for (name, page) in pages() {
        for mention in mentioned(&page, "nexo ") {
            let is_word = |word: &&str| {
                word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-')
            };
            let words: Vec<&str> = mention.split_whitespace().skip(1).take_while(is_word).take(2).collect();
            // The second word may be a queue.
            let help =
                |words: &[&str]| Process::spawn(nexo().args(words).arg("--help")).finish().code == Some(0);
            assert!(help(&words) || help(&words[..1]), "{name}: `{mention}`");
            seen += 1;
        }
        let in_blocks = blocks(&page).concat();
        let in_blocks = in_blocks.iter().map(String::as_str).filter(|line| line.starts_with("cargo xtask"));
        for mention in mentioned(&page, "cargo xtask ").into_iter().chain(in_blocks) {
            let mut words = mention.split_whitespace().skip(2);
            let (first, second) = (words.next().unwrap(), words.next());
            let command = match second {
                Some(second) if ["bench", "conformance"].contains(&first) => {
                    format!("[\"{first}\", \"{second}\"")
                }
                _ => format!("[\"{first}\""),
            };
            assert!(xtask.contains(&command), "{name}: `{mention}`");
            seen += 1;
        }
    }
    assert!(seen >= 10, "only {seen} mentions were found");
}

#[test]
fn links_between_pages_lead_somewhere() {
    for (name, page) in pages() {
        let base = if root().join(&name).exists() { root() } else { root().join("docs") };
        for link in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap();
            if file.is_empty() || link.contains("://") {
                continue;
            }
            assert!(base.join(file).exists(), "{name}: {link}");
        }
    }
}
