//! What is done to nodes, and what the books are told before and after it.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout};

use super::nodes::{NODES, TOGETHER_MAX, name};
use super::plan::Fault;
use super::run::ClusterRun;
use super::wires::Way;
use crate::clock;
use crate::ledger::{Violation, What};

/// How long a node that was killed is away.
const AWAY: Duration = Duration::from_secs(2);
/// How long a node is frozen, or cut off: longer than any election takes.
const FROZEN: Duration = Duration::from_secs(4);
/// A way over which nothing comes.
const CUT: Way = Way { is_cut: true, delay: Duration::ZERO };
/// A way over which everything comes late: to the leader and back is two of them.
const SLOW: Way = Way { is_cut: false, delay: Duration::from_millis(20) };
/// A follower that lacks no more entries is in step: so many are on their way under load.
const ON_THEIR_WAY: u64 = 2_000;

impl ClusterRun {
    /// Does it, waits until all nodes are in step again, and until `until`.
    pub(super) async fn meet(&mut self, fault: Fault, until: Instant) -> anyhow::Result<()> {
        let (leader, term) = self.nodes.until_led(&all()).await?;
        self.leads_now(term);
        let begun = clock::now();
        self.world.ledger().watch_silence(begun);
        match fault {
            Fault::KillLeader => self.kill_leader(leader).await?,
            Fault::FreezeLeader => self.freeze(leader).await?,
            Fault::StopLeader => self.stop_leader(leader).await?,
            Fault::CutLeader | Fault::MuteLeader | Fault::DeafLeader => self.part(leader, fault).await?,
            Fault::SlowLeader => self.slow_down(leader).await?,
            Fault::KillFollower => {
                let follower = (leader + self.chances.usize(1..NODES)) % NODES;
                self.kill_follower(follower).await?;
            }
        }
        self.until_in_step().await?;
        self.keep_some().await;
        self.wait(until.saturating_duration_since(Instant::now())).await?;
        self.until_confirmed().await?;
        let silence = self.world.ledger().longest_silence(clock::now());
        self.note(&format!("nothing was confirmed for {} ms", silence / 1000));
        self.outages.add(fault, silence);
        Ok(())
    }

    /// The leader is killed, and is back later.
    pub(super) async fn kill_leader(&mut self, leader: usize) -> anyhow::Result<()> {
        self.tally.kills += 1;
        self.note(&format!("kill {}, which leads", name(leader)));
        self.world.ledger().end_life();
        self.term = None;
        self.nodes.get(leader).signal(Signal::KILL);
        self.nodes.get(leader).ended().await?;
        self.wait(AWAY).await?;
        self.start(leader).await
    }

    /// Only what went through it is over.
    async fn kill_follower(&mut self, follower: usize) -> anyhow::Result<()> {
        self.tally.kills += 1;
        self.note(&format!("kill {}, which follows", name(follower)));
        self.world.ledger().shut([follower], NODES);
        self.nodes.get(follower).signal(Signal::KILL);
        self.nodes.get(follower).ended().await?;
        self.world.ledger().open_doors();
        self.wait(AWAY).await?;
        self.start(follower).await
    }

    /// The others elect another leader meanwhile. The one that was frozen takes itself for the leader when it comes back, until it
    /// hears of the other: who comes through its door in that moment may be told what is of the past.
    async fn freeze(&mut self, leader: usize) -> anyhow::Result<()> {
        self.tally.freezes += 1;
        self.note(&format!("freeze {}, which leads", name(leader)));
        self.nobody_knows();
        self.nodes.get(leader).signal(Signal::STOP);
        let is_led = self.until_others_lead(leader).await?;
        self.note(&format!("{} goes on", name(leader)));
        self.nodes.get(leader).signal(Signal::CONT);
        self.until_it_is_over(leader, is_led).await
    }

    /// The leader and the others are parted. It takes itself for the leader until it notices that it has no majority; clients reach
    /// it all the time, and until then may be told what is of the past.
    async fn part(&mut self, leader: usize, fault: Fault) -> anyhow::Result<()> {
        self.tally.partitions += 1;
        self.note(&format!("{} leads: {fault}", name(leader)));
        self.nobody_knows();
        if fault != Fault::DeafLeader {
            self.nodes.wires.set_from(leader, CUT);
        }
        if fault != Fault::MuteLeader {
            self.nodes.wires.set_to(leader, CUT);
        }
        let is_led = self.until_others_lead(leader).await?;
        self.note("all nodes hear each other again");
        self.nodes.wires.heal();
        self.until_it_is_over(leader, is_led).await
    }

    /// The network between the leader and the others is slow. It leads on, and nobody notices more than that.
    async fn slow_down(&mut self, leader: usize) -> anyhow::Result<()> {
        self.tally.slow_networks += 1;
        self.note(&format!("{} leads, and the others are far away", name(leader)));
        self.nodes.wires.set_from(leader, SLOW);
        self.nodes.wires.set_to(leader, SLOW);
        self.wait(FROZEN).await?;
        self.note("the others are near again");
        self.nodes.wires.heal();
        Ok(())
    }

    /// Waits for another leader, and until a node has been away for its time. Says whether there was one.
    async fn until_others_lead(&mut self, away: usize) -> anyhow::Result<bool> {
        let begun = Instant::now();
        let led = timeout(FROZEN, self.nodes.until_led(&others(away))).await;
        if let Ok(Ok((next, term))) = led {
            self.known_again(next, term);
            self.world.ledger().shut([away], NODES);
        }
        self.wait((begun + FROZEN).saturating_duration_since(Instant::now())).await?;
        Ok(matches!(led, Ok(Ok(_))))
    }

    /// A node that led is back. It must follow the one that leads by now.
    async fn until_it_is_over(&mut self, deposed: usize, is_led: bool) -> anyhow::Result<()> {
        if is_led {
            self.until_it_follows(deposed).await?;
            self.world.ledger().open_doors();
        } else {
            self.report(What::Stuck, format!("no leader was elected while {} was away", name(deposed)));
            let (next, term) = self.nodes.until_led(&all()).await?;
            self.known_again(next, term);
        }
        Ok(())
    }

    async fn until_it_follows(&mut self, deposed: usize) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let figures = self.nodes.figures(deposed).await;
            if figures.is_some_and(|figures| !figures.is_leading && figures.has_leader) {
                return Ok(());
            }
            if begun.elapsed() > TOGETHER_MAX {
                let fact = format!("{} does not follow after it was deposed: {figures:?}", name(deposed));
                self.report(What::Stuck, fact);
                return Ok(());
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// An end as it should be: it hands over first, and serves until then.
    async fn stop_leader(&mut self, leader: usize) -> anyhow::Result<()> {
        self.tally.stops += 1;
        self.note(&format!("stop {}, which leads", name(leader)));
        self.nobody_knows();
        self.nodes.get(leader).signal(Signal::TERM);
        let (next, term) = self.nodes.until_led(&others(leader)).await?;
        self.known_again(next, term);
        let status = self.nodes.get(leader).ended().await?;
        if !status.success() {
            self.report(What::Broker, format!("after SIGTERM {} ended with {status}", name(leader)));
        }
        self.start(leader).await
    }

    /// Leadership is about to move: who serves can be said only afterwards.
    pub(super) fn nobody_knows(&self) {
        let mut ledger = self.world.ledger();
        ledger.end_life();
        ledger.shut(all(), NODES);
    }

    /// It has moved. What has begun meanwhile may have been served by the one or the other.
    pub(super) fn known_again(&mut self, leader: usize, term: u64) {
        self.note(&format!("{} leads in term {term}", name(leader)));
        self.term = Some(term);
        let mut ledger = self.world.ledger();
        ledger.end_life();
        ledger.open_doors();
    }

    pub(super) async fn start(&mut self, number: usize) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.note(&format!("start {}", name(number)));
        self.nodes.get(number).start().await?;
        self.note(&format!("{} is ready", name(number)));
        self.tally.slowest_start = self.tally.slowest_start.max(begun.elapsed());
        Ok(())
    }

    /// The next fault would take a majority before that.
    pub(super) async fn until_in_step(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !self.nodes.are_in_step(ON_THEIR_WAY).await {
            if begun.elapsed() > TOGETHER_MAX {
                let fact = format!("nodes are not in step after {TOGETHER_MAX:?}: {}", self.figures().await);
                self.report(What::Stuck, fact);
                return Ok(());
            }
            self.wait(Duration::from_millis(100)).await?;
        }
        let (leader, term) = self.nodes.until_led(&all()).await?;
        self.note(&format!(
            "in step after {} ms: {} leads in term {term}",
            begun.elapsed().as_millis(),
            name(leader)
        ));
        self.leads_now(term);
        Ok(())
    }

    /// Something must be confirmed again after every fault.
    async fn until_confirmed(&mut self) -> anyhow::Result<()> {
        let usual = clock::micros(Duration::from_secs(1));
        while self.world.ledger().silence(clock::now()) > usual {
            if self.world.ledger().silence(clock::now()) > clock::micros(TOGETHER_MAX) {
                let fact = format!("nothing was confirmed for {TOGETHER_MAX:?}: {}", self.figures().await);
                self.report(What::Stuck, fact);
                return Ok(());
            }
            self.wait(Duration::from_millis(50)).await?;
        }
        Ok(())
    }

    /// It is known who leads. Leadership may have moved although nobody did anything to a node.
    pub(super) fn leads_now(&mut self, term: u64) {
        if let Some(known) = self.term.replace(term).filter(|known| *known != term) {
            let excused = self.world.ledger().was_unsure();
            self.unasked += 1;
            self.note(&format!(
                "the term went from {known} to {term} by itself; {excused} complaints excused"
            ));
        }
        self.world.ledger().is_sure();
    }

    pub(super) fn report(&self, what: What, fact: String) {
        self.world.ledger().report(Violation::new(what, fact));
    }
}

pub(super) fn all() -> [usize; NODES] {
    std::array::from_fn(|number| number)
}

fn others(than: usize) -> Vec<usize> {
    all().into_iter().filter(|number| *number != than).collect()
}
