//! A redrive that reports how far it is. It ends when it is done, when the client goes, or when the broker stops;
//! each message is moved whole or not at all.

use nexo_broker::{Broker, Redrive};
use nexo_types::QueueName;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::proto::RedriveResponse;
use crate::status::Failure;

/// Moves dead letters out of `queue` as `request` says.
pub(crate) async fn run(
    broker: Broker,
    queue: QueueName,
    request: Redrive,
    out: mpsc::Sender<Result<RedriveResponse, Status>>,
    stop: CancellationToken,
) {
    let (progress, mut changed) = watch::channel(0);
    let report = move |moved: u64| {
        progress.send_replace(moved);
    };
    let mut work = std::pin::pin!(broker.redrive(&queue, request, &report));
    let last = loop {
        tokio::select! {
            biased;
            result = &mut work => break match result {
                Ok(done) => Ok(RedriveResponse { moved: done.moved, skipped: done.skipped, done: true }),
                Err(error) => Err(Failure::from(error).into()),
            },
            Ok(()) = changed.changed() => {
                let moved = *changed.borrow_and_update();
                // A slow reader misses steps in between; the next one says more anyway.
                let _ = out.try_send(Ok(RedriveResponse { moved, skipped: 0, done: false }));
            }
            () = out.closed() => return,
            () = stop.cancelled() => break Err(Failure::stopping().into()),
        }
    };
    // The client may be gone, and then nobody needs to know.
    let _ = out.send(last).await;
}
