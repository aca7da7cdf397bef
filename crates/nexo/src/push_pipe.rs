//! Many pushes in flight on one stream, for input that does not end soon.

use std::collections::VecDeque;

use anyhow::{Context, bail};
use nexo_grpc::client::Client;
use nexo_grpc::proto::{self, push_result::Outcome};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::connect::Asked;
use crate::plain::plain;

/// Requests that may be unconfirmed. With batches of a thousand this is more than any disk keeps up with.
const IN_FLIGHT_MAX: usize = 32;

/// A push stream to one queue.
pub(crate) struct PushPipe {
    queue: String,
    vhost: String,
    /// Gone once there is nothing more to send.
    requests: Option<mpsc::Sender<proto::PushStreamRequest>>,
    replies: Streaming<proto::PushStreamResponse>,
    sequence: u64,
    /// Sequences that were sent and not yet confirmed.
    in_flight: VecDeque<u64>,
}

/// What became of a batch: for each message its outcome.
pub(crate) type Outcomes = Vec<Result<proto::Pushed, String>>;

impl PushPipe {
    pub(crate) async fn open(client: &Client, queue: &str) -> anyhow::Result<Self> {
        // As large as what may be in flight, so that sending never waits.
        let (requests, stream) = mpsc::channel(IN_FLIGHT_MAX);
        let replies = client.messages().push_stream(ReceiverStream::new(stream)).await;
        Ok(Self {
            replies: replies.asked(format!("push to '{queue}'"))?.into_inner(),
            queue: queue.to_owned(),
            vhost: client.vhost(),
            requests: Some(requests),
            sequence: 0,
            in_flight: VecDeque::new(),
        })
    }

    /// Whether another batch may be sent before a confirm has come.
    pub(crate) fn has_room(&self) -> bool {
        self.requests.is_some() && self.in_flight.len() < IN_FLIGHT_MAX
    }

    /// Whether something was sent that is not confirmed.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Sends a batch. Call it while [`Self::has_room`].
    pub(crate) async fn send(&mut self, messages: Vec<proto::NewMessage>) -> anyhow::Result<()> {
        let requests = self.requests.as_ref().context("the stream was closed")?;
        self.sequence += 1;
        let (queue, vhost) =
            if self.sequence == 1 { (self.queue.clone(), self.vhost.clone()) } else { Default::default() };
        let request = proto::PushStreamRequest { sequence: self.sequence, queue, messages, vhost };
        if requests.send(request).await.is_err() {
            // The reason is in the reply stream, where the next confirm is looked for.
            self.requests = None;
        }
        self.in_flight.push_back(self.sequence);
        Ok(())
    }

    /// Says that nothing more will be sent.
    pub(crate) fn finish(&mut self) {
        self.requests = None;
    }

    /// The next confirms, in order. Nothing is lost if the caller stops waiting.
    pub(crate) async fn confirmed(&mut self) -> anyhow::Result<Outcomes> {
        let what = format!("push to '{}'", self.queue);
        let Some(reply) = self.replies.message().await.asked(what.clone())? else {
            bail!("{what}: the broker ended the stream with {} batches unconfirmed", self.in_flight.len());
        };
        let mut outcomes = Vec::new();
        for confirm in reply.confirms {
            if self.in_flight.pop_front() != Some(confirm.sequence) {
                bail!("{what}: the broker confirmed {} out of turn", confirm.sequence);
            }
            if let Some(error) = confirm.error {
                bail!("{what}: {}", plain(&error.message));
            }
            outcomes.extend(confirm.results.into_iter().map(|result| match result.outcome {
                Some(Outcome::Pushed(pushed)) => Ok(pushed),
                Some(Outcome::Error(error)) => Err(plain(&error.message)),
                None => Err("the broker sent no outcome".into()),
            }));
        }
        Ok(outcomes)
    }
}
