//! Requests on their way in: memory is asked for before it is used, and a request that does not come is not waited for.
//!
//! The length of a request stands before it. The server below makes room for the whole of it at once; so its bytes are
//! passed on only when the broker's [`Intake`] has that much to give.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use nexo_broker::{Intake, IntakeHold};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;
use tonic::body::Body;

use crate::limits::{
    INTAKE_WAIT_MAX, REQUEST_BYTES_MAX, REQUEST_BYTES_PER_SEC_MIN, REQUEST_PAUSE_MAX, UNASKED_BYTES_MAX,
};

/// A flag, and a length of four bytes.
const HEAD_BYTES: usize = 5;

/// The memory of the requests of one call that have been read and not been dealt with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held(Arc<Mutex<Option<IntakeHold>>>);

impl Held {
    /// Takes it over: whoever does, gives it back when the requests are done with.
    pub(crate) fn take(&self) -> Option<IntakeHold> {
        self.0.lock().take()
    }

    fn add(&self, hold: IntakeHold) {
        match &mut *self.0.lock() {
            Some(held) => held.merge(hold),
            none => *none = Some(hold),
        }
    }
}

/// Whether a client sends one request or as many as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requests {
    One,
    /// Any number, and the first at once. None of them is kept.
    Many,
    /// Any number, whenever it likes: messages that are pushed, and calls of job queues.
    AnyTime,
}

/// The body of a call.
pub(crate) struct Incoming {
    body: Body,
    intake: Intake,
    held: Held,
    requests: Requests,
    /// Came, and not passed on yet.
    rest: Bytes,
    place: Place,
    /// Memory for the request at the head of `rest`, if there was none.
    waiting: Option<Pin<Box<dyn Future<Output = IntakeHold> + Send>>>,
    /// Whether that has come.
    granted: bool,
    /// Until when something must come, and the timer if that is waited for.
    deadline: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// Where in the requests the bytes that were passed on end.
#[derive(Clone, Copy, Debug)]
enum Place {
    Head { read: usize, len: [u8; 4] },
    Body { missing: usize },
}

impl Place {
    const START: Self = Self::Head { read: 0, len: [0; 4] };
}

impl Incoming {
    pub(crate) fn new(body: Body, intake: Intake, held: Held, requests: Requests) -> Self {
        let deadline = (requests != Requests::AnyTime).then(|| Instant::now() + REQUEST_PAUSE_MAX);
        Self {
            body,
            intake,
            held,
            requests,
            rest: Bytes::new(),
            place: Place::START,
            waiting: None,
            granted: false,
            deadline,
            timer: None,
        }
    }

    fn until(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
        self.timer = None;
    }

    /// How much of `rest` may be passed on: up to the first request for which there is no memory now. Of that one, the
    /// length.
    fn admit(&mut self) -> (usize, Option<usize>) {
        let mut at = 0;
        while at < self.rest.len() {
            let left = self.rest.len() - at;
            match self.place {
                Place::Body { missing } => {
                    let step = missing.min(left);
                    at += step;
                    if step == missing {
                        self.end_request();
                    } else {
                        self.place = Place::Body { missing: missing - step };
                    }
                }
                Place::Head { read, mut len } => {
                    let step = (HEAD_BYTES - read).min(left);
                    for (place, byte) in self.rest[at..at + step].iter().enumerate() {
                        if let Some(place) = (read + place).checked_sub(1) {
                            len[place] = *byte;
                        }
                    }
                    if read + step < HEAD_BYTES {
                        self.place = Place::Head { read: read + step, len };
                        return (at + step, None);
                    }
                    let bytes = u32::from_be_bytes(len) as usize;
                    // What is too long is refused below, and nothing of it is kept.
                    let asks = (UNASKED_BYTES_MAX + 1..=REQUEST_BYTES_MAX).contains(&bytes);
                    if asks && !std::mem::take(&mut self.granted) {
                        match self.intake.try_hold(bytes) {
                            Some(hold) => self.held.add(hold),
                            None => return (at, Some(bytes)),
                        }
                    }
                    at += step;
                    self.begin_request(bytes);
                }
            }
        }
        (at, None)
    }

    fn begin_request(&mut self, bytes: usize) {
        if bytes == 0 {
            return self.end_request();
        }
        self.place = Place::Body { missing: bytes };
        let pace = Duration::from_secs(bytes as u64 / REQUEST_BYTES_PER_SEC_MIN);
        self.until(Some(Instant::now() + REQUEST_PAUSE_MAX + pace));
    }

    fn end_request(&mut self) {
        self.place = Place::START;
        if self.requests == Requests::Many {
            // Nobody takes it over, and whoever reads slowly must not keep it.
            drop(self.held.take());
        }
        let one = self.requests == Requests::One;
        self.until(one.then(|| Instant::now() + REQUEST_PAUSE_MAX));
    }

    /// Ready when it is too late.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = self.deadline else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        timer.as_mut().poll(cx)
    }

    /// Passes on what is there, as soon as there is memory for it.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Status>> {
        loop {
            if let Some(waiting) = &mut self.waiting {
                match waiting.as_mut().poll(cx) {
                    Poll::Ready(hold) => {
                        self.waiting = None;
                        self.held.add(hold);
                        self.granted = true;
                    }
                    Poll::Pending => {
                        ready!(self.poll_late(cx));
                        let text = "too many messages are on their way in; try again";
                        return Poll::Ready(Err(Status::unavailable(text)));
                    }
                }
            }
            match self.admit() {
                (0, Some(bytes)) => {
                    let intake = self.intake.clone();
                    self.waiting = Some(Box::pin(async move { intake.hold(bytes).await }));
                    self.until(Some(Instant::now() + INTAKE_WAIT_MAX));
                }
                // What came before a request that must wait is dealt with first: it may hold the memory.
                (at, _) => return Poll::Ready(Ok(self.rest.split_to(at))),
            }
        }
    }
}

impl HttpBody for Incoming {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let is_new = this.waiting.is_none() && !this.granted && matches!(this.place, Place::Head { .. });
        if is_new && this.requests == Requests::AnyTime {
            // Who pushes and asks for more has dealt with what was passed on, or taken its memory over.
            drop(this.held.take());
        }
        loop {
            if !this.rest.is_empty() {
                let passed = ready!(this.poll_rest(cx));
                return Poll::Ready(Some(passed.map(Frame::data)));
            }
            match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    ready!(this.poll_late(cx));
                    let text = "the rest of the request did not come in time";
                    return Poll::Ready(Some(Err(Status::deadline_exceeded(text))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use http_body_util::BodyExt;
    use tokio::sync::mpsc;

    use super::*;

    /// Above what is not asked for.
    const K: usize = 1 << 13;

    /// What is held, in those.
    fn held_by(intake: &Intake) -> u64 {
        intake.held_bytes() / K as u64
    }

    /// A client that sends pieces, as many as it likes.
    fn call(intake: &Intake, requests: Requests) -> (mpsc::UnboundedSender<Vec<u8>>, Held, Incoming) {
        let (send, mut pieces) = mpsc::unbounded_channel::<Vec<u8>>();
        let stream = futures_util::stream::poll_fn(move |cx| {
            pieces.poll_recv(cx).map(|piece| piece.map(|piece| Ok::<_, Status>(Frame::data(piece.into()))))
        });
        let held = Held::default();
        let body = Body::new(http_body_util::StreamBody::new(stream));
        let incoming = Incoming::new(body, intake.clone(), held.clone(), requests);
        (send, held, incoming)
    }

    fn request(bytes: usize) -> Vec<u8> {
        let mut request = vec![0];
        request.extend((bytes as u32).to_be_bytes());
        request.extend(vec![7; bytes]);
        request
    }

    fn head(bytes: usize) -> Vec<u8> {
        request(bytes)[..HEAD_BYTES].to_vec()
    }

    async fn passed(incoming: &mut Incoming) -> usize {
        incoming.frame().await.unwrap().unwrap().into_data().unwrap().len()
    }

    #[tokio::test]
    async fn memory_is_asked_for_when_a_length_is_known_and_given_back_when_more_is_asked_for() {
        let intake = Intake::new(1000 * K as u64);
        let (send, held, mut incoming) = call(&intake, Requests::AnyTime);
        send.send(head(400 * K)).unwrap();
        assert_eq!(passed(&mut incoming).await, 5);
        assert_eq!(held_by(&intake), 400);
        send.send(vec![7; 400 * K]).unwrap();
        assert_eq!(passed(&mut incoming).await, 400 * K);
        assert_eq!(held_by(&intake), 400);
        send.send([request(10 * K), request(20 * K)].concat()).unwrap();
        assert_eq!(passed(&mut incoming).await, 30 * K + 10);
        assert_eq!(held_by(&intake), 30);
        let taken = held.take();
        assert!(incoming.frame().now_or_never().is_none());
        assert_eq!(held_by(&intake), 30, "somebody else holds it");
        drop(taken);
        assert_eq!(held_by(&intake), 0);
    }

    #[tokio::test]
    async fn a_request_that_is_not_kept_gives_its_memory_back_as_it_ends() {
        let intake = Intake::new(1000 * K as u64);
        let (send, _, mut incoming) = call(&intake, Requests::Many);
        send.send(head(400 * K)).unwrap();
        passed(&mut incoming).await;
        assert_eq!(held_by(&intake), 400);
        send.send(vec![7; 400 * K]).unwrap();
        passed(&mut incoming).await;
        assert_eq!(held_by(&intake), 0);
    }

    #[tokio::test]
    async fn a_head_in_pieces_is_understood() {
        let intake = Intake::new(1000 * K as u64);
        let (send, _, mut incoming) = call(&intake, Requests::AnyTime);
        for (count, byte) in head(300 * K).into_iter().enumerate() {
            send.send(vec![byte]).unwrap();
            assert_eq!(passed(&mut incoming).await, 1);
            assert_eq!(held_by(&intake), if count < 4 { 0 } else { 300 });
        }
        send.send(vec![7; 300 * K]).unwrap();
        assert_eq!(passed(&mut incoming).await, 300 * K);
        send.send(vec![0]).unwrap();
        assert_eq!(passed(&mut incoming).await, 1);
        assert_eq!(held_by(&intake), 0);
    }

    #[tokio::test]
    async fn small_requests_do_not_ask() {
        let intake = Intake::new(1000);
        let _other = intake.try_hold(1000).unwrap();
        let (send, _, mut incoming) = call(&intake, Requests::Many);
        send.send(request(64 * 1024)).unwrap();
        assert_eq!(passed(&mut incoming).await, 64 * 1024 + 5);
    }

    #[tokio::test]
    async fn a_request_waits_until_another_call_gives_memory_back() {
        let intake = Intake::new(1000 * K as u64);
        let other = intake.try_hold(800 * K).unwrap();
        let (send, _, mut incoming) = call(&intake, Requests::One);
        send.send(request(300 * K)).unwrap();
        assert!(incoming.frame().now_or_never().is_none());
        drop(other);
        assert_eq!(passed(&mut incoming).await, 300 * K + 5);
        assert_eq!(held_by(&intake), 300);
        assert!(incoming.frame().now_or_never().is_none());
        assert_eq!(held_by(&intake), 300, "one request holds its memory to the end of the call");
    }

    #[tokio::test]
    async fn requests_of_one_call_do_not_wait_for_each_other() {
        let intake = Intake::new(1000 * K as u64);
        let (send, _, mut incoming) = call(&intake, Requests::AnyTime);
        // Larger than all there is: each waits until it is alone.
        send.send([request(1500 * K), request(1600 * K)].concat()).unwrap();
        assert_eq!(passed(&mut incoming).await, 1500 * K + 5);
        assert_eq!(passed(&mut incoming).await, 1600 * K + 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_does_not_come_is_not_waited_for() {
        let intake = Intake::new(1000 * K as u64);
        for (requests, begin) in [
            (Requests::One, vec![]),
            (Requests::Many, vec![]),
            (Requests::One, head(10 * K)),
            (Requests::AnyTime, head(10 * K)),
            (Requests::One, request(10 * K)),
        ] {
            let (send, _, mut incoming) = call(&intake, requests);
            if !begin.is_empty() {
                send.send(begin).unwrap();
                passed(&mut incoming).await;
            }
            let end = incoming.frame().await.unwrap().unwrap_err();
            assert_eq!(end.code(), tonic::Code::DeadlineExceeded);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_drip_does_not_hold_memory_for_ever() {
        let intake = Intake::new(1000 * K as u64);
        let (send, _, mut incoming) = call(&intake, Requests::AnyTime);
        send.send(head(900 * K)).unwrap();
        tokio::spawn(async move {
            while send.send(vec![0]).is_ok() {
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
        });
        let mut bytes = 0;
        let end = loop {
            match incoming.frame().await.unwrap() {
                Ok(frame) => bytes += frame.into_data().unwrap().len(),
                Err(end) => break end,
            }
        };
        assert_eq!(end.code(), tonic::Code::DeadlineExceeded);
        assert!(bytes < 20, "{bytes}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_may_be_silent_between_requests() {
        let intake = Intake::new(1000 * K as u64);
        let (send, _, mut incoming) = call(&intake, Requests::AnyTime);
        let waited = tokio::time::timeout(Duration::from_secs(3600), incoming.frame()).await;
        assert!(waited.is_err());
        send.send(request(9 * K)).unwrap();
        passed(&mut incoming).await;
        assert!(tokio::time::timeout(Duration::from_secs(3600), incoming.frame()).await.is_err());
        assert_eq!(held_by(&intake), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_for_which_no_memory_comes_free_is_refused() {
        let intake = Intake::new(1000 * K as u64);
        let _other = intake.try_hold(1000 * K).unwrap();
        let (send, _, mut incoming) = call(&intake, Requests::One);
        send.send(request(100 * K)).unwrap();
        let end = incoming.frame().await.unwrap().unwrap_err();
        assert_eq!(end.code(), tonic::Code::Unavailable);
    }
}
