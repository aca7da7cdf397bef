//! One implementation of each action, in terms of the broker.

mod access;
mod batch;
mod listing;
mod move_tasks;
mod permissions;
mod queue_attributes;
mod queues;
mod receive;
mod recent;
mod repeated_receives;
mod send;
mod settle;
mod tags;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nexo_access::{Identity, Logins};
use nexo_broker::topology::VhostError;
use nexo_broker::{Broker, CreateError, Intake, Protocol, QueueHandle};
use nexo_net::HttpLimits;
use nexo_types::{QueueId, QueueName, VhostName};
use tokio_util::sync::CancellationToken;

use crate::arn;
use crate::attributes::Seen;
use crate::fault::{Fault, FaultCode};
use crate::limits::{LimitMode, Limits};
use crate::message::Source;
use crate::queue_url;
use crate::refusals::Refusals;
use crate::request::Request;
use crate::response::Response;
use crate::settings::{ANNOTATION, Settings, SettingsError};
use crate::signature::AccessKey;
use crate::text::Text;
use access::Need;
use move_tasks::MoveTasks;
use recent::Recent;
use repeated_receives::RepeatedReceives;

/// How the SQS API is set up.
#[derive(Clone, Debug)]
pub struct SqsOptions {
    /// Which limits hold.
    pub limits: LimitMode,
    /// Who may call besides the users that have keys, and may do everything. Without any, everybody on this machine may call
    /// as guest, as long as that user has the password that everybody knows.
    pub access_keys: Vec<AccessKey>,
    /// The account in addresses and ARNs.
    pub account: String,
    /// The region in ARNs, where a request does not say.
    pub region: String,
    /// How long clients may take. What a body may, `request_body.rs` says.
    pub times: HttpLimits,
}

impl Default for SqsOptions {
    fn default() -> Self {
        Self {
            limits: LimitMode::default(),
            access_keys: Vec::new(),
            account: "000000000000".into(),
            region: "us-east-1".into(),
            times: HttpLimits {
                // Clients keep connections for later, so they may be silent for long.
                idle: Duration::from_secs(300),
                head: Duration::from_secs(30),
                write_stall: Duration::from_secs(60),
            },
        }
    }
}

/// Where a request came in, which shows in the answer.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// What stands before the path of a queue's address, as in `http://localhost:9324`.
    pub(crate) base_url: String,
    /// The path of the request: old clients send a request about a queue to the queue's own address.
    pub(crate) path: String,
    pub(crate) region: String,
    /// The virtual host that the queues of whoever asks are in.
    pub(crate) vhost: VhostName,
    /// What `X-Amzn-Trace-Id` says.
    pub(crate) trace: Option<String>,
    /// Who asks.
    pub(crate) identity: Identity,
}

/// The actions.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) broker: Broker,
    pub(crate) logins: Logins,
    pub(crate) options: SqsOptions,
    limits: Limits,
    stop: CancellationToken,
    settings: SettingsCache,
    recent: Recent,
    repeated: RepeatedReceives,
    tasks: Arc<MoveTasks>,
    /// Memory for answers with messages, from before they are written until they are sent.
    answers: Intake,
    pub(crate) refusals: Refusals,
}

/// A queue that a request is about.
#[derive(Debug)]
struct Queue {
    handle: QueueHandle,
    settings: Arc<Settings>,
}

impl Queue {
    fn name(&self) -> &QueueName {
        self.handle.name()
    }

    fn is_fifo(&self) -> bool {
        self.settings.fifo.is_some()
    }

    fn source(&self) -> Source {
        Source { id: self.handle.id(), created_at: self.handle.created_at(), is_fifo: self.is_fifo() }
    }
}

impl Service {
    /// Counts and logs somebody who was not let in.
    pub(crate) fn note_refused_login(&self, peer: SocketAddr, fault: &Fault) {
        self.broker.traffic().of(Protocol::Sqs).login_refused();
        tracing::info!(protocol = "sqs", %peer, code = fault.code.query(), "request refused");
    }

    pub(crate) fn new(broker: Broker, logins: Logins, options: SqsOptions, stop: CancellationToken) -> Self {
        // As much may be on its way out as in. A client that does not read keeps its answer in memory.
        let answers = Intake::new(broker.intake().bytes_max());
        let limits = options.limits.limits().within(broker.body_bytes_max() as u64);
        Self {
            broker,
            logins,
            options,
            limits,
            stop,
            settings: SettingsCache::default(),
            recent: Recent::default(),
            repeated: RepeatedReceives::default(),
            tasks: Arc::new(MoveTasks::default()),
            answers,
            refusals: Refusals::default(),
        }
    }

    /// The memory for what is on its way in.
    pub(crate) fn intake(&self) -> &Intake {
        self.broker.intake()
    }

    pub(crate) const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Does what a request asks for.
    pub(crate) async fn call(&self, context: &Context, request: Request<'_>) -> Result<Response, Fault> {
        match request {
            Request::AddPermission(request) => self.add_permission(context, request).await,
            Request::CancelMessageMoveTask(request) => self.cancel_message_move_task(context, &request),
            Request::ChangeMessageVisibility(request) => {
                self.change_message_visibility(context, request).await
            }
            Request::ChangeMessageVisibilityBatch(request) => {
                self.change_message_visibility_batch(context, request).await
            }
            Request::CreateQueue(request) => self.create_queue(context, request).await,
            Request::DeleteMessage(request) => self.delete_message(context, request).await,
            Request::DeleteMessageBatch(request) => self.delete_message_batch(context, request).await,
            Request::DeleteQueue(request) => self.delete_queue(context, request).await,
            Request::GetQueueAttributes(request) => self.get_queue_attributes(context, &request),
            Request::GetQueueUrl(request) => self.get_queue_url(context, &request),
            Request::ListDeadLetterSourceQueues(request) => {
                self.list_dead_letter_source_queues(context, &request)
            }
            Request::ListMessageMoveTasks(request) => self.list_message_move_tasks(context, &request),
            Request::ListQueueTags(request) => self.list_queue_tags(context, &request),
            Request::ListQueues(request) => self.list_queues(context, &request),
            Request::PurgeQueue(request) => self.purge_queue(context, request).await,
            Request::ReceiveMessage(request) => self.receive_message(context, request).await,
            Request::RemovePermission(request) => self.remove_permission(context, request).await,
            Request::SendMessage(request) => self.send_message(context, request).await,
            Request::SendMessageBatch(request) => self.send_message_batch(context, request).await,
            Request::SetQueueAttributes(request) => self.set_queue_attributes(context, request).await,
            Request::StartMessageMoveTask(request) => self.start_message_move_task(context, &request),
            Request::TagQueue(request) => self.tag_queue(context, request).await,
            Request::UntagQueue(request) => self.untag_queue(context, request).await,
        }
    }

    /// The queue that a request names, if whoever asks may do what the request needs.
    fn queue(&self, context: &Context, url: Option<&Text<'_>>, need: Need) -> Result<Queue, Fault> {
        let name = match url {
            Some(url) => queue_url::queue_name(&context.vhost, url, &context.base_url)?,
            None if context.path.trim_matches('/').is_empty() => return Err(Fault::missing("QueueUrl")),
            None => queue_url::queue_name(&context.vhost, &context.path, &context.base_url)?,
        };
        context.may(need, &name)?;
        self.queue_named(&name)
    }

    fn queue_named(&self, name: &QueueName) -> Result<Queue, Fault> {
        self.queue_if_there(name)?.ok_or_else(Fault::no_such_queue)
    }

    /// The queue, if there is one, and what is kept with it can be read.
    fn queue_if_there(&self, name: &QueueName) -> Result<Option<Queue>, Fault> {
        let Some(handle) = self.broker.queue(name) else { return Ok(None) };
        let settings = self.settings.get(&handle).map_err(|error| error.fault(name))?;
        Ok(Some(Queue { handle, settings }))
    }

    /// The queue that an ARN names, if there is one, and whoever asks may do this with it.
    fn queue_of_arn(&self, context: &Context, arn: &str, need: Need) -> Result<Option<Queue>, Fault> {
        let Some(name) = arn::queue_name(&context.vhost, arn) else { return Ok(None) };
        context.may(need, &name)?;
        self.queue_if_there(&name)
    }

    fn url_of(&self, context: &Context, queue: &QueueName) -> String {
        queue_url::of_queue(&context.base_url, &self.options.account, queue)
    }

    fn arn_of(&self, context: &Context, queue: &QueueName) -> String {
        arn::of_queue(&context.region, &self.options.account, queue.as_str())
    }

    fn seen<'a>(&'a self, context: &'a Context, name: &'a QueueName) -> Seen<'a> {
        Seen { name, region: &context.region, account: &self.options.account }
    }
}

/// A parameter that must be there.
fn required<'a>(value: Option<Text<'a>>, parameter: &str) -> Result<Text<'a>, Fault> {
    value.ok_or_else(|| Fault::missing(parameter))
}

fn create_fault(error: CreateError) -> Fault {
    match error {
        CreateError::Queue(error) => error.into(),
        CreateError::TooMany { .. } => Fault::new(FaultCode::OverLimit, error.to_string()),
        CreateError::Vhost(VhostError::QueueLimit { .. }) => {
            Fault::new(FaultCode::OverLimit, error.to_string())
        }
        CreateError::Config(_) | CreateError::Differs { .. } | CreateError::Vhost(_) => {
            Fault::invalid(error.to_string())
        }
    }
}

/// What SQS keeps with queues, read once for each change of it.
#[derive(Debug, Default)]
struct SettingsCache(parking_lot::RwLock<std::collections::HashMap<QueueId, (Bytes, Arc<Settings>)>>);

/// Queues whose settings are remembered; beyond that all are read again.
const CACHED_MAX: usize = 100_000;

impl SettingsCache {
    fn get(&self, queue: &QueueHandle) -> Result<Arc<Settings>, SettingsError> {
        let Some(bytes) = queue.annotation(ANNOTATION) else { return Ok(Arc::default()) };
        // The remembered bytes are kept, so no others can lie where they lie.
        let same = |known: &Bytes| known.as_ptr() == bytes.as_ptr() && known.len() == bytes.len();
        if let Some((known, settings)) = self.0.read().get(&queue.id())
            && same(known)
        {
            return Ok(Arc::clone(settings));
        }
        let settings = Arc::new(Settings::from_bytes(&bytes)?);
        let mut cache = self.0.write();
        if cache.len() >= CACHED_MAX {
            cache.clear();
        }
        cache.insert(queue.id(), (bytes, Arc::clone(&settings)));
        Ok(settings)
    }
}
