//! How many messages a second get from publishers through queues to consumers.

mod load;
mod options;
mod plan;
mod report;

use anyhow::Context;

pub use load::Sample;
pub use options::ThroughputOptions;
pub use report::Throughput;

use crate::amqp::{QueueArgument, Topology};
use crate::options::Target;
use crate::progress::Progress;
use load::Load;
use plan::Plan;

/// Runs a load.
///
/// # Errors
/// If the broker cannot be reached, refuses what it is asked, or hangs.
pub fn run(options: &ThroughputOptions, watch: &mut dyn FnMut(&Progress)) -> anyhow::Result<Throughput> {
    let Target::Amqp(url) = &options.load.url;
    let plan = Plan::new(options);
    let mut settings = options.load.settings();
    if let Some(priorities) = options.priorities {
        // RabbitMQ takes at most 255, which with 0 makes 256 priorities.
        settings
            .arguments
            .push(QueueArgument::new("x-max-priority", priorities.saturating_sub(1).max(1).to_string()));
    }
    let mut topology = Topology::declare(url, plan.queues.clone(), &settings)?;
    if let Some(exchange) = &plan.exchange {
        topology.exchange(exchange, "fanout")?;
    }
    let outcome = Load::start(url, &plan, options).and_then(|load| load.measure(options, &plan, watch));
    let deleted = topology.delete().context("cannot delete what was declared for the load");
    let found = outcome?;
    deleted?;
    Ok(found)
}
