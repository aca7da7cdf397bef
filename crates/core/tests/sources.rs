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

/// RabbitMQ's words about streams, which policies may say and which mean nothing here.
const OF_STREAMS: [&str; 2] = ["stream-max-segment-size-bytes", "valid segment size"];

/// Whether a line names a place in a log. (A place in the order of delivery has another name.)
fn names_a_place(line: &str) -> bool {
    let line = OF_STREAMS.iter().fold(line.to_owned(), |line, words| line.replace(words, ""));
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.any(|word| word == "Position") || line.to_lowercase().contains("segment")
}

/// A queue is the same on every node; where its messages lie is the broker's business.
#[test]
fn the_rules_do_not_know_where_messages_lie() {
    assert!(names_a_place("use nexo_types::{Offset, Position};") && names_a_place("    at: SegmentId,"));
    assert!(!names_a_place("pub type PeekPosition = (Priority, Offset);"));
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    assert!(files.len() > 60, "{} files", files.len());
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            let at = format!("{}:{}", path.display(), number + 1);
            assert!(!names_a_place(line), "{at} names a place in the log: {line}");
        }
    }
}
