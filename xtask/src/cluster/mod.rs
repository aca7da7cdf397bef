//! Three nodes of Nexo beside three of its rivals: the same load for all, one cluster at a time on this machine, again and again
//! in turn. What was found goes into docs/benchmarks.md with its spread. Beside that, a cluster of one against a node by itself.

mod catch_up;
mod contender;
mod idle;
mod nodes;
mod page;
mod scenario;

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::bench::Size;
use crate::load::Bench;
use crate::spread::Spread;
use contender::{Cluster, Contender, Way};
use scenario::{SCENARIOS, SINGLE, Scenario};

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    reps: u32,
    seconds: u32,
    part: Part,
    size: Size,
}

/// Which part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Everybody.
    Everything,
    /// Nexo alone, three nodes.
    Nexo,
    /// Only a cluster of one beside a node by itself.
    Single,
    /// Only nodes that were away.
    CatchUp,
    /// Only nodes that have nothing to do.
    Idle,
}

impl Options {
    /// Understands what stands after `bench cluster`.
    pub(crate) fn parse(args: &[&str]) -> anyhow::Result<Self> {
        let mut options = Self { reps: 5, seconds: 4, part: Part::Everything, size: Size::Full };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut number = || -> anyhow::Result<u32> {
                let value = args.next().with_context(|| format!("{arg} takes a number"))?;
                let number = value.parse().with_context(|| format!("{arg} takes a number, not '{value}'"))?;
                ensure!(number > 0, "{arg} must be more than 0");
                Ok(number)
            };
            match *arg {
                "--reps" => options.reps = number()?,
                "--seconds" => options.seconds = number()?,
                "--quick" => options = Self { reps: 1, seconds: 1, size: Size::Quick, ..options },
                "--nexo" => options = Self { part: Part::Nexo, size: Size::Quick, ..options },
                "--single" => options = Self { part: Part::Single, size: Size::Quick, ..options },
                "--catch-up" => options = Self { part: Part::CatchUp, ..options },
                "--idle" => options = Self { part: Part::Idle, ..options },
                other => bail!(
                    "bench cluster takes --reps N, --seconds S, --quick, --nexo, --single, --catch-up and --idle, not '{other}'"
                ),
            }
        }
        Ok(options)
    }
}

/// What is known so far.
struct Measuring {
    options: Options,
    bench: Bench,
    found: BTreeMap<(&'static str, Way), Spread>,
    /// The disk's own time for a small append with a sync.
    disk: Spread,
    /// Why a rival is not in the table.
    absent: BTreeMap<Contender, String>,
    versions: BTreeMap<Contender, String>,
}

/// Measures all clusters that are to be had.
pub(crate) fn cluster(options: Options) -> anyhow::Result<()> {
    let bench = match std::env::var_os("NEXO_BIN") {
        Some(path) => Bench::of(path.into())?,
        None => Bench::build()?,
    };
    let by_itself = match (options.part, options.size) {
        (Part::CatchUp, Size::Full) => Some(("catch-up", catch_up::measure(&bench, catch_up::Size::FULL)?)),
        (Part::CatchUp, Size::Quick) => Some(("catch-up", catch_up::measure(&bench, catch_up::Size::QUICK)?)),
        (Part::Idle, Size::Full) => Some(("idle", idle::measure(&bench, idle::Size::FULL)?)),
        (Part::Idle, Size::Quick) => Some(("idle", idle::measure(&bench, idle::Size::QUICK)?)),
        (Part::Everything | Part::Nexo | Part::Single, _) => None,
    };
    if let Some((section, text)) = by_itself {
        println!("{text}");
        return match options.size {
            Size::Full => crate::page::write(section, &text),
            Size::Quick => Ok(()),
        };
    }
    let mut measuring = Measuring {
        options,
        bench,
        found: BTreeMap::new(),
        disk: Spread::default(),
        absent: BTreeMap::new(),
        versions: BTreeMap::new(),
    };
    for rep in 1..=options.reps {
        eprintln!("repetition {rep} of {}", options.reps);
        measuring.repetition(rep)?;
    }
    let text = page::text(&measuring);
    println!("{text}");
    match options.size {
        Size::Full => crate::page::write("cluster", &text),
        Size::Quick => Ok(()),
    }
}

impl Measuring {
    /// Every cluster once, and the disk beside them.
    fn repetition(&mut self, rep: u32) -> anyhow::Result<()> {
        let mut order = match self.options.part {
            Part::Everything => {
                vec![Contender::RabbitMq, Contender::Nexo, Contender::Nats, Contender::Alone, Contender::One]
            }
            Part::Nexo => vec![Contender::Nexo],
            Part::Single => vec![Contender::Alone, Contender::One],
            Part::CatchUp | Part::Idle => vec![],
        };
        if rep.is_multiple_of(2) {
            order.reverse();
        }
        self.disk.add(self.bench.disk_micros()?);
        for contender in order {
            if self.absent.contains_key(&contender) {
                continue;
            }
            match Cluster::start(contender, self.bench.nexo()) {
                Ok(cluster) => self.measure_all(contender, &cluster)?,
                Err(error) if contender.is_rival() => {
                    eprintln!("without {contender}: {error:#}");
                    self.absent.insert(contender, format!("{error:#}"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn measure_all(&mut self, contender: Contender, cluster: &Cluster) -> anyhow::Result<()> {
        self.versions.insert(contender, cluster.version.clone());
        let scenarios = if contender.is_single() { SINGLE } else { SCENARIOS };
        for way in contender.ways() {
            for scenario in scenarios.iter().filter(|scenario| scenario.is_for(*way)) {
                let measured = self.run(scenario, *way, cluster);
                match measured.with_context(|| format!("{way}: {}", scenario.work)) {
                    Ok(figure) => {
                        eprintln!("  {way}: {}: {}", scenario.work, scenario.unit.show(figure));
                        self.found.entry((scenario.work, *way)).or_default().add(figure);
                    }
                    // A rival may give up under a load, which is no reason to do without the rest.
                    Err(error) if contender.is_rival() => eprintln!("  {error:#}"),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// The figure of one scenario.
    fn run(&self, scenario: &Scenario, way: Way, cluster: &Cluster) -> anyhow::Result<f64> {
        let seconds = format!("{}s", self.options.seconds);
        let mut args: Vec<&str> = scenario.args.to_vec();
        match scenario.args.first() {
            // What is left over is deleted with its queue.
            Some(&"throughput") => args.extend(["--duration", &seconds, "--warmup", "1s", "--drain", "1s"]),
            Some(&"latency") => args.extend(["--duration", &seconds, "--warmup", "1s"]),
            _ => {}
        }
        if way == Way::RabbitMq {
            args.extend(["--queue-type", "quorum"]);
        }
        let mut addresses: Vec<String> = Vec::new();
        if scenario.args.first() == Some(&"failover") {
            for node in &cluster.nodes {
                addresses.extend([
                    "--url".to_owned(),
                    node.url.clone(),
                    "--pid".to_owned(),
                    node.pid.to_string(),
                ]);
            }
        } else {
            addresses.extend(["--url".to_owned(), cluster.url(way).to_owned()]);
        }
        args.extend(addresses.iter().map(String::as_str));
        let report = self.bench.report(&args)?;
        report
            .pointer(scenario.figure)
            .and_then(Value::as_f64)
            .with_context(|| format!("the report has no {}: {report}", scenario.figure))
    }

    fn get(&self, scenario: &Scenario, way: Way) -> Option<&Spread> {
        self.found.get(&(scenario.work, way))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_understood() {
        let options = Options::parse(&["--reps", "3", "--seconds", "10"]).unwrap();
        assert_eq!(options, Options { reps: 3, seconds: 10, part: Part::Everything, size: Size::Full });
        let single = Options::parse(&["--single"]).unwrap();
        assert_eq!((single.part, single.size), (Part::Single, Size::Quick));
        for args in [&["--reps"][..], &["--reps", "x"], &["--reps", "0"], &["--fast"]] {
            assert!(Options::parse(args).is_err(), "{args:?}");
        }
    }
}
