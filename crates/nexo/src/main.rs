//! Nexo: the broker and its command line in one program.
//!
//! - `cli` is what can be typed; each `command` is a file of its own and talks to a broker through the native
//!   API, as any other client would, or through `management`, RabbitMQ's API over HTTP.
//! - `rabbitmqctl` is RabbitMQ's tool in words that scripts know, also by a link of that name.
//! - `serve` is the broker: it reads the configuration, wires the rooms together and ends them in order.
//! - `view` and `output` are how things are shown, as text or JSON.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

mod cli;
mod command;
mod connect;
mod management;
mod output;
mod plain;
mod progress;
mod push_pipe;
mod rabbitmqctl;
mod reader;
mod serve;
mod signals;
mod units;
mod view;

/// Memory that a load took is given back within seconds when the load is over.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // Usage errors end here, with exit code 2.
    let cli = cli::Cli::parse_from(arguments());
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::new(error).context("cannot start")),
    };
    let result = runtime.block_on(cli.run());
    // A thread may still wait for standard input; nobody needs what it would read.
    runtime.shutdown_background();
    match result {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// What was typed. Called through a link with the name of RabbitMQ's tool, the program is that tool.
fn arguments() -> Vec<OsString> {
    let mut typed: Vec<OsString> = std::env::args_os().collect();
    let called = typed.first().map(Path::new).and_then(Path::file_name);
    if called.is_some_and(|called| rabbitmqctl::LINKS.iter().any(|link| called == *link)) {
        typed.insert(1, "rabbitmqctl".into());
    }
    typed
}

/// One line on standard error, whatever went wrong.
fn fail(error: &anyhow::Error) -> ExitCode {
    let text = plain::one_line(error);
    // If even this cannot be written there is nobody left to tell.
    let _ = writeln!(io::stderr(), "nexo: {text}");
    ExitCode::FAILURE
}

/// Whether someone like `head` has read enough, which is no error.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    kind == Some(io::ErrorKind::BrokenPipe)
}
