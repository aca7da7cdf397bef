//! One publisher of a cluster that loses its leader: one persistent message at a time, each confirmed before the next. After a
//! while the process of the leader is killed, and the longest time without a confirm is what clients notice of it.
//!
//! The publisher is connected to another node. It publishes again when nothing is confirmed for a moment, and connects to the
//! next node when its connection ends, as clients of each broker do.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nexo_amqp::codec::{PropertiesBuilder, ShortStr, encode_message};
use nexo_amqp_client::methods;
use rustix::process::{Pid, Signal, kill_process};

use crate::amqp::{AmqpUrl, CHANNEL, Confirmed, declare_queue, short};
use crate::nats::{Acknowledged, NatsUrl};
use crate::options::{QueueType, Target};
use crate::report::{Figures, Report, rate};
use crate::span;
use crate::work::{Durability, QueueArgument, Settings};

/// After so long without a confirm the message is sent again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How long to wait before the next node is tried.
const PAUSE: Duration = Duration::from_millis(10);
/// Longer than this no broker is waited for.
const GAP_MAX: Duration = Duration::from_secs(60);
const BODY: [u8; 16] = *b"is anybody there";

/// Options of `failover`.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct FailoverOptions {
    /// A node of the cluster; once for each, the leader first: the queue is declared there
    #[arg(long, value_name = "URL", required = true)]
    pub url: Vec<Target>,
    /// The process of each node, in the same order; that of the leader is killed
    #[arg(long, value_name = "PID", required = true)]
    pub pid: Vec<u32>,
    /// How long to publish before that
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = span::parse)]
    #[serde(serialize_with = "span::seconds")]
    pub before: Duration,
    /// How long to publish after that
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = span::parse)]
    #[serde(serialize_with = "span::seconds")]
    pub after: Duration,
    /// The kind of queue
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = QueueType::Classic)]
    pub queue_type: QueueType,
}

/// The report of `failover`.
#[derive(Clone, Debug, serde::Serialize)]
pub struct FailoverReport {
    /// What was asked for.
    pub options: FailoverOptions,
    /// The longest time without a confirm, in microseconds.
    pub longest_gap_us: f64,
    /// The same before the leader was killed.
    pub longest_gap_before_us: f64,
    /// Confirms a second before the leader was killed.
    pub confirmed_per_second_before: f64,
    /// How often a connection had to be made again.
    pub reconnects: u64,
}

/// A connection that publishes one message at a time.
trait Publisher {
    /// Publishes one. Sends it again when nothing is confirmed for a moment; an error when the connection is of no use any more.
    fn publish(&mut self) -> anyhow::Result<()>;
}

/// Publishes, kills the leader, and goes on publishing.
///
/// # Errors
/// If the cluster does not serve at first, or not any more after a minute.
pub fn run(options: &FailoverOptions) -> anyhow::Result<FailoverReport> {
    ensure!(options.url.len() >= 2, "a cluster has two nodes at least");
    ensure!(options.url.len() == options.pid.len(), "each --url needs its --pid");
    let queue = format!("failover-{}", std::process::id());
    let leader = declare(options, &queue)?;
    // All but the leader, which is not there later.
    let others: Vec<&Target> =
        (1..options.url.len()).map(|at| &options.url[(leader + at) % options.url.len()]).collect();
    let mut run = Run { others, queue, next: 0, publisher: None, reconnects: 0 };
    let (confirmed, longest_before) = run.publish_for(options.before)?;
    let pid = i32::try_from(options.pid[leader]).ok().and_then(Pid::from_raw).context("no such process")?;
    kill_process(pid, Signal::KILL).context("cannot kill the leader")?;
    let (_, longest) = run.publish_for(options.after)?;
    Ok(FailoverReport {
        options: options.clone(),
        longest_gap_us: longest.as_secs_f64() * 1e6,
        longest_gap_before_us: longest_before.as_secs_f64() * 1e6,
        confirmed_per_second_before: confirmed as f64 / options.before.as_secs_f64(),
        reconnects: run.reconnects,
    })
}

/// Declares the queue, and says which node leads it.
fn declare(options: &FailoverOptions, queue: &str) -> anyhow::Result<usize> {
    match &options.url[0] {
        Target::Amqp(url) => {
            let mut connection = Confirmed::open(url)?.connection;
            let mut settings = Settings { durability: Durability::Durable, arguments: Vec::new() };
            if options.queue_type == QueueType::Quorum {
                settings.arguments.push(QueueArgument::new("x-queue-type", "quorum"));
            }
            declare_queue(&mut connection, queue, &settings)?;
            Ok(0)
        }
        Target::Nats(url) => {
            let leader = Acknowledged::declare(url, queue)?;
            // Nodes are numbered from one, in the order of the addresses.
            let digits: String = leader.chars().filter(char::is_ascii_digit).collect();
            let number: usize = digits.parse().with_context(|| format!("'{leader}' has no number"))?;
            ensure!((1..=options.url.len()).contains(&number), "'{leader}' is none of the nodes");
            Ok(number - 1)
        }
        Target::Native(_) | Target::Sqs(_) => bail!("failover is measured over AMQP and NATS"),
    }
}

struct Run<'a> {
    others: Vec<&'a Target>,
    queue: String,
    next: usize,
    publisher: Option<Box<dyn Publisher>>,
    reconnects: u64,
}

impl Run<'_> {
    /// How many were confirmed, and the longest time without one.
    fn publish_for(&mut self, time: Duration) -> anyhow::Result<(u64, Duration)> {
        let began = Instant::now();
        let (mut last, mut longest, mut confirmed) = (began, Duration::ZERO, 0);
        while began.elapsed() < time {
            match self.publish() {
                Ok(()) => {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                    confirmed += 1;
                }
                Err(error) => {
                    ensure!(last.elapsed() < GAP_MAX, "nothing is confirmed any more: {error:#}");
                    self.publisher = None;
                    self.next += 1;
                    self.reconnects += 1;
                    std::thread::sleep(PAUSE);
                }
            }
        }
        Ok((confirmed, longest.max(last.elapsed())))
    }

    fn publish(&mut self) -> anyhow::Result<()> {
        let publisher = match &mut self.publisher {
            Some(publisher) => publisher,
            None => {
                let url = self.others[self.next % self.others.len()];
                self.publisher.insert(open(url, &self.queue)?)
            }
        };
        publisher.publish()
    }
}

fn open(url: &Target, queue: &str) -> anyhow::Result<Box<dyn Publisher>> {
    Ok(match url {
        Target::Amqp(url) => Box::new(AmqpPublisher::open(url, queue)?),
        Target::Nats(url) => Box::new(NatsPublisher::open(url, queue)?),
        Target::Native(_) | Target::Sqs(_) => bail!("failover is measured over AMQP and NATS"),
    })
}

struct AmqpPublisher {
    confirmed: Confirmed,
    frames: Vec<u8>,
}

impl AmqpPublisher {
    fn open(url: &AmqpUrl, queue: &str) -> anyhow::Result<Self> {
        let confirmed = Confirmed::open(url)?;
        let publish = methods::publish(ShortStr::EMPTY, short(queue)?);
        let properties = PropertiesBuilder::new().delivery_mode(2).to_vec();
        let mut frames = Vec::new();
        encode_message(&mut frames, CHANNEL, &publish, &properties, &BODY, confirmed.connection.frame_max);
        confirmed.connection.socket.set_read_timeout(Some(AGAIN_AFTER))?;
        Ok(Self { confirmed, frames })
    }
}

impl Publisher for AmqpPublisher {
    fn publish(&mut self) -> anyhow::Result<()> {
        self.confirmed.publish_until_confirmed(&self.frames)
    }
}

struct NatsPublisher(Acknowledged);

impl NatsPublisher {
    fn open(url: &NatsUrl, queue: &str) -> anyhow::Result<Self> {
        Ok(Self(Acknowledged::open(url, queue, AGAIN_AFTER)?))
    }
}

impl Publisher for NatsPublisher {
    fn publish(&mut self) -> anyhow::Result<()> {
        self.0.publish(&BODY)
    }
}

impl Report for FailoverReport {
    fn title(&self) -> String {
        format!("the leader of {} nodes is killed under one publisher", self.options.url.len())
    }

    fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        figures
            .add("longest time without a confirm", format!("{:.0} ms", self.longest_gap_us / 1e3))
            .add("the same before", format!("{:.0} ms", self.longest_gap_before_us / 1e3))
            .add("confirmed before", rate(self.confirmed_per_second_before))
            .add("connections made again", self.reconnects);
        figures
    }
}
