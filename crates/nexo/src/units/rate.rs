//! So many in a time, as people write it: `100/s`, `5/10s`, `1/m`.

use std::str::FromStr;

use nexo_types::Millis;

use super::Span;

/// A rate given on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    /// How many.
    pub(crate) count: u32,
    /// In which time; more than nothing.
    pub(crate) period: Millis,
}

impl Rate {
    /// How many that is in a second.
    pub(crate) fn per_second(self) -> f64 {
        f64::from(self.count) * 1000.0 / self.period.0 as f64
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || format!("'{text}' is not a rate; one looks like 100/s, 5/10s or 1000/1m");
        let (count, period) = text.split_once('/').ok_or_else(malformed)?;
        let count = count.parse().map_err(|_| malformed())?;
        // `100/s` is short for `100/1s`.
        let written = if period.starts_with(|c: char| c.is_ascii_digit()) {
            period.to_owned()
        } else {
            format!("1{period}")
        };
        let period = written.parse::<Span>().map_err(|_| malformed())?.0;
        if period == Millis::ZERO {
            return Err(malformed());
        }
        Ok(Self { count, period })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_understood() {
        assert_eq!("100/s".parse(), Ok(Rate { count: 100, period: Millis(1000) }));
        assert_eq!("5/10s".parse(), Ok(Rate { count: 5, period: Millis(10_000) }));
        assert_eq!("600/1m".parse::<Rate>().unwrap().per_second(), 10.0);
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        for text in ["", "100", "/s", "x/s", "1/", "1/0s", "1/x", "-1/s"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }
}
