//! What brokers find hard: loads that look for memory without a bound, for stalls, and for work that never ends. One
//! scenario at a time, against a broker of its own: what it declares stays there. `cargo xtask bench abuse` starts a
//! fresh broker for each and writes down what was found.
//!
//! A [`Probe`](crate::probe) runs beside most of them, as a client that has nothing to do with the load.

mod checkpoints;
mod descriptors;
mod flow;
mod intake;
mod memory_alarm;
mod newcomer;
mod pace;
mod stalls;
mod strangers;
mod target;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::amqp::AmqpUrl;
use crate::native::NativeUrl;
use crate::probe::Probed;
use crate::process;
use crate::report::{Figures, Report, mib};
use crate::work::Ack;
use flow::Shape;
use newcomer::Port;
use target::Target;

/// How long a broker is left alone before it is seen what memory it gave back.
const SETTLE: Duration = Duration::from_secs(5);

/// What can be done to a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// Nothing but the probe, to compare with
    Idle,
    /// 1,100 silent connections to the management port, and publishes meanwhile
    Silent,
    /// 4 GiB that wait: how many files are open
    Backlog,
    /// 1.5 million deduplication ids: what the broker writes when nobody asks for anything
    Dedup,
    /// The same with 4 million delayed messages
    Delayed,
    /// A million delayed messages that come due within a second, and a consumer
    DelayedTogether,
    /// A native subscriber with a credit of a million that does not read, and 2 GB for it
    Subscriber,
    /// 20 unfinished bodies of 60 MiB on one AMQP connection
    Bodies,
    /// Eight open transactions of 200 MiB
    Transactions,
    /// Eight unfinished requests of 200 MiB to the SQS API
    SqsBodies,
    /// A message of 16 MiB to 300 queues
    FanoutLarge,
    /// 100 bytes to 50,000 queues
    FanoutMany,
    /// 5 million messages that come back at once, because their consumer went away
    Requeue,
    /// Messages with 17,000 headers for 3,000 bindings of a headers exchange
    Headers,
    /// Transient messages of 10 KB, as fast as they go
    Flood,
    /// Publishers of delayed messages without confirms, past a low memory watermark (--memory-high)
    MemoryAlarm,
    /// 5,000 idle AMQP connections, and new clients
    Connections,
    /// 1,000 peers that send a byte a second to the AMQP port, and new clients
    LorisAmqp,
    /// The same to the native API
    LorisGrpc,
    /// The same to the SQS API
    LorisSqs,
    /// The same to the management port
    LorisHttp,
    /// Peers that send garbage to the AMQP port, and new clients
    GarbageAmqp,
    /// The same to the native API
    GarbageGrpc,
    /// The same to the SQS API
    GarbageSqs,
    /// The same to the management port
    GarbageHttp,
    /// Latency at half of the broker's own maximum
    Half,
    /// A queue with 256 priorities, filled and drained ten times
    Priorities,
    /// 4 publishers and 4 consumers of one queue, without acknowledgements
    #[value(name = "flow-4")]
    #[serde(rename = "flow-4")]
    Flow4,
    /// The same with an acknowledgement for each 100 messages
    #[value(name = "flow-4-ack")]
    #[serde(rename = "flow-4-ack")]
    Flow4Ack,
    /// 10 publishers and 10 consumers of ten queues, without acknowledgements
    #[value(name = "flow-10")]
    #[serde(rename = "flow-10")]
    Flow10,
    /// 20 publishers and 20 consumers of twenty queues, with an acknowledgement for each 10 messages
    #[value(name = "flow-20-ack")]
    #[serde(rename = "flow-20-ack")]
    Flow20Ack,
    /// 100 publishers and one consumer, with an acknowledgement for each 100 messages
    #[value(name = "flow-100-ack")]
    #[serde(rename = "flow-100-ack")]
    Flow100Ack,
    /// 100 publishers and 100 consumers of one queue, with an acknowledgement for each 10 messages
    #[value(name = "flow-100-100-ack")]
    #[serde(rename = "flow-100-100-ack")]
    Flow100To100Ack,
    /// 200 publishers and 200 consumers of 200 queues, with an acknowledgement for each 10 messages
    #[value(name = "flow-200-ack")]
    #[serde(rename = "flow-200-ack")]
    Flow200Ack,
    /// A publisher beside a consumer that sleeps 10 ms after each message
    #[value(name = "flow-sleeps")]
    #[serde(rename = "flow-sleeps")]
    FlowSleeps,
}

/// Options of `abuse`.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct AbuseOptions {
    /// What to do
    #[arg(value_enum)]
    pub scenario: Scenario,
    /// The broker's AMQP: amqp://user:password@host:port/vhost
    #[arg(long, value_name = "URL", default_value = "amqp://guest:guest@127.0.0.1:5672/%2F")]
    #[serde(skip)]
    pub url: AmqpUrl,
    /// Its native API
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7654")]
    #[serde(skip)]
    pub native: NativeUrl,
    /// Its SQS API
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9324")]
    pub sqs: String,
    /// Its management port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:15672")]
    pub http: String,
    /// Its process, for memory, files and what it writes
    #[arg(long, value_name = "PID")]
    pub broker_pid: u32,
    /// Divide all counts by this, for a quick look
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub divide: u64,
}

/// What was found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Abuse {
    /// What was asked for.
    pub options: AbuseOptions,
    /// Memory of the broker before it began.
    pub before_bytes: u64,
    /// The most that it held.
    pub peak_bytes: u64,
    /// What it held some seconds after everything was over.
    pub after_bytes: u64,
    /// What the probe saw, where one ran.
    pub probe: Option<Probed>,
    /// What else was measured, by name.
    pub measured: Vec<(String, String)>,
    /// What of it a goal can be held against, by name.
    pub numbers: BTreeMap<&'static str, f64>,
}

/// What a scenario gives back.
#[derive(Debug, Default)]
struct Found {
    probe: Option<Probed>,
    measured: Vec<(String, String)>,
    numbers: BTreeMap<&'static str, f64>,
}

impl Found {
    fn add(&mut self, name: &str, value: impl std::fmt::Display) -> &mut Self {
        self.measured.push((name.to_owned(), value.to_string()));
        self
    }

    /// Something that a goal can be held against.
    fn number(&mut self, name: &'static str, value: f64) -> &mut Self {
        self.numbers.insert(name, value);
        self
    }
}

/// Runs one scenario.
///
/// # Errors
/// If the broker cannot be reached, refuses what is no abuse, or hangs.
pub fn run(options: &AbuseOptions) -> anyhow::Result<Abuse> {
    let target = Target::new(options);
    process::allow_many_files();
    let before_bytes = process::resident_bytes(target.pid)?;
    let even = |publishers, consumers, queues, ack| {
        flow::even(&target, Shape { publishers, consumers, queues, ack })
    };
    let found = match options.scenario {
        Scenario::Idle => stalls::idle(&target),
        Scenario::Silent => descriptors::silent(&target),
        Scenario::Backlog => descriptors::backlog(&target),
        Scenario::Dedup => checkpoints::dedup(&target),
        Scenario::Delayed => checkpoints::delayed(&target),
        Scenario::DelayedTogether => checkpoints::due_together(&target),
        Scenario::Subscriber => intake::subscriber(&target),
        Scenario::Bodies => intake::bodies(&target),
        Scenario::Transactions => intake::transactions(&target),
        Scenario::SqsBodies => intake::sqs_bodies(&target),
        Scenario::FanoutLarge => stalls::fanout_large(&target),
        Scenario::FanoutMany => stalls::fanout_many(&target),
        Scenario::Requeue => stalls::requeue(&target),
        Scenario::Headers => stalls::headers(&target),
        Scenario::Flood => stalls::flood(&target),
        Scenario::MemoryAlarm => memory_alarm::memory_alarm(&target),
        Scenario::Connections => strangers::idle_connections(&target),
        Scenario::LorisAmqp => strangers::slow_loris(&target, Port::Amqp),
        Scenario::LorisGrpc => strangers::slow_loris(&target, Port::Grpc),
        Scenario::LorisSqs => strangers::slow_loris(&target, Port::Sqs),
        Scenario::LorisHttp => strangers::slow_loris(&target, Port::Http),
        Scenario::GarbageAmqp => strangers::garbage(&target, Port::Amqp),
        Scenario::GarbageGrpc => strangers::garbage(&target, Port::Grpc),
        Scenario::GarbageSqs => strangers::garbage(&target, Port::Sqs),
        Scenario::GarbageHttp => strangers::garbage(&target, Port::Http),
        Scenario::Half => pace::half(&target),
        Scenario::Priorities => pace::priorities(&target),
        Scenario::Flow4 => even(4, 4, 1, Ack::Auto),
        Scenario::Flow4Ack => even(4, 4, 1, Ack::Every(100)),
        Scenario::Flow10 => even(10, 10, 10, Ack::Auto),
        Scenario::Flow20Ack => even(20, 20, 20, Ack::Every(10)),
        Scenario::Flow100Ack => even(100, 1, 1, Ack::Every(100)),
        Scenario::Flow100To100Ack => even(100, 100, 1, Ack::Every(10)),
        Scenario::Flow200Ack => even(200, 200, 200, Ack::Every(10)),
        Scenario::FlowSleeps => flow::sleeper(&target),
    }?;
    std::thread::sleep(target.time(SETTLE));
    Ok(Abuse {
        options: options.clone(),
        before_bytes,
        peak_bytes: process::peak_resident_bytes(target.pid)?,
        after_bytes: process::resident_bytes(target.pid)?,
        probe: found.probe,
        measured: found.measured,
        numbers: found.numbers,
    })
}

impl Report for Abuse {
    fn title(&self) -> String {
        let part = match self.options.divide {
            1 => String::new(),
            divide => format!(", a part of {divide}"),
        };
        format!("abuse: {:?}{part}", self.options.scenario)
    }

    fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        for (name, value) in &self.measured {
            figures.add(name.as_str(), value);
        }
        if let Some(probe) = &self.probe {
            figures.add_some("probe, send to confirm", probe.sent);
            figures.add_some("probe, from when due", probe.due);
        }
        figures
            .add("broker's memory before", mib(self.before_bytes))
            .add("at most", mib(self.peak_bytes))
            .add("after", mib(self.after_bytes));
        figures
    }
}
