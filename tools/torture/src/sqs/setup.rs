//! Making the queues that SQS makes.

use anyhow::{anyhow, bail};
use serde_json::json;

use super::wire::{Gone, Wire};
use crate::queues::{Make, Place};
use crate::world::World;

/// Makes them.
pub(crate) async fn create_queues(world: &World) -> anyhow::Result<()> {
    let lost = |Gone| anyhow!("the connection to SQS ended");
    let mut wire = Wire::connect(world.doors.any().sqs).await.map_err(lost)?;
    for place in Place::all().filter(|place| place.queue().make == Make::Sqs) {
        let attributes = if place == Place::GROUPS { json!({ "FifoQueue": "true" }) } else { json!({}) };
        let create = json!({ "QueueName": place.name(), "Attributes": attributes });
        if let Err(refusal) = wire.call("CreateQueue", &create).await.map_err(lost)? {
            bail!("queue '{}' cannot be created: {}", place.name(), refusal.reason);
        }
    }
    Ok(())
}
