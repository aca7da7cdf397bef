//! `nexo policy`: settings for all queues and exchanges whose names match.

use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use nexo_grpc::proto;
use serde::Serialize;
use serde_json::{Value, json};

use super::queue::confirm;
use crate::cli::ServerArgs;
use crate::connect::Asked;
use crate::output::{Format, Printer};
use crate::view::{Figures, columns};

const EXAMPLES: &str = "\
A policy applies at once to all queues and exchanges of the virtual host whose names match its pattern;
of several that match, the one with the highest priority counts. When it is deleted, they are what they
were told to be themselves. Definitions are JSON with RabbitMQ's keys: message-ttl, expires, max-length,
max-length-bytes, overflow, dead-letter-exchange, dead-letter-routing-key, delivery-limit,
alternate-exchange; and visibility, max-attempts, retry, rate.

Examples:
  nexo policy set short-lived '^tmp\\.' '{\"message-ttl\": 60000, \"expires\": 3600000}' --apply-to queues
  nexo policy set bound '' '{\"max-length\": 1000000}' --operator
  nexo policy list --all-vhosts
  nexo policy delete short-lived --yes";

/// Settings for all queues and exchanges whose names match
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// Set a policy, in place of one of the same name
    Set {
        /// Its name
        name: String,
        /// A regular expression that names must match; '' matches all
        pattern: String,
        /// What it says: a JSON object
        definition: String,
        /// What it is for: queues, classic_queues, quorum_queues, exchanges or all
        #[arg(long, value_name = "WHAT", default_value = "all")]
        apply_to: String,
        /// Of several that match, the one with the highest counts
        #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
        priority: i64,
        #[command(flatten)]
        kind: KindArgs,
    },
    /// List policies of the virtual host
    List {
        /// Those of all virtual hosts
        #[arg(long)]
        all_vhosts: bool,
        #[command(flatten)]
        kind: KindArgs,
    },
    /// One policy
    Show {
        /// Its name
        name: String,
        #[command(flatten)]
        kind: KindArgs,
    },
    /// Delete a policy
    Delete {
        /// Its name
        name: String,
        /// Do not ask; needed where there is no terminal
        #[arg(long, short)]
        yes: bool,
        #[command(flatten)]
        kind: KindArgs,
    },
}

#[derive(Clone, Copy, Debug, clap::Args)]
struct KindArgs {
    /// An operator policy, which bounds what policies and queues may ask for
    #[arg(long)]
    operator: bool,
}

impl KindArgs {
    fn to_proto(self) -> i32 {
        let kind = if self.operator { proto::PolicyKind::Operator } else { proto::PolicyKind::Regular };
        kind.into()
    }

    const fn what(self) -> &'static str {
        if self.operator { "operator policy" } else { "policy" }
    }
}

/// A policy as it is printed.
#[derive(Debug, Serialize)]
struct PolicyView {
    vhost: String,
    name: String,
    operator: bool,
    pattern: String,
    apply_to: String,
    priority: i64,
    definition: Value,
}

impl From<proto::Policy> for PolicyView {
    fn from(policy: proto::Policy) -> Self {
        Self {
            operator: policy.kind() == proto::PolicyKind::Operator,
            definition: serde_json::from_str(&policy.definition).unwrap_or_default(),
            vhost: policy.vhost,
            name: policy.name,
            pattern: policy.pattern,
            apply_to: policy.apply_to,
            priority: policy.priority,
        }
    }
}

impl PolicyView {
    fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        figures
            .add("name", &self.name)
            .add("virtual host", &self.vhost)
            .add("pattern", &self.pattern)
            .add("applies to", &self.apply_to)
            .add("priority", self.priority)
            .add("definition", &self.definition);
        figures
    }
}

impl PolicyArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let mut admin = shared.connect().await?.admin();
        let mut out = Printer::new(shared.output);
        let vhost = shared.vhost.clone();
        match self.command {
            PolicyCommand::Set { name, pattern, definition, apply_to, priority, kind } => {
                let what = format!("set {} '{name}'", kind.what());
                let policy = proto::Policy {
                    vhost,
                    name: name.clone(),
                    kind: kind.to_proto(),
                    pattern,
                    apply_to,
                    priority,
                    definition,
                };
                let reply =
                    admin.put_policy(proto::PutPolicyRequest { policy: Some(policy) }).await.asked(what)?;
                let created = reply.into_inner().created;
                let text = format!("{} '{name}'", if created { "created" } else { "changed" });
                out.show(&json!({ "policy": name, "created": created }), text)?;
            }
            PolicyCommand::List { all_vhosts, kind } => {
                let vhost = if all_vhosts { String::new() } else { vhost };
                let request = proto::ListPoliciesRequest { vhost, kind: kind.to_proto() };
                let reply = admin.list_policies(request).await.asked("list policies")?;
                let views: Vec<PolicyView> =
                    reply.into_inner().policies.into_iter().map(PolicyView::from).collect();
                match out.format {
                    Format::Json => views.iter().try_for_each(|view| out.json(view))?,
                    Format::Text => out.line(table(&views))?,
                }
            }
            PolicyCommand::Show { name, kind } => {
                let what = format!("show {} '{name}'", kind.what());
                let request = proto::GetPolicyRequest { vhost, name, kind: kind.to_proto() };
                let reply = admin.get_policy(request).await.asked(what)?;
                let view = PolicyView::from(reply.into_inner().policy.context("the broker sent no policy")?);
                out.show(&view, view.figures())?;
            }
            PolicyCommand::Delete { name, yes, kind } => {
                confirm(yes, &format!("delete the {} '{name}'", kind.what()))?;
                let what = format!("delete {} '{name}'", kind.what());
                let request = proto::DeletePolicyRequest { vhost, name: name.clone(), kind: kind.to_proto() };
                admin.delete_policy(request).await.asked(what)?;
                out.show(&json!({ "policy": name, "deleted": true }), format_args!("deleted '{name}'"))?;
            }
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Policies, one a line.
fn table(policies: &[PolicyView]) -> comfy_table::Table {
    let mut table = columns(&["VHOST", "NAME", "PATTERN", "APPLIES TO", "PRIORITY", "DEFINITION"]);
    for policy in policies {
        table.add_row([
            policy.vhost.clone(),
            policy.name.clone(),
            policy.pattern.clone(),
            policy.apply_to.clone(),
            policy.priority.to_string(),
            policy.definition.to_string(),
        ]);
    }
    table
}
