//! The session does no IO and reads no clock: only the connection's task waits, for its socket, for timers and for what its
//! session asks for.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

use std::path::Path;

/// Files of the server that may wait: how a connection begins, its socket and its task, what is awaited for a session, and the
/// task that publishes events, which is no connection's.
const WAITING: [&str; 6] =
    ["connection.rs", "handshake.rs", "listener.rs", "observe.rs", "operations.rs", "socket.rs"];

/// Words that no other file has outside its tests.
const FORBIDDEN: [&str; 6] =
    ["async", "await", "tokio::time", "tokio::task", "Instant::now", "SystemTime::now"];

/// Whether a word stands in a line of code by itself.
fn has_word(line: &str, word: &str) -> bool {
    let is_inner = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line.as_bytes()[..at], &line.as_bytes()[at + word.len()..]);
        !is_inner(before.last()) && !is_inner(after.first())
    })
}

/// The lines of a file that are code, up to its tests, with their numbers.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let tests = text.find("#[cfg(test)]").unwrap_or(text.len());
    let lines = text[..tests].lines().enumerate();
    lines.map(|(at, line)| (at + 1, line.split("//").next().unwrap_or_default()))
}

#[test]
fn a_session_neither_waits_nor_reads_a_clock() {
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/server");
    let mut found = Vec::new();
    let mut sources = 0;
    for entry in std::fs::read_dir(&server).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.ends_with(".rs") || WAITING.contains(&name.as_str()) {
            continue;
        }
        sources += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        for (number, line) in code(&text) {
            let words = FORBIDDEN.iter().filter(|word| has_word(line, word));
            found.extend(words.map(|word| format!("{name}:{number}: {word}")));
        }
    }
    assert!(sources > 20, "the session's files are elsewhere");
    assert_eq!(found, [] as [&str; 0]);
    for name in WAITING {
        assert!(server.join(name).exists(), "{name} is gone: take it off the list");
    }
}

#[test]
fn the_words_are_found_where_they_stand() {
    assert!(has_word("pub async fn run() {", "async") && has_word("x.await?", "await"));
    assert!(
        !has_word("if self.awaits() {", "await") && has_word("let now = Instant::now();", "Instant::now")
    );
    assert_eq!(code("a // async\n#[cfg(test)]\nasync").count(), 1);
}
