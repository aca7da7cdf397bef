//! `nexo-sim [SEED...]`: plays these runs, or many from a first one on.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nexo_sim::sabotage::Sabotage;
use nexo_sim::{Options, Outcome, Tally, run};

const HELP: &str = "\
Usage: nexo-sim [SEED...] [--runs N | --minutes N] [--first SEED] [--millis N] [--break WHAT] [--trace]

  SEED...      plays these, and tells what happened
  --runs N     plays so many (5000), from --first on (1), on all processors
  --minutes N  plays as many as fit
  --millis N   how long there are faults in each, in simulated milliseconds (12000)
  --break WHAT breaks every node on purpose, and ends well as soon as it is noticed
  --trace      tells all that happens
";

#[derive(Debug)]
struct Arguments {
    seeds: Vec<u64>,
    first: u64,
    runs: u64,
    minutes: Option<u64>,
    millis: u64,
    sabotage: Option<Sabotage>,
    keeps_trace: bool,
}

fn parse(words: &[String]) -> anyhow::Result<Arguments> {
    let mut arguments = Arguments {
        seeds: Vec::new(),
        first: 1,
        runs: 5_000,
        minutes: None,
        millis: 12_000,
        sabotage: None,
        keeps_trace: false,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value\n\n{HELP}"));
        match word.as_str() {
            "--runs" => arguments.runs = value()?.parse()?,
            "--first" => arguments.first = value()?.parse()?,
            "--minutes" => arguments.minutes = Some(value()?.parse()?),
            "--millis" => arguments.millis = value()?.parse()?,
            "--break" => arguments.sabotage = Some(value()?.parse()?),
            "--trace" => arguments.keeps_trace = true,
            seed => match seed.parse() {
                Ok(seed) => arguments.seeds.push(seed),
                Err(_) => bail!("'{seed}' is no seed\n\n{HELP}"),
            },
        }
    }
    Ok(arguments)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = parse(&words).map(|arguments| {
        if arguments.seeds.is_empty() { play_many(&arguments) } else { play_these(&arguments) }
    });
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("nexo-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn play(arguments: &Arguments, seed: u64) -> Outcome {
    let Arguments { millis, sabotage, keeps_trace, .. } = *arguments;
    run(Options { seed, millis, sabotage, keeps_trace })
}

fn play_these(arguments: &Arguments) -> bool {
    let mut is_well = true;
    for seed in &arguments.seeds {
        let outcome = play(arguments, *seed);
        outcome.story.iter().for_each(|line| println!("{line}"));
        println!("seed {seed}: trace {:016x}, {:?}", outcome.trace, outcome.tally);
        for violation in &outcome.violations {
            println!("  {violation:?}");
            is_well = false;
        }
    }
    is_well
}

/// Plays many, and tells of the first that fail.
fn play_many(arguments: &Arguments) -> bool {
    let begun = Instant::now();
    let until = arguments.minutes.map(|minutes| begun + Duration::from_secs(60 * minutes));
    let next = AtomicU64::new(arguments.first);
    let end = if until.is_some() { u64::MAX } else { arguments.first + arguments.runs };
    let failed: Mutex<Vec<(u64, Outcome)>> = Mutex::default();
    let total: Mutex<(u64, Tally)> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let enough = {
                        let failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        failed.len() >= if arguments.sabotage.is_some() { 1 } else { 5 }
                    };
                    if seed >= end || enough || until.is_some_and(|until| Instant::now() >= until) {
                        return;
                    }
                    let outcome = play(arguments, seed);
                    let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                    total.0 += 1;
                    total.1.add(&outcome.tally);
                    drop(total);
                    if !outcome.violations.is_empty() {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push((seed, outcome));
                    }
                }
            });
        }
    });
    let (runs, tally) = *total.lock().unwrap_or_else(PoisonError::into_inner);
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{runs} runs in {:.1} s: {tally:?}", begun.elapsed().as_secs_f64());
    for (seed, outcome) in &failed {
        println!("FAIL (seed {seed})");
        outcome.violations.iter().for_each(|violation| println!("  {violation:?}"));
    }
    match arguments.sabotage {
        // Something is broken, so something must be found.
        Some(_) if failed.is_empty() => {
            println!("FAIL: nothing was noticed");
            false
        }
        Some(_) => true,
        None => failed.is_empty(),
    }
}
