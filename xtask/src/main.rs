//! The habits of this repository, one command each: `cargo xtask help`.
//!
//! Kept free of heavy dependencies, so that the first of them starts at once.

mod abuse;
mod bench;
mod bench_jobs;
mod bench_sqs;
mod broker;
mod check;
mod cluster;
mod conformance;
mod load;
mod nats;
mod page;
mod python;
mod rabbitmq;
mod rivals;
mod run;
mod sim;
mod spread;
mod torture;

use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask COMMAND

  verify         formatting, lints, Rust tests and a short torture: for after every change; writes nothing
  test           everything that is tested, setting up what it needs
  fix            formats, and mends what the lints can mend
  conformance nexo|rabbitmq
                 what RabbitMQ's clients see, with pika, Celery and amqplib, on either broker
  conformance sqs
                 what AWS's clients see: boto3 in both protocols, Celery, the SDK for JavaScript
  conformance management nexo|rabbitmq
                 what clients of the management API see, rabbitmqadmin among them, on either broker
  conformance nexo|sqs|management nexo --cluster
                 the same through a node that leads nothing, of three
  conformance moving
                 clients that try again, on three nodes whose leader changes every few seconds
  conformance compare [SEED...]
                 random acts on both brokers, whose answers must be the same
  conformance scale
                 AMQP with thousands of connections, bindings and queues, and a consumer that does not read
                 (--short: a small load, to see that it works)
  torture        kills, freezes and starves the broker under load, and accounts for every message
                 (--seconds 300, --kills one every 12 seconds, --seed any; --damage: also changes bytes on disk)
  torture --cluster
                 loses the leader of three nodes again and again under load, and accounts for every message
                 (--minutes 5, --seed any, --every 10 seconds, --load 25 percent of a single broker's;
                 --judge-outages: fails as well if service was away for more than 2 s at p99, or 5 s at worst)
  sim [SEED...]  plays whole clusters in one thread, from seeds, with faults and books on every message
                 (--runs 5000 or --minutes N, --first SEED, --millis 12000: how long there are faults in each;
                 --break NAME: breaks every node on purpose, until it is noticed; --trace: all that happens)
  bench engine   measures the engine on this machine and writes docs/benchmarks.md
                 (--quick: a twentieth of the load, and writes nothing)
  bench sqs      measures the SQS API beside moto's, in turn, and writes docs/benchmarks.md
                 (--reps N, --seconds S; --quick: one short repetition, and writes nothing)
  bench rivals   measures Nexo beside RabbitMQ and NATS, in turn, and writes docs/benchmarks.md
                 (--reps N, --seconds S; --backlog: only a hundred million waiting messages, Nexo alone;
                 --quick: one short repetition, and writes nothing)
  bench cluster  measures three nodes beside three of RabbitMQ and of NATS, and a cluster of one beside a node by itself,
                 in turn, and writes docs/benchmarks.md (--reps N, --seconds S; --nexo: three nodes of Nexo alone;
                 --single: only the cluster of one; --quick: one short repetition; those three write nothing;
                 --catch-up: in place of all that, nodes that were away while ten million messages wait;
                 --idle: in place of all that, nodes with ten thousand queues that have nothing to do;
                 NEXO_BIN: a binary that is there, in place of building one)
  bench jobs     a million pending jobs, and the coalescing pattern beside BullMQ on Redis, in turn; writes nothing
                 (--reps N, --seconds S, --jobs N)
  bench compare PATH
                 measures another Nexo and this one, in turn, at all that rivals and sqs measure of it and at declares;
                 fails if a line is worse by more than its spread (--with PATH: that one in place of this, without
                 building; --reps N, --seconds S; --only WORDS: lines that contain them)
  bench abuse    what Nexo must bear, a fresh broker for each, with its memory and what a client beside it
                 waits for; fails if a goal is missed; writes docs/benchmarks.md (--only NAME,.. and --quick, a fiftieth, write nothing;
                 --binary PATH: another broker; --load PATH: another load, without building)
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args.as_slice() {
        ["verify"] => check::verify(),
        ["test", rest @ ..] => check::test(rest),
        ["fix"] => check::fix(),
        ["conformance", "nexo", "--cluster", rest @ ..] => conformance::nexo(broker::Nodes::Three, rest),
        ["conformance", "nexo", rest @ ..] => conformance::nexo(broker::Nodes::One, rest),
        ["conformance", "rabbitmq", rest @ ..] => conformance::rabbitmq(rest),
        ["conformance", "sqs", "--cluster", rest @ ..] => conformance::sqs(broker::Nodes::Three, rest),
        ["conformance", "sqs", rest @ ..] => conformance::sqs(broker::Nodes::One, rest),
        ["conformance", "management", broker, "--cluster", rest @ ..] => {
            conformance::management_of(broker, broker::Nodes::Three, rest)
        }
        ["conformance", "management", broker, rest @ ..] => {
            conformance::management_of(broker, broker::Nodes::One, rest)
        }
        ["conformance", "moving", rest @ ..] => conformance::moving(rest),
        ["conformance", "compare", seeds @ ..] => conformance::compare(seeds),
        ["conformance", "scale"] => conformance::scale(bench::Size::Full),
        ["conformance", "scale", "--short"] => conformance::scale(bench::Size::Quick),
        // For tests of a broker that this program runs.
        ["control", address, word] => broker::control(address, word),
        ["torture", rest @ ..] => torture::torture(rest),
        ["sim", rest @ ..] => sim::sim(rest),
        ["bench", "engine"] => bench::engine(bench::Size::Full),
        ["bench", "engine", "--quick"] => bench::engine(bench::Size::Quick),
        ["bench", "sqs", rest @ ..] => bench_sqs::Options::parse(rest).and_then(bench_sqs::sqs),
        ["bench", "jobs", rest @ ..] => bench_jobs::Options::parse(rest).and_then(bench_jobs::jobs),
        ["bench", "compare", rest @ ..] => {
            rivals::compare::Options::parse(rest).and_then(|options| rivals::compare::compare(&options))
        }
        ["bench", "cluster", rest @ ..] => cluster::Options::parse(rest).and_then(cluster::cluster),
        ["bench", "rivals", rest @ ..] => rivals::Options::parse(rest).and_then(rivals::rivals),
        ["bench", "abuse", rest @ ..] => {
            abuse::Options::parse(rest).and_then(|options| abuse::abuse(&options))
        }
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        other => Err(anyhow::anyhow!("unknown command '{}'\n\n{HELP}", other.join(" "))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
