//! The memory watermark as people write it: `0.6`, a part of what there is, or `2GiB`.

use std::str::FromStr;

use nexo_broker::MemoryHigh;

use super::Size;

/// A watermark given on the command line or in a file.
#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize)]
#[serde(try_from = "Written")]
pub(crate) struct Watermark(pub(crate) MemoryHigh);

/// A file may hold a number or a text.
#[derive(serde::Deserialize)]
#[serde(untagged, expecting = "a part like 0.6, or a size like \"2GiB\"")]
enum Written {
    Bytes(u64),
    Part(f64),
    Text(String),
}

impl TryFrom<Written> for Watermark {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Bytes(number) => number.to_string().parse(),
            Written::Part(part) => part.to_string().parse(),
            Written::Text(text) => text.parse(),
        }
    }
}

impl FromStr for Watermark {
    type Err = String;

    /// 0 and 1 are parts: nobody means a byte.
    fn from_str(text: &str) -> Result<Self, String> {
        let part = text.parse::<f64>().ok().and_then(|part| MemoryHigh::fraction(part).ok());
        let bytes = || text.parse().ok().map(|Size(bytes)| MemoryHigh::Bytes(bytes));
        part.or_else(bytes).map(Self).ok_or_else(|| {
            format!("'{text}' is neither a part of the memory, like 0.6, nor a size, like 2147483648 or 2GiB")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_sizes_are_understood() {
        for (text, high) in [
            ("0.6", MemoryHigh::Fraction(0.6)),
            ("0", MemoryHigh::Fraction(0.0)),
            ("1", MemoryHigh::Fraction(1.0)),
            ("2", MemoryHigh::Bytes(2)),
            ("2GiB", MemoryHigh::Bytes(2 << 30)),
            ("100 MiB", MemoryHigh::Bytes(100 << 20)),
        ] {
            assert_eq!(text.parse(), Ok(Watermark(high)), "{text}");
        }
    }

    #[test]
    fn what_is_neither_is_refused() {
        for text in ["", "1.5", "-0.1", "60%", "2GB", "NaN", "inf"] {
            assert!(text.parse::<Watermark>().is_err(), "{text}");
        }
    }
}
