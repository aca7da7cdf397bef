//! Breaks a running Nexo in every way it can, and accounts for every message afterwards: `cargo xtask torture`.
//!
//! | to see | read |
//! |---|---|
//! | which promises are checked, and why that is fair | `ledger` |
//! | what is done to the broker | `plan`, `run`, `disk`, `damage` |
//! | when all is accounted for | `stock` |
//! | who publishes and consumes | `clients`, `workload`, `amqp`, `native`, `sqs`, `priorities`, `places` |
//! | job queues, their clients and workers | `jobs` |
//! | three nodes of a cluster instead of one broker | `cluster` |
//! | the queues | `queues`, `setup` |

mod amqp;
mod clients;
mod clock;
mod cluster;
mod damage;
mod disk;
mod doors;
mod jobs;
mod ledger;
mod link;
mod native;
mod places;
mod plan;
mod priorities;
mod queues;
mod report;
mod run;
mod server;
mod setup;
mod sqs;
mod stamp;
mod stats;
mod stock;
mod way;
mod workload;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;

use cluster::ClusterSettings;
use plan::DiskDamage;
use run::Settings;

/// What is promised of a cluster: service is back so soon after 99 of 100 faults.
const OUTAGE_P99_MAX: Duration = Duration::from_secs(2);
/// And after any.
const OUTAGE_MAX: Duration = Duration::from_secs(5);

/// What can be typed.
#[derive(Debug, Parser)]
struct Args {
    /// The program under test
    #[arg(long, value_name = "FILE")]
    nexo: PathBuf,
    /// Where data and logs go; what is there is removed
    #[arg(long, value_name = "DIR")]
    home: PathBuf,
    /// How long the load lasts
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The plan of faults and the choices of clients follow from it [default: any]
    #[arg(long)]
    seed: Option<u64>,
    /// How often the broker is killed, about [default: every 12 seconds]
    #[arg(long)]
    kills: Option<u32>,
    /// Also damages bytes of sealed segments while the broker is down: what is lost then, it must count
    #[arg(long)]
    damage: bool,
    /// Three nodes instead of one broker: the leader is killed, frozen, stopped and cut off, and a follower is killed every fifth time
    #[arg(long, conflicts_with_all = ["kills", "damage"])]
    cluster: bool,
    /// Seconds from one fault to the next, in a cluster
    #[arg(long, requires = "cluster", default_value_t = 10)]
    every: u64,
    /// Fails as well if service was away for more than 2 s after one fault in a hundred, or for more than 5 s after any
    #[arg(long, requires = "cluster")]
    judge_outages: bool,
    /// The load of a cluster, in percent of what a single broker gets
    #[arg(long, requires = "cluster", default_value_t = 25)]
    load: u32,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    // What an earlier run left.
    if args.home.exists() {
        disk::Disk::release(&args.home);
        std::fs::remove_dir_all(&args.home)
            .with_context(|| format!("cannot remove '{}'", args.home.display()))?;
    }
    std::fs::create_dir_all(&args.home).with_context(|| format!("cannot make '{}'", args.home.display()))?;
    if args.cluster { torture_cluster(args, seed) } else { torture_broker(args, seed) }
}

fn torture_broker(args: Args, seed: u64) -> anyhow::Result<ExitCode> {
    let kills = args.kills.unwrap_or_else(|| u32::try_from(args.seconds / 12).unwrap_or(u32::MAX).max(6));
    println!("seed {seed}: {} seconds, {kills} kills", args.seconds);
    let disk_damage = if args.damage { DiskDamage::Some } else { DiskDamage::Never };
    let settings = Settings {
        nexo: args.nexo,
        home: args.home,
        seed,
        span: Duration::from_secs(args.seconds),
        kills,
        disk_damage,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (world, tally) = runtime.block_on(async {
        tokio::select! {
            outcome = run::run(&settings) => outcome,
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
        }
    })?;
    let ledger = world.ledger();
    report::print(&ledger, &tally, seed);
    Ok(if ledger.counts().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn torture_cluster(args: Args, seed: u64) -> anyhow::Result<ExitCode> {
    let every = Duration::from_secs(args.every.max(1));
    // Taking stock comes after that.
    let faults = usize::try_from(args.seconds / args.every.max(1))?.max(1);
    println!("seed {seed}: three nodes, {faults} faults, one every {} seconds", every.as_secs());
    let logs = args.home.clone();
    let judges = args.judge_outages;
    let settings = ClusterSettings {
        nexo: args.nexo,
        home: args.home,
        seed,
        faults,
        every,
        pace: f64::from(args.load.max(1)) / 100.0,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        tokio::select! {
            outcome = cluster::run(&settings) => outcome,
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
        }
    });
    let kept = format!("n1.log to n3.log, faults.log and the data of the nodes are in '{}'", logs.display());
    let (world, tally, outages) = outcome.with_context(|| format!("seed {seed}; {kept}"))?;
    let ledger = world.ledger();
    report::print(&ledger, &tally, seed);
    println!("\n{outages}");
    let was_back_in_time = !judges || outages.are_within(OUTAGE_P99_MAX, OUTAGE_MAX);
    if ledger.counts().is_empty() && was_back_in_time {
        return Ok(ExitCode::SUCCESS);
    }
    if !was_back_in_time {
        println!("FAIL: service was away for too long");
    }
    println!("{kept}");
    Ok(ExitCode::FAILURE)
}
