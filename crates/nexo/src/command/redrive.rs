//! `nexo queue redrive`: dead letters get another chance.

use nexo_grpc::client::Client;
use nexo_grpc::proto;
use serde_json::json;

use super::queue::get_queue;
use crate::cli::at_least_one;
use crate::connect::Asked;
use crate::output::Printer;
use crate::progress;

const EXAMPLES: &str = "\
Examples:
  nexo queue redrive mail_dlq                  each message to the queue it came from
  nexo queue redrive mail_dlq --to mail2 --max 100
  nexo queue redrive mail_dlq --id 4 --id 7";

/// Move dead letters back to where they came from
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RedriveArgs {
    /// The dead-letter queue
    queue: String,
    /// Move them here, instead of where each came from
    #[arg(long, value_name = "QUEUE", default_value = "", hide_default_value = true)]
    to: String,
    /// Move at most this many
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    max: Option<u64>,
    /// Move only this message; may be given more than once
    #[arg(long, value_name = "ID")]
    id: Vec<u64>,
}

impl RedriveArgs {
    pub(crate) async fn run(self, client: &Client, out: &mut Printer) -> anyhow::Result<()> {
        let what = format!("redrive '{}'", self.queue);
        let stats = get_queue(client, "redrive", &self.queue).await?.stats.unwrap_or_default();
        let there = stats.ready + stats.delayed + stats.grouped + stats.leased;
        let asked = if self.id.is_empty() { there } else { self.id.len() as u64 };
        let bar = progress::bar(Some(self.max.map_or(asked, |max| max.min(asked))), "redriving");
        let request = proto::RedriveRequest {
            queue: self.queue.clone(),
            target: self.to,
            ids: self.id,
            max: self.max.unwrap_or(0),
            vhost: client.vhost(),
        };
        let mut replies = client.queues().redrive(request).await.asked(what.clone())?.into_inner();
        let mut last = proto::RedriveResponse::default();
        while let Some(reply) = replies.message().await.asked(what.clone())? {
            bar.set_position(reply.moved);
            last = reply;
        }
        bar.finish_and_clear();
        if !last.done {
            anyhow::bail!("{what}: the broker ended it after {} messages", last.moved);
        }
        let stats = get_queue(client, "redrive", &self.queue).await?.stats.unwrap_or_default();
        let remaining = stats.ready + stats.delayed + stats.grouped + stats.leased;
        let messages = |count: u64| if count == 1 { "1 message".into() } else { format!("{count} messages") };
        let mut text = format!("moved {} out of '{}', {remaining} remain", messages(last.moved), self.queue);
        if last.skipped > 0 {
            let skipped = messages(last.skipped);
            text.push_str(&format!("; {skipped} had no queue to go back to, which --to QUEUE can name"));
        }
        out.show(
            &json!({
                "queue": self.queue,
                "moved": last.moved,
                "skipped": last.skipped,
                "remaining": remaining,
            }),
            text,
        )?;
        Ok(())
    }
}
