//! The standard health service, `grpc.health.v1.Health`.
//!
//! A check asks the broker at that moment, so it cannot be out of date, and costs nothing while nobody asks. Only
//! a watch, which has no moment, looks again every so often for as long as someone watches.

use std::time::Duration;

use nexo_broker::{Broker, Health as BrokerHealth};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health as HealthService;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::status::Failure;

/// How soon a watch learns of a change.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Answers the health service from a broker.
pub(crate) struct HealthChecks {
    pub(crate) broker: Broker,
    pub(crate) stop: CancellationToken,
    /// The services that can be asked about; the empty name stands for all of them.
    pub(crate) services: &'static [&'static str],
}

impl HealthChecks {
    fn knows(&self, service: &str) -> bool {
        service.is_empty() || self.services.contains(&service)
    }
}

fn status(broker: &Broker, stop: &CancellationToken) -> ServingStatus {
    match broker.health() {
        _ if stop.is_cancelled() => ServingStatus::NotServing,
        BrokerHealth::Ok | BrokerHealth::Degraded { .. } | BrokerHealth::MemoryHigh { .. } => {
            ServingStatus::Serving
        }
        BrokerHealth::DiskFull { .. } | BrokerHealth::Unhealthy { .. } => ServingStatus::NotServing,
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl HealthService for HealthChecks {
    type WatchStream = ReceiverStream<Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = &request.get_ref().service;
        if !self.knows(service) {
            let message = format!("service '{service}' does not exist");
            return Err(Failure { code: Code::NotFound, message }.into());
        }
        Ok(Response::new(response(status(&self.broker, &self.stop))))
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let known = self.knows(&request.get_ref().service);
        let (broker, stop) = (self.broker.clone(), self.stop.clone());
        let (out, replies) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut last = None;
            loop {
                // The protocol keeps a watch on an unknown service open: it may come to be known.
                let now = if known { status(&broker, &stop) } else { ServingStatus::ServiceUnknown };
                if last != Some(now) && out.send(Ok(response(now))).await.is_err() {
                    return;
                }
                last = Some(now);
                tokio::select! {
                    () = tokio::time::sleep(WATCH_INTERVAL) => {}
                    () = out.closed() => return,
                    () = stop.cancelled() => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(replies)))
    }
}
