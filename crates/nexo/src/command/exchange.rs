//! `nexo exchange`: everything about exchanges themselves.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::queue::confirm;
use crate::cli::ServerArgs;
use crate::management::{ApiPath, Management, asked};
use crate::output::{Format, Printer};
use crate::view::{columns, json_figures, json_text};

const EXAMPLES: &str = "\
Messages that AMQP clients publish go to an exchange, which sends them on to the queues bound to it.

Examples:
  nexo exchange declare events --type topic
  nexo exchange declare later --type x-delayed-message --argument x-delayed-type=topic
  nexo binding add events mail --routing-key 'user.*'
  nexo exchange list
  nexo exchange delete events --if-unused --yes";

/// Declare, look at and delete exchanges
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExchangeArgs {
    #[command(subcommand)]
    command: ExchangeCommand,
}

#[derive(Debug, Subcommand)]
enum ExchangeCommand {
    /// List exchanges
    List {
        /// Those of all virtual hosts
        #[arg(long)]
        all_vhosts: bool,
    },
    /// What one exchange is, and what is bound to it
    Show {
        /// The exchange
        #[arg(value_name = "EXCHANGE")]
        name: String,
    },
    /// Declare an exchange; one that is there and the same is left alone
    Declare(DeclareArgs),
    /// Delete an exchange with its bindings
    Delete {
        /// The exchange
        #[arg(value_name = "EXCHANGE")]
        name: String,
        /// Only if nothing is bound to it
        #[arg(long)]
        if_unused: bool,
        /// Do not ask; needed where there is no terminal
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Debug, clap::Args)]
struct DeclareArgs {
    /// Its name
    #[arg(value_name = "EXCHANGE")]
    name: String,
    /// direct, fanout, topic, headers, x-consistent-hash or x-delayed-message
    #[arg(long = "type", value_name = "TYPE", default_value = "direct")]
    kind: String,
    /// It goes with the broker's process
    #[arg(long)]
    transient: bool,
    /// It goes when nothing is bound to it any more
    #[arg(long)]
    auto_delete: bool,
    /// Clients cannot publish to it; other exchanges can be bound to it
    #[arg(long)]
    internal: bool,
    /// An argument, like alternate-exchange=rest; what reads as a number, true or false is one
    #[arg(long = "argument", value_name = "NAME=VALUE", value_parser = argument)]
    arguments: Vec<(String, Value)>,
}

/// An argument of AMQP as it is typed.
pub(super) fn argument(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("'{text}' is not NAME=VALUE"))?;
    if name.is_empty() {
        return Err(format!("'{text}' has no name"));
    }
    let read = serde_json::from_str(value).ok().filter(|value: &Value| value.is_i64() || value.is_boolean());
    Ok((name.to_owned(), read.unwrap_or_else(|| value.into())))
}

impl ExchangeArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let mut api = shared.management();
        let mut out = Printer::new(shared.output);
        let vhost = shared.vhost.as_str();
        match self.command {
            ExchangeCommand::List { all_vhosts } => {
                let path =
                    if all_vhosts { ApiPath::of(&["exchanges"]) } else { ApiPath::of(&["exchanges", vhost]) };
                let all = asked("list exchanges", api.list(&path).await)?;
                list(&mut out, &all)?;
            }
            ExchangeCommand::Show { name } => show(&mut api, &mut out, vhost, &name).await?,
            ExchangeCommand::Declare(args) => declare(&mut api, &mut out, vhost, args).await?,
            ExchangeCommand::Delete { name, if_unused, yes } => {
                confirm(yes, &format!("delete the exchange '{name}' and its bindings"))?;
                let path = ApiPath::of(&["exchanges", vhost, &name]);
                let path = if if_unused { path.with("if-unused", "true") } else { path };
                asked(format!("delete exchange '{name}'"), api.delete(&path).await)?;
                out.show(
                    &json!({ "exchange": name, "deleted": true }),
                    format_args!("deleted exchange '{name}'"),
                )?;
            }
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

fn list(out: &mut Printer, all: &[Value]) -> anyhow::Result<()> {
    let mut table = columns(&["NAME", "VHOST", "TYPE", "DURABLE", "AUTO-DELETE", "INTERNAL"]);
    for exchange in all {
        if out.format == Format::Json {
            out.json(exchange)?;
            continue;
        }
        let name = Some(json_text(&exchange["name"])).filter(|name| !name.is_empty());
        let fields =
            ["vhost", "type", "durable", "auto_delete", "internal"].map(|field| json_text(&exchange[field]));
        table.add_row([name.unwrap_or_else(|| "(default)".to_owned())].into_iter().chain(fields));
    }
    if out.format == Format::Text {
        out.line(table)?;
    }
    Ok(())
}

async fn show(api: &mut Management, out: &mut Printer, vhost: &str, name: &str) -> anyhow::Result<()> {
    let what = format!("show exchange '{name}'");
    let mut shown = asked(what.clone(), api.get(&ApiPath::of(&["exchanges", vhost, name])).await)?;
    let path = ApiPath::of(&["exchanges", vhost, name, "bindings", "source"]);
    let bindings = asked(what, api.list(&path).await)?;
    // Figures that are not counted would only mislead.
    if let Some(fields) = shown.as_object_mut() {
        fields.retain(|field, _| !matches!(field.as_str(), "incoming" | "outgoing"));
    }
    let bound = bindings.len();
    shown["bindings"] = if out.format == Format::Json { Value::from(bindings) } else { bound.into() };
    out.show(&shown, json_figures(&shown))?;
    Ok(())
}

async fn declare(
    api: &mut Management,
    out: &mut Printer,
    vhost: &str,
    args: DeclareArgs,
) -> anyhow::Result<()> {
    let name = args.name;
    let body = json!({
        "type": args.kind,
        "durable": !args.transient,
        "auto_delete": args.auto_delete,
        "internal": args.internal,
        "arguments": Map::from_iter(args.arguments),
    });
    asked(
        format!("declare exchange '{name}'"),
        api.put(&ApiPath::of(&["exchanges", vhost, &name]), &body).await,
    )?;
    out.show(&json!({ "exchange": name }), format_args!("declared exchange '{name}'"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_numbers_truths_or_texts() {
        assert_eq!(argument("x-match=any"), Ok(("x-match".to_owned(), "any".into())));
        assert_eq!(argument("n=5").unwrap().1, 5);
        assert_eq!(argument("b=true").unwrap().1, true);
        assert_eq!(argument("t=a=b").unwrap().1, "a=b");
        assert!(argument("no").is_err() && argument("=x").is_err());
    }
}
