//! Putting messages in: the single call and the stream.
//!
//! The stream is the fast way in. It reads ahead while earlier pushes still wait for their sync, hands all
//! requests that have arrived for one queue to the broker as one push, and sends the confirms that become
//! durable together as one reply. Order is kept throughout.

use futures_util::{FutureExt, StreamExt};
use nexo_access::{Identity, Permission};
use nexo_broker::{Broker, Intake, IntakeHold, NewMessage, PushError, PushOrder, Pushed, QueueError};
use nexo_types::{QueueName, limits};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::access::{self, PushRight};
use crate::fields;
use crate::in_order::InOrder;
use crate::incoming::Held;
use crate::limits::{MESSAGE_OVERHEAD_BYTES, UNASKED_BYTES_MAX};
use crate::message::new_messages;
use crate::proto;
use crate::status::Failure;

/// Pushes of one stream that may wait for their sync. Each can hold many requests.
const IN_FLIGHT_MAX: usize = 64;
/// Bytes of one stream that may wait for their sync; beyond, the client is made to wait by flow control.
const IN_FLIGHT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What is read ahead into one push. Enough to fill a sync, too little to be felt as a pause.
const COALESCE_BYTES_MAX: usize = 1024 * 1024;

type Results = Result<Vec<Result<Pushed, PushError>>, QueueError>;
type Out = mpsc::Sender<Result<proto::PushStreamResponse, Status>>;

/// One call with a batch of messages.
pub(crate) async fn push(
    broker: &Broker,
    identity: &Identity,
    request: proto::PushRequest,
) -> Result<proto::PushResponse, Status> {
    let queue = fields::queue(&request.vhost, &request.queue)?;
    access::may(identity, Permission::Write, &queue)?;
    let messages = new_messages(request.messages, broker.body_bytes_max())?;
    let outcomes = broker.push(&queue, messages).await.map_err(Failure::from)?;
    if let [Err(error)] = outcomes.as_slice() {
        return Err(Failure::from(error.clone()).into());
    }
    Ok(proto::PushResponse { results: outcomes.into_iter().map(result).collect() })
}

fn result(outcome: Result<Pushed, PushError>) -> proto::PushResult {
    proto::PushResult {
        outcome: Some(match outcome {
            Ok(pushed) => proto::push_result::Outcome::Pushed(proto::Pushed {
                id: pushed.offset.0,
                duplicate: pushed.duplicate,
            }),
            Err(error) => proto::push_result::Outcome::Error(Failure::from(error).into()),
        }),
    }
}

/// One push stream, from its first request to its last confirm.
pub(crate) struct PushStream {
    broker: Broker,
    identity: Identity,
    right: PushRight,
    requests: Streaming<proto::PushStreamRequest>,
    /// The memory of what was read and is not in a group yet.
    held: Held,
    out: Out,
    stop: CancellationToken,
    /// The queue of the last request, which the next need not repeat.
    queue: Option<QueueName>,
    in_flight: InOrder<Done>,
    order: PushOrder,
    in_flight_bytes: usize,
    /// Cleared when the client has sent its last request, or the broker stops.
    reading: bool,
}

/// A push that is durable, or failed.
struct Done {
    confirms: Vec<proto::PushConfirm>,
    bytes: usize,
}

/// Requests for one queue that go to the broker as one push.
struct PushGroup {
    queue: QueueName,
    messages: Vec<NewMessage>,
    parts: Vec<Part>,
    bytes: usize,
    hold: Option<IntakeHold>,
}

/// One request of a group.
struct Part {
    sequence: u64,
    messages: usize,
}

/// A request, taken apart.
enum Parsed {
    Good { sequence: u64, queue: QueueName, messages: Vec<NewMessage>, bytes: usize },
    Bad(proto::PushConfirm),
}

impl PushStream {
    pub(crate) fn new(
        broker: Broker,
        identity: Identity,
        requests: Streaming<proto::PushStreamRequest>,
        held: Held,
        out: Out,
        stop: CancellationToken,
    ) -> Self {
        Self {
            broker,
            identity,
            right: PushRight::default(),
            requests,
            held,
            out,
            stop,
            queue: None,
            in_flight: InOrder::new(),
            order: PushOrder::default(),
            in_flight_bytes: 0,
            reading: true,
        }
    }

    /// Runs until the client is done and everything is confirmed, or the client is gone.
    pub(crate) async fn run(mut self) {
        while self.reading || !self.in_flight.is_empty() {
            let may_read = self.reading
                && self.in_flight.len() < IN_FLIGHT_MAX
                && self.in_flight_bytes < IN_FLIGHT_BYTES_MAX;
            tokio::select! {
                biased;
                () = self.out.closed() => return,
                Some(done) = self.in_flight.next(), if !self.in_flight.is_empty() => {
                    if !self.confirm(done).await {
                        return;
                    }
                }
                request = self.requests.next(), if may_read => match request {
                    Some(Ok(request)) => self.take(request).await,
                    Some(Err(status)) => return self.fail(status).await,
                    None => self.reading = false,
                },
                () = self.stop.cancelled(), if self.reading => self.reading = false,
            }
        }
    }

    /// Takes `request` and all that has arrived after it, as far as one push may hold.
    async fn take(&mut self, request: proto::PushStreamRequest) {
        let mut group: Option<PushGroup> = None;
        let mut request = Some(request);
        while let Some(next) = request.take() {
            match self.parse(next) {
                Parsed::Bad(confirm) => {
                    drop(self.held.take());
                    self.begin(group.take()).await;
                    self.in_flight.begin(async move { Done { confirms: vec![confirm], bytes: 0 } }).await;
                }
                Parsed::Good { sequence, queue, messages, bytes } => {
                    let mut hold = self.held.take();
                    if let Some(mut full) = group.take_if(|group| !group.has_room(&queue, messages.len())) {
                        // Nothing is held beside what the group holds: it may have to wait for more.
                        full.hold(hold.take());
                        self.begin(Some(full)).await;
                    }
                    let group = group.get_or_insert_with(|| PushGroup::new(queue));
                    group.add(sequence, messages, bytes);
                    group.hold(hold);
                }
            }
            let full = group.as_ref().is_none_or(|group| group.bytes >= COALESCE_BYTES_MAX);
            if full || self.in_flight.len() >= IN_FLIGHT_MAX {
                break;
            }
            match self.requests.next().now_or_never() {
                Some(Some(Ok(next))) => request = Some(next),
                Some(Some(Err(status))) => {
                    self.begin(group.take()).await;
                    return self.fail(status).await;
                }
                Some(None) => self.reading = false,
                None => {}
            }
        }
        self.begin(group).await;
    }

    fn parse(&mut self, request: proto::PushStreamRequest) -> Parsed {
        let sequence = request.sequence;
        let body_bytes_max = self.broker.body_bytes_max();
        let parse = || {
            let queue = match (&self.queue, request.queue.as_str()) {
                (Some(last), "") => last.clone(),
                (Some(last), name) if last.as_str() == name && is_in(last, &request.vhost) => last.clone(),
                (_, name) => fields::queue(&request.vhost, name)?,
            };
            self.right.check(&self.identity, &queue)?;
            let bytes = request.messages.iter().map(|message| message.body.len()).sum();
            Ok((queue, new_messages(request.messages, body_bytes_max)?, bytes))
        };
        match parse() {
            Ok((queue, messages, bytes)) => {
                self.queue = Some(queue.clone());
                Parsed::Good { sequence, queue, messages, bytes }
            }
            Err(failure) => Parsed::Bad(refused(sequence, failure)),
        }
    }

    async fn begin(&mut self, group: Option<PushGroup>) {
        let Some(PushGroup { queue, messages, parts, bytes, hold }) = group else { return };
        let bytes = bytes + messages.len() * MESSAGE_OVERHEAD_BYTES;
        // Pushes of this stream that wait for the disk may hold what this one needs.
        let hold = self.in_flight.go_on_until(enough(self.broker.intake(), hold, bytes, &self.out)).await;
        self.in_flight_bytes += bytes;
        let (broker, turn) = (self.broker.clone(), self.order.turn());
        let work = async move {
            let results = broker.push_in_turn(turn, &queue, messages, hold).await;
            Done { confirms: confirms(&parts, results), bytes }
        };
        self.in_flight.begin(work).await;
    }

    /// Sends the confirms of `done` and of whatever else is durable by now. False if the client is gone.
    async fn confirm(&mut self, done: Done) -> bool {
        let mut bytes = done.bytes;
        let mut confirms = done.confirms;
        while let Some(Some(more)) = self.in_flight.next().now_or_never() {
            bytes += more.bytes;
            confirms.extend(more.confirms);
        }
        self.in_flight_bytes -= bytes;
        // Pushes that wait for the disk go on meanwhile: they hold memory, and the client may not read for long.
        let response = Ok(proto::PushStreamResponse { confirms });
        self.in_flight.go_on_until(self.out.send(response)).await.is_ok()
    }

    /// Ends the stream because of the client, after confirming what it had sent before.
    async fn fail(&mut self, status: Status) {
        self.reading = false;
        while let Some(done) = self.in_flight.next().await {
            if !self.confirm(done).await {
                return;
            }
        }
        // The client may be gone, and then nobody needs to know.
        let _ = self.out.send(Err(status)).await;
    }
}

/// Whether a queue is in the virtual host that a request names.
fn is_in(queue: &QueueName, vhost: &str) -> bool {
    queue.vhost_str() == if vhost.is_empty() { "/" } else { vhost }
}

impl PushGroup {
    const fn new(queue: QueueName) -> Self {
        Self { queue, messages: Vec::new(), parts: Vec::new(), bytes: 0, hold: None }
    }

    fn has_room(&self, queue: &QueueName, messages: usize) -> bool {
        self.queue == *queue && self.messages.len() + messages <= limits::PUSH_BATCH_MAX
    }

    fn hold(&mut self, hold: Option<IntakeHold>) {
        match (&mut self.hold, hold) {
            (Some(held), Some(more)) => held.merge(more),
            (held @ None, more) => *held = more,
            (Some(_), None) => {}
        }
    }

    fn add(&mut self, sequence: u64, messages: Vec<NewMessage>, bytes: usize) {
        self.parts.push(Part { sequence, messages: messages.len() });
        self.bytes += bytes;
        if self.messages.is_empty() {
            self.messages = messages;
        } else {
            self.messages.extend(messages);
        }
    }
}

/// Memory for a group that takes `bytes`, of which the bytes of its requests are held. What is held is let go before more
/// is waited for: two streams must not wait for each other. Nobody waits for a client that is gone.
async fn enough(intake: &Intake, hold: Option<IntakeHold>, bytes: usize, out: &Out) -> Option<IntakeHold> {
    if bytes <= UNASKED_BYTES_MAX {
        return hold;
    }
    let held = hold.as_ref().map_or(0, IntakeHold::bytes);
    match (hold, intake.try_hold(bytes.saturating_sub(held))) {
        (Some(mut hold), Some(more)) => {
            hold.merge(more);
            Some(hold)
        }
        (None, Some(hold)) => Some(hold),
        (hold, None) => {
            drop(hold);
            tokio::select! {
                hold = intake.hold(bytes) => Some(hold),
                () = out.closed() => None,
            }
        }
    }
}

/// The results of a push, each with the request it belongs to.
fn confirms(parts: &[Part], results: Results) -> Vec<proto::PushConfirm> {
    match results {
        Ok(results) => {
            let mut results = results.into_iter();
            let confirm = |part: &Part| proto::PushConfirm {
                sequence: part.sequence,
                results: results.by_ref().take(part.messages).map(result).collect(),
                error: None,
            };
            parts.iter().map(confirm).collect()
        }
        Err(error) => {
            let failure = Failure::from(error);
            parts.iter().map(|part| refused(part.sequence, failure.clone())).collect()
        }
    }
}

fn refused(sequence: u64, failure: Failure) -> proto::PushConfirm {
    proto::PushConfirm { sequence, results: Vec::new(), error: Some(failure.into()) }
}

#[cfg(test)]
mod tests {
    use nexo_types::Offset;

    use super::*;

    #[test]
    fn the_results_of_one_push_go_back_to_their_requests() {
        let name = QueueName::new("q").unwrap();
        let parts = [Part { sequence: 7, messages: 1 }, Part { sequence: 9, messages: 2 }];
        let pushed = |offset| Ok(Pushed { offset: Offset(offset), duplicate: false });
        let full = Err(PushError::Full { name: name.clone(), fact: "2 of 2 messages".into() });
        let confirms = confirms(&parts, Ok(vec![pushed(4), pushed(5), full]));
        assert_eq!(
            confirms.iter().map(|c| (c.sequence, c.results.len())).collect::<Vec<_>>(),
            [(7, 1), (9, 2)]
        );
        assert!(matches!(
            &confirms[1].results[1].outcome,
            Some(proto::push_result::Outcome::Error(error)) if error.code == 8
        ));
    }

    #[test]
    fn a_push_that_fails_as_a_whole_fails_each_of_its_requests() {
        let parts = [Part { sequence: 1, messages: 1 }, Part { sequence: 2, messages: 1 }];
        let confirms = confirms(&parts, Err(QueueError::Unavailable { reason: "the disk is full".into() }));
        for confirm in confirms {
            let error = confirm.error.unwrap();
            assert_eq!((error.code, error.message.as_str()), (14, "the disk is full"));
        }
    }

    #[test]
    fn a_group_takes_one_queue_and_no_more_than_a_push_may_hold() {
        let (a, b) = (QueueName::new("a").unwrap(), QueueName::new("b").unwrap());
        let mut group = PushGroup::new(a.clone());
        group.add(1, vec![NewMessage::default(); limits::PUSH_BATCH_MAX - 1], 0);
        assert!(group.has_room(&a, 1));
        assert!(!group.has_room(&a, 2));
        assert!(!group.has_room(&b, 1));
    }
}
