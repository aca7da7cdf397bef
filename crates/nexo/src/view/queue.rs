//! A queue as it is printed: settings, figures, and a line in a table of many.

use nexo_grpc::proto;
use nexo_types::Millis;
use serde::Serialize;

use super::queue_details::{DeadLettersView, DetailsView};
use super::{Figures, moment};
use crate::units::{Size, Span};

/// Everything about a queue. A limit that is not set is left out.
#[derive(Debug, Serialize)]
pub(crate) struct QueueView {
    pub(super) name: String,
    pub(super) vhost: String,
    created_at_ms: u64,
    pub(super) config: ConfigView,
    dead_letters: DeadLettersView,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<DetailsView>,
    pub(super) stats: StatsView,
}

#[derive(Debug, Serialize)]
pub(super) struct ConfigView {
    visibility_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt_timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    on_expiry: &'static str,
    on_overflow: &'static str,
    retry: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    dedup_window_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_messages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_bytes: Option<u64>,
    overflow: &'static str,
    pub(super) paused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_limit: Option<String>,
    sync: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct StatsView {
    pub(super) ready: u64,
    pub(super) leased: u64,
    pub(super) delayed: u64,
    pub(super) grouped: u64,
    pub(super) bytes: u64,
    pub(super) consumers: u64,
    pushed: u64,
    delivered: u64,
    redelivered: u64,
    acked: u64,
    dead_lettered: u64,
    expired: u64,
    overflowed: u64,
    damaged: u64,
    duplicates: u64,
    pub(super) push_rate: f64,
    pub(super) deliver_rate: f64,
    pub(super) ack_rate: f64,
    redeliver_rate: f64,
    oldest_age_ms: u64,
    average_wait_ms: f64,
}

impl From<proto::Queue> for QueueView {
    fn from(queue: proto::Queue) -> Self {
        let config = queue.config.unwrap_or_default();
        Self {
            dead_letters: DeadLettersView::new(&queue.name, queue.dead_letters, &config),
            details: queue.details.map(DetailsView::from),
            config: ConfigView::new(&config),
            stats: queue.stats.unwrap_or_default().into(),
            name: queue.name,
            vhost: queue.vhost,
            created_at_ms: queue.created_at_ms,
        }
    }
}

impl ConfigView {
    fn new(config: &proto::QueueConfig) -> Self {
        let unless_zero = |value: Option<u64>| value.filter(|value| *value > 0);
        Self {
            visibility_ms: config.visibility_ms(),
            receipt_timeout_ms: unless_zero(config.receipt_timeout_ms),
            max_attempts: config.max_attempts.filter(|attempts| *attempts > 0),
            on_expiry: fate(config.on_expiry()),
            on_overflow: fate(config.on_overflow()),
            retry: retry(config.retry.and_then(|retry| retry.policy)),
            ttl_ms: unless_zero(config.ttl_ms),
            dedup_window_ms: config.dedup_window_ms(),
            max_messages: unless_zero(config.max_messages),
            max_bytes: unless_zero(config.max_bytes),
            overflow: match config.overflow() {
                proto::Overflow::Unspecified | proto::Overflow::Reject => "reject",
                proto::Overflow::DropOldest => "drop-oldest",
                proto::Overflow::DropHead => "drop-head",
            },
            paused: config.paused(),
            rate_limit: config
                .rate_limit
                .filter(|limit| limit.deliveries > 0)
                .map(|limit| format!("{}/{}", limit.deliveries, span(limit.period_ms))),
            sync: match config.sync() {
                proto::SyncMode::Unspecified | proto::SyncMode::Inherit => "inherit",
                proto::SyncMode::Always => "always",
                proto::SyncMode::Interval => "interval",
                proto::SyncMode::Os => "os",
            },
        }
    }
}

impl From<proto::QueueStats> for StatsView {
    fn from(stats: proto::QueueStats) -> Self {
        Self {
            ready: stats.ready,
            leased: stats.leased,
            delayed: stats.delayed,
            grouped: stats.grouped,
            bytes: stats.bytes,
            consumers: stats.consumers,
            pushed: stats.pushed,
            delivered: stats.delivered,
            redelivered: stats.redelivered,
            acked: stats.acked,
            dead_lettered: stats.dead_lettered,
            expired: stats.expired,
            overflowed: stats.overflowed,
            damaged: stats.damaged,
            duplicates: stats.duplicates,
            push_rate: stats.push_rate,
            deliver_rate: stats.deliver_rate,
            ack_rate: stats.ack_rate,
            redeliver_rate: stats.redeliver_rate,
            oldest_age_ms: stats.oldest_age_ms,
            average_wait_ms: stats.average_wait_ms,
        }
    }
}

impl QueueView {
    /// The exchange that dead letters go to, in words, if that is where they go.
    pub(crate) fn dead_letter_exchange(&self) -> Option<String> {
        match &self.dead_letters {
            DeadLettersView::Exchange { .. } => Some(self.dead_letters.to_string()),
            DeadLettersView::Queue(_) | DeadLettersView::None => None,
        }
    }

    /// What it is, what it is told to be, and its figures, one a line.
    pub(crate) fn figures(&self) -> Figures {
        let (config, stats) = (&self.config, &self.stats);
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "none".into());
        let mut figures = Figures::default();
        figures.add("name", &self.name);
        if self.vhost != "/" {
            figures.add("vhost", &self.vhost);
        }
        figures.add("created at", moment(self.created_at_ms));
        if let Some(details) = &self.details {
            details.add_to(&mut figures);
        }
        figures
            .add("visibility", span(config.visibility_ms))
            .add("receipt timeout", or_none(config.receipt_timeout_ms.map(span)))
            .add(
                "max attempts",
                config.max_attempts.map_or_else(|| "unlimited".into(), |max| max.to_string()),
            )
            .add("dead letters go to", &self.dead_letters)
            .add("retry", &config.retry)
            .add("time to live", or_none(config.ttl_ms.map(span)))
            .add("on expiry", config.on_expiry)
            .add("dedup window", span(config.dedup_window_ms))
            .add("max messages", or_none(config.max_messages.map(|max| max.to_string())))
            .add("max bytes", or_none(config.max_bytes.map(|max| Size(max).to_string())))
            .add("overflow", config.overflow)
            .add("on overflow", config.on_overflow)
            .add("paused", config.paused)
            .add("rate limit", or_none(config.rate_limit.clone()))
            .add("sync", config.sync)
            .add("ready", stats.ready)
            .add("leased", stats.leased)
            .add("delayed", stats.delayed)
            .add("grouped", stats.grouped)
            .add("bytes", Size(stats.bytes))
            .add("consumers", stats.consumers)
            .add("pushed", format_args!("{} ({:.1}/s)", stats.pushed, stats.push_rate))
            .add("delivered", format_args!("{} ({:.1}/s)", stats.delivered, stats.deliver_rate))
            .add("redelivered", format_args!("{} ({:.1}/s)", stats.redelivered, stats.redeliver_rate))
            .add("acked", format_args!("{} ({:.1}/s)", stats.acked, stats.ack_rate))
            .add("dead-lettered", stats.dead_lettered)
            .add("expired", stats.expired)
            .add("overflowed", stats.overflowed)
            .add("damaged", stats.damaged)
            .add("duplicates", stats.duplicates)
            .add("oldest age", format_args!("{:.1} s", stats.oldest_age_ms as f64 / 1e3))
            .add("average wait", format_args!("{:.1} ms", stats.average_wait_ms));
        figures
    }
}

pub(super) fn span(ms: u64) -> String {
    Span(Millis(ms)).to_string()
}

const fn fate(fate: proto::Fate) -> &'static str {
    match fate {
        proto::Fate::Unspecified | proto::Fate::Drop => "drop",
        proto::Fate::DeadLetter => "dead-letter",
    }
}

/// As `--retry` takes it.
pub(super) fn retry(policy: Option<proto::retry::Policy>) -> String {
    match policy {
        None | Some(proto::retry::Policy::None(_)) => "none".into(),
        Some(proto::retry::Policy::Fixed(fixed)) => format!("fixed:{}", span(fixed.delay_ms)),
        Some(proto::retry::Policy::Exponential(growing)) => format!(
            "exponential:{}:{}:{}",
            span(growing.base_ms),
            f64::from(growing.factor_permille) / 1e3,
            span(growing.cap_ms)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> QueueView {
        proto::Queue {
            name: "mail".into(),
            created_at_ms: 0,
            config: Some(proto::QueueConfig {
                visibility_ms: Some(30_000),
                max_attempts: Some(0),
                retry: Some(proto::Retry {
                    policy: Some(proto::retry::Policy::Exponential(proto::ExponentialRetryDelay {
                        base_ms: 100,
                        factor_permille: 1500,
                        cap_ms: 30_000,
                    })),
                }),
                rate_limit: Some(proto::RateLimit { deliveries: 5, period_ms: 1000 }),
                ..proto::QueueConfig::default()
            }),
            stats: Some(proto::QueueStats { ready: 2, ..proto::QueueStats::default() }),
            ..proto::Queue::default()
        }
        .into()
    }

    #[test]
    fn settings_are_shown_as_they_are_typed() {
        let text = view().figures().to_string();
        for part in
            ["30s", "unlimited", "exponential:100ms:1.5:30s", "5/1s", "mail_dlq", "1970-01-01T00:00:00Z"]
        {
            assert!(text.contains(part), "no {part} in:\n{text}");
        }
    }

    #[test]
    fn json_leaves_out_limits_that_are_not_set() {
        let json = serde_json::to_value(view()).unwrap();
        assert_eq!(json["stats"]["ready"], 2);
        assert_eq!(json["config"]["rate_limit"], "5/1s");
        assert!(json["config"].get("max_attempts").is_none());
    }
}
