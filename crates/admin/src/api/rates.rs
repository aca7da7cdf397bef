//! How figures change: samples of the last hour, and what a second brought lately.
//!
//! A task takes a sample every few seconds. The history of the broker as a whole is always kept; that of a queue is kept
//! from the moment on at which somebody asks for it, and forgotten when nobody has for a while. So it costs the same for
//! ten queues and for a million.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use nexo_broker::{Broker, Protocol, QueueStats};
use nexo_types::QueueName;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::question::{Question, Word, Words};

/// How often a sample is taken, if that takes no time to speak of.
const EVERY: Duration = Duration::from_secs(5);
/// Sampling takes no more than one part in this many of the time: with very many queues it is done less often.
const SHARE: u32 = 50;
/// Samples that are kept: an hour's.
const KEPT_MAX: usize = 720;
/// Queues whose history is kept.
const QUEUES_MAX: usize = 256;
/// A queue that nobody has asked for in this time has no history any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// The figures at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// In milliseconds since 1970.
    pub(super) at_ms: u64,
    pub(super) published: u64,
    pub(super) delivered: u64,
    pub(super) redelivered: u64,
    pub(super) acked: u64,
    pub(super) ready: u64,
    pub(super) unacked: u64,
    /// All that are in a queue, those that wait for their time included.
    pub(super) messages: u64,
}

impl Sample {
    fn of(stats: &QueueStats, at_ms: u64) -> Self {
        Self {
            at_ms,
            published: stats.pushed,
            delivered: stats.delivered,
            redelivered: stats.redelivered,
            acked: stats.acked,
            ready: stats.ready,
            unacked: stats.leased,
            messages: stats.ready + stats.leased + stats.delayed + stats.grouped,
        }
    }
}

/// A figure of a sample, under the name that it has in answers.
type Column = (&'static str, fn(&Sample) -> u64);

/// Those that say how many messages are there.
const LENGTHS: [Column; 3] = [
    ("messages", |sample| sample.messages),
    ("messages_ready", |sample| sample.ready),
    ("messages_unacknowledged", |sample| sample.unacked),
];
/// Those that say what was done. Every delivery counts, and so does one more attempt.
const RATES: [Column; 5] = [
    ("publish", |sample| sample.published),
    ("deliver_get", |sample| sample.delivered),
    ("deliver", |sample| sample.delivered),
    ("ack", |sample| sample.acked),
    ("redeliver", |sample| sample.redelivered),
];

/// The history of something.
#[derive(Clone, Debug, Default)]
struct History(VecDeque<Sample>);

impl History {
    fn push(&mut self, sample: Sample) {
        if self.0.len() == KEPT_MAX {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }
}

#[derive(Debug, Default)]
struct Kept {
    whole: History,
    queues: BTreeMap<QueueName, (Instant, History)>,
}

/// The histories that are kept.
#[derive(Debug, Default)]
pub(super) struct Rates {
    kept: Mutex<Kept>,
}

/// How history is asked for.
#[derive(Debug)]
pub(super) struct HistoryWords;

impl Words for HistoryWords {
    const WORDS: &'static [Word] = &[
        ("lengths_age", "how many seconds back the history of lengths goes; with lengths_incr"),
        ("lengths_incr", "how many seconds are between two samples of it"),
        ("msg_rates_age", "how many seconds back the history of rates goes; with msg_rates_incr"),
        ("msg_rates_incr", "how many seconds are between two samples of it"),
    ];
}

/// For how long back, and in which steps, somebody wants to see history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    age_s: u64,
    step_s: u64,
}

/// What of the history an answer shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) lengths: Option<Span>,
    pub(super) rates: Option<Span>,
}

impl Wanted {
    /// What the question behind an address asks for.
    pub(super) fn of(query: &Question<HistoryWords>) -> Result<Self, ApiError> {
        let span = |kind: &str| {
            let number = |name: String| match query.get(&name) {
                None => Ok(None),
                Some(text) => match text.parse::<u64>() {
                    Ok(number) if number > 0 => Ok(Some(number)),
                    Ok(_) | Err(_) => Err(ApiError::bad_request(format!("{name} must be a number above 0"))),
                },
            };
            let (age, step) = (number(format!("{kind}_age"))?, number(format!("{kind}_incr"))?);
            Ok::<_, ApiError>(age.zip(step).map(|(age_s, step_s)| Span { age_s, step_s }))
        };
        Ok(Self { lengths: span("lengths")?, rates: span("msg_rates")? })
    }

    const fn is_none(self) -> bool {
        self.lengths.is_none() && self.rates.is_none()
    }
}

/// What is shown of a history: the figures now, with how they change.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) lengths: Map<String, Value>,
    pub(super) rates: Map<String, Value>,
}

impl Rates {
    /// Takes samples until the task that runs this is dropped.
    pub(super) async fn run(&self, broker: &Broker) {
        loop {
            let began = Instant::now();
            let own = broker.clone();
            let queues: Vec<QueueName> = self.kept.lock().queues.keys().cloned().collect();
            let taken = tokio::task::spawn_blocking(move || {
                let whole = whole(&own);
                let queues: Vec<(QueueName, Option<Sample>)> = queues
                    .into_iter()
                    .map(|name| {
                        let sample = own.queue_stats(&name).ok().map(|stats| Sample::of(&stats, whole.at_ms));
                        (name, sample)
                    })
                    .collect();
                (whole, queues)
            });
            match taken.await {
                Ok((whole, queues)) => self.note(whole, queues),
                Err(error) => tracing::error!(%error, "no sample could be taken"),
            }
            tokio::time::sleep(EVERY.max(began.elapsed() * SHARE)).await;
        }
    }

    fn note(&self, whole: Sample, queues: Vec<(QueueName, Option<Sample>)>) {
        let mut kept = self.kept.lock();
        kept.whole.push(whole);
        kept.queues.retain(|_, (asked_at, _)| asked_at.elapsed() < FORGOTTEN_AFTER);
        for (name, sample) in queues {
            match (kept.queues.get_mut(&name), sample) {
                (Some((_, history)), Some(sample)) => history.push(sample),
                // It is gone.
                (Some(_), None) => {
                    kept.queues.remove(&name);
                }
                (None, _) => {}
            }
        }
    }

    /// The figures of the whole broker. The totals are those now, the rates those of the latest samples.
    pub(super) fn whole(&self, broker: &Broker, wanted: Wanted) -> Figures {
        let now = whole(broker);
        let kept = self.kept.lock();
        figures(&kept.whole.0, now, wanted)
    }

    /// The history of a queue, which is kept from now on if it is wanted.
    pub(super) fn queue(&self, stats: &QueueStats, now_ms: u64, wanted: Wanted) -> Option<Figures> {
        if wanted.is_none() {
            return None;
        }
        let now = Sample::of(stats, now_ms);
        let mut kept = self.kept.lock();
        if !kept.queues.contains_key(&stats.name) && kept.queues.len() >= QUEUES_MAX {
            let oldest = kept.queues.iter().min_by_key(|(_, (asked_at, _))| *asked_at);
            if let Some(name) = oldest.map(|(name, _)| name.clone()) {
                kept.queues.remove(&name);
            }
        }
        let (asked_at, history) =
            kept.queues.entry(stats.name.clone()).or_insert_with(|| (Instant::now(), History::default()));
        *asked_at = Instant::now();
        if history.0.is_empty() {
            history.push(now);
        }
        Some(figures(&history.0, now, wanted))
    }
}

/// The sums over everything there is.
fn whole(broker: &Broker) -> Sample {
    let totals = broker.message_totals();
    let mut sum = Sample {
        at_ms: broker.now().0,
        ready: totals.ready,
        unacked: totals.leased,
        messages: totals.ready + totals.leased + totals.delayed + totals.grouped,
        redelivered: totals.redelivered,
        ..Sample::default()
    };
    // Counted by protocol, so that what goes with a queue that is deleted stays in the sum.
    for protocol in Protocol::ALL {
        let traffic = broker.traffic().of(protocol).stats();
        sum.published += traffic.published;
        sum.delivered += traffic.delivered;
        sum.acked += traffic.acked;
    }
    sum
}

fn figures(history: &VecDeque<Sample>, now: Sample, wanted: Wanted) -> Figures {
    let mut shown = Figures::default();
    for (name, column) in LENGTHS {
        shown.lengths.insert(name.to_owned(), column(&now).into());
        shown.lengths.insert(format!("{name}_details"), details(history, column, wanted.lengths, now.at_ms));
    }
    for (name, column) in RATES {
        shown.rates.insert(name.to_owned(), column(&now).into());
        shown.rates.insert(format!("{name}_details"), details(history, column, wanted.rates, now.at_ms));
    }
    shown
}

/// How a figure has changed lately, and its samples if they are wanted.
fn details(history: &VecDeque<Sample>, column: fn(&Sample) -> u64, span: Option<Span>, now_ms: u64) -> Value {
    let latest = history.len().checked_sub(2).map(|at| (history[at], history[at + 1]));
    let rate = latest.map_or(0.0, |(before, after)| change(&before, &after, column));
    let Some(Span { age_s, step_s }) = span else { return json!({ "rate": rate }) };
    let (from_ms, step_ms) = (now_ms.saturating_sub(age_s.saturating_mul(1000)), step_s.saturating_mul(1000));
    let mut chosen: Vec<&Sample> = Vec::new();
    // The latest first, and then one for each step back.
    for sample in history.iter().rev().take_while(|sample| sample.at_ms >= from_ms) {
        if chosen
            .last()
            .is_none_or(|last| last.at_ms.saturating_sub(sample.at_ms) >= step_ms.saturating_sub(500))
        {
            chosen.push(sample);
        }
    }
    let samples: Vec<Value> =
        chosen.iter().map(|sample| json!({ "sample": column(sample), "timestamp": sample.at_ms })).collect();
    let sum: u64 = chosen.iter().map(|sample| column(sample)).sum();
    let avg = if chosen.is_empty() { 0.0 } else { sum as f64 / chosen.len() as f64 };
    let avg_rate = match (chosen.last(), chosen.first()) {
        (Some(first), Some(last)) => change(first, last, column),
        _ => 0.0,
    };
    json!({ "avg": avg, "avg_rate": avg_rate, "rate": rate, "samples": samples })
}

/// What a second brought between two samples.
fn change(before: &Sample, after: &Sample, column: fn(&Sample) -> u64) -> f64 {
    let ms = after.at_ms.saturating_sub(before.at_ms);
    if ms == 0 { 0.0 } else { (column(after) as f64 - column(before) as f64) * 1000.0 / ms as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(count: u64) -> VecDeque<Sample> {
        let sample = |n| Sample { at_ms: n * 5_000, published: n * 50, ready: 100 - n, ..Sample::default() };
        (0..count).map(sample).collect()
    }

    #[test]
    fn a_rate_is_what_the_latest_samples_say() {
        let shown = figures(&history(3), Sample::default(), Wanted::default());
        assert_eq!(shown.rates["publish_details"], json!({ "rate": 10.0 }));
        assert_eq!(shown.lengths["messages_ready_details"], json!({ "rate": -0.2 }));
        assert_eq!(details(&history(1), |sample| sample.published, None, 0), json!({ "rate": 0.0 }));
    }

    #[test]
    fn samples_are_shown_in_steps_and_as_far_back_as_asked() {
        let span = Some(Span { age_s: 20, step_s: 10 });
        let shown = details(&history(10), |sample| sample.published, span, 45_000);
        let times: Vec<u64> =
            shown["samples"].as_array().unwrap().iter().map(|s| s["timestamp"].as_u64().unwrap()).collect();
        assert_eq!(times, [45_000, 35_000, 25_000]);
        assert_eq!((&shown["avg_rate"], &shown["avg"]), (&json!(10.0), &json!(350.0)));
    }

    #[test]
    fn history_is_bounded() {
        let mut history = History::default();
        for at_ms in 0..2_000 {
            history.push(Sample { at_ms, ..Sample::default() });
        }
        assert_eq!((history.0.len(), history.0[0].at_ms), (KEPT_MAX, 2_000 - KEPT_MAX as u64));
    }

    #[test]
    fn what_is_no_span_is_refused() {
        let asked = |pairs: &[(&str, &str)]| {
            let given = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            Wanted::of(&Question::of(given))
        };
        let lengths = Some(Span { age_s: 60, step_s: 5 });
        assert_eq!(
            asked(&[("lengths_age", "60"), ("lengths_incr", "5")]),
            Ok(Wanted { lengths, rates: None })
        );
        assert_eq!(asked(&[("lengths_age", "60")]), Ok(Wanted::default()));
        assert!(asked(&[("msg_rates_age", "x")]).is_err() && asked(&[("msg_rates_incr", "0")]).is_err());
    }
}
