//! A run from beginning to end: load and faults; `stock` has the quiet in which all is accounted for.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout};

use crate::clients;
use crate::clock;
use crate::damage;
use crate::disk::{Disk, Storm};
use crate::jobs;
use crate::ledger::{Violation, What};
use crate::plan::{DiskDamage, End, Fault, Meanwhile, Moment, Step, plan};
use crate::report::Tally;
use crate::server::Server;
use crate::setup::set_up;
use crate::stamp::Stamp;
use crate::world::{Order, RunPhase, World};

/// How often a run tells how it goes.
pub(crate) const PROGRESS: Duration = Duration::from_secs(5);
/// With nothing moving for this long, the broker is stuck.
pub(crate) const STUCK: Duration = Duration::from_secs(60);

/// How long a kill waits for its moment.
const MOMENT_MAX: Duration = Duration::from_secs(1);
/// The last sealed segments that are not damaged after a kill: more than are filled between two checkpoints.
const SEGMENTS_SPARED: usize = 4;

/// What to do.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) nexo: PathBuf,
    /// Everything goes here.
    pub(crate) home: PathBuf,
    pub(crate) seed: u64,
    pub(crate) span: Duration,
    pub(crate) kills: u32,
    pub(crate) disk_damage: DiskDamage,
}

/// A run under way.
pub(crate) struct Run {
    pub(crate) world: Arc<World>,
    pub(crate) server: Server,
    disk: Disk,
    pub(crate) tally: Tally,
    journal: File,
    started: Instant,
    told: Instant,
    /// Violations that were told already.
    violations_told: usize,
    /// Messages that the broker had counted as lost to damage when the books were last closed.
    pub(crate) damaged_before: u64,
}

/// Runs, and gives back the books.
pub(crate) async fn run(settings: &Settings) -> anyhow::Result<(Arc<World>, Tally)> {
    let disk = Disk::make(&settings.home)?;
    println!("data on {}", disk.describe());
    let log = settings.home.join("broker.log");
    let mut server = Server::new(&settings.nexo, &disk.data_dir(), &log)?;
    server.start().await?;
    let world = World::new(server.door(), settings.seed);
    set_up(&world).await?;
    jobs::set_up(&world).await?;
    let mut run = Run {
        world: Arc::clone(&world),
        server,
        disk,
        tally: Tally::default(),
        journal: File::create(settings.home.join("faults.log")).context("cannot make 'faults.log'")?,
        started: Instant::now(),
        told: Instant::now(),
        violations_told: 0,
        damaged_before: 0,
    };
    let mut tasks = clients::start(&world);
    jobs::start(&world, &mut tasks);
    for step in plan(settings.seed, settings.span, settings.kills, settings.disk_damage) {
        run.step(&step).await?;
    }
    let rest = settings.span.saturating_sub(run.started.elapsed());
    run.wait(rest).await?;
    run.take_stock().await?;
    run.close(&mut tasks).await?;
    if world.ledger().counts().is_empty() {
        return Ok((world, run.tally));
    }
    run.keep(settings)?;
    Ok((world, run.tally))
}

impl Run {
    async fn step(&mut self, step: &Step) -> anyhow::Result<()> {
        self.wait(step.pause).await?;
        self.note(&format!("{:?}", step.fault));
        match &step.fault {
            Fault::Kill { moment, again_after } => {
                let storm = self.until(*moment).await?;
                self.kill().await?;
                tokio::task::spawn_blocking(move || drop(storm)).await?;
                for span in again_after {
                    self.server.launch()?;
                    sleep(*span).await;
                    self.kill().await?;
                }
                self.start().await?;
            }
            Fault::Freeze(span) => {
                self.tally.freezes += 1;
                self.server.signal(Signal::STOP);
                sleep(*span).await;
                self.server.signal(Signal::CONT);
            }
            Fault::Stop => {
                self.stop().await?;
                self.start().await?;
            }
            Fault::Damage { end, chance } => {
                // Records count again after a kill, from the last checkpoint on: that is not what this is about.
                let spared = match end {
                    End::Kill => SEGMENTS_SPARED,
                    End::Stop => 0,
                };
                // What is consumed at once is in no sealed segment any more.
                let stall = end.backlog_grows();
                self.world.order(Order::Stall(clients::consumers(), stall));
                self.wait(stall).await?;
                match end {
                    End::Kill => self.kill().await?,
                    End::Stop => self.stop().await?,
                }
                let waits = |stamp: &Stamp| self.world.ledger().waits(stamp);
                if let Some(strike) = damage::strike(&self.disk.data_dir(), *chance, spared, waits)? {
                    self.tally.damages += 1;
                    self.tally.aimed_damages += u32::from(strike.aim.is_some());
                    self.world.ledger().struck(&strike.hit, strike.aim.as_ref());
                    self.note(&format!("{strike:?}"));
                }
                self.start().await?;
            }
            Fault::Cut(clients) => {
                self.tally.cuts += 1;
                self.world.order(Order::Cut(*clients));
            }
            Fault::Stall(clients, span) => {
                self.tally.stalls += 1;
                self.world.order(Order::Stall(*clients, *span));
            }
            Fault::TakeStock => {
                self.take_stock().await?;
                self.world.enter(RunPhase::Load);
            }
            Fault::FillDisk(span, meanwhile) => self.fill_disk(*span, *meanwhile).await?,
            Fault::SlowDisk(span, meanwhile) => {
                self.tally.slow_disks += 1;
                let storm = self.disk.disturb().context("cannot keep the disk busy")?;
                self.wait(*span / 2).await?;
                if *meanwhile == Meanwhile::Kill {
                    self.kill().await?;
                    self.start().await?;
                }
                self.wait(*span / 2).await?;
                tokio::task::spawn_blocking(move || drop(storm)).await?;
            }
        }
        Ok(())
    }

    async fn fill_disk(&mut self, span: Duration, meanwhile: Meanwhile) -> anyhow::Result<()> {
        let Some(filler) = self.disk.fill() else { return Ok(()) };
        let filler = filler.context("cannot fill the disk")?;
        self.tally.full_disks += 1;
        let end = Instant::now() + span;
        while Instant::now() < end {
            self.wait(Duration::from_millis(50)).await?;
            // What the broker gives back is taken as well, or it would never see a full disk.
            filler.top_up().context("cannot fill the disk")?;
        }
        let mut is_down = false;
        if meanwhile == Meanwhile::Kill {
            self.kill().await?;
            // It says so if there is not even room to begin.
            self.server.launch()?;
            is_down = self.server.ready().await.is_err();
            self.tally.refused_starts += u32::from(is_down);
        }
        drop(filler);
        if is_down {
            self.start().await?;
        }
        self.goes_on().await
    }

    /// Once there is room again, publishes must be confirmed again.
    async fn goes_on(&mut self) -> anyhow::Result<()> {
        let before = self.world.ledger().totals().confirmed;
        let begun = Instant::now();
        while self.world.ledger().totals().confirmed < before + 100 {
            if begun.elapsed() > STUCK {
                let fact = format!("nothing was confirmed for {STUCK:?} after the disk had room again");
                self.world.ledger().report(Violation::new(What::Stuck, fact));
                return Ok(());
            }
            self.wait(Duration::from_millis(50)).await?;
        }
        Ok(())
    }

    /// Waits for the moment of a kill, but not long: the broker may serve nobody just now. The disk is busy meanwhile, or the log
    /// is written before anybody has read an answer that did not wait for it.
    async fn until(&self, moment: Moment) -> anyhow::Result<Option<Storm>> {
        let yard = &self.world.yard;
        let moments = match moment {
            Moment::Any => return Ok(None),
            Moment::HandedOut => &yard.handed_out,
            Moment::Settled => &yard.settled,
        };
        let storm = self.disk.disturb().context("cannot keep the disk busy")?;
        sleep(Moment::DISK_BUSY).await;
        let _ = timeout(MOMENT_MAX, moments.notified()).await;
        Ok(Some(storm))
    }

    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        self.tally.kills += 1;
        self.note("kill");
        self.world.ledger().end_life();
        self.server.signal(Signal::KILL);
        self.server.ended().await.map(drop)
    }

    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        self.tally.stops += 1;
        self.note("stop");
        self.world.ledger().end_life();
        self.server.signal(Signal::TERM);
        let status = self.server.ended().await?;
        let mut ledger = self.world.ledger();
        if status.success() {
            ledger.ended_cleanly();
        } else {
            let fact = format!("after SIGTERM the broker ended with {status}");
            ledger.report(Violation::new(What::Broker, fact));
        }
        Ok(())
    }

    pub(crate) async fn start(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.server.start().await?;
        self.note("ready");
        self.tally.slowest_start = self.tally.slowest_start.max(begun.elapsed());
        Ok(())
    }

    /// Lets time pass, tells how it goes, and sees whether the broker is still there.
    pub(crate) async fn wait(&mut self, span: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + span;
        loop {
            if self.told.elapsed() >= PROGRESS {
                self.told = Instant::now();
                self.tell();
            }
            if let Some(status) = self.server.has_ended() {
                self.report_end(status);
                self.start().await?;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            sleep(left.min(Duration::from_millis(200))).await;
        }
    }

    /// The broker has ended although nobody asked it to.
    fn report_end(&self, status: ExitStatus) {
        let fact = format!("the broker ended by itself with {status}; it said: {}", self.server.last_words());
        let mut ledger = self.world.ledger();
        ledger.end_life();
        ledger.report(Violation::new(What::Broker, fact));
    }

    fn tell(&mut self) {
        let jobs = self.world.books(|books| *books.totals());
        let ledger = self.world.ledger();
        let totals = ledger.totals();
        // A long run need not end before somebody looks into it.
        for violation in ledger.violations().iter().skip(self.violations_told) {
            println!("{violation}");
        }
        self.violations_told = ledger.violations().len();
        println!(
            "{:>6.0} s  {} kills  {} published  {} confirmed  {} delivered  {} acked  {} outstanding  \
             {} jobs  {} of {} waiters answered  {} workers died  {} violations",
            self.started.elapsed().as_secs_f64(),
            self.tally.kills,
            totals.published,
            totals.confirmed,
            totals.delivered,
            totals.acked,
            ledger.outstanding(),
            jobs.jobs,
            jobs.answered,
            jobs.waiters,
            jobs.deaths,
            ledger.counts().values().sum::<u64>(),
        );
    }

    /// Writes down what is done to the broker, beside what it says about it.
    fn note(&mut self, what: &str) {
        // A line that cannot be written is no reason to end.
        let _ = writeln!(self.journal, "{} {what}", clock::now());
    }

    /// Keeps what may help to understand a failure.
    fn keep(&self, settings: &Settings) -> anyhow::Result<()> {
        let (from, to) = (self.disk.data_dir(), settings.home.join("data"));
        let status = std::process::Command::new("cp").arg("-a").arg(&from).arg(&to).status();
        status.context("cannot copy the data")?;
        println!("the data is kept in '{}', with broker.log and faults.log beside it", to.display());
        Ok(())
    }
}
