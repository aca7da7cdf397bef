//! `nexo-bench`: starts the real binary, measures it and writes down what it found. Nothing here passes or fails: a figure is printed
//! beside its goal, with the settings and the machine, and people judge.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use nexo_bench::engine;

/// Measure Nexo.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Delays, idle queues, purging and restarting, over the native API
    Engine {
        /// The binary to measure
        #[arg(long, value_name = "FILE")]
        nexo: PathBuf,
        /// Where the data goes while measuring; a folder on the disk in question
        #[arg(long, value_name = "DIR")]
        data_dir: PathBuf,
        /// The page whose section on the engine is replaced by what was measured
        #[arg(long, value_name = "FILE")]
        page: Option<PathBuf>,
        /// Divide all counts by this, for a quick look
        #[arg(long, value_name = "N", default_value_t = 1)]
        divide: u64,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Args::parse().what {
        What::Engine { nexo, data_dir, page, divide } => {
            let report = engine::run(&nexo, &data_dir, divide.max(1)).await?;
            println!("{}", report.text());
            if let Some(page) = page {
                report.write_into(&page, "engine")?;
            }
            Ok(())
        }
    }
}
