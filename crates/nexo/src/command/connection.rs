//! `nexo connection`: who is connected, and how to send somebody away.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};

use super::queue::confirm;
use crate::cli::ServerArgs;
use crate::management::{ApiPath, Management, asked};
use crate::output::{Format, Printer, note};
use crate::view::{columns, json_figures, json_text};

const EXAMPLES: &str = "\
A connection is named by both its ends, as the list shows it.

Examples:
  nexo connection list
  nexo connection list --of-user ann
  nexo connection show '127.0.0.1:51870 -> 127.0.0.1:5672'
  nexo connection close '127.0.0.1:51870 -> 127.0.0.1:5672' --reason 'maintenance' --yes
  nexo connection close --of-user ann --reason 'password changed' --yes";

/// Look at connections, and close them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ConnectionArgs {
    #[command(subcommand)]
    command: ConnectionCommand,
}

#[derive(Debug, Subcommand)]
enum ConnectionCommand {
    /// List AMQP connections of all virtual hosts
    List {
        /// Only those of this user
        #[arg(long, value_name = "USER")]
        of_user: Option<String>,
    },
    /// Everything about one connection
    Show {
        /// The connection
        #[arg(value_name = "CONNECTION")]
        name: String,
    },
    /// Close a connection, or all of a user; clients are told the reason
    Close {
        /// The connection
        #[arg(value_name = "CONNECTION", required_unless_present = "of_user", conflicts_with = "of_user")]
        name: Option<String>,
        /// All connections of this user
        #[arg(long, value_name = "USER")]
        of_user: Option<String>,
        /// What the client is told
        #[arg(long, value_name = "TEXT", default_value = "closed by an operator")]
        reason: String,
        /// Do not ask; needed where there is no terminal
        #[arg(long, short)]
        yes: bool,
    },
}

impl ConnectionArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let mut api = shared.management();
        let mut out = Printer::new(shared.output);
        match self.command {
            ConnectionCommand::List { of_user } => {
                let all = asked("list connections", api.list(&of(of_user.as_deref())).await)?;
                list(&mut out, &all)?;
            }
            ConnectionCommand::Show { name } => {
                let what = format!("show connection '{name}'");
                let shown = asked(what, api.get(&ApiPath::of(&["connections", &name])).await)?;
                out.show(&shown, json_figures(&shown))?;
            }
            ConnectionCommand::Close { name: Some(name), reason, yes, .. } => {
                confirm(yes, &format!("close the connection '{name}'"))?;
                let path = ApiPath::of(&["connections", &name]);
                asked(format!("close connection '{name}'"), api.delete_because(&path, &reason).await)?;
                let value = json!({ "connection": name, "reason": reason });
                out.show(&value, format_args!("closed connection '{name}'"))?;
            }
            ConnectionCommand::Close { name: None, of_user, reason, yes } => {
                close_all(&mut api, &mut out, &of_user.unwrap_or_default(), &reason, yes).await?;
            }
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

fn of(user: Option<&str>) -> ApiPath {
    user.map_or_else(|| ApiPath::of(&["connections"]), |user| ApiPath::of(&["connections", "username", user]))
}

async fn close_all(
    api: &mut Management,
    out: &mut Printer,
    user: &str,
    reason: &str,
    yes: bool,
) -> anyhow::Result<()> {
    let what = format!("close all connections of user '{user}'");
    let count = asked(what.clone(), api.list(&of(Some(user)).with("columns", "name")).await)?.len();
    if count > 0 {
        confirm(yes, &format!("close {count} connections of user '{user}'"))?;
        asked(what, api.delete_because(&of(Some(user)), reason).await)?;
    }
    let value = json!({ "user": user, "closed": count, "reason": reason });
    out.show(&value, format_args!("closed {count} connections of user '{user}'"))?;
    Ok(())
}

fn list(out: &mut Printer, all: &[Value]) -> anyhow::Result<()> {
    let mut table = columns(&["CONNECTION", "USER", "VHOST", "STATE", "CHANNELS", "TLS", "CLIENT"]);
    for connection in all {
        if out.format == Format::Json {
            out.json(connection)?;
            continue;
        }
        let fields =
            ["name", "user", "vhost", "state", "channels", "ssl"].map(|field| json_text(&connection[field]));
        let own = &connection["client_properties"];
        let client = [&own["connection_name"], &own["product"]].into_iter().find(|value| value.is_string());
        table.add_row(fields.into_iter().chain([client.map(json_text).unwrap_or_default()]));
    }
    match out.format {
        Format::Json => {}
        Format::Text if all.is_empty() => note("there are no connections"),
        Format::Text => out.line(table)?,
    }
    Ok(())
}
