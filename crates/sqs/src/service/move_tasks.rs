//! Tasks that move dead letters back to where they came from, or elsewhere. They live as long as the process: what was
//! moved stays moved, and a task that a restart ended can be started again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use nexo_access::MoveRight;
use nexo_broker::{Broker, QueueError, Redrive, Redriven};
use nexo_types::QueueName;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::access::{self, Need};
use super::{Context, Service};
use crate::clock::now;
use crate::fault::{Fault, FaultCode};
use crate::ids;
use crate::request::{CancelMessageMoveTask, ListMessageMoveTasks, StartMessageMoveTask};
use crate::response::{self, MoveTaskCancelled, MoveTaskStarted, Response};

/// Tasks that have ended and are still listed, over all queues.
const ENDED_MAX: usize = 1000;
/// Tasks in one listing.
const LIST_MAX: i64 = 10;

/// All tasks, newest first.
#[derive(Debug, Default)]
pub(super) struct MoveTasks(Mutex<VecDeque<Arc<Task>>>);

#[derive(Debug)]
struct Task {
    handle: String,
    source: QueueName,
    source_arn: String,
    destination: Option<(QueueName, String)>,
    rate: Option<u64>,
    started_ms: u64,
    to_move: u64,
    moved: AtomicU64,
    state: Mutex<State>,
    cancel: CancellationToken,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Running,
    Completed,
    Cancelled,
    Failed(String),
}

impl Service {
    pub(super) fn start_message_move_task(
        &self,
        context: &Context,
        request: &StartMessageMoveTask<'_>,
    ) -> Result<Response, Fault> {
        let source_arn = request.source_arn.as_ref().ok_or_else(|| Fault::missing("SourceArn"))?;
        let source = self.queue_of_arn(context, source_arn, Need::Read)?;
        let source = source.ok_or_else(|| no_resource("SourceArn"))?;
        let destination = match &request.destination_arn {
            // Each message goes back to where it came from, if whoever asks may write there.
            None => None,
            Some(arn) => {
                let queue = self.queue_of_arn(context, arn, Need::Write)?;
                let queue = queue.ok_or_else(|| no_resource("DestinationArn"))?;
                if queue.name() == source.name() {
                    return Err(Fault::value("DestinationArn", arn, "It is the source itself."));
                }
                if queue.is_fifo() != source.is_fifo() {
                    return Err(Fault::value(
                        "DestinationArn",
                        arn,
                        "It must be of the same type as the source.",
                    ));
                }
                Some((queue.name().clone(), self.arn_of(context, queue.name())))
            }
        };
        let max = self.limits().move_rate;
        let rate = match request.max_number_of_messages_per_second {
            None => None,
            Some(asked) => {
                Some(u64::try_from(asked).ok().filter(|rate| (1..=max).contains(rate)).ok_or_else(|| {
                    let reason = format!("Must be between 1 and {max}, if provided.");
                    Fault::value("MaxNumberOfMessagesPerSecond", &asked.to_string(), &reason)
                })?)
            }
        };
        if self.dead_letter_sources(source.name(), |_| true).is_empty() {
            return Err(Fault::invalid("Source queue must be configured as a Dead Letter Queue."));
        }
        let stats = self.broker.queue_stats(source.name())?;
        let id = ids::random();
        // Not the one that was given: region and account in it may be of any length, and a task is kept for long.
        let source_arn = self.arn_of(context, source.name());
        let handle = serde_json::json!({ "taskId": id, "sourceArn": source_arn });
        let task = Arc::new(Task {
            handle: BASE64_STANDARD.encode(handle.to_string()),
            source: source.name().clone(),
            source_arn,
            destination,
            rate,
            started_ms: now().0,
            to_move: stats.ready + stats.grouped,
            moved: AtomicU64::new(0),
            state: Mutex::new(State::Running),
            cancel: self.stop.child_token(),
        });
        let target = task.destination.as_ref().map(|(name, _)| name);
        let right = MoveRight::new(&context.identity, &task.source, target);
        let right = right.map_err(|_| access::denied(&task.source))?;
        self.tasks.add(Arc::clone(&task))?;
        let task_handle = task.handle.clone();
        tokio::spawn(run(self.broker.clone(), task, right));
        Ok(Response::MoveTaskStarted(MoveTaskStarted { task_handle }))
    }

    pub(super) fn cancel_message_move_task(
        &self,
        context: &Context,
        request: &CancelMessageMoveTask<'_>,
    ) -> Result<Response, Fault> {
        let handle = request.task_handle.as_ref().ok_or_else(|| Fault::missing("TaskHandle"))?;
        let source =
            source_of(handle).ok_or_else(|| Fault::invalid("Value for parameter TaskHandle is invalid."))?;
        self.queue_of_arn(context, &source, Need::Read)?.ok_or_else(|| no_resource("SourceArn"))?;
        let tasks = self.tasks.0.lock();
        let task = tasks
            .iter()
            .find(|task| *task.handle == **handle && task.source.vhost() == context.vhost)
            .ok_or_else(|| Fault::new(FaultCode::ResourceNotFound, "Task does not exist."))?;
        let mut state = task.state.lock();
        if *state != State::Running {
            return Err(Fault::value("TaskHandle", handle, "Only active tasks can be cancelled."));
        }
        *state = State::Cancelled;
        task.cancel.cancel();
        let moved = task.moved.load(Ordering::Relaxed);
        Ok(Response::MoveTaskCancelled(MoveTaskCancelled { approximate_number_of_messages_moved: moved }))
    }

    pub(super) fn list_message_move_tasks(
        &self,
        context: &Context,
        request: &ListMessageMoveTasks<'_>,
    ) -> Result<Response, Fault> {
        let arn = request.source_arn.as_ref().ok_or_else(|| Fault::missing("SourceArn"))?;
        let source = self.queue_of_arn(context, arn, Need::Read)?;
        let source = source.ok_or_else(|| no_resource("SourceArn"))?;
        let max = request.max_results.unwrap_or(1);
        if !(1..=LIST_MAX).contains(&max) {
            let reason = format!("Must be between 1 and {LIST_MAX}, if provided.");
            return Err(Fault::value("MaxResults", &max.to_string(), &reason));
        }
        let tasks = self.tasks.0.lock();
        let own = tasks.iter().filter(|task| task.source == *source.name());
        let results = own.take(max as usize).map(|task| task.shown()).collect();
        Ok(Response::MoveTasks(response::MoveTasks { results }))
    }
}

impl MoveTasks {
    fn add(&self, task: Arc<Task>) -> Result<(), Fault> {
        let mut tasks = self.0.lock();
        if tasks.iter().any(|other| other.source == task.source && other.is_running()) {
            return Err(Fault::invalid(
                "There is already a task running. Only one active task is allowed for a source queue arn at a \
                 given time.",
            ));
        }
        tasks.push_front(task);
        if tasks.len() > ENDED_MAX
            && let Some(oldest) = tasks.iter().rposition(|task| !task.is_running())
        {
            tasks.remove(oldest);
        }
        Ok(())
    }
}

impl Task {
    fn is_running(&self) -> bool {
        *self.state.lock() == State::Running
    }

    /// Notes how it ended, unless somebody has cancelled it.
    fn end(&self, state: State) {
        let mut now = self.state.lock();
        if *now == State::Running {
            *now = state;
        }
    }

    fn shown(&self) -> response::MoveTask {
        let state = self.state.lock().clone();
        response::MoveTask {
            // AWS shows the handle only while there is something to cancel.
            task_handle: (state == State::Running).then(|| self.handle.clone()),
            status: match state {
                State::Running => "RUNNING",
                State::Completed => "COMPLETED",
                State::Cancelled => "CANCELLED",
                State::Failed(_) => "FAILED",
            },
            source_arn: self.source_arn.clone(),
            destination_arn: self.destination.as_ref().map(|(_, arn)| arn.clone()),
            max_number_of_messages_per_second: self.rate,
            approximate_number_of_messages_moved: self.moved.load(Ordering::Relaxed),
            approximate_number_of_messages_to_move: self.to_move,
            failure_reason: match state {
                State::Failed(reason) => Some(reason),
                State::Running | State::Completed | State::Cancelled => None,
            },
            started_timestamp: self.started_ms,
        }
    }
}

/// Moves until nothing is left, or somebody says so.
async fn run(broker: Broker, task: Arc<Task>, right: MoveRight) {
    let denied = || State::Failed(FaultCode::AccessDenied.query().into());
    let moved = tokio::select! {
        moved = move_all(&broker, &task, &right) => moved,
        () = task.cancel.cancelled() => return task.end(State::Cancelled),
        _ = right.until_lost() => return task.end(denied()),
    };
    task.end(match moved {
        Ok(Redriven { refused: 1.., .. }) => denied(),
        Ok(Redriven { skipped: 0, .. }) => State::Completed,
        // They have no queue to go back to, or the one that they should go to has been deleted.
        Ok(_) | Err(QueueError::NotFound { .. }) => {
            State::Failed(FaultCode::QueueDoesNotExist.query().into())
        }
        Err(error @ (QueueError::Alarm(_) | QueueError::Busy { .. } | QueueError::Unavailable { .. })) => {
            State::Failed(error.to_string())
        }
    });
}

async fn move_all(broker: &Broker, task: &Task, right: &MoveRight) -> Result<Redriven, QueueError> {
    let target = task.destination.as_ref().map(|(name, _)| name.clone());
    let Some(rate) = task.rate else {
        let progress = |done: Redriven| task.moved.store(done.moved, Ordering::Relaxed);
        let request = Redrive { target, gate: right.gate(), ..Redrive::default() };
        return broker.redrive(&task.source, request, &progress).await;
    };
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        tick.tick().await;
        let before = task.moved.load(Ordering::Relaxed);
        let progress = |done: Redriven| task.moved.store(before + done.moved, Ordering::Relaxed);
        let (target, gate) = (target.clone(), right.gate());
        let request = Redrive { target, gate, max: Some(rate), ..Redrive::default() };
        let done = broker.redrive(&task.source, request, &progress).await?;
        task.moved.store(before + done.moved, Ordering::Relaxed);
        if done.moved < rate {
            return Ok(done);
        }
    }
}

/// The ARN of the queue whose task a handle names.
fn source_of(handle: &str) -> Option<String> {
    let bytes = BASE64_STANDARD.decode(handle).ok()?;
    let fields: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
    fields.get("taskId")?.as_str()?;
    fields.get("sourceArn")?.as_str().map(str::to_owned)
}

fn no_resource(parameter: &str) -> Fault {
    let message = format!("The resource that you specified for the {parameter} parameter doesn't exist.");
    Fault::new(FaultCode::ResourceNotFound, message)
}
