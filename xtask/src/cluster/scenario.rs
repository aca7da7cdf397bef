//! The work that clusters are compared at, and what Nexo is to reach.

use super::contender::Way;
use crate::spread::Unit;

/// One line of a table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Scenario {
    /// What is done, in words.
    pub(super) work: &'static str,
    /// The load: arguments of `nexo bench`.
    pub(super) args: &'static [&'static str],
    /// Where the figure is in the report, as a JSON pointer.
    pub(super) figure: &'static str,
    pub(super) unit: Unit,
    /// What Nexo is to reach, in words.
    pub(super) goal: &'static str,
}

impl Scenario {
    pub(super) fn is_for(&self, way: Way) -> bool {
        match (self.args.first(), way) {
            // The publisher is never connected to the leader there.
            (Some(&"failover"), Way::Follower) => false,
            (Some(&"latency"), Way::Nats) => false,
            _ => true,
        }
    }
}

const CONSUMED: &str = "/consumed_per_second";
const CONFIRMED: &str = "/confirmed_per_second";

/// Every line of three nodes. The last one kills a node.
pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        work: "16 B, 1 publisher, 1 consumer, up to 1000 unconfirmed, ack 100",
        args: &["throughput", "--persistent", "--confirm", "1000", "--ack", "100"],
        figure: CONSUMED,
        unit: Unit::PerSecond,
        goal: "8 × RabbitMQ",
    },
    Scenario {
        work: "1 KiB, same",
        args: &["throughput", "--size", "1024", "--persistent", "--confirm", "1000", "--ack", "100"],
        figure: CONSUMED,
        unit: Unit::PerSecond,
        goal: "8 × RabbitMQ",
    },
    Scenario {
        work: "16 B, 4 publishers, 4 consumers, one queue",
        args: &[
            "throughput",
            "--publishers",
            "4",
            "--consumers",
            "4",
            "--persistent",
            "--confirm",
            "1000",
            "--ack",
            "100",
        ],
        figure: CONSUMED,
        unit: Unit::PerSecond,
        goal: "8 × RabbitMQ",
    },
    Scenario {
        work: "16 B, 4 publishers, 4 consumers, four queues",
        args: &[
            "throughput",
            "--publishers",
            "4",
            "--consumers",
            "4",
            "--queues",
            "4",
            "--persistent",
            "--confirm",
            "1000",
            "--ack",
            "100",
        ],
        figure: CONSUMED,
        unit: Unit::PerSecond,
        goal: "8 × RabbitMQ",
    },
    Scenario {
        work: "16 B, 100 publishers with one message unconfirmed each",
        args: &["throughput", "--publishers", "100", "--persistent", "--confirm", "1", "--ack", "100"],
        figure: CONFIRMED,
        unit: Unit::PerSecond,
        goal: "–",
    },
    Scenario {
        work: "1 publisher, one message at a time: time to confirm, median",
        args: &["throughput", "--persistent", "--confirm", "1", "--ack", "100"],
        figure: "/confirm_time/p50_us",
        unit: Unit::Micros,
        goal: "–",
    },
    Scenario {
        work: "latency publish → deliver at 2,000/s, p99",
        args: &["latency", "--rate", "2000", "--persistent"],
        figure: "/deliver_time/p99_us",
        unit: Unit::Micros,
        goal: "a third of RabbitMQ's",
    },
    Scenario {
        work: "the leader is killed: longest time without a confirm",
        args: &["failover"],
        figure: "/longest_gap_us",
        unit: Unit::Micros,
        goal: "2 s",
    },
];

/// Every line of a single node.
pub(super) const SINGLE: &[Scenario] = &[
    Scenario { goal: WITHIN, ..copy(&SCENARIOS[0]) },
    Scenario { goal: WITHIN, ..copy(&SCENARIOS[1]) },
    Scenario { goal: WITHIN, ..copy(&SCENARIOS[3]) },
    Scenario { goal: WITHIN, ..copy(&SCENARIOS[4]) },
    Scenario { goal: WITHIN, ..copy(&SCENARIOS[5]) },
    Scenario {
        work: "latency publish → deliver at 2,000/s, transient, p99",
        args: &["latency", "--rate", "2000"],
        figure: "/deliver_time/p99_us",
        unit: Unit::Micros,
        goal: WITHIN,
    },
    Scenario {
        work: "latency publish → deliver at 2,000/s, persistent, p99",
        args: &["latency", "--rate", "2000", "--persistent"],
        figure: "/deliver_time/p99_us",
        unit: Unit::Micros,
        goal: WITHIN,
    },
];

const WITHIN: &str = "within 5 %";

const fn copy(of: &Scenario) -> Scenario {
    Scenario { work: of.work, args: of.args, figure: of.figure, unit: of.unit, goal: of.goal }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kills_a_node_comes_last() {
        let at = SCENARIOS.iter().position(|scenario| scenario.args == ["failover"]);
        assert_eq!(at, Some(SCENARIOS.len() - 1));
    }
}
