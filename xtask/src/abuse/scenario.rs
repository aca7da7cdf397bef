//! What is done to the broker, in words; how it is done is in `tools/bench/src/abuse`.

use std::time::Duration;

use super::goal::{
    ALIKE, AS_ONE, BACK, BLOCKED, COME, DESCRIPTORS, DESCRIPTORS_MEANWHILE, ENDED, EVEN, GIVEN_BACK, Goal,
    HEALTHY, HEALTHY_MEANWHILE, HELD, HELD_IDLE, IDLE, KEPT, MEMORY, NEAR_WATERMARK, NEWCOMER, ON_ITS_WAY,
    PROBE, PUSH, QUIET, REFUSED, TAKEN, UNBLOCKED, UNSLOWED,
};

/// One line of the table.
#[derive(Debug, PartialEq)]
pub(super) struct Scenario {
    /// As `nexo bench abuse` calls it.
    pub(super) name: &'static str,
    pub(super) work: &'static str,
    /// What it must reach.
    pub(super) goals: &'static [Goal],
    /// How long it may take on a machine that is not idle.
    pub(super) limit: Duration,
    /// What the broker is started with besides.
    pub(super) serve: &'static [&'static str],
}

const fn scenario(name: &'static str, work: &'static str, goals: &'static [Goal], seconds: u64) -> Scenario {
    Scenario { name, work, goals, limit: Duration::from_secs(seconds), serve: &[] }
}

/// What a port must bear of strangers: newcomers come in, the strangers go.
const STRANGERS: &[Goal] = &[NEWCOMER, ENDED, HEALTHY, PROBE, MEMORY];

impl Scenario {
    const fn with(self, serve: &'static [&'static str]) -> Self {
        Self { serve, ..self }
    }

    /// Whether this is the scenario of that name, or one of several whose names begin with it, as `flow` is.
    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'))
    }
}

/// Every line.
pub(super) const SCENARIOS: &[Scenario] = &[
    scenario("idle", "nothing, to compare with", &[HEALTHY, PROBE, MEMORY], 60),
    scenario(
        "silent",
        "1,100 silent connections to the management port, 96 MiB published meanwhile",
        &[HEALTHY_MEANWHILE, HEALTHY, DESCRIPTORS_MEANWHILE, DESCRIPTORS, PROBE, MEMORY],
        180,
    ),
    scenario(
        "backlog",
        "a backlog of 4 GiB in messages of 16 KiB",
        &[HEALTHY, DESCRIPTORS, PROBE, MEMORY],
        300,
    ),
    scenario(
        "dedup",
        "1.5 million deduplication ids in a queue",
        &[QUIET, IDLE, PUSH, HEALTHY, PROBE, MEMORY],
        400,
    ),
    scenario(
        "delayed",
        "4 million delayed messages in a queue",
        &[QUIET, IDLE, PUSH, HEALTHY, PROBE, MEMORY],
        600,
    ),
    scenario(
        "delayed-together",
        "1 million delayed messages that come due within a second, and a consumer",
        &[COME, HEALTHY, PROBE, MEMORY],
        300,
    ),
    scenario(
        "subscriber",
        "a native subscriber with a credit of 1 million that does not read, 2 GB for it",
        &[ON_ITS_WAY, KEPT, HEALTHY, PROBE, MEMORY],
        240,
    ),
    scenario(
        "bodies",
        "20 unfinished bodies of 60 MiB on one AMQP connection",
        &[TAKEN, HEALTHY, PROBE, MEMORY],
        180,
    ),
    scenario("transactions", "eight open transactions of 200 MiB", &[TAKEN, HEALTHY, PROBE, MEMORY], 240),
    scenario(
        "sqs-bodies",
        "eight unfinished requests of 200 MiB and 200 of 7 MiB to the SQS API",
        &[REFUSED, TAKEN, HEALTHY, PROBE, MEMORY],
        300,
    ),
    scenario(
        "fanout-large",
        "a message of 16 MiB to 300 queues, three times",
        &[HEALTHY, PROBE, MEMORY],
        300,
    ),
    scenario(
        "fanout-many",
        "a message of 100 bytes to 50,000 queues, ten times",
        &[HEALTHY, PROBE, MEMORY],
        400,
    ),
    scenario(
        "requeue",
        "5 million unacknowledged messages come back at once",
        &[HELD, BACK, HEALTHY, PROBE, MEMORY],
        400,
    ),
    scenario("headers", "messages with 17,000 headers for 3,000 bindings", &[HEALTHY, PROBE, MEMORY], 240),
    scenario("flood", "four publishers of transient messages of 10 KB, 8 GB", &[HEALTHY, PROBE, MEMORY], 300),
    scenario(
        "memory-alarm",
        "four publishers of delayed messages without confirms, --memory-high 256MiB, no consumer until the alarm has lasted for 5 s",
        &[NEAR_WATERMARK, BLOCKED, UNBLOCKED, COME, HEALTHY, MEMORY],
        600,
    )
    .with(&["--memory-high", "256MiB"]),
    scenario(
        "connections",
        "5,000 idle AMQP connections, and new clients",
        &[NEWCOMER, HELD_IDLE, HEALTHY, PROBE, MEMORY],
        180,
    ),
    scenario("loris-amqp", "1,000 peers that send a byte a second: AMQP", STRANGERS, 120),
    scenario("loris-grpc", "the same: native API", STRANGERS, 120),
    scenario("loris-sqs", "the same: SQS API", STRANGERS, 180),
    scenario("loris-http", "the same: management port", STRANGERS, 180),
    scenario("garbage-amqp", "garbage from one connection after the other: AMQP", STRANGERS, 120),
    scenario("garbage-grpc", "the same: native API", STRANGERS, 120),
    scenario("garbage-sqs", "the same: SQS API", STRANGERS, 120),
    scenario("garbage-http", "the same: management port", STRANGERS, 120),
    scenario("half", "transient messages of 16 bytes at half of Nexo's own maximum", &[MEMORY], 120),
    scenario(
        "priorities",
        "1 million messages with 256 priorities, filled and drained ten times",
        &[ALIKE, MEMORY],
        600,
    ),
    scenario("flow-4", "4 → 4, one queue, auto-ack, transient, 16 bytes", &[EVEN, AS_ONE, MEMORY], 120),
    scenario("flow-4-ack", "4 → 4, one queue, ack 100", &[EVEN, AS_ONE, MEMORY], 120),
    scenario("flow-10", "10 → 10, ten queues, auto-ack", &[EVEN, AS_ONE, MEMORY], 120),
    scenario("flow-20-ack", "20 → 20, 20 queues, ack 10", &[EVEN, MEMORY], 120),
    scenario("flow-100-ack", "100 → 1, ack 100", &[EVEN, MEMORY], 120),
    scenario("flow-100-100-ack", "100 → 100, one queue, ack 10", &[EVEN, MEMORY], 120),
    scenario("flow-200-ack", "200 → 200, 200 queues, ack 10", &[EVEN, MEMORY], 120),
    scenario(
        "flow-sleeps",
        "1 → 1 that sleeps 10 ms after each message",
        &[UNSLOWED, MEMORY, GIVEN_BACK],
        120,
    ),
];

/// The scenarios of these names, in their order in the table; all if none is named. The error is a name that is none.
pub(super) fn chosen<'a>(only: &[&'a str]) -> Result<Vec<&'static Scenario>, &'a str> {
    if let Some(unknown) = only.iter().find(|name| !SCENARIOS.iter().any(|known| known.is_called(name))) {
        return Err(unknown);
    }
    Ok(SCENARIOS
        .iter()
        .filter(|known| only.is_empty() || only.iter().any(|name| known.is_called(name)))
        .collect())
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
        assert_eq!(chosen(&["flow"]).unwrap().len(), 8, "one name for all lines of flow");
        assert_eq!(chosen(&["flow-4"]).unwrap().len(), 2, "with and without acknowledgements");
        assert_eq!(chosen(&["fl"]), Err("fl"));
    }

    #[test]
    fn every_line_with_a_probe_is_judged_by_it_and_by_the_health_after() {
        let is_without =
            |name: &str| matches!(name, "half" | "priorities" | "memory-alarm") || name.starts_with("flow-");
        for scenario in SCENARIOS.iter().filter(|scenario| !is_without(scenario.name)) {
            assert!(scenario.goals.contains(&PROBE), "{}", scenario.name);
            assert!(scenario.goals.contains(&HEALTHY), "{}", scenario.name);
        }
    }

    #[test]
    fn every_line_has_a_goal_for_memory() {
        for scenario in SCENARIOS {
            assert!(scenario.goals.contains(&MEMORY), "{}", scenario.name);
        }
    }
}
