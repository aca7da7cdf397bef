//! Making the queues, some by AMQP, some by the native API and some by SQS.

use anyhow::{Context, anyhow};
use nexo_amqp::codec::method::{exchange, queue};
use nexo_amqp::codec::{ShortStr, TableBuf, Value};
use nexo_amqp_client::methods;
use nexo_grpc::client::Client;
use nexo_grpc::proto;

use crate::amqp::{Gone, Wire};
use crate::queues::{ATTEMPTS_MAX, EXPIRY, FANOUT, Make, PRIORITY_MAX, Place};
use crate::sqs;
use crate::world::World;

/// Makes all queues, the exchange and its bindings.
pub(crate) async fn set_up(world: &World) -> anyhow::Result<()> {
    let client = Client::connect(&format!("http://{}", world.doors.any().grpc)).await?;
    for place in Place::all().filter(|place| place.queue().make == Make::Native) {
        let max_attempts = if place == Place::LIMITED { ATTEMPTS_MAX } else { 0 };
        let config = proto::QueueConfig { max_attempts: Some(max_attempts), ..Default::default() };
        let create = proto::CreateQueueRequest {
            queue: place.name().to_owned(),
            config: Some(config),
            ..Default::default()
        };
        client.queues().create_queue(create).await.with_context(|| format!("queue '{}'", place.name()))?;
    }
    sqs::create_queues(world).await?;
    declare_all(world).await.map_err(|Gone(reason)| anyhow!("the queues cannot be declared: {reason}"))
}

async fn declare_all(world: &World) -> Result<(), Gone> {
    let mut wire = Wire::connect(world.doors.any().amqp).await?;
    for place in Place::all().filter(|place| matches!(place.queue().make, Make::Quorum | Make::Classic)) {
        let arguments = arguments(place);
        let declare = queue::Declare {
            durable: true,
            arguments: arguments.as_table(),
            ..methods::declare_queue(ShortStr::from_static(place.name()))
        };
        wire.call(&declare, "queue.declare-ok").await?;
    }
    let fanout = ShortStr::from_static(FANOUT);
    let declare = methods::declare_exchange(fanout, ShortStr::from_static("fanout"));
    let declare = exchange::Declare { durable: true, ..declare };
    wire.call(&declare, "exchange.declare-ok").await?;
    for place in [Place::FAN_A, Place::FAN_B, Place::FAN_C] {
        let bind = methods::bind(ShortStr::from_static(place.name()), fanout, ShortStr::EMPTY);
        wire.call(&bind, "queue.bind-ok").await?;
    }
    Ok(())
}

fn arguments(place: Place) -> TableBuf {
    let mut table = TableBuf::new();
    if place.queue().make == Make::Quorum {
        table.put(ShortStr::from_static("x-queue-type"), "quorum");
    }
    let mut dead_letters_to = |place: Place| {
        table.put(ShortStr::from_static("x-dead-letter-exchange"), "");
        table.put(ShortStr::from_static("x-dead-letter-routing-key"), place.name());
    };
    match place {
        Place::REJECTS => {
            dead_letters_to(Place::REJECTS_DEAD);
            // RabbitMQ counts those after the first.
            let limit = Value::I32(i32::try_from(ATTEMPTS_MAX - 1).unwrap_or(i32::MAX));
            table.put(ShortStr::from_static("x-delivery-limit"), limit);
        }
        Place::EXPIRING => {
            dead_letters_to(Place::EXPIRED);
            let ttl = Value::I32(i32::try_from(EXPIRY.as_millis()).unwrap_or(i32::MAX));
            table.put(ShortStr::from_static("x-message-ttl"), ttl);
        }
        Place::PRIORITIES => {
            table.put(ShortStr::from_static("x-max-priority"), Value::I32(PRIORITY_MAX.into()));
        }
        _ => {}
    }
    table
}
