//! The SQS API of Nexo beside moto's: the same load for both, again and again in turn, and receives that wait. What was
//! found goes into docs/benchmarks.md with its spread.

mod moto;
mod page;
mod waits;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::bench::Size;
use crate::broker::{Build, Nexo};
use crate::load::Bench;
use crate::run::first_line;
use crate::spread::{Spread, Unit};
use moto::Moto;
use waits::Waits;

/// The load for both.
const THROUGHPUT: [&str; 7] = ["throughput", "--size", "1024", "--publishers", "6", "--consumers", "5"];
/// A load that only Nexo can carry.
const LATENCY: [&str; 5] = ["latency", "--size", "1024", "--rate", "2000"];

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    reps: u32,
    seconds: u32,
    size: Size,
}

impl Options {
    /// Understands what stands after `bench sqs`.
    pub(crate) fn parse(args: &[&str]) -> anyhow::Result<Self> {
        let mut options = Self { reps: 5, seconds: 4, size: Size::Full };
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
                "--quick" => options = Self { reps: 1, seconds: 1, size: Size::Quick },
                other => bail!("bench sqs takes --reps N, --seconds S and --quick, not '{other}'"),
            }
        }
        Ok(options)
    }

    /// How many receives wait.
    const fn receivers(self) -> u32 {
        match self.size {
            Size::Full => 2000,
            Size::Quick => 200,
        }
    }
}

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Nexo,
    Moto,
}

/// One line of the table.
struct Row {
    work: &'static str,
    /// Where the figure is in the report, as a JSON pointer.
    figure: &'static str,
    unit: Unit,
    nexo: Spread,
    moto: Spread,
}

impl Row {
    fn new(work: &'static str, figure: &'static str, unit: Unit) -> Self {
        Self { work, figure, unit, nexo: Spread::default(), moto: Spread::default() }
    }

    fn add(&mut self, endpoint: Endpoint, report: &Value) -> anyhow::Result<()> {
        let found = report.pointer(self.figure).and_then(Value::as_f64);
        let found = found.with_context(|| format!("the report has no {}: {report}", self.figure))?;
        eprintln!("  {endpoint:?}: {}: {}", self.work, self.unit.show(found));
        match endpoint {
            Endpoint::Nexo => self.nexo.add(found),
            Endpoint::Moto => self.moto.add(found),
        }
        Ok(())
    }

    /// How many times better Nexo is.
    fn ratio(&self) -> Option<f64> {
        let (nexo, moto) = (self.nexo.median()?, self.moto.median()?);
        Some(match self.unit {
            Unit::PerSecond => nexo / moto,
            Unit::Micros => moto / nexo,
        })
    }
}

/// What is known so far.
struct Measuring {
    options: Options,
    bench: Bench,
    nexo_version: String,
    /// Why there is none, if there is none.
    moto: anyhow::Result<Moto>,
    throughput: [Row; 2],
    latency: [Row; 2],
    waits: [Waits; 2],
    disk: Spread,
}

/// Measures both.
pub(crate) fn sqs(options: Options) -> anyhow::Result<()> {
    let bench = Bench::build()?;
    let nexo_version = first_line(std::process::Command::new(bench.nexo()).arg("--version"))?;
    let mut measuring = Measuring {
        options,
        nexo_version,
        moto: Moto::start(),
        bench,
        throughput: [
            Row::new(
                "16 connections (6 publishers, 5 consumers), batches of 10: sent, received and deleted",
                "/consumed_per_second",
                Unit::PerSecond,
            ),
            Row::new("the same: time of one SendMessageBatch, median", "/confirm_time/p50_us", Unit::Micros),
        ],
        latency: [
            Row::new("from send to receive at 2,000/s, median", "/deliver_time/p50_us", Unit::Micros),
            Row::new("from send to receive at 2,000/s, p99", "/deliver_time/p99_us", Unit::Micros),
        ],
        waits: [Waits::at(1), Waits::at(options.receivers())],
        disk: Spread::default(),
    };
    if let Err(error) = &measuring.moto {
        eprintln!("without moto: {error:#}");
    }
    for rep in 1..=options.reps {
        eprintln!("repetition {rep} of {}", options.reps);
        measuring.repetition(rep)?;
    }
    let text = page::text(&measuring);
    println!("{text}");
    match options.size {
        Size::Full => crate::page::write("sqs", &text),
        Size::Quick => Ok(()),
    }
}

impl Measuring {
    fn repetition(&mut self, rep: u32) -> anyhow::Result<()> {
        let nexo = Nexo::start(Build::Release)?;
        let mut order = [Endpoint::Nexo, Endpoint::Moto];
        if rep.is_multiple_of(2) {
            order.reverse();
        }
        for endpoint in order {
            let Some(report) = self.load(endpoint, &nexo, &THROUGHPUT)? else { continue };
            self.throughput.iter_mut().try_for_each(|row| row.add(endpoint, &report))?;
        }
        if let Some(report) = self.load(Endpoint::Nexo, &nexo, &LATENCY)? {
            self.latency.iter_mut().try_for_each(|row| row.add(Endpoint::Nexo, &report))?;
        }
        drop(nexo);
        // They take longest and change least.
        if !rep.is_multiple_of(2) {
            self.wait()?;
        }
        self.disk.add(self.bench.disk_micros()?);
        Ok(())
    }

    /// Runs a load for some seconds; `None` if there is nobody to run it against.
    fn load(&self, endpoint: Endpoint, nexo: &Nexo, args: &[&str]) -> anyhow::Result<Option<Value>> {
        let (url, pid) = match (endpoint, &self.moto) {
            (Endpoint::Nexo, _) => (format!("sqs://{}", nexo.sqs()), nexo.pid()),
            (Endpoint::Moto, Ok(moto)) => (moto.url(), moto.pid()),
            (Endpoint::Moto, Err(_)) => return Ok(None),
        };
        let (pid, seconds) = (pid.to_string(), format!("{}s", self.options.seconds));
        let common = ["--url", &url, "--broker-pid", &pid, "--duration", &seconds, "--warmup", "1s"];
        self.bench.report(&[args, &common].concat()).map(Some)
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let receivers = self.options.receivers().to_string();
        for waits in &mut self.waits {
            // A fresh one each time, for its memory.
            let nexo = Nexo::start(Build::Release)?;
            let (url, pid) = (format!("sqs://{}", nexo.sqs()), nexo.pid().to_string());
            let queues = waits.queues.to_string();
            let report = self.bench.report(&[
                "waiting",
                "--url",
                &url,
                "--broker-pid",
                &pid,
                "--receivers",
                &receivers,
                "--queues",
                &queues,
                // Each of those who wait has its turn.
                "--count",
                &receivers,
            ])?;
            waits.add(&report)?;
            eprintln!("  Nexo: {receivers} wait at {queues}: {}", waits.values().join("; "));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_understood() {
        let options = Options::parse(&["--reps", "3", "--seconds", "10"]).unwrap();
        assert_eq!(options, Options { reps: 3, seconds: 10, size: Size::Full });
        assert_eq!(Options::parse(&["--quick"]).unwrap().receivers(), 200);
        for args in [&["--reps"][..], &["--reps", "x"], &["--reps", "0"], &["--fast"]] {
            assert!(Options::parse(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn a_ratio_above_one_is_good_whatever_the_unit() {
        let report = serde_json::json!({"rate": 300.0, "time": 100.0});
        let other = serde_json::json!({"rate": 100.0, "time": 300.0});
        for (figure, unit) in [("/rate", Unit::PerSecond), ("/time", Unit::Micros)] {
            let mut row = Row::new("work", figure, unit);
            row.add(Endpoint::Nexo, &report).unwrap();
            assert_eq!(row.ratio(), None);
            row.add(Endpoint::Moto, &other).unwrap();
            assert_eq!(row.ratio(), Some(3.0));
        }
    }
}
