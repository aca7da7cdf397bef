//! A client that publishes with deduplication ids, and publishes again what was not confirmed: each must be there once.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use nexo_amqp::codec::ShortStr;
use nexo_amqp::codec::method::confirm;
use nexo_amqp_client::methods;
use tokio::time::sleep;

use super::wire::{Event, Gone, Wire, properties};
use crate::clock;
use crate::ledger::SessionId;
use crate::way::Way;
use crate::workload::{Message, Workload};
use crate::world::{Ear, RunPhase, Told, World};

/// Connects and publishes until the connection ends or nothing more is to be published. What is not confirmed stays in
/// `owed` for the next connection.
pub(crate) async fn publish_until_confirmed(
    world: &World,
    workload: &mut Workload,
    ear: &mut Ear,
    owed: &mut VecDeque<Message>,
) -> Result<(), Gone> {
    workload.begin_session();
    let session = world.ledger().open_session(Way::Amqp);
    let ended = serve(world, workload, ear, session, owed).await;
    world.ledger().close_session(session);
    for message in owed {
        // A repetition may write nothing: its confirm proves nothing about any moment.
        message.sent_at = 0;
    }
    ended
}

async fn serve(
    world: &World,
    workload: &mut Workload,
    ear: &mut Ear,
    session: SessionId,
    owed: &mut VecDeque<Message>,
) -> Result<(), Gone> {
    let mut wire = Wire::connect_as(world, session).await?;
    wire.call(&confirm::Select { nowait: false }, "confirm.select-ok").await?;
    let mut last_tag = 0;
    while ear.phase() == RunPhase::Load || !owed.is_empty() {
        if owed.is_empty() && !world.is_behind() {
            let count = workload.chances.usize(1..15);
            owed.extend((0..count).map(|_| workload.durable(Way::Amqp)));
        }
        let mut open = BTreeSet::new();
        for message in owed.iter() {
            let times = if workload.chances.u8(..4) == 0 { 2 } else { 1 };
            for _ in 0..times {
                publish(&mut wire, message);
                last_tag += 1;
                open.insert(last_tag);
            }
        }
        let repeated = open.len() - owed.len();
        tokio::select! {
            confirmed = confirmed(&mut wire, open) => confirmed?,
            () = cut(ear) => {
                wire.cut(&mut workload.chances).await;
                return Ok(());
            }
        }
        {
            let mut ledger = world.ledger();
            for Message { stamp, sent_at, .. } in owed.drain(..) {
                ledger.confirmed(&stamp, session, sent_at, clock::now());
            }
            (0..repeated).for_each(|_| ledger.repeated());
        }
        sleep(Duration::from_millis(workload.chances.u64(5..100))).await;
    }
    Ok(())
}

fn publish(wire: &mut Wire, message: &Message) {
    let (exchange, routing_key) = message.address();
    let publish = methods::publish(ShortStr::from_static(exchange), ShortStr::from_static(routing_key));
    let id = message.stamp.to_string();
    wire.publish(&publish, &properties(&message.stamp, message.delay, Some(&id)), &message.stamp.body());
}

/// Waits until all these publishes are confirmed.
async fn confirmed(wire: &mut Wire, mut open: BTreeSet<u64>) -> Result<(), Gone> {
    while !open.is_empty() {
        match wire.event().await? {
            Event::Confirmed { tag, multiple: true } => open = open.split_off(&(tag + 1)),
            Event::Confirmed { tag, multiple: false } => drop(open.remove(&tag)),
            Event::Refused { .. } => return Err(Gone("a publish was refused".into())),
            Event::Delivered(_) | Event::Returned(_) | Event::Other(_) => {}
        }
    }
    Ok(())
}

/// Resolves when the connection is to be cut.
async fn cut(ear: &mut Ear) {
    while ear.told().await != Told::Cut {}
}
