//! Errors in the words of the command line. The API names fields and counts milliseconds; whoever typed `--delay 40000d`
//! must read of `--delay` and of days.

use nexo_types::Millis;

use crate::units::Span;

/// Fields of the API and what is typed for them; an empty text for those that need no name.
const TYPED: [(&str, &str); 28] = [
    ("queue", ""),
    ("receipts", ""),
    ("body", "the message"),
    ("priority", "--priority"),
    ("delay_ms", "--delay"),
    ("ttl_ms", "--ttl"),
    ("dedup_id", "--dedup-id"),
    ("group_id", "--group"),
    ("headers", "--header"),
    ("wait_ms", "--wait"),
    ("visibility_ms", "--visibility"),
    ("max", "--max"),
    ("credit", "--credit"),
    ("ids", "--id"),
    ("target", "--to"),
    ("prefix", "--prefix"),
    ("receipt_timeout_ms", "--receipt-timeout"),
    ("max_attempts", "--max-attempts"),
    ("dead_letter_queue", "--dead-letter-queue"),
    ("dedup_window_ms", "--dedup-window"),
    ("max_messages", "--max-messages"),
    ("max_bytes", "--max-bytes"),
    ("retry.delay_ms", "--retry"),
    ("retry.base_ms", "--retry"),
    ("retry.cap_ms", "--retry"),
    ("retry.factor", "--retry"),
    ("rate_limit.deliveries", "--rate-limit"),
    ("rate_limit.period_ms", "--rate-limit"),
];

/// What the broker said, in the words of the command line.
pub(crate) fn plain(message: &str) -> String {
    let end = message.find([' ', ':']).unwrap_or(message.len());
    let (word, rest) = message.split_at(end);
    let field = match word.split_once("].") {
        Some((_, field)) => field,
        None => word.strip_prefix("config.").unwrap_or(word),
    };
    // A sentence of the broker may begin with a word that is also a field: "queue 'mail' does not exist".
    let is_field = rest.starts_with(':') || rest.starts_with(" must ") || rest.starts_with(" has at most");
    let Some((_, typed)) = TYPED.iter().find(|(name, _)| *name == field).filter(|_| is_field) else {
        return message.to_owned();
    };
    let rest = if field.ends_with("_ms") { with_units(rest) } else { rest.to_owned() };
    if typed.is_empty() {
        return rest.trim_start_matches(':').trim_start().to_owned();
    }
    format!("{typed}{rest}")
}

/// ` must be between 0 and 1000; it is 5000` with times for the milliseconds.
fn with_units(rest: &str) -> String {
    let words = rest.split(' ').map(|word| {
        let digits = word.trim_end_matches(';');
        match digits.parse::<u64>() {
            Ok(ms) => format!("{}{}", Span(Millis(ms)), &word[digits.len()..]),
            Err(_) => word.to_owned(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// All that went wrong in one line, from the outside in. A cause that the one before has told already is left out, and
/// so are the numbers of the operating system.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = without_os_error(&cause.to_string().replace('\n', " "));
        if line.is_empty() {
            line = text;
        } else if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
    }
    line
}

/// The text without `(os error 2)`, which tells nobody more than the words before it.
pub(crate) fn without_os_error(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(" (os error ") {
        out.push_str(before);
        match after.split_once(')') {
            Some((number, after)) if number.bytes().all(|byte| byte.is_ascii_digit()) => rest = after,
            _ => {
                out.push_str(" (os error ");
                rest = after;
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context;

    use super::*;

    #[test]
    fn fields_of_the_api_become_what_is_typed() {
        let cases = [
            (
                "messages[0].delay_ms must be between 0 and 3162240000000; it is 3456000000000",
                "--delay must be between 0ms and 36600d; it is 40000d",
            ),
            (
                "max must be between 0 and 10000; it is 10001",
                "--max must be between 0 and 10000; it is 10001",
            ),
            ("queue: a queue name must not be empty", "a queue name must not be empty"),
            ("queue 'mail' does not exist", "queue 'mail' does not exist"),
            (
                "messages[2].group_id: a group id has at most 512 bytes; this one has 513",
                "--group: a group id has at most 512 bytes; this one has 513",
            ),
            ("messages[0].body has at most 9 bytes; it has 10", "the message has at most 9 bytes; it has 10"),
            ("receipts: 'x' is not a receipt", "'x' is not a receipt"),
            ("config.dead_letter_queue: a queue name …", "--dead-letter-queue: a queue name …"),
            ("the broker is shutting down", "the broker is shutting down"),
            ("target must be another queue than the source", "--to must be another queue than the source"),
        ];
        for (said, expected) in cases {
            assert_eq!(plain(said), expected);
        }
    }

    #[test]
    fn an_error_of_the_system_is_told_once_and_without_its_number() {
        let error = || io::Error::from_raw_os_error(2);
        let told: anyhow::Result<()> = Err(error()).context(format!("cannot use 'x': {}", error()));
        assert_eq!(one_line(&told.unwrap_err()), "cannot use 'x': No such file or directory");
        assert_eq!(without_os_error("a (os error 5), b (os error x)"), "a, b (os error x)");
    }

    #[test]
    fn causes_stand_in_order() {
        let error = anyhow::anyhow!("inner").context("outer");
        assert_eq!(one_line(&error), "outer: inner");
    }
}
