//! Taking stock of jobs: everything is worked off, every waiter has its answer, and the broker's figures are those of the books.

use nexo_grpc::proto;

use super::books::{Figures, Totals};
use super::clients::check_answer;
use super::setup::{Kind, Reply};
use super::watch;
use super::wire::Wire;
use crate::clock;
use crate::ledger::What;
use crate::stats;
use crate::world::World;

/// What is still to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    /// Waiters without their answer.
    pub(crate) open: usize,
    /// Jobs that are pending or running.
    pub(crate) unfinished: u64,
    /// Messages in the queues for answers.
    pub(crate) messages: u64,
    /// Tokens that are reserved.
    pub(crate) reserved: u64,
}

impl Account {
    /// Whether nothing is left to do.
    pub(crate) const fn is_clear(&self) -> bool {
        self.open == 0 && self.unfinished == 0 && self.messages == 0 && self.reserved == 0
    }
}

/// What is left to do; `None` if the broker does not say.
pub(crate) async fn is_worked_off(world: &World) -> Option<Account> {
    let mut wire = Wire::connect(world.doors.any().http).await.ok()?;
    let mut unfinished = 0;
    for kind in Kind::ALL {
        let shown = show(&mut wire, kind).await?;
        unfinished += shown["pending"].as_u64()? + shown["running"].as_u64()?;
    }
    let reserved = watch::look(world, &mut wire).await?;
    let mut messages = 0;
    for reply in Reply::ALL {
        let stats: proto::QueueStats = stats::named(world, reply.name()).await?;
        let left = stats::all_messages(&stats);
        messages += left;
        if left == 0 && unfinished == 0 && stats.damaged > 0 {
            let excused = world.books(|books| books.excuse(reply, stats.damaged));
            excused.into_iter().for_each(|waiter| world.yard.tell(waiter));
        }
    }
    let open = world.books(|books| books.open());
    Some(Account { open, unfinished, messages, reserved })
}

/// Compares the figures of a broker in which nothing is under way, and asks for some answers once more.
pub(crate) async fn take_account(world: &World) -> Option<()> {
    let mut wire = Wire::connect(world.doors.any().http).await.ok()?;
    watch::look(world, &mut wire).await?;
    for kind in Kind::ALL {
        let shown = show(&mut wire, kind).await?;
        let total = |name: &str| shown["totals"][name].as_u64();
        let found = Figures {
            created: total("created")?,
            waiters: total("created")? + total("joined")? + total("cache_hits")?,
            answered: total("answered")?,
            done: total("done")?,
            failed: total("failed")?,
        };
        world.books(|books| {
            let expected = books.figures(kind);
            if found != expected {
                let fact = format!("'{}' counts {found:?}; the books have {expected:?}", kind.name());
                books.report(What::Figures, fact);
            }
        });
    }
    for (waiter, kind) in world.books(|books| books.recent(clock::now())) {
        let path = format!("/api/jobs/queues/%2F/{}/answers/{waiter}", kind.name());
        let replied = wire.call("GET", &path, None).await.ok()?;
        if replied.is_ok() && !replied.body["answer"].is_null() {
            check_answer(world, waiter, &replied);
        } else {
            let fact =
                format!("{waiter} has had its answer, and is now told {} {}", replied.status, replied.body);
            world.books(|books| books.report(What::Unanswered, fact));
        }
    }
    Some(())
}

/// The run is over: what was done?
pub(crate) fn close(world: &World) -> Totals {
    world.books(|books| {
        let totals = *books.totals();
        if totals.answered == 0 || totals.deaths == 0 || totals.broke == 0 {
            let fact =
                format!("no answer, no death of a worker or never a budget short of tokens: {totals:?}");
            books.report(What::NotExercised, fact);
        }
        totals
    })
}

async fn show(wire: &mut Wire, kind: Kind) -> Option<serde_json::Value> {
    let replied = wire.call("GET", &format!("/api/jobs/queues/%2F/{}", kind.name()), None).await.ok()?;
    replied.is_ok().then_some(replied.body)
}
