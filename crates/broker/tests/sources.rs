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
    let of_journal = |path: &PathBuf| path.starts_with(root.join("journal"));
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
