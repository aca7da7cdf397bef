//! What a broker must bear: a fresh one for each scenario of `nexo bench abuse`, with its memory and a probe's times.
//! What was found goes into docs/benchmarks.md. A scenario that fails or misses a goal is told there too, and the others
//! go on; then the command fails.

mod broker;
mod disk_rest;
mod goal;
mod page;
mod scenario;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, anyhow, bail, ensure};
use serde_json::Value;

use crate::bench::Size;
use crate::load::Bench;
use crate::run::{first_line, target};
use broker::Broker;
use scenario::Scenario;

/// By how much a quick look divides all counts.
const QUICK: &str = "50";

/// What is measured.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    /// The broker; what was built for release if none is named.
    binary: Option<PathBuf>,
    /// The `nexo` whose `bench` is the load; the same.
    load: Option<PathBuf>,
    only: Vec<&'static Scenario>,
    size: Size,
}

impl Options {
    /// Understands what stands after `bench abuse`.
    pub(crate) fn parse(args: &[&str]) -> anyhow::Result<Self> {
        let mut options =
            Self { binary: None, load: None, only: scenario::SCENARIOS.iter().collect(), size: Size::Full };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} takes a value"));
            match *arg {
                "--binary" => options.binary = Some(PathBuf::from(value()?)),
                "--load" => options.load = Some(PathBuf::from(value()?)),
                "--only" => {
                    let names: Vec<&str> = value()?.split(',').collect();
                    options.only = scenario::chosen(&names).map_err(|unknown| {
                        let known: Vec<&str> = scenario::SCENARIOS.iter().map(|known| known.name).collect();
                        anyhow!("'{unknown}' is none of {}", known.join(", "))
                    })?;
                }
                "--quick" => options.size = Size::Quick,
                other => {
                    bail!(
                        "bench abuse takes --binary PATH, --load PATH, --only NAME,.. and --quick, not '{other}'"
                    )
                }
            }
        }
        Ok(options)
    }

    /// Whether it is all of it, and at full size: only that replaces what is in the docs.
    fn is_whole(&self) -> bool {
        self.size == Size::Full && self.only.len() == scenario::SCENARIOS.len()
    }
}

/// Runs the scenarios one after the other.
pub(crate) fn abuse(options: &Options) -> anyhow::Result<()> {
    let bench = match &options.load {
        Some(nexo) => Bench::of(nexo.clone())?,
        None => Bench::build()?,
    };
    let binary = options.binary.clone().unwrap_or_else(|| bench.nexo().to_owned());
    let version = first_line(Command::new(&binary).arg("--version"))?;
    let mut outcomes = Vec::new();
    for scenario in &options.only {
        eprintln!("{}: {}", scenario.name, scenario.work);
        if options.size == Size::Full {
            let slowest = disk_rest::wait(&target())?;
            eprintln!("  the disk is at rest: the slowest sync takes {slowest:?}");
        }
        let outcome = Broker::start(&binary, scenario.name, scenario.serve)
            .and_then(|broker| measure(&bench, &broker, scenario, options.size));
        if let Err(error) = &outcome {
            eprintln!("  failed: {error:#}");
        }
        outcomes.push((*scenario, outcome));
    }
    let part = match options.size {
        Size::Full => String::new(),
        Size::Quick => format!(", all counts divided by {QUICK}"),
    };
    let text = page::text(&bench.machine(), &version, &part, &outcomes);
    println!("{text}");
    if options.is_whole() {
        crate::page::write("abuse", &text)?;
    }
    let short = page::shortfalls(&outcomes);
    ensure!(short.is_empty(), "not everything was reached:\n  {}", short.join("\n  "));
    Ok(())
}

fn measure(bench: &Bench, broker: &Broker, scenario: &Scenario, size: Size) -> anyhow::Result<Value> {
    let amqp = format!("amqp://guest:guest@{}/%2F", broker.address("amqp")?);
    let native = format!("http://{}", broker.address("grpc")?);
    let pid = broker.pid().to_string();
    let mut args = vec!["abuse", scenario.name, "--url", &amqp, "--native", &native];
    args.extend(["--sqs", broker.address("sqs")?, "--http", broker.address("http")?, "--broker-pid", &pid]);
    if size == Size::Quick {
        args.extend(["--divide", QUICK]);
    }
    bench.report_within(&args, scenario.limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_understood() {
        let all = Options::parse(&[]).unwrap();
        assert!(all.is_whole());
        let some =
            Options::parse(&["--quick", "--only", "flood,idle", "--binary", "a", "--load", "b"]).unwrap();
        assert_eq!((some.only.len(), some.size, some.is_whole()), (2, Size::Quick, false));
        assert_eq!((some.binary, some.load), (Some("a".into()), Some("b".into())));
        assert!(!Options::parse(&["--only", "flood"]).unwrap().is_whole());
        for args in [&["--only"][..], &["--only", "drought"], &["--binary"], &["--fast"]] {
            assert!(Options::parse(args).is_err(), "{args:?}");
        }
    }
}
