//! Nexo beside other brokers: the same load for all, one at a time on this machine, again and again in turn, so that a
//! busy minute does not hit only one of them. What was found goes into docs/benchmarks.md with its spread.

pub(crate) mod compare;
mod contender;
mod figures;
mod flow;
mod load;
mod page;
mod scenario;
mod syncs;

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};

use crate::bench::Size;
use crate::load::Bench;
use contender::{Contender, Running};
use figures::Figures;
use flow::{FLOWS, Flow};
use load::Load;
use scenario::{SCENARIOS, Scenario};

/// The rate for the latency beside RabbitMQ if there is none to take half the maximum of.
const RATE_WITHOUT_RIVAL: f64 = 20_000.0;

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
    /// Everybody at everything but the large backlog.
    Rivals,
    /// Only the large backlog, of Nexo alone.
    Backlog,
}

impl Options {
    /// Understands what stands after `bench rivals`.
    pub(crate) fn parse(args: &[&str]) -> anyhow::Result<Self> {
        let mut options = Self { reps: 5, seconds: 4, part: Part::Rivals, size: Size::Full };
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
                "--backlog" => options.part = Part::Backlog,
                other => {
                    bail!("bench rivals takes --reps N, --seconds S, --quick and --backlog, not '{other}'")
                }
            }
        }
        Ok(options)
    }
}

/// What is known so far.
struct Measuring {
    options: Options,
    load: Load,
    figures: Figures,
    /// Why a rival is not in the table.
    absent: BTreeMap<Contender, String>,
    versions: BTreeMap<Contender, String>,
    syncs: BTreeMap<Contender, String>,
}

/// Measures all brokers that are to be had.
pub(crate) fn rivals(options: Options) -> anyhow::Result<()> {
    let mut measuring = Measuring {
        options,
        load: Load::new(Bench::build()?, options.seconds),
        figures: Figures::default(),
        absent: BTreeMap::new(),
        versions: BTreeMap::new(),
        syncs: BTreeMap::new(),
    };
    let (section, text) = match options.part {
        Part::Rivals => ("rivals", measuring.rivals()?),
        Part::Backlog => ("backlog", measuring.backlog()?),
    };
    println!("{text}");
    match options.size {
        Size::Full => crate::page::write(section, &text),
        Size::Quick => Ok(()),
    }
}

impl Measuring {
    /// Everybody in turn.
    fn rivals(&mut self) -> anyhow::Result<String> {
        for rep in 1..=self.options.reps {
            eprintln!("repetition {rep} of {}", self.options.reps);
            self.repetition(rep)?;
        }
        self.idle()?;
        Ok(page::text(self))
    }

    /// Every broker once, and the disk beside them.
    fn repetition(&mut self, rep: u32) -> anyhow::Result<()> {
        // RabbitMQ is first at first, because half of its maximum is the rate of one of the scenarios; after that they
        // take turns in being first.
        let mut order =
            vec![Contender::RabbitClassic, Contender::RabbitQuorum, Contender::Nexo, Contender::Nats];
        if rep.is_multiple_of(2) {
            order.reverse();
        }
        let mut running: Option<Running> = None;
        for contender in order {
            if self.absent.contains_key(&contender) {
                continue;
            }
            // Both kinds of queues of RabbitMQ are measured in one process.
            let broker = match running.take().filter(|running| running.serves(contender)) {
                Some(broker) => broker,
                None => match Running::start(contender, self.load.nexo()) {
                    Ok(broker) => broker,
                    Err(error) if contender != Contender::Nexo => {
                        eprintln!("without {contender}: {error:#}");
                        self.absent.insert(contender, format!("{error:#}"));
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            self.versions.insert(contender, broker.version.clone());
            for scenario in SCENARIOS.iter().filter(|scenario| scenario.is_for(contender)) {
                self.measure(scenario, contender, &broker)?;
            }
            if Flow::is_for(contender) {
                self.measure_flows(contender, &broker)?;
            }
            if rep == self.options.reps {
                let syncs = syncs::count(&self.load, contender, &broker)
                    .unwrap_or_else(|error| format!("not known: {error:#}"));
                self.syncs.insert(contender, syncs);
            }
            running = Some(broker);
        }
        Ok(())
    }

    fn measure(&mut self, scenario: &Scenario, contender: Contender, broker: &Running) -> anyhow::Result<()> {
        let rate = self.figures.half_of_maximum(scenario, RATE_WITHOUT_RIVAL);
        let found = self
            .load
            .run(scenario, contender, broker, rate)
            .with_context(|| format!("{contender}: {}", scenario.work))?;
        if scenario.figure == "/confirm_time/p50_us" {
            // Beside what it is compared with, in time too.
            self.figures.add_disk(self.load.disk_micros()?);
        }
        eprintln!("  {contender}: {}: {}", scenario.work, scenario.unit.show(found));
        self.figures.add(scenario, contender, found);
        Ok(())
    }

    /// Every flow. A rival may give up under one of them, which is no reason to do without the rest.
    fn measure_flows(&mut self, contender: Contender, broker: &Running) -> anyhow::Result<()> {
        for flow in FLOWS {
            let report = self.load.flow(flow, broker);
            let added = report.and_then(|report| self.figures.flow_mut(flow, contender).add(&report));
            match added.with_context(|| format!("{contender}: {}", flow.work)) {
                Ok(()) => eprintln!("  {contender}: {}", flow.work),
                Err(error) if contender != Contender::Nexo => eprintln!("  {error:#}"),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What does not change from one repetition to the next: memory of what is idle, on a fresh broker.
    fn idle(&mut self) -> anyhow::Result<()> {
        let (connections, queues) = match self.options.size {
            Size::Full => (1_000, 10_000),
            Size::Quick => (100, 500),
        };
        for contender in [Contender::Nexo, Contender::RabbitClassic] {
            if self.absent.contains_key(&contender) {
                continue;
            }
            let broker = Running::start(contender, self.load.nexo())?;
            let idle = self.load.idle(&broker, connections, queues)?;
            eprintln!("  {contender}: idle: {idle}");
            self.figures.add_idle(contender, idle);
        }
        Ok(())
    }

    /// A hundred million waiting messages.
    fn backlog(&self) -> anyhow::Result<String> {
        let broker = Running::start(Contender::Nexo, self.load.nexo())?;
        let count = match self.options.size {
            Size::Full => 100_000_000,
            Size::Quick => 1_000_000,
        };
        self.load.backlog(&broker, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_understood() {
        let options = Options::parse(&["--reps", "3", "--seconds", "10"]).unwrap();
        assert_eq!(options, Options { reps: 3, seconds: 10, part: Part::Rivals, size: Size::Full });
        let quick = Options::parse(&["--quick", "--backlog"]).unwrap();
        assert_eq!((quick.part, quick.size), (Part::Backlog, Size::Quick));
        for args in [&["--reps"][..], &["--reps", "x"], &["--reps", "0"], &["--fast"]] {
            assert!(Options::parse(args).is_err(), "{args:?}");
        }
    }
}
