//! `nexo jobs budget`: budgets of tokens, and what an API says of its own count.

use std::process::ExitCode;
use std::str::FromStr;

use anyhow::Context;
use clap::Subcommand;
use nexo_grpc::client::Client;
use nexo_grpc::proto;
use serde_json::json;

use crate::command::queue::confirm;
use crate::command::queue_settings::{Count, Limit};
use crate::connect::Asked;
use crate::output::{Format, Printer, note};
use crate::units::Span;
use crate::view::{budget_figures, budget_table, budget_value};

/// Budgets asked for at a time.
const PAGE: u32 = 1000;

const EXAMPLES: &str = "\
A job is taken when its budget has the tokens that it costs. Several job queues may share a budget.

Examples:
  nexo jobs budget set api --initial 20 --capacity 300 --refill 5/1m
  nexo jobs budget report api --left 12 --refill-in 30s
  nexo jobs budget grant api 100
  nexo jobs budget show api";

/// Make, change, look at and delete budgets of tokens
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct BudgetArgs {
    #[command(subcommand)]
    command: BudgetCommand,
}

#[derive(Debug, Subcommand)]
enum BudgetCommand {
    /// Make a budget, or change the settings that are given and leave the others
    Set {
        /// Its name
        name: String,
        /// The tokens that it has at first [default: 20]
        #[arg(long, value_name = "N")]
        initial: Option<u64>,
        /// The tokens that it holds at most [default: none]
        #[arg(long, value_name = "N|none")]
        capacity: Option<Limit<Count>>,
        /// Tokens that come again and again, like 5/1m [default: none]
        #[arg(long, value_name = "N/TIME|none")]
        refill: Option<Refill>,
    },
    /// Settings and figures of one budget
    Show {
        /// The budget
        name: String,
    },
    /// List budgets
    List {
        /// Only names that begin so
        #[arg(long, default_value = "", hide_default_value = true)]
        prefix: String,
    },
    /// Delete a budget that no job queue needs
    Delete {
        /// The budget
        name: String,
        /// Do not ask; needed where there is no terminal
        #[arg(long, short)]
        yes: bool,
    },
    /// Tell a budget what its API has said of its own count
    Report {
        /// The budget
        name: String,
        #[command(flatten)]
        report: ReportArgs,
    },
    /// Have tokens come once, now or later
    Grant {
        /// The budget
        name: String,
        /// How many
        tokens: u64,
        /// So long from now
        #[arg(long = "in", value_name = "TIME", default_value = "0s")]
        in_time: Span,
    },
}

/// What an API has said. What is not given was not said.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(super) struct ReportArgs {
    /// The tokens that the API has left
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    left: Option<i64>,
    /// When more of them come
    #[arg(long, value_name = "TIME")]
    refill_in: Option<Span>,
    /// How many come with each refill from then on; for a budget that has a refill
    #[arg(long, value_name = "N")]
    refill_tokens: Option<u64>,
}

impl ReportArgs {
    pub(super) fn to_proto(self) -> proto::TokenReport {
        proto::TokenReport {
            tokens_left: self.left,
            refill_in_ms: self.refill_in.map(Span::millis),
            refill_tokens: self.refill_tokens,
        }
    }
}

/// `TOKENS/TIME`, or none.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Refill(proto::TokenRefill);

impl FromStr for Refill {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(proto::TokenRefill::default()));
        }
        let malformed = || format!("'{text}' is not a refill; one looks like 5/1m, or is 'none'");
        let (tokens, every) = text.split_once('/').ok_or_else(malformed)?;
        let tokens = tokens.parse().ok().filter(|tokens: &u64| *tokens > 0).ok_or_else(malformed)?;
        Ok(Self(proto::TokenRefill { tokens, every_ms: every.parse::<Span>()?.millis() }))
    }
}

impl BudgetArgs {
    pub(super) async fn run(self, client: &Client, out: &mut Printer) -> anyhow::Result<ExitCode> {
        let mut jobs = client.jobs();
        match self.command {
            BudgetCommand::Set { name, initial, capacity, refill } => {
                let config = proto::BudgetConfig {
                    initial,
                    capacity: capacity.map(|limit| limit.or(0, |count| count.0)),
                    refill: refill.map(|refill| refill.0),
                };
                let request = proto::PutBudgetRequest {
                    budget: name.clone(),
                    config: Some(config),
                    vhost: client.vhost(),
                };
                let what = format!("set budget '{name}'");
                let created = jobs.put_budget(request).await.asked(what)?.into_inner().created;
                let text = if created { "created" } else { "changed" };
                out.show(&json!({ "budget": name, "created": created }), format_args!("{text} '{name}'"))?;
            }
            BudgetCommand::Show { name } => {
                let request = proto::GetBudgetRequest { budget: name.clone(), vhost: client.vhost() };
                let reply = jobs.get_budget(request).await.asked(format!("show budget '{name}'"))?;
                let budget = reply.into_inner().budget.context("the broker sent no budget")?;
                out.show(&budget_value(&budget), budget_figures(&budget))?;
            }
            BudgetCommand::List { prefix } => list(client, out, &prefix).await?,
            BudgetCommand::Delete { name, yes } => {
                confirm(yes, &format!("delete the budget '{name}'"))?;
                let request = proto::DeleteBudgetRequest { budget: name.clone(), vhost: client.vhost() };
                jobs.delete_budget(request).await.asked(format!("delete budget '{name}'"))?;
                out.show(&json!({ "budget": name, "deleted": true }), format_args!("deleted '{name}'"))?;
            }
            BudgetCommand::Report { name, report } => {
                let request = proto::ReportTokensRequest {
                    budget: name.clone(),
                    report: Some(report.to_proto()),
                    vhost: client.vhost(),
                };
                jobs.report_tokens(request).await.asked(format!("report tokens of '{name}'"))?;
                out.show(&json!({ "budget": name, "reported": true }), format_args!("noted for '{name}'"))?;
            }
            BudgetCommand::Grant { name, tokens, in_time } => {
                let request = proto::GrantTokensRequest {
                    budget: name.clone(),
                    tokens,
                    in_ms: in_time.millis(),
                    vhost: client.vhost(),
                };
                jobs.grant_tokens(request).await.asked(format!("grant tokens to '{name}'"))?;
                let value = json!({ "budget": name, "tokens": tokens, "in_ms": in_time.millis() });
                out.show(&value, format_args!("granted {tokens} tokens to '{name}'"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn list(client: &Client, out: &mut Printer, prefix: &str) -> anyhow::Result<()> {
    let mut budgets = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = proto::ListBudgetsRequest {
            prefix: prefix.to_owned(),
            page_size: PAGE,
            page_token,
            vhost: client.vhost(),
        };
        let page = client.jobs().list_budgets(request).await.asked("list budgets")?.into_inner();
        budgets.extend(page.budgets);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    match out.format {
        Format::Json => budgets.iter().try_for_each(|budget| out.json(&budget_value(budget)))?,
        Format::Text if budgets.is_empty() => note("there are no budgets"),
        Format::Text => out.line(budget_table(&budgets))?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refill_is_a_number_in_a_time() {
        let refill = |text: &str| text.parse::<Refill>().map(|refill| (refill.0.tokens, refill.0.every_ms));
        assert_eq!(refill("5/1m"), Ok((5, 60_000)));
        assert_eq!(refill("none"), Ok((0, 0)));
        for text in ["5", "0/1m", "x/1m", "5/", "5/1", ""] {
            assert!(refill(text).is_err(), "{text}");
        }
    }
}
