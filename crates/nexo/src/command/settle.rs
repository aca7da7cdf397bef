//! `nexo ack`, `nack`, `extend` and `received`: something about messages that were popped before.

use std::fmt::Display;
use std::process::ExitCode;

use nexo_grpc::proto;
use serde_json::json;

use crate::cli::ServerArgs;
use crate::connect::Asked;
use crate::output::{Printer, note};
use crate::plain::plain;
use crate::units::Span;
use crate::view::moment;

/// Say that messages are done
#[derive(Debug, clap::Args)]
pub(crate) struct AckArgs {
    /// The receipts, as `nexo pop --output json` shows them
    #[arg(required = true, value_name = "RECEIPT")]
    receipts: Vec<String>,
}

/// Say that the work on messages failed
#[derive(Debug, clap::Args)]
pub(crate) struct NackArgs {
    /// The receipts, as `nexo pop --output json` shows them
    #[arg(required = true, value_name = "RECEIPT")]
    receipts: Vec<String>,
    /// How long the messages wait before they are delivered again, instead of what the queue says
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, conflicts_with = "dead_letter")]
    delay: Option<Span>,
    /// They will never succeed: move them to the dead-letter queue now
    #[arg(long)]
    dead_letter: bool,
}

/// Ask for more time to work on messages
#[derive(Debug, clap::Args)]
pub(crate) struct ExtendArgs {
    /// The receipts, as `nexo pop --output json` shows them
    #[arg(required = true, value_name = "RECEIPT")]
    receipts: Vec<String>,
    /// How long the leases last from now
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, default_value = "30s")]
    visibility: Span,
}

/// Say that messages have arrived, in queues with a receipt timeout
#[derive(Debug, clap::Args)]
pub(crate) struct ReceivedArgs {
    /// The receipts, as `nexo pop --output json` shows them
    #[arg(required = true, value_name = "RECEIPT")]
    receipts: Vec<String>,
}

impl AckArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let mut messages = shared.connect().await?.messages();
        let request = proto::AckRequest { receipts: self.receipts };
        let what = asked("ack", &request.receipts);
        print(shared, "acked", messages.ack(request).await.asked(what)?.into_inner().results)
    }
}

impl NackArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let mut messages = shared.connect().await?.messages();
        let request = proto::NackRequest {
            receipts: self.receipts,
            delay_ms: self.delay.map(Span::millis),
            dead_letter: self.dead_letter,
            unseen: false,
        };
        let what = asked("nack", &request.receipts);
        print(shared, "nacked", messages.nack(request).await.asked(what)?.into_inner().results)
    }
}

impl ExtendArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let mut messages = shared.connect().await?.messages();
        let request =
            proto::ExtendRequest { receipts: self.receipts, visibility_ms: self.visibility.millis() };
        let what = asked("extend", &request.receipts);
        print(shared, "extended", messages.extend(request).await.asked(what)?.into_inner().results)
    }
}

impl ReceivedArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let mut messages = shared.connect().await?.messages();
        let request = proto::ReceivedRequest { receipts: self.receipts };
        let what = asked("received", &request.receipts);
        print(shared, "received", messages.received(request).await.asked(what)?.into_inner().results)
    }
}

/// What became of one receipt.
pub(crate) enum SettleOutcome {
    Done,
    Failed(String),
}

impl From<&proto::SettleResult> for SettleOutcome {
    fn from(result: &proto::SettleResult) -> Self {
        match &result.error {
            None => Self::Done,
            Some(error) => Self::Failed(plain(&error.message)),
        }
    }
}

/// A line about a receipt that failed.
pub(crate) fn report(receipt: &str, reason: impl Display) -> String {
    format!("nexo: {receipt}: {reason}")
}

fn asked(verb: &str, receipts: &[String]) -> String {
    match receipts {
        [one] => format!("{verb} '{one}'"),
        many => format!("{verb} {} receipts", many.len()),
    }
}

fn print(shared: &ServerArgs, done: &str, results: Vec<proto::SettleResult>) -> anyhow::Result<ExitCode> {
    let mut out = Printer::new(shared.output);
    let mut code = ExitCode::SUCCESS;
    for result in results {
        match SettleOutcome::from(&result) {
            SettleOutcome::Done => {
                let mut value = json!({ "receipt": result.receipt, "status": done });
                let mut text = format!("{} {done}", result.receipt);
                if let Some(until) = result.lease_until_ms {
                    value["lease_until_ms"] = until.into();
                    text.push_str(&format!(" until {}", moment(until)));
                }
                out.show(&value, text)?;
            }
            SettleOutcome::Failed(reason) => {
                code = ExitCode::FAILURE;
                match shared.output {
                    crate::output::Format::Json => {
                        out.json(
                            &json!({ "receipt": result.receipt, "status": "failed", "reason": reason }),
                        )?;
                    }
                    crate::output::Format::Text => note(report(&result.receipt, reason)),
                }
            }
        }
    }
    out.flush()?;
    Ok(code)
}
