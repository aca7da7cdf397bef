//! Requests for work, receipts and answers between the wire and the broker.

use nexo_access::{Identity, Permission};
use nexo_broker::job_rules::{AskedState, Handed, JobReceipt, JobReceiptError, Reply};
use nexo_broker::{JobRequest, WaiterAnswer, WaiterRequest};
use nexo_types::{JobQueueName, Millis, Timestamp, limits};

use crate::access;
use crate::fields;
use crate::proto;
use crate::status::Failure;

/// An answer has no more of jobs than this, unless one job is larger: clients refuse answers above 4 MiB unless they are told
/// otherwise, and what they refuse would stay with them until its lease ends.
const TAKE_BYTES_MAX: usize = 3 * 1024 * 1024;
/// What a job has besides its texts, near enough.
const TAKEN_OVERHEAD_BYTES: usize = 128;

/// The work that is asked for. Whoever has the answer go to a queue must be allowed to write there.
pub(super) fn job_request(
    identity: &Identity,
    queue: &JobQueueName,
    request: proto::AskJobRequest,
    now: Timestamp,
) -> Result<JobRequest, Failure> {
    use proto::ask_job_request::Deadline;
    fields::bytes("payload", request.payload.len(), limits::JOB_PAYLOAD_BYTES_MAX)?;
    let deadline = match request.deadline {
        None => None,
        Some(Deadline::DeadlineInMs(span)) => Some(from_now("deadline_in_ms", now, span)?),
        Some(Deadline::DeadlineAtMs(at)) => Some(Timestamp(at)),
    };
    let waiter = request.waiter.map(|waiter| waiter_request(identity, queue, waiter, now)).transpose()?;
    Ok(JobRequest {
        kind: request.r#type,
        key: request.key,
        payload: request.payload,
        cost: request.cost,
        deadline,
        waiter,
    })
}

fn waiter_request(
    identity: &Identity,
    queue: &JobQueueName,
    waiter: proto::JobWaiter,
    now: Timestamp,
) -> Result<WaiterRequest, Failure> {
    use proto::job_waiter::Due;
    let due = match waiter.due {
        None => None,
        Some(Due::DueInMs(span)) => Some(from_now("waiter.due_in_ms", now, span)?),
        Some(Due::DueAtMs(at)) => Some(Timestamp(at)),
    };
    let reply = match waiter.reply_to.as_str() {
        "" => Reply::Call,
        name => {
            let queue = fields::queue_in("waiter.reply_to", &queue.vhost(), name)?;
            access::may(identity, Permission::Write, &queue)?;
            Reply::Queue(queue)
        }
    };
    let proto::JobWaiter { id, user, class, filter, .. } = waiter;
    Ok(WaiterRequest { id, user, class, due, filter, reply })
}

/// How long a call may wait.
pub(super) fn wait(wait_ms: u64) -> Result<Millis, Failure> {
    fields::in_range("wait_ms", wait_ms, 0, limits::POP_WAIT_MAX.0).map(Millis)
}

/// For how long a worker wants a job, if it says.
pub(super) fn lease(lease_ms: Option<u64>) -> Result<Option<Millis>, Failure> {
    let check = |lease| fields::in_range("lease_ms", lease, 1, limits::JOB_LEASE_MAX.0).map(Millis);
    lease_ms.map(check).transpose()
}

/// What a worker holds.
pub(super) fn receipt(text: &str) -> Result<JobReceipt, Failure> {
    text.parse().map_err(|error: JobReceiptError| Failure::invalid(format!("receipt: {error}")))
}

/// The moment so long from now.
pub(super) fn from_now(field: &str, now: Timestamp, span: u64) -> Result<Timestamp, Failure> {
    Ok(now.plus(Millis(fields::in_range(field, span, 0, limits::DELAY_MAX.0)?)))
}

/// How a job was found.
pub(super) const fn asked(state: AskedState) -> proto::JobAsked {
    match state {
        AskedState::Created => proto::JobAsked::Created,
        AskedState::Joined => proto::JobAsked::Joined,
        AskedState::JoinedRunning => proto::JobAsked::JoinedRunning,
        AskedState::Cached => proto::JobAsked::Cached,
        AskedState::Known => proto::JobAsked::Known,
    }
}

/// What a waiter is told.
pub(super) fn answer(answer: WaiterAnswer) -> proto::JobAnswer {
    let outcome = match answer.status {
        "done" => proto::JobOutcome::Done,
        "failed" => proto::JobOutcome::Failed,
        "cancelled" => proto::JobOutcome::Cancelled,
        "expired" => proto::JobOutcome::Expired,
        _ => proto::JobOutcome::Unspecified,
    };
    let WaiterAnswer { waiter, job, kind, key, result, error, .. } = answer;
    proto::JobAnswer {
        waiter: waiter.to_string(),
        job: job.0,
        r#type: kind.to_string(),
        key: key.to_string(),
        outcome: outcome.into(),
        result,
        error: error.unwrap_or_default(),
    }
}

/// The jobs that fit into one answer, and those that do not.
pub(super) fn fitting(mut jobs: Vec<Handed>) -> (Vec<Handed>, Vec<Handed>) {
    let mut bytes = 0;
    let too_much = jobs.iter().skip(1).position(|job| {
        bytes += size(job);
        bytes + jobs.first().map_or(0, size) > TAKE_BYTES_MAX
    });
    let rest = too_much.map_or_else(Vec::new, |place| jobs.split_off(place + 1));
    (jobs, rest)
}

fn size(job: &Handed) -> usize {
    job.body.payload.len() + job.body.key.len() + job.body.kind.len() + TAKEN_OVERHEAD_BYTES
}

/// A job in a worker's hands.
pub(super) fn taken(job: Handed) -> proto::TakenJob {
    proto::TakenJob {
        receipt: job.receipt.to_string(),
        job: job.receipt.job.0,
        attempt: job.attempt,
        r#type: job.body.kind.to_string(),
        key: job.body.key.to_string(),
        payload: job.body.payload,
        cost: job.cost,
        lease_until_ms: job.until.0,
        waiters: job.waiters,
        due_at_ms: job.due.map(|due| due.0),
        created_at_ms: job.created_at.0,
        score: job.score,
    }
}

#[cfg(test)]
mod tests {
    use nexo_broker::job_rules::JobBody;
    use nexo_types::JobId;

    use super::*;

    fn handed(payload: usize) -> Handed {
        Handed {
            receipt: JobReceipt { job: JobId(1), hold: 1 },
            attempt: 1,
            body: JobBody { kind: "t".into(), key: "k".into(), payload: vec![b'1'; payload].into() },
            cost: 0,
            until: Timestamp(0),
            waiters: 0,
            due: None,
            created_at: Timestamp(0),
            score: 0.0,
        }
    }

    #[test]
    fn an_answer_has_as_many_jobs_as_clients_take_and_one_at_least() {
        let fit = |sizes: &[usize]| {
            let (jobs, rest) = fitting(sizes.iter().map(|size| handed(*size)).collect());
            (jobs.len(), rest.len())
        };
        assert_eq!(fit(&[]), (0, 0));
        assert_eq!(fit(&[1, 1, 1]), (3, 0));
        assert_eq!(fit(&[TAKE_BYTES_MAX * 2]), (1, 0));
        assert_eq!(fit(&[TAKE_BYTES_MAX * 2, 1]), (1, 1));
        assert_eq!(fit(&[1 << 20; 10]), (2, 8));
    }

    #[test]
    fn what_is_no_receipt_is_refused_with_what_one_looks_like() {
        assert_eq!(receipt("v1-42-3"), Ok(JobReceipt { job: JobId(42), hold: 3 }));
        let message = receipt("nonsense").unwrap_err().message;
        assert!(
            message.starts_with("receipt: 'nonsense' is not a receipt; one looks like 'v1-42-1'"),
            "{message}"
        );
    }
}
