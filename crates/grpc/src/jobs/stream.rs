//! Many calls of job queues over one stream: asked for, taken and completed without a call of HTTP/2 for each. Every one is dealt
//! with as if it had come by itself, and answered when it is done; what is done together is answered together.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use nexo_access::Identity;
use nexo_broker::IntakeHold;
use prost::Message;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::service::JobCalls;
use crate::incoming::Held;
use crate::proto::job_call::Call;
use crate::proto::job_reply::Reply;
use crate::proto::{self, job_service_server::JobService};
use crate::status::Failure;

/// Calls of one stream that may be under way. Most of them wait, for an answer or a job, and take some kilobytes.
const UNDER_WAY_MAX: usize = 4096;
/// Calls in one request: no more than may be under way.
const CALLS_MAX: usize = UNDER_WAY_MAX;
/// Answers go out together up to about this size: large enough to be cheap, well below the 4 MiB at which a client refuses a reply
/// by default.
const REPLY_BYTES: usize = 256 * 1024;

type Out = mpsc::Sender<Result<proto::JobCallsResponse, Status>>;

/// A running stream.
pub(super) struct CallStream {
    calls: JobCalls,
    identity: Identity,
    requests: Streaming<proto::JobCallsRequest>,
    held: Held,
    out: Out,
    stop: CancellationToken,
    under_way: FuturesUnordered<BoxFuture<'static, proto::JobReply>>,
    /// Calls that were read and not begun, because as many as may be are under way.
    unbegun: std::vec::IntoIter<proto::JobCall>,
    is_reading: bool,
}

impl CallStream {
    pub(super) fn new(
        calls: JobCalls,
        identity: Identity,
        requests: Streaming<proto::JobCallsRequest>,
        held: Held,
        out: Out,
        stop: CancellationToken,
    ) -> Self {
        Self {
            calls,
            identity,
            requests,
            held,
            out,
            stop,
            under_way: FuturesUnordered::new(),
            unbegun: Vec::new().into_iter(),
            is_reading: true,
        }
    }

    /// Runs until the client is done and everything is answered, or the client is gone.
    pub(super) async fn run(mut self) {
        while self.is_reading || !self.under_way.is_empty() || self.unbegun.len() > 0 {
            self.begin();
            let may_read = self.is_reading && self.unbegun.len() == 0 && self.under_way.len() < UNDER_WAY_MAX;
            tokio::select! {
                biased;
                () = self.out.closed() => return,
                Some(done) = self.under_way.next(), if !self.under_way.is_empty() => {
                    if !self.reply(done).await {
                        return;
                    }
                }
                request = self.requests.next(), if may_read => match request {
                    Some(Ok(request)) if request.calls.len() > CALLS_MAX => {
                        let text = format!("calls: at most {CALLS_MAX} in one request; there are {}", request.calls.len());
                        return self.fail(Failure::invalid(text).into()).await;
                    }
                    Some(Ok(request)) => self.unbegun = request.calls.into_iter(),
                    Some(Err(status)) => return self.fail(status).await,
                    None => self.is_reading = false,
                },
                () = self.stop.cancelled(), if self.is_reading => self.is_reading = false,
            }
        }
    }

    /// Begins what was read, as far as it may be under way.
    fn begin(&mut self) {
        if self.unbegun.len() == 0 {
            return;
        }
        // What brings much keeps its memory until it is done. A call that only waits must not.
        let hold = self.held.take().map(Arc::new);
        while self.under_way.len() < UNDER_WAY_MAX
            && let Some(call) = self.unbegun.next()
        {
            let hold = hold.clone().filter(|_| matches!(call.call, Some(Call::Complete(_))));
            let (calls, identity) = (self.calls.clone(), self.identity.clone());
            self.under_way.push(Box::pin(answered(calls, identity, call, hold)));
        }
    }

    /// Sends an answer, and whatever else is done by now. False if the client is gone.
    async fn reply(&mut self, done: proto::JobReply) -> bool {
        let mut bytes = done.encoded_len();
        let mut replies = vec![done];
        while bytes < REPLY_BYTES
            && let Some(Some(more)) = self.under_way.next().now_or_never()
        {
            bytes += more.encoded_len();
            replies.push(more);
        }
        self.out.send(Ok(proto::JobCallsResponse { replies })).await.is_ok()
    }

    /// Ends the stream because of the client, after answering what it had sent before.
    async fn fail(&mut self, status: Status) {
        while let Some(done) = self.under_way.next().await {
            if !self.reply(done).await {
                return;
            }
        }
        // The client may be gone, and then nobody needs to know.
        let _ = self.out.send(Err(status)).await;
    }
}

/// Has one call done.
async fn answered(
    calls: JobCalls,
    identity: Identity,
    call: proto::JobCall,
    hold: Option<Arc<IntakeHold>>,
) -> proto::JobReply {
    let sequence = call.sequence;
    let reply = match call.call {
        Some(Call::Ask(request)) => calls.ask(by(identity, request)).await.map(inner(Reply::Ask)),
        Some(Call::Take(request)) => calls.take(by(identity, request)).await.map(inner(Reply::Take)),
        Some(Call::Complete(request)) => {
            calls.complete(by(identity, request)).await.map(inner(Reply::Complete))
        }
        Some(Call::Fail(request)) => calls.fail(by(identity, request)).await.map(inner(Reply::Fail)),
        Some(Call::Extend(request)) => calls.extend(by(identity, request)).await.map(inner(Reply::Extend)),
        Some(Call::GiveBack(request)) => {
            calls.give_back(by(identity, request)).await.map(inner(Reply::GiveBack))
        }
        Some(Call::Answer(request)) => calls.answer(by(identity, request)).await.map(inner(Reply::Answer)),
        Some(Call::Leave(request)) => calls.leave(by(identity, request)).await.map(inner(Reply::Leave)),
        None => Err(Failure::invalid("call: it must be one of those that the stream has").into()),
    };
    drop(hold);
    let refused = |status: Status| {
        Reply::Error(proto::Error { code: status.code().into(), message: status.message().to_owned() })
    };
    proto::JobReply { sequence, reply: Some(reply.unwrap_or_else(refused)) }
}

/// A request of somebody who has logged in.
fn by<T>(identity: Identity, request: T) -> Request<T> {
    let mut request = Request::new(request);
    request.extensions_mut().insert(identity);
    request
}

fn inner<T>(reply: impl FnOnce(T) -> Reply) -> impl FnOnce(Response<T>) -> Reply {
    |response| reply(response.into_inner())
}
