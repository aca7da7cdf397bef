//! A client among many: it publishes one persistent message at a time to a queue of its own, every 20 ms, and waits for
//! each confirm. Whatever else the broker has to do, this client must not wait long.
//!
//! A message has two times. From the moment it was sent, which is what one client sees; and from the moment it was due,
//! so that a stall also counts for the messages that could not be sent meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nexo_amqp::codec::{PropertiesBuilder, ShortStr, encode_message};
use nexo_amqp_client::methods;

use crate::amqp::{AmqpUrl, CHANNEL, Confirmed, declare_queue, delete_queue, short};
use crate::percentiles::{self, Percentiles};
use crate::progress::{Progress, Verdict, Watch};
use crate::report::{Figures, Report};
use crate::span;
use crate::tally::Totals;
use crate::threads::joined;
use crate::work::{Durability, Settings};

/// How often a message is sent, if nobody says otherwise.
pub(crate) const EVERY: Duration = Duration::from_millis(20);
/// How often progress is shown.
const TICK: Duration = Duration::from_millis(100);
/// What it says.
const BODY: [u8; 16] = *b"is anybody there";

/// Options of `probe`.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct ProbeOptions {
    /// The broker: amqp://user:password@host:port/vhost
    #[arg(long, value_name = "URL", default_value = "amqp://guest:guest@127.0.0.1:5672/%2F")]
    #[serde(skip)]
    pub url: AmqpUrl,
    /// How often a message is sent
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = span::parse)]
    #[serde(serialize_with = "span::seconds")]
    pub every: Duration,
    /// How long to measure
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = span::parse)]
    #[serde(serialize_with = "span::seconds")]
    pub duration: Duration,
}

/// What a probe found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Probed {
    /// From sending a message to its confirm.
    pub sent: Option<Percentiles>,
    /// From the moment it was due to its confirm.
    pub due: Option<Percentiles>,
}

/// The report of `probe`.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ProbeReport {
    /// What was asked for.
    pub options: ProbeOptions,
    /// What was found.
    pub probed: Probed,
}

/// Runs one probe.
///
/// # Errors
/// If the broker cannot be reached, refuses what it is asked, or hangs.
pub fn run(options: &ProbeOptions, watch: Watch<'_>) -> anyhow::Result<ProbeReport> {
    let probe = Probe::start(&options.url, options.every)?;
    let began = Instant::now();
    while began.elapsed() < options.duration && !probe.thread.is_finished() {
        std::thread::sleep(TICK.min(options.duration.saturating_sub(began.elapsed())));
        let progress =
            Progress { elapsed: began.elapsed(), total: options.duration, totals: Totals::default() };
        if watch(&progress) == Verdict::Enough {
            break;
        }
    }
    Ok(ProbeReport { options: options.clone(), probed: probe.finish()? })
}

/// A probe on a thread of its own.
pub(crate) struct Probe {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<Times>>,
}

impl Probe {
    /// Connects and begins.
    pub(crate) fn start(url: &AmqpUrl, every: Duration) -> anyhow::Result<Self> {
        let queue = format!("probe-{}", std::process::id());
        let mut publisher = Confirmed::open(url)?;
        let settings = Settings { durability: Durability::Durable, arguments: Vec::new() };
        declare_queue(&mut publisher.connection, &queue, &settings)?;
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let times = measure(&mut publisher, &queue, every, &stopped)?;
            delete_queue(&mut publisher.connection, &queue)?;
            publisher.connection.close()?;
            Ok(times)
        });
        Ok(Self { stop, thread })
    }

    /// Ends it and says what it found.
    pub(crate) fn finish(self) -> anyhow::Result<Probed> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(joined(self.thread, "the probe")?.found())
    }
}

fn measure(
    publisher: &mut Confirmed,
    queue: &str,
    every: Duration,
    stop: &AtomicBool,
) -> anyhow::Result<Times> {
    let publish = methods::publish(ShortStr::EMPTY, short(queue)?);
    let properties = PropertiesBuilder::new().delivery_mode(2).to_vec();
    let mut frames = Vec::new();
    encode_message(&mut frames, CHANNEL, &publish, &properties, &BODY, publisher.connection.frame_max);
    paced(every, || !stop.load(Ordering::Relaxed), || publisher.publish(&frames))
}

/// Does something at equal distances for as long as it should, one after the other; `work` says how long it took. What
/// comes due meanwhile counts.
pub(crate) fn paced(
    every: Duration,
    mut goes_on: impl FnMut() -> bool,
    mut work: impl FnMut() -> anyhow::Result<Duration>,
) -> anyhow::Result<Times> {
    let mut times = Times::default();
    let mut due = Instant::now();
    while goes_on() {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let took = work()?;
        let now = Instant::now();
        times.note(took, due, now);
        due = times.next(due, now, every);
    }
    Ok(times)
}

/// The times of all messages, in nanoseconds.
pub(crate) struct Times {
    sent: Histogram<u64>,
    due: Histogram<u64>,
}

impl Default for Times {
    fn default() -> Self {
        Self { sent: percentiles::nanos(), due: percentiles::nanos() }
    }
}

impl Times {
    /// Adds one that was done when it was.
    pub(crate) fn add(&mut self, took: Duration) {
        percentiles::note(&mut self.sent, took, 1);
        percentiles::note(&mut self.due, took, 1);
    }

    fn note(&mut self, took: Duration, due: Instant, confirmed: Instant) {
        percentiles::note(&mut self.sent, took, 1);
        percentiles::note(&mut self.due, confirmed.saturating_duration_since(due), 1);
    }

    /// When the next message is due. Those that came due during a stall are not sent, so that the probe never becomes a
    /// load of its own, but each counts as long as it would have waited.
    fn next(&mut self, due: Instant, now: Instant, every: Duration) -> Instant {
        let mut next = due + every;
        while !every.is_zero() && next + every <= now {
            percentiles::note(&mut self.due, now - next, 1);
            next += every;
        }
        next
    }

    pub(crate) fn found(&self) -> Probed {
        Probed { sent: Percentiles::of_nanos(&self.sent), due: Percentiles::of_nanos(&self.due) }
    }
}

impl Report for ProbeReport {
    fn title(&self) -> String {
        format!("one persistent message every {:?}, each confirmed before the next", self.options.every)
    }

    fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        figures
            .add_some("from send to confirm", self.probed.sent)
            .add_some("from when it was due", self.probed.due)
            .add_some("messages", self.probed.sent.map(|times| times.count));
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_counts_once_when_sent_and_for_all_that_came_due() {
        let mut times = Times::default();
        let began = Instant::now();
        let at = |millis| began + Duration::from_millis(millis);
        times.note(Duration::from_millis(100), began, at(100));
        let next = times.next(began, at(100), EVERY);
        // Those due at 20, 40, 60 and 80 ms could not be sent; the one due at 100 ms can.
        assert_eq!(next, at(100));
        assert_eq!((times.sent.len(), times.due.len()), (1, 5));
        let found = times.found();
        let (sent, due) = (found.sent.unwrap(), found.due.unwrap());
        assert!((99_000.0..101_000.0).contains(&sent.max_us), "{sent:?}");
        assert!((59_000.0..61_000.0).contains(&due.mean_us), "100, 80, 60, 40 and 20 ms: {due:?}");
    }

    #[test]
    fn work_that_stalls_counts_for_all_that_came_due_meanwhile() {
        let mut left = 2;
        let goes_on = || {
            left -= 1;
            left >= 0
        };
        let mut stalls = [Duration::from_millis(100), Duration::ZERO].into_iter();
        let times = paced(EVERY, goes_on, || {
            let stall = stalls.next().unwrap();
            std::thread::sleep(stall);
            Ok(stall)
        })
        .unwrap();
        assert_eq!(times.sent.len(), 2);
        assert!(times.due.len() >= 6, "{} of a stall as long as five", times.due.len());
    }

    #[test]
    fn without_a_stall_both_times_have_one_entry_each() {
        let mut times = Times::default();
        let began = Instant::now();
        let confirmed = began + Duration::from_millis(1);
        times.note(Duration::from_millis(1), began, confirmed);
        assert_eq!(times.next(began, confirmed, EVERY), began + EVERY);
        assert_eq!((times.sent.len(), times.due.len()), (1, 1));
        assert!(Times::default().found().sent.is_none());
    }
}
