//! `nexo schedule`: messages that the broker sends, and jobs that it asks for, by itself.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Subcommand;
use nexo_grpc::proto;
use serde::Serialize;
use serde_json::json;

use super::push::parse_header;
use super::queue::confirm;
use crate::cli::ServerArgs;
use crate::connect::Asked;
use crate::output::{Format, Printer};
use crate::units::Span;
use crate::view::{Figures, columns, moment};

const EXAMPLES: &str = "\
A cron expression has five fields (minute, hour, day of month, month, day of week), or six with seconds in front. Each message has
the headers x-schedule and x-scheduled-at. After a downtime, the latest time that was missed is fired (once), each of them (all), or none
(skip). With --job-queue a job is asked for in place of a message: the text is its payload, as JSON, and nobody waits for it.

Examples:
  nexo schedule set report --cron '0 9 * * 1-5' --time-zone Europe/Berlin --queue reports 'make it'
  nexo schedule set beat --every 30s --exchange amq.topic --routing-key health.beat ping
  nexo schedule set bill --cron '0 0 1 * *' --queue billing --file bill.json --catch-up all
  nexo schedule set warm --cron '0 6 * * *' --job-queue deals --job-type search --job-key books '{\"category\": \"books\"}'
  nexo schedule list --all-vhosts
  nexo schedule pause report
  nexo schedule run report";

/// Messages that the broker sends, or jobs that it asks for, by a cron expression or at an interval
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ScheduleArgs {
    #[command(subcommand)]
    command: ScheduleCommand,
}

#[derive(Debug, Subcommand)]
enum ScheduleCommand {
    /// Set a schedule, in place of one of the same name
    Set(Box<SetArgs>),
    /// List schedules of the virtual host
    List {
        /// Those of all virtual hosts
        #[arg(long)]
        all_vhosts: bool,
    },
    /// One schedule, and what has come of it
    Show {
        /// Its name
        name: String,
    },
    /// Delete a schedule
    Delete {
        /// Its name
        name: String,
        /// Do not ask; needed where there is no terminal
        #[arg(long, short)]
        yes: bool,
    },
    /// Have a schedule send its message, or ask for its job, now, whatever its time table says
    Run {
        /// Its name
        name: String,
    },
    /// Have the times of a schedule pass by unnoticed
    Pause {
        /// Its name
        name: String,
    },
    /// Have a schedule go on with the next time
    Resume {
        /// Its name
        name: String,
    },
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("table").required(true).args(["cron", "every"]))]
#[command(group = clap::ArgGroup::new("target").required(true).args(["queue", "exchange", "job_queue"]))]
struct SetArgs {
    /// Its name
    name: String,
    /// The message, or the payload of the job
    #[arg(default_value = "", hide_default_value = true, conflicts_with = "file")]
    text: String,
    /// The message, or the payload, is what this file holds
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// When: a cron expression of five fields, or of six with seconds in front
    #[arg(long, value_name = "EXPRESSION", allow_hyphen_values = true)]
    cron: Option<String>,
    /// The time zone of the expression; UTC if it is not given
    #[arg(long, value_name = "ZONE", requires = "cron")]
    time_zone: Option<String>,
    /// When: every so often, 100ms or more
    #[arg(long, value_name = "TIME")]
    every: Option<Span>,
    /// The first time of an interval, like 2030-01-31T09:00:00Z
    #[arg(long, value_name = "MOMENT", requires = "every", value_parser = parse_moment)]
    start: Option<u64>,
    /// The queue to push to
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// The exchange to publish to
    #[arg(long, value_name = "EXCHANGE")]
    exchange: Option<String>,
    /// The key by which the exchange routes the message
    #[arg(long, value_name = "KEY", requires = "exchange")]
    routing_key: Option<String>,
    /// The job queue to ask for a job
    #[arg(long, value_name = "QUEUE", requires = "job_key")]
    job_queue: Option<String>,
    /// What kind of work the job is
    #[arg(long, value_name = "TYPE", requires = "job_queue", default_value = "job")]
    job_type: String,
    /// What the job is about: if one of that key is pending, it is that one
    #[arg(long, value_name = "KEY", requires = "job_queue")]
    job_key: Option<String>,
    /// The tokens that the job costs, in place of what its queue says
    #[arg(long, value_name = "N", requires = "job_queue")]
    cost: Option<u64>,
    /// The job is not left until nothing more urgent is there
    #[arg(long, requires = "job_queue")]
    foreground: bool,
    /// The content type of the message
    #[arg(long, value_name = "TYPE", default_value = "", hide_default_value = true)]
    content_type: String,
    /// Something about the message; may be given more than once
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = parse_header)]
    headers: Vec<(String, String)>,
    /// How urgent: 0 to 255, higher goes first
    #[arg(long, value_name = "N", default_value_t = 0)]
    priority: u8,
    /// What becomes of times that passed while the broker was away: skip, once or all
    #[arg(long, value_name = "HOW", default_value = "once")]
    catch_up: String,
    /// How many of them at most, with 'all'; 1000 if it is not given
    #[arg(long, value_name = "N")]
    catch_up_max: Option<u64>,
    /// No time after this, like 2030-01-31T09:00:00Z
    #[arg(long, value_name = "MOMENT", value_parser = parse_moment)]
    until: Option<u64>,
    /// It ends after so many runs
    #[arg(long, value_name = "N")]
    max_runs: Option<u64>,
    /// It does nothing until it is resumed
    #[arg(long)]
    paused: bool,
    /// For those who look after it
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    description: String,
}

fn parse_moment(text: &str) -> Result<u64, String> {
    let moment: Option<jiff::Timestamp> = text.parse().ok();
    let millis = moment.and_then(|moment| u64::try_from(moment.as_millisecond()).ok());
    millis.ok_or_else(|| format!("'{text}' is not a moment; one looks like 2030-01-31T09:00:00Z"))
}

impl SetArgs {
    async fn into_proto(self, vhost: String) -> anyhow::Result<proto::Schedule> {
        let body = match &self.file {
            Some(file) => {
                tokio::fs::read(file).await.with_context(|| format!("cannot read '{}'", file.display()))?
            }
            None => self.text.into_bytes(),
        };
        let header = |(name, value)| proto::ScheduleHeader { name, value };
        let (body, job) = match self.job_queue {
            None => (body, None),
            Some(queue) => {
                let job = proto::ScheduledJob {
                    queue,
                    r#type: self.job_type,
                    key: self.job_key.unwrap_or_default(),
                    payload: body.into(),
                    cost: self.cost,
                    background: Some(!self.foreground),
                };
                (Vec::new(), Some(job))
            }
        };
        Ok(proto::Schedule {
            vhost,
            name: self.name,
            cron: self.cron.unwrap_or_default(),
            time_zone: self.time_zone.unwrap_or_default(),
            every_ms: self.every.map(Span::millis),
            start_ms: self.start,
            queue: self.queue.unwrap_or_default(),
            exchange: self.exchange.unwrap_or_default(),
            routing_key: self.routing_key.unwrap_or_default(),
            body: body.into(),
            content_type: self.content_type,
            headers: self.headers.into_iter().map(header).collect(),
            priority: self.priority.into(),
            catch_up: self.catch_up,
            catch_up_max: self.catch_up_max,
            until_ms: self.until,
            max_runs: self.max_runs,
            paused: self.paused.then_some(true),
            description: self.description,
            job,
        })
    }
}

/// A schedule as it is printed. What is not there is left out.
#[derive(Debug, Serialize)]
struct ScheduleView {
    vhost: String,
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    cron: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    time_zone: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    every_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    queue: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    exchange: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    routing_key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    content_type: String,
    headers: Vec<(String, String)>,
    priority: u32,
    catch_up: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    catch_up_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_runs: Option<u64>,
    paused: bool,
    description: String,
    set_by: String,
    next: Option<String>,
    last_scheduled: Option<String>,
    last_run: Option<String>,
    runs: u64,
    manual_runs: u64,
    failures: u64,
    missed: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    last_error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error_at: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    waits_for: String,
}

impl From<proto::ScheduleInfo> for ScheduleView {
    fn from(info: proto::ScheduleInfo) -> Self {
        let (schedule, status) = (info.schedule.unwrap_or_default(), info.status.unwrap_or_default());
        let job = schedule.job.as_ref().map(job_value);
        let (body, body_base64) = match std::str::from_utf8(&schedule.body) {
            _ if job.is_some() => (None, None),
            Ok(text) => (Some(text.to_owned()), None),
            Err(_) => (None, Some(STANDARD.encode(&schedule.body))),
        };
        let headers = schedule.headers.into_iter().map(|header| (header.name, header.value));
        Self {
            vhost: schedule.vhost,
            name: schedule.name,
            cron: schedule.cron,
            time_zone: schedule.time_zone,
            every_ms: schedule.every_ms,
            start: schedule.start_ms.map(moment),
            queue: schedule.queue,
            exchange: schedule.exchange,
            routing_key: schedule.routing_key,
            job,
            body,
            body_base64,
            content_type: schedule.content_type,
            headers: headers.collect(),
            priority: schedule.priority,
            catch_up: schedule.catch_up,
            catch_up_max: schedule.catch_up_max,
            until: schedule.until_ms.map(moment),
            max_runs: schedule.max_runs,
            paused: schedule.paused.unwrap_or_default(),
            description: schedule.description,
            set_by: status.set_by,
            next: status.next_ms.map(moment),
            last_scheduled: status.last_scheduled_ms.map(moment),
            last_run: status.last_run_ms.map(moment),
            runs: status.runs,
            manual_runs: status.manual_runs,
            failures: status.failures,
            missed: status.missed,
            last_error: status.last_error,
            last_error_at: status.last_error_ms.map(moment),
            waits_for: status.waits_for,
        }
    }
}

fn job_value(job: &proto::ScheduledJob) -> serde_json::Value {
    let mut shown =
        json!({ "queue": job.queue, "type": job.r#type, "key": job.key, "background": job.background });
    if let Some(cost) = job.cost {
        shown["cost"] = cost.into();
    }
    if let Ok(payload) = serde_json::from_slice(&job.payload) {
        shown["payload"] = payload;
    }
    shown
}

impl ScheduleView {
    fn when(&self) -> String {
        match self.every_ms {
            Some(ms) => format!("every {}", Span(nexo_types::Millis(ms))),
            None => format!("{} {}", self.cron, self.time_zone),
        }
    }

    fn target(&self) -> String {
        let text = |job: &serde_json::Value, name: &str| job[name].as_str().unwrap_or_default().to_owned();
        match &self.job {
            Some(job) => format!("job queue {} {}", text(job, "queue"), text(job, "key")),
            None if self.queue.is_empty() => {
                format!("exchange {} {}", self.exchange, self.routing_key).trim_end().to_owned()
            }
            None => format!("queue {}", self.queue),
        }
    }

    fn next(&self) -> String {
        match &self.next {
            Some(next) => next.clone(),
            None if self.paused => "paused".to_owned(),
            None => "ended".to_owned(),
        }
    }

    fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        let never = || "never".to_owned();
        figures
            .add("name", &self.name)
            .add("virtual host", &self.vhost)
            .add("when", self.when())
            .add("sends to", self.target())
            .add("catch up", &self.catch_up)
            .add("next", self.next())
            .add("last run", self.last_run.clone().unwrap_or_else(never))
            .add("runs", self.runs)
            .add("runs by hand", self.manual_runs)
            .add("failures", self.failures)
            .add("missed", self.missed)
            .add("set by", &self.set_by);
        for (name, text) in [("until", &self.until), ("start", &self.start)] {
            text.as_ref().map(|text| figures.add(name, text));
        }
        if let Some(max) = self.max_runs {
            figures.add("most runs", max);
        }
        for (name, text) in [
            ("description", &self.description),
            ("last error", &self.last_error),
            ("waits for", &self.waits_for),
            ("message", self.body.as_ref().unwrap_or(&String::new())),
        ] {
            if !text.is_empty() {
                figures.add(name, text);
            }
        }
        figures
    }
}

impl ScheduleArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let mut admin = shared.connect().await?.admin();
        let mut out = Printer::new(shared.output);
        let vhost = shared.vhost.clone();
        match self.command {
            ScheduleCommand::Set(args) => {
                let name = args.name.clone();
                let schedule = Some(args.into_proto(vhost).await?);
                let reply = admin.put_schedule(proto::PutScheduleRequest { schedule }).await;
                let reply = reply.asked(format!("set schedule '{name}'"))?.into_inner();
                let next = reply.next_ms.map(moment);
                let done = if reply.created { "created" } else { "changed" };
                let due =
                    next.as_ref().map_or_else(|| "it is paused".to_owned(), |next| format!("due {next}"));
                let shown = json!({ "schedule": name, "created": reply.created, "next": next });
                out.show(&shown, format_args!("{done} '{name}': {due}"))?;
            }
            ScheduleCommand::List { all_vhosts } => {
                let vhost = if all_vhosts { String::new() } else { vhost };
                let reply = admin.list_schedules(proto::ListSchedulesRequest { vhost }).await;
                let reply = reply.asked("list schedules")?.into_inner();
                let views: Vec<ScheduleView> = reply.schedules.into_iter().map(ScheduleView::from).collect();
                match out.format {
                    Format::Json => views.iter().try_for_each(|view| out.json(view))?,
                    Format::Text => out.line(table(&views))?,
                }
            }
            ScheduleCommand::Show { name } => {
                let what = format!("show schedule '{name}'");
                let reply =
                    admin.get_schedule(proto::GetScheduleRequest { vhost, name }).await.asked(what)?;
                let info = reply.into_inner().schedule.context("the broker sent no schedule")?;
                let view = ScheduleView::from(info);
                out.show(&view, view.figures())?;
            }
            ScheduleCommand::Delete { name, yes } => {
                confirm(yes, &format!("delete the schedule '{name}'"))?;
                let request = proto::DeleteScheduleRequest { vhost, name: name.clone() };
                admin.delete_schedule(request).await.asked(format!("delete schedule '{name}'"))?;
                out.show(&json!({ "schedule": name, "deleted": true }), format_args!("deleted '{name}'"))?;
            }
            ScheduleCommand::Run { name } => {
                let request = proto::RunScheduleRequest { vhost, name: name.clone() };
                admin.run_schedule(request).await.asked(format!("run schedule '{name}'"))?;
                out.show(&json!({ "schedule": name, "run": true }), format_args!("ran '{name}'"))?;
            }
            ScheduleCommand::Pause { name } => {
                let request = proto::PauseScheduleRequest { vhost, name: name.clone(), paused: true };
                admin.pause_schedule(request).await.asked(format!("pause schedule '{name}'"))?;
                out.show(&json!({ "schedule": name, "paused": true }), format_args!("paused '{name}'"))?;
            }
            ScheduleCommand::Resume { name } => {
                let request = proto::PauseScheduleRequest { vhost, name: name.clone(), paused: false };
                let reply = admin.pause_schedule(request).await.asked(format!("resume schedule '{name}'"))?;
                let next = reply.into_inner().next_ms.map(moment);
                let due =
                    next.as_ref().map_or_else(|| "it has ended".to_owned(), |next| format!("due {next}"));
                let shown = json!({ "schedule": name, "paused": false, "next": next });
                out.show(&shown, format_args!("resumed '{name}': {due}"))?;
            }
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Schedules, one a line.
fn table(schedules: &[ScheduleView]) -> comfy_table::Table {
    let mut table =
        columns(&["VHOST", "NAME", "WHEN", "SENDS TO", "NEXT", "RUNS", "FAILURES", "MISSED", "LAST ERROR"]);
    for schedule in schedules {
        let state = if schedule.waits_for.is_empty() { &schedule.last_error } else { &schedule.waits_for };
        table.add_row([
            schedule.vhost.clone(),
            schedule.name.clone(),
            schedule.when(),
            schedule.target(),
            schedule.next(),
            schedule.runs.to_string(),
            schedule.failures.to_string(),
            schedule.missed.to_string(),
            state.clone(),
        ]);
    }
    table
}
