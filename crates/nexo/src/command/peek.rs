//! `nexo peek`: what lies at the head of a queue.

use std::io;
use std::process::ExitCode;

use nexo_grpc::proto;
use nexo_types::limits;

use crate::cli::{ServerArgs, at_least_one};
use crate::connect::Asked;
use crate::output::{Format, Printer};
use crate::view::MessageView;

/// Messages asked for at a time: as many as the broker shows in one answer.
const PAGE: u32 = limits::PEEK_MAX as u32;

const EXAMPLES: &str = "\
Shows what could be delivered now, in the order of delivery: not what is leased, delayed or waits behind
another message of its group. It may change before the next command.

Examples:
  nexo peek mail
  nexo peek mail --max 5000 --raw | wc -c
  nexo peek mail_dlq --max 10 --output json | jq .dead_letter";

/// Show messages at the head of a queue without taking them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PeekArgs {
    /// The queue
    queue: String,
    /// Show at most this many
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one())]
    max: u64,
    /// Only the bodies, as they are, with nothing between them
    #[arg(long)]
    raw: bool,
}

impl PeekArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let client = shared.connect().await?;
        let mut out = Printer::new(shared.output);
        let mut left = self.max;
        let mut page_token = String::new();
        while left > 0 {
            let max = u32::try_from(left).map_or(PAGE, |left| left.min(PAGE));
            let request =
                proto::PeekRequest { queue: self.queue.clone(), max, page_token, vhost: client.vhost() };
            let what = format!("peek into '{}'", self.queue);
            let page = client.messages().peek(request).await.asked(what)?.into_inner();
            left = left.saturating_sub(page.messages.len() as u64);
            for message in &page.messages {
                self.print(&mut out, message)?;
            }
            out.flush()?;
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn print(&self, out: &mut Printer, message: &proto::Message) -> io::Result<()> {
        let view = MessageView::new(&self.queue, message);
        match out.format {
            Format::Json => out.json(&view),
            Format::Text if self.raw => out.raw(&message.body),
            Format::Text => {
                out.line(view.summary())?;
                out.bytes(&message.body)
            }
        }
    }
}
