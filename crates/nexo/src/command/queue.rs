//! `nexo queue`: everything about queues themselves.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Subcommand;
use nexo_grpc::client::Client;
use nexo_grpc::proto;
use serde_json::json;

use super::queue_settings::QueueSettings;
use super::redrive::RedriveArgs;
use crate::cli::ServerArgs;
use crate::connect::Asked;
use crate::output::{Format, Printer, note};
use crate::view::{QueueView, SortBy, Total, queue_table};

/// Queues asked for at a time.
const PAGE: u32 = 1000;

const EXAMPLES: &str = "\
Examples:
  nexo queue create mail --max-attempts 3 --retry exponential:100ms:2:30s
  nexo queue update mail --max-messages 100000 --overflow drop-oldest
  nexo queue list --prefix mail --sort ready --total
  nexo queue redrive mail_dlq";

/// Create, change, look at and empty queues
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct QueueArgs {
    #[command(subcommand)]
    command: QueueCommand,
}

#[derive(Debug, Subcommand)]
enum QueueCommand {
    /// Create a queue; one that exists with the same settings is left alone
    Create {
        /// Its name
        name: String,
        #[command(flatten)]
        settings: Box<QueueSettings>,
    },
    /// Change the settings that are given and leave the others
    Update {
        /// The queue
        name: String,
        #[command(flatten)]
        settings: Box<QueueSettings>,
    },
    /// List queues
    List {
        /// Only names that begin so
        #[arg(long, default_value = "", hide_default_value = true)]
        prefix: String,
        /// Those of all virtual hosts
        #[arg(long)]
        all_vhosts: bool,
        /// Order by this column; figures from the largest down
        #[arg(long, value_name = "COLUMN", value_enum, default_value_t)]
        sort: SortBy,
        /// Add a line with the sums
        #[arg(long)]
        total: bool,
    },
    /// Settings and figures of one queue
    Show {
        /// The queue
        name: String,
    },
    /// Remove all messages that no consumer holds
    Purge {
        /// The queue
        name: String,
        /// Do not ask; needed where there is no terminal
        #[arg(long, short)]
        yes: bool,
    },
    /// Delete a queue and its messages
    Delete {
        /// The queue
        name: String,
        /// Do not ask; needed where there is no terminal
        #[arg(long, short)]
        yes: bool,
    },
    /// Hand out no messages until resumed
    Pause {
        /// The queue
        name: String,
    },
    /// Hand out messages again
    Resume {
        /// The queue
        name: String,
    },
    /// Move dead letters back to where they came from
    Redrive(RedriveArgs),
}

impl QueueArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let client = shared.connect().await?;
        let mut out = Printer::new(shared.output);
        match self.command {
            QueueCommand::Create { name, settings } => create(&client, &mut out, name, &settings).await?,
            QueueCommand::Update { name, settings } => update(&client, &mut out, name, &settings).await?,
            QueueCommand::List { prefix, all_vhosts, sort, total } => {
                let views = all_queues(&client, &prefix, all_vhosts).await?;
                list(views, &mut out, &prefix, sort, total)?;
            }
            QueueCommand::Show { name } => {
                let view = QueueView::from(get_queue(&client, "show", &name).await?);
                out.show(&view, view.figures())?;
            }
            QueueCommand::Purge { name, yes } => purge(&client, &mut out, name, yes).await?,
            QueueCommand::Delete { name, yes } => delete(&client, &mut out, name, yes).await?,
            QueueCommand::Pause { name } => {
                let request = proto::PauseQueueRequest { queue: name.clone(), vhost: client.vhost() };
                client.queues().pause_queue(request).await.asked(format!("pause '{name}'"))?;
                out.show(&json!({ "queue": name, "paused": true }), format_args!("paused '{name}'"))?;
            }
            QueueCommand::Resume { name } => {
                let request = proto::ResumeQueueRequest { queue: name.clone(), vhost: client.vhost() };
                client.queues().resume_queue(request).await.asked(format!("resume '{name}'"))?;
                out.show(&json!({ "queue": name, "paused": false }), format_args!("resumed '{name}'"))?;
            }
            QueueCommand::Redrive(args) => args.run(&client, &mut out).await?,
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Settings and figures of one queue, for somebody who was asked to `act` on it: an error says so.
pub(crate) async fn get_queue(client: &Client, act: &str, name: &str) -> anyhow::Result<proto::Queue> {
    let request = proto::GetQueueRequest { queue: name.to_owned(), vhost: client.vhost() };
    let reply = client.queues().get_queue(request).await.asked(format!("{act} '{name}'"))?;
    reply.into_inner().queue.context("the broker sent no queue")
}

async fn create(
    client: &Client,
    out: &mut Printer,
    name: String,
    settings: &QueueSettings,
) -> anyhow::Result<()> {
    let what = format!("create '{name}'");
    let request = proto::CreateQueueRequest {
        queue: name.clone(),
        config: Some(settings.to_proto()),
        vhost: client.vhost(),
    };
    let created = client.queues().create_queue(request).await.asked(what)?.into_inner().created;
    let text = if created { "created" } else { "exists already:" };
    out.show(&json!({ "queue": name, "created": created }), format_args!("{text} '{name}'"))?;
    Ok(())
}

async fn update(
    client: &Client,
    out: &mut Printer,
    name: String,
    settings: &QueueSettings,
) -> anyhow::Result<()> {
    let what = format!("update '{name}'");
    if let Some(target) = settings.dead_letter_queue() {
        warn_of_exchange(client, &name, target).await?;
    }
    let request =
        proto::UpdateQueueRequest { queue: name, config: Some(settings.to_proto()), vhost: client.vhost() };
    let reply = client.queues().update_queue(request).await.asked(what)?.into_inner();
    let view = QueueView::from(reply.queue.context("the broker sent no queue")?);
    out.show(&view, view.figures())?;
    Ok(())
}

/// A queue of AMQP may send its dead letters to an exchange. To name a queue replaces that, and nothing here can bring it
/// back: the client that declared the queue would have to.
async fn warn_of_exchange(client: &Client, name: &str, target: &str) -> anyhow::Result<()> {
    let view = QueueView::from(get_queue(client, "show", name).await?);
    if let Some(exchange) = view.dead_letter_exchange() {
        let target = if target.is_empty() { format!("{name}_dlq") } else { target.to_owned() };
        note(format_args!(
            "nexo: warning: '{name}' was declared to send its dead letters to {exchange}; from now on they go to the queue \
             '{target}' instead, and the command line cannot change that back"
        ));
    }
    Ok(())
}

async fn all_queues(client: &Client, prefix: &str, all_vhosts: bool) -> anyhow::Result<Vec<QueueView>> {
    let mut views = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = proto::ListQueuesRequest {
            prefix: prefix.to_owned(),
            page_size: PAGE,
            page_token,
            vhost: client.vhost(),
            all_vhosts,
        };
        let page = client.queues().list_queues(request).await.asked("list queues")?.into_inner();
        views.extend(page.queues.into_iter().map(QueueView::from));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(views);
        }
    }
}

fn list(
    mut views: Vec<QueueView>,
    out: &mut Printer,
    prefix: &str,
    sort: SortBy,
    total: bool,
) -> anyhow::Result<()> {
    sort.apply(&mut views);
    match out.format {
        Format::Json => {
            views.iter().try_for_each(|view| out.json(view))?;
            if total {
                out.json(&json!({ "total": Total::of(&views) }))?;
            }
        }
        Format::Text if views.is_empty() => {
            note(if prefix.is_empty() { "there are no queues" } else { "no queue's name begins so" });
        }
        Format::Text => out.line(queue_table(&views, total))?,
    }
    Ok(())
}

async fn purge(client: &Client, out: &mut Printer, name: String, yes: bool) -> anyhow::Result<()> {
    confirm(yes, &format!("remove all messages from '{name}'"))?;
    let request = proto::PurgeQueueRequest { queue: name.clone(), vhost: client.vhost() };
    let reply = client.queues().purge_queue(request).await.asked(format!("purge '{name}'"))?;
    let messages = reply.into_inner().messages;
    out.show(
        &json!({ "queue": name, "messages": messages }),
        format_args!("removed {messages} messages from '{name}'"),
    )?;
    Ok(())
}

async fn delete(client: &Client, out: &mut Printer, name: String, yes: bool) -> anyhow::Result<()> {
    confirm(yes, &format!("delete '{name}' and its messages"))?;
    let request = proto::DeleteQueueRequest { queue: name.clone(), vhost: client.vhost() };
    let reply = client.queues().delete_queue(request).await.asked(format!("delete '{name}'"))?;
    let messages = reply.into_inner().messages;
    out.show(
        &json!({ "queue": name, "messages": messages }),
        format_args!("deleted '{name}' and {messages} messages"),
    )?;
    Ok(())
}

/// Asks a person before something that cannot be undone. Without a terminal there is nobody to ask.
pub(super) fn confirm(yes: bool, what: &str) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        bail!("this would {what}; without a terminal to ask, --yes must say that it is meant");
    }
    write!(io::stderr(), "Really {what}? [y/N] ")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if !matches!(answer.trim(), "y" | "Y" | "yes") {
        bail!("nothing was done");
    }
    Ok(())
}
