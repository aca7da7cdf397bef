//! Moving messages: dead letters back to where they came from, or whatever waits in a queue to another one. The answer comes at
//! the end, or at once as a stream of lines that tell how far it is. A move ends with the request that asked for it: whoever
//! goes, may no longer move messages, or does not read on, moves no more. Each message is moved whole or not at all.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use nexo_access::MoveRight;
use nexo_amqp::management::check_shared;
use nexo_broker::{Redrive, Redriven};
use nexo_types::{Offset, QueueName, limits};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::Api;
use super::access::Caller;
use super::body::{Fields, JsonBody};
use super::error::ApiError;
use super::names::Vhost;
use super::nexo::refused;
use super::queues::found;

/// How often a line tells how far a move is, also one that waits.
const TOLD_EVERY: Duration = Duration::from_millis(250);

/// A line is one JSON object.
const LINES: &str = "application/x-ndjson";

/// Sends messages back to where they came from, or to `target`.
pub(super) async fn redrive(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let vhost = Vhost::named(&api, &vhost)?;
    let name = found(&api, &vhost, &name)?;
    let target = body.object.text_or_nothing("target")?;
    let target = target.map(|target| found(&api, &vhost, target)).transpose()?;
    if target.as_ref() == Some(&name) {
        return Err(ApiError::bad_request("target must be another queue than the source"));
    }
    let right = MoveRight::new(caller.identity(), &name, target.as_ref());
    let right = right.map_err(|_| ApiError::access_refused())?;
    check_shared(&api.broker, &name).await?;
    let max = match body.object.whole("max")? {
        None => None,
        Some(max) => Some(u64::try_from(max).map_err(|_| ApiError::bad_request("max must not be negative"))?),
    };
    let offsets = offsets(&body.object)?;
    let progress = body.object.truth("progress", false)?;
    // It may be one of the few large ones at a time, and a move may take long.
    drop(body);
    let request = Redrive { target, max, offsets, gate: right.gate() };
    let work = Move { api, queue: name, request, right };
    if !progress {
        let done = work.run(&|_| {}).await?;
        return Ok(Json(json!({ "moved": done.moved, "skipped": done.skipped })).into_response());
    }
    let lines = stream::unfold(Some(Telling::of(work)), async |telling| Some(telling?.next_line().await));
    Ok(([(header::CONTENT_TYPE, LINES)], Body::from_stream(lines)).into_response())
}

/// The messages that somebody names, by the offsets that they are shown with. None is all.
fn offsets(object: &Map<String, Value>) -> Result<Vec<Offset>, ApiError> {
    let named = match object.get("offsets") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(named)) if !named.is_empty() => named,
        Some(_) => return Err(ApiError::bad_request("offsets must be a list of offsets")),
    };
    if named.len() > limits::SETTLE_BATCH_MAX {
        let max = limits::SETTLE_BATCH_MAX;
        return Err(ApiError::bad_request(format!("offsets must name at most {max} messages")));
    }
    let offsets = named.iter().map(|offset| offset.as_u64().map(Offset));
    let offsets: Option<Vec<Offset>> = offsets.collect();
    offsets.ok_or_else(|| ApiError::bad_request("offsets must be a list of offsets"))
}

/// Somebody has messages moved.
struct Move {
    api: Api,
    queue: QueueName,
    request: Redrive,
    right: MoveRight,
}

impl Move {
    /// Moves until nothing is left, or until it may not or cannot go on.
    async fn run(self, told: &(dyn Fn(Redriven) + Sync)) -> Result<Redriven, ApiError> {
        let Self { api, queue, request, right } = self;
        let done = tokio::select! {
            biased;
            _ = right.until_lost() => return Err(ApiError::access_refused()),
            done = api.broker.redrive(&queue, request, told) => done.map_err(refused)?,
            () = api.stop.cancelled() => return Err(ApiError::unavailable("the broker is stopping")),
        };
        told(done);
        // What he may put back is back; the rest stays where it is.
        if done.refused > 0 { Err(ApiError::access_refused()) } else { Ok(done) }
    }
}

/// A move, and how far it is. It goes on only while lines are asked for, and ends when this is dropped.
struct Telling {
    work: Pin<Box<dyn Future<Output = Result<Redriven, ApiError>> + Send>>,
    so_far: Arc<Mutex<Redriven>>,
    tick: Interval,
}

impl Telling {
    fn of(work: Move) -> Self {
        let so_far = Arc::new(Mutex::new(Redriven::default()));
        let told = Arc::clone(&so_far);
        let work = Box::pin(async move { work.run(&|done| *told.lock() = done).await });
        let mut tick = interval_at(Instant::now() + TOLD_EVERY, TOLD_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { work, so_far, tick }
    }

    /// The next line, and what the lines after it come from; nothing after the last.
    async fn next_line(mut self) -> (Result<Bytes, Infallible>, Option<Self>) {
        let end = tokio::select! {
            biased;
            end = &mut self.work => Some(end.map(drop)),
            _ = self.tick.tick() => None,
        };
        let line = line(*self.so_far.lock(), end.as_ref());
        (Ok(line), if end.is_some() { None } else { Some(self) })
    }
}

/// What is told of a move so far, or at its end.
fn line(so_far: Redriven, end: Option<&Result<(), ApiError>>) -> Bytes {
    let is_done = matches!(end, Some(Ok(())));
    let mut line = json!({ "moved": so_far.moved, "skipped": so_far.skipped, "done": is_done });
    if so_far.refused > 0 {
        line["refused"] = so_far.refused.into();
    }
    if let Some(Err(error)) = end
        && let (Value::Object(line), Value::Object(error)) = (&mut line, error.to_json())
    {
        line.extend(error);
    }
    format!("{line}\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_how_far_it_is_and_how_it_ended() {
        let so_far = Redriven { moved: 7, skipped: 2, refused: 0 };
        let text = |end: Option<&Result<(), ApiError>>| -> Value {
            serde_json::from_slice(&line(so_far, end)).unwrap()
        };
        assert_eq!(text(None), json!({ "moved": 7, "skipped": 2, "done": false }));
        assert_eq!(text(Some(&Ok(()))), json!({ "moved": 7, "skipped": 2, "done": true }));
        let ended = Err(ApiError::access_refused());
        assert_eq!(
            text(Some(&ended)),
            json!({ "moved": 7, "skipped": 2, "done": false, "error": "not_authorised", "reason": "Access refused." })
        );
    }

    #[test]
    fn messages_are_named_by_offsets() {
        let read = |offsets: Value| {
            let Value::Object(object) = json!({ "offsets": offsets }) else { unreachable!() };
            super::offsets(&object)
        };
        assert_eq!(read(json!([3, 4])), Ok(vec![Offset(3), Offset(4)]));
        assert_eq!(read(json!(null)), Ok(vec![]));
        for wrong in [json!([]), json!(3), json!(["3"]), json!([-1]), json!([0.5]), json!(vec![1; 10_001])] {
            assert!(read(wrong).is_err());
        }
    }
}
