//! A broker with the native API in this process, and a client for it.

// Each test program uses its own part of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::time::Duration;

use nexo_access::{FirstUser, Logins};
use nexo_broker::{Broker, BrokerOptions};
use nexo_grpc::client::Client;
use nexo_grpc::proto;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// Longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A served broker with data of its own.
pub struct Served {
    pub client: Client,
    pub broker: Broker,
    pub logins: Logins,
    pub url: String,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<Result<(), nexo_grpc::ServeError>>,
    _dir: Option<TempDir>,
}

impl Served {
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let broker = Broker::open(BrokerOptions::new(dir.path())).unwrap();
        Self::serve(broker, Some(dir)).await
    }

    /// The same with a broker that was opened elsewhere.
    pub async fn serve(broker: Broker, dir: Option<TempDir>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async {
            let _ = stopped.await;
        };
        let logins = Logins::open(&broker, &FirstUser::default()).await.unwrap();
        let server = tokio::spawn(nexo_grpc::serve(broker.clone(), logins.clone(), listener, shutdown));
        let client = Client::connect(&url).await.unwrap();
        Self { client, broker, logins, url, stop: Some(stop), server, _dir: dir }
    }

    /// Tells the server to end; streams and calls are still there.
    pub fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits until the server has ended.
    pub async fn stopped(self) {
        within(self.server).await.unwrap().unwrap();
        self.broker.shutdown().await;
    }

    pub async fn create(&self, queue: &str, config: proto::QueueConfig) {
        let request =
            proto::CreateQueueRequest { queue: queue.into(), config: Some(config), ..Default::default() };
        self.client.queues().create_queue(request).await.unwrap();
    }

    pub async fn push(&self, queue: &str, body: &str) -> u64 {
        let request =
            proto::PushRequest { queue: queue.into(), messages: vec![message(body)], ..Default::default() };
        let reply = self.client.messages().push(request).await.unwrap().into_inner();
        match reply.results[0].outcome.as_ref().unwrap() {
            proto::push_result::Outcome::Pushed(pushed) => pushed.id,
            proto::push_result::Outcome::Error(error) => panic!("{error:?}"),
        }
    }

    pub async fn pop(&self, queue: &str, max: u32) -> Vec<proto::Message> {
        let request = proto::PopRequest { queue: queue.into(), max, ..Default::default() };
        self.client.messages().pop(request).await.unwrap().into_inner().messages
    }

    pub async fn stats(&self, queue: &str) -> proto::QueueStats {
        let request = proto::GetQueueRequest { queue: queue.into(), ..Default::default() };
        self.client.queues().get_queue(request).await.unwrap().into_inner().queue.unwrap().stats.unwrap()
    }

    /// Waits until the queue exists and has this many messages to hand out. Dead letters arrive a moment after
    /// what killed them was answered.
    pub async fn until_ready(&self, queue: &str, count: u64) {
        let arrive = async {
            loop {
                let request = proto::GetQueueRequest { queue: queue.into(), ..Default::default() };
                let reply = self.client.queues().get_queue(request).await;
                let stats = reply.ok().and_then(|reply| reply.into_inner().queue?.stats);
                if stats.is_some_and(|stats| stats.ready == count) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within(arrive).await;
    }

    /// Subscribes; what is sent to the channel goes up, what comes down is in the stream.
    pub async fn subscribe(&self, first: proto::SubscribeRequest) -> Subscribed {
        let (requests, stream) = mpsc::channel(64);
        requests.send(first).await.unwrap();
        let replies =
            self.client.messages().subscribe(ReceiverStream::new(stream)).await.unwrap().into_inner();
        Subscribed { requests, replies }
    }
}

/// Both ends of a subscription.
pub struct Subscribed {
    pub requests: mpsc::Sender<proto::SubscribeRequest>,
    pub replies: Streaming<proto::SubscribeResponse>,
}

impl Subscribed {
    pub async fn send(&self, request: proto::SubscribeRequest) {
        self.requests.send(request).await.unwrap();
    }

    /// The next event that is not the start.
    pub async fn event(&mut self) -> Result<Option<proto::subscribe_response::Event>, tonic::Status> {
        loop {
            match within(self.replies.message()).await? {
                None => return Ok(None),
                Some(proto::SubscribeResponse {
                    event: Some(proto::subscribe_response::Event::Started(_)),
                }) => {}
                Some(reply) => return Ok(reply.event),
            }
        }
    }

    /// The next `count` messages.
    pub async fn messages(&mut self, count: usize) -> Vec<proto::Message> {
        let mut messages = Vec::new();
        while messages.len() < count {
            match self.event().await.unwrap() {
                Some(proto::subscribe_response::Event::Messages(batch)) => messages.extend(batch.messages),
                other => panic!("not messages: {other:?}"),
            }
        }
        messages
    }

    /// The next answer to something that was settled.
    pub async fn settled(&mut self) -> proto::SettleReply {
        match self.event().await.unwrap() {
            Some(proto::subscribe_response::Event::Settled(reply)) => reply,
            other => panic!("not an answer: {other:?}"),
        }
    }
}

/// The first request of a subscription.
pub fn start(queue: &str, credit: u32) -> proto::SubscribeRequest {
    let start = proto::SubscribeStart { queue: queue.into(), ..Default::default() };
    proto::SubscribeRequest {
        credit,
        action: Some(proto::subscribe_request::Action::Start(start)),
        ..Default::default()
    }
}

/// An acknowledgement on a subscription.
pub fn ack(receipts: Vec<String>, sequence: u64, credit: u32) -> proto::SubscribeRequest {
    let action = Some(proto::subscribe_request::Action::Ack(proto::AckRequest { receipts }));
    proto::SubscribeRequest { credit, sequence, action, stop: false }
}

pub fn message(body: &str) -> proto::NewMessage {
    proto::NewMessage { body: body.to_owned().into(), ..Default::default() }
}

/// Waits, but not for ever.
pub async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes no minute")
}
