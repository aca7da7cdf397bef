//! AMQP at size, as a program that can be repeated: `cargo xtask conformance scale`.
//!
//! It drives a broker over plain sockets, checks what must hold whatever the machine, and prints what was measured.
//! `broker` is what is tried; each other file is one trial.

mod bindings;
mod broker;
mod connections;
mod queues;
mod report;
mod silence;

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, ValueEnum};

use broker::Broker;
use report::Report;

/// What to try, and on which broker.
#[derive(Debug, Parser)]
struct Args {
    /// Where the broker listens for AMQP; the user guest must be allowed everything.
    #[arg(long, value_name = "HOST:PORT")]
    amqp: SocketAddr,
    /// The broker's process, whose memory is watched.
    #[arg(long)]
    pid: u32,
    /// What the broker may keep of messages in memory, in bytes.
    #[arg(long, default_value_t = 256 << 20)]
    memory_bytes_max: u64,
    /// A small load, to see that all of it works.
    #[arg(long)]
    short: bool,
    /// This trial alone.
    #[arg(long, value_enum)]
    trial: Option<Trial>,
}

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Trial {
    Connections,
    Queues,
    Bindings,
    Silence,
}

/// How much of the load is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Full,
    Short,
}

impl Size {
    /// One of two values.
    fn of<T>(self, full: T, short: T) -> T {
        match self {
            Self::Full => full,
            Self::Short => short,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scale: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> anyhow::Result<()> {
    let size = if args.short { Size::Short } else { Size::Full };
    let broker = Broker { address: args.amqp, pid: args.pid, memory_bytes_max: args.memory_bytes_max };
    let mut report = Report::default();
    for trial in Trial::value_variants().iter().filter(|trial| args.trial.is_none_or(|one| one == **trial)) {
        let tried = match trial {
            Trial::Connections => connections::run(&broker, size, &mut report).await,
            Trial::Queues => queues::run(&broker, size, &mut report).await,
            Trial::Bindings => bindings::run(&broker, size, &mut report).await,
            Trial::Silence => silence::run(&broker, size, &mut report).await,
        };
        tried.with_context(|| format!("{trial:?}"))?;
    }
    println!("\n{}", report.text());
    Ok(())
}
