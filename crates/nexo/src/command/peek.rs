//! `nexo peek`: what lies at the head of a queue.

use std::process::ExitCode;

use nexo_grpc::proto;

use crate::cli::Shared;
use crate::connect::Asked;
use crate::output::{Format, Printer};
use crate::view::MessageView;

const EXAMPLES: &str = "\
Examples:
  nexo peek mail
  nexo peek mail_dlq --max 10 --output json | jq .dead_letter";

/// Show messages at the head of a queue without taking them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PeekArgs {
    /// The queue
    queue: String,
    /// Show at most this many
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    max: u32,
}

impl PeekArgs {
    pub(crate) async fn run(self, shared: &Shared) -> anyhow::Result<ExitCode> {
        let client = shared.server.connect().await?;
        let request = proto::PeekRequest { queue: self.queue.clone(), max: self.max };
        let what = format!("peek into '{}'", self.queue);
        let messages = client.messages().peek(request).await.asked(what)?.into_inner().messages;
        let mut out = Printer::new(shared.output);
        for message in &messages {
            match shared.output {
                Format::Json => out.json(&MessageView::new(&self.queue, message))?,
                Format::Text => out.bytes(&message.body)?,
            }
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}
