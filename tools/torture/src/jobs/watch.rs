//! Looks at the budget again and again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::books::Look;
use super::setup::BUDGET;
use super::wire::Wire;
use crate::clock;
use crate::ledger::What;
use crate::world::{RunPhase, World};

const EVERY: Duration = Duration::from_millis(70);

/// Looks until the run is over.
pub(super) async fn look_at_budget(world: Arc<World>) {
    let mut wire = None;
    while world.phase() != RunPhase::Over {
        if wire.is_none() {
            wire = Wire::connect(world.doors.any().http).await.ok();
        }
        if let Some(open) = &mut wire
            && look(&world, open).await.is_none()
        {
            wire = None;
        }
        sleep(EVERY).await;
    }
}

/// One look; `None` if the broker does not say. Gives back what is reserved.
pub(super) async fn look(world: &World, wire: &mut Wire) -> Option<u64> {
    let used_before = world.books(|books| books.used());
    let sent_at = clock::now();
    let replied = wire.call("GET", &format!("/api/jobs/budgets/%2F/{BUDGET}"), None).await.ok()?;
    let got_at = clock::now();
    let body = &replied.body;
    let read = || {
        let (tokens, reserved) = (body["tokens"].as_i64()?, body["reserved"].as_u64()?);
        Some(Look { sent_at, used_before, got_at, tokens, reserved, used: body["used_total"].as_u64()? })
    };
    match read() {
        Some(look) => {
            world.books(|books| books.looked(&look));
            Some(look.reserved)
        }
        None => {
            if !replied.is_for_now() {
                let fact = format!("the budget cannot be looked at: {} {body}", replied.status);
                world.books(|books| books.report(What::Broker, fact));
            }
            None
        }
    }
}
