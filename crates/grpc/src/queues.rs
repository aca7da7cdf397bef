//! The service that manages queues.

use nexo_access::{Identity, MoveRight, Permission};
use nexo_broker::{Broker, DeadLetters, ListRequest, QueueConfig, QueueStats, Redrive};
use nexo_types::{Offset, QueueName, limits};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::access::{self, caller};
use crate::config;
use crate::fields;
use crate::proto::{self, queue_service_server::QueueService};
use crate::redrive;
use crate::status::Failure;

/// Queues in one page, if the client does not say.
const PAGE_SIZE_DEFAULT: usize = 100;
/// Queues in one page at most: keeps a reply well below the size that clients refuse.
const PAGE_SIZE_MAX: usize = 1_000;
/// Progress of a redrive that waits to be read; the newest matters, so there need not be many.
const PROGRESS_BUFFER: usize = 4;

/// Answers [`QueueService`] from a broker.
pub(crate) struct Queues {
    pub(crate) broker: Broker,
    pub(crate) stop: CancellationToken,
}

impl Queues {
    fn stats(&self, queue: &QueueName) -> Result<QueueStats, Status> {
        Ok(self.broker.queue_stats(queue).map_err(Failure::from)?)
    }

    fn details(&self, queue: &QueueName) -> Result<proto::Queue, Status> {
        Ok(config::details_to_proto(self.broker.queue_details(queue).map_err(Failure::from)?))
    }

    async fn pause(&self, identity: &Identity, queue: QueueName, paused: bool) -> Result<(), Status> {
        access::may(identity, Permission::Configure, &queue)?;
        Ok(self.broker.pause_queue(&queue, paused).await.map_err(Failure::from)?)
    }
}

#[tonic::async_trait]
impl QueueService for Queues {
    type RedriveStream = ReceiverStream<Result<proto::RedriveResponse, Status>>;

    async fn create_queue(
        &self,
        request: Request<proto::CreateQueueRequest>,
    ) -> Result<Response<proto::CreateQueueResponse>, Status> {
        let identity = caller(&request)?;
        let request = request.into_inner();
        let queue = fields::queue(&request.vhost, &request.queue)?;
        let config = config::patch(&queue, QueueConfig::default(), &request.config.unwrap_or_default())?;
        access::may_configure(&identity, &queue, &config)?;
        let created = self.broker.create_queue(&queue, config).await.map_err(Failure::from)?;
        Ok(Response::new(proto::CreateQueueResponse { created }))
    }

    async fn update_queue(
        &self,
        request: Request<proto::UpdateQueueRequest>,
    ) -> Result<Response<proto::UpdateQueueResponse>, Status> {
        let identity = caller(&request)?;
        let request = request.into_inner();
        let queue = fields::queue(&request.vhost, &request.queue)?;
        let patch = request.config.unwrap_or_default();
        // What is wrong with the patch itself is found before anything is touched.
        config::patch(&queue, QueueConfig::default(), &patch)?;
        access::may(&identity, Permission::Configure, &queue)?;
        let mut refused = None;
        let apply = |current: &QueueConfig| {
            let changed = config::patch(&queue, current.clone(), &patch).unwrap_or_else(|_| current.clone());
            // Where dead letters go already is not the caller's doing.
            if !sends_dead_letters_alike(&queue, current, &changed) {
                refused = access::may_dead_letter(&identity, &queue, &changed).err();
            }
            if refused.is_some() { current.clone() } else { changed }
        };
        self.broker.update_queue(&queue, apply).await.map_err(Failure::from)?;
        if let Some(refused) = refused {
            return Err(refused.into());
        }
        let queue = self.details(&queue)?;
        Ok(Response::new(proto::UpdateQueueResponse { queue: Some(queue) }))
    }

    async fn delete_queue(
        &self,
        request: Request<proto::DeleteQueueRequest>,
    ) -> Result<Response<proto::DeleteQueueResponse>, Status> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let queue = fields::queue(&request.vhost, &request.queue)?;
        access::may(&identity, Permission::Configure, &queue)?;
        let messages = self.broker.delete_queue(&queue).await.map_err(Failure::from)?;
        Ok(Response::new(proto::DeleteQueueResponse { messages }))
    }

    async fn get_queue(
        &self,
        request: Request<proto::GetQueueRequest>,
    ) -> Result<Response<proto::GetQueueResponse>, Status> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let queue = fields::queue(&request.vhost, &request.queue)?;
        access::may_see(&identity, &queue)?;
        let queue = self.details(&queue)?;
        Ok(Response::new(proto::GetQueueResponse { queue: Some(queue) }))
    }

    async fn list_queues(
        &self,
        request: Request<proto::ListQueuesRequest>,
    ) -> Result<Response<proto::ListQueuesResponse>, Status> {
        let identity = caller(&request)?;
        let request = request.into_inner();
        let limit = page_size(request.page_size)?;
        if request.prefix.len() > limits::QUEUE_NAME_BYTES_MAX {
            let (max, len) = (limits::QUEUE_NAME_BYTES_MAX, request.prefix.len());
            return Err(Failure::invalid(format!("prefix has at most {max} bytes; it has {len}")).into());
        }
        let vhost = if request.all_vhosts { None } else { Some(fields::vhost(&request.vhost)?) };
        let after = match request.page_token.as_str() {
            "" => None,
            token => {
                Some(QueueName::from_stored(token).map_err(|error| fields::named("page_token", &error))?)
            }
        };
        // One more than asked for tells whether there is another page. Pages are of what concerns the caller: the token names
        // the last of them.
        let list = ListRequest { vhost, prefix: request.prefix, after, limit: limit + 1 };
        let mut queues =
            self.broker.list_queues_that(&list, |queue| access::may_see(&identity, queue).is_ok());
        let more = queues.len() > limit;
        queues.truncate(limit);
        let last = queues.last().filter(|_| more);
        let next_page_token = last.map_or_else(String::new, |queue| queue.name.stored().to_owned());
        Ok(Response::new(proto::ListQueuesResponse {
            next_page_token,
            queues: queues.iter().map(config::queue_to_proto).collect(),
        }))
    }

    async fn pause_queue(
        &self,
        request: Request<proto::PauseQueueRequest>,
    ) -> Result<Response<proto::PauseQueueResponse>, Status> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        self.pause(&identity, fields::queue(&request.vhost, &request.queue)?, true).await?;
        Ok(Response::new(proto::PauseQueueResponse {}))
    }

    async fn resume_queue(
        &self,
        request: Request<proto::ResumeQueueRequest>,
    ) -> Result<Response<proto::ResumeQueueResponse>, Status> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        self.pause(&identity, fields::queue(&request.vhost, &request.queue)?, false).await?;
        Ok(Response::new(proto::ResumeQueueResponse {}))
    }

    async fn purge_queue(
        &self,
        request: Request<proto::PurgeQueueRequest>,
    ) -> Result<Response<proto::PurgeQueueResponse>, Status> {
        let identity = caller(&request)?;
        let request = request.get_ref();
        let queue = fields::queue(&request.vhost, &request.queue)?;
        access::may(&identity, Permission::Read, &queue)?;
        let messages = self.broker.purge(&queue).await.map_err(Failure::from)?;
        Ok(Response::new(proto::PurgeQueueResponse { messages }))
    }

    async fn redrive(
        &self,
        request: Request<proto::RedriveRequest>,
    ) -> Result<Response<Self::RedriveStream>, Status> {
        let identity = caller(&request)?;
        let (queue, redrive) = redrive_request(request.into_inner())?;
        let right = MoveRight::new(&identity, &queue, redrive.target.as_ref());
        let right = right.map_err(|refused| access::refusal(&identity, &queue, refused))?;
        // Asked here so that a queue that does not exist fails the call itself.
        self.stats(&queue)?;
        if let Some(target) = &redrive.target {
            self.stats(target)?;
        }
        let (out, replies) = mpsc::channel(PROGRESS_BUFFER);
        tokio::spawn(redrive::run(self.broker.clone(), queue, redrive, right, out, self.stop.clone()));
        Ok(Response::new(ReceiverStream::new(replies)))
    }
}

/// Whether dead letters go to the same place, if there are any.
fn sends_dead_letters_alike(queue: &QueueName, before: &QueueConfig, after: &QueueConfig) -> bool {
    let place = |config: &QueueConfig| {
        let is_exchange = matches!(config.dead_letters, DeadLetters::Exchange { .. });
        let target = config.dead_letter_queue_of(queue).ok().flatten();
        config.has_dead_letters().then_some((target, is_exchange.then(|| config.dead_letters.clone())))
    };
    place(before) == place(after)
}

fn page_size(asked: u32) -> Result<usize, Failure> {
    fields::page("page_size", asked, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)
}

fn redrive_request(request: proto::RedriveRequest) -> Result<(QueueName, Redrive), Failure> {
    let queue = fields::queue(&request.vhost, &request.queue)?;
    let target = match request.target.as_str() {
        "" => None,
        name => Some(fields::queue_in("target", &queue.vhost(), name)?),
    };
    if target.as_ref() == Some(&queue) {
        return Err(Failure::invalid(format!(
            "target must be another queue than the source; both are '{queue}'"
        )));
    }
    if !request.ids.is_empty() {
        fields::count("ids", request.ids.len(), limits::SETTLE_BATCH_MAX)?;
    }
    let offsets = request.ids.into_iter().map(Offset).collect();
    let max = (request.max > 0).then_some(request.max);
    Ok((queue, Redrive { target, offsets, max, ..Redrive::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_default_and_a_limit() {
        assert_eq!(page_size(0), Ok(100));
        assert_eq!(page_size(7), Ok(7));
        assert_eq!(page_size(1001).unwrap_err().message, "page_size must be between 0 and 1000; it is 1001");
    }

    #[test]
    fn a_redrive_into_its_own_queue_is_refused() {
        let request = proto::RedriveRequest {
            queue: "q_dlq".into(),
            target: "q_dlq".into(),
            ..proto::RedriveRequest::default()
        };
        let refused = redrive_request(request).unwrap_err().message;
        assert_eq!(refused, "target must be another queue than the source; both are 'q_dlq'");
    }
}
