//! `nexo channel`: what is under way on the channels of connections.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;

use crate::cli::ServerArgs;
use crate::management::{ApiPath, asked};
use crate::output::{Format, Printer, note};
use crate::view::{columns, json_figures, json_text};

const EXAMPLES: &str = "\
A channel is named by its connection and its number, as the list shows it.

Examples:
  nexo channel list
  nexo channel list --of '127.0.0.1:51870 -> 127.0.0.1:5672'
  nexo channel show '127.0.0.1:51870 -> 127.0.0.1:5672 (1)'";

/// Look at the channels of connections
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ChannelArgs {
    #[command(subcommand)]
    command: ChannelCommand,
}

#[derive(Debug, Subcommand)]
enum ChannelCommand {
    /// List the channels of all virtual hosts
    List {
        /// Only those of this connection
        #[arg(long, value_name = "CONNECTION")]
        of: Option<String>,
    },
    /// Everything about one channel
    Show {
        /// The channel
        #[arg(value_name = "CHANNEL")]
        name: String,
    },
}

impl ChannelArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let mut api = shared.management();
        let mut out = Printer::new(shared.output);
        match self.command {
            ChannelCommand::List { of } => {
                let path = match &of {
                    Some(connection) => ApiPath::of(&["connections", connection, "channels"]),
                    None => ApiPath::of(&["channels"]),
                };
                let all = asked("list channels", api.list(&path).await)?;
                list(&mut out, &all)?;
            }
            ChannelCommand::Show { name } => {
                let what = format!("show channel '{name}'");
                let shown = asked(what, api.get(&ApiPath::of(&["channels", &name])).await)?;
                out.show(&shown, json_figures(&shown))?;
            }
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

fn list(out: &mut Printer, all: &[Value]) -> anyhow::Result<()> {
    let mut table =
        columns(&["CHANNEL", "USER", "VHOST", "CONSUMERS", "PREFETCH", "UNACKED", "UNCONFIRMED", "CONFIRMS"]);
    for channel in all {
        if out.format == Format::Json {
            out.json(channel)?;
            continue;
        }
        let fields = [
            "name",
            "user",
            "vhost",
            "consumer_count",
            "prefetch_count",
            "messages_unacknowledged",
            "messages_unconfirmed",
            "confirm",
        ];
        table.add_row(fields.map(|field| json_text(&channel[field])));
    }
    match out.format {
        Format::Json => {}
        Format::Text if all.is_empty() => note("there are no channels"),
        Format::Text => out.line(table)?,
    }
    Ok(())
}
