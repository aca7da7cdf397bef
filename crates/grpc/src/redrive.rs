//! A redrive that reports how far it is. It ends when it is done, when the client goes or may no longer move messages, or
//! when the broker stops; each message is moved whole or not at all.

use nexo_access::MoveRight;
use nexo_broker::{Broker, Redrive, Redriven};
use nexo_types::QueueName;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::proto::RedriveResponse;
use crate::status::Failure;

/// Moves dead letters out of `queue` as `request` says.
pub(crate) async fn run(
    broker: Broker,
    queue: QueueName,
    request: Redrive,
    right: MoveRight,
    out: mpsc::Sender<Result<RedriveResponse, Status>>,
    stop: CancellationToken,
) {
    let (progress, mut changed) = watch::channel(0);
    let report = move |done: Redriven| {
        progress.send_replace(done.moved);
    };
    let request = Redrive { gate: right.gate(), ..request };
    let mut work = std::pin::pin!(broker.redrive(&queue, request, &report));
    let mut lost = std::pin::pin!(right.until_lost());
    let last = loop {
        tokio::select! {
            biased;
            refused = &mut lost => break Err(Failure::from(refused).into()),
            result = &mut work => break match result {
                Ok(done) if done.refused > 0 => Err(refusal(&right, done.moved, done.refused).into()),
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

/// What is said at the end if some messages may not go where they came from.
fn refusal(right: &MoveRight, moved: u64, stayed: u64) -> Failure {
    let reason = right.refused().map(|refused| refused.to_string()).unwrap_or_default();
    let message =
        format!("{reason}; messages that came from there stay ({stayed}), others were moved ({moved})");
    Failure { code: Code::PermissionDenied, message }
}
