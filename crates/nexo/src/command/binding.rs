//! `nexo binding`: what leads from exchanges to queues and other exchanges.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::exchange::argument;
use crate::cli::ServerArgs;
use crate::management::{ApiPath, Management, asked};
use crate::output::{Format, Printer};
use crate::view::{columns, json_text};

const EXAMPLES: &str = "\
Examples:
  nexo binding add events mail --routing-key 'user.*'
  nexo binding add events audit --to-exchange --routing-key '#'
  nexo binding add by-kind mail --argument x-match=all --argument kind=letter
  nexo binding list --exchange events
  nexo binding delete events mail --routing-key 'user.*'";

/// Bind queues and exchanges to exchanges
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BindingArgs {
    #[command(subcommand)]
    command: BindingCommand,
}

#[derive(Debug, Subcommand)]
enum BindingCommand {
    /// List bindings
    List {
        /// Those of all virtual hosts
        #[arg(long)]
        all_vhosts: bool,
        /// Only those that lead from this exchange
        #[arg(long, value_name = "EXCHANGE")]
        exchange: Option<String>,
        /// Only those that lead to this queue
        #[arg(long, value_name = "QUEUE")]
        queue: Option<String>,
    },
    /// Bind a queue or an exchange; a binding that is there is left alone
    Add(Ends),
    /// Take a binding away
    Delete(Ends),
}

#[derive(Debug, clap::Args)]
struct Ends {
    /// The exchange that messages come from
    #[arg(value_name = "EXCHANGE")]
    source: String,
    /// The queue that they go to
    #[arg(value_name = "DESTINATION")]
    destination: String,
    /// The destination is an exchange
    #[arg(long)]
    to_exchange: bool,
    /// The routing key, or a pattern of routing keys
    #[arg(long, value_name = "KEY", default_value = "", hide_default_value = true)]
    routing_key: String,
    /// An argument, for exchanges that look at headers; may be given more than once
    #[arg(long = "argument", value_name = "NAME=VALUE", value_parser = argument)]
    arguments: Vec<(String, Value)>,
}

impl Ends {
    /// All bindings between the two.
    fn path(&self, vhost: &str) -> ApiPath {
        let kind = if self.to_exchange { "e" } else { "q" };
        ApiPath::of(&["bindings", vhost, "e", &self.source, kind, &self.destination])
    }
}

impl BindingArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let mut api = shared.management();
        let mut out = Printer::new(shared.output);
        let vhost = shared.vhost.as_str();
        match self.command {
            BindingCommand::List { all_vhosts, exchange, queue } => {
                let path =
                    if all_vhosts { ApiPath::of(&["bindings"]) } else { ApiPath::of(&["bindings", vhost]) };
                let mut all = asked("list bindings", api.list(&path).await)?;
                all.retain(|binding| {
                    let from = exchange.as_ref().is_none_or(|exchange| binding["source"] == *exchange);
                    let to = queue.as_ref().is_none_or(|queue| {
                        binding["destination"] == *queue && binding["destination_type"] == "queue"
                    });
                    from && to
                });
                list(&mut out, &all)?;
            }
            BindingCommand::Add(ends) => {
                let what = format!("bind '{}' to '{}'", ends.destination, ends.source);
                let arguments = Map::from_iter(ends.arguments.clone());
                let body = json!({ "routing_key": ends.routing_key, "arguments": arguments });
                asked(what, api.post(&ends.path(vhost), &body).await)?;
                let text = format!("bound '{}' to '{}'", ends.destination, ends.source);
                out.show(&shown(&ends), text)?;
            }
            BindingCommand::Delete(ends) => delete(&mut api, &mut out, vhost, &ends).await?,
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

fn shown(ends: &Ends) -> Value {
    json!({ "source": ends.source, "destination": ends.destination, "routing_key": ends.routing_key })
}

/// The API knows a binding by a key of its own, which is found in the list.
async fn delete(api: &mut Management, out: &mut Printer, vhost: &str, ends: &Ends) -> anyhow::Result<()> {
    let what = format!("unbind '{}' from '{}'", ends.destination, ends.source);
    let all = asked(what.clone(), api.list(&ends.path(vhost)).await)?;
    let arguments = Value::Object(Map::from_iter(ends.arguments.clone()));
    let found = all
        .iter()
        .find(|binding| binding["routing_key"] == ends.routing_key && binding["arguments"] == arguments);
    let key = found.and_then(|binding| binding["properties_key"].as_str());
    let Some(key) = key else { anyhow::bail!("{what}: there is no such binding") };
    let kind = if ends.to_exchange { "e" } else { "q" };
    let path = ApiPath::of(&["bindings", vhost, "e", &ends.source, kind, &ends.destination, key]);
    asked(what, api.delete(&path).await)?;
    out.show(&shown(ends), format_args!("unbound '{}' from '{}'", ends.destination, ends.source))?;
    Ok(())
}

fn list(out: &mut Printer, all: &[Value]) -> anyhow::Result<()> {
    let mut table = columns(&["SOURCE", "VHOST", "TO", "DESTINATION", "KEY", "ARGUMENTS"]);
    for binding in all {
        if out.format == Format::Json {
            out.json(binding)?;
            continue;
        }
        let source = Some(json_text(&binding["source"])).filter(|source| !source.is_empty());
        let fields = ["vhost", "destination_type", "destination", "routing_key", "arguments"];
        let fields = fields.map(|field| json_text(&binding[field]));
        table.add_row([source.unwrap_or_else(|| "(default)".to_owned())].into_iter().chain(fields));
    }
    if out.format == Format::Text {
        out.line(table)?;
    }
    Ok(())
}
