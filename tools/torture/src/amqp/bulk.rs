//! Publishing some messages at once, on a connection of their own; and one more on another's, as a proof.

use nexo_amqp::codec::ShortStr;
use nexo_amqp::codec::method::{basic, confirm};
use nexo_amqp_client::methods;

use super::wire::{Event, Gone, Wire, properties};
use crate::clock;
use crate::ledger::SessionId;
use crate::queues::Place;
use crate::stamp::Copy;
use crate::way::Way;
use crate::workload::Message;
use crate::world::World;

/// Publishes messages to one queue and waits until all are confirmed; the ledger is told either way.
pub(crate) async fn publish_all(world: &World, place: Place, messages: &[Message]) -> Result<(), Gone> {
    let session = world.ledger().open_session(Way::Amqp);
    let published = async {
        let mut wire = Wire::connect_as(world, session).await?;
        wire.call(&confirm::Select { nowait: false }, "confirm.select-ok").await?;
        for message in messages {
            wire.publish(&to(place), &properties(&message.stamp, None, None), &message.stamp.body());
        }
        let mut confirmed = 0;
        while confirmed < messages.len() as u64 {
            match wire.event().await? {
                Event::Confirmed { tag, multiple: true } => confirmed = tag,
                Event::Confirmed { multiple: false, .. } => confirmed += 1,
                Event::Refused { .. } => return Err(Gone("a publish was refused".into())),
                Event::Delivered(_) | Event::Returned(_) | Event::Other(_) => {}
            }
        }
        Ok(())
    };
    let published = published.await;
    let now = clock::now();
    let mut ledger = world.ledger();
    for message in messages {
        match &published {
            Ok(()) => ledger.confirmed(&message.stamp, session, message.sent_at, now),
            Err(_) => ledger.uncertain(&message.stamp, now),
        }
    }
    ledger.close_session(session);
    published
}

/// Publishes one more message on a connection that has acknowledged some: its confirm proves that they are durable, and
/// then the ledger is told. Something else comes between, before which the broker does what it was told: otherwise they would lie
/// behind what comes with them.
pub(crate) async fn prove(
    world: &World,
    session: SessionId,
    wire: &mut Wire,
    place: Place,
    last: &Message,
    acked: &mut Vec<Copy>,
) -> Result<(), Gone> {
    wire.send(&basic::Cancel { consumer_tag: ShortStr::from_static("nobody"), nowait: true });
    wire.publish(&to(place), &properties(&last.stamp, None, None), &last.stamp.body());
    loop {
        let event = wire.event().await;
        let now = clock::now();
        let mut ledger = world.ledger();
        match event {
            Ok(Event::Confirmed { .. }) => {
                ledger.confirmed(&last.stamp, session, last.sent_at, now);
                acked.drain(..).for_each(|copy| ledger.acked(copy, now));
                return Ok(());
            }
            Ok(Event::Refused { .. }) => {
                ledger.refused(&last.stamp, now);
                return Err(Gone("a publish was refused".into()));
            }
            Ok(Event::Delivered(_) | Event::Returned(_) | Event::Other(_)) => {}
            Err(gone) => {
                ledger.uncertain(&last.stamp, now);
                return Err(gone);
            }
        }
    }
}

/// A publish to one queue.
fn to(place: Place) -> basic::Publish<'static> {
    methods::publish(ShortStr::EMPTY, ShortStr::from_static(place.name()))
}
