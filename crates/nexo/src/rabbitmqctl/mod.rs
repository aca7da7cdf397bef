//! `rabbitmqctl`: what people's scripts ask of RabbitMQ, asked of this broker's management API. The program is it by the
//! command `nexo rabbitmqctl`, or when it is called through a link of that name (or `rabbitmq-diagnostics`).
//!
//! - `given.rs`: the words on the command line, in RabbitMQ's syntax. `commands.rs`, `table.rs`: all commands, with their usage.
//! - `stop.rs`: how a command fails, with RabbitMQ's exit codes. `formatter.rs`: tables, JSON and CSV as it prints them.
//! - By what they are about: `lists.rs`, `access_lists.rs`, `users.rs`, `vhosts.rs`, `policies.rs`, `operations.rs`,
//!   `definitions.rs`, `status.rs`, `checks.rs`. `refused.rs`: what is not done here, and what to do instead.
//!
//! Texts and codes were recorded from RabbitMQ 3.10 (tests/rabbitmqctl.rs). docs/rabbitmqctl.md says what differs.

mod access_lists;
mod checks;
mod cluster;
mod commands;
mod definitions;
mod formatter;
mod given;
mod lists;
mod operations;
mod policies;
mod refused;
mod status;
mod stop;
mod table;
mod users;
mod vhosts;

use std::io::{self, BufWriter, Stdout, Write};
use std::process::ExitCode;

use nexo_net::ClientTls;
use serde_json::Value;

use crate::management::{ApiPath, Authorization, Management, ManagementUrl};
use commands::{COMMANDS, Command};
use formatter::Formatter;
use given::Given;
use stop::Stop;

/// The names of links through which the program is this command.
pub(crate) const LINKS: [&str; 2] = ["rabbitmqctl", "rabbitmq-diagnostics"];

/// Where to ask, and as whom, unless the words on the command line say otherwise.
#[derive(Debug)]
pub(crate) struct Access {
    /// `None` if nobody named one.
    pub(crate) url: Option<ManagementUrl>,
    pub(crate) tls: ClientTls,
    pub(crate) authorization: Authorization,
    pub(crate) vhost: String,
}

/// A command under way.
struct Ctl {
    api: Management,
    given: Given,
    formatter: Formatter,
    out: BufWriter<Stdout>,
    command: &'static Command,
}

/// Does what the words ask for.
///
/// # Errors
/// If standard output is gone.
pub(crate) async fn run(words: Vec<String>, access: Access) -> io::Result<ExitCode> {
    let stopped = match attempt(words, access).await {
        Ok(()) => return Ok(ExitCode::SUCCESS),
        Err(stop) => stop,
    };
    if let Stop::Output(error) = stopped {
        return Err(error);
    }
    // Whoever does not read what went wrong has the code.
    let _ = writeln!(io::stderr(), "{stopped}");
    Ok(ExitCode::from(stopped.code()))
}

async fn attempt(words: Vec<String>, access: Access) -> Result<(), Stop> {
    let Some(name) = Given::command_in(&words) else {
        return commands::print_help(None);
    };
    let known = COMMANDS.iter().find(|command| command.name == name);
    let Some(command) = known else {
        return Err(refused::refuse(&name).unwrap_or_else(|| Stop::unknown_command(&name)));
    };
    let given = Given::parse(&words, command)?;
    if given.has("help") {
        return commands::print_help(Some(command.name));
    }
    let url = given.url(access.url)?;
    let api = Management::new(url, access.tls, access.authorization).patient(given.patience()?);
    let formatter = Formatter::of(given.value("formatter").unwrap_or("table")).ok_or_else(|| {
        given.wrong(stop::USAGE, "the formatter is one of table, pretty_table, json and csv")
    })?;
    let given = given.in_vhost(access.vhost);
    let mut ctl = Ctl { api, given, formatter, out: BufWriter::new(io::stdout()), command };
    let done = (command.run)(&mut ctl).await;
    ctl.out.flush()?;
    done
}

impl Ctl {
    /// What is told besides the answer, unless somebody wants quiet or a program reads.
    fn say(&mut self, text: impl std::fmt::Display) -> Result<(), Stop> {
        let is_quiet = self.given.has("quiet") || self.given.has("silent");
        if !is_quiet && self.formatter.is_for_people() {
            writeln!(self.out, "{text}")?;
            // Seen before what may take long.
            self.out.flush()?;
        }
        Ok(())
    }

    /// A part of the answer.
    fn line(&mut self, text: impl std::fmt::Display) -> Result<(), Stop> {
        Ok(writeln!(self.out, "{text}")?)
    }

    /// The answer as rows of these columns.
    fn table(&mut self, columns: &[&str], rows: &[Vec<Value>]) -> Result<(), Stop> {
        let headless = self.given.has("no-table-headers") || self.given.has("silent");
        self.formatter.write(&mut self.out, columns, rows, !headless)?;
        Ok(())
    }

    /// A word of the command that must be there; their number has been checked.
    fn word(&self, at: usize) -> &str {
        self.given.words.get(at).map_or("", String::as_str)
    }

    fn vhost(&self) -> &str {
        &self.given.vhost
    }

    /// A mistake in what was typed.
    fn wrong(&self, code: u8, text: impl Into<String>) -> Stop {
        self.given.wrong(code, text)
    }

    /// What this node is called.
    async fn node(&mut self) -> Result<String, Stop> {
        let overview = self.api.get(&ApiPath::of(&["overview"])).await?;
        Ok(overview["node"].as_str().unwrap_or("nexo").to_owned())
    }

    /// A user that must be there.
    async fn user(&mut self, name: &str) -> Result<Value, Stop> {
        let found = self.api.get(&ApiPath::of(&["users", name])).await;
        found.map_err(|failure| if failure.is_not_found() { Stop::no_user(name) } else { failure.into() })
    }

    /// A virtual host that must be there.
    async fn vhost_there(&mut self, name: &str) -> Result<Value, Stop> {
        let found = self.api.get(&ApiPath::of(&["vhosts", name])).await;
        found.map_err(|failure| if failure.is_not_found() { Stop::no_vhost(name) } else { failure.into() })
    }
}

/// What was typed as JSON.
fn json_of(text: &str) -> Result<Value, Stop> {
    serde_json::from_str(text)
        .map_err(|error| Stop::error(stop::UNAVAILABLE, format!("JSON decoding error. Reason: {error}")))
}
