//! Schedules of the native API.

use std::sync::Arc;

use bytes::Bytes;
use nexo_access::Identity;
use nexo_broker::schedule::{
    Action, AskedJob, AskedSchedule, CatchUp, Schedule, ScheduleChange, ScheduleError, ScheduledMessage,
    TimeTable,
};
use nexo_broker::{Broker, ScheduleChangeError, ScheduleInfo, ScheduleRunError};
use nexo_types::{Millis, Priority, Timestamp, VhostName};
use tonic::Code;

use crate::fields;
use crate::proto;
use crate::status::Failure;

impl From<ScheduleError> for Failure {
    fn from(error: ScheduleError) -> Self {
        let code = match &error {
            ScheduleError::NoSuchSchedule { .. } | ScheduleError::NoSuchVhost { .. } => Code::NotFound,
            ScheduleError::Target { .. } => Code::FailedPrecondition,
            ScheduleError::Invalid { .. }
            | ScheduleError::Cron { .. }
            | ScheduleError::Never { .. }
            | ScheduleError::Zone { .. }
            | ScheduleError::Interval { .. }
            | ScheduleError::Ended { .. }
            | ScheduleError::OutOfRange { .. }
            | ScheduleError::Name(_)
            | ScheduleError::TooLarge { .. } => Code::InvalidArgument,
            ScheduleError::TooMany { .. } => Code::ResourceExhausted,
        };
        Self { code, message: error.to_string() }
    }
}

impl From<ScheduleChangeError> for Failure {
    fn from(error: ScheduleChangeError) -> Self {
        match error {
            ScheduleChangeError::Refused(error) => error.into(),
            ScheduleChangeError::Queue(error) => error.into(),
        }
    }
}

impl From<ScheduleRunError> for Failure {
    fn from(error: ScheduleRunError) -> Self {
        match error {
            ScheduleRunError::Refused(error) => error.into(),
            ScheduleRunError::Failed { reason } => Self { code: Code::FailedPrecondition, message: reason },
            ScheduleRunError::Queue(error) => error.into(),
        }
    }
}

pub(crate) fn list(
    broker: &Broker,
    identity: &Identity,
    request: &proto::ListSchedulesRequest,
) -> Result<Vec<proto::ScheduleInfo>, Failure> {
    let wanted = &request.vhost;
    if !wanted.is_empty() {
        identity.may_see_schedules(fields::vhost(wanted)?.as_str())?;
    }
    let mut seen = broker.schedules();
    seen.retain(|info| {
        (wanted.is_empty() || info.vhost.as_str() == wanted)
            && identity.may_see_schedules(info.vhost.as_str()).is_ok()
    });
    Ok(seen.iter().map(|info| to_proto(identity, info)).collect())
}

pub(crate) fn get(
    broker: &Broker,
    identity: &Identity,
    request: &proto::GetScheduleRequest,
) -> Result<proto::ScheduleInfo, Failure> {
    let info = found(broker, identity, &request.vhost, &request.name)?;
    Ok(to_proto(identity, &info))
}

pub(crate) async fn put(
    broker: &Broker,
    identity: &Identity,
    asked: proto::Schedule,
) -> Result<proto::PutScheduleResponse, Failure> {
    let vhost = fields::vhost(&asked.vhost)?;
    let is_paused = asked.paused;
    let schedule: Arc<Schedule> = asked_schedule(&vhost, asked)?.into();
    identity.may_schedule(&schedule.action)?;
    let before = broker.schedule(&vhost, &schedule.name);
    if let Some(before) = &before {
        // Who takes another's place must be allowed to end it.
        identity.may_stop_schedule(vhost.as_str(), &before.entry.schedule.action)?;
    }
    let (name, set_by) = (Arc::clone(&schedule.name), identity.name().as_str().into());
    let change = ScheduleChange::Put { vhost: vhost.clone(), schedule, set_by, is_paused };
    broker.change_schedules(&[change]).await?;
    let next_ms = broker.schedule(&vhost, &name).and_then(|info| info.entry.status.next);
    Ok(proto::PutScheduleResponse { created: before.is_none(), next_ms: next_ms.map(|next| next.0) })
}

pub(crate) async fn delete(
    broker: &Broker,
    identity: &Identity,
    request: &proto::DeleteScheduleRequest,
) -> Result<(), Failure> {
    let info = found(broker, identity, &request.vhost, &request.name)?;
    identity.may_stop_schedule(info.vhost.as_str(), &info.entry.schedule.action)?;
    let (vhost, name) = (info.vhost, Arc::clone(&info.entry.schedule.name));
    Ok(broker.change_schedules(&[ScheduleChange::Delete { vhost, name }]).await?)
}

pub(crate) async fn pause(
    broker: &Broker,
    identity: &Identity,
    request: &proto::PauseScheduleRequest,
) -> Result<Option<u64>, Failure> {
    let info = found(broker, identity, &request.vhost, &request.name)?;
    identity.may_stop_schedule(info.vhost.as_str(), &info.entry.schedule.action)?;
    let (vhost, name) = (info.vhost, Arc::clone(&info.entry.schedule.name));
    let change = ScheduleChange::Pause { vhost: vhost.clone(), name, is_paused: request.paused };
    broker.change_schedules(&[change]).await?;
    let now = broker.schedule(&vhost, &request.name);
    Ok(now.and_then(|info| info.entry.status.next).map(|next| next.0))
}

pub(crate) async fn run(
    broker: &Broker,
    identity: &Identity,
    request: &proto::RunScheduleRequest,
) -> Result<(), Failure> {
    let info = found(broker, identity, &request.vhost, &request.name)?;
    identity.may_schedule(&info.entry.schedule.action)?;
    Ok(broker.run_schedule(&info.vhost, &request.name).await?)
}

/// A schedule that the caller may know of.
fn found(broker: &Broker, identity: &Identity, vhost: &str, name: &str) -> Result<ScheduleInfo, Failure> {
    let vhost = fields::vhost(vhost)?;
    identity.may_see_schedules(vhost.as_str())?;
    let info = broker.schedule(&vhost, name);
    Ok(info.ok_or_else(|| ScheduleError::NoSuchSchedule { vhost, name: name.to_owned() })?)
}

fn asked_schedule(vhost: &VhostName, asked: proto::Schedule) -> Result<Schedule, Failure> {
    let priority = fields::in_range("priority", asked.priority.into(), 0, u8::MAX.into())?;
    let header = |header: &proto::ScheduleHeader| (header.name.as_str().into(), header.value.as_str().into());
    let message = ScheduledMessage {
        body: asked.body,
        content_type: asked.content_type.as_str().into(),
        headers: asked.headers.iter().map(header).collect(),
        priority: Priority(u8::try_from(priority).unwrap_or(u8::MAX)),
    };
    let job = asked.job.as_ref().map(|job| AskedJob {
        queue: &job.queue,
        kind: &job.r#type,
        key: &job.key,
        payload: job.payload.clone(),
        cost: job.cost,
        background: job.background,
    });
    let asked = AskedSchedule {
        name: &asked.name,
        cron: &asked.cron,
        time_zone: &asked.time_zone,
        every: asked.every_ms.map(Millis),
        start: asked.start_ms.map(Timestamp),
        queue: &asked.queue,
        exchange: &asked.exchange,
        routing_key: &asked.routing_key,
        message,
        job,
        catch_up: &asked.catch_up,
        catch_up_max: asked.catch_up_max,
        until: asked.until_ms.map(Timestamp),
        runs_max: asked.max_runs,
        description: &asked.description,
    };
    Ok(asked.schedule(vhost)?)
}

fn to_proto(identity: &Identity, info: &ScheduleInfo) -> proto::ScheduleInfo {
    let (schedule, status) = (&info.entry.schedule, &info.entry.status);
    let ms = |at: Option<Timestamp>| at.map(|at| at.0);
    let mut shown = proto::Schedule {
        vhost: info.vhost.as_str().to_owned(),
        name: schedule.name.to_string(),
        catch_up: schedule.catch_up.as_str().to_owned(),
        until_ms: ms(schedule.until),
        max_runs: schedule.runs_max,
        paused: Some(status.is_paused),
        description: schedule.description.to_string(),
        ..proto::Schedule::default()
    };
    if let CatchUp::All { max } = schedule.catch_up {
        shown.catch_up_max = Some(max.into());
    }
    match &schedule.table {
        TimeTable::Cron { expression, zone } => {
            (shown.cron, shown.time_zone) = (expression.to_string(), zone.to_string());
        }
        TimeTable::Every { interval, start } => {
            (shown.every_ms, shown.start_ms) = (Some(interval.0), ms(*start));
        }
    }
    // What it says is for those who might say it themselves.
    let shows_message = identity.may_schedule(&schedule.action).is_ok();
    match &schedule.action {
        Action::Push { queue, message } => {
            shown.queue = queue.as_str().to_owned();
            show_message(&mut shown, message, shows_message);
        }
        Action::Publish { exchange, routing_key, message } => {
            (shown.exchange, shown.routing_key) = (exchange.as_str().to_owned(), routing_key.to_string());
            show_message(&mut shown, message, shows_message);
        }
        Action::Ask { queue, job } => {
            shown.job = Some(proto::ScheduledJob {
                queue: queue.as_str().to_owned(),
                r#type: job.kind.to_string(),
                key: job.key.to_string(),
                payload: if shows_message { job.payload.clone() } else { Bytes::new() },
                cost: job.cost,
                background: Some(job.background),
            });
        }
    }
    let (last_error_ms, last_error) = match &status.last_error {
        None => (None, String::new()),
        Some((at, error)) => (Some(at.0), error.to_string()),
    };
    let status = proto::ScheduleStatus {
        set_by: status.set_by.to_string(),
        next_ms: ms(status.next),
        last_scheduled_ms: ms(status.last_scheduled),
        last_run_ms: ms(status.last_run),
        runs: status.runs,
        manual_runs: status.manual_runs,
        failures: status.failures,
        missed: status.missed,
        last_error,
        last_error_ms,
        waits_for: info.waits_for.as_deref().unwrap_or_default().to_owned(),
    };
    proto::ScheduleInfo { schedule: Some(shown), status: Some(status) }
}

fn show_message(shown: &mut proto::Schedule, message: &ScheduledMessage, shows_message: bool) {
    shown.content_type = message.content_type.to_string();
    shown.priority = message.priority.0.into();
    if shows_message {
        shown.body = message.body.clone();
        let header = |(name, value): &(Arc<str>, Arc<str>)| proto::ScheduleHeader {
            name: name.to_string(),
            value: value.to_string(),
        };
        shown.headers = message.headers.iter().map(header).collect();
    }
}
