//! The section on abuse of docs/benchmarks.md.

use std::fmt::Write;

use serde_json::Value;

use super::goal::Goal;
use super::scenario::Scenario;
use crate::page::put_machine;
use crate::spread::Unit;

/// What became of one scenario: its report, or why there is none.
pub(super) type Outcome = (&'static Scenario, anyhow::Result<Value>);

/// Everything as Markdown, which is readable as it is.
pub(super) fn text(machine: &[String], version: &str, part: &str, outcomes: &[Outcome]) -> String {
    let mut out = String::new();
    put_machine(&mut out, machine);
    let _ = writeln!(
        out,
        "- {version}, a fresh broker for each line{part}; load and broker on the same machine; default settings"
    );
    out.push_str(
        "\n| what | measured | resident memory: before, at most, after | probe: p50, p99, max | p99 from when due | goal |\n\
         |---|---|---|---|---|---|\n",
    );
    for (scenario, outcome) in outcomes {
        let cells = match outcome {
            Ok(report) => [measured(report), memory(report), probe(report), due(report)],
            Err(error) => [
                format!("**failed**: {}", one_line(&format!("{error:#}"))),
                "–".to_owned(),
                "–".to_owned(),
                "–".to_owned(),
            ],
        };
        let goals = scenario.goals.iter().map(|goal| judged(goal, outcome)).collect::<Vec<_>>().join("; ");
        let _ = writeln!(out, "| {} | {} | {goals} |", scenario.work, cells.join(" | "));
    }
    out
}

/// A goal, and whether it was missed.
fn judged(goal: &Goal, outcome: &anyhow::Result<Value>) -> String {
    match outcome {
        Ok(report) if goal.is_met(report) => goal.words.to_owned(),
        Ok(_) | Err(_) => format!("{}: **missed**", goal.words),
    }
}

/// The scenarios that failed, and the goals that were missed, one line each.
pub(super) fn shortfalls(outcomes: &[Outcome]) -> Vec<String> {
    let missed = |(scenario, outcome): &Outcome| match outcome {
        Ok(report) => {
            let missed = scenario.goals.iter().filter(|goal| !goal.is_met(report));
            missed.map(|goal| format!("{}: missed '{}'", scenario.name, goal.words)).collect()
        }
        Err(error) => vec![format!("{}: failed: {}", scenario.name, one_line(&format!("{error:#}")))],
    };
    outcomes.iter().flat_map(missed).collect()
}

/// Names and values that a scenario gave.
fn measured(report: &Value) -> String {
    let pairs = report.pointer("/measured").and_then(Value::as_array).cloned().unwrap_or_default();
    let shown: Vec<String> = pairs
        .iter()
        .filter_map(|pair| Some(format!("{}: {}", pair.get(0)?.as_str()?, pair.get(1)?.as_str()?)))
        .map(|text| one_line(&text))
        .collect();
    if shown.is_empty() { "–".to_owned() } else { shown.join("; ") }
}

fn memory(report: &Value) -> String {
    let part = |name: &str| {
        let bytes = report.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN);
        format!("{:.0}", bytes / (1024.0 * 1024.0))
    };
    format!("{}, {}, {} MiB", part("before_bytes"), part("peak_bytes"), part("after_bytes"))
}

fn probe(report: &Value) -> String {
    let time = |name: &str| micros(report, &format!("/probe/sent/{name}"));
    match (time("p50_us"), time("p99_us"), time("max_us")) {
        (Some(p50), Some(p99), Some(max)) => format!("{p50}, {p99}, {max}"),
        _ => "–".to_owned(),
    }
}

fn due(report: &Value) -> String {
    micros(report, "/probe/due/p99_us").unwrap_or_else(|| "–".to_owned())
}

fn micros(report: &Value, pointer: &str) -> Option<String> {
    Some(Unit::Micros.show(report.pointer(pointer)?.as_f64()?))
}

/// As it can stand in a cell of a table.
fn one_line(text: &str) -> String {
    text.replace('\n', " ").replace('|', "/")
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use serde_json::json;

    use super::super::scenario::SCENARIOS;
    use super::*;

    #[test]
    fn a_line_has_what_was_measured_and_a_failure_its_reason() {
        let report = json!({
            "before_bytes": 10 << 20, "peak_bytes": 300 << 20, "after_bytes": 20 << 20,
            "measured": [["held", "5"], ["back", "in 1 s"]], "numbers": {"healthy_after": 1.0},
            "probe": {"sent": {"p50_us": 90.0, "p99_us": 1500.0, "max_us": 2000.0}, "due": {"p99_us": 1600.0}},
        });
        let outcomes = [(&SCENARIOS[0], Ok(report)), (&SCENARIOS[1], Err(anyhow!("no\nanswer | none")))];
        let text = text(&["kernel: 1".to_owned()], "nexo 1", ", a fiftieth of each load", &outcomes);
        assert!(
            text.starts_with("- kernel: 1\n- nexo 1, a fresh broker for each line, a fiftieth of each load;"),
            "{text}"
        );
        let lines: Vec<&str> = text.lines().skip(5).collect();
        assert_eq!(
            lines[0],
            "| nothing, to compare with | held: 5; back: in 1 s | 10, 300, 20 MiB | 90 µs, 1.50 ms, 2.00 ms | 1.60 ms | healthy; probe's p99 at most 50 ms; memory at most 294 MiB: **missed** |"
        );
        assert!(lines[1].contains("| **failed**: no answer / none | – | – | – |"), "{}", lines[1]);
        assert_eq!(lines.len(), 2);
        let short = shortfalls(&outcomes);
        assert_eq!(
            short,
            ["idle: missed 'memory at most 294 MiB'", "silent: failed: no answer / none"],
            "each is told once"
        );
    }

    #[test]
    fn a_scenario_without_a_probe_has_none_in_its_line() {
        let report =
            json!({"before_bytes": 0, "peak_bytes": 0, "after_bytes": 0, "measured": [], "probe": null});
        assert_eq!((probe(&report), due(&report), measured(&report)), ("–".into(), "–".into(), "–".into()));
    }
}
