//! Calls at a leader that leads no more. They end with words that say so: what they wait for may never come.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use nexo_net::{Tenure, Unserved};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Response};

use crate::status::Failure;

/// The answer to a call, as long as this node leads.
pub(crate) async fn answer_in<E>(
    tenure: Option<Arc<Tenure>>,
    answering: impl Future<Output = Result<Response<Body>, E>>,
) -> Result<Response<Body>, E> {
    let Some(tenure) = tenure else { return answering.await };
    tokio::select! {
        // First, since an answer of one who has thrown its memory away would be wrong.
        biased;
        why = Tenure::until_over(Some(&tenure)) => Ok(Status::from(Failure::from(why)).into_http()),
        answer = answering => answer.map(|response| response.map(|body| Body::new(InTenure::new(body, tenure)))),
    }
}

/// The body of an answer, which may be a stream without end.
struct InTenure {
    body: Body,
    tenure: Arc<Tenure>,
    /// Made when the answer waits for something, which most never do.
    over: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl InTenure {
    const fn new(body: Body, tenure: Arc<Tenure>) -> Self {
        Self { body, tenure, over: None }
    }
}

impl HttpBody for InTenure {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        if frame.is_ready() {
            return frame;
        }
        let over = this.over.get_or_insert_with(|| Box::pin(this.tenure.over.clone().cancelled_owned()));
        ready!(over.as_mut().poll(cx));
        // Whatever made the answer ends with it.
        this.body = Body::empty();
        let mut trailers = HeaderMap::new();
        let why = this.tenure.why().unwrap_or(Unserved::Deposed);
        Status::from(Failure::from(why)).add_header(&mut trailers)?;
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
