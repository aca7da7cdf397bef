//! What is done to the broker, in words; how it is done is in `tools/bench/src/abuse`.

use std::time::Duration;

/// One line of the table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Scenario {
    /// As `nexo bench abuse` calls it.
    pub(super) name: &'static str,
    pub(super) work: &'static str,
    pub(super) goal: &'static str,
    /// How long it may take on a machine that is not idle.
    pub(super) limit: Duration,
}

const fn scenario(name: &'static str, work: &'static str, goal: &'static str, seconds: u64) -> Scenario {
    Scenario { name, work, goal, limit: Duration::from_secs(seconds) }
}

const HEALTHY: &str = "healthy, descriptors bounded";
const QUIET: &str = "next to nothing written when idle";
const MEMORY: &str = "memory within its bound";
const PROBE: &str = "probe's p99 under 50 ms";

/// Every line.
pub(super) const SCENARIOS: &[Scenario] = &[
    scenario("idle", "nothing, to compare with", "–", 60),
    scenario(
        "silent",
        "1,100 silent connections to the management port, 96 MiB published meanwhile",
        HEALTHY,
        180,
    ),
    scenario("backlog", "a backlog of 4 GiB in messages of 16 KiB", HEALTHY, 300),
    scenario("dedup", "1.5 million deduplication ids in a queue", QUIET, 400),
    scenario("delayed", "4 million delayed messages in a queue", QUIET, 600),
    scenario(
        "subscriber",
        "a native subscriber with a credit of 1 million that does not read, 2 GB for it",
        MEMORY,
        240,
    ),
    scenario("bodies", "20 unfinished bodies of 60 MiB on one AMQP connection", MEMORY, 180),
    scenario("transactions", "eight open transactions of 200 MiB", MEMORY, 240),
    scenario("sqs-bodies", "eight unfinished requests of 200 MiB to the SQS API", MEMORY, 240),
    scenario("fanout-large", "a message of 16 MiB to 300 queues, three times", PROBE, 300),
    scenario("fanout-many", "a message of 100 bytes to 50,000 queues, ten times", PROBE, 400),
    scenario("requeue", "5 million unacknowledged messages come back at once", PROBE, 400),
    scenario("headers", "messages with 17,000 headers for 3,000 bindings", PROBE, 240),
    scenario("flood", "four publishers of transient messages of 10 KB, 8 GB", PROBE, 300),
    scenario("half", "transient messages of 16 bytes at half of Nexo's own maximum", "–", 120),
    scenario(
        "priorities",
        "1 million messages with 256 priorities, filled and drained ten times",
        "every run alike",
        600,
    ),
];

/// The scenarios of these names, in their order in the table; all if none is named. The error is a name that is none.
pub(super) fn chosen<'a>(only: &[&'a str]) -> Result<Vec<&'static Scenario>, &'a str> {
    if let Some(unknown) = only.iter().find(|name| SCENARIOS.iter().all(|known| known.name != **name)) {
        return Err(unknown);
    }
    Ok(SCENARIOS.iter().filter(|known| only.is_empty() || only.contains(&known.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_is_chosen() {
        assert_eq!(chosen(&[]).unwrap().len(), SCENARIOS.len());
        let names: Vec<&str> = chosen(&["flood", "idle"]).unwrap().iter().map(|known| known.name).collect();
        assert_eq!(names, ["idle", "flood"]);
        assert_eq!(chosen(&["flood", "drought"]), Err("drought"));
    }
}
