//! `nexo health`: whether the broker can take and confirm messages.

use std::process::ExitCode;

use nexo_grpc::proto;
use serde_json::json;

use crate::cli::ServerArgs;
use crate::connect::Asked;
use crate::output::Printer;

/// Exit code 0 if it can, also when it is degraded; 1 if not.
pub(crate) async fn run(shared: &ServerArgs) -> anyhow::Result<ExitCode> {
    let client = shared.connect().await?;
    let serving = client.is_serving().await.asked("health")?;
    let mut out = Printer::new(shared.output);
    let stats = client.stats().get_stats(proto::GetStatsRequest {}).await.asked("health")?.into_inner();
    if serving && stats.degraded {
        let reason = &stats.degraded_reason;
        out.show(&json!({ "status": "degraded", "reason": reason }), format_args!("degraded: {reason}"))?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    if serving {
        out.show(&json!({ "status": "ok" }), "ok")?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    let reason = match stats.unhealthy_reason.as_str() {
        "" => "the broker is shutting down",
        reason => reason,
    };
    out.show(&json!({ "status": "unhealthy", "reason": reason }), format_args!("unhealthy: {reason}"))?;
    out.flush()?;
    Ok(ExitCode::FAILURE)
}
