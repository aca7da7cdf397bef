//! The habits of this repository, one command each: `cargo xtask help`.
//!
//! Kept free of heavy dependencies, so that the first of them starts at once.

mod bench;
mod bench_sqs;
mod broker;
mod check;
mod conformance;
mod python;
mod rabbitmq;
mod run;

use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask COMMAND

  verify         formatting, lints and all tests; writes nothing
  test           everything that is tested, setting up what it needs
  fix            formats, and mends what the lints can mend
  conformance nexo|rabbitmq
                 what RabbitMQ's clients see, with pika, Celery and amqplib, on either broker
  conformance sqs
                 what AWS's clients see: boto3 in both protocols, Celery, the SDK for JavaScript
  bench engine   measures the engine on this machine and writes docs/benchmarks.md
                 (--quick: a twentieth of the load, and writes nothing)
  bench sqs      measures the SQS API beside moto's
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args.as_slice() {
        ["verify"] => check::verify(),
        ["test", rest @ ..] => check::test(rest),
        ["fix"] => check::fix(),
        ["conformance", "nexo", rest @ ..] => conformance::nexo(rest),
        ["conformance", "rabbitmq", rest @ ..] => conformance::rabbitmq(rest),
        ["conformance", "sqs", rest @ ..] => conformance::sqs(rest),
        ["bench", "engine"] => bench::engine(bench::Size::Full),
        ["bench", "engine", "--quick"] => bench::engine(bench::Size::Quick),
        ["bench", "sqs"] => bench_sqs::sqs(),
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
