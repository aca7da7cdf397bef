//! The service that tells how the broker is.

use nexo_broker::{Broker, BrokerStats};
use tonic::{Request, Response, Status};

use crate::proto::{self, stats_service_server::StatsService};

/// Answers [`StatsService`] from a broker.
pub(crate) struct Stats {
    pub(crate) broker: Broker,
}

#[tonic::async_trait]
impl StatsService for Stats {
    async fn get_stats(
        &self,
        _request: Request<proto::GetStatsRequest>,
    ) -> Result<Response<proto::GetStatsResponse>, Status> {
        Ok(Response::new(to_proto(&self.broker.stats())))
    }
}

fn to_proto(stats: &BrokerStats) -> proto::GetStatsResponse {
    let reason = stats.health.reason().unwrap_or_default().to_owned();
    let (unhealthy_reason, degraded_reason) =
        if stats.health.can_serve() { (String::new(), reason) } else { (reason, String::new()) };
    proto::GetStatsResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        healthy: stats.health.can_serve(),
        unhealthy_reason,
        degraded: !degraded_reason.is_empty(),
        degraded_reason,
        damaged_messages: stats.damaged_messages,
        damaged_uncounted: stats.damaged_uncounted,
        queues: stats.queues,
        resident_bytes: stats.process.resident_bytes,
        message_memory_bytes: stats.message_memory_bytes,
        disk_free_bytes: stats.disk_free_bytes,
        log: Some(proto::LogStats {
            segments: stats.log.segments as u64,
            disk_bytes: stats.log.disk_bytes,
            frames: stats.log.frames,
            groups: stats.log.groups,
            written_bytes: stats.log.written_bytes,
            syncs: stats.log.syncs,
            sync_micros: stats.log.sync_micros.sum,
            damage: stats.log.damage,
        }),
    }
}
