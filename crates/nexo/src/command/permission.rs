//! `nexo permission`: what users may do in a virtual host.

use std::process::ExitCode;

use clap::Subcommand;
use nexo_grpc::client::Client;
use nexo_grpc::proto;
use serde_json::json;

use super::user::users;
use crate::cli::ServerArgs;
use crate::connect::Asked;
use crate::output::{Format, Printer};
use crate::view::columns;

const EXAMPLES: &str = "\
A pattern is a regular expression that matches anywhere in a name unless it is anchored; an empty
one matches nothing. Configure is to make, change and delete; write is to send to an exchange or a
queue; read is to take from a queue or to bind to an exchange.

Examples:
  nexo permission set ann --configure '^ann-' --write '.*' --read '^ann-'
  nexo permission set ann --all
  nexo permission set ann --exchange events --write '^ann\\.' --read '.*'
  nexo permission clear ann";

/// Say what users may do in a virtual host
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PermissionArgs {
    #[command(subcommand)]
    command: PermissionCommand,
}

#[derive(Debug, Subcommand)]
enum PermissionCommand {
    /// List permissions
    List {
        /// Only those of this user
        #[arg(long = "of", value_name = "NAME")]
        user: Option<String>,
    },
    /// Say what a user may do; what is left out it may not
    Set {
        /// The user
        name: String,
        /// Of the topics of this exchange: routing keys in place of names
        #[arg(long, value_name = "NAME", conflicts_with_all = ["configure", "all"])]
        exchange: Option<String>,
        /// Make, change and delete what matches
        #[arg(long, value_name = "PATTERN", default_value = "", hide_default_value = true)]
        configure: String,
        /// Send to what matches
        #[arg(long, value_name = "PATTERN", default_value = "", hide_default_value = true)]
        write: String,
        /// Take from what matches
        #[arg(long, value_name = "PATTERN", default_value = "", hide_default_value = true)]
        read: String,
        /// Everything
        #[arg(long, conflicts_with_all = ["configure", "write", "read"])]
        all: bool,
    },
    /// Take a virtual host away from a user, or what is said of the topics of an exchange
    Clear {
        /// The user
        name: String,
        /// Only what is said of the topics of this exchange
        #[arg(long, value_name = "NAME")]
        exchange: Option<String>,
    },
}

impl PermissionArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let client = shared.connect().await?;
        let mut out = Printer::new(shared.output);
        match self.command {
            PermissionCommand::List { user } => list(&client, &mut out, user.as_deref()).await?,
            PermissionCommand::Set { name, exchange: Some(exchange), write, read, .. } => {
                let vhost = shared.vhost.clone();
                let what = format!("set topic permissions of '{name}'");
                let value = json!({ "user": name, "vhost": vhost, "exchange": exchange, "write": write, "read": read });
                let permissions = Some(proto::TopicPermissions { vhost, exchange, write, read });
                let request = proto::SetTopicPermissionsRequest { user: name.clone(), permissions };
                client.users().set_topic_permissions(request).await.asked(what)?;
                out.show(&value, format_args!("set topic permissions of user '{name}'"))?;
            }
            PermissionCommand::Set { name, configure, write, read, all, exchange: None } => {
                let vhost = shared.vhost.clone();
                let what = format!("set permissions of '{name}'");
                let pattern = |given: String| if all { ".*".to_owned() } else { given };
                let (configure, write, read) = (pattern(configure), pattern(write), pattern(read));
                let value = json!({ "user": name, "vhost": vhost, "configure": configure, "write": write, "read": read });
                let text = format!("set permissions of user '{name}' in '{vhost}'");
                let permissions = Some(proto::Permissions { vhost, configure, write, read });
                let request = proto::SetPermissionsRequest { user: name, permissions };
                client.users().set_permissions(request).await.asked(what)?;
                out.show(&value, text)?;
            }
            PermissionCommand::Clear { name, exchange } => {
                clear(&client, &mut out, name, shared.vhost.clone(), exchange).await?;
            }
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

async fn clear(
    client: &Client,
    out: &mut Printer,
    user: String,
    vhost: String,
    exchange: Option<String>,
) -> anyhow::Result<()> {
    let what = format!("clear permissions of '{user}'");
    let value = json!({ "user": user, "vhost": vhost, "exchange": exchange, "cleared": true });
    let text = format!("cleared permissions of user '{user}' in '{vhost}'");
    match exchange {
        Some(exchange) => {
            let request = proto::ClearTopicPermissionsRequest { user, vhost, exchange };
            client.users().clear_topic_permissions(request).await.asked(what)?;
        }
        None => {
            let request = proto::ClearPermissionsRequest { user, vhost };
            client.users().clear_permissions(request).await.asked(what)?;
        }
    }
    out.show(&value, text)?;
    Ok(())
}

async fn list(client: &Client, out: &mut Printer, only: Option<&str>) -> anyhow::Result<()> {
    let mut table = columns(&["USER", "VHOST", "EXCHANGE", "CONFIGURE", "WRITE", "READ"]);
    for user in users(client).await? {
        if only.is_some_and(|only| only != user.name) {
            continue;
        }
        let name = &user.name;
        for proto::Permissions { vhost, configure, write, read } in &user.permissions {
            if out.format == Format::Json {
                out.json(&json!({
                    "user": name, "vhost": vhost, "configure": configure, "write": write, "read": read
                }))?;
            }
            table.add_row([name, vhost, "", configure, write, read]);
        }
        for proto::TopicPermissions { vhost, exchange, write, read } in &user.topic_permissions {
            if out.format == Format::Json {
                out.json(&json!({
                    "user": name, "vhost": vhost, "exchange": exchange, "write": write, "read": read
                }))?;
            }
            table.add_row([name, vhost, exchange, "", write, read]);
        }
    }
    if out.format == Format::Text {
        out.line(table)?;
    }
    Ok(())
}
