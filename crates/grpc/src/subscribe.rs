//! One subscription: messages down, credit and acknowledgements up.
//!
//! A single task does both directions and never waits for one of them alone: while the client does not read,
//! its acknowledgements are still taken, so the two cannot wait for each other. A request that makes no sense
//! ends the stream with a status; a receipt that does not hold is answered and the stream goes on.

use std::collections::VecDeque;

use futures_util::{FutureExt, StreamExt};
use nexo_access::{Identity, Permission};
use nexo_broker::{Broker, Delivery, Receipt, Subscription};
use nexo_types::{QueueName, limits};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::access;
use crate::fields;
use crate::in_order::InOrder;
use crate::message::{delivered, size_estimate};
use crate::proto::{self, subscribe_request::Action, subscribe_response::Event};
use crate::settle::Settle;
use crate::status::Failure;

/// Settling calls of one stream that may wait for their sync.
const IN_FLIGHT_MAX: usize = 64;
/// Events that may wait for the client to read them; beyond, its requests are not read either.
const WAITING_MAX: usize = 1024;
/// Messages go out in replies of about this size: large enough to be cheap, well below the 4 MiB at which a gRPC
/// client refuses a reply by default.
const BATCH_BYTES_MAX: usize = 256 * 1024;

type Out = mpsc::Sender<Result<proto::SubscribeResponse, Status>>;

/// A running subscription.
pub(crate) struct Subscriber {
    broker: Broker,
    identity: Identity,
    queue: QueueName,
    subscription: Subscription,
    requests: Streaming<proto::SubscribeRequest>,
    out: Out,
    stop: CancellationToken,
    /// What the client is to be sent next.
    waiting: VecDeque<Event>,
    settling: InOrder<Vec<proto::SettleReply>>,
    /// Messages that may still be sent.
    credit: u64,
    /// The client wants no more messages.
    stopped: bool,
}

/// Settling requests that go to the broker as one call.
struct SettleGroup {
    settle: Settle,
    parts: Vec<Part>,
}

/// One request of a group.
struct Part {
    sequence: u64,
    receipts: usize,
}

/// How a stream goes on.
enum Flow {
    On,
    /// The client has said its last word.
    Ended,
}

impl Subscriber {
    /// Waits for the first request and subscribes as it says.
    pub(crate) async fn start(
        broker: Broker,
        identity: Identity,
        mut requests: Streaming<proto::SubscribeRequest>,
        out: Out,
        stop: CancellationToken,
    ) -> Result<Self, Status> {
        let first = requests.message().await?;
        let Some(proto::SubscribeRequest { credit, action: Some(Action::Start(start)), .. }) = first else {
            return Err(Failure::invalid("start must be given in the first request of a subscription").into());
        };
        let queue = fields::queue(&start.vhost, &start.queue)?;
        access::may(&identity, Permission::Read, &queue)?;
        let visibility = fields::visibility(start.visibility_ms)?;
        fields::in_range("credit", credit.into(), 0, limits::CREDIT_MAX.into())?;
        let request = nexo_broker::SubscribeRequest { credit, visibility, keep_leases: start.keep_leases };
        let subscription = broker.subscribe(&queue, request).map_err(Failure::from)?;
        Ok(Self {
            broker,
            identity,
            queue,
            subscription,
            requests,
            out,
            stop,
            waiting: VecDeque::from([Event::Started(proto::SubscribeStarted {})]),
            settling: InOrder::new(),
            credit: credit.into(),
            stopped: false,
        })
    }

    /// Runs until one side ends it. What the client has settled by then is settled.
    pub(crate) async fn run(mut self) {
        match self.serve().await {
            Ok(()) => self.finish().await,
            Err(status) => {
                self.finish().await;
                // The client may be gone, and then nobody needs to know.
                let _ = self.out.send(Err(status)).await;
            }
        }
    }

    async fn serve(&mut self) -> Result<(), Status> {
        let out = self.out.clone();
        let (identity, queue) = (self.identity.clone(), self.queue.clone());
        let mut refused = std::pin::pin!(access::until_refused(&identity, Permission::Read, &queue));
        loop {
            let may_read = self.settling.len() < IN_FLIGHT_MAX && self.waiting.len() < WAITING_MAX;
            tokio::select! {
                permit = out.reserve(), if !self.waiting.is_empty() => {
                    let Ok(permit) = permit else { return Ok(()) };
                    if let Some(event) = self.waiting.pop_front() {
                        permit.send(Ok(proto::SubscribeResponse { event: Some(event) }));
                    }
                }
                deliveries = next_passed_on(&out, &mut self.subscription), if self.waiting.is_empty() && !self.stopped => match deliveries {
                    Some(deliveries) => self.deliver(deliveries),
                    None => return self.ended_by_broker(),
                },
                request = self.requests.next(), if may_read => match request {
                    Some(request) => {
                        if let Flow::Ended = self.take(request?).await? {
                            return Ok(());
                        }
                    }
                    None => return Ok(()),
                },
                Some(replies) = self.settling.next(), if !self.settling.is_empty() => self.reply(replies),
                () = out.closed() => return Ok(()),
                () = self.stop.cancelled() => return Ok(()),
                refused = &mut refused => return Err(refused.into()),
            }
        }
    }

    fn deliver(&mut self, deliveries: Vec<Delivery>) {
        self.credit = self.credit.saturating_sub(deliveries.len() as u64);
        self.waiting.extend(batches(deliveries).into_iter().map(Event::Messages));
    }

    fn reply(&mut self, replies: Vec<proto::SettleReply>) {
        self.waiting.extend(replies.into_iter().map(Event::Settled));
    }

    /// Takes `request` and all that has arrived after it; equal actions in a row become one call.
    async fn take(&mut self, request: proto::SubscribeRequest) -> Result<Flow, Status> {
        let mut group: Option<SettleGroup> = None;
        let mut credit = 0;
        let mut flow = Flow::On;
        let mut request = Some(request);
        while let Some(next) = request.take() {
            credit = fields::in_range(
                "credit",
                credit + u64::from(next.credit),
                0,
                u64::from(limits::CREDIT_MAX).saturating_sub(self.credit),
            )?;
            if next.stop {
                self.stop_deliveries(next.sequence).await;
            }
            if let Some(settle) = settle(next.action)? {
                let part = Part { sequence: next.sequence, receipts: settle.receipts.len() };
                group = match group {
                    Some(mut group) if group.has_room(&settle) => {
                        group.settle.receipts.extend(settle.receipts);
                        group.parts.push(part);
                        Some(group)
                    }
                    other => {
                        self.begin(other).await;
                        Some(SettleGroup { settle, parts: vec![part] })
                    }
                };
            }
            if self.settling.len() >= IN_FLIGHT_MAX {
                break;
            }
            match self.requests.next().now_or_never() {
                Some(Some(next)) => request = Some(next?),
                Some(None) => flow = Flow::Ended,
                None => {}
            }
        }
        self.begin(group).await;
        if credit > 0 {
            self.credit += credit;
            self.subscription.add_credit(u32::try_from(credit).unwrap_or(limits::CREDIT_MAX));
        }
        Ok(flow)
    }

    /// Sends no more messages. Those that were about to be sent go back as if they had never been taken.
    async fn stop_deliveries(&mut self, sequence: u64) {
        self.stopped = true;
        self.return_unsent().await;
        if sequence > 0 {
            self.waiting.push_back(Event::Settled(proto::SettleReply { sequence, results: Vec::new() }));
        }
    }

    async fn return_unsent(&mut self) {
        let mut unsent: Vec<Receipt> = Vec::new();
        self.waiting.retain(|event| match event {
            Event::Messages(batch) => {
                unsent.extend(
                    batch.messages.iter().filter_map(|message| message.receipt.parse::<Receipt>().ok()),
                );
                false
            }
            Event::Started(_) | Event::Settled(_) => true,
        });
        if !unsent.is_empty() {
            // If that fails, they come back when the subscription ends or their leases do.
            let _ = self.broker.return_unseen(&unsent).await;
        }
    }

    async fn begin(&mut self, group: Option<SettleGroup>) {
        let Some(SettleGroup { settle, parts }) = group else { return };
        let (broker, identity) = (self.broker.clone(), self.identity.clone());
        let work = async move { replies(&parts, settle.run(&broker, &identity).await) };
        self.settling.begin(work).await;
    }

    /// Lets what was begun come to its end and tells the client, if it still listens.
    async fn finish(&mut self) {
        while let Some(replies) = self.settling.next().await {
            self.reply(replies);
        }
        // They never reached the client, so the delivery does not count.
        self.return_unsent().await;
        for event in std::mem::take(&mut self.waiting) {
            let Event::Settled(_) = event else { continue };
            if self.out.send(Ok(proto::SubscribeResponse { event: Some(event) })).await.is_err() {
                return;
            }
        }
    }

    /// No more messages: the broker stops, which is a normal end, or the queue was deleted, which is not.
    fn ended_by_broker(&self) -> Result<(), Status> {
        match self.broker.queue_stats(&self.queue) {
            Err(error @ nexo_broker::QueueError::NotFound { .. }) => Err(Failure::from(error).into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

impl SettleGroup {
    fn has_room(&self, settle: &Settle) -> bool {
        self.settle.verb == settle.verb
            && self.settle.receipts.len() + settle.receipts.len() <= limits::SETTLE_BATCH_MAX
    }
}

fn settle(action: Option<Action>) -> Result<Option<Settle>, Failure> {
    match action {
        None => Ok(None),
        Some(Action::Start(_)) => {
            Err(Failure::invalid("start must be given only once, in the first request of a subscription"))
        }
        Some(Action::Ack(request)) => request.try_into().map(Some),
        Some(Action::Nack(request)) => request.try_into().map(Some),
        Some(Action::Extend(request)) => request.try_into().map(Some),
        Some(Action::Received(request)) => request.try_into().map(Some),
    }
}

/// The results of a call, each with the request it belongs to; a request without a sequence hears only of
/// failures.
fn replies(parts: &[Part], results: Vec<proto::SettleResult>) -> Vec<proto::SettleReply> {
    let mut results = results.into_iter();
    let mut replies = Vec::new();
    for part in parts {
        let own = results.by_ref().take(part.receipts);
        let results: Vec<_> = match part.sequence {
            0 => own.filter(|result| result.error.is_some()).collect(),
            _ => own.collect(),
        };
        if !results.is_empty() {
            replies.push(proto::SettleReply { sequence: part.sequence, results });
        }
    }
    replies
}

/// The next messages, once the transport has taken all before them: whoever asks says that they were passed on, and the
/// bytes that a subscription may hold are counted by that.
async fn next_passed_on(out: &Out, subscription: &mut Subscription) -> Option<Vec<Delivery>> {
    // If nobody listens any more, the stream ends by itself.
    let _ = out.reserve_many(out.max_capacity()).await;
    subscription.next().await
}

/// Deliveries in replies of a bounded size; a message larger than that goes alone.
fn batches(deliveries: Vec<Delivery>) -> Vec<proto::MessageBatch> {
    let mut batches = Vec::new();
    let mut messages = Vec::new();
    let mut bytes = 0;
    for delivery in deliveries {
        let size = size_estimate(&delivery);
        if !messages.is_empty() && bytes + size > BATCH_BYTES_MAX {
            batches.push(proto::MessageBatch { messages: std::mem::take(&mut messages) });
            bytes = 0;
        }
        bytes += size;
        messages.push(delivered(delivery));
    }
    if !messages.is_empty() {
        batches.push(proto::MessageBatch { messages });
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(receipt: &str, failed: bool) -> proto::SettleResult {
        proto::SettleResult {
            receipt: receipt.into(),
            error: failed.then(proto::Error::default),
            lease_until_ms: None,
        }
    }

    #[test]
    fn a_request_without_a_sequence_hears_only_of_failures() {
        let parts = [
            Part { sequence: 0, receipts: 2 },
            Part { sequence: 5, receipts: 1 },
            Part { sequence: 0, receipts: 1 },
        ];
        let results = vec![result("a", false), result("b", true), result("c", false), result("d", false)];
        let replies = replies(&parts, results);
        let seen: Vec<_> = replies.iter().map(|r| (r.sequence, r.results[0].receipt.as_str())).collect();
        assert_eq!(seen, [(0, "b"), (5, "c")]);
    }

    #[test]
    fn a_second_start_is_refused() {
        let refused = settle(Some(Action::Start(proto::SubscribeStart::default()))).unwrap_err();
        assert!(refused.message.starts_with("start must be given only once"), "{}", refused.message);
    }

    #[test]
    fn only_equal_actions_share_a_call() {
        let ack = |receipts: usize| {
            Settle::try_from(proto::AckRequest { receipts: vec!["1-1-1".into(); receipts] })
        };
        let nack =
            Settle::try_from(proto::NackRequest { receipts: vec!["1-1-1".into()], ..Default::default() });
        let group = SettleGroup { settle: ack(9_999).unwrap(), parts: vec![] };
        assert!(group.has_room(&ack(1).unwrap()));
        assert!(!group.has_room(&ack(2).unwrap()));
        assert!(!group.has_room(&nack.unwrap()));
    }
}
