//! How many messages a second get from publishers through queues to consumers.

mod load;
mod options;
mod plan;
mod report;

use anyhow::{Context, ensure};

pub use load::Sample;
pub use options::ThroughputOptions;
pub use report::Throughput;

use crate::options::Target;
use crate::progress::Watch;
use load::Load;
use plan::Plan;

/// Runs a load.
///
/// # Errors
/// If the broker cannot be reached, refuses what it is asked, or hangs.
pub fn run(options: &ThroughputOptions, watch: Watch<'_>) -> anyhow::Result<Throughput> {
    ensure!(
        options.load.consumer_pause.is_zero() || matches!(options.load.url, Target::Amqp(_)),
        "--consumer-pause needs AMQP"
    );
    let protocol = options.load.url.protocol();
    let plan = Plan::new(options);
    let declared = protocol.declare(&plan.queues, plan.exchange.as_deref(), &options.load.settings())?;
    let outcome = Load::start(protocol, &plan, options).and_then(|load| load.measure(options, &plan, watch));
    let deleted = declared.delete().context("cannot delete what was declared for the load");
    let found = outcome?;
    deleted?;
    Ok(found)
}
