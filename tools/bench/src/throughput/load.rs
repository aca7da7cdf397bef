//! The threads of a load: started together, watched, ended in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::options::ThroughputOptions;
use super::plan::Plan;
use super::report::Throughput;
use crate::percentiles::Percentiles;
use crate::process::Usage;
use crate::progress::{Progress, Verdict, Watch};
use crate::protocol::Protocol;
use crate::tally::{Tally, Totals, add_tally};
use crate::threads::joined;
use crate::work::Seen;

/// How often the counters are looked at.
const TICK: Duration = Duration::from_millis(100);

/// The counters at one moment.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Sample {
    /// Seconds since the load began.
    pub seconds: f64,
    /// What was done by then.
    pub totals: Totals,
}

/// Running threads.
pub(super) struct Load {
    began: Instant,
    tallies: Vec<Arc<Tally>>,
    stop_publishers: Arc<AtomicBool>,
    stop_consumers: Arc<AtomicBool>,
    publishers: Vec<JoinHandle<anyhow::Result<Option<Histogram<u64>>>>>,
    consumers: Vec<JoinHandle<anyhow::Result<Seen>>>,
}

impl Load {
    /// Connects everybody, then lets everybody begin.
    pub(super) fn start(
        protocol: &dyn Protocol,
        plan: &Plan,
        options: &ThroughputOptions,
    ) -> anyhow::Result<Self> {
        let mut load = Self {
            began: Instant::now(),
            tallies: Vec::new(),
            stop_publishers: Arc::default(),
            stop_consumers: Arc::default(),
            publishers: Vec::new(),
            consumers: Vec::new(),
        };
        let publishers =
            protocol.publishers(&plan.publishers, options.load.confirm, None, &mut load.tallies)?;
        for wants in &plan.consumers {
            let consumer = protocol.consumer(wants, add_tally(&mut load.tallies))?;
            let stop = Arc::clone(&load.stop_consumers);
            load.consumers.push(std::thread::spawn(move || consumer.run(&stop, None)));
        }
        load.began = Instant::now();
        for publisher in publishers {
            let stop = Arc::clone(&load.stop_publishers);
            load.publishers.push(std::thread::spawn(move || publisher.run(&stop)));
        }
        Ok(load)
    }

    fn sample(&self) -> Sample {
        let totals = Totals::of(&self.tallies);
        Sample { seconds: self.began.elapsed().as_secs_f64(), totals }
    }

    /// Watches it run, ends it in order and says what happened.
    pub(super) fn measure(
        self,
        options: &ThroughputOptions,
        plan: &Plan,
        watch: Watch<'_>,
    ) -> anyhow::Result<Throughput> {
        let mut samples = vec![self.sample()];
        self.watch(options.warmup, options, &mut samples, watch);
        let (from, from_usage) = (self.sample(), Usage::now(options.load.broker_pid)?);
        self.watch(options.warmup + options.duration, options, &mut samples, watch);
        let (to, usage) = (self.sample(), Usage::now(options.load.broker_pid)?);

        let ended = self.end(options.drain, plan.copies)?;
        let seconds = to.seconds - from.seconds;
        let per_second = |counter: fn(&Totals) -> u64| {
            (counter(&to.totals) - counter(&from.totals)) as f64 / seconds.max(f64::EPSILON)
        };
        let backlog = |totals: &Totals| (totals.published * plan.copies).saturating_sub(totals.consumed);
        Ok(Throughput {
            options: options.clone(),
            seconds,
            published_per_second: per_second(|totals| totals.published),
            confirmed_per_second: options.load.has_confirms().then(|| per_second(|totals| totals.confirmed)),
            consumed_per_second: per_second(|totals| totals.consumed),
            backlog: backlog(&to.totals),
            backlog_grown: backlog(&to.totals) as i64 - backlog(&from.totals) as i64,
            totals: ended.totals,
            left: backlog(&ended.totals),
            redelivered: ended.redelivered,
            confirm_time: ended.confirm_nanos.as_ref().and_then(Percentiles::of_nanos),
            used: usage.since(&from_usage)?,
            samples,
        })
    }

    /// Takes samples until so long after the beginning, until a thread has failed, or until it is enough.
    fn watch(
        &self,
        until: Duration,
        options: &ThroughputOptions,
        samples: &mut Vec<Sample>,
        watch: Watch<'_>,
    ) {
        let total = options.warmup + options.duration;
        let over = |load: &Self| {
            load.publishers.iter().any(JoinHandle::is_finished)
                || load.consumers.iter().any(JoinHandle::is_finished)
        };
        loop {
            let elapsed = self.began.elapsed();
            if elapsed >= until || over(self) {
                return;
            }
            std::thread::sleep(TICK.min(until - elapsed));
            let sample = self.sample();
            samples.push(sample);
            let progress = Progress { elapsed: self.began.elapsed(), total, totals: sample.totals };
            if watch(&progress) == Verdict::Enough {
                return;
            }
        }
    }

    /// Publishers first; then consumers, when they have everything or time is up.
    fn end(self, drain: Duration, copies: u64) -> anyhow::Result<Ended> {
        self.stop_publishers.store(true, Ordering::Relaxed);
        let mut confirm_nanos: Option<Histogram<u64>> = None;
        let mut failed = None;
        for publisher in self.publishers {
            match joined(publisher, "a publisher") {
                Ok(None) => {}
                Ok(Some(nanos)) => match &mut confirm_nanos {
                    None => confirm_nanos = Some(nanos),
                    Some(sum) => sum.add(nanos)?,
                },
                Err(error) => failed = Some(error),
            }
        }
        let until = Instant::now() + drain;
        let all_there = |totals: Totals| totals.consumed >= totals.published * copies;
        while failed.is_none()
            && !self.consumers.is_empty()
            && !self.consumers.iter().any(JoinHandle::is_finished)
            && !all_there(Totals::of(&self.tallies))
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.stop_consumers.store(true, Ordering::Relaxed);
        let mut redelivered = 0;
        for consumer in self.consumers {
            match joined(consumer, "a consumer") {
                Ok(seen) => redelivered += seen.redelivered,
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(Ended { totals: Totals::of(&self.tallies), redelivered, confirm_nanos }),
        }
    }
}

struct Ended {
    totals: Totals,
    redelivered: u64,
    confirm_nanos: Option<Histogram<u64>>,
}
