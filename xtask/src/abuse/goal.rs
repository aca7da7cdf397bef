//! What a scenario must reach, held against its report. A number that a report does not have is a goal missed.

use serde_json::Value;

/// The broker's bound for memory as it is by default, and 15 % on top.
const MEMORY_BYTES_MAX: f64 = 256.0 * 1024.0 * 1024.0 * 1.15;
/// What it may still hold when every queue of a load is gone.
const GIVEN_BACK_BYTES_MAX: f64 = 128.0 * 1024.0 * 1024.0;

/// One goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Goal {
    /// As it stands in the table.
    pub(super) words: &'static str,
    /// Where the number is in the report, as a JSON pointer.
    pointer: &'static str,
    bound: Bound,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

const fn at_most(words: &'static str, pointer: &'static str, bound: f64) -> Goal {
    Goal { words, pointer, bound: Bound::AtMost(bound) }
}

const fn at_least(words: &'static str, pointer: &'static str, bound: f64) -> Goal {
    Goal { words, pointer, bound: Bound::AtLeast(bound) }
}

pub(super) const MEMORY: Goal = at_most("memory at most 294 MiB", "/peak_bytes", MEMORY_BYTES_MAX);
pub(super) const GIVEN_BACK: Goal =
    at_most("at most 128 MiB of it kept", "/after_bytes", GIVEN_BACK_BYTES_MAX);
/// From when a message was due: one that waits for seconds counts for all that it held up.
pub(super) const PROBE: Goal = at_most("probe's p99 at most 50 ms", "/probe/due/p99_us", 50_000.0);
pub(super) const HEALTHY_MEANWHILE: Goal = at_least("healthy meanwhile", "/numbers/healthy_meanwhile", 1.0);
pub(super) const HEALTHY: Goal = at_least("healthy", "/numbers/healthy_after", 1.0);
/// Connections to the management port are bounded, whatever the number of those who try.
pub(super) const DESCRIPTORS_MEANWHILE: Goal =
    at_most("at most 512 descriptors meanwhile", "/numbers/descriptors_meanwhile", 512.0);
pub(super) const DESCRIPTORS: Goal = at_most("at most 64 descriptors", "/numbers/descriptors_after", 64.0);
pub(super) const QUIET: Goal = at_most("quiet within 30 s", "/numbers/quiet_after_seconds", 30.0);
pub(super) const IDLE: Goal =
    at_most("at most 0.1 MB/s written when idle", "/numbers/idle_bytes_per_second", 100_000.0);
pub(super) const PUSH: Goal = at_most("a push's p99 at most 50 ms", "/numbers/push_p99_us", 50_000.0);
pub(super) const BACK: Goal = at_least("all come back", "/numbers/back_part", 1.0);
/// Fewer, and it says nothing of many that come back at once.
pub(super) const HELD: Goal = at_least("at least 65,536 held", "/numbers/held", 65_536.0);
pub(super) const COME: Goal = at_least("all come", "/numbers/come_part", 1.0);
/// A broker that takes next to nothing needs no memory: 48 MiB of 20 bodies, 64 MiB of eight transactions.
pub(super) const TAKEN: Goal = at_least("at least 4 % of it taken", "/numbers/taken_part", 0.04);
pub(super) const REFUSED: Goal = at_least("what is too large refused", "/numbers/refused_part", 1.0);
/// Otherwise nobody was there who did not read.
pub(super) const ON_ITS_WAY: Goal = at_least("some on their way", "/numbers/on_its_way", 1.0);
pub(super) const KEPT: Goal = at_least("none lost", "/numbers/kept_part", 1.0);
/// What the system has seen at any moment, buffers of publishers that are blocked included.
pub(super) const NEAR_WATERMARK: Goal =
    at_most("memory at most 15 % above the watermark", "/numbers/peak_part", 1.15);
pub(super) const BLOCKED: Goal = at_least("publishers blocked: low on memory", "/numbers/blocked", 1.0);
pub(super) const UNBLOCKED: Goal = at_least("all of them unblocked", "/numbers/unblocked_part", 1.0);
/// From the first packet to the confirm of a persistent message.
pub(super) const NEWCOMER: Goal =
    at_most("a new client connects and publishes within 50 ms (p99)", "/numbers/newcomer_p99_us", 50_000.0);
pub(super) const ENDED: Goal = at_least("all of them ended", "/numbers/ended_part", 1.0);
pub(super) const HELD_IDLE: Goal = at_least("5,000 held", "/numbers/held", 5_000.0);
pub(super) const ALIKE: Goal =
    at_least("the slowest run at least half of the fastest", "/numbers/slowest_part", 0.5);
pub(super) const EVEN: Goal = at_least("consumed at least 80 % of published", "/numbers/consumed_part", 0.8);
/// As much, but for what runs on a machine with other work differ by.
pub(super) const AS_ONE: Goal = at_least("consumed as with 1 → 1 (90 %)", "/numbers/of_one_to_one", 0.9);
pub(super) const UNSLOWED: Goal =
    at_least("published at least half of that without a consumer", "/numbers/published_part", 0.5);

impl Goal {
    /// Whether what a report has reaches it.
    pub(super) fn is_met(&self, report: &Value) -> bool {
        let number = report.pointer(self.pointer).and_then(Value::as_f64);
        number.is_some_and(|number| match self.bound {
            Bound::AtMost(most) => number <= most,
            Bound::AtLeast(least) => number >= least,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_goal_is_met_up_to_its_bound_and_missed_beyond_it() {
        let report = |bytes: f64, part: f64| json!({"peak_bytes": bytes, "numbers": {"consumed_part": part}});
        let judged = |report: Value| (MEMORY.is_met(&report), EVEN.is_met(&report));
        assert_eq!(judged(report(MEMORY_BYTES_MAX, 0.8)), (true, true));
        assert_eq!(judged(report(MEMORY_BYTES_MAX + 1.0, 0.79)), (false, false));
    }

    #[test]
    fn a_load_that_was_none_reaches_nothing() {
        let nothing = json!({"numbers": {
            "held": 0.0, "back_part": 0.0, "come_part": 0.0, "taken_part": 0.0, "refused_part": 0.0,
            "on_its_way": 0.0, "kept_part": 0.0, "healthy_after": 0.0,
        }});
        for goal in [HELD, BACK, COME, TAKEN, REFUSED, ON_ITS_WAY, KEPT, HEALTHY] {
            assert!(!goal.is_met(&nothing), "{}", goal.words);
        }
        assert!(HELD.is_met(&json!({"numbers": {"held": 65_536}})));
        assert!(!HELD.is_met(&json!({"numbers": {"held": 65_535}})));
    }

    #[test]
    fn what_was_not_measured_is_missed() {
        for report in [json!({}), json!({"probe": null}), json!({"probe": {"due": null}})] {
            assert!(!PROBE.is_met(&report), "{report}");
        }
    }
}
