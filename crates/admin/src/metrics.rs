//! The figures for Prometheus, as OpenMetrics or in the older text format.
//!
//! They are read from the broker when they are asked for and kept nowhere, so being watched costs nothing in
//! between. The tables below are the whole list of what there is.

use std::fmt;

use nexo_broker::{Broker, BrokerStats, Health, ListRequest, Protocol, QueueStats, TrafficStats};
use nexo_log::{Histogram, LogHealth};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::accept::Format;
use crate::cluster::ClusterFigures;
use crate::job_metrics::JobFigures;
use crate::text_format;

/// Queues that are read in one step; between two steps others get their turn.
const PAGE: usize = 1_000;

type Of<T, V> = (&'static str, &'static str, fn(&T) -> V);

const QUEUE_GAUGES: &[Of<QueueStats, u64>] = &[
    ("nexo_queue_ready", "Messages that could be delivered now", |q| q.ready),
    ("nexo_queue_leased", "Messages with a consumer", |q| q.leased),
    ("nexo_queue_delayed", "Messages whose time has not come", |q| q.delayed),
    ("nexo_queue_grouped", "Messages that wait for an earlier one of their group", |q| q.grouped),
    ("nexo_queue_bytes", "Stored bytes of all messages", |q| q.bytes),
    ("nexo_queue_consumers", "Consumers that are subscribed or wait for a message", |q| q.consumers),
    ("nexo_queue_paused", "1 if the queue hands out nothing", |q| q.config.paused.into()),
];

const QUEUE_COUNTERS: &[Of<QueueStats, u64>] = &[
    ("nexo_queue_pushed", "Messages pushed", |q| q.pushed),
    ("nexo_queue_delivered", "Deliveries made", |q| q.delivered),
    ("nexo_queue_redelivered", "Deliveries of a message that had been delivered before", |q| q.redelivered),
    ("nexo_queue_acked", "Messages acknowledged", |q| q.acked),
    ("nexo_queue_dead_lettered", "Messages moved to the dead-letter queue", |q| q.dead_lettered),
    ("nexo_queue_expired", "Messages whose time to live ended", |q| q.expired),
    ("nexo_queue_overflowed", "Messages dropped because the queue was full", |q| q.overflowed),
    ("nexo_queue_damaged", "Messages lost because the disk did not give their bytes back", |q| q.damaged),
    ("nexo_queue_duplicates", "Pushes recognised as repetitions", |q| q.duplicates),
];

const QUEUE_TIMES: &[Of<QueueStats, f64>] = &[
    ("nexo_queue_oldest_age_seconds", "Age of the oldest message that could be delivered now", |q| {
        seconds(q.oldest_age.0 as f64, 1e3)
    }),
    ("nexo_queue_average_wait_seconds", "How long messages lately waited for a consumer", |q| {
        seconds(q.average_wait_ms, 1e3)
    }),
];

const BROKER_GAUGES: &[Of<BrokerStats, u64>] = &[
    ("nexo_healthy", "1 while the broker can take and confirm messages", |b| b.health.can_serve().into()),
    ("nexo_degraded", "1 if damage was found in what was stored", |b| {
        matches!(b.health, Health::Degraded { .. }).into()
    }),
    ("nexo_queues", "Queues there are", |b| b.queues),
    ("nexo_schedules", "Schedules there are", |b| b.schedules.schedules),
    ("nexo_message_memory_bytes", "Bytes of messages held in memory", |b| b.message_memory_bytes),
    ("nexo_disk_free_bytes", "Free bytes on the disk that holds the data", |b| b.disk_free_bytes),
    ("nexo_intake_bytes", "Bytes of messages on their way in", |b| b.intake_bytes),
    ("nexo_memory_high_bytes", "Resident memory above which publishers wait", |b| b.memory.limit_bytes),
    ("nexo_memory_alarm", "1 while publishers wait for memory", |b| b.memory.is_alarm.into()),
    ("nexo_disk_free_min_bytes", "Free bytes of the disk below which publishers wait", |b| b.disk_free_min),
    ("nexo_disk_alarm", "1 while publishers wait for room on the disk", |b| b.disk_alarm.into()),
    ("process_resident_memory_bytes", "Resident memory of the process", |b| b.process.resident_bytes),
    ("process_open_fds", "Descriptors that are open", |b| b.process.open_fds),
    ("process_max_fds", "Descriptors that may be open", |b| b.process.max_fds),
    ("nexo_log_segments", "Segment files that hold something", |b| b.log.segments as u64),
    ("nexo_log_spare_segments", "Segment files waiting to be used again", |b| b.log.spare_segments as u64),
    ("nexo_log_disk_bytes", "Length of all segment files", |b| b.log.disk_bytes),
    ("nexo_log_full", "1 while the disk has no room for another segment", |b| {
        matches!(b.log.health, LogHealth::Full { .. }).into()
    }),
    ("nexo_log_failed", "1 if a write or sync failed and nothing more is taken", |b| {
        matches!(b.log.health, LogHealth::Failed { .. }).into()
    }),
];

/// Those over which messages go.
const MESSAGING: &[Protocol] = &[Protocol::Amqp, Protocol::Grpc, Protocol::Sqs];

type OfProtocol = (&'static str, &'static str, &'static [Protocol], fn(&TrafficStats) -> u64);

const PROTOCOL_GAUGES: &[OfProtocol] = &[
    ("nexo_connections", "Connections that are open", &Protocol::ALL, |t| t.connections),
    ("nexo_channels", "Channels that are open", &[Protocol::Amqp], |t| t.channels),
];

const PROTOCOL_COUNTERS: &[OfProtocol] = &[
    ("nexo_connections_opened", "Connections opened", &Protocol::ALL, |t| t.connections_opened),
    ("nexo_refused_logins", "Logins, signatures, addresses and hosts refused", &Protocol::ALL, |t| {
        t.refused_logins
    }),
    ("nexo_published_messages", "Messages taken", MESSAGING, |t| t.published),
    ("nexo_refused_pushes", "Messages refused, by a full queue or disk or by a limit", MESSAGING, |t| {
        t.refused_pushes
    }),
    ("nexo_delivered_messages", "Messages handed out", MESSAGING, |t| t.delivered),
    ("nexo_acked_messages", "Messages that clients acknowledged", MESSAGING, |t| t.acked),
];

const BROKER_COUNTERS: &[Of<BrokerStats, u64>] = &[
    ("nexo_log_frames", "Frames appended", |b| b.log.frames),
    ("nexo_log_groups", "Groups of frames written together", |b| b.log.groups),
    ("nexo_log_written_bytes", "Bytes written", |b| b.log.written_bytes),
    ("nexo_log_syncs", "Syncs of what was written", |b| b.log.syncs),
    ("nexo_damaged_messages", "Messages found to be lost to damage since the start", |b| b.damaged_messages),
    ("nexo_log_retired_segments", "Segments in which nothing was alive any more", |b| b.log.retired),
    ("nexo_dropped_events", "Events dropped because too many waited, or a queue could take none", |b| {
        b.events_dropped
    }),
    (
        "nexo_dropped_traces",
        "Traced messages dropped because too many waited, or a queue could take none",
        |b| b.traces_dropped,
    ),
    ("nexo_schedule_fired", "Times of schedules that were fired", |b| b.schedules.fired),
    ("nexo_schedule_failed", "Times at which a schedule could not send", |b| b.schedules.failed),
    ("nexo_schedule_missed", "Times of schedules that passed and were not fired", |b| b.schedules.missed),
    ("nexo_log_damage", "Damaged places found, set aside and not read", |b| b.log.damage),
];

const SCHEDULE_TIMES: &[Of<BrokerStats, f64>] =
    &[("nexo_schedule_late_seconds", "How late the first schedule is that is due and not fired yet", |b| {
        seconds(b.schedules.late.0 as f64, 1e3)
    })];

/// All figures of `broker` at this moment. Reads every queue, so it belongs on a thread that may be busy.
pub(crate) fn render(
    broker: &Broker,
    cluster: Option<ClusterFigures>,
    format: Format,
) -> Result<String, fmt::Error> {
    let traffic = Protocol::ALL.map(|protocol| (protocol, broker.traffic().of(protocol).stats()));
    let snapshot = Snapshot { stats: broker.stats(), traffic, queues: all_queues(broker) };
    let open_metrics = render_snapshot(snapshot, JobFigures::of(broker), cluster)?;
    Ok(match format {
        Format::OpenMetrics => open_metrics,
        Format::Text => text_format::from_open_metrics(&open_metrics),
    })
}

fn all_queues(broker: &Broker) -> Vec<QueueStats> {
    let mut queues: Vec<QueueStats> = Vec::new();
    loop {
        let after = queues.last().map(|queue| queue.name.clone());
        let page = broker.list_queues(&ListRequest { after, limit: PAGE, ..ListRequest::default() });
        let is_last = page.len() < PAGE;
        queues.extend(page);
        if is_last {
            return queues;
        }
    }
}

fn render_snapshot(
    snapshot: Snapshot,
    jobs: JobFigures,
    cluster: Option<ClusterFigures>,
) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(snapshot));
    registry.register_collector(Box::new(jobs));
    if let Some(cluster) = cluster {
        registry.register_collector(Box::new(cluster));
    }
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

#[derive(Debug)]
struct Snapshot {
    stats: BrokerStats,
    traffic: [(Protocol, TrafficStats); Protocol::ALL.len()],
    queues: Vec<QueueStats>,
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_broker(&mut encoder)?;
        self.encode_process(&mut encoder)?;
        self.encode_protocols(&mut encoder)?;
        let times = &self.stats.log.sync_micros;
        histogram(&mut encoder, "nexo_log_sync_duration_seconds", "Time of each sync", times, 1e6)?;
        let sizes = &self.stats.log.group_frames;
        histogram(&mut encoder, "nexo_log_group_size_frames", "Frames written together", sizes, 1.0)?;
        self.encode_queues(&mut encoder)
    }
}

impl Snapshot {
    fn encode_broker(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        encoder
            .encode_descriptor("nexo_build", "The version that runs", None, MetricType::Info)?
            .encode_info(&version)?;
        for (name, help, value) in BROKER_GAUGES {
            encoder
                .encode_descriptor(name, help, None, MetricType::Gauge)?
                .encode_gauge(&value(&self.stats))?;
        }
        for (name, help, value) in SCHEDULE_TIMES {
            encoder
                .encode_descriptor(name, help, None, MetricType::Gauge)?
                .encode_gauge(&value(&self.stats))?;
        }
        encoder
            .encode_descriptor(
                "nexo_schedule_lateness_seconds",
                "By how much all that were fired were late, together",
                None,
                MetricType::Counter,
            )?
            .encode_counter::<NoLabelSet, _, f64>(
                &seconds(self.stats.schedules.late_total.0 as f64, 1e3),
                None,
            )?;
        for (name, help, value) in BROKER_COUNTERS {
            encoder
                .encode_descriptor(name, help, None, MetricType::Counter)?
                .encode_counter::<NoLabelSet, _, u64>(&value(&self.stats), None)?;
        }
        Ok(())
    }

    fn encode_process(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        encoder
            .encode_descriptor(
                "process_cpu_seconds",
                "Time of all processors used",
                None,
                MetricType::Counter,
            )?
            .encode_counter::<NoLabelSet, _, f64>(&self.stats.process.cpu_s, None)?;
        encoder
            .encode_descriptor(
                "process_start_time_seconds",
                "When the process was started, in seconds since 1970",
                None,
                MetricType::Gauge,
            )?
            .encode_gauge(&self.stats.process.started_at_s)
    }

    fn traffic_of(&self, protocols: &[Protocol]) -> impl Iterator<Item = &(Protocol, TrafficStats)> {
        self.traffic.iter().filter(|(protocol, _)| protocols.contains(protocol))
    }

    fn encode_protocols(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, protocols, value) in PROTOCOL_GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (protocol, traffic) in self.traffic_of(protocols) {
                metric.encode_family(&[("protocol", protocol.name())])?.encode_gauge(&value(traffic))?;
            }
        }
        for (name, help, protocols, value) in PROTOCOL_COUNTERS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (protocol, traffic) in self.traffic_of(protocols) {
                metric
                    .encode_family(&[("protocol", protocol.name())])?
                    .encode_counter::<NoLabelSet, _, u64>(&value(traffic), None)?;
            }
        }
        Ok(())
    }

    fn encode_queues(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, value) in QUEUE_GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for queue in &self.queues {
                metric.encode_family(&label(queue))?.encode_gauge(&value(queue))?;
            }
        }
        for (name, help, value) in QUEUE_COUNTERS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for queue in &self.queues {
                metric
                    .encode_family(&label(queue))?
                    .encode_counter::<NoLabelSet, _, u64>(&value(queue), None)?;
            }
        }
        for (name, help, value) in QUEUE_TIMES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for queue in &self.queues {
                metric.encode_family(&label(queue))?.encode_gauge(&value(queue))?;
            }
        }
        Ok(())
    }
}

fn label(queue: &QueueStats) -> [(&'static str, &str); 2] {
    [("queue", queue.name.as_str()), ("vhost", queue.name.vhost_str())]
}

fn seconds(value: f64, per_second: f64) -> f64 {
    value / per_second
}

fn histogram(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: &Histogram,
    divisor: f64,
) -> fmt::Result {
    let bounds = values.bounds.iter().map(|bound| *bound as f64 / divisor).chain([f64::INFINITY]);
    let mut below = 0;
    let buckets: Vec<(f64, u64)> = bounds
        .zip(&values.cumulative)
        .map(|(bound, cumulative)| {
            // The encoder adds them up again.
            let own = cumulative - below;
            below = *cumulative;
            (bound, own)
        })
        .collect();
    encoder.encode_descriptor(name, help, None, MetricType::Histogram)?.encode_histogram::<NoLabelSet>(
        values.sum as f64 / divisor,
        below,
        &buckets,
        None,
    )
}

#[cfg(test)]
mod tests {
    use nexo_broker::QueueConfig;
    use nexo_log::LogStats;
    use nexo_types::{Millis, QueueId, QueueName, Timestamp};

    use super::*;

    fn queue(name: &str) -> QueueStats {
        QueueStats {
            id: QueueId(1),
            name: QueueName::new(name).unwrap(),
            config: QueueConfig::default(),
            created_at: Timestamp(0),
            ready: 7,
            leased: 0,
            delayed: 0,
            grouped: 0,
            bytes: 0,
            consumers: 0,
            pushed: 9,
            delivered: 0,
            redelivered: 0,
            acked: 0,
            dead_lettered: 0,
            expired: 0,
            overflowed: 0,
            damaged: 0,
            duplicates: 0,
            push_rate: 0.0,
            deliver_rate: 0.0,
            ack_rate: 0.0,
            redeliver_rate: 0.0,
            oldest_age: Millis(1500),
            average_wait_ms: 0.0,
        }
    }

    fn rendered(queues: Vec<QueueStats>) -> String {
        let log = LogStats {
            frames: 1,
            frame_bytes: 2,
            groups: 3,
            written_bytes: 4,
            syncs: 3,
            seals: 0,
            retired: 0,
            damage: 0,
            damage_first: None,
            sync_micros: Histogram { bounds: &[50, 100], cumulative: vec![1, 1, 3], sum: 500_000 },
            group_frames: Histogram { bounds: &[1], cumulative: vec![0, 0], sum: 0 },
            segments: 1,
            sealed_segments: 0,
            spare_segments: 0,
            disk_bytes: 0,
            health: LogHealth::Full { reason: "no room".into() },
        };
        let stats = BrokerStats {
            health: Health::Unhealthy { reason: "the disk is full".into() },
            queues: queues.len() as u64,
            damaged_messages: 0,
            damaged_uncounted: false,
            message_memory_bytes: 2,
            disk_free_bytes: 3,
            disk_free_min: 4,
            disk_alarm: true,
            memory: nexo_broker::MemoryState {
                high: nexo_broker::MemoryHigh::Bytes(70),
                limit_bytes: 70,
                used_bytes: 71,
                total_bytes: 100,
                is_alarm: true,
            },
            intake_bytes: 0,
            events_dropped: 0,
            traces_dropped: 0,
            schedules: nexo_broker::ScheduleStats::default(),
            process: nexo_broker::ProcessStats {
                cpu_s: 1.25,
                started_at_s: 1_700_000_000.5,
                ..Default::default()
            },
            log,
        };
        let traffic =
            Protocol::ALL.map(|protocol| (protocol, TrafficStats { published: 5, ..Default::default() }));
        render_snapshot(Snapshot { stats, traffic, queues }, JobFigures::default(), None).unwrap()
    }

    #[test]
    fn each_queue_has_its_figures_under_its_name() {
        let text = rendered(vec![queue("mail"), queue("print")]);
        for line in [
            "# TYPE nexo_queue_ready gauge",
            r#"nexo_queue_ready{queue="mail",vhost="/"} 7"#,
            r#"nexo_queue_pushed_total{queue="print",vhost="/"} 9"#,
            r#"nexo_queue_oldest_age_seconds{queue="mail",vhost="/"} 1.5"#,
        ] {
            assert!(text.lines().any(|l| l == line), "no line {line:?} in:\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn each_protocol_has_its_figures_under_its_name() {
        let text = rendered(vec![]);
        for line in [
            r#"nexo_connections{protocol="amqp"} 0"#,
            r#"nexo_published_messages_total{protocol="sqs"} 5"#,
            "process_cpu_seconds_total 1.25",
            "nexo_memory_high_bytes 70",
            "nexo_memory_alarm 1",
            "nexo_disk_free_min_bytes 4",
            "nexo_disk_alarm 1",
            "process_start_time_seconds 1700000000.5",
        ] {
            assert!(text.lines().any(|l| l == line), "no line {line:?} in:\n{text}");
        }
    }

    #[test]
    fn names_with_quotes_and_backslashes_are_escaped() {
        let text = rendered(vec![queue(r#"a"b\c"#)]);
        assert!(text.contains(r#"nexo_queue_ready{queue="a\"b\\c",vhost="/"} 7"#), "{text}");
    }

    #[test]
    fn sync_times_are_a_histogram_in_seconds() {
        let text = rendered(vec![]);
        for line in [
            "nexo_log_sync_duration_seconds_sum 0.5",
            "nexo_log_sync_duration_seconds_count 3",
            r#"nexo_log_sync_duration_seconds_bucket{le="0.00005"} 1"#,
            r#"nexo_log_sync_duration_seconds_bucket{le="+Inf"} 3"#,
        ] {
            assert!(text.lines().any(|l| l == line), "no line {line:?} in:\n{text}");
        }
    }

    #[test]
    fn a_full_disk_shows() {
        let text = rendered(vec![]);
        assert!(text.contains("\nnexo_healthy 0\n") && text.contains("\nnexo_log_full 1\n"), "{text}");
        assert!(text.contains("\nnexo_log_failed 0\n"), "{text}");
    }
}
