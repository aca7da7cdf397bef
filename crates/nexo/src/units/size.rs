//! A number of bytes as people write it: `1048576` or `1MiB`.

use std::fmt;
use std::str::FromStr;

const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// A number of bytes given on the command line or in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "Written")]
pub(crate) struct Size(pub(crate) u64);

/// A file may hold a plain number or a text.
#[derive(serde::Deserialize)]
#[serde(untagged, expecting = "a number of bytes, or a text like \"64MiB\"")]
enum Written {
    Number(u64),
    Text(String),
}

impl TryFrom<Written> for Size {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Number(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse(),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, scale) = UNITS
            .iter()
            .find_map(|(unit, scale)| text.strip_suffix(unit).map(|number| (number.trim_end(), *scale)))
            .unwrap_or((text, 1));
        let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
        bytes.map(Self).ok_or_else(|| {
            format!("'{text}' is not a number of bytes; one looks like 1048576, 512KiB or 64MiB")
        })
    }
}

impl fmt::Display for Size {
    /// With at most one digit after the point.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, scale) = UNITS.into_iter().find(|(_, scale)| self.0 >= *scale).unwrap_or(("B", 1));
        if self.0.is_multiple_of(scale) {
            write!(f, "{} {unit}", self.0 / scale)
        } else {
            write!(f, "{:.1} {unit}", self.0 as f64 / scale as f64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_units_are_understood() {
        assert_eq!("1048576".parse(), Ok(Size(1 << 20)));
        assert_eq!("64MiB".parse(), Ok(Size(64 << 20)));
        assert_eq!("2 GiB".parse(), Ok(Size(2 << 30)));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "MiB", "-1", "1.5MiB", "64MB", "99999999999GiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_size_is_shown_short() {
        assert_eq!(Size(0).to_string(), "0 B");
        assert_eq!(Size(1536).to_string(), "1.5 KiB");
        assert_eq!(Size(64 << 20).to_string(), "64 MiB");
    }
}
