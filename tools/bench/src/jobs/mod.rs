//! Job queues: a million pending jobs whose scores follow the clock, what they take, and how long it takes to ask for one more and
//! to be handed the most urgent. Over HTTP, as any language would.

mod http;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;

use crate::percentiles::Percentiles;
use crate::probe::{Times, paced};
use crate::process;
use crate::progress::{Progress, Verdict, Watch};
use crate::report::{Figures, Report, mib, thousands};
use crate::span;
use crate::tally::Totals;
use crate::threads::joined;
use http::Connection;

const QUEUE: &str = "bench-jobs";
/// Connections that fill the queue, and requests that each writes at once.
const FILLERS: usize = 16;
const BATCH: u64 = 64;
/// Jobs are due at some moment of this time, so that their scores change all the while.
const DUE_WITHIN_MS: u64 = 45 * 60_000;
const CLASSES: [&str; 4] = ["business", "pro", "starter", "free"];
/// How often something is asked for, or taken, while that is measured.
const EVERY: Duration = Duration::from_millis(2);
/// How often progress is shown.
const TICK: Duration = Duration::from_millis(100);

/// Options of `jobs`.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct JobsOptions {
    /// The broker's management address
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:15672")]
    pub http: String,
    /// How many jobs are pending while the rest is measured
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub jobs: u64,
    /// How long each part is measured
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = span::parse)]
    #[serde(serialize_with = "span::seconds")]
    pub duration: Duration,
    /// The broker's process, to see its memory and processor time
    #[arg(long, value_name = "PID")]
    pub broker_pid: Option<u32>,
}

/// The report of `jobs`.
#[derive(Clone, Debug, serde::Serialize)]
pub struct JobsReport {
    /// What was asked for.
    pub options: JobsOptions,
    /// Jobs a second while the queue was filled, each synced.
    pub filled_per_second: f64,
    /// Memory of the broker before, and with all jobs pending.
    pub memory_bytes: Option<(u64, u64)>,
    /// Of one core, with nobody asking: what keeping scores current takes.
    pub scores_core: Option<f64>,
    /// Asking for a new key.
    pub ask_new: Option<Percentiles>,
    /// Asking for a key that is pending.
    pub ask_joined: Option<Percentiles>,
    /// Being handed the most urgent job.
    pub take: Option<Percentiles>,
    /// Completing it.
    pub complete: Option<Percentiles>,
}

/// Runs it.
///
/// # Errors
/// If the broker cannot be reached, or refuses what it is asked.
pub fn run(options: &JobsOptions, watch: Watch<'_>) -> anyhow::Result<JobsReport> {
    let mut connection = Connection::open(&options.http)?;
    // What an earlier run left.
    let _ = connection.ask("DELETE", &format!("queues/%2F/{QUEUE}"), "");
    let settings = r#"{"window_ms": 86400000, "lease_ms": 600000, "remember_ms": 0, "result_ttl_ms": 0}"#;
    connection.ask("PUT", &format!("queues/%2F/{QUEUE}"), settings)?;
    drop(connection);
    let resident = |pid: Option<u32>| pid.map(process::resident_bytes).transpose();
    let before = resident(options.broker_pid)?;
    let filled_per_second = fill(options, watch)?;
    // Scores that were to be found are found, and buffers of the load are given back.
    std::thread::sleep(Duration::from_secs(2));
    let after = resident(options.broker_pid)?;
    let scores_core = match options.broker_pid {
        None => None,
        Some(pid) => {
            let began = process::processor_time(pid)?;
            std::thread::sleep(options.duration);
            let used = process::processor_time(pid)?.saturating_sub(began);
            Some(used.as_secs_f64() / options.duration.as_secs_f64())
        }
    };
    let (ask_new, ask_joined) = (asking(options, Key::New)?, asking(options, Key::Pending)?);
    let (take, complete) = working(options)?;
    Connection::open(&options.http)?.ask("DELETE", &format!("queues/%2F/{QUEUE}"), "")?;
    let found = |times: &Times| times.found().sent;
    Ok(JobsReport {
        options: options.clone(),
        filled_per_second,
        memory_bytes: before.zip(after),
        scores_core,
        ask_new: found(&ask_new),
        ask_joined: found(&ask_joined),
        take: found(&take),
        complete: found(&complete),
    })
}

/// A request for the job of a key, by a waiter of its own.
fn request(key: u64, waiter: u64, due_in_ms: u64) -> Vec<u8> {
    let class = CLASSES[(waiter % 4) as usize];
    let body = format!(
        r#"{{"type":"search","key":"category-{key}","payload":{{"category":{key}}},"waiter":{{"id":"waiter-{waiter}","user":"user-{}","class":"{class}","due_in_ms":{due_in_ms}}}}}"#,
        waiter % 10_000
    );
    Connection::request("POST", &format!("queues/%2F/{QUEUE}/ask"), &body)
}

/// A number that looks like chance.
const fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8
}

/// Fills the queue. Gives back jobs a second.
fn fill(options: &JobsOptions, watch: Watch<'_>) -> anyhow::Result<f64> {
    let (next, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let began = Instant::now();
    let fillers: Vec<JoinHandle<anyhow::Result<()>>> = (0..FILLERS)
        .map(|_| {
            let (address, jobs) = (options.http.clone(), options.jobs);
            let (next, stop) = (Arc::clone(&next), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut connection = Connection::open(&address)?;
                let mut requests = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let first = next.fetch_add(BATCH, Ordering::Relaxed);
                    let last = (first + BATCH).min(jobs);
                    if first >= last {
                        break;
                    }
                    requests.clear();
                    for key in first..last {
                        requests.extend(request(key, key, scattered(key) % DUE_WITHIN_MS));
                    }
                    connection.send(&requests)?;
                    for _ in first..last {
                        connection.answer()?;
                    }
                }
                Ok(())
            })
        })
        .collect();
    while !fillers.iter().all(JoinHandle::is_finished) {
        std::thread::sleep(TICK);
        let part = next.load(Ordering::Relaxed).min(options.jobs) as f64 / options.jobs.max(1) as f64;
        let elapsed = began.elapsed();
        let total = elapsed.mul_f64(1.0 / part.max(0.001));
        if watch(&Progress { elapsed, total, totals: Totals::default() }) == Verdict::Enough {
            stop.store(true, Ordering::Relaxed);
        }
    }
    for filler in fillers {
        joined(filler, "a client that fills the queue")?;
    }
    Ok(options.jobs as f64 / began.elapsed().as_secs_f64())
}

/// Which key is asked for.
#[derive(Clone, Copy)]
enum Key {
    New,
    Pending,
}

fn asking(options: &JobsOptions, which: Key) -> anyhow::Result<Times> {
    let mut connection = Connection::open(&options.http)?;
    let (until, mut number) = (Instant::now() + options.duration, 0);
    let times = paced(
        EVERY,
        || Instant::now() < until,
        || {
            number += 1;
            let waiter = options.jobs * 2 + number + if matches!(which, Key::New) { 0 } else { 1 << 40 };
            let key = match which {
                Key::New => options.jobs + number,
                Key::Pending => scattered(number) % options.jobs.max(1),
            };
            let request = request(key, waiter, DUE_WITHIN_MS);
            let sent = Instant::now();
            connection.send(&request)?;
            connection.answer()?;
            Ok(sent.elapsed())
        },
    )?;
    Ok(times)
}

/// Takes jobs and completes them, one after the other. Gives back how long each took.
fn working(options: &JobsOptions) -> anyhow::Result<(Times, Times)> {
    let mut connection = Connection::open(&options.http)?;
    let (until, mut completed) = (Instant::now() + options.duration, Times::default());
    let taken = paced(
        EVERY,
        || Instant::now() < until,
        || {
            let began = Instant::now();
            let taken =
                connection.ask("POST", &format!("queues/%2F/{QUEUE}/take"), r#"{"worker":"bench"}"#)?;
            let took = began.elapsed();
            let taken: Value = serde_json::from_str(&taken).context("an answer is JSON")?;
            let receipt = taken["jobs"][0]["receipt"].as_str().context("a million jobs are pending")?;
            let began = Instant::now();
            connection.ask("POST", &format!("receipt/{receipt}/complete"), r#"{"result":[1,2,3]}"#)?;
            completed.add(began.elapsed());
            Ok(took)
        },
    )?;
    Ok((taken, completed))
}

impl Report for JobsReport {
    fn title(&self) -> String {
        format!("{} pending jobs of one queue", thousands(self.options.jobs as f64))
    }

    fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        figures.add("asked for while filling", format!("{} jobs/s", thousands(self.filled_per_second)));
        if let Some((before, after)) = self.memory_bytes {
            figures
                .add("broker's memory before, with all of them", format!("{}, {}", mib(before), mib(after)));
        }
        figures
            .add_some(
                "keeping scores current",
                self.scores_core.map(|core| format!("{:.1} % of a core", core * 100.0)),
            )
            .add_some("asking for a new key", self.ask_new)
            .add_some("asking for a pending key", self.ask_joined)
            .add_some("being handed the most urgent", self.take)
            .add_some("completing it", self.complete);
        figures
    }
}
