//! `nexo consumer`: who consumes from queues.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;

use crate::cli::ServerArgs;
use crate::management::{ApiPath, asked};
use crate::output::{Format, Printer, note};
use crate::view::{columns, json_text};

const EXAMPLES: &str = "\
Examples:
  nexo consumer list
  nexo consumer list --of mail
  nexo consumer list --all-vhosts --output json";

/// Look at who consumes from queues
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ConsumerArgs {
    #[command(subcommand)]
    command: ConsumerCommand,
}

#[derive(Debug, Subcommand)]
enum ConsumerCommand {
    /// List consumers over AMQP
    List {
        /// Those of all virtual hosts
        #[arg(long)]
        all_vhosts: bool,
        /// Only those of this queue
        #[arg(long, value_name = "QUEUE")]
        of: Option<String>,
    },
}

impl ConsumerArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let mut api = shared.management();
        let mut out = Printer::new(shared.output);
        let ConsumerCommand::List { all_vhosts, of } = self.command;
        let path =
            if all_vhosts { ApiPath::of(&["consumers"]) } else { ApiPath::of(&["consumers", &shared.vhost]) };
        let mut all = asked("list consumers", api.list(&path).await)?;
        all.retain(|consumer| of.as_ref().is_none_or(|queue| consumer["queue"]["name"] == *queue));
        list(&mut out, &all)?;
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

fn list(out: &mut Printer, all: &[Value]) -> anyhow::Result<()> {
    let mut table =
        columns(&["QUEUE", "VHOST", "TAG", "CHANNEL", "USER", "ACKS", "PREFETCH", "EXCLUSIVE", "STATUS"]);
    for consumer in all {
        if out.format == Format::Json {
            out.json(consumer)?;
            continue;
        }
        let (queue, channel) = (&consumer["queue"], &consumer["channel_details"]);
        table.add_row(
            [
                &queue["name"],
                &queue["vhost"],
                &consumer["consumer_tag"],
                &channel["name"],
                &channel["user"],
                &consumer["ack_required"],
                &consumer["prefetch_count"],
                &consumer["exclusive"],
                &consumer["activity_status"],
            ]
            .map(json_text),
        );
    }
    match out.format {
        Format::Json => {}
        Format::Text if all.is_empty() => note("nobody consumes over AMQP"),
        Format::Text => out.line(table)?,
    }
    Ok(())
}
