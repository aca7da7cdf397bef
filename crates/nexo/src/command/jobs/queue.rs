//! `nexo jobs queue`: job queues themselves.

use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use nexo_grpc::client::Client;
use nexo_grpc::proto;
use serde_json::json;

use super::settings::JobQueueSettings;
use crate::command::queue::confirm;
use crate::connect::Asked;
use crate::output::{Format, Printer, note};
use crate::view::{job_queue_figures, job_queue_table, job_queue_value};

/// Job queues asked for at a time.
const PAGE: u32 = 1000;

const EXAMPLES: &str = "\
A score is an expression; the job with the lowest goes first. A cost is an expression over payload, type
and key; without one a job costs 1 token where there is a budget, and nothing where there is none.

Examples:
  nexo jobs queue set deals --budget api --lease 2m --max-attempts 3
  nexo jobs queue set deals --class business=0 --class free=10 --class '=10'
  nexo jobs queue set deals --cost 'search=size(payload.pages)' --cost '=1'
  nexo jobs queue pause deals
  nexo jobs queue list";

/// Make, change, look at and delete job queues
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct JobQueueArgs {
    #[command(subcommand)]
    command: JobQueueCommand,
}

#[derive(Debug, Subcommand)]
enum JobQueueCommand {
    /// Make a job queue, or change the settings that are given and leave the others
    Set {
        /// Its name
        name: String,
        #[command(flatten)]
        settings: Box<JobQueueSettings>,
    },
    /// Settings and figures of one job queue
    Show {
        /// The job queue
        name: String,
        /// Figures of so many keys too, those that used most tokens first
        #[arg(long, value_name = "N", default_value_t = 0)]
        keys: u32,
    },
    /// List job queues
    List {
        /// Only names that begin so
        #[arg(long, default_value = "", hide_default_value = true)]
        prefix: String,
    },
    /// Delete a job queue and its jobs; nobody is answered
    Delete {
        /// The job queue
        name: String,
        /// Do not ask; needed where there is no terminal
        #[arg(long, short)]
        yes: bool,
    },
    /// Hand out no jobs until resumed
    Pause {
        /// The job queue
        name: String,
    },
    /// Hand out jobs again
    Resume {
        /// The job queue
        name: String,
    },
}

impl JobQueueArgs {
    pub(super) async fn run(self, client: &Client, out: &mut Printer) -> anyhow::Result<ExitCode> {
        match self.command {
            JobQueueCommand::Set { name, settings } => set(client, out, name, *settings).await?,
            JobQueueCommand::Show { name, keys } => {
                let queue = get(client, &name, keys).await?;
                out.show(&job_queue_value(&queue), job_queue_figures(&queue))?;
            }
            JobQueueCommand::List { prefix } => list(client, out, &prefix).await?,
            JobQueueCommand::Delete { name, yes } => {
                confirm(yes, &format!("delete the job queue '{name}' and its jobs"))?;
                let request = proto::DeleteJobQueueRequest { queue: name.clone(), vhost: client.vhost() };
                client.jobs().delete_queue(request).await.asked(format!("delete job queue '{name}'"))?;
                out.show(&json!({ "queue": name, "deleted": true }), format_args!("deleted '{name}'"))?;
            }
            JobQueueCommand::Pause { name } => pause(client, out, name, true).await?,
            JobQueueCommand::Resume { name } => pause(client, out, name, false).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// One job queue, with figures of so many keys.
pub(super) async fn get(client: &Client, name: &str, keys: u32) -> anyhow::Result<proto::JobQueue> {
    let request = proto::GetJobQueueRequest { queue: name.to_owned(), keys_max: keys, vhost: client.vhost() };
    let reply = client.jobs().get_queue(request).await.asked(format!("show job queue '{name}'"))?;
    reply.into_inner().queue.context("the broker sent no job queue")
}

async fn set(
    client: &Client,
    out: &mut Printer,
    name: String,
    settings: JobQueueSettings,
) -> anyhow::Result<()> {
    let request = proto::PutJobQueueRequest {
        queue: name.clone(),
        config: Some(settings.into_proto()),
        vhost: client.vhost(),
    };
    let what = format!("set job queue '{name}'");
    let created = client.jobs().put_queue(request).await.asked(what)?.into_inner().created;
    let text = if created { "created" } else { "changed" };
    out.show(&json!({ "queue": name, "created": created }), format_args!("{text} '{name}'"))?;
    Ok(())
}

async fn pause(client: &Client, out: &mut Printer, name: String, paused: bool) -> anyhow::Result<()> {
    let (verb, done) = if paused { ("pause", "paused") } else { ("resume", "resumed") };
    // Who mistypes a name does not want another job queue.
    get(client, &name, 0).await?;
    let config = Some(proto::JobQueueConfig { paused: Some(paused), ..Default::default() });
    let request = proto::PutJobQueueRequest { queue: name.clone(), config, vhost: client.vhost() };
    client.jobs().put_queue(request).await.asked(format!("{verb} job queue '{name}'"))?;
    out.show(&json!({ "queue": name, "paused": paused }), format_args!("{done} '{name}'"))?;
    Ok(())
}

async fn list(client: &Client, out: &mut Printer, prefix: &str) -> anyhow::Result<()> {
    let mut queues = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = proto::ListJobQueuesRequest {
            prefix: prefix.to_owned(),
            page_size: PAGE,
            page_token,
            vhost: client.vhost(),
        };
        let page = client.jobs().list_queues(request).await.asked("list job queues")?.into_inner();
        queues.extend(page.queues);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    match out.format {
        Format::Json => queues.iter().try_for_each(|queue| out.json(&job_queue_value(queue)))?,
        Format::Text if queues.is_empty() => note("there are no job queues"),
        Format::Text => out.line(job_queue_table(&queues))?,
    }
    Ok(())
}
