//! One Nexo beside another, for example that of a commit before a change: the same loads for both, again and again in turn,
//! driven by one and the same program. A line is worse when the difference is larger than what each varies by itself.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::RATE_WITHOUT_RIVAL;
use super::contender::{Contender, Running};
use super::flow::FLOWS;
use super::load::Load;
use super::scenario::SCENARIOS;
use crate::load::Bench;
use crate::spread::{Spread, Unit, thousands};

/// How much is measured, and of whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    before: PathBuf,
    /// The one that is judged; the one that was just built, if none is named.
    after: Option<PathBuf>,
    reps: u32,
    seconds: u32,
    /// Only lines that contain this.
    only: Option<String>,
}

impl Options {
    /// Understands what stands after `bench compare`.
    pub(crate) fn parse(args: &[&str]) -> anyhow::Result<Self> {
        let (before, rest) = args.split_first().context("bench compare takes the path of a nexo")?;
        ensure!(!before.starts_with('-'), "bench compare takes the path of a nexo first, not '{before}'");
        let mut options =
            Self { before: PathBuf::from(before), after: None, reps: 5, seconds: 4, only: None };
        let mut rest = rest.iter();
        while let Some(arg) = rest.next() {
            let mut value = || rest.next().with_context(|| format!("{arg} takes a value"));
            match *arg {
                "--with" => options.after = Some(PathBuf::from(value()?)),
                "--only" => options.only = Some((*value()?).to_owned()),
                "--reps" | "--seconds" => {
                    let text = value()?;
                    let number: u32 =
                        text.parse().with_context(|| format!("{arg} takes a number, not '{text}'"))?;
                    ensure!(number > 0, "{arg} must be more than 0");
                    *(if *arg == "--reps" { &mut options.reps } else { &mut options.seconds }) = number;
                }
                other => bail!(
                    "bench compare takes --with PATH, --reps N, --seconds S and --only WORDS, not '{other}'"
                ),
            }
        }
        Ok(options)
    }
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Before,
    After,
}

/// One load, and the figures that are taken from its report.
struct Line {
    work: String,
    args: Vec<String>,
    protocol: Protocol,
    /// JSON pointers, what stands there in words, and what it counts.
    figures: Vec<(&'static str, &'static str, Unit)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Amqp,
    Sqs,
}

/// Everything that `bench rivals` and `bench sqs` measure of Nexo, and what comes and goes.
fn lines(seconds: u32) -> Vec<Line> {
    let seconds = format!("{seconds}s");
    let timed = |args: &[&str]| -> Vec<String> {
        let times: &[&str] = match args.first() {
            Some(&"throughput") => &["--duration", &seconds, "--warmup", "1s", "--drain", "1s"],
            Some(&"latency") => &["--duration", &seconds, "--warmup", "1s"],
            _ => &[],
        };
        [args, times].concat().into_iter().map(str::to_owned).collect()
    };
    let mut lines = Vec::new();
    for scenario in SCENARIOS {
        lines.push(Line {
            work: scenario.work.to_owned(),
            args: timed(scenario.args),
            protocol: Protocol::Amqp,
            figures: vec![(scenario.figure, "", scenario.unit)],
        });
    }
    for flow in FLOWS {
        lines.push(Line {
            work: format!("transient {}", flow.work),
            args: timed(&[&["throughput"], flow.args].concat()),
            protocol: Protocol::Amqp,
            figures: vec![("/consumed_per_second", ", consumed", Unit::PerSecond)],
        });
    }
    lines.push(Line {
        work: "come and go".to_owned(),
        args: vec!["churn".to_owned()],
        protocol: Protocol::Amqp,
        figures: vec![
            ("/came_and_went/connections", ": connections", Unit::PerSecond),
            ("/came_and_went/durable_queues", ": durable queues, one at a time", Unit::PerSecond),
            ("/came_and_went/transient_queues", ": transient queues", Unit::PerSecond),
            ("/came_and_went/bindings", ": bindings", Unit::PerSecond),
            ("/came_and_went/pipelined_declares", ": durable declares, pipelined", Unit::PerSecond),
            ("/came_and_went/pipelined_deletes", ": durable deletes, pipelined", Unit::PerSecond),
            ("/came_and_went/concurrent_declares", ": durable declares of ten clients", Unit::PerSecond),
        ],
    });
    lines.push(Line {
        work: "SQS, 16 connections".to_owned(),
        args: timed(&["throughput", "--size", "1024", "--publishers", "6", "--consumers", "5"])
            .into_iter()
            .take_while(|arg| arg != "--drain")
            .collect(),
        protocol: Protocol::Sqs,
        figures: vec![
            ("/consumed_per_second", "", Unit::PerSecond),
            ("/confirm_time/p50_us", ", one SendMessageBatch, median", Unit::Micros),
        ],
    });
    lines.push(Line {
        work: "SQS at 2,000/s".to_owned(),
        args: timed(&["latency", "--size", "1024", "--rate", "2000"]),
        protocol: Protocol::Sqs,
        figures: vec![("/deliver_time/p50_us", ", from send to receive, median", Unit::Micros)],
    });
    lines
}

/// Measures both, prints the table, and fails if a line is worse.
pub(crate) fn compare(options: &Options) -> anyhow::Result<()> {
    let bench = match &options.after {
        Some(path) => Bench::of(path.clone())?,
        None => Bench::build()?,
    };
    let load = Load::new(bench, options.seconds);
    let wanted = |line: &Line| options.only.as_ref().is_none_or(|words| line.work.contains(words));
    let lines: Vec<Line> = lines(options.seconds).into_iter().filter(wanted).collect();
    ensure!(!lines.is_empty(), "no line contains '{}'", options.only.as_deref().unwrap_or_default());
    let mut found: BTreeMap<(usize, usize, Side), Spread> = BTreeMap::new();
    for rep in 1..=options.reps {
        eprintln!("repetition {rep} of {}", options.reps);
        for (index, line) in lines.iter().enumerate() {
            let mut order = [Side::Before, Side::After];
            if (rep as usize + index).is_multiple_of(2) {
                order.reverse();
            }
            // Both take half of what the one before reached.
            let maximum = found.get(&(0, 0, Side::Before)).and_then(Spread::median);
            for side in order {
                let nexo = match side {
                    Side::Before => options.before.as_path(),
                    Side::After => load.nexo(),
                };
                let report =
                    run(&load, line, nexo, maximum).with_context(|| format!("{side:?}: {}", line.work))?;
                for (at, (pointer, what, unit)) in line.figures.iter().enumerate() {
                    let figure = report.pointer(pointer).and_then(Value::as_f64);
                    let figure = figure.with_context(|| format!("the report has no {pointer}: {report}"))?;
                    eprintln!("  {side:?}: {}{what}: {}", line.work, unit.show(figure));
                    found.entry((index, at, side)).or_default().add(figure);
                }
            }
        }
    }
    let (text, worse) = table(&lines, &found);
    println!("{text}");
    ensure!(worse == 0, "{worse} lines are worse than before by more than their spread");
    Ok(())
}

/// One load for a fresh broker.
fn run(load: &Load, line: &Line, nexo: &std::path::Path, maximum: Option<f64>) -> anyhow::Result<Value> {
    let broker = Running::start(Contender::Nexo, nexo)?;
    let own = line.work.contains("own maximum");
    let rate = if own { maximum.unwrap_or(2.0 * RATE_WITHOUT_RIVAL) / 2.0 } else { RATE_WITHOUT_RIVAL };
    let rate = format!("{rate:.0}");
    let args: Vec<&str> =
        line.args.iter().map(|arg| if arg == "RATE" { rate.as_str() } else { arg.as_str() }).collect();
    match line.protocol {
        Protocol::Amqp => load.bench(&args, &broker),
        Protocol::Sqs => load.bench_at(&args, broker.sqs.as_deref().context("no SQS")?, &broker),
    }
}

/// The table, and how many of its lines are worse.
fn table(lines: &[Line], found: &BTreeMap<(usize, usize, Side), Spread>) -> (String, usize) {
    let (mut out, mut worse) = (String::new(), 0);
    let _ = writeln!(out, "| work | before | after | after / before | |\n|---|---|---|---|---|");
    for (index, line) in lines.iter().enumerate() {
        for (at, (_, what, unit)) in line.figures.iter().enumerate() {
            let get = |side| found.get(&(index, at, side)).cloned().unwrap_or_default();
            let (before, after) = (get(Side::Before), get(Side::After));
            let show = |spread: &Spread| match unit {
                // Not all that is counted in a second is a message.
                Unit::PerSecond => spread.show_with(|figure| format!("{}/s", thousands(figure))),
                Unit::Micros => spread.show(*unit),
            };
            let ratio =
                before.median().zip(after.median()).map_or(f64::NAN, |(before, after)| after / before);
            let is_worse = after.is_worse_than(&before, *unit);
            worse += usize::from(is_worse);
            let verdict = if is_worse { "**worse**" } else { "" };
            let _ = writeln!(
                out,
                "| {}{what} | {} | {} | {ratio:.2} | {verdict} |",
                line.work,
                show(&before),
                show(&after)
            );
        }
    }
    (out, worse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_understood() {
        let options = Options::parse(&["old", "--reps", "3", "--with", "new", "--only", "SQS"]).unwrap();
        assert_eq!((options.reps, options.seconds), (3, 4));
        assert_eq!(options.after, Some(PathBuf::from("new")));
        for args in
            [&[][..], &["--reps", "3"], &["old", "--reps", "0"], &["old", "--fast"], &["old", "--with"]]
        {
            assert!(Options::parse(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn a_line_that_is_worse_is_named_and_counted() {
        let lines = lines(4);
        let mut found: BTreeMap<(usize, usize, Side), Spread> = BTreeMap::new();
        for (before, after) in [(100.0, 80.0), (105.0, 82.0), (98.0, 85.0)] {
            found.entry((0, 0, Side::Before)).or_default().add(before);
            found.entry((0, 0, Side::After)).or_default().add(after);
            found.entry((1, 0, Side::Before)).or_default().add(before);
            found.entry((1, 0, Side::After)).or_default().add(before + 1.0);
        }
        let (text, worse) = table(&lines, &found);
        assert_eq!(worse, 1);
        let line = text.lines().nth(2).unwrap();
        assert!(line.ends_with("| 100/s (98/s–105/s) | 82/s (80/s–85/s) | 0.82 | **worse** |"), "{line}");
        assert!(text.lines().nth(3).unwrap().ends_with("|  |"));
    }
}
