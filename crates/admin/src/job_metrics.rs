//! The figures of job queues and budgets for Prometheus. The tables below are the whole list of what there is; figures by key are
//! in the management API only, since keys are without end.

use std::fmt;
use std::sync::Arc;

use nexo_broker::Broker;
use nexo_broker::job_rules::{BandCount, Budget, JobQueue, KindFigures, PendingOf, Times};
use nexo_types::{BudgetName, JobQueueName, Millis};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// A job queue, as it was.
#[derive(Debug)]
struct Row {
    name: JobQueueName,
    pending: u64,
    running: u64,
    finished: u64,
    memory_bytes: u64,
    oldest_age: Millis,
    tokens_today: u64,
    bands: Vec<BandCount>,
    counts: [u64; QUEUE_COUNTERS.len()],
    waits: Times,
    runs: Times,
    responses: Times,
    by_kind: Vec<Kind>,
}

/// Jobs of a type, as they were.
#[derive(Debug)]
struct Kind {
    name: Arc<str>,
    figures: KindFigures,
    pending: PendingOf,
    tokens_today: u64,
}

/// A budget, as it was.
#[derive(Debug)]
struct BudgetRow {
    name: BudgetName,
    tokens: i64,
    reserved: u64,
    used_today: u64,
    used_total: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct JobFigures {
    queues: Vec<Row>,
    budgets: Vec<BudgetRow>,
    waiting_workers: u64,
}

type QueueCounter = (&'static str, &'static str, fn(&JobQueue) -> u64);

const QUEUE_COUNTERS: [QueueCounter; 11] = [
    ("nexo_jobs_created", "Requests that made a job", |queue| queue.figures().created),
    ("nexo_jobs_joined", "Requests that joined a job", |queue| queue.figures().joined),
    ("nexo_jobs_cache_hits", "Requests that a cached result answered", |queue| queue.figures().cache_hits),
    ("nexo_jobs_done", "Jobs that were done", |queue| queue.figures().done),
    ("nexo_jobs_failed", "Jobs that failed for good", |queue| queue.figures().failed),
    ("nexo_jobs_cancelled", "Jobs that were cancelled", |queue| queue.figures().cancelled),
    ("nexo_jobs_expired", "Jobs that were not done before their deadline", |queue| queue.figures().expired),
    ("nexo_jobs_retried", "Attempts that came to nothing and were made again", |queue| {
        queue.figures().retried
    }),
    ("nexo_jobs_answered", "Waiters that were answered", |queue| queue.figures().answered),
    ("nexo_jobs_tokens_used", "Tokens that jobs used", |queue| queue.figures().tokens),
    ("nexo_jobs_score_failures", "Scores that could not be evaluated, since the broker started", |queue| {
        queue.score_failures()
    }),
];

type Gauge = (&'static str, &'static str, fn(&Row) -> f64);

const QUEUE_GAUGES: &[Gauge] = &[
    ("nexo_jobs_pending", "Jobs that wait to be handed out", |row| row.pending as f64),
    ("nexo_jobs_running", "Jobs that workers have", |row| row.running as f64),
    ("nexo_jobs_finished", "Finished jobs that are remembered", |row| row.finished as f64),
    ("nexo_jobs_memory_bytes", "Memory of jobs and results, about", |row| row.memory_bytes as f64),
    ("nexo_jobs_oldest_age_seconds", "Age of the oldest pending job", |row| row.oldest_age.0 as f64 / 1e3),
    ("nexo_jobs_tokens_today", "Tokens that jobs used since midnight, by UTC", |row| row.tokens_today as f64),
];

type OfTimes = (&'static str, &'static str, fn(&Row) -> Times);

/// Each is a sum and a count: their quotient is the mean.
const QUEUE_TIMES: &[OfTimes] = &[
    ("nexo_jobs_wait", "From a job's creation until it was handed out", |row| row.waits),
    ("nexo_jobs_run", "From hand-out to completion", |row| row.runs),
    ("nexo_jobs_response", "From a waiter's request until its job was done", |row| row.responses),
];

type OfKind = (&'static str, &'static str, fn(&KindFigures) -> u64);

const KIND_COUNTERS: &[OfKind] = &[
    ("nexo_jobs_type_done", "Jobs of a type that were done", |kind| kind.done),
    ("nexo_jobs_type_failed", "Jobs of a type that failed for good", |kind| kind.failed),
    ("nexo_jobs_type_tokens_used", "Tokens that jobs of a type used", |kind| kind.tokens),
    ("nexo_jobs_type_cache_hits", "Requests of a type that a cached result answered", |kind| kind.cache_hits),
];

type GaugeOfKind = (&'static str, &'static str, fn(&Kind) -> f64);

const KIND_GAUGES: &[GaugeOfKind] = &[
    ("nexo_jobs_type_pending", "Jobs of a type that wait to be handed out", |kind| kind.pending.jobs as f64),
    ("nexo_jobs_type_oldest_age_seconds", "Age of the oldest pending job of a type", |kind| {
        kind.pending.oldest_age.unwrap_or_default().0 as f64 / 1e3
    }),
    ("nexo_jobs_type_tokens_today", "Tokens that jobs of a type used since midnight, by UTC", |kind| {
        kind.tokens_today as f64
    }),
];

type TimesOfKind = (&'static str, &'static str, fn(&KindFigures) -> Times);

const KIND_TIMES: &[TimesOfKind] = &[
    ("nexo_jobs_type_wait", "From the creation of a job of a type until it was handed out", |kind| {
        kind.waits
    }),
    ("nexo_jobs_type_run", "From hand-out of a job of a type to completion", |kind| kind.runs),
    ("nexo_jobs_type_response", "From a waiter's request until its job of a type was done", |kind| {
        kind.responses
    }),
];

type OfBudget = (&'static str, &'static str, fn(&BudgetRow) -> i64);

const BUDGET_GAUGES: &[OfBudget] = &[
    ("nexo_budget_tokens", "Tokens that can be reserved", |budget| budget.tokens),
    ("nexo_budget_reserved_tokens", "Tokens that jobs under way have reserved", |budget| {
        budget.reserved as i64
    }),
    ("nexo_budget_used_today_tokens", "Tokens used since midnight, by UTC", |budget| {
        budget.used_today as i64
    }),
];

impl JobFigures {
    /// As it is at this moment.
    pub(crate) fn of(broker: &Broker) -> Self {
        let waiting_workers = broker.waiting_workers() as u64;
        broker.look_at_jobs(|jobs, now| {
            let row = |queue: &JobQueue| Row {
                name: queue.name().clone(),
                pending: queue.pending(),
                running: queue.running(),
                finished: queue.finished(),
                memory_bytes: queue.memory_bytes(),
                oldest_age: queue.oldest_age(now).unwrap_or_default(),
                tokens_today: queue.figures().tokens_today(now),
                bands: queue.bands(),
                counts: QUEUE_COUNTERS.map(|(_, _, count)| count(queue)),
                waits: queue.figures().waits,
                runs: queue.figures().runs,
                responses: queue.figures().responses,
                by_kind: queue
                    .figures()
                    .by_kind()
                    .map(|(kind, figures)| Kind {
                        name: Arc::clone(kind),
                        figures: figures.clone(),
                        pending: queue.pending_of_kind(kind, now),
                        tokens_today: figures.tokens_today(now),
                    })
                    .collect(),
            };
            let budget = |budget: &Budget| BudgetRow {
                name: budget.name().clone(),
                tokens: budget.level(now),
                reserved: budget.reserved(),
                used_today: budget.used_today(now),
                used_total: budget.used_total(),
            };
            Self {
                queues: jobs.queues().map(row).collect(),
                budgets: jobs.budgets().map(budget).collect(),
                waiting_workers,
            }
        })
    }
}

impl Collector for JobFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        encoder
            .encode_descriptor(
                "nexo_jobs_waiting_workers",
                "Workers that wait for a job",
                None,
                MetricType::Gauge,
            )?
            .encode_gauge(&self.waiting_workers)?;
        self.encode_queues(encoder)?;
        self.encode_times(encoder)?;
        self.encode_kinds(encoder)?;
        self.encode_budgets(encoder)
    }
}

impl JobFigures {
    fn encode_queues(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, value) in QUEUE_GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for row in &self.queues {
                metric.encode_family(&row.label())?.encode_gauge(&value(row))?;
            }
        }
        for (at, (name, help, _)) in QUEUE_COUNTERS.iter().enumerate() {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for row in &self.queues {
                metric
                    .encode_family(&row.label())?
                    .encode_counter::<NoLabelSet, _, u64>(&row.counts[at], None)?;
            }
        }
        let help = "Jobs that could be handed out, by band of score";
        let mut metric = encoder.encode_descriptor("nexo_jobs_band", help, None, MetricType::Gauge)?;
        for row in &self.queues {
            for band in &row.bands {
                let [queue, vhost] = row.label();
                metric.encode_family(&[queue, vhost, ("band", &*band.name)])?.encode_gauge(&band.jobs)?;
            }
        }
        Ok(())
    }

    fn encode_times(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, times) in QUEUE_TIMES {
            let rows = || self.queues.iter().map(|row| (row.label(), times(row)));
            encode_sum_and_count(encoder, name, help, rows)?;
        }
        Ok(())
    }

    fn encode_kinds(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, value) in KIND_COUNTERS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for row in &self.queues {
                for kind in &row.by_kind {
                    metric
                        .encode_family(&row.label_of(kind))?
                        .encode_counter::<NoLabelSet, _, u64>(&value(&kind.figures), None)?;
                }
            }
        }
        for (name, help, value) in KIND_GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for row in &self.queues {
                for kind in &row.by_kind {
                    metric.encode_family(&row.label_of(kind))?.encode_gauge(&value(kind))?;
                }
            }
        }
        for (name, help, times) in KIND_TIMES {
            let rows = || {
                self.queues
                    .iter()
                    .flat_map(|row| row.by_kind.iter().map(|kind| (row.label_of(kind), times(&kind.figures))))
            };
            encode_sum_and_count(encoder, name, help, rows)?;
        }
        Ok(())
    }

    fn encode_budgets(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let label = |budget: &'_ BudgetRow| {
            [("budget", budget.name.as_str().to_owned()), ("vhost", budget.name.vhost_str().to_owned())]
        };
        for (name, help, value) in BUDGET_GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for budget in &self.budgets {
                metric.encode_family(&label(budget))?.encode_gauge(&value(budget))?;
            }
        }
        let help = "Tokens used in all";
        let mut metric =
            encoder.encode_descriptor("nexo_budget_used_tokens", help, None, MetricType::Counter)?;
        for budget in &self.budgets {
            metric
                .encode_family(&label(budget))?
                .encode_counter::<NoLabelSet, _, u64>(&budget.used_total, None)?;
        }
        Ok(())
    }
}

/// Times as two counters, whose quotient is the mean.
fn encode_sum_and_count<L: EncodeLabelSet, R: Iterator<Item = (L, Times)>>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: impl Fn() -> R,
) -> fmt::Result {
    let sum = format!("{name}_seconds_sum");
    let mut metric = encoder.encode_descriptor(&sum, help, None, MetricType::Counter)?;
    for (label, times) in rows() {
        let seconds = times.total.0 as f64 / 1e3;
        metric.encode_family(&label)?.encode_counter::<NoLabelSet, _, f64>(&seconds, None)?;
    }
    let count = format!("{name}_count");
    let mut metric = encoder.encode_descriptor(&count, "How many of them", None, MetricType::Counter)?;
    for (label, times) in rows() {
        metric.encode_family(&label)?.encode_counter::<NoLabelSet, _, u64>(&times.count, None)?;
    }
    Ok(())
}

impl Row {
    fn label(&self) -> [(&'static str, &str); 2] {
        [("queue", self.name.as_str()), ("vhost", self.name.vhost_str())]
    }

    fn label_of<'a>(&'a self, kind: &'a Kind) -> [(&'static str, &'a str); 3] {
        let [queue, vhost] = self.label();
        [queue, vhost, ("type", &*kind.name)]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nexo_broker::job_rules::{BudgetConfig, JobQueueConfig, TokenReport};
    use nexo_broker::{BrokerOptions, JobRequest};
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;

    #[tokio::test]
    async fn queues_bands_types_and_budgets_are_told() {
        let disk = Arc::new(nexo_log::disk::FaultyDisk::new());
        let broker = Broker::open_on(disk, BrokerOptions::new("faulty")).unwrap();
        let (queue, api) = (JobQueueName::new("deals").unwrap(), BudgetName::new("api").unwrap());
        broker.put_budget(&api, BudgetConfig::default()).await.unwrap();
        let config = JobQueueConfig { budget: Some(api), ..JobQueueConfig::default() };
        broker.put_job_queue(&queue, config).await.unwrap();
        for key in ["a", "b"] {
            let request =
                JobRequest { kind: "search".into(), key: key.into(), cost: Some(5), ..JobRequest::default() };
            broker.ask_job(&queue, &request).await.unwrap();
        }
        let taken = broker.take_jobs(&queue, "w", None, 1, Duration::ZERO).await.unwrap();
        let report = TokenReport::default();
        broker.complete_job(taken[0].receipt, "[]".into(), Some(3), report).await.unwrap();
        // Its score is found by the time it is asked for, or a moment later.
        while broker.look_at_jobs(|jobs, _| jobs.queue(&queue).unwrap().bands()[3].jobs) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut registry = Registry::default();
        registry.register_collector(Box::new(JobFigures::of(&broker)));
        let mut out = String::new();
        text::encode(&mut out, &registry).unwrap();
        for line in [
            "nexo_jobs_pending{queue=\"deals\",vhost=\"/\"} 1",
            "nexo_jobs_done_total{queue=\"deals\",vhost=\"/\"} 1",
            "nexo_jobs_band{queue=\"deals\",vhost=\"/\",band=\"prefetch\"} 1",
            "nexo_jobs_type_tokens_used_total{queue=\"deals\",vhost=\"/\",type=\"search\"} 3",
            "nexo_jobs_tokens_today{queue=\"deals\",vhost=\"/\"} 3",
            "nexo_jobs_type_tokens_today{queue=\"deals\",vhost=\"/\",type=\"search\"} 3",
            "nexo_jobs_type_pending{queue=\"deals\",vhost=\"/\",type=\"search\"} 1",
            "nexo_jobs_type_oldest_age_seconds{queue=\"deals\",vhost=\"/\",type=\"search\"} ",
            "nexo_jobs_type_wait_count_total{queue=\"deals\",vhost=\"/\",type=\"search\"} 1",
            "nexo_jobs_type_run_seconds_sum_total{queue=\"deals\",vhost=\"/\",type=\"search\"} 0",
            "nexo_jobs_type_response_count_total{queue=\"deals\",vhost=\"/\",type=\"search\"} 0",
            "nexo_jobs_score_failures_total{queue=\"deals\",vhost=\"/\"} 0",
            "nexo_budget_tokens{budget=\"api\",vhost=\"/\"} 17",
            "nexo_jobs_run_count_total{queue=\"deals\",vhost=\"/\"} 1",
        ] {
            assert!(out.lines().any(|told| told.starts_with(line)), "{line} is not in\n{out}");
        }
        broker.shutdown().await;
    }
}
