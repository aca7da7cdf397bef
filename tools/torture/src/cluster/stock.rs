//! Taking stock of a cluster: everything that is owed comes, all nodes are in step, and each of them, when it leads, has the same.

use std::time::Duration;

use anyhow::Context;
use nexo_grpc::client::Client;
use nexo_grpc::proto;
use tokio::time::{Instant, timeout};

use super::faults::all;
use super::nodes::{NODES, TOGETHER_MAX, name};
use super::run::ClusterRun;
use crate::jobs;
use crate::ledger::What;
use crate::queues::Place;
use crate::stats;
use crate::stock::{drain, left, work_off};
use crate::world::RunPhase;

/// The queue from which nobody takes anything.
const KEPT: &str = "kept";
/// Messages that are put there after each fault.
const KEPT_EACH: u64 = 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// What is in the queue from which nobody takes anything.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    confirmed: u64,
    sent: u64,
}

/// What one node has, while it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Had {
    /// Of each queue: its name, messages of any state, and their bytes.
    queues: Vec<(&'static str, u64, u64)>,
}

impl ClusterRun {
    pub(super) async fn make_kept(&self) -> anyhow::Result<()> {
        let client = Client::connect(&format!("http://{}", self.world.doors.any().grpc)).await?;
        let create = proto::CreateQueueRequest { queue: KEPT.to_owned(), ..Default::default() };
        client.queues().create_queue(create).await.context("queue 'kept'")?;
        Ok(())
    }

    /// Puts something where it stays, so that nodes have something to compare.
    pub(super) async fn keep_some(&mut self) {
        let body = format!("kept after {} messages", self.kept.sent);
        let message = proto::NewMessage { body: body.into(), ..Default::default() };
        let messages = vec![message; usize::try_from(KEPT_EACH).unwrap_or_default()];
        let request = proto::PushRequest { queue: KEPT.to_owned(), messages, ..Default::default() };
        self.kept.sent += KEPT_EACH;
        let url = format!("http://{}", self.world.doors.any().grpc);
        let pushed = timeout(PATIENCE, async {
            let client = Client::connect(&url).await.ok()?;
            client.messages().push(request).await.ok()
        });
        if let Ok(Some(reply)) = pushed.await {
            let is_pushed = |result: &&proto::PushResult| {
                matches!(result.outcome, Some(proto::push_result::Outcome::Pushed(_)))
            };
            self.kept.confirmed += reply.get_ref().results.iter().filter(is_pushed).count() as u64;
        }
    }

    /// The leader is killed once more, the rest of what is owed comes, and every node leads in turn.
    pub(super) async fn take_stock(&mut self) -> anyhow::Result<()> {
        self.tally.stocks += 1;
        self.world.enter(RunPhase::Drain);
        self.wait(Duration::from_millis(200)).await?;
        let (leader, _) = self.nodes.until_led(&all()).await?;
        self.kill_leader(leader).await?;
        self.until_in_step().await?;
        drain(self).await?;
        work_off(self).await?;
        self.until_applied_alike().await?;
        let mut first: Option<(usize, Had)> = None;
        for number in all() {
            self.lead(number).await?;
            let Some(had) = self.what_is_had().await? else {
                self.report(
                    What::Stuck,
                    format!("{} leads, and does not say what is in its queues", name(number)),
                );
                continue;
            };
            self.judge(number, &had);
            match &first {
                None => first = Some((number, had)),
                Some((other, before)) if *before != had => {
                    let fact = format!("{} has {had:?}; {} had {before:?}", name(number), name(*other));
                    self.report(What::Figures, fact);
                }
                Some(_) => {}
            }
            if jobs::take_account(&self.world).await.is_none() {
                self.report(
                    What::Stuck,
                    format!("{} leads, and does not say what its job queues count", name(number)),
                );
            }
        }
        self.until_applied_alike().await?;
        self.world.ledger().close_books(0);
        Ok(())
    }

    async fn lead(&mut self, number: usize) -> anyhow::Result<()> {
        self.note(&format!("{} is to lead", name(number)));
        self.nobody_knows();
        if let Err(error) = self.nodes.transfer(number).await {
            self.report(What::Stuck, format!("{error:#}"));
        }
        let (leader, term) = self.nodes.until_led(&all()).await?;
        self.known_again(leader, term);
        Ok(())
    }

    /// All that was confirmed is gone, other than what is kept, of which all is there.
    fn judge(&self, number: usize, had: &Had) {
        for (queue, messages, _) in &had.queues {
            let is_right = match *queue {
                KEPT => (self.kept.confirmed..=self.kept.sent).contains(messages),
                _ => *messages == 0,
            };
            if !is_right {
                let what = if *queue == KEPT { What::Lost } else { What::Resurrected };
                let fact = format!(
                    "with {} as the leader {messages} messages are in '{queue}'; {:?}",
                    name(number),
                    self.kept
                );
                self.report(what, fact);
            }
        }
    }

    /// What the leader has, as soon as it says so.
    async fn what_is_had(&mut self) -> anyhow::Result<Option<Had>> {
        let begun = Instant::now();
        while begun.elapsed() < TOGETHER_MAX {
            // Consumers connect again, and what they are handed comes back: nothing is, in queues that are empty.
            if left(&self.world).await.is_some()
                && let Some(had) = self.look().await
            {
                return Ok(Some(had));
            }
            self.wait(Duration::from_millis(100)).await?;
        }
        Ok(None)
    }

    async fn look(&self) -> Option<Had> {
        let mut queues = Vec::new();
        for name in Place::all().map(Place::name).chain([KEPT]) {
            let stats = stats::named(&self.world, name).await;
            if stats.is_none() && name == Place::LIMITED_DEAD.name() {
                continue;
            }
            let stats = stats?;
            queues.push((name, stats::all_messages(&stats), stats.bytes));
        }
        Some(Had { queues })
    }

    /// Nothing is published, so all nodes have applied the same in some moment.
    async fn until_applied_alike(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let mut applied = Vec::new();
            for number in 0..NODES {
                applied.push(self.nodes.figures(number).await.map(|figures| figures.applied));
            }
            if applied[0].is_some() && applied.iter().all(|index| *index == applied[0]) {
                self.note(&format!("all nodes have applied {:?}", applied[0]));
                return Ok(());
            }
            if begun.elapsed() > TOGETHER_MAX {
                let fact = format!("nodes have not applied the same: {}", self.figures().await);
                self.report(What::Figures, fact);
                return Ok(());
            }
            self.wait(Duration::from_millis(50)).await?;
        }
    }
}
