//! A client that publishes in transactions: what a commit answers for is there, what was rolled back is not.

use nexo_amqp::codec::ShortStr;
use nexo_amqp::codec::method::tx;
use nexo_amqp_client::methods;
use std::time::Duration;
use tokio::time::sleep;

use super::wire::{Gone, Wire, properties};
use crate::clock;
use crate::ledger::SessionId;
use crate::way::Way;
use crate::workload::{Message, Workload};
use crate::world::{Ear, RunPhase, Told, World};

/// Connects and publishes until the connection ends or nothing more is to be published.
pub(crate) async fn transact(world: &World, workload: &mut Workload, ear: &mut Ear) -> Result<(), Gone> {
    workload.begin_session();
    let session = world.ledger().open_session(Way::Amqp);
    let mut open = Vec::new();
    let ended = serve(world, workload, ear, session, &mut open).await;
    let mut ledger = world.ledger();
    ledger.close_session(session);
    for message in open {
        // RabbitMQ does not promise all or nothing here either.
        ledger.uncertain(&message.stamp, clock::now());
    }
    ended
}

async fn serve(
    world: &World,
    workload: &mut Workload,
    ear: &mut Ear,
    session: SessionId,
    open: &mut Vec<Message>,
) -> Result<(), Gone> {
    let mut wire = Wire::connect_as(world, session).await?;
    wire.call(&tx::Select {}, "tx.select-ok").await?;
    while ear.phase() == RunPhase::Load {
        if !world.is_behind() {
            for _ in 0..workload.chances.usize(1..20) {
                publish(&mut wire, workload.any(Way::Amqp), open);
            }
            let is_kept = workload.chances.u8(..10) > 0;
            let answered = async {
                match is_kept {
                    true => wire.call(&tx::Commit {}, "tx.commit-ok").await,
                    false => wire.call(&tx::Rollback {}, "tx.rollback-ok").await,
                }
            };
            tokio::select! {
                answered = answered => answered?,
                () = cut(ear) => {
                    wire.cut(&mut workload.chances).await;
                    return Ok(());
                }
            }
            let now = clock::now();
            let mut ledger = world.ledger();
            for Message { stamp, sent_at, .. } in open.drain(..) {
                match is_kept {
                    true => ledger.confirmed(&stamp, session, sent_at, now),
                    false => ledger.withdrawn(&stamp),
                }
            }
        }
        sleep(Duration::from_millis(workload.chances.u64(5..150))).await;
    }
    Ok(())
}

fn publish(wire: &mut Wire, message: Message, open: &mut Vec<Message>) {
    let (exchange, routing_key) = message.address();
    let publish = methods::publish(ShortStr::from_static(exchange), ShortStr::from_static(routing_key));
    wire.publish(&publish, &properties(&message.stamp, message.delay, None), &message.stamp.body());
    open.push(message);
}

/// Resolves when the connection is to be cut.
async fn cut(ear: &mut Ear) {
    while ear.told().await != Told::Cut {}
}
