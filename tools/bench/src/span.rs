//! A length of time as people type it (`500ms`, `10s`, `2m`), and as reports have it: in seconds.

use std::time::Duration;

/// Understands a length of time on the command line.
///
/// # Errors
/// If the text is none.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let malformed = || format!("'{text}' is not a time; one looks like 500ms, 10s or 2m");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| malformed())?;
    let millis = match unit {
        "ms" => Some(number),
        "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        _ => None,
    };
    millis.map(Duration::from_millis).ok_or_else(malformed)
}

/// Writes a length of time into a report, as seconds.
pub(crate) fn seconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// The same for one that may be missing.
pub(crate) fn some_seconds<S: serde::Serializer>(
    time: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => serializer.serialize_some(&time.as_secs_f64()),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_understood() {
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "10", "s", "-1s", "1.5s", "1h", "99999999999999999999s"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
