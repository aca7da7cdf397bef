//! The job queues, the budget that pays for both, and the queues that answers go to.

use std::time::Duration;

use anyhow::{Context, anyhow};
use nexo_grpc::client::Client;
use nexo_grpc::proto;
use serde_json::{Value, json};

use super::wire::{Gone, Wire};
use crate::clock;
use crate::world::World;

/// Who asks; few of them at the same moment.
pub(super) const CLIENTS: u64 = 1_000;
/// Connections that clients have, all together.
pub(super) const CONNECTIONS: usize = 60;
pub(super) const WORKERS: u32 = 16;
/// Keys of each job queue.
pub(super) const KEYS: u8 = 50;
/// How long answers are remembered: far longer than a client takes to fetch its own, and short enough that an hour's run
/// needs no more memory than two minutes of it.
pub(super) const REMEMBER: Duration = Duration::from_secs(120);
pub(super) const BUDGET: &str = "torture";
pub(super) const INITIAL: u64 = 60;
pub(super) const REFILL_TOKENS: u64 = 3;
pub(super) const REFILL_EVERY: Duration = Duration::from_millis(100);
/// The same under less than a full load, whose clients ask half as often. A slow machine asks for little more than this brings, so
/// that the budget is short of tokens there, too.
const REFILL_EVERY_OF_FEW: Duration = Duration::from_millis(170);

/// A job queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Who asks for a key that is being worked on shares the answer.
    Share,
    /// Who does so waits for the next job.
    Next,
}

impl Kind {
    pub(super) const ALL: [Self; 2] = [Self::Share, Self::Next];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Share => "jobs.share",
            Self::Next => "jobs.next",
        }
    }

    fn settings(self) -> Value {
        let (while_running, overtake) = match self {
            Self::Share => ("share", "never"),
            Self::Next => ("next", "affordable"),
        };
        json!({
            "budget": BUDGET,
            // Short, so that several jobs of one key wait at once.
            "window_ms": 1_500,
            "while_running": while_running,
            "overtake": overtake,
            "result_ttl_ms": 150,
            "remember_ms": u64::try_from(REMEMBER.as_millis()).unwrap_or(u64::MAX),
            "lease_ms": 2_000,
            // A job fails only if a worker says that it cannot be done.
            "max_attempts": 1_000_000,
            "retry": { "base_ms": 50, "factor": 1.5, "cap_ms": 300 },
            "costs": { "dear": 5, "": "payload.cost" },
        })
    }
}

/// A queue that answers go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reply {
    A,
    B,
}

impl Reply {
    pub(super) const ALL: [Self; 2] = [Self::A, Self::B];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::A => "jobs.answers.a",
            Self::B => "jobs.answers.b",
        }
    }
}

/// Makes them all, and tells the books when the budget was made.
pub(crate) async fn set_up(world: &World) -> anyhow::Result<()> {
    let client = Client::connect(&format!("http://{}", world.doors.any().grpc)).await?;
    for reply in Reply::ALL {
        let queue = reply.name().to_owned();
        let create = proto::CreateQueueRequest { queue, ..Default::default() };
        client.queues().create_queue(create).await.with_context(|| format!("queue '{}'", reply.name()))?;
    }
    let mut wire = Wire::connect(world.doors.any().http).await.map_err(lost)?;
    let every = if world.pace < 1.0 { REFILL_EVERY_OF_FEW } else { REFILL_EVERY };
    let every_ms = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
    let budget = json!({ "initial": INITIAL, "refill": { "tokens": REFILL_TOKENS, "every_ms": every_ms } });
    let sent_at = clock::now();
    put(&mut wire, &format!("/api/jobs/budgets/%2F/{BUDGET}"), &budget).await?;
    world.books(|books| books.budget_made(sent_at, clock::now(), every));
    for kind in Kind::ALL {
        put(&mut wire, &format!("/api/jobs/queues/%2F/{}", kind.name()), &kind.settings()).await?;
    }
    Ok(())
}

async fn put(wire: &mut Wire, path: &str, body: &Value) -> anyhow::Result<()> {
    let replied = wire.call("PUT", path, Some(body)).await.map_err(lost)?;
    match replied.status {
        200..300 => Ok(()),
        _ => Err(anyhow!("'{path}' cannot be made: {} {}", replied.status, replied.body)),
    }
}

fn lost(Gone: Gone) -> anyhow::Error {
    anyhow!("the HTTP connection ended")
}
