//! The work that is compared, and what Nexo is to reach at it.

use super::contender::Contender;
use crate::spread::Unit;

/// One line of the table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Scenario {
    /// What is done, in words.
    pub(super) work: &'static str,
    /// The load: arguments of `nexo bench`. `RATE` stands for half the maximum of somebody.
    pub(super) args: &'static [&'static str],
    /// Where the figure is in the report, as a JSON pointer.
    pub(super) figure: &'static str,
    pub(super) unit: Unit,
    /// What Nexo is to reach, in words.
    pub(super) goal: &'static str,
    pub(super) entrants: Entrants,
    /// Whose maximum the rate is half of.
    pub(super) half_of: Option<Contender>,
}

/// Who takes part in a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entrants {
    /// Whoever can keep messages in memory only.
    Transient,
    /// Everybody.
    Everybody,
    /// Brokers that speak AMQP.
    Amqp,
    /// Nexo alone: it is measured against itself.
    Nexo,
}

impl Scenario {
    pub(super) fn is_for(&self, contender: Contender) -> bool {
        match self.entrants {
            Entrants::Everybody => true,
            Entrants::Amqp => contender != Contender::Nats,
            Entrants::Transient => matches!(contender, Contender::Nexo | Contender::RabbitClassic),
            Entrants::Nexo => contender == Contender::Nexo,
        }
    }
}

/// The line of a queue without priorities.
pub(super) const PLAIN_BACKLOG: &str = "1 million waiting, plain: drained";
/// The line of one with all of them.
pub(super) const MIXED_BACKLOG: &str = "1 million waiting, priorities 0-255 all used: drained";

/// Messages that are published, acknowledged and confirmed with care.
const SAFE: &[&str] =
    &["throughput", "--persistent", "--confirm", "1000", "--ack", "100", "--prefetch", "1000"];

/// Every line.
pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        work: "16-byte transient, 1 publisher, 1 consumer, auto-ack",
        args: &["throughput"],
        figure: "/consumed_per_second",
        unit: Unit::PerSecond,
        goal: "2,000,000 msg/s and 15 × RabbitMQ",
        entrants: Entrants::Transient,
        half_of: None,
    },
    Scenario {
        work: "same, manual ack (every 100), prefetch 1000",
        args: &["throughput", "--ack", "100", "--prefetch", "1000"],
        figure: "/consumed_per_second",
        unit: Unit::PerSecond,
        goal: "1,200,000 msg/s",
        entrants: Entrants::Transient,
        half_of: None,
    },
    Scenario {
        work: "16-byte persistent, up to 1000 unconfirmed, manual ack",
        args: SAFE,
        figure: "/consumed_per_second",
        unit: Unit::PerSecond,
        goal: "600,000 msg/s",
        entrants: Entrants::Everybody,
        half_of: None,
    },
    Scenario {
        work: "1 KiB persistent, same",
        args: &["throughput", "--size", "1024", "--persistent", "--confirm", "1000", "--ack", "100"],
        figure: "/consumed_per_second",
        unit: Unit::PerSecond,
        goal: "200,000 msg/s and 5 × RabbitMQ quorum",
        entrants: Entrants::Everybody,
        half_of: None,
    },
    Scenario {
        work: "100 publishers with one message unconfirmed each, persistent",
        args: &["throughput", "--publishers", "100", "--persistent", "--confirm", "1", "--ack", "100"],
        figure: "/confirmed_per_second",
        unit: Unit::PerSecond,
        goal: "25,000 msg/s",
        entrants: Entrants::Everybody,
        half_of: None,
    },
    Scenario {
        work: "1 publisher with one unconfirmed, persistent: time to confirm, median",
        args: &["throughput", "--persistent", "--confirm", "1", "--ack", "100"],
        figure: "/confirm_time/p50_us",
        unit: Unit::Micros,
        goal: "within 1.5 × of the disk's own fdatasync",
        entrants: Entrants::Everybody,
        half_of: None,
    },
    Scenario {
        work: "latency publish → deliver at 2,000/s, p99",
        args: &["latency", "--rate", "2000"],
        figure: "/deliver_time/p99_us",
        unit: Unit::Micros,
        goal: "below RabbitMQ's, and below 0.2 ms",
        entrants: Entrants::Amqp,
        half_of: None,
    },
    Scenario {
        work: "latency at half of RabbitMQ's maximum, p99",
        args: &["latency", "--rate", "RATE"],
        figure: "/deliver_time/p99_us",
        unit: Unit::Micros,
        goal: "below RabbitMQ's",
        entrants: Entrants::Transient,
        half_of: Some(Contender::RabbitClassic),
    },
    Scenario {
        work: "latency at half of Nexo's own maximum, p99",
        args: &["latency", "--rate", "RATE"],
        figure: "/deliver_time/p99_us",
        unit: Unit::Micros,
        goal: "–",
        entrants: Entrants::Nexo,
        half_of: Some(Contender::Nexo),
    },
    Scenario {
        work: PLAIN_BACKLOG,
        args: &[
            "backlog",
            "--count",
            "1000000",
            "--persistent",
            "--confirm",
            "1000",
            "--ack",
            "100",
            "--short",
            "0s",
        ],
        figure: "/drained_per_second",
        unit: Unit::PerSecond,
        goal: "–",
        entrants: Entrants::Nexo,
        half_of: None,
    },
    Scenario {
        work: MIXED_BACKLOG,
        args: &[
            "backlog",
            "--count",
            "1000000",
            "--persistent",
            "--confirm",
            "1000",
            "--ack",
            "100",
            "--short",
            "0s",
            "--priorities",
            "256",
        ],
        figure: "/drained_per_second",
        unit: Unit::PerSecond,
        goal: "within 1.5 × of the plain queue's",
        entrants: Entrants::Nexo,
        half_of: None,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_has_somebody_to_be_half_of() {
        for scenario in SCENARIOS {
            assert_eq!(scenario.args.contains(&"RATE"), scenario.half_of.is_some(), "{}", scenario.work);
            assert!(scenario.is_for(Contender::Nexo), "{}", scenario.work);
        }
    }
}
