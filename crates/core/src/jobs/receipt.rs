//! What a worker shows to say something about a job that it was given.

use std::fmt;
use std::str::FromStr;

use nexo_types::JobId;
use thiserror::Error;

/// A worker's hold of a job: the job, and which hold it is. A receipt of an earlier hold is recognised and refused, so
/// a worker that was too slow cannot end what another now works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobReceipt {
    /// The job that is held.
    pub job: JobId,
    /// The number of the hold, from 1 on. None is used twice, also if the job is given back.
    pub hold: u32,
}

/// The version in which receipts are written. One without a version is of the first: that is how they once were.
const VERSION: u64 = 1;

/// A text that is no receipt.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JobReceiptError {
    /// It is something else.
    #[error("'{text}' is not a receipt; one looks like '{example}' and comes with a job")]
    NoReceipt {
        /// At most its first 64 characters.
        text: String,
        /// One that can be read.
        example: JobReceipt,
    },
    /// A later release has made it.
    #[error("the receipt is of version {version}; this build of Nexo knows versions up to {VERSION}")]
    LaterVersion {
        /// The version that it names.
        version: u64,
    },
}

impl fmt::Display for JobReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{VERSION}-{}-{}", self.job, self.hold)
    }
}

impl FromStr for JobReceipt {
    type Err = JobReceiptError;

    fn from_str(text: &str) -> Result<Self, JobReceiptError> {
        // A receipt without a version begins with the number of its job, never with a letter.
        let versioned = text.strip_prefix('v').and_then(|rest| rest.split_once('-'));
        let (version, rest) = match versioned {
            Some((version, rest)) => (number(version), rest),
            None => (Some(VERSION), text),
        };
        if let Some(version) = version.filter(|version| *version > VERSION) {
            return Err(JobReceiptError::LaterVersion { version });
        }
        let parse = || {
            version.filter(|version| *version > 0)?;
            let (job, hold) = rest.split_once('-')?;
            Some(Self { job: JobId(number(job)?), hold: u32::try_from(number(hold)?).ok()? })
        };
        parse().ok_or_else(|| JobReceiptError::NoReceipt {
            // A wrong text may be of any length; the error repeats only its head.
            text: text.chars().take(64).collect(),
            example: Self { job: JobId(42), hold: 1 },
        })
    }
}

fn number(text: &str) -> Option<u64> {
    // `parse` would take a sign as well.
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_survives_being_written_as_text() {
        let receipt = JobReceipt { job: JobId(u64::MAX), hold: u32::MAX };
        assert_eq!(receipt.to_string(), "v1-18446744073709551615-4294967295");
        assert_eq!(receipt.to_string().parse(), Ok(receipt));
    }

    #[test]
    fn one_without_a_version_is_of_the_first() {
        assert_eq!("42-3".parse(), Ok(JobReceipt { job: JobId(42), hold: 3 }));
    }

    #[test]
    fn a_later_version_is_refused_by_name() {
        let error = "v2-and-what-it-likes".parse::<JobReceipt>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the receipt is of version 2; this build of Nexo knows versions up to 1"
        );
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "42",
            "x-1",
            "1-",
            "-1",
            "1-2-3",
            "-1-2",
            "+1-2",
            "1-4294967296",
            "18446744073709551616-1",
            "v0-1-2",
            "v-1-2",
            "v1-1",
            "v1-1-2-3",
            // One of a queue.
            "v1-7-2b-3-9",
        ] {
            assert!(text.parse::<JobReceipt>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_error_repeats_only_the_head_of_a_text() {
        let error = "9".repeat(1 << 20).parse::<JobReceipt>().unwrap_err().to_string();
        assert!(
            error.ends_with("is not a receipt; one looks like 'v1-42-1' and comes with a job"),
            "{error}"
        );
        assert!(error.len() < 200);
    }
}
