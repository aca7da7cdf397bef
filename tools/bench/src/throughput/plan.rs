//! Who publishes and consumes where.

use super::options::ThroughputOptions;
use crate::work::{MessageShape, Wants};

/// Who publishes and consumes where.
pub(super) struct Plan {
    pub(super) queues: Vec<String>,
    pub(super) exchange: Option<String>,
    pub(super) publishers: Vec<MessageShape>,
    pub(super) consumers: Vec<Wants>,
    /// How often each message is delivered.
    pub(super) copies: u64,
}

impl Plan {
    pub(super) fn new(options: &ThroughputOptions) -> Self {
        // Short, because the name travels with every message, and of one length for all.
        let run = std::process::id();
        let count = if options.fan_out { options.consumers.max(1) } else { options.queues };
        let queues: Vec<String> = (0..count).map(|n| format!("b{run}-{n:05}")).collect();
        let exchange = options.fan_out.then(|| format!("b{run}"));
        let publishers = (0..options.publishers).map(|n| {
            // Behind a fanout exchange the key means nothing.
            let keys = if options.fan_out { vec!["x".into()] } else { share(&queues, n, options.publishers) };
            options.load.shape_for(exchange.clone().unwrap_or_default(), keys)
        });
        let wants = |n| options.load.wants(share(&queues, n, options.consumers));
        Self {
            publishers: publishers.collect(),
            consumers: (0..options.consumers).map(wants).collect(),
            copies: if options.fan_out { u64::from(options.consumers) } else { 1 },
            queues,
            exchange,
        }
    }
}

/// The part of one among several: every queue has somebody, and everybody has a queue.
fn share(queues: &[String], index: u16, among: u16) -> Vec<String> {
    let (index, among) = (usize::from(index), usize::from(among));
    if queues.len() <= among {
        vec![queues[index % queues.len()].clone()]
    } else {
        queues.iter().skip(index).step_by(among).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(count: usize) -> Vec<String> {
        (0..count).map(|n| n.to_string()).collect()
    }

    #[test]
    fn every_queue_has_somebody_and_everybody_a_queue() {
        for (count, among) in [(1, 1), (1, 3), (3, 1), (3, 3), (2, 5), (10, 3)] {
            let shares: Vec<Vec<String>> = (0..among).map(|n| share(&queues(count), n, among)).collect();
            assert!(shares.iter().all(|share| !share.is_empty()), "{count} queues among {among}");
            let mut covered: Vec<String> = shares.concat();
            covered.sort();
            covered.dedup();
            assert_eq!(covered.len(), count, "{count} queues among {among}");
        }
    }
}
