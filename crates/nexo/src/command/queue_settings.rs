//! The settings of a queue as they are typed, for `queue create` and `queue update`.

use std::str::FromStr;

use nexo_grpc::proto;

use crate::units::{Rate, Size, Span};

/// What can be set on a queue. What is not given is left out of the request.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Settings")]
pub(crate) struct QueueSettings {
    /// How long a consumer may hold a message before it comes back [default: 30s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    visibility: Option<Span>,
    /// A delivered message must be marked as received within this time, or it is sent again [default: none]
    #[arg(long, value_name = "TIME|none", allow_hyphen_values = true)]
    receipt_timeout: Option<Limit<Span>>,
    /// Deliveries before a message becomes a dead letter [default: 5]
    #[arg(long, value_name = "N|unlimited", allow_hyphen_values = true)]
    max_attempts: Option<Limit<Count>>,
    /// Where dead letters go; '' is NAME_dlq [default: '']
    #[arg(long, value_name = "QUEUE")]
    dead_letter_queue: Option<String>,
    /// How long a failed message waits: none, fixed:1s or like exponential:100ms:2:30s [default: none]
    #[arg(long, value_name = "POLICY", allow_hyphen_values = true)]
    retry: Option<Retry>,
    /// Longest life of a message [default: none]
    #[arg(long, value_name = "TIME|none", allow_hyphen_values = true)]
    ttl: Option<Limit<Span>>,
    /// What becomes of a message whose life is over [default: drop]
    #[arg(long, value_enum, value_name = "FATE")]
    on_expiry: Option<Fate>,
    /// How long a deduplication id is remembered [default: 5m]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    dedup_window: Option<Span>,
    /// Most messages in the queue [default: none]
    #[arg(long, value_name = "N|none", allow_hyphen_values = true)]
    max_messages: Option<Limit<Count>>,
    /// Most bytes in the queue [default: none]
    #[arg(long, value_name = "BYTES|none", allow_hyphen_values = true)]
    max_bytes: Option<Limit<Size>>,
    /// What a full queue does with a push [default: reject]
    #[arg(long, value_enum, value_name = "WHAT")]
    overflow: Option<Overflow>,
    /// What becomes of a message that drop-oldest pushes out [default: drop]
    #[arg(long, value_enum, value_name = "FATE")]
    on_overflow: Option<Fate>,
    /// Most deliveries in a time, like 100/1s [default: none]
    #[arg(long, value_name = "RATE|none", allow_hyphen_values = true)]
    rate_limit: Option<Limit<Rate>>,
    /// What a confirmed push has survived [default: inherit, as the broker is set]
    #[arg(long, value_enum, value_name = "MODE")]
    sync: Option<Sync>,
}

impl QueueSettings {
    /// Whether dead letters are to go elsewhere, and where.
    pub(crate) fn dead_letter_queue(&self) -> Option<&str> {
        self.dead_letter_queue.as_deref()
    }

    /// The settings as a request carries them, where 0 stands for "none".
    pub(crate) fn to_proto(&self) -> proto::QueueConfig {
        proto::QueueConfig {
            visibility_ms: self.visibility.map(Span::millis),
            receipt_timeout_ms: self.receipt_timeout.map(|limit| limit.or(0, Span::millis)),
            max_attempts: self
                .max_attempts
                .map(|limit| limit.or(0, |attempts| u32::try_from(attempts.0).unwrap_or(u32::MAX))),
            dead_letter_queue: self.dead_letter_queue.clone(),
            on_expiry: self.on_expiry.map_or(proto::Fate::Unspecified, Into::into).into(),
            on_overflow: self.on_overflow.map_or(proto::Fate::Unspecified, Into::into).into(),
            retry: self.retry.map(|retry| proto::Retry { policy: Some(retry.0) }),
            ttl_ms: self.ttl.map(|limit| limit.or(0, Span::millis)),
            dedup_window_ms: self.dedup_window.map(Span::millis),
            max_messages: self.max_messages.map(|limit| limit.or(0, |messages| messages.0)),
            max_bytes: self.max_bytes.map(|limit| limit.or(0, |size| size.0)),
            overflow: match self.overflow {
                None => proto::Overflow::Unspecified,
                Some(Overflow::Reject) => proto::Overflow::Reject,
                Some(Overflow::DropOldest) => proto::Overflow::DropOldest,
                Some(Overflow::DropHead) => proto::Overflow::DropHead,
            }
            .into(),
            paused: None,
            rate_limit: self.rate_limit.map(|limit| {
                limit.or(proto::RateLimit::default(), |rate| proto::RateLimit {
                    deliveries: rate.count,
                    period_ms: rate.period.0,
                })
            }),
            sync: match self.sync {
                None => proto::SyncMode::Unspecified,
                Some(Sync::Inherit) => proto::SyncMode::Inherit,
                Some(Sync::Always) => proto::SyncMode::Always,
                Some(Sync::Interval) => proto::SyncMode::Interval,
                Some(Sync::Os) => proto::SyncMode::Os,
            }
            .into(),
        }
    }
}

/// A limit, or the word that takes it away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit<T> {
    None,
    At(T),
}

impl<T> Limit<T> {
    pub(crate) fn or<U>(self, none: U, at: impl FnOnce(T) -> U) -> U {
        match self {
            Self::None => none,
            Self::At(limit) => at(limit),
        }
    }
}

/// Something that can be limited. Nothing at all is no limit: `0` and `none` would mean opposite things.
pub(crate) trait Limited: FromStr<Err = String> {
    /// What takes the limit away, and what a limit looks like.
    const DEMAND: &'static str;

    fn is_zero(&self) -> bool;
}

impl<T: Limited> FromStr for Limit<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if matches!(text, "none" | "unlimited") {
            return Ok(Self::None);
        }
        match text.parse::<T>() {
            _ if text.starts_with('-') => Err(T::DEMAND.to_owned()),
            Ok(limit) if limit.is_zero() => Err(T::DEMAND.to_owned()),
            Ok(limit) => Ok(Self::At(limit)),
            Err(error) => Err(error),
        }
    }
}

/// A number of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) u64);

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| format!("'{text}' is not a whole number; {}", Self::DEMAND))
    }
}

impl Limited for Count {
    const DEMAND: &'static str = "it must be 1 or more, or 'unlimited'";

    fn is_zero(&self) -> bool {
        self.0 == 0
    }
}

impl Limited for Span {
    const DEMAND: &'static str = "it must be longer than nothing, like 30s, or 'none'";

    fn is_zero(&self) -> bool {
        self.millis() == 0
    }
}

impl Limited for Size {
    const DEMAND: &'static str = "it must be 1 byte or more, like 64MiB, or 'none'";

    fn is_zero(&self) -> bool {
        self.0 == 0
    }
}

impl Limited for Rate {
    const DEMAND: &'static str = "it must be 1 or more in a time, like 100/1s, or 'none'";

    fn is_zero(&self) -> bool {
        self.count == 0
    }
}

/// How long a failed message waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Retry(pub(crate) proto::retry::Policy);

impl FromStr for Retry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let policy = match parts.as_slice() {
            ["none"] => proto::retry::Policy::None(proto::NoRetryDelay {}),
            ["fixed", delay] => proto::retry::Policy::Fixed(proto::FixedRetryDelay {
                delay_ms: delay.parse::<Span>()?.millis(),
            }),
            ["exponential", base, factor, cap] => {
                proto::retry::Policy::Exponential(proto::ExponentialRetryDelay {
                    base_ms: base.parse::<Span>()?.millis(),
                    factor_permille: permille(factor)?,
                    cap_ms: cap.parse::<Span>()?.millis(),
                })
            }
            _ => {
                return Err(format!(
                    "'{text}' is not a retry policy; it must be none, fixed:TIME or exponential:BASE:FACTOR:CAP"
                ));
            }
        };
        Ok(Self(policy))
    }
}

/// A factor like `1.5`, in thousandths.
fn permille(text: &str) -> Result<u32, String> {
    let factor: f64 =
        text.parse().map_err(|_| format!("'{text}' is not a factor; one looks like 2 or 1.5"))?;
    if (1.0..=1000.0).contains(&factor) {
        Ok((factor * 1000.0).round() as u32)
    } else {
        Err(format!("a factor must be between 1 and 1000; it is {text}"))
    }
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Fate {
    Drop,
    DeadLetter,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Overflow {
    Reject,
    DropOldest,
    DropHead,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Sync {
    Inherit,
    Always,
    Interval,
    Os,
}

impl From<Fate> for proto::Fate {
    fn from(fate: Fate) -> Self {
        match fate {
            Fate::Drop => Self::Drop,
            Fate::DeadLetter => Self::DeadLetter,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_policies_are_understood() {
        let parse = |text: &str| text.parse::<Retry>().map(|retry| retry.0);
        assert_eq!(parse("none"), Ok(proto::retry::Policy::None(proto::NoRetryDelay {})));
        assert_eq!(
            parse("fixed:1s"),
            Ok(proto::retry::Policy::Fixed(proto::FixedRetryDelay { delay_ms: 1000 }))
        );
        assert_eq!(
            parse("exponential:100ms:1.5:30s"),
            Ok(proto::retry::Policy::Exponential(proto::ExponentialRetryDelay {
                base_ms: 100,
                factor_permille: 1500,
                cap_ms: 30_000,
            }))
        );
    }

    #[test]
    fn what_is_no_retry_policy_is_refused() {
        for text in [
            "",
            "fixed",
            "fixed:5",
            "exponential:1s:2",
            "exponential:1s:0:2s",
            "exponential:1s:x:2s",
            "linear",
        ] {
            assert!(text.parse::<Retry>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_limit_of_nothing_or_less_is_refused_with_what_to_say_instead() {
        for text in ["0", "-1", "-5"] {
            assert_eq!(
                text.parse::<Limit<Count>>().unwrap_err(),
                "it must be 1 or more, or 'unlimited'",
                "{text}"
            );
        }
        let error = "many".parse::<Limit<Count>>().unwrap_err();
        assert_eq!(error, "'many' is not a whole number; it must be 1 or more, or 'unlimited'");
        for text in ["0s", "-5s"] {
            assert!(text.parse::<Limit<Span>>().unwrap_err().ends_with("or 'none'"), "{text}");
        }
        assert!("0".parse::<Limit<Size>>().is_err());
        assert!("0/1s".parse::<Limit<Rate>>().is_err());
    }

    #[test]
    fn a_limit_can_be_taken_away() {
        let settings = QueueSettings {
            max_attempts: Some("unlimited".parse().unwrap()),
            ttl: Some("none".parse().unwrap()),
            max_bytes: Some("1KiB".parse().unwrap()),
            rate_limit: Some("100/1s".parse().unwrap()),
            ..QueueSettings::default()
        };
        let config = settings.to_proto();
        assert_eq!((config.max_attempts, config.ttl_ms, config.max_bytes), (Some(0), Some(0), Some(1024)));
        assert_eq!(config.rate_limit, Some(proto::RateLimit { deliveries: 100, period_ms: 1000 }));
        assert_eq!(config.max_messages, None);
    }
}
