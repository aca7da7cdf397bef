//! `nexo pop`: takes messages from the head of a queue.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use nexo_grpc::client::Client;
use nexo_grpc::proto;

use crate::cli::{ServerArgs, at_least_one};
use crate::command::settle::{SettleOutcome, report};
use crate::connect::Asked;
use crate::output::{Format, Lines, note, render};
use crate::reader::Reader;
use crate::units::Span;

const EXAMPLES: &str = "\
Without --ack the messages stay leased and come back after the visibility timeout; --output json
shows the receipts that 'nexo ack', 'nack' and 'extend' take.

Examples:
  nexo pop mail --ack
  nexo pop images --ack --raw > picture.png
  nexo pop mail --max 10 --wait 30s --output json
  nexo ack \"$(nexo pop mail --output json | jq -r .receipt)\"";

/// Take messages out of a queue
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PopArgs {
    /// The queue
    queue: String,
    /// Take at most this many
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one())]
    max: u64,
    /// Wait this long for the first
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, default_value = "0s")]
    wait: Span,
    /// Lease the messages for this long, instead of what the queue says
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    visibility: Option<Span>,
    /// Acknowledge the messages once they are printed
    #[arg(long)]
    ack: bool,
    /// Print the bodies as they are, with nothing between them
    #[arg(long)]
    raw: bool,
}

impl PopArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let client = shared.connect().await?;
        let request = proto::PopRequest {
            queue: self.queue.clone(),
            max: u32::try_from(self.max).unwrap_or(u32::MAX),
            wait_ms: self.wait.millis(),
            visibility_ms: self.visibility.map(Span::millis),
            vhost: client.vhost(),
        };
        let what = format!("pop from '{}'", self.queue);
        let messages = client.messages().pop(request).await.asked(what)?.into_inner().messages;
        let lines = if self.raw { Lines::Raw } else { Lines::Ended };
        let mut reader = Reader::new();
        let mut read = 0;
        let mut gone = None;
        for message in &messages {
            let handed =
                render(&self.queue, message, shared.output, lines).and_then(|bytes| reader.hand_over(&bytes));
            if let Err(error) = handed {
                gone = Some(error);
                break;
            }
            read += 1;
        }
        let mut messages = messages;
        let unread = messages.split_off(read);
        if !unread.is_empty() {
            give_back(&client, unread).await?;
        }
        let code = if self.ack { ack(&client, &messages).await? } else { ExitCode::SUCCESS };
        if let Some(error) = gone {
            return Err(error.into());
        }
        if self.ack {
            return Ok(code);
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

/// Whoever read the output has gone: nobody has seen these.
async fn give_back(client: &Client, messages: Vec<proto::Message>) -> anyhow::Result<()> {
    let receipts = messages.into_iter().map(|message| message.receipt).collect();
    let request = proto::NackRequest { receipts, unseen: true, ..Default::default() };
    client.messages().nack(request).await.asked("return what nobody read")?;
    Ok(())
}

/// Only after they are read: whoever dies in between has not lost them.
async fn ack(client: &Client, messages: &[proto::Message]) -> anyhow::Result<ExitCode> {
    if messages.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let receipts = messages.iter().map(|message| message.receipt.clone()).collect();
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
