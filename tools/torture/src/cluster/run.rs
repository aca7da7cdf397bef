//! A run of a cluster from beginning to end.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::faults::all;
use super::nodes::{NODES, Nodes, name};
use super::outages::Outages;
use super::plan::plan;
use super::stock::Kept;
use crate::clients;
use crate::clock;
use crate::jobs;
use crate::ledger::{Violation, What};
use crate::report::Tally;
use crate::run::{PROGRESS, STUCK};
use crate::setup::set_up;
use crate::stock::Host;
use crate::world::{RunPhase, World};

/// What to do.
#[derive(Clone, Debug)]
pub(crate) struct ClusterSettings {
    pub(crate) nexo: PathBuf,
    /// Everything goes here.
    pub(crate) home: PathBuf,
    pub(crate) seed: u64,
    pub(crate) faults: usize,
    /// From one fault to the next.
    pub(crate) every: Duration,
    /// The load, as a part of what a single broker gets.
    pub(crate) pace: f64,
}

/// A run under way.
pub(super) struct ClusterRun {
    pub(super) world: Arc<World>,
    pub(super) nodes: Nodes,
    pub(super) tally: Tally,
    pub(super) outages: Outages,
    pub(super) chances: fastrand::Rng,
    pub(super) kept: Kept,
    /// The term that was known last.
    pub(super) term: Option<u64>,
    /// How often leadership moved although nobody did anything to a node.
    pub(super) unasked: u32,
    journal: File,
    started: Instant,
    told: Instant,
    /// Violations that were told already.
    violations_told: usize,
}

/// Runs, and gives back the books and what was measured.
pub(crate) async fn run(settings: &ClusterSettings) -> anyhow::Result<(Arc<World>, Tally, Outages)> {
    let nodes = Nodes::start(&settings.nexo, &settings.home).await?;
    let world = World::of(nodes.doors(), settings.pace, settings.seed);
    let mut run = ClusterRun {
        world: Arc::clone(&world),
        nodes,
        tally: Tally::default(),
        outages: Outages::default(),
        chances: fastrand::Rng::with_seed(settings.seed ^ 0xF0_110E),
        kept: Kept::default(),
        term: None,
        unasked: 0,
        journal: File::create(settings.home.join("faults.log")).context("cannot make 'faults.log'")?,
        started: Instant::now(),
        told: Instant::now(),
        violations_told: 0,
    };
    run.until_in_step().await?;
    set_up(&world).await?;
    jobs::set_up(&world).await?;
    run.make_kept().await?;
    let mut tasks = clients::start(&world);
    jobs::start(&world, &mut tasks);
    run.wait(settings.every / 2).await?;
    for fault in plan(settings.seed).take(settings.faults) {
        let until = Instant::now() + settings.every;
        run.meet(fault, until).await?;
    }
    run.take_stock().await?;
    run.close(&mut tasks).await?;
    println!("leadership moved by itself {} times", run.unasked);
    Ok((world, run.tally, run.outages))
}

impl Host for ClusterRun {
    fn world(&self) -> &Arc<World> {
        &self.world
    }

    async fn wait(&mut self, span: Duration) -> anyhow::Result<()> {
        Self::wait(self, span).await
    }
}

impl ClusterRun {
    /// Lets time pass, tells how it goes, and sees whether all nodes are still there.
    pub(super) async fn wait(&mut self, span: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + span;
        loop {
            if self.told.elapsed() >= PROGRESS {
                self.told = Instant::now();
                self.tell();
            }
            for number in 0..NODES {
                let server = self.nodes.get(number);
                let Some(status) = server.has_ended() else { continue };
                let fact = format!(
                    "{} ended by itself with {status}; it said: {}",
                    name(number),
                    server.last_words()
                );
                server.ended().await?;
                self.nobody_knows();
                self.report(What::Broker, fact);
                self.start(number).await?;
                let (leader, term) = self.nodes.until_led(&all()).await?;
                self.known_again(leader, term);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            sleep(left.min(Duration::from_millis(200))).await;
        }
    }

    fn tell(&mut self) {
        let jobs = self.world.books(|books| *books.totals());
        let ledger = self.world.ledger();
        let totals = ledger.totals();
        for violation in ledger.violations().iter().skip(self.violations_told) {
            println!("{violation}");
        }
        self.violations_told = ledger.violations().len();
        println!(
            "{:>6.0} s  {} faults  {} published  {} confirmed  {} delivered  {} acked  {} outstanding  {} of {} waiters \
             answered  {} violations",
            self.started.elapsed().as_secs_f64(),
            self.outages.count(),
            totals.published,
            totals.confirmed,
            totals.delivered,
            totals.acked,
            ledger.outstanding(),
            jobs.answered,
            jobs.waiters,
            ledger.counts().values().sum::<u64>(),
        );
    }

    /// Writes down what is done to nodes, beside what they say about it.
    pub(super) fn note(&mut self, what: &str) {
        // A line that cannot be written is no reason to end.
        let _ = writeln!(self.journal, "{} {what}", clock::now());
    }

    /// What all nodes say of themselves.
    pub(super) async fn figures(&self) -> String {
        let mut said = Vec::new();
        for number in 0..NODES {
            said.push(format!("{}: {:?}", name(number), self.nodes.figures(number).await));
        }
        said.join(", ")
    }

    /// Everybody goes home, the nodes too, and what they said is read.
    async fn close(&mut self, clients: &mut JoinSet<()>) -> anyhow::Result<()> {
        self.world.enter(RunPhase::Over);
        let ended = timeout(STUCK, async { while clients.join_next().await.is_some() {} }).await;
        ended.context("clients do not end")?;
        for number in 0..NODES {
            let server = self.nodes.get(number);
            server.signal(rustix::process::Signal::TERM);
            let status = server.ended().await?;
            if !status.success() {
                self.report(What::Broker, format!("after SIGTERM {} ended with {status}", name(number)));
            }
        }
        self.tally.jobs = jobs::close(&self.world);
        let mut ledger = self.world.ledger();
        ledger.end_run();
        for line in self.nodes.iter().flat_map(crate::server::Server::complaints) {
            ledger.report(Violation::new(What::Broker, line));
        }
        Ok(())
    }
}
