//! Taking stock: nothing new is published, everything that is owed must come, and then the books are closed.
//!
//! A long run does so now and then. What a kill left open, whether it was stored and whether it was acknowledged, is known
//! when every queue is empty after a clean stop; so the books need no more room than what a few kills leave open, and a
//! loss is told within minutes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::jobs;
use crate::ledger::{Violation, What};
use crate::queues::Place;
use crate::run::{Run, STUCK};
use crate::stats;
use crate::world::{RunPhase, World};

/// Whoever can wait while clients are at work.
pub(crate) trait Host {
    fn world(&self) -> &Arc<World>;

    /// Lets time pass, and sees whether the broker is still there.
    async fn wait(&mut self, span: Duration) -> anyhow::Result<()>;
}

impl Host for Run {
    fn world(&self) -> &Arc<World> {
        &self.world
    }

    async fn wait(&mut self, span: Duration) -> anyhow::Result<()> {
        Self::wait(self, span).await
    }
}

impl Run {
    /// A kill, the rest of what is owed, an end as it should be, and a start that brings nothing back.
    pub(crate) async fn take_stock(&mut self) -> anyhow::Result<()> {
        self.tally.stocks += 1;
        self.world.enter(RunPhase::Drain);
        self.wait(Duration::from_millis(200)).await?;
        self.kill().await?;
        self.start().await?;
        drain(self).await?;
        work_off(self).await?;
        self.stop().await?;
        self.start().await?;
        let back = left(&self.world).await;
        if jobs::take_account(&self.world).await.is_none() {
            let fact = "after a clean stop and a start the broker does not say what its job queues count";
            self.world.ledger().report(Violation::new(What::Stuck, fact));
        }
        let damaged = self.damaged().await.unwrap_or(self.damaged_before);
        let reported = damaged.saturating_sub(self.damaged_before);
        self.damaged_before = damaged;
        let mut ledger = self.world.ledger();
        if back != Some(0) {
            let fact = format!("after a clean stop of empty queues {back:?} messages are there");
            ledger.report(Violation::new(What::Resurrected, fact));
        }
        ledger.close_books(reported);
        Ok(())
    }

    /// Messages that the broker has ever counted as lost to damage, in all queues; `None` if it does not say.
    async fn damaged(&self) -> Option<u64> {
        let mut damaged = 0;
        for place in Place::all() {
            let found = stats::of(&self.world, place).await;
            if found.is_none() && place == Place::LIMITED_DEAD {
                continue;
            }
            damaged += found?.damaged;
        }
        Some(damaged)
    }

    /// Everybody goes home, the broker too, and what it said is read.
    pub(crate) async fn close(&mut self, clients: &mut JoinSet<()>) -> anyhow::Result<()> {
        self.world.enter(RunPhase::Over);
        let ended = timeout(STUCK, async { while clients.join_next().await.is_some() {} }).await;
        ended.context("clients do not end")?;
        self.stop().await?;
        self.tally.jobs = jobs::close(&self.world);
        let mut ledger = self.world.ledger();
        ledger.end_run();
        let was_damaged = self.tally.damages > 0;
        let complaints = self.server.complaints();
        for line in complaints.into_iter().filter(|line| !was_damaged || !is_about_damage(line)) {
            ledger.report(Violation::new(What::Broker, line));
        }
        Ok(())
    }
}

/// Waits until every queue is empty and every publish is answered, as long as anything moves.
pub(crate) async fn drain(host: &mut impl Host) -> anyhow::Result<()> {
    let (mut before, mut moved) = (None, Instant::now());
    loop {
        host.wait(Duration::from_millis(300)).await?;
        let left = left(host.world()).await;
        let (owed, unanswered) = {
            let ledger = host.world().ledger();
            (ledger.owed(), ledger.unanswered())
        };
        if left == Some(0) && unanswered == 0 {
            return Ok(());
        }
        if before != Some((left, owed, unanswered)) {
            (before, moved) = (Some((left, owed, unanswered)), Instant::now());
        }
        if moved.elapsed() > STUCK {
            let fact = format!(
                "{owed} copies are owed, {unanswered} are not answered for, {left:?} are in queues, and nothing moves"
            );
            host.world().ledger().report(Violation::new(What::Stuck, fact));
            return Ok(());
        }
    }
}

/// Waits until every job is done and every waiter has its answer, as long as anything moves.
pub(crate) async fn work_off(host: &mut impl Host) -> anyhow::Result<()> {
    let (mut before, mut moved) = (None, Instant::now());
    loop {
        let account = jobs::is_worked_off(host.world()).await;
        if account.is_some_and(|account| account.is_clear()) {
            return Ok(());
        }
        if before != Some(account) {
            (before, moved) = (Some(account), Instant::now());
        }
        if moved.elapsed() > STUCK {
            let fact = format!("jobs are not worked off, and nothing moves: {account:?}");
            host.world().ledger().report(Violation::new(What::Stuck, fact));
            host.world().books(|books| books.give_up());
            return Ok(());
        }
        host.wait(Duration::from_millis(200)).await?;
    }
}

/// Messages in all queues; `None` if the broker does not say.
pub(crate) async fn left(world: &World) -> Option<u64> {
    let mut left = 0;
    for place in Place::all() {
        let found = stats::of(world, place).await;
        if found.is_none() && place == Place::LIMITED_DEAD {
            continue;
        }
        left += stats::all_messages(&found?);
    }
    Some(left)
}

/// Whether a line says what a broker must say of damage.
fn is_about_damage(line: &str) -> bool {
    ["damaged", "a checkpoint cannot be used", "an earlier checkpoint is used"]
        .iter()
        .any(|text| line.contains(text))
}
