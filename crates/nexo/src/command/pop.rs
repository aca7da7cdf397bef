//! `nexo pop`: takes messages from the head of a queue.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use nexo_grpc::client::Client;
use nexo_grpc::proto;

use crate::cli::Shared;
use crate::command::settle::{SettleOutcome, report};
use crate::connect::Asked;
use crate::output::{Format, Printer, note};
use crate::units::Span;
use crate::view::MessageView;

const EXAMPLES: &str = "\
Without --ack the messages stay leased and come back after the visibility timeout; --output json
shows the receipts that 'nexo ack', 'nack' and 'extend' take.

Examples:
  nexo pop mail --ack
  nexo pop mail --max 10 --wait 30s --output json
  nexo ack \"$(nexo pop mail --output json | jq -r .receipt)\"";

/// Take messages out of a queue
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PopArgs {
    /// The queue
    queue: String,
    /// Take at most this many
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    max: u32,
    /// Wait this long for the first
    #[arg(long, value_name = "TIME", default_value = "0s")]
    wait: Span,
    /// Lease the messages for this long, instead of what the queue says
    #[arg(long, value_name = "TIME")]
    visibility: Option<Span>,
    /// Acknowledge the messages once they are printed
    #[arg(long)]
    ack: bool,
}

impl PopArgs {
    pub(crate) async fn run(self, shared: &Shared) -> anyhow::Result<ExitCode> {
        let client = shared.server.connect().await?;
        let request = proto::PopRequest {
            queue: self.queue.clone(),
            max: self.max,
            wait_ms: self.wait.millis(),
            visibility_ms: self.visibility.map(Span::millis),
        };
        let what = format!("pop from '{}'", self.queue);
        let messages = client.messages().pop(request).await.asked(what)?.into_inner().messages;
        let mut out = Printer::new(shared.output);
        for message in &messages {
            match shared.output {
                Format::Json => out.json(&MessageView::new(&self.queue, message))?,
                Format::Text => out.bytes(&message.body)?,
            }
        }
        out.flush()?;
        if self.ack {
            return ack(&client, messages).await;
        }
        if shared.output == Format::Text && io::stderr().is_terminal() {
            for message in &messages {
                note(format_args!(
                    "(message {}, attempt {}, receipt {})",
                    message.id, message.attempt, message.receipt
                ));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Only after they are printed: whoever dies in between has not lost them.
async fn ack(client: &Client, messages: Vec<proto::Message>) -> anyhow::Result<ExitCode> {
    if messages.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let receipts = messages.into_iter().map(|message| message.receipt).collect();
    let reply = client.messages().ack(proto::AckRequest { receipts }).await.asked("ack what was popped")?;
    let mut failed = false;
    for result in reply.into_inner().results {
        if let SettleOutcome::Failed(reason) = SettleOutcome::from(&result) {
            note(report(&result.receipt, &reason));
            failed = true;
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
