//! The state of `nexo consume`: what is here, what runs, and what the broker was told about it. It outlives a connection.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nexo_grpc::client::Client;
use nexo_grpc::proto::{self, subscribe_request::Action};
use nexo_types::limits;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::execute::{Ended, Program};
use super::settle::report;
use crate::connect::Asked;
use crate::output::{Format, Lines, Printer, note, render};
use crate::plain::plain;
use crate::reader::Reader;

/// Requests on their way to the broker.
const REQUESTS: usize = 64;
/// How long to wait for the broker to end the stream after the client did.
const CLOSE: Duration = Duration::from_secs(5);
/// How long messages are printed before those that were read are acknowledged.
const PRINT_SLICE: Duration = Duration::from_millis(50);

/// What is consumed, and how.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) queue: String,
    /// The lease that is asked for, if not the queue's.
    pub(crate) visibility_ms: Option<u64>,
    /// The lease that messages have.
    pub(crate) lease_ms: u64,
    /// Deliveries of a message before it is a dead letter, if there is such a limit; as it was at the start.
    pub(crate) attempts_max: Option<u32>,
    /// Whether dead letters are dropped.
    pub(crate) drops_dead: bool,
    /// Whether messages must be marked as received.
    pub(crate) two_phase: bool,
    /// Messages that may be here at the same time.
    pub(crate) credit: u64,
    pub(crate) jobs_max: usize,
}

impl Terms {
    /// What becomes of a message whose command failed.
    fn fate_after(&self, attempt: u32) -> &'static str {
        match self.attempts_max.is_some_and(|max| attempt >= max) {
            false => "the message is returned to the queue",
            true if self.drops_dead => "that was its last attempt, and the message is dropped",
            true => "that was its last attempt, and the message becomes a dead letter",
        }
    }
}

/// A subscription on one connection.
pub(crate) struct Link {
    requests: mpsc::Sender<proto::SubscribeRequest>,
    pub(crate) replies: Streaming<proto::SubscribeResponse>,
}

impl Link {
    pub(crate) async fn open(client: &Client, start: proto::SubscribeStart) -> anyhow::Result<Self> {
        let what = format!("consume '{}'", start.queue);
        let (requests, stream) = mpsc::channel(REQUESTS);
        let action = Some(Action::Start(proto::SubscribeStart { vhost: client.vhost(), ..start }));
        requests.send(proto::SubscribeRequest { action, ..Default::default() }).await?;
        let replies =
            client.messages().subscribe(ReceiverStream::new(stream)).await.asked(what)?.into_inner();
        Ok(Self { requests, replies })
    }

    async fn send(&self, request: proto::SubscribeRequest) {
        // If it cannot be sent the stream has ended, and the reason is in the replies, where it is looked for.
        let _ = self.requests.send(request).await;
    }

    /// Ends the subscription and waits for the broker to have noticed.
    pub(crate) async fn close(self) {
        let Self { requests, mut replies } = self;
        drop(requests);
        let end = async { while let Ok(Some(_)) = replies.message().await {} };
        // What was said is confirmed already, so an end that does not come does no harm.
        let _ = tokio::time::timeout(CLOSE, end).await;
    }
}

/// One consumer of one queue.
pub(crate) struct Consumer {
    pub(crate) terms: Terms,
    program: Option<Program>,
    out: Printer,
    /// Where messages are printed; away while some are.
    reader: Option<Reader>,
    /// Messages that may still be asked for; `None` for any number.
    left: Option<u64>,
    /// Messages that were asked for and have not come.
    asked: u64,
    /// Messages that are here and have not begun.
    waiting: VecDeque<proto::Message>,
    /// Receipts of messages that are here.
    held: BTreeSet<String>,
    /// Commands that run, or the printing of some messages.
    pub(crate) work: JoinSet<WorkEnd>,
    sequence: u64,
    /// What the broker was told and has not confirmed.
    unconfirmed: BTreeMap<u64, Told>,
    pub(crate) stopping: bool,
    /// Says to a thread that prints that it should come to an end.
    stop_printing: Arc<AtomicBool>,
    /// Why it had to stop, if nobody asked it to.
    failure: Option<anyhow::Error>,
}

/// Something that was done with messages.
pub(crate) enum WorkEnd {
    Ran {
        message: Box<proto::Message>,
        ended: anyhow::Result<Ended>,
    },
    Printed {
        reader: Reader,
        read: Vec<proto::Message>,
        unread: Vec<proto::Message>,
        failed: Option<io::Error>,
    },
}

/// What the broker was told, to be printed once it is certain.
struct Told {
    /// What to say again on another connection; `None` for "no more messages".
    action: Option<Action>,
    /// It was said on an earlier connection, so a receipt that does not hold may be our own doing.
    again: bool,
    ran: Option<Ran>,
}

struct Ran {
    id: u64,
    attempt: u32,
    ended: Ended,
}

impl Consumer {
    pub(crate) fn new(terms: Terms, program: Option<Program>, format: Format, count: Option<u64>) -> Self {
        Self {
            terms,
            program,
            out: Printer::new(format),
            reader: None,
            left: count,
            asked: 0,
            waiting: VecDeque::new(),
            held: BTreeSet::new(),
            work: JoinSet::new(),
            sequence: 0,
            unconfirmed: BTreeMap::new(),
            stopping: false,
            stop_printing: Arc::new(AtomicBool::new(false)),
            failure: None,
        }
    }

    /// The first request of a subscription.
    pub(crate) fn start(&self) -> proto::SubscribeStart {
        proto::SubscribeStart {
            queue: self.terms.queue.clone(),
            visibility_ms: self.terms.visibility_ms,
            keep_leases: false,
            ..Default::default()
        }
    }

    /// Says again what an earlier connection did not confirm, and asks for messages.
    pub(crate) async fn begin(&mut self, link: &Link) {
        for (sequence, told) in &mut self.unconfirmed {
            told.again = true;
            let stop = told.action.is_none();
            let request =
                proto::SubscribeRequest { sequence: *sequence, action: told.action.clone(), stop, credit: 0 };
            link.send(request).await;
        }
        let credit = self.grant(self.terms.credit.saturating_sub(self.held.len() as u64));
        link.send(proto::SubscribeRequest { credit, ..Default::default() }).await;
    }

    /// The connection is gone. What has not begun comes back to the queue by itself; what runs goes on.
    pub(crate) fn lost(&mut self) {
        let back = self.asked + self.waiting.len() as u64;
        self.left = self.left.map(|left| left + back);
        self.asked = 0;
        for message in self.waiting.drain(..) {
            self.held.remove(&message.receipt);
        }
    }

    /// Whether all that was wanted is done and confirmed.
    pub(crate) fn is_done(&self) -> bool {
        let nothing_to_come = self.stopping || (self.left == Some(0) && self.asked == 0);
        nothing_to_come && self.waiting.is_empty() && self.work.is_empty() && self.unconfirmed.is_empty()
    }

    /// How it went, once it is done.
    pub(crate) fn outcome(self) -> anyhow::Result<ExitCode> {
        match self.failure {
            None => Ok(ExitCode::SUCCESS),
            Some(failure) => Err(failure),
        }
    }

    /// Begins nothing more, and gives back what has not begun.
    pub(crate) async fn stop(&mut self, link: &Link) {
        if self.stopping {
            return;
        }
        self.stopping = true;
        self.stop_printing.store(true, Ordering::Relaxed);
        self.tell(link, None, 0, None).await;
        let unseen = std::mem::take(&mut self.waiting);
        self.give_back(link, unseen).await;
    }

    /// Whether a command is at work on a message.
    pub(crate) fn runs_commands(&self) -> bool {
        self.program.is_some() && !self.work.is_empty()
    }

    /// Nobody has looked at these: the delivery does not count.
    async fn give_back(&mut self, link: &Link, messages: impl IntoIterator<Item = proto::Message>) {
        let receipts: Vec<String> = messages.into_iter().map(|message| message.receipt).collect();
        for receipt in &receipts {
            self.held.remove(receipt);
        }
        for part in receipts.chunks(limits::SETTLE_BATCH_MAX) {
            let nack = proto::NackRequest { receipts: part.to_vec(), unseen: true, ..Default::default() };
            self.tell(link, Some(Action::Nack(nack)), 0, None).await;
        }
    }

    /// Messages have come.
    pub(crate) async fn take(&mut self, link: &Link, messages: Vec<proto::Message>) {
        self.asked = self.asked.saturating_sub(messages.len() as u64);
        if self.stopping {
            return self.give_back(link, messages).await;
        }
        let receipts: Vec<String> = messages.iter().map(|message| message.receipt.clone()).collect();
        if self.terms.two_phase {
            let action = Action::Received(proto::ReceivedRequest { receipts: receipts.clone() });
            link.send(proto::SubscribeRequest { action: Some(action), ..Default::default() }).await;
        }
        self.held.extend(receipts);
        self.waiting.extend(messages);
    }

    /// Begins with what waits: runs commands, as many at a time as there may be, or prints.
    pub(crate) fn start_work(&mut self) {
        let Some(program) = &self.program else { return self.start_printing() };
        while self.work.len() < self.terms.jobs_max
            && let Some(message) = self.waiting.pop_front()
        {
            let (program, queue) = (program.clone(), self.terms.queue.clone());
            self.work.spawn(async move {
                WorkEnd::Ran { ended: program.run(&queue, &message).await, message: Box::new(message) }
            });
        }
    }

    /// On a thread of its own: the reader may be slow, and meanwhile leases must be extended and signals heard.
    fn start_printing(&mut self) {
        if self.waiting.is_empty() || !self.work.is_empty() {
            return;
        }
        let reader = self.reader.take().unwrap_or_else(Reader::new);
        let messages: Vec<proto::Message> = self.waiting.drain(..).collect();
        let (queue, format) = (self.terms.queue.clone(), self.out.format);
        let stop = Arc::clone(&self.stop_printing);
        self.work.spawn_blocking(move || print(reader, messages, &queue, format, &stop));
    }

    /// A command has ended, or some messages are printed.
    pub(crate) async fn work_ended(&mut self, link: &Link, end: WorkEnd) -> anyhow::Result<()> {
        match end {
            WorkEnd::Ran { message, ended: Ok(ended) } => self.ran(link, *message, ended).await,
            WorkEnd::Ran { message, ended: Err(error) } => {
                // A command that cannot even be started would fail every message; better to stop and say so.
                self.failure.get_or_insert(error);
                self.give_back(link, [*message]).await;
                self.stop(link).await;
            }
            WorkEnd::Printed { reader, read, unread, failed } => {
                self.reader = Some(reader);
                if !read.is_empty() {
                    let receipts: Vec<String> = read.into_iter().map(|message| message.receipt).collect();
                    for receipt in &receipts {
                        self.held.remove(receipt);
                    }
                    let count = receipts.len() as u64;
                    let action = Action::Ack(proto::AckRequest { receipts });
                    // Whoever has gone reads no more.
                    let more = if failed.is_some() { 0 } else { count };
                    self.tell(link, Some(action), more, None).await;
                }
                for message in unread.into_iter().rev() {
                    self.waiting.push_front(message);
                }
                if let Some(error) = failed {
                    if error.kind() != io::ErrorKind::BrokenPipe {
                        self.failure.get_or_insert(anyhow::Error::new(error).context("cannot print"));
                    }
                    self.stop(link).await;
                }
                if self.stopping {
                    let unseen = std::mem::take(&mut self.waiting);
                    self.give_back(link, unseen).await;
                }
            }
        }
        Ok(())
    }

    /// The exit code of a command says what becomes of its message.
    async fn ran(&mut self, link: &Link, message: proto::Message, ended: Ended) {
        self.held.remove(&message.receipt);
        if !ended.success && self.out.format == Format::Text {
            let program = self.program.as_ref().map(Program::to_string).unwrap_or_default();
            note(format_args!(
                "nexo: message {} of '{}', attempt {}: {program} {}; {}",
                message.id,
                self.terms.queue,
                message.attempt,
                ended.reason,
                self.terms.fate_after(message.attempt)
            ));
        }
        let receipts = vec![message.receipt];
        let action = if ended.success {
            Action::Ack(proto::AckRequest { receipts })
        } else {
            Action::Nack(proto::NackRequest { receipts, ..Default::default() })
        };
        let ran = Ran { id: message.id, attempt: message.attempt, ended };
        self.tell(link, Some(action), 1, Some(ran)).await;
    }

    /// Asks for more time for all that is here.
    pub(crate) async fn extend(&self, link: &Link) {
        let receipts: Vec<String> = self.held.iter().cloned().collect();
        for part in receipts.chunks(limits::SETTLE_BATCH_MAX) {
            let extend = proto::ExtendRequest { receipts: part.to_vec(), visibility_ms: self.terms.lease_ms };
            link.send(proto::SubscribeRequest { action: Some(Action::Extend(extend)), ..Default::default() })
                .await;
        }
    }

    /// The broker has answered what it was told.
    pub(crate) fn settled(&mut self, reply: &proto::SettleReply) -> anyhow::Result<()> {
        let told = self.unconfirmed.remove(&reply.sequence);
        let again = told.as_ref().is_some_and(|told| told.again);
        let mut failure = None;
        for result in &reply.results {
            if let Some(error) = &result.error {
                // What was said twice may have been heard the first time.
                if !again {
                    note(report(&result.receipt, plain(&error.message)));
                }
                failure = Some(plain(&error.message));
            }
        }
        let Some(Ran { id, attempt, ended }) = told.and_then(|told| told.ran) else { return Ok(()) };
        if self.out.format == Format::Json {
            let mut value = json!({
                "queue": self.terms.queue,
                "id": id,
                "attempt": attempt,
                "exit_code": ended.exit_code,
            });
            if let Some(signal) = ended.signal {
                value["signal"] = signal.into();
            }
            if !ended.success {
                value["reason"] = ended.reason.into();
            }
            match failure {
                None => value["outcome"] = if ended.success { "acked" } else { "nacked" }.into(),
                Some(reason) => {
                    value["outcome"] = if again { "unconfirmed" } else { "failed" }.into();
                    value["reason"] = reason.into();
                }
            }
            self.out.json(&value)?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// Waits for what runs, although nobody can be told of it.
    pub(crate) async fn finish_work(&mut self) {
        self.stop_printing.store(true, Ordering::Relaxed);
        while self.work.join_next().await.is_some() {}
    }

    /// Ends what runs.
    pub(crate) async fn give_up(&mut self) {
        match self.program {
            Some(_) => self.work.shutdown().await,
            // A thread that waits for its reader cannot be ended; it ends with the process.
            None => self.work.detach_all(),
        }
    }

    async fn tell(&mut self, link: &Link, action: Option<Action>, more: u64, ran: Option<Ran>) {
        self.sequence += 1;
        let stop = action.is_none();
        self.unconfirmed.insert(self.sequence, Told { action: action.clone(), again: false, ran });
        let credit = self.grant(more);
        link.send(proto::SubscribeRequest { credit, sequence: self.sequence, action, stop }).await;
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
}

/// Prints messages one by one, until the reader is gone, an end is asked for, or it is time to acknowledge some.
fn print(
    mut reader: Reader,
    messages: Vec<proto::Message>,
    queue: &str,
    format: Format,
    stop: &AtomicBool,
) -> WorkEnd {
    let began = Instant::now();
    let mut messages = messages.into_iter();
    let mut read = Vec::new();
    let mut failed = None;
    let mut unread = Vec::new();
    for message in messages.by_ref() {
        let handed = render(queue, &message, format, Lines::Ended).and_then(|bytes| reader.hand_over(&bytes));
        match handed {
            Ok(()) => read.push(message),
            Err(error) => {
                failed = Some(error);
                unread.push(message);
                break;
            }
        }
        if stop.load(Ordering::Relaxed) || began.elapsed() >= PRINT_SLICE {
            break;
        }
    }
    unread.extend(messages);
    WorkEnd::Printed { reader, read, unread, failed }
}
