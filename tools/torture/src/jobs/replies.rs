//! Who reads the queues that answers go to, over the native API, and acknowledges each message.

use std::sync::Arc;
use std::time::Duration;

use nexo_grpc::client::Client;
use nexo_grpc::proto;
use tokio::time::{sleep, timeout};
use tonic::Code;

use super::books::{Via, WaiterId};
use super::setup::Reply;
use crate::ledger::What;
use crate::link::Link;
use crate::world::{RunPhase, World};

const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
/// Short: what was held when a connection ended comes again soon.
const VISIBILITY_MS: u64 = 2_000;

/// Reads until the run is over, on one connection after the other.
pub(super) async fn read(world: Arc<World>, reply: Reply) {
    let mut chances = world.chances(2_000_000 + reply as u64);
    while world.phase() != RunPhase::Over {
        let span = Duration::from_millis(chances.u64(500..15_000));
        // A connection that is cut off now and then leaves messages unacknowledged.
        let _ = timeout(span, read_session(&world, reply)).await;
        sleep(PAUSE).await;
    }
}

/// `None` when the connection does not work any more.
async fn read_session(world: &World, reply: Reply) -> Option<()> {
    let link = Link::to(world.doors.any().grpc).await.ok()?;
    let client = timeout(PATIENCE, Client::connect(&link.url)).await.ok()?.ok()?;
    let mut service = client.messages();
    while world.phase() != RunPhase::Over {
        let request = proto::PopRequest {
            queue: reply.name().to_owned(),
            max: 50,
            wait_ms: 200,
            visibility_ms: Some(VISIBILITY_MS),
            ..Default::default()
        };
        let popped = timeout(PATIENCE, service.pop(request)).await.ok()?.ok()?.into_inner().messages;
        let whose: Vec<Option<WaiterId>> =
            popped.iter().map(|message| receive(world, reply, message)).collect();
        if popped.is_empty() {
            continue;
        }
        let receipts = popped.iter().map(|message| message.receipt.clone()).collect();
        let acked = timeout(PATIENCE, service.ack(proto::AckRequest { receipts })).await.ok()?;
        let results = match acked {
            Ok(acked) => acked.into_inner().results,
            // One that is alone and was too late.
            Err(status) if matches!(status.code(), Code::FailedPrecondition | Code::NotFound) => continue,
            Err(_) => return None,
        };
        for ((waiter, message), result) in whose.into_iter().zip(&popped).zip(results) {
            if let Some(waiter) = waiter.filter(|_| result.error.is_none()) {
                world.books(|books| books.acked(waiter, message.id));
            }
        }
    }
    Some(())
}

fn receive(world: &World, reply: Reply, message: &proto::Message) -> Option<WaiterId> {
    let Ok(answer) = serde_json::from_slice(&message.body) else {
        let fact = format!("message {} of '{}' is no JSON", message.id, reply.name());
        world.books(|books| books.report(What::WrongAnswer, fact));
        return None;
    };
    let via = Via::Message { from: reply, id: message.id };
    let waiter = world.books(|books| books.answered(&answer, via))?;
    world.yard.tell(waiter);
    Some(waiter)
}
