//! Texts that should be taken for something else, and what must not come of them.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use tracing_subscriber::fmt::MakeWriter;

use super::api::Reply;

/// A line of its own, a header, an escape sequence of a terminal, quotes, controls beyond ASCII, and the end of a script.
pub const HOSTILE: [&str; 6] = [
    "a\nFORGED line",
    "a\r\nx-forged: 1",
    "a\u{1b}[2J\u{1b}]0;FORGED\u{7}",
    "a\",\"forged\":\"1",
    "a\u{85}FORGED\u{9b}31m",
    "a</script><script>forged()</script>",
];

/// Everything that is logged in this process.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Lines {
    /// Collects from now on what is logged, in the form in which the broker logs.
    pub fn begin() -> Self {
        let lines = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .with_writer(lines.clone())
            .finish();
        tracing::subscriber::set_global_default(subscriber).unwrap();
        lines
    }

    /// What was logged, in which each line is one that the broker began, and shows no control characters.
    pub fn check(&self) -> String {
        let log = String::from_utf8(self.0.lock().clone()).unwrap();
        for line in log.lines() {
            let is_own = line.len() > 20 && line.as_bytes()[4] == b'-' && line.as_bytes()[10] == b'T';
            assert!(is_own, "a line that the broker did not begin: {line:?}");
            assert!(!line.chars().any(char::is_control), "{line:?}");
        }
        log
    }
}

/// A text as a part of a path.
pub fn quoted(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// Checks an answer of the management API: its head, and that it is JSON with nothing in it that somebody else wrote.
pub fn check(what: &str, reply: &Reply) {
    let what = format!("{what}: {reply:?}");
    assert!(!reply.head.to_lowercase().contains("\nx-forged"), "{what}");
    assert!(reply.head.chars().all(|c| !c.is_control() || c == '\r' || c == '\n'), "{what}");
    if !reply.text.is_empty() {
        let shown: Value = serde_json::from_str(&reply.text).unwrap_or_else(|_| panic!("{what}"));
        assert!(!has_field(&shown, "forged"), "{what}");
        assert!(reply.head.contains("content-type: application/json"), "{what}");
        assert!(reply.head.contains("x-content-type-options: nosniff"), "{what}");
        assert!(!reply.text.contains(['\n', '\u{1b}', '\u{7}']), "{what}");
    }
}

fn has_field(shown: &Value, name: &str) -> bool {
    match shown {
        Value::Object(fields) => fields.iter().any(|(field, value)| field == name || has_field(value, name)),
        Value::Array(items) => items.iter().any(|item| has_field(item, name)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
