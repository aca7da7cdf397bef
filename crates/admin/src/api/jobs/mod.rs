//! Job queues and budgets over HTTP, under `/api/jobs`: for any language that can send JSON. Whoever logs in may ask; what he may do
//! is what his permissions say, by the names of job queues and budgets: to configure one is to make, change or delete it, to write
//! is to ask for work, to read is to work.
//!
//! - `queues`, `budgets`: settings and figures. `work`: asking, taking, completing, answers. `shown`: what it all looks like.

mod budgets;
mod queues;
mod shown;
mod work;

use axum::response::Response;
use nexo_access::{Permission, Resource};
use nexo_broker::job_rules::{JobError, JobReceipt, JobReceiptError, Jobs};
use nexo_broker::{JobCallError, QueueError};
use nexo_types::{BudgetName, JobId, JobQueueName, Millis, Timestamp};
use serde_json::{Map, Value};

use super::Api;
use super::access::{Caller, Needs};
use super::body::Fields;
use super::error::ApiError;
use super::listing::ListQuery;
use super::names::Vhost;
use super::routes::Routes;

pub(super) fn routes(routes: Routes) -> Routes {
    use Needs::User;
    routes
        .get("/jobs/queues", User, queues::list)
        .get("/jobs/queues/{vhost}", User, queues::list_of_vhost)
        .get("/jobs/queues/{vhost}/{name}", User, queues::show)
        .put("/jobs/queues/{vhost}/{name}", User, queues::put)
        .delete("/jobs/queues/{vhost}/{name}", User, queues::delete)
        .get("/jobs/queues/{vhost}/{name}/pending", User, queues::pending)
        .post("/jobs/queues/{vhost}/{name}/ask", User, work::ask)
        .post("/jobs/queues/{vhost}/{name}/take", User, work::take)
        .get("/jobs/queues/{vhost}/{name}/answers/{waiter}", User, work::answer)
        .delete("/jobs/queues/{vhost}/{name}/waiters/{waiter}", User, work::leave)
        .get("/jobs/queues/{vhost}/{name}/results/{key}", User, work::result)
        .get("/jobs/budgets", User, budgets::list)
        .get("/jobs/budgets/{vhost}", User, budgets::list_of_vhost)
        .get("/jobs/budgets/{vhost}/{name}", User, budgets::show)
        .put("/jobs/budgets/{vhost}/{name}", User, budgets::put)
        .delete("/jobs/budgets/{vhost}/{name}", User, budgets::delete)
        .post("/jobs/budgets/{vhost}/{name}/report", User, budgets::report)
        .post("/jobs/budgets/{vhost}/{name}/grant", User, budgets::grant)
        .get("/jobs/tokens", User, budgets::tokens)
        .get("/jobs/job/{job}", User, work::show)
        .delete("/jobs/job/{job}", User, work::cancel)
        .post("/jobs/receipt/{receipt}/complete", User, work::complete)
        .post("/jobs/receipt/{receipt}/fail", User, work::fail)
        .post("/jobs/receipt/{receipt}/extend", User, work::extend)
        .post("/jobs/receipt/{receipt}/return", User, work::give_back)
}

/// A job queue that whoever asks may do this with.
fn queue_named(
    api: &Api,
    caller: &Caller,
    vhost: &str,
    name: &str,
    permission: Option<Permission>,
) -> Result<JobQueueName, ApiError> {
    let name = JobQueueName::at(Vhost::named(api, vhost)?.name(), name)?;
    may(caller, name.vhost_str(), name.as_str(), permission)?;
    Ok(name)
}

fn budget_named(
    api: &Api,
    caller: &Caller,
    vhost: &str,
    name: &str,
    permission: Option<Permission>,
) -> Result<BudgetName, ApiError> {
    let name = BudgetName::at(Vhost::named(api, vhost)?.name(), name)?;
    may(caller, name.vhost_str(), name.as_str(), permission)?;
    Ok(name)
}

/// Whether somebody may do this; without a permission, whether he may see it.
fn may(caller: &Caller, vhost: &str, name: &str, permission: Option<Permission>) -> Result<(), ApiError> {
    let (identity, resource) = (caller.identity(), Resource::queue(name));
    let allowed = match permission {
        Some(permission) => identity.may(vhost, permission, resource),
        None if caller.is_monitor() => Ok(()),
        None => identity.may_see(vhost, resource),
    };
    allowed.map_err(|_| ApiError::access_refused())
}

/// Whether whoever asks may see what is called so in a virtual host.
type Sees<'a> = &'a dyn Fn(&str, &str) -> bool;

/// Answers with what whoever asks may see, of one virtual host or of all.
async fn list_seen(
    api: &Api,
    caller: Caller,
    vhost: Option<&str>,
    query: ListQuery,
    seen: fn(&Jobs, Timestamp, Sees<'_>) -> Vec<Value>,
) -> Result<Response, ApiError> {
    let vhost = vhost.map(|vhost| Vhost::named(api, vhost)).transpose()?;
    let vhost = vhost.map(|vhost| vhost.as_str().to_owned());
    let rows = api.look(move |api| {
        let sees = |own: &str, name: &str| {
            vhost.as_deref().is_none_or(|vhost| vhost == own) && may(&caller, own, name, None).is_ok()
        };
        api.broker.look_at_jobs(|jobs, now| seen(jobs, now, &sees))
    });
    query.answer(rows.await?)
}

/// The queue of a job, if whoever asks may do this with it.
fn queue_of_job(
    api: &Api,
    caller: &Caller,
    job: JobId,
    permission: Option<Permission>,
) -> Result<JobQueueName, ApiError> {
    let name = api.broker.look_at_jobs(|jobs, _| jobs.job(job).map(|(queue, _)| queue.name().clone()));
    let name = name.ok_or_else(|| ApiError::from(JobCallError::Refused(JobError::NoSuchJob { job })))?;
    may(caller, name.vhost_str(), name.as_str(), permission)?;
    Ok(name)
}

fn job_of(text: &str) -> Result<JobId, ApiError> {
    text.parse().map(JobId).map_err(|_| ApiError::bad_request("a job's id is a number"))
}

fn receipt_of(text: &str) -> Result<JobReceipt, ApiError> {
    text.parse().map_err(|error: JobReceiptError| ApiError::bad_request(error.to_string()))
}

/// A text that must be there.
fn text<'a>(object: &'a Map<String, Value>, name: &str) -> Result<&'a str, ApiError> {
    let found = object.text_or_nothing(name)?;
    found.ok_or_else(|| ApiError::bad_request(format!("{name} is missing")))
}

/// True or false, in words that name the field: RabbitMQ's do not.
fn truth(object: &Map<String, Value>, name: &str, default: bool) -> Result<bool, ApiError> {
    object
        .truth(name, default)
        .map_err(|_| ApiError::bad_request(format!("{name} must be true or false; it is {}", object[name])))
}

/// A whole number, in words that name the field.
fn whole(object: &Map<String, Value>, name: &str) -> Result<Option<i64>, ApiError> {
    object
        .whole(name)
        .map_err(|_| ApiError::bad_request(format!("{name} must be a whole number; it is {}", object[name])))
}

/// A whole number that is not negative.
fn count(object: &Map<String, Value>, name: &str) -> Result<Option<u64>, ApiError> {
    let found = whole(object, name)?;
    found
        .map(|number| {
            u64::try_from(number).map_err(|_| ApiError::bad_request(format!("{name} must not be negative")))
        })
        .transpose()
}

fn millis(object: &Map<String, Value>, name: &str) -> Result<Option<Millis>, ApiError> {
    Ok(count(object, name)?.map(Millis))
}

/// A moment: in milliseconds since 1970, or from now with another name.
fn moment(
    api: &Api,
    object: &Map<String, Value>,
    at: &str,
    within: &str,
) -> Result<Option<Timestamp>, ApiError> {
    match (count(object, at)?, whole(object, within)?) {
        (Some(_), Some(_)) => {
            Err(ApiError::bad_request(format!("{at} and {within} are two ways to say one thing")))
        }
        (Some(at), None) => Ok(Some(Timestamp(at))),
        (None, Some(within)) => {
            let now = api.broker.now().0;
            Ok(Some(Timestamp(now.saturating_add_signed(within))))
        }
        (None, None) => Ok(None),
    }
}

/// Refuses what nobody knows: a setting that was spelt wrong would be without effect.
pub(super) fn refuse_unknown(object: &Map<String, Value>, known: &[&str]) -> Result<(), ApiError> {
    match object.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) if known.is_empty() => {
            Err(ApiError::bad_request(format!("'{name}' is not known here; this takes no fields")))
        }
        Some(name) => {
            Err(ApiError::bad_request(format!("'{name}' is not known here; known are {}", known.join(", "))))
        }
        None => Ok(()),
    }
}

fn no_such_queue(name: &JobQueueName) -> ApiError {
    JobCallError::Refused(JobError::NoSuchQueue { name: name.clone() }).into()
}

impl From<JobCallError> for ApiError {
    fn from(error: JobCallError) -> Self {
        let words = error.to_string();
        match error {
            JobCallError::Queue(QueueError::NotFound { .. }) => Self::bad_request(words),
            JobCallError::Queue(_) => Self::unavailable(words),
            JobCallError::Refused(error) => match error {
                JobError::NoSuchQueue { .. }
                | JobError::QueueDeleted { .. }
                | JobError::NoSuchBudget { .. }
                | JobError::NoSuchJob { .. }
                | JobError::NoSuchWaiter { .. } => Self::not_found().with_reason(words),
                JobError::NotHeld { .. }
                | JobError::Finished { .. }
                | JobError::OtherKey { .. }
                | JobError::QueueGoing { .. }
                | JobError::BudgetInUse { .. } => Self::conflict(words),
                JobError::TooMany { .. } | JobError::OutOfMemory { .. } => Self::too_many(words),
                JobError::UnknownClass { .. }
                | JobError::NeverPaid { .. }
                | JobError::BadCost { .. }
                | JobError::BadSetting { .. }
                | JobError::BadName(_)
                | JobError::BadExpression { .. } => Self::bad_request(words),
            },
        }
    }
}
