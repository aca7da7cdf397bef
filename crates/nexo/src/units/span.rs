//! A length of time as people write it: `250ms`, `30s`, `5m`, `1h`, `2d`.

use std::fmt;
use std::str::FromStr;

use nexo_types::Millis;

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// A length of time given on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Millis);

impl Span {
    /// The milliseconds, as requests carry them.
    pub(crate) const fn millis(self) -> u64 {
        self.0.0
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        if unit.is_empty() && !number.is_empty() {
            return Err(format!("a time needs a unit: {text}ms, {text}s, {text}m, {text}h or {text}d"));
        }
        if text.starts_with('-') && text.len() > 1 {
            return Err(format!("a time cannot be negative; '{text}' is"));
        }
        let malformed = || format!("'{text}' is not a time; one looks like 250ms, 30s, 5m, 1h or 2d");
        let scale = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(malformed)?.1;
        if number.is_empty() {
            return Err(malformed());
        }
        let millis = number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
        millis.map(|millis| Self(Millis(millis))).ok_or_else(|| format!("'{text}' is too long a time"))
    }
}

impl fmt::Display for Span {
    /// In the largest unit that needs no fraction, so that it can be typed again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.0;
        let (name, scale) = UNITS
            .into_iter()
            .rev()
            .find(|(_, scale)| millis > 0 && millis.is_multiple_of(*scale))
            .unwrap_or(UNITS[0]);
        write!(f, "{}{name}", millis / scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<u64, String> {
        text.parse().map(Span::millis)
    }

    #[test]
    fn each_unit_is_understood() {
        assert_eq!(parse("250ms"), Ok(250));
        assert_eq!(parse("30s"), Ok(30_000));
        assert_eq!(parse("5m"), Ok(300_000));
        assert_eq!(parse("1h"), Ok(3_600_000));
        assert_eq!(parse("2d"), Ok(172_800_000));
        assert_eq!(parse("0s"), Ok(0));
    }

    #[test]
    fn a_plain_number_gets_a_hint() {
        assert_eq!(parse("30").unwrap_err(), "a time needs a unit: 30ms, 30s, 30m, 30h or 30d");
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in
            ["", "s", "-5s", "1.5s", "5 s", "5x", "5sec", "99999999999999999999d", "18446744073709551615d"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_is_shown_as_it_can_be_typed() {
        for text in ["250ms", "90s", "5m", "1h", "2d", "0ms"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
    }
}
