//! `nexo vhost`: everything about virtual hosts themselves.

use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use nexo_grpc::proto;
use serde_json::json;

use super::queue::confirm;
use crate::cli::ServerArgs;
use crate::connect::Asked;
use crate::output::{Format, Printer};
use crate::view::{VhostView, vhost_table};

const EXAMPLES: &str = "\
A virtual host is a name space of its own for queues, exchanges and bindings. AMQP clients name it in the
path of their address; here --vhost does.

Examples:
  nexo vhost add acme --description 'Orders of Acme' --max-queues 100
  nexo queue create orders --vhost acme
  nexo vhost list
  nexo vhost delete acme --yes";

/// Create, change, look at and delete virtual hosts
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VhostArgs {
    #[command(subcommand)]
    command: VhostCommand,
}

#[derive(Debug, Subcommand)]
enum VhostCommand {
    /// List virtual hosts
    List,
    /// Settings and figures of one virtual host
    Show {
        /// The virtual host
        name: String,
    },
    /// Create a virtual host
    Add {
        /// Its name
        name: String,
        #[command(flatten)]
        settings: VhostSettings,
    },
    /// Change the settings that are given and leave the others
    Update {
        /// The virtual host
        name: String,
        #[command(flatten)]
        settings: VhostSettings,
    },
    /// Delete a virtual host with all queues, messages, exchanges and bindings in it
    Delete {
        /// The virtual host
        name: String,
        /// Do not ask; needed where there is no terminal
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Debug, clap::Args)]
struct VhostSettings {
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// A tag; may be given more than once, and replaces those there are
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// The type of queues that AMQP clients declare without one: classic or quorum; empty for none
    #[arg(long, value_name = "TYPE")]
    default_queue_type: Option<String>,
    /// AMQP connections that may be open in it; -1 for any number
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_connections: Option<i64>,
    /// Queues that it may have; -1 for any number
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_queues: Option<i64>,
}

impl VhostSettings {
    fn into_proto(self) -> proto::VhostConfig {
        proto::VhostConfig {
            description: self.description,
            tags: (!self.tags.is_empty()).then_some(proto::VhostTags { tags: self.tags }),
            default_queue_type: self.default_queue_type,
            max_connections: self.max_connections,
            max_queues: self.max_queues,
        }
    }
}

impl VhostArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let mut admin = shared.connect().await?.admin();
        let mut out = Printer::new(shared.output);
        match self.command {
            VhostCommand::List => {
                let reply = admin.list_vhosts(proto::ListVhostsRequest {}).await.asked("list vhosts")?;
                let views: Vec<VhostView> =
                    reply.into_inner().vhosts.into_iter().map(VhostView::from).collect();
                match out.format {
                    Format::Json => views.iter().try_for_each(|view| out.json(view))?,
                    Format::Text => out.line(vhost_table(&views))?,
                }
            }
            VhostCommand::Show { name } => {
                let what = format!("show vhost '{name}'");
                let reply = admin.get_vhost(proto::GetVhostRequest { vhost: name }).await.asked(what)?;
                let view = VhostView::from(reply.into_inner().vhost.context("the broker sent no vhost")?);
                out.show(&view, view.figures())?;
            }
            VhostCommand::Add { name, settings } => {
                let config = Some(settings.into_proto());
                let request = proto::PutVhostRequest { vhost: name.clone(), config, only_new: true };
                admin.put_vhost(request).await.asked(format!("add vhost '{name}'"))?;
                out.show(&json!({ "vhost": name, "created": true }), format_args!("created '{name}'"))?;
            }
            VhostCommand::Update { name, settings } => {
                let what = format!("update vhost '{name}'");
                // Who mistypes a name does not want another virtual host.
                let found = proto::GetVhostRequest { vhost: name.clone() };
                admin.get_vhost(found).await.asked(what.clone())?;
                let config = Some(settings.into_proto());
                let request = proto::PutVhostRequest { vhost: name.clone(), config, only_new: false };
                admin.put_vhost(request).await.asked(what)?;
                out.show(&json!({ "vhost": name, "created": false }), format_args!("changed '{name}'"))?;
            }
            VhostCommand::Delete { name, yes } => {
                confirm(yes, &format!("delete the virtual host '{name}' with all that is in it"))?;
                let request = proto::DeleteVhostRequest { vhost: name.clone() };
                let reply = admin.delete_vhost(request).await.asked(format!("delete vhost '{name}'"))?;
                let proto::DeleteVhostResponse { queues, messages } = reply.into_inner();
                let text = format!("deleted '{name}' with {queues} queues and {messages} messages");
                out.show(&json!({ "vhost": name, "queues": queues, "messages": messages }), text)?;
            }
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}
