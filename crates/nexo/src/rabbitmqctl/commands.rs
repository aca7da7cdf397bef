//! What a command is, and how it is shown. All of them are in `table.rs`.

use std::future::Future;
use std::io::{self, Write};
use std::pin::Pin;

use super::Ctl;
use super::given::Opt;
use super::stop::Stop;
pub(super) use super::table::COMMANDS;

/// How all of them are used.
pub(super) const USAGE_LINE: &str =
    "rabbitmqctl [--node <node>] [--timeout <timeout>] [--longnames] [--quiet] <command> [<command options>]";

const OPTIONS: &str = "\
General Options

-n, --node <node>      the host of the node is asked, on port 15672
    --management <url> the management API to ask (NEXO_MANAGEMENT)
-t, --timeout <n>      how long an answer may take, in seconds
-q, --quiet            suppress informational messages
-s, --silent           suppress informational messages and the table header row
-p, --vhost <vhost>    the virtual host, for commands that are about one
    --formatter <name> table, pretty_table, json or csv
    --no-table-headers no table header row

It logs in as NEXO_USER with NEXO_PASSWORD, or with NEXO_TOKEN; without them as guest. NEXO_CA names a file with
certificates to trust in over https.";

/// What comes of a command.
type Done<'a> = Pin<Box<dyn Future<Output = Result<(), Stop>> + 'a>>;

/// A command.
pub(super) struct Command {
    pub(super) name: &'static str,
    pub(super) group: &'static str,
    pub(super) usage: &'static str,
    pub(super) about: &'static str,
    /// The least and the most words after the command.
    pub(super) words: (usize, usize),
    /// The options that it takes besides those of every command.
    pub(super) options: &'static [Opt],
    pub(super) run: for<'a> fn(&'a mut Ctl) -> Done<'a>,
}

/// `help` and `list_commands`.
pub(super) async fn help(ctl: &mut Ctl) -> Result<(), Stop> {
    if ctl.command.name == "list_commands" {
        return COMMANDS.iter().try_for_each(|command| ctl.line(command.name));
    }
    let asked = ctl.given.words.first();
    let known = asked.map(|asked| COMMANDS.iter().find(|command| command.name == asked.as_str()));
    match (asked, known) {
        (Some(asked), Some(None)) => {
            Err(super::refused::refuse(asked).unwrap_or_else(|| Stop::unknown_command(asked)))
        }
        (_, known) => print_help(known.flatten().map(|command| command.name)),
    }
}

/// How one command is used, or all of them.
pub(super) fn print_help(of: Option<&str>) -> Result<(), Stop> {
    let mut out = io::stdout().lock();
    match of.and_then(|name| COMMANDS.iter().find(|command| command.name == name)) {
        Some(command) => {
            writeln!(
                out,
                "\nUsage\n\nrabbitmqctl [--node <node>] [--longnames] [--quiet] {}\n",
                command.usage
            )?;
            writeln!(out, "{}.\n\n{OPTIONS}", command.about)?;
        }
        None => {
            writeln!(out, "\nUsage\n\n{USAGE_LINE}\n\nAvailable commands:")?;
            let mut group = "";
            for command in COMMANDS {
                if command.group != group {
                    group = command.group;
                    writeln!(out, "\n{group}:\n")?;
                }
                writeln!(out, "   {:30}{}", command.name, command.about)?;
            }
            writeln!(
                out,
                "\n{OPTIONS}\n\nUse 'rabbitmqctl help <command>' to learn more about a specific command"
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_there_once_and_its_usage_begins_with_its_name() {
        for command in COMMANDS {
            assert_eq!(
                COMMANDS.iter().filter(|other| other.name == command.name).count(),
                1,
                "{}",
                command.name
            );
            assert!(command.usage.starts_with(command.name), "{}", command.usage);
            for (_, option, _) in command.options {
                assert!(
                    command.usage.contains(&format!("--{option}"))
                        || matches!(*option, "format" | "skip-if-unchanged"),
                    "{option} of {}",
                    command.name
                );
            }
        }
    }
}
