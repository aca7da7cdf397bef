//! Breaks a running Nexo in every way it can, and accounts for every message afterwards: `cargo xtask torture`.
//!
//! | to see | read |
//! |---|---|
//! | which promises are checked, and why that is fair | `ledger` |
//! | what is done to the broker | `plan`, `run`, `disk`, `damage` |
//! | when all is accounted for | `stock` |
//! | who publishes and consumes | `clients`, `workload`, `amqp`, `native`, `sqs`, `priorities`, `places` |
//! | job queues, their clients and workers | `jobs` |
//! | the queues | `queues`, `setup` |

mod amqp;
mod clients;
mod clock;
mod damage;
mod disk;
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

use plan::DiskDamage;
use run::Settings;

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
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    let kills = args.kills.unwrap_or_else(|| u32::try_from(args.seconds / 12).unwrap_or(u32::MAX).max(6));
    println!("seed {seed}: {} seconds, {kills} kills", args.seconds);
    // What an earlier run left.
    if args.home.exists() {
        disk::Disk::release(&args.home);
        std::fs::remove_dir_all(&args.home)
            .with_context(|| format!("cannot remove '{}'", args.home.display()))?;
    }
    std::fs::create_dir_all(&args.home).with_context(|| format!("cannot make '{}'", args.home.display()))?;
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
