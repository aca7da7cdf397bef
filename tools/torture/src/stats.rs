//! What the broker says of its queues.

use std::time::Duration;

use nexo_grpc::client::Client;
use nexo_grpc::proto;
use tokio::time::{sleep, timeout};

use crate::queues::Place;
use crate::world::{Ear, RunPhase, World};

const PATIENCE: Duration = Duration::from_secs(10);

/// The figures of a queue; `None` if the broker or the queue is not there.
pub(crate) async fn of(world: &World, place: Place) -> Option<proto::QueueStats> {
    named(world, place.name()).await
}

/// The same by its name.
pub(crate) async fn named(world: &World, name: &str) -> Option<proto::QueueStats> {
    let asked = async {
        let client = Client::connect(&format!("http://{}", world.doors.any().grpc)).await.ok()?;
        let request = proto::GetQueueRequest { queue: name.to_owned(), ..Default::default() };
        client.queues().get_queue(request).await.ok()?.into_inner().queue?.stats
    };
    timeout(PATIENCE, asked).await.ok()?
}

/// Messages of any state.
pub(crate) const fn all_messages(stats: &proto::QueueStats) -> u64 {
    stats.ready + stats.leased + stats.delayed + stats.grouped
}

/// Waits until nobody consumes a queue or holds one of its messages: what an earlier consumer had been handed has come
/// back to its place. `false` if the run ended first.
pub(crate) async fn wait_until_free(world: &World, place: Place, ear: &Ear) -> bool {
    while ear.phase() != RunPhase::Over {
        if of(world, place).await.is_some_and(|stats| stats.leased == 0 && stats.consumers == 0) {
            return true;
        }
        sleep(Duration::from_millis(30)).await;
    }
    false
}
