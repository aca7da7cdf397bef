//! `nexo stats`: how the broker is doing, or one of its queues.

use std::process::ExitCode;

use nexo_grpc::proto;
use serde::Serialize;

use crate::cli::ServerArgs;
use crate::command::queue::get_queue;
use crate::connect::Asked;
use crate::output::Printer;
use crate::units::Size;
use crate::view::{Figures, QueueView};

/// Figures of the broker, or of one queue
#[derive(Debug, clap::Args)]
pub(crate) struct StatsArgs {
    /// Only this queue
    queue: Option<String>,
}

#[derive(Debug, Serialize)]
struct StatsView {
    version: String,
    healthy: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    unhealthy_reason: String,
    degraded: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    degraded_reason: String,
    damaged_messages: u64,
    queues: u64,
    resident_bytes: u64,
    message_memory_bytes: u64,
    disk_free_bytes: u64,
    log: LogView,
}

#[derive(Debug, Serialize)]
struct LogView {
    segments: u64,
    disk_bytes: u64,
    frames: u64,
    groups: u64,
    written_bytes: u64,
    syncs: u64,
    sync_micros: u64,
    damage: u64,
}

impl StatsArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let client = shared.connect().await?;
        let mut out = Printer::new(shared.output);
        if let Some(queue) = &self.queue {
            let view = QueueView::from(get_queue(&client, "show", queue).await?);
            out.show(&view, view.figures())?;
        } else {
            let stats = client.stats().get_stats(proto::GetStatsRequest {}).await.asked("stats")?;
            let view = StatsView::from(stats.into_inner());
            out.show(&view, view.figures())?;
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

impl From<proto::GetStatsResponse> for StatsView {
    fn from(stats: proto::GetStatsResponse) -> Self {
        let log = stats.log.unwrap_or_default();
        Self {
            version: stats.version,
            healthy: stats.healthy,
            unhealthy_reason: stats.unhealthy_reason,
            degraded: stats.degraded,
            degraded_reason: stats.degraded_reason,
            damaged_messages: stats.damaged_messages,
            queues: stats.queues,
            resident_bytes: stats.resident_bytes,
            message_memory_bytes: stats.message_memory_bytes,
            disk_free_bytes: stats.disk_free_bytes,
            log: LogView {
                segments: log.segments,
                disk_bytes: log.disk_bytes,
                frames: log.frames,
                groups: log.groups,
                written_bytes: log.written_bytes,
                syncs: log.syncs,
                sync_micros: log.sync_micros,
                damage: log.damage,
            },
        }
    }
}

impl StatsView {
    fn figures(&self) -> Figures {
        let log = &self.log;
        let mean_micros = log.sync_micros.checked_div(log.syncs).unwrap_or(0);
        let health = match (self.healthy, self.degraded) {
            (true, false) => "ok".to_owned(),
            (true, true) => format!("degraded: {}", self.degraded_reason),
            (false, _) => self.unhealthy_reason.clone(),
        };
        let mut figures = Figures::default();
        figures
            .add("version", &self.version)
            .add("health", health)
            .add("queues", self.queues)
            .add("resident memory", Size(self.resident_bytes))
            .add("message memory", Size(self.message_memory_bytes))
            .add("disk free", Size(self.disk_free_bytes))
            .add("log segments", log.segments)
            .add("log on disk", Size(log.disk_bytes))
            .add("log written", Size(log.written_bytes))
            .add("syncs", format_args!("{} ({mean_micros} µs each)", log.syncs))
            .add("damaged places", log.damage)
            .add("damaged messages", self.damaged_messages);
        figures
    }
}
