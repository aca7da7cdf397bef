//! `nexo completions`: what a shell needs to complete commands, options and the names of queues.
//!
//! The scripts that clap makes know the command line and nothing of the broker. Where the name of a queue belongs they ask
//! a hidden command, which looks at the words that have been typed and asks the broker.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgAction, Command, CommandFactory};
use clap_complete::Shell;
use nexo_grpc::client::Credentials;
use nexo_grpc::proto;

use crate::cli::{Cli, ServerArgs};
use crate::connect::Server;
use crate::output::Printer;

/// Names offered at most: nobody chooses from more.
const NAMES_MAX: u32 = 1000;
/// Whoever presses a key does not wait longer than this.
const PATIENCE: Duration = Duration::from_secs(2);
/// What names a queue where a value is asked for.
const QUEUE: [&str; 2] = ["QUEUE", "NAME"];

const EXAMPLES: &str = "\
Names of queues are completed too (bash, zsh, fish), by asking the broker of --server or NEXO_SERVER.

Examples:
  nexo completions bash > ~/.local/share/bash-completion/completions/nexo
  nexo completions zsh > ~/.zfunc/_nexo
  nexo completions fish > ~/.config/fish/completions/nexo.fish";

const BASH: &str = r#"
_nexo_with_queues() {
    _nexo "$@"
    local cur="${COMP_WORDS[COMP_CWORD]}" name
    [[ $cur == -* ]] && return
    while IFS= read -r name; do
        [[ $name == "$cur"* ]] && COMPREPLY+=("$name")
    done < <(nexo complete-queues --prefix "$cur" -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)
}
complete -F _nexo_with_queues -o bashdefault -o default nexo
"#;

const ZSH: &str = r#"
_nexo_queues() {
    local -a names
    names=(${(f)"$(nexo complete-queues --prefix "$PREFIX" -- "${(@)words[2,CURRENT-1]}" 2>/dev/null)"})
    compadd -a names
}
"#;

const FISH: &str = r#"
complete -c nexo -f -a '(nexo complete-queues --prefix (commandline -ct) -- (commandline -opc)[2..-1] 2>/dev/null)'
"#;

/// Print the completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

impl CompletionsArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        io::stdout().write_all(script(self.shell).as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

fn script(shell: Shell) -> String {
    // Into memory first: writing straight to a pipe that is closed would panic inside.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "nexo", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => script + BASH,
        Shell::Zsh => with_zsh_queues(&script),
        Shell::Fish => script + FISH,
        // The others have no way to be asked that is worth its upkeep.
        _ => script,
    }
}

/// Has zsh ask for queues where it would offer files.
fn with_zsh_queues(script: &str) -> String {
    let lines = script.lines().map(|line| {
        let is_queue = [":queue -- ", ":name -- ", ":QUEUE:"].iter().any(|mark| line.contains(mark));
        if is_queue { line.replace(":_default'", ":_nexo_queues'") } else { line.to_owned() }
    });
    let lines: Vec<String> = lines.collect();
    // The first line says for which command the file is, and must stay the first.
    let (head, rest) = lines.split_at(1.min(lines.len()));
    format!("{}\n{ZSH}{}\n", head.join("\n"), rest.join("\n"))
}

/// Print the names of queues that fit where the words on a command line end
#[derive(Debug, clap::Args)]
pub(crate) struct CompleteQueuesArgs {
    /// What has been typed of the name
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    prefix: String,
    /// The words before it
    #[arg(last = true)]
    words: Vec<OsString>,
}

impl CompleteQueuesArgs {
    /// Whatever goes wrong, a shell that completes wants silence.
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let words: Vec<String> = self.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        if wants_queue(&words) {
            let server = value_in(&words, "--server").and_then(|server| server.parse().ok());
            let server: Server = server.unwrap_or_else(|| shared.server.clone());
            let vhost = value_in(&words, "--vhost").unwrap_or(&shared.vhost);
            let login = shared.login.credentials();
            let names = tokio::time::timeout(PATIENCE, names(&server, login, vhost, self.prefix)).await;
            let mut out = Printer::new(shared.output);
            for name in names.unwrap_or_default() {
                out.line(name)?;
            }
            out.flush()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn names(server: &Server, login: Credentials, vhost: &str, prefix: String) -> Vec<String> {
    let Ok(client) = server.connect().await else { return Vec::new() };
    let request = proto::ListQueuesRequest {
        prefix,
        page_size: NAMES_MAX,
        vhost: vhost.to_owned(),
        ..Default::default()
    };
    let page = client.with(login).queues().list_queues(request).await.map(tonic::Response::into_inner);
    page.map(|page| page.queues.into_iter().map(|queue| queue.name).collect()).unwrap_or_default()
}

/// Whether the word after these names a queue that exists.
fn wants_queue(words: &[String]) -> bool {
    let mut root = Cli::command();
    root.build();
    let mut command: &Command = &root;
    let mut positionals = 0;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--" {
            return false;
        }
        if let Some(option) = word.strip_prefix("--") {
            let found = command.get_arguments().find(|arg| arg.get_long() == Some(option));
            let takes_value =
                found.filter(|arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append));
            if let Some(arg) = takes_value
                && words.next().is_none()
            {
                return names_queue(arg);
            }
        } else if !word.starts_with('-') {
            match command.get_subcommands().find(|known| known.get_name() == word) {
                // What these name are virtual hosts, job queues and budgets.
                Some(known) if positionals == 0 && matches!(known.get_name(), "vhost" | "jobs") => {
                    return false;
                }
                Some(known) if positionals == 0 => command = known,
                _ => positionals += 1,
            }
        }
    }
    // A queue that is being created has a new name.
    command.get_name() != "create" && command.get_positionals().nth(positionals).is_some_and(names_queue)
}

fn names_queue(arg: &clap::Arg) -> bool {
    let names = arg.get_value_names().unwrap_or_default();
    names.len() == 1 && QUEUE.contains(&names[0].as_str()) && arg.get_id() != "id"
}

/// The value of an option on the command line.
fn value_in<'a>(words: &'a [String], option: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == option).map(|at| at + 1);
    let after = at.and_then(|at| words.get(at)).map(String::as_str);
    let joined = words.iter().find_map(|word| word.strip_prefix(option)?.strip_prefix('='));
    after.or(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(line: &str) -> bool {
        wants_queue(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_queue_is_offered_where_one_belongs() {
        for line in [
            "push",
            "pop --max 3",
            "consume --exec cat",
            "peek",
            "--server 127.0.0.1:1 peek",
            "stats",
            "queue show",
            "queue delete --yes",
            "queue redrive",
            "queue redrive mail_dlq --to",
            "queue update mail --dead-letter-queue",
            "produce",
        ] {
            assert!(wants(line), "{line}");
        }
    }

    #[test]
    fn nothing_is_offered_elsewhere() {
        for line in [
            "",
            "queue",
            "push mail",
            "queue create",
            "queue list --prefix",
            "pop --max",
            "ack",
            "consume mail --",
            "serve",
            "jobs take",
            "jobs queue show",
        ] {
            assert!(!wants(line), "{line}");
        }
    }

    #[test]
    fn the_scripts_ask_for_queues() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell);
            assert!(script.contains("nexo complete-queues --prefix"), "{shell}");
        }
        let zsh = script(Shell::Zsh);
        assert!(zsh.starts_with("#compdef nexo\n"));
        assert!(zsh.contains(":queue -- The queue:_nexo_queues'"), "{zsh}");
    }
}
