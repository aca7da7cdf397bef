//! Everything but messages: connections, channels, queues and bindings that come and go, or that are there and do
//! nothing.

mod come_and_go;
mod declare;
mod hold;

use std::time::Duration;

use crate::amqp::AmqpUrl;
use crate::report::{Figures, Report, mib, thousands};
use crate::span;

/// Options of `churn`.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct ChurnOptions {
    /// The broker: amqp://user:password@host:port/vhost
    #[arg(long, value_name = "URL", default_value = "amqp://guest:guest@127.0.0.1:5672/%2F")]
    pub url: AmqpUrl,
    /// The broker's process, for its memory
    #[arg(long, value_name = "PID")]
    pub broker_pid: Option<u32>,
    /// How long each kind comes and goes
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = span::parse)]
    #[serde(serialize_with = "span::seconds")]
    pub duration: Duration,
    /// Instead, hold connections and queues open for this long, with heartbeats both ways
    #[arg(long, value_name = "TIME", value_parser = span::parse)]
    #[serde(serialize_with = "span::some_seconds")]
    pub hold: Option<Duration>,
    /// Connections to hold
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub connections: u32,
    /// Channels to hold on each connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=2047))]
    pub channels: u16,
    /// Queues to hold, durable and empty
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub queues: u32,
    /// Seconds between signs of life while holding
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=600))]
    pub heartbeat: u16,
}

/// What was found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Churn {
    /// What was asked for.
    pub options: ChurnOptions,
    /// How many came and went in a second, by kind.
    #[serde(flatten)]
    pub found: Found,
}

/// Which of the two was done.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// Things came and went.
    CameAndWent(Rates),
    /// Things were held.
    Held(Held),
}

/// How many came and went in a second.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Rates {
    /// Connections: TCP, log-in, and the end of it.
    pub connections: f64,
    /// Channels opened and closed.
    pub channels: f64,
    /// Durable queues declared and deleted.
    pub durable_queues: f64,
    /// Transient queues declared and deleted.
    pub transient_queues: f64,
    /// Bindings made and ended.
    pub bindings: f64,
    /// Durable queues declared by a client that does not wait for each answer.
    pub pipelined_declares: f64,
    /// Durable queues deleted by it.
    pub pipelined_deletes: f64,
    /// Durable queues declared by ten clients that wait for each answer.
    pub concurrent_declares: f64,
}

/// What holding took.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Held {
    /// Seconds to open all connections and channels.
    pub opened_seconds: f64,
    /// Heartbeats sent and received while holding.
    pub heartbeats_sent: u64,
    /// Heartbeats that the broker sent.
    pub heartbeats_received: u64,
    /// Memory of the broker before anything was opened.
    pub empty_resident_bytes: Option<u64>,
    /// How much more it holds with the queues.
    pub queues_bytes: Option<i64>,
    /// How much more it holds with the connections, beyond the queues.
    pub connections_bytes: Option<i64>,
}

/// Runs the load.
///
/// # Errors
/// If the broker cannot be reached, refuses what it is asked, or loses a connection that is held.
pub fn run(options: &ChurnOptions) -> anyhow::Result<Churn> {
    let url = &options.url;
    let found = match options.hold {
        Some(time) => Found::Held(hold::run(url, time, options)?),
        None => Found::CameAndWent(come_and_go::run(url, options.duration)?),
    };
    Ok(Churn { options: options.clone(), found })
}

impl Report for Churn {
    fn title(&self) -> String {
        match &self.found {
            Found::CameAndWent(_) => "coming and going, one after the other".to_owned(),
            Found::Held(_) => format!(
                "{} connections with {} channels each, {} queues, held for {:?}",
                self.options.connections,
                self.options.channels,
                self.options.queues,
                self.options.hold.unwrap_or_default()
            ),
        }
    }

    fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        let a_second = |rate: f64| format!("{} a second", thousands(rate));
        match self.found {
            Found::CameAndWent(rates) => {
                figures
                    .add("connections", a_second(rates.connections))
                    .add("channels", a_second(rates.channels))
                    .add("durable queues", a_second(rates.durable_queues))
                    .add("transient queues", a_second(rates.transient_queues))
                    .add("bindings", a_second(rates.bindings))
                    .add("durable declares in a row", a_second(rates.pipelined_declares))
                    .add("deletes in a row", a_second(rates.pipelined_deletes))
                    .add("durable declares by ten clients", a_second(rates.concurrent_declares));
            }
            Found::Held(held) => {
                let more = |bytes: i64, count: u32| {
                    let each = bytes as f64 / f64::from(count.max(1)) / 1024.0;
                    let sign = if bytes < 0 { "-" } else { "+" };
                    format!("{sign}{} ({each:.1} KiB each)", mib(bytes.unsigned_abs()))
                };
                let options = &self.options;
                figures
                    .add("lost", "none")
                    .add("opened in", format!("{:.2} s", held.opened_seconds))
                    .add(
                        "heartbeats",
                        format!("{} sent, {} received", held.heartbeats_sent, held.heartbeats_received),
                    )
                    .add_some("broker's memory, empty", held.empty_resident_bytes.map(mib))
                    .add_some("with the queues", held.queues_bytes.map(|bytes| more(bytes, options.queues)))
                    .add_some(
                        "with the connections",
                        held.connections_bytes.map(|bytes| more(bytes, options.connections)),
                    );
            }
        }
        figures
    }
}
