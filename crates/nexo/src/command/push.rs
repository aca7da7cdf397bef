//! `nexo push`: one message from an argument or a file, or many from the lines of standard input.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use nexo_grpc::client::Client;
use nexo_grpc::proto::{self, push_result::Outcome};
use serde_json::json;

use super::lines;
use crate::cli::ServerArgs;
use crate::connect::Asked;
use crate::output::Printer;
use crate::plain::plain;
use crate::progress;
use crate::push_pipe::PushPipe;
use crate::units::Span;

const EXAMPLES: &str = "\
Prints the id of each message once it is durable.

Examples:
  nexo push mail 'hello'
  nexo push mail --file letter.eml --header kind=letter --priority 9
  nexo push jobs 'clean up' --delay 1h --dedup-id cleanup-today
  seq 1000000 | nexo push numbers -";

/// Put messages into a queue
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(override_usage = "nexo push [OPTIONS] <QUEUE> <TEXT|-|--stdin|--file <FILE>>")]
#[command(group = clap::ArgGroup::new("input").required(true).args(["text", "file", "stdin"]))]
pub(crate) struct PushArgs {
    /// The queue
    queue: String,
    /// The message; - reads a message from each line of standard input
    text: Option<String>,
    /// The message is what this file holds
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// A message from each line of standard input
    #[arg(long)]
    stdin: bool,
    /// How urgent: 0 to 255, higher goes first
    #[arg(long, value_name = "N", default_value_t = 0)]
    priority: u8,
    /// Nobody sees the message before this time is over
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    delay: Option<Span>,
    /// How long the message may wait
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    ttl: Option<Span>,
    /// A second message with this id is recognised and not taken
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    dedup_id: String,
    /// Messages of one group are delivered one at a time and in order
    #[arg(long, value_name = "GROUP", default_value = "", hide_default_value = true)]
    group: String,
    /// Something about the message; may be given more than once
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = parse_header)]
    headers: Vec<(String, String)>,
    /// Keep the message in memory only: it does not survive a restart
    #[arg(long)]
    transient: bool,
}

impl PushArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let client = shared.connect().await?;
        let mut out = Printer::new(shared.output);
        if self.stdin || self.text.as_deref() == Some("-") {
            self.push_lines(&client, &mut out).await?;
        } else {
            self.push_one(&client, &mut out).await?;
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn push_one(&self, client: &Client, out: &mut Printer) -> anyhow::Result<()> {
        let body = match (&self.text, &self.file) {
            (Some(text), _) => text.clone().into(),
            (None, Some(file)) => {
                tokio::fs::read(file).await.with_context(|| format!("cannot read '{}'", file.display()))?
            }
            (None, None) => Vec::new(),
        };
        let request = proto::PushRequest {
            queue: self.queue.clone(),
            messages: vec![self.message(body)],
            vhost: client.vhost(),
        };
        let what = format!("push to '{}'", self.queue);
        let reply = client.messages().push(request).await.asked(what.clone())?.into_inner();
        match reply.results.into_iter().next().and_then(|result| result.outcome) {
            Some(Outcome::Pushed(pushed)) => print(out, pushed)?,
            Some(Outcome::Error(error)) => return Err(anyhow!("{what}: {}", plain(&error.message))),
            None => return Err(anyhow!("{what}: the broker sent no outcome")),
        }
        out.flush()?;
        Ok(())
    }

    /// Stops at the first line that is not taken; all before it are pushed and printed.
    async fn push_lines(&self, client: &Client, out: &mut Printer) -> anyhow::Result<()> {
        let mut lines = lines::stdin();
        let mut pipe = PushPipe::open(client, &self.queue).await?;
        let bar = progress::bar(None, "pushing");
        let mut reading = true;
        while reading || pipe.is_waiting() {
            tokio::select! {
                outcomes = pipe.confirmed(), if pipe.is_waiting() => {
                    for outcome in outcomes? {
                        let line = bar.position() + 1;
                        let pushed = outcome
                            .map_err(|reason| anyhow!("push line {line} to '{}': {reason}", self.queue))?;
                        print(out, pushed)?;
                        bar.inc(1);
                    }
                    out.flush()?;
                }
                batch = lines.recv(), if reading && pipe.has_room() => match batch {
                    Some(batch) => {
                        let batch = batch.context("cannot read standard input")?;
                        pipe.send(batch.into_iter().map(|line| self.message(line)).collect()).await?;
                    }
                    None => {
                        reading = false;
                        pipe.finish();
                    }
                },
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn message(&self, body: impl Into<Bytes>) -> proto::NewMessage {
        proto::NewMessage {
            body: body.into(),
            priority: self.priority.into(),
            delay_ms: self.delay.map_or(0, Span::millis),
            ttl_ms: self.ttl.map(Span::millis),
            dedup_id: self.dedup_id.clone(),
            group_id: self.group.clone(),
            headers: self
                .headers
                .iter()
                .map(|(name, value)| proto::Header {
                    name: name.clone(),
                    value: Some(proto::header::Value::Text(value.clone())),
                    ..proto::Header::default()
                })
                .collect(),
            transient: self.transient,
        }
    }
}

fn print(out: &mut Printer, pushed: proto::Pushed) -> std::io::Result<()> {
    let note = if pushed.duplicate { " (duplicate)" } else { "" };
    out.show(&json!({ "id": pushed.id, "duplicate": pushed.duplicate }), format_args!("{}{note}", pushed.id))
}

pub(super) fn parse_header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("'{text}' is not a header; one looks like name=value")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_a_name_and_perhaps_a_value() {
        assert_eq!(parse_header("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(parse_header("a="), Ok(("a".into(), String::new())));
        assert!(parse_header("=b").is_err());
        assert!(parse_header("a").is_err());
    }
}
