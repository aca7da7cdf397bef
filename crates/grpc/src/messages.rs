//! The service that moves messages: each call is handed to the room that knows it.

use nexo_access::{Identity, Logins, Permission, Presence};
use nexo_broker::Broker;
use nexo_types::{Millis, limits};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::access::{self, caller};
use crate::fields;
use crate::incoming::Held;
use crate::message::{delivered, shown};
use crate::proto::{self, message_service_server::MessageService};
use crate::push::{self, PushStream};
use crate::settle::Settle;
use crate::status::Failure;
use crate::subscribe::Subscriber;

/// Replies of a stream that are made before the client has read those before them.
pub(crate) const REPLY_BUFFER: usize = 16;
/// A pop answers with no more than this, unless one message is larger: clients refuse answers above 4 MiB unless
/// they are told otherwise, and what they refuse would stay leased.
const POP_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Answers [`MessageService`] from a broker.
pub(crate) struct Messages {
    pub(crate) broker: Broker,
    pub(crate) logins: Logins,
    pub(crate) stop: CancellationToken,
}

/// Notes that a user has a stream, if he may have one more.
pub(crate) fn attend(logins: &Logins, identity: &Identity) -> Result<Presence, Status> {
    logins.attend(identity).map_err(|limit| Status::resource_exhausted(limit.to_string()))
}

/// Does the work of a stream, and has it end when its user is deleted, or his token expires.
pub(crate) async fn until_user_is_gone(
    work: impl Future<Output = ()>,
    presence: Presence,
    stop: CancellationToken,
) {
    let ended = presence.ended();
    let mut work = std::pin::pin!(work);
    tokio::select! {
        () = &mut work => return,
        () = ended.wait() => {}
        () = presence.identity().expired() => {}
    }
    stop.cancel();
    work.await;
}

#[tonic::async_trait]
impl MessageService for Messages {
    type PushStreamStream = ReceiverStream<Result<proto::PushStreamResponse, Status>>;
    type SubscribeStream = ReceiverStream<Result<proto::SubscribeResponse, Status>>;

    async fn push(
        &self,
        request: Request<proto::PushRequest>,
    ) -> Result<Response<proto::PushResponse>, Status> {
        push::push(&self.broker, &caller(&request)?, request.into_inner()).await.map(Response::new)
    }

    async fn push_stream(
        &self,
        request: Request<Streaming<proto::PushStreamRequest>>,
    ) -> Result<Response<Self::PushStreamStream>, Status> {
        let (out, replies) = mpsc::channel(REPLY_BUFFER);
        let held = request.extensions().get::<Held>().cloned().unwrap_or_default();
        let identity = caller(&request)?;
        let (stop, presence) = (self.stop.child_token(), attend(&self.logins, &identity)?);
        let stream =
            PushStream::new(self.broker.clone(), identity, request.into_inner(), held, out, stop.clone());
        tokio::spawn(until_user_is_gone(stream.run(), presence, stop));
        Ok(Response::new(ReceiverStream::new(replies)))
    }

    async fn pop(&self, request: Request<proto::PopRequest>) -> Result<Response<proto::PopResponse>, Status> {
        let identity = caller(&request)?;
        let request = request.into_inner();
        let queue = fields::queue(&request.vhost, &request.queue)?;
        access::may(&identity, Permission::Read, &queue)?;
        let pop = nexo_broker::PopRequest {
            max: fields::max(request.max, limits::POP_BATCH_MAX)?,
            wait: fields::in_range("wait_ms", request.wait_ms, 0, limits::POP_WAIT_MAX.0).map(Millis)?,
            visibility: fields::visibility(request.visibility_ms)?,
            bytes_max: Some(POP_BYTES_MAX),
        };
        let deliveries = tokio::select! {
            biased;
            // What he might take when he began to wait he may not when it comes.
            refused = access::until_refused(&identity, Permission::Read, &queue), if pop.wait > Millis::ZERO => {
                return Err(refused.into());
            }
            deliveries = self.broker.pop(&queue, pop) => deliveries.map_err(Failure::from)?,
            // A call that only waits must not hold up the end; a client that tries again finds another broker.
            () = self.stop.cancelled() => return Err(Failure::stopping().into()),
        };
        Ok(Response::new(proto::PopResponse { messages: deliveries.into_iter().map(delivered).collect() }))
    }

    async fn subscribe(
        &self,
        request: Request<Streaming<proto::SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let (out, replies) = mpsc::channel(REPLY_BUFFER);
        let identity = caller(&request)?;
        let (stop, presence) = (self.stop.child_token(), attend(&self.logins, &identity)?);
        let (broker, end) = (self.broker.clone(), stop.clone());
        // The answer must not wait for the first request: some clients send it only once they have been answered.
        let work = async move {
            let requests = request.into_inner();
            let started = tokio::select! {
                started = Subscriber::start(broker, identity, requests, out.clone(), stop.clone()) => started,
                () = out.closed() => return,
                () = stop.cancelled() => return,
            };
            match started {
                Ok(subscriber) => subscriber.run().await,
                // The client may be gone, and then nobody needs to know.
                Err(status) => drop(out.send(Err(status)).await),
            }
        };
        tokio::spawn(until_user_is_gone(work, presence, end));
        Ok(Response::new(ReceiverStream::new(replies)))
    }

    async fn received(
        &self,
        request: Request<proto::ReceivedRequest>,
    ) -> Result<Response<proto::ReceivedResponse>, Status> {
        let identity = caller(&request)?;
        let results = Settle::try_from(request.into_inner())?.call(&self.broker, &identity).await?;
        Ok(Response::new(proto::ReceivedResponse { results }))
    }

    async fn ack(&self, request: Request<proto::AckRequest>) -> Result<Response<proto::AckResponse>, Status> {
        let identity = caller(&request)?;
        let results = Settle::try_from(request.into_inner())?.call(&self.broker, &identity).await?;
        Ok(Response::new(proto::AckResponse { results }))
    }

    async fn nack(
        &self,
        request: Request<proto::NackRequest>,
    ) -> Result<Response<proto::NackResponse>, Status> {
        let identity = caller(&request)?;
        let results = Settle::try_from(request.into_inner())?.call(&self.broker, &identity).await?;
        Ok(Response::new(proto::NackResponse { results }))
    }

    async fn extend(
        &self,
        request: Request<proto::ExtendRequest>,
    ) -> Result<Response<proto::ExtendResponse>, Status> {
        let identity = caller(&request)?;
        let results = Settle::try_from(request.into_inner())?.call(&self.broker, &identity).await?;
        Ok(Response::new(proto::ExtendResponse { results }))
    }

    async fn peek(
        &self,
        request: Request<proto::PeekRequest>,
    ) -> Result<Response<proto::PeekResponse>, Status> {
        let identity = caller(&request)?;
        let request = request.into_inner();
        let queue = fields::queue(&request.vhost, &request.queue)?;
        access::may(&identity, Permission::Read, &queue)?;
        let max = fields::max(request.max, limits::PEEK_MAX)?;
        let after = fields::peek_position(&request.page_token)?;
        let (deliveries, next) = self.broker.peek_after(&queue, after, max).await.map_err(Failure::from)?;
        Ok(Response::new(proto::PeekResponse {
            messages: deliveries.into_iter().map(shown).collect(),
            next_page_token: next
                .map_or_else(String::new, |(priority, offset)| format!("{}-{}", priority.0, offset.0)),
        }))
    }
}
