//! The service of job queues and budgets: who may call, what is asked, and the broker's answer.

use std::collections::BTreeSet;
use std::time::Duration;

use nexo_access::{Identity, Logins, Permission};
use nexo_broker::job_rules::{BudgetConfig, JobError, JobQueue, JobQueueConfig, JobReceipt, Settled};
use nexo_broker::{Broker, WaiterAnswer};
use nexo_types::{BudgetId, BudgetName, JobId, JobQueueName, Millis, Timestamp, limits};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::requests::{answer, asked, fitting, from_now, job_request, lease, receipt, taken, wait};
use super::settings::{patch_budget, patch_queue, report};
use super::shown::{self, Detail};
use super::stream::CallStream;
use crate::access::{self, LikeQueue, caller};
use crate::fields;
use crate::incoming::Held;
use crate::messages::{REPLY_BUFFER, attend, until_user_is_gone};
use crate::proto::{self, job_service_server::JobService};
use crate::status::Failure;

/// Items in one answer, if the client does not say.
const PAGE_DEFAULT: usize = 100;
/// Items in one answer at most: keeps it below the size that clients refuse.
const PAGE_MAX: usize = 1_000;

/// Answers [`JobService`] from a broker.
#[derive(Clone)]
pub(crate) struct JobCalls {
    pub(crate) broker: Broker,
    pub(crate) logins: Logins,
    pub(crate) stop: CancellationToken,
}

type Reply<T> = Result<Response<T>, Status>;

impl JobCalls {
    /// The job queue of a job, if that is in the virtual host that was named.
    fn queue_of(&self, vhost: &str, job: JobId) -> Result<JobQueueName, Failure> {
        let vhost = fields::vhost(vhost)?;
        let name = |queue: &JobQueue| queue.name().clone();
        let found = self.broker.look_at_jobs(|jobs, _| jobs.queue_by_id(job.queue()).map(name));
        found
            .filter(|queue| queue.vhost_str() == vhost.as_str())
            .ok_or_else(|| JobError::NoSuchJob { job }.into())
    }

    /// What a worker holds, if the caller may say something about it.
    fn held(&self, identity: &Identity, vhost: &str, text: &str) -> Result<JobReceipt, Failure> {
        let receipt = receipt(text)?;
        access::may(identity, Permission::Read, &self.queue_of(vhost, receipt.job)?)?;
        Ok(receipt)
    }

    /// The answer to a waiter, unless `refused` comes first or the broker stops.
    async fn answer_within(
        &self,
        queue: &JobQueueName,
        waiter: &str,
        wait: Millis,
        refused: impl Future<Output = Failure>,
    ) -> Result<Option<proto::JobAnswer>, Status> {
        let found: Option<WaiterAnswer> = tokio::select! {
            biased;
            refused = refused, if wait > Millis::ZERO => return Err(refused.into()),
            found = self.broker.job_answer(queue, waiter, Duration::from_millis(wait.0)) => {
                found.map_err(Failure::from)?
            }
            // A call that only waits must not hold up the end; the same waiter may ask again.
            () = self.stop.cancelled() => return Err(Failure::stopping().into()),
        };
        Ok(found.map(answer))
    }
}

#[tonic::async_trait]
impl JobService for JobCalls {
    type CallsStream = ReceiverStream<Result<proto::JobCallsResponse, Status>>;

    async fn calls(&self, request: Request<Streaming<proto::JobCallsRequest>>) -> Reply<Self::CallsStream> {
        let (out, replies) = mpsc::channel(REPLY_BUFFER);
        let held = request.extensions().get::<Held>().cloned().unwrap_or_default();
        let identity = caller(&request)?;
        let (stop, presence) = (self.stop.child_token(), attend(&self.logins, &identity)?);
        // What waits ends with the stream, and not only with the broker.
        let calls = Self { stop: stop.clone(), ..self.clone() };
        let stream = CallStream::new(calls, identity, request.into_inner(), held, out, stop.clone());
        tokio::spawn(until_user_is_gone(stream.run(), presence, stop));
        Ok(Response::new(ReceiverStream::new(replies)))
    }

    async fn put_queue(
        &self,
        request: Request<proto::PutJobQueueRequest>,
    ) -> Reply<proto::PutJobQueueResponse> {
        let identity = caller(&request)?;
        let request = request.into_inner();
        let queue = fields::job_queue(&request.vhost, &request.queue)?;
        let change = request.config.unwrap_or_default();
        access::may(&identity, Permission::Configure, &queue)?;
        let named = patch_queue(&queue, JobQueueConfig::default(), &change).map_err(Failure::from)?.budget;
        if let Some(budget) = &named {
            // Its jobs spend what others may count on.
            access::may(&identity, Permission::Write, budget)?;
        }
        let patch =
            |found: Option<&JobQueueConfig>| patch_queue(&queue, found.cloned().unwrap_or_default(), &change);
        let created = self.broker.change_job_queue(&queue, patch).await.map_err(Failure::from)?;
        let created = created.map_err(Failure::from)?;
        Ok(Response::new(proto::PutJobQueueResponse { created }))
    }

    async fn get_queue(
        &self,
        request: Request<proto::GetJobQueueRequest>,
    ) -> Reply<proto::GetJobQueueResponse> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let name = fields::job_queue(&request.vhost, &request.queue)?;
        access::may_see(&identity, &name)?;
        let keys_max = fields::page("keys_max", request.keys_max, 0, PAGE_MAX)?;
        let found = self.broker.look_at_jobs(|jobs, now| {
            jobs.queue(&name).map(|queue| shown::queue(queue, now, Detail::Whole { keys_max }))
        });
        let queue = found.ok_or_else(|| Failure::from(JobError::NoSuchQueue { name }))?;
        Ok(Response::new(proto::GetJobQueueResponse { queue: Some(queue) }))
    }

    async fn list_queues(
        &self,
        request: Request<proto::ListJobQueuesRequest>,
    ) -> Reply<proto::ListJobQueuesResponse> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let limit = fields::page("page_size", request.page_size, PAGE_DEFAULT, PAGE_MAX)?;
        let vhost = fields::vhost(&request.vhost)?;
        let after = page_token(&request.page_token, JobQueueName::from_stored)?;
        let wanted = |name: &JobQueueName| {
            name.vhost_str() == vhost.as_str()
                && name.as_str().starts_with(&request.prefix)
                && after.as_ref().is_none_or(|after| name > after)
        };
        let names: Vec<JobQueueName> = self.broker.look_at_jobs(|jobs, _| {
            jobs.queues().map(JobQueue::name).filter(|name| wanted(name)).cloned().collect()
        });
        let (names, more) = seen(&identity, names, limit);
        let next_page_token = more.then(|| names.last().map(|name| name.stored().to_owned()));
        let queues = self.broker.look_at_jobs(|jobs, now| {
            let found = names.iter().filter_map(|name| jobs.queue(name));
            found.map(|queue| shown::queue(queue, now, Detail::Listed)).collect()
        });
        let next_page_token = next_page_token.flatten().unwrap_or_default();
        Ok(Response::new(proto::ListJobQueuesResponse { queues, next_page_token }))
    }

    async fn delete_queue(
        &self,
        request: Request<proto::DeleteJobQueueRequest>,
    ) -> Reply<proto::DeleteJobQueueResponse> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let queue = fields::job_queue(&request.vhost, &request.queue)?;
        access::may(&identity, Permission::Configure, &queue)?;
        self.broker.delete_job_queue(&queue).await.map_err(Failure::from)?;
        Ok(Response::new(proto::DeleteJobQueueResponse {}))
    }

    async fn put_budget(&self, request: Request<proto::PutBudgetRequest>) -> Reply<proto::PutBudgetResponse> {
        let identity = caller(&request)?;
        let request = request.into_inner();
        let budget = fields::budget(&request.vhost, &request.budget)?;
        access::may(&identity, Permission::Configure, &budget)?;
        let change = request.config.unwrap_or_default();
        let patch = |found: Option<&BudgetConfig>| {
            let config = patch_budget(found.copied().unwrap_or_default(), &change)?;
            // The broker has no word for a setting that is too large but that there is too much of it.
            config.check().map(|()| config).map_err(|error| Failure::invalid(error.to_string()))
        };
        let created = self.broker.change_budget(&budget, patch).await.map_err(Failure::from)??;
        Ok(Response::new(proto::PutBudgetResponse { created }))
    }

    async fn get_budget(&self, request: Request<proto::GetBudgetRequest>) -> Reply<proto::GetBudgetResponse> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let name = fields::budget(&request.vhost, &request.budget)?;
        access::may_see(&identity, &name)?;
        let found = self.broker.budget(&name);
        let (budget, now) =
            found.ok_or_else(|| JobError::NoSuchBudget { name: name.clone() }).map_err(Failure::from)?;
        let queues: Vec<JobQueueName> = self.broker.look_at_jobs(|jobs, _| {
            let paid = jobs.budget_id(&name).into_iter().flat_map(|id| jobs.queues_of(id));
            paid.map(|queue| queue.name().clone()).collect()
        });
        let (queues, _) = seen(&identity, queues, PAGE_MAX);
        let budget = Some(shown::budget(&budget, now, &queues));
        Ok(Response::new(proto::GetBudgetResponse { budget }))
    }

    async fn list_budgets(
        &self,
        request: Request<proto::ListBudgetsRequest>,
    ) -> Reply<proto::ListBudgetsResponse> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let limit = fields::page("page_size", request.page_size, PAGE_DEFAULT, PAGE_MAX)?;
        let vhost = fields::vhost(&request.vhost)?;
        let after = page_token(&request.page_token, BudgetName::from_stored)?;
        let wanted = |name: &BudgetName| {
            name.vhost_str() == vhost.as_str()
                && name.as_str().starts_with(&request.prefix)
                && after.as_ref().is_none_or(|after| name > after)
        };
        let names: Vec<BudgetName> = self.broker.look_at_jobs(|jobs, _| {
            let names = jobs.budgets().map(|budget| budget.name());
            names.filter(|name| wanted(name)).cloned().collect()
        });
        let (names, more) = seen(&identity, names, limit);
        let next_page_token = more.then(|| names.last().map(|name| name.stored().to_owned()));
        let budgets = self.broker.look_at_jobs(|jobs, now| {
            let found = names.iter().filter_map(|name| jobs.budget(name));
            found.map(|budget| shown::budget(budget, now, &[])).collect()
        });
        let next_page_token = next_page_token.flatten().unwrap_or_default();
        Ok(Response::new(proto::ListBudgetsResponse { budgets, next_page_token }))
    }

    async fn delete_budget(
        &self,
        request: Request<proto::DeleteBudgetRequest>,
    ) -> Reply<proto::DeleteBudgetResponse> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let budget = fields::budget(&request.vhost, &request.budget)?;
        access::may(&identity, Permission::Configure, &budget)?;
        self.broker.delete_budget(&budget).await.map_err(Failure::from)?;
        Ok(Response::new(proto::DeleteBudgetResponse {}))
    }

    async fn report_tokens(
        &self,
        request: Request<proto::ReportTokensRequest>,
    ) -> Reply<proto::ReportTokensResponse> {
        let identity = caller(&request)?;
        let request = request.into_inner();
        let budget = fields::budget(&request.vhost, &request.budget)?;
        access::may(&identity, Permission::Write, &budget)?;
        self.broker.report_tokens(&budget, report(request.report)).await.map_err(Failure::from)?;
        Ok(Response::new(proto::ReportTokensResponse {}))
    }

    async fn grant_tokens(
        &self,
        request: Request<proto::GrantTokensRequest>,
    ) -> Reply<proto::GrantTokensResponse> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let budget = fields::budget(&request.vhost, &request.budget)?;
        // Tokens that nobody has told of: whoever gives them says how large the budget is.
        access::may(&identity, Permission::Configure, &budget)?;
        let tokens = fields::in_range("tokens", request.tokens, 1, limits::TOKENS_MAX)?;
        let when = match request.in_ms {
            0 => None,
            span => Some(from_now("in_ms", self.broker.now(), span)?),
        };
        self.broker.grant_tokens(&budget, tokens, when).await.map_err(Failure::from)?;
        Ok(Response::new(proto::GrantTokensResponse {}))
    }

    async fn ask(&self, request: Request<proto::AskJobRequest>) -> Reply<proto::AskJobResponse> {
        let identity = caller(&request)?;
        let request = request.into_inner();
        let queue = fields::job_queue(&request.vhost, &request.queue)?;
        access::may(&identity, Permission::Write, &queue)?;
        let wait = wait(request.wait_ms)?;
        let waiter = request.waiter.as_ref().map(|waiter| waiter.id.clone());
        if wait > Millis::ZERO && waiter.is_none() {
            return Err(Failure::invalid("wait_ms needs a waiter, which the answer is for").into());
        }
        let job = job_request(&identity, &queue, request, self.broker.now())?;
        let found = self.broker.ask_job(&queue, &job).await.map_err(Failure::from)?;
        drop(job);
        let answer = match waiter {
            Some(waiter) if wait > Millis::ZERO => {
                let refused = access::until_refused(&identity, Permission::Write, &queue);
                self.answer_within(&queue, &waiter, wait, refused).await?
            }
            Some(_) | None => None,
        };
        let state = asked(found.state).into();
        Ok(Response::new(proto::AskJobResponse { job: found.job.0, state, answer }))
    }

    async fn take(&self, request: Request<proto::TakeJobsRequest>) -> Reply<proto::TakeJobsResponse> {
        let identity = caller(&request)?;
        let request = request.into_inner();
        let queue = fields::job_queue(&request.vhost, &request.queue)?;
        access::may(&identity, Permission::Read, &queue)?;
        let max = fields::max(request.max, limits::JOB_TAKE_MAX)?;
        let (wait, lease) = (wait(request.wait_ms)?, lease(request.lease_ms)?);
        let span = Duration::from_millis(wait.0);
        let jobs = tokio::select! {
            biased;
            // What he might take when he began to wait he may not when it comes.
            refused = access::until_refused(&identity, Permission::Read, &queue), if wait > Millis::ZERO => {
                return Err(refused.into());
            }
            jobs = self.broker.take_jobs(&queue, &request.worker, lease, max, span) => {
                jobs.map_err(Failure::from)?
            }
            // A call that only waits must not hold up the end; a client that tries again finds another broker.
            () = self.stop.cancelled() => return Err(Failure::stopping().into()),
        };
        let (jobs, rest) = fitting(jobs);
        for job in rest {
            // If that fails, it comes back when its lease ends.
            let _ = self.broker.give_back_job(job.receipt).await;
        }
        Ok(Response::new(proto::TakeJobsResponse { jobs: jobs.into_iter().map(taken).collect() }))
    }

    async fn extend(&self, request: Request<proto::ExtendJobRequest>) -> Reply<proto::ExtendJobResponse> {
        let identity = caller(&request)?;
        let request = request.into_inner();
        let receipt = self.held(&identity, &request.vhost, &request.receipt)?;
        let lease = lease(request.lease_ms)?;
        let progress_bytes = request.progress.as_ref().map_or(0, bytes::Bytes::len);
        fields::bytes("progress", progress_bytes, limits::JOB_PROGRESS_BYTES_MAX)?;
        let until = self.broker.extend_job(receipt, lease, request.progress).await.map_err(Failure::from)?;
        Ok(Response::new(proto::ExtendJobResponse { lease_until_ms: until.0 }))
    }

    async fn complete(
        &self,
        request: Request<proto::CompleteJobRequest>,
    ) -> Reply<proto::CompleteJobResponse> {
        let identity = caller(&request)?;
        let request = request.into_inner();
        let receipt = self.held(&identity, &request.vhost, &request.receipt)?;
        fields::bytes("result", request.result.len(), limits::JOB_RESULT_BYTES_MAX)?;
        let report = report(request.report);
        let done = self.broker.complete_job(receipt, request.result, request.used, report).await;
        done.map_err(Failure::from)?;
        Ok(Response::new(proto::CompleteJobResponse {}))
    }

    async fn fail(&self, request: Request<proto::FailJobRequest>) -> Reply<proto::FailJobResponse> {
        let identity = caller(&request)?;
        let request = request.into_inner();
        let receipt = self.held(&identity, &request.vhost, &request.receipt)?;
        fields::bytes("error", request.error.len(), limits::JOB_ERROR_BYTES_MAX)?;
        let report = report(request.report);
        let settled = self
            .broker
            .fail_job(receipt, &request.error, request.used, report, !request.no_retry)
            .await
            .map_err(Failure::from)?;
        let retry_at_ms = match settled {
            Settled::Retried(at) => Some(at.0),
            Settled::Finished | Settled::Held(_) | Settled::Returned => None,
        };
        Ok(Response::new(proto::FailJobResponse { retry_at_ms }))
    }

    async fn give_back(
        &self,
        request: Request<proto::GiveBackJobRequest>,
    ) -> Reply<proto::GiveBackJobResponse> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let receipt = self.held(&identity, &request.vhost, &request.receipt)?;
        self.broker.give_back_job(receipt).await.map_err(Failure::from)?;
        Ok(Response::new(proto::GiveBackJobResponse {}))
    }

    async fn cancel(&self, request: Request<proto::CancelJobRequest>) -> Reply<proto::CancelJobResponse> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let job = JobId(request.job);
        access::may(&identity, Permission::Write, &self.queue_of(&request.vhost, job)?)?;
        self.broker.cancel_job(job).await.map_err(Failure::from)?;
        Ok(Response::new(proto::CancelJobResponse {}))
    }

    async fn leave(&self, request: Request<proto::LeaveJobRequest>) -> Reply<proto::LeaveJobResponse> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let queue = fields::job_queue(&request.vhost, &request.queue)?;
        access::may(&identity, Permission::Write, &queue)?;
        fields::bytes("waiter", request.waiter.len(), limits::WAITER_ID_BYTES_MAX)?;
        self.broker.leave_job(&queue, &request.waiter).await.map_err(Failure::from)?;
        Ok(Response::new(proto::LeaveJobResponse {}))
    }

    async fn answer(&self, request: Request<proto::JobAnswerRequest>) -> Reply<proto::JobAnswerResponse> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let queue = fields::job_queue(&request.vhost, &request.queue)?;
        access::may(&identity, Permission::Write, &queue)?;
        fields::bytes("waiter", request.waiter.len(), limits::WAITER_ID_BYTES_MAX)?;
        let wait = wait(request.wait_ms)?;
        let refused = access::until_refused(&identity, Permission::Write, &queue);
        let answer = self.answer_within(&queue, &request.waiter, wait, refused).await?;
        Ok(Response::new(proto::JobAnswerResponse { answer }))
    }

    async fn result(&self, request: Request<proto::JobResultRequest>) -> Reply<proto::JobResultResponse> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let queue = fields::job_queue(&request.vhost, &request.queue)?;
        access::may(&identity, Permission::Write, &queue)?;
        let found = self.broker.cached_result(&queue, &request.key).map_err(Failure::from)?;
        let cached =
            found.map(|(result, at, until)| proto::CachedResult { result, at_ms: at.0, until_ms: until.0 });
        Ok(Response::new(proto::JobResultResponse { cached }))
    }

    async fn pending(
        &self,
        request: Request<proto::PendingJobsRequest>,
    ) -> Reply<proto::PendingJobsResponse> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let name = fields::job_queue(&request.vhost, &request.queue)?;
        access::may(&identity, Permission::Read, &name)?;
        let max = fields::page("max", request.max, PAGE_DEFAULT, PAGE_MAX)?;
        let found = self.broker.look_at_jobs(|jobs, _| {
            let queue = jobs.queue(&name)?;
            let first = queue.in_order().take(max);
            let first = first.map(|pending| shown::listed(queue, pending.id, pending.job)).collect();
            Some(proto::PendingJobsResponse { jobs: first, total: queue.pending() })
        });
        let found = found.ok_or_else(|| Failure::from(JobError::NoSuchQueue { name }))?;
        Ok(Response::new(found))
    }

    async fn get_job(&self, request: Request<proto::GetJobRequest>) -> Reply<proto::GetJobResponse> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let job = JobId(request.job);
        let queue = self.queue_of(&request.vhost, job)?;
        access::may_see(&identity, &queue)?;
        if request.with_result {
            access::may(&identity, Permission::Write, &queue)?;
        }
        let found = self.broker.look_at_jobs(|jobs, _| {
            jobs.job(job).map(|(queue, found)| shown::whole(queue, job, found, request.with_result))
        });
        let found = found.ok_or_else(|| Failure::from(JobError::NoSuchJob { job }))?;
        Ok(Response::new(proto::GetJobResponse { job: Some(found) }))
    }

    async fn token_log(&self, request: Request<proto::TokenLogRequest>) -> Reply<proto::TokenLogResponse> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let max = fields::page("max", request.max, PAGE_DEFAULT, PAGE_MAX)?;
        let vhost = fields::vhost(&request.vhost)?;
        let budgets: Vec<BudgetName> = match request.budget.as_str() {
            "" => self.broker.look_at_jobs(|jobs, _| {
                let names = jobs.budgets().map(|budget| budget.name());
                names.filter(|name| name.vhost_str() == vhost.as_str()).cloned().collect()
            }),
            name => {
                let name = fields::budget(&request.vhost, name)?;
                access::may_see(&identity, &name)?;
                let is_there = self.broker.look_at_jobs(|jobs, _| jobs.budget_id(&name).is_some());
                if !is_there {
                    return Err(Failure::from(JobError::NoSuchBudget { name }).into());
                }
                vec![name]
            }
        };
        let (budgets, _) = seen(&identity, budgets, limits::BUDGETS_MAX);
        let until = if request.until_ms == 0 { Timestamp::MAX } else { Timestamp(request.until_ms) };
        let mut uses: Vec<proto::TokenUse> = self.broker.look_at_jobs(|jobs, _| {
            let wanted: BTreeSet<BudgetId> = budgets.iter().filter_map(|name| jobs.budget_id(name)).collect();
            let found = jobs.token_log(Timestamp(request.since_ms), until);
            let found = found.filter(|used| wanted.contains(&used.budget)).take(max + 1);
            found.map(|used| shown::token_use(jobs, used)).collect()
        });
        let more = uses.len() > max;
        uses.truncate(max);
        Ok(Response::new(proto::TokenLogResponse { uses, more }))
    }
}

/// Those that the caller may see, at most so many, and whether there are more.
fn seen<T: LikeQueue>(identity: &Identity, names: Vec<T>, limit: usize) -> (Vec<T>, bool) {
    let may_see = |name: &T| access::may_see(identity, name).is_ok();
    let mut names: Vec<T> = names.into_iter().filter(may_see).take(limit + 1).collect();
    let more = names.len() > limit;
    names.truncate(limit);
    (names, more)
}

/// Where a list goes on: the last name of the page before.
fn page_token<T>(
    token: &str,
    read: impl FnOnce(&str) -> Result<T, nexo_types::NameError>,
) -> Result<Option<T>, Failure> {
    match token {
        "" => Ok(None),
        token => read(token).map(Some).map_err(|error| fields::named("page_token", &error)),
    }
}
