//! The server: all services on one port, from the first connection to the last reply.

use std::time::Duration;

use nexo_access::Logins;
use nexo_broker::{Broker, Protocol};
use nexo_net::Listeners;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic_health::pb::health_server::HealthServer;

use crate::admin::Admin;
use crate::guard::GuardLayer;
use crate::health::HealthChecks;
use crate::jobs::JobCalls;
use crate::limits::{
    JOB_REQUEST_BYTES_MAX, METADATA_BYTES_MAX, NAME_REQUEST_BYTES_MAX, REQUEST_BYTES_MAX,
    SMALL_REQUEST_BYTES_MAX, STREAMS_MAX,
};
use crate::listener::accept_callers;
use crate::messages::Messages;
use crate::proto;
use crate::proto::admin_service_server::{self, AdminServiceServer};
use crate::proto::job_service_server::{self, JobServiceServer};
use crate::proto::message_service_server::{self, MessageServiceServer};
use crate::proto::queue_service_server::{self, QueueServiceServer};
use crate::proto::stats_service_server::{self, StatsServiceServer};
use crate::proto::user_service_server::{self, UserServiceServer};
use crate::queues::Queues;
use crate::stats::Stats;
use crate::users::Users;

/// How long a connection may be silent before it is asked whether it is still there. A consumer whose machine
/// lost power holds messages until this is noticed.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// What a stream may send before it is answered; the default of 64 KiB is less than one round trip of a fast
/// producer.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// The same for all streams of a connection together.
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// Connections that were taken in and that the server has not begun to serve, which it does at once.
const CALLERS_MAX: usize = 16;

/// Names by which the health service knows the others.
const SERVICES: &[&str] = &[
    queue_service_server::SERVICE_NAME,
    message_service_server::SERVICE_NAME,
    job_service_server::SERVICE_NAME,
    stats_service_server::SERVICE_NAME,
    admin_service_server::SERVICE_NAME,
    user_service_server::SERVICE_NAME,
];

/// A server that could not go on.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The connections cannot be served.
    #[error("the gRPC server failed: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// The descriptions of the services cannot be read.
    #[error("the gRPC reflection service cannot be set up: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Serves `broker` on `listeners` until `shutdown` is done. Then no connection is accepted any more, streams
/// end after what they have in flight, calls are finished, and this returns.
///
/// # Errors
/// If the server cannot go on.
pub async fn serve(
    broker: Broker,
    logins: Logins,
    listeners: impl Into<Listeners>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let broker = broker.over(Protocol::Grpc);
    let guard = GuardLayer { broker: broker.clone(), logins: logins.clone() };
    let stop = CancellationToken::new();
    let queues = QueueServiceServer::new(Queues { broker: broker.clone(), stop: stop.clone() })
        .max_decoding_message_size(SMALL_REQUEST_BYTES_MAX);
    let messages = MessageServiceServer::new(Messages {
        broker: broker.clone(),
        logins: logins.clone(),
        stop: stop.clone(),
    })
    .max_decoding_message_size(REQUEST_BYTES_MAX);
    let jobs = JobServiceServer::new(JobCalls {
        broker: broker.clone(),
        logins: logins.clone(),
        stop: stop.clone(),
    })
    .max_decoding_message_size(JOB_REQUEST_BYTES_MAX);
    let stats = StatsServiceServer::new(Stats { broker: broker.clone() })
        .max_decoding_message_size(SMALL_REQUEST_BYTES_MAX);
    let admin = AdminServiceServer::new(Admin { broker: broker.clone(), logins: logins.clone() })
        .max_decoding_message_size(SMALL_REQUEST_BYTES_MAX);
    let users = UserServiceServer::new(Users { logins }).max_decoding_message_size(SMALL_REQUEST_BYTES_MAX);
    let health =
        HealthServer::new(HealthChecks { broker: broker.clone(), stop: stop.clone(), services: SERVICES })
            .max_decoding_message_size(NAME_REQUEST_BYTES_MAX);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let router = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_header_list_size(METADATA_BYTES_MAX)
        .layer(guard)
        .add_service(queues)
        .add_service(messages)
        .add_service(jobs)
        .add_service(stats)
        .add_service(admin)
        .add_service(users)
        .add_service(health)
        .add_service(reflection().build_v1()?.max_decoding_message_size(NAME_REQUEST_BYTES_MAX))
        // Tools made before 2023 ask for the older name.
        .add_service(reflection().build_v1alpha()?.max_decoding_message_size(NAME_REQUEST_BYTES_MAX));
    let end = async {
        shutdown.await;
        stop.cancel();
    };
    let (callers, incoming) = mpsc::channel(CALLERS_MAX);
    let accepting = accept_callers(&broker, listeners.into(), &stop, callers);
    let serving = router.serve_with_incoming_shutdown(ReceiverStream::new(incoming), end);
    tokio::pin!(serving);
    tokio::select! {
        served = &mut serving => return Ok(served?),
        () = accepting => {}
    }
    Ok(serving.await?)
}
