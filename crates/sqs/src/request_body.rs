//! The body of a request: read as long as it is not too long, keeps coming, and there is memory for it.
//!
//! The broker has one amount of memory for all that is on its way in. A request whose length is known waits until that
//! much of it is free; one that comes in chunks takes it as it grows, and is refused when there is no more, because
//! whoever holds some and waits for more could wait for itself.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use nexo_broker::{Intake, IntakeHold};

use crate::fault::{Fault, FaultCode};

/// How long a client may be silent in the middle of a request.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long a request may take to come, however steadily it does.
const BODY_MAX: Duration = Duration::from_secs(15 * 60);
/// How long a request waits for memory. Clients try again after that.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(20);
/// Bytes that each connection may have without asking: the number of connections bounds their sum. Most requests are
/// smaller, and need not wait for those that are large.
const UNCOUNTED_BYTES: usize = 16 * 1024;
/// By this much a request grows whose length is not known.
const STEP_BYTES: usize = 256 * 1024;

/// A body that has come, and the memory that it takes.
#[derive(Debug)]
pub(crate) struct RequestBody {
    pub(crate) bytes: Bytes,
    _hold: Option<IntakeHold>,
}

/// Reads a body of at most `max` bytes.
pub(crate) async fn read(body: Body, max: usize, intake: &Intake) -> Result<RequestBody, Fault> {
    read_within(body, max, intake, ROOM_WAIT_MAX).await
}

async fn read_within(
    body: Body,
    max: usize,
    intake: &Intake,
    room_wait: Duration,
) -> Result<RequestBody, Fault> {
    let told = body.size_hint();
    if told.lower() > max as u64 {
        return Err(too_large(max));
    }
    let known = told.exact().and_then(|length| usize::try_from(length).ok());
    let hold = match known {
        Some(length) if length > UNCOUNTED_BYTES => {
            let hold = tokio::time::timeout(room_wait, intake.hold(length)).await;
            Some(hold.map_err(|_| no_room())?)
        }
        Some(_) | None => None,
    };
    let reading = Reading { max, intake, is_known: known.is_some(), hold };
    tokio::time::timeout(BODY_MAX, reading.read(body)).await.unwrap_or_else(|_| Err(too_slow()))
}

struct Reading<'i> {
    max: usize,
    intake: &'i Intake,
    is_known: bool,
    hold: Option<IntakeHold>,
}

impl Reading<'_> {
    async fn read(mut self, mut body: Body) -> Result<RequestBody, Fault> {
        let mut whole = BytesMut::new();
        let mut first = Bytes::new();
        loop {
            let frame = tokio::time::timeout(PAUSE_MAX, body.frame()).await.map_err(|_| too_slow())?;
            let Some(frame) = frame else { break };
            let cut =
                |_| Fault::new(FaultCode::MalformedQueryString, "The request ended before its body did.");
            let Ok(data) = frame.map_err(cut)?.into_data() else { continue };
            let length = first.len() + whole.len() + data.len();
            if length > self.max {
                return Err(too_large(self.max));
            }
            self.grow(length)?;
            // Most requests come in one piece, which then need not be copied.
            if first.is_empty() && whole.is_empty() {
                first = data;
            } else {
                if whole.is_empty() {
                    // What was asked for is what it takes, and no more.
                    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(0).min(self.max);
                    whole.reserve(length.saturating_add(expected).min(self.max));
                    whole.extend_from_slice(&std::mem::take(&mut first));
                }
                whole.extend_from_slice(&data);
            }
        }
        let bytes = if whole.is_empty() { first } else { whole.freeze() };
        Ok(RequestBody { bytes, _hold: self.hold })
    }

    /// Takes memory for a body that has grown to this length, if its length was not known before.
    fn grow(&mut self, length: usize) -> Result<(), Fault> {
        let held = UNCOUNTED_BYTES + self.hold.as_ref().map_or(0, IntakeHold::bytes);
        if self.is_known || length <= held {
            return Ok(());
        }
        let more = (length - held).next_multiple_of(STEP_BYTES);
        let more = self.intake.try_hold(more).ok_or_else(no_room)?;
        match &mut self.hold {
            Some(hold) => hold.merge(more),
            None => self.hold = Some(more),
        }
        Ok(())
    }
}

fn too_large(max: usize) -> Fault {
    Fault::new(FaultCode::RequestEntityTooLarge, format!("A request has at most {max} bytes."))
}

fn too_slow() -> Fault {
    Fault::new(FaultCode::RequestTimeout, "The rest of the request did not come in time.")
}

/// Clients of AWS try again after this.
fn no_room() -> Fault {
    let message = "Too many large requests are on their way in. Please try again.";
    Fault::new(FaultCode::ServiceUnavailable, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    const MAX: usize = 10 * 1024 * 1024;

    /// A body without a length.
    fn chunks(count: usize, bytes: usize) -> Body {
        let chunk = move |_| Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; bytes]));
        Body::from_stream(stream::iter((0..count).map(chunk)))
    }

    #[tokio::test]
    async fn a_body_holds_memory_until_it_is_dropped() {
        let intake = Intake::new(1024 * 1024);
        let small = read(Body::from(vec![0; UNCOUNTED_BYTES]), MAX, &intake).await.unwrap();
        assert_eq!((small.bytes.len(), intake.held_bytes()), (UNCOUNTED_BYTES, 0));
        let large = read(Body::from(vec![0; 500_000]), MAX, &intake).await.unwrap();
        assert_eq!((large.bytes.len(), intake.held_bytes()), (500_000, 500_000));
        drop(large);
        let grown = read(chunks(10, 50_000), MAX, &intake).await.unwrap();
        assert_eq!(grown.bytes.len(), 500_000);
        assert!(intake.held_bytes() >= 500_000 - UNCOUNTED_BYTES as u64);
        drop(grown);
        assert_eq!(intake.held_bytes(), 0);
    }

    #[tokio::test]
    async fn without_room_a_body_waits_and_chunks_are_refused() {
        let intake = Intake::new(1024 * 1024);
        let all = intake.hold(1024 * 1024).await;
        let short = Duration::from_millis(20);
        let refused = |body| async { read_within(body, MAX, &intake, short).await.unwrap_err().code };
        assert_eq!(refused(Body::from(vec![0; 500_000])).await, FaultCode::ServiceUnavailable);
        assert_eq!(refused(chunks(10, 50_000)).await, FaultCode::ServiceUnavailable);
        assert!(read(Body::from("small"), MAX, &intake).await.is_ok(), "small ones need not wait");
        let free = async {
            tokio::time::sleep(short).await;
            drop(all);
        };
        let (read, ()) = tokio::join!(read(Body::from(vec![0; 500_000]), MAX, &intake), free);
        assert_eq!(read.unwrap().bytes.len(), 500_000);
    }

    #[tokio::test]
    async fn too_much_is_refused_however_it_comes() {
        let intake = Intake::new(64 * 1024 * 1024);
        for body in [Body::from(vec![0; 1001]), chunks(11, 100)] {
            let fault = read(body, 1000, &intake).await.unwrap_err();
            assert_eq!(fault.code, FaultCode::RequestEntityTooLarge);
        }
        assert_eq!(intake.held_bytes(), 0);
    }
}
