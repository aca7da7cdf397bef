//! The state of `nexo consume`: what is here, what runs, and what the broker was told about it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, anyhow};
use nexo_grpc::client::Client;
use nexo_grpc::proto::{self, subscribe_request::Action, subscribe_response::Event};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::execute::Program;
use super::settle::report;
use crate::connect::Asked;
use crate::output::{Format, Printer, note};
use crate::view::MessageView;

/// Requests on their way to the broker.
const REQUESTS: usize = 64;
/// How long to wait for the broker to end the stream after the client did.
const CLOSE: Duration = Duration::from_secs(5);

/// One consumer of one queue.
pub(crate) struct Consumer {
    queue: String,
    program: Option<Program>,
    jobs_max: usize,
    out: Printer,
    requests: mpsc::Sender<proto::SubscribeRequest>,
    pub(crate) replies: Streaming<proto::SubscribeResponse>,
    /// Whether messages must be marked as received.
    pub(crate) two_phase: bool,
    pub(crate) visibility_ms: u64,
    /// Messages that may still be asked for; `None` for any number.
    pub(crate) left: Option<u64>,
    /// Messages that were asked for and have not come.
    asked: u64,
    /// Messages that are here and have not begun.
    waiting: VecDeque<proto::Message>,
    /// Receipts of messages that are here.
    held: BTreeSet<String>,
    pub(crate) jobs: JoinSet<JobEnd>,
    sequence: u64,
    /// What the broker was told and has not confirmed.
    unconfirmed: HashMap<u64, Told>,
    pub(crate) stopping: bool,
}

/// A command that ended.
pub(crate) struct JobEnd {
    message: proto::Message,
    status: anyhow::Result<ExitStatus>,
}

/// What the broker was told about a message, to be printed once it is certain.
enum Told {
    /// A printed batch: there is nothing more to say.
    Printed,
    Ran {
        id: u64,
        attempt: u32,
        exit_code: Option<i32>,
        outcome: &'static str,
    },
}

impl Consumer {
    pub(crate) async fn subscribe(
        client: &Client,
        start: proto::SubscribeStart,
        program: Option<Program>,
        jobs_max: u32,
        format: Format,
    ) -> anyhow::Result<Self> {
        let queue = start.queue.clone();
        let (requests, stream) = mpsc::channel(REQUESTS);
        let action = Some(Action::Start(start));
        requests.send(proto::SubscribeRequest { action, ..Default::default() }).await?;
        let replies = client.messages().subscribe(ReceiverStream::new(stream)).await;
        Ok(Self {
            replies: replies.asked(format!("consume '{queue}'"))?.into_inner(),
            queue,
            program,
            jobs_max: usize::try_from(jobs_max).unwrap_or(usize::MAX),
            out: Printer::new(format),
            requests,
            two_phase: false,
            visibility_ms: 1,
            left: None,
            asked: 0,
            waiting: VecDeque::new(),
            held: BTreeSet::new(),
            jobs: JoinSet::new(),
            sequence: 0,
            unconfirmed: HashMap::new(),
            stopping: false,
        })
    }

    /// Whether all that was wanted is done and confirmed.
    pub(crate) fn is_done(&self) -> bool {
        let nothing_to_come = self.stopping || (self.left == Some(0) && self.asked == 0);
        nothing_to_come && self.waiting.is_empty() && self.jobs.is_empty() && self.unconfirmed.is_empty()
    }

    /// Begins nothing more. What has not begun comes back when the stream ends.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
        for message in self.waiting.drain(..) {
            self.held.remove(&message.receipt);
        }
    }

    /// The event in an answer of the broker, if it is one.
    pub(crate) fn next_event(
        &self,
        event: Result<Option<proto::SubscribeResponse>, Status>,
    ) -> anyhow::Result<Event> {
        let what = format!("consume '{}'", self.queue);
        let reply = event.asked(what.clone())?;
        reply
            .and_then(|reply| reply.event)
            .ok_or_else(|| anyhow!("{what}: the broker ended the subscription"))
    }

    /// Asks for up to `more` messages.
    pub(crate) async fn ask(&mut self, more: u64) -> anyhow::Result<()> {
        let credit = self.grant(more);
        self.send(proto::SubscribeRequest { credit, ..Default::default() }).await
    }

    /// Messages have come.
    pub(crate) async fn take(&mut self, messages: Vec<proto::Message>) -> anyhow::Result<()> {
        self.asked = self.asked.saturating_sub(messages.len() as u64);
        if self.stopping {
            return Ok(());
        }
        let receipts: Vec<String> = messages.iter().map(|message| message.receipt.clone()).collect();
        if self.two_phase {
            let action = Action::Received(proto::ReceivedRequest { receipts: receipts.clone() });
            self.send(proto::SubscribeRequest { action: Some(action), ..Default::default() }).await?;
        }
        if self.program.is_some() {
            self.held.extend(receipts);
            self.waiting.extend(messages);
            return Ok(());
        }
        for message in &messages {
            match self.out.format {
                Format::Json => self.out.json(&MessageView::new(&self.queue, message))?,
                Format::Text => self.out.bytes(&message.body)?,
            }
        }
        self.out.flush()?;
        self.settle(Action::Ack(proto::AckRequest { receipts }), messages.len() as u64, Told::Printed).await
    }

    /// Runs commands for waiting messages, as many at a time as there may be.
    pub(crate) fn start_jobs(&mut self) {
        let Some(program) = &self.program else { return };
        while self.jobs.len() < self.jobs_max
            && let Some(message) = self.waiting.pop_front()
        {
            let (program, queue) = (program.clone(), self.queue.clone());
            self.jobs.spawn(async move { JobEnd { status: program.run(&queue, &message).await, message } });
        }
    }

    /// A command has ended: its exit code says what becomes of the message.
    pub(crate) async fn job_ended(&mut self, end: JobEnd) -> anyhow::Result<()> {
        let JobEnd { message, status } = end;
        self.held.remove(&message.receipt);
        // A command that cannot even be started would fail every message; better to stop and say so.
        let status = status?;
        let receipts = vec![message.receipt];
        let (action, outcome) = if status.success() {
            (Action::Ack(proto::AckRequest { receipts }), "acked")
        } else {
            (Action::Nack(proto::NackRequest { receipts, ..Default::default() }), "nacked")
        };
        let told = Told::Ran { id: message.id, attempt: message.attempt, exit_code: status.code(), outcome };
        self.settle(action, 1, told).await
    }

    /// Asks for more time for all that is here.
    pub(crate) async fn extend(&mut self) -> anyhow::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let receipts = self.held.iter().cloned().collect();
        let action = Action::Extend(proto::ExtendRequest { receipts, visibility_ms: self.visibility_ms });
        self.send(proto::SubscribeRequest { action: Some(action), ..Default::default() }).await
    }

    /// The broker has answered what it was told.
    pub(crate) fn settled(&mut self, reply: &proto::SettleReply) -> anyhow::Result<()> {
        let mut failure = None;
        for result in &reply.results {
            if let Some(error) = &result.error {
                note(report(&result.receipt, &error.message));
                failure = Some(&error.message);
            }
        }
        let Some(Told::Ran { id, attempt, exit_code, outcome }) = self.unconfirmed.remove(&reply.sequence)
        else {
            return Ok(());
        };
        if self.out.format == Format::Json {
            let mut value =
                json!({ "queue": self.queue, "id": id, "attempt": attempt, "exit_code": exit_code });
            match failure {
                None => value["outcome"] = outcome.into(),
                Some(reason) => {
                    value["outcome"] = "failed".into();
                    value["reason"] = reason.as_str().into();
                }
            }
            self.out.json(&value)?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// Ends the subscription and waits for the broker to have noticed.
    pub(crate) async fn close(self) {
        let Self { requests, mut replies, .. } = self;
        drop(requests);
        let end = async { while let Ok(Some(_)) = replies.message().await {} };
        // What was said is confirmed already, so an end that does not come does no harm.
        let _ = tokio::time::timeout(CLOSE, end).await;
    }

    async fn settle(&mut self, action: Action, messages: u64, told: Told) -> anyhow::Result<()> {
        self.sequence += 1;
        self.unconfirmed.insert(self.sequence, told);
        let credit = self.grant(messages);
        let request = proto::SubscribeRequest { credit, sequence: self.sequence, action: Some(action) };
        self.send(request).await
    }

    /// How many of `more` messages may be asked for.
    fn grant(&mut self, more: u64) -> u32 {
        if self.stopping {
            return 0;
        }
        let granted = self.left.map_or(more, |left| left.min(more)).min(u32::MAX.into());
        self.left = self.left.map(|left| left - granted);
        self.asked += granted;
        u32::try_from(granted).unwrap_or(u32::MAX)
    }

    async fn send(&self, request: proto::SubscribeRequest) -> anyhow::Result<()> {
        let what = || format!("consume '{}': the broker ended the subscription", self.queue);
        self.requests.send(request).await.with_context(what)
    }
}
