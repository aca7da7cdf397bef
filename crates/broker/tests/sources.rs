//! What the architecture says of this crate's sources, read from them.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// A list takes `&mut` of another; a log takes entries.
fn appends_to_log(code: &str) -> bool {
    let calls = code.match_indices(".append(").map(|(at, call)| &code[at + call.len()..]);
    code.contains(".append_with(")
        || calls.into_iter().any(|argument| !argument.trim_start().starts_with("&mut "))
}

#[test]
fn only_the_journal_appends_to_the_log() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let of_journal =
        |path: &PathBuf| ["journal", "replication"].iter().any(|part| path.starts_with(root.join(part)));
    let read = |path: &PathBuf| fs::read_to_string(path).unwrap();
    let (journal, others): (Vec<PathBuf>, Vec<PathBuf>) = files.into_iter().partition(of_journal);
    assert!(
        journal.iter().any(|path| appends_to_log(&read(path))),
        "the journal does, so this test can see it"
    );
    assert!(others.len() > 40, "{} files besides the journal", others.len());
    for path in others {
        assert!(!appends_to_log(&read(&path)), "{} appends to the log past the journal", path.display());
    }
}

/// The code of a file: without comments, and without tests, which may name whatever they like.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Whether a file is for tests only.
fn is_test(path: &Path) -> bool {
    path.iter().any(|part| {
        let part = part.to_str().unwrap().trim_end_matches(".rs");
        part == "tests" || part == "fake" || part.ends_with("_tests")
    })
}

/// What a name is followed by, wherever it stands in the code.
fn members<'a>(code: &'a str, name: &str) -> Vec<&'a str> {
    let ends = code.match_indices(name).map(|(at, name)| &code[at + name.len()..]);
    let word = |rest: &'a str| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
    ends.map(word).collect()
}

#[test]
fn no_code_names_a_protocol() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    files.retain(|path| !is_test(path.strip_prefix(&root).unwrap()));
    assert!(files.len() > 50, "{} files", files.len());
    let mut words = 0;
    for path in files {
        let (code, path) = (code(&path), path.display());
        let lower = code.to_lowercase();
        for word in ["amqp", "sqs", "grpc", "rabbit", "kafka"] {
            assert!(!lower.contains(word), "{path} names {word}");
        }
        for member in members(&code, "Protocol::") {
            assert_eq!(member, "ALL", "{path} names a protocol");
        }
        // The broker's own headers have a format, which their codec names. What others have is asked of the codec.
        for member in members(&code, "PropertyFormat::") {
            assert_eq!(member, "Native", "{path} names a format of properties");
            assert!(path.to_string().ends_with("headers.rs"), "{path} tells formats apart");
        }
        // Which kind of queue it is, and what follows from that, is asked of the codecs.
        assert_eq!(members(&code, "QueueKind::"), [""; 0], "{path} names a kind of queue");
        words += code.split_whitespace().count();
    }
    assert!(words > 10_000, "only {words} words were read");
}
