//! `nexo completions`: what a shell needs to complete commands and options.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;

const EXAMPLES: &str = "\
Examples:
  nexo completions bash > /etc/bash_completion.d/nexo
  nexo completions zsh > ~/.zfunc/_nexo
  nexo completions fish > ~/.config/fish/completions/nexo.fish";

/// Print the completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

impl CompletionsArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        // Into memory first: writing straight to a pipe that is closed would panic inside.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "nexo", &mut script);
        io::stdout().write_all(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}
