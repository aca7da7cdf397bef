//! Receiving: what is there, or the first that comes. Nobody asks again and again: a receive that waits is a consumer that
//! the broker knows, and one whose client goes away takes nothing with it.

use std::time::Duration;

use nexo_broker::{
    Delivery, GroupTake, InFlightLimit, IntakeHold, LimitReached, PopError, PopRequest, PopTerms, Receipt,
};
use nexo_types::{Millis, QueueName};

use super::access::Need;
use super::{Context, Queue, Service};
use crate::attributes::NO_VISIBILITY;
use crate::fault::{Fault, FaultCode};
use crate::limits::{ANSWER_BYTES_MAX, ANSWER_UNCOUNTED_BYTES, BATCH_MAX};
use crate::message::{self, Wanted};
use crate::request::ReceiveMessage;
use crate::response::{Message, Messages, Response};

/// How long messages are held that go back at once.
const LOOK_MAX: Millis = Millis::from_secs(30);
/// How long a receive waits for memory for its answer. Clients try again after that.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(20);
/// How often a message is in memory while its answer is written.
const ANSWER_COPIES: usize = 2;

impl Service {
    pub(super) async fn receive_message(
        &self,
        context: &Context,
        request: ReceiveMessage<'_>,
    ) -> Result<Response, Fault> {
        let queue = self.queue(context, request.queue_url.as_ref(), Need::Read)?;
        let limits = self.limits();
        let max = in_range("MaxNumberOfMessages", request.max_number_of_messages, 1, BATCH_MAX as u64)?;
        let wait_s = wait(request.wait_time_seconds, limits.wait_s)?;
        let visibility_s = in_range("VisibilityTimeout", request.visibility_timeout, 0, limits.visibility_s)?;
        let system = request.attribute_names.iter().flatten();
        let system = system.chain(request.message_system_attribute_names.iter().flatten());
        let attributes = request.message_attribute_names.iter().flatten();
        let wanted = Wanted::new(system.map(|name| &**name), attributes.map(|name| &**name))?;
        let pop = PopRequest {
            max: max.map_or(1, |max| max as usize),
            wait: Millis::from_secs(wait_s.unwrap_or(queue.settings.wait_s)),
            visibility: visibility_s.map(Millis::from_secs),
            bytes_max: Some(ANSWER_BYTES_MAX),
        };
        let Some(attempt) = request.receive_request_attempt_id else {
            return Ok(Response::Messages(self.receive(context, &queue, pop, &wanted).await?));
        };
        if !queue.is_fifo() {
            return Err(Fault::wrong_queue_type("ReceiveRequestAttemptId", &attempt));
        }
        message::check_id("ReceiveRequestAttemptId", Some(&attempt), limits)?;
        let key = (queue.handle.id(), attempt.to_string());
        let visibility = pop.visibility.unwrap_or_else(|| queue.handle.visibility());
        let messages = self.repeated.again(&self.broker, &key, visibility).await;
        if !messages.is_empty() {
            return Ok(Response::Messages(Messages { messages, hold: None }));
        }
        let received = self.receive(context, &queue, pop, &wanted).await?;
        self.repeated.remember(key, &received.messages);
        Ok(Response::Messages(received))
    }

    async fn receive(
        &self,
        context: &Context,
        queue: &Queue,
        pop: PopRequest,
        wanted: &Wanted,
    ) -> Result<Messages, Fault> {
        let (deliveries, hold) = self.take_with_room(context, queue, pop).await?;
        let source = queue.source();
        let place = (&*context.region, &*self.options.account);
        let find = |name: &QueueName| self.broker.queue(name).map(|queue| (queue.id(), queue.created_at()));
        let seen = |delivery: &Delivery| message::received(delivery, source, wanted, place, find);
        let mut messages: Vec<Message> = deliveries.iter().map(seen).collect();
        message::fill_in_digests(&mut messages);
        Ok(Messages { messages, hold })
    }

    /// Takes messages, and memory for the answer. Without memory the messages go back, and are taken again when there is
    /// some: whoever waits for it must not keep what it waits for.
    async fn take_with_room(
        &self,
        context: &Context,
        queue: &Queue,
        pop: PopRequest,
    ) -> Result<(Vec<Delivery>, Option<IntakeHold>), Fault> {
        let refuses = pop.wait == Millis::ZERO && !queue.is_fifo();
        // AWS refuses a receive that does not wait if too many messages are in flight; one that waits, or is for a FIFO queue,
        // gets what it may have.
        let when_reached = if refuses { LimitReached::Refuse } else { LimitReached::Wait };
        let deliveries = self.take(context, queue, pop, when_reached).await?;
        let bytes = answer_bytes(&deliveries);
        if bytes <= ANSWER_UNCOUNTED_BYTES {
            return Ok((deliveries, None));
        }
        if let Some(hold) = self.answers.try_hold(bytes) {
            return Ok((deliveries, Some(hold)));
        }
        let receipts: Vec<Receipt> = deliveries.iter().map(Delivery::receipt).collect();
        drop(deliveries);
        // Those that are back already, after a look, are left as they are.
        self.broker.return_unseen(&receipts).await;
        let hold = tokio::time::timeout(ROOM_WAIT_MAX, self.answers.hold(bytes)).await.map_err(|_| {
            let message = "Too many large answers are on their way out. Please try again.";
            Fault::new(FaultCode::ServiceUnavailable, message)
        })?;
        let again = PopRequest { wait: Millis::ZERO, bytes_max: Some(hold.bytes() / ANSWER_COPIES), ..pop };
        Ok((self.take(context, queue, again, LimitReached::Wait).await?, Some(hold)))
    }

    async fn take(
        &self,
        context: &Context,
        queue: &Queue,
        pop: PopRequest,
        when_reached: LimitReached,
    ) -> Result<Vec<Delivery>, Fault> {
        match pop.visibility.unwrap_or_else(|| queue.handle.visibility()) {
            Millis::ZERO | NO_VISIBILITY => self.look(context, queue, pop, when_reached).await,
            _ => self.pop(context, queue, pop, when_reached).await,
        }
    }

    async fn pop(
        &self,
        context: &Context,
        queue: &Queue,
        pop: PopRequest,
        when_reached: LimitReached,
    ) -> Result<Vec<Delivery>, Fault> {
        let limits = self.limits();
        let max = if queue.is_fifo() { limits.in_flight_fifo } else { limits.in_flight_standard };
        let terms = PopTerms {
            // With the first message of a group come those behind it.
            groups: if queue.is_fifo() { GroupTake::Run } else { GroupTake::Head },
            in_flight: (max != usize::MAX).then_some(InFlightLimit { max, when_reached }),
        };
        let popped = tokio::select! {
            biased;
            // What he might take when he began to wait he may not when it comes.
            refused = context.until_refused(Need::Read, queue.name()), if pop.wait > Millis::ZERO => {
                return Err(refused);
            }
            popped = self.broker.pop_on(queue.name(), pop, terms) => popped,
            // Whoever waits when the broker stops is told that nothing came, and asks again, here or elsewhere.
            () = self.stop.cancelled() => Ok(Vec::new()),
        };
        popped.map_err(|error| match error {
            PopError::Queue(error) => error.into(),
            PopError::OutOfRange { .. } => Fault::invalid(error.to_string()),
            PopError::TooManyInFlight { max, .. } => {
                let message =
                    format!("Too many messages are in flight: the queue has {max}, and no more are allowed.");
                Fault::new(FaultCode::OverLimit, message)
            }
        })
    }

    /// Receives with a visibility of no time at all: the messages are handed out and are back at once. A lease that is as
    /// short could end before the messages are on their way.
    async fn look(
        &self,
        context: &Context,
        queue: &Queue,
        pop: PopRequest,
        when_reached: LimitReached,
    ) -> Result<Vec<Delivery>, Fault> {
        let pop = PopRequest { visibility: Some(LOOK_MAX), ..pop };
        let deliveries = self.pop(context, queue, pop, when_reached).await?;
        let receipts: Vec<Receipt> = deliveries.iter().map(Delivery::receipt).collect();
        // What does not go back now does so when its lease ends.
        self.broker.nack(&receipts, Some(Millis::ZERO)).await;
        Ok(deliveries)
    }
}

/// The memory that an answer takes, near enough: the messages, and what is written of them.
fn answer_bytes(deliveries: &[Delivery]) -> usize {
    let bytes = |one: &Delivery| one.message.body.len() + one.message.properties.bytes.len();
    deliveries.iter().map(bytes).sum::<usize>() * ANSWER_COPIES
}

/// How long a request wants to wait, if it says.
fn wait(asked: Option<i64>, max: u64) -> Result<Option<u64>, Fault> {
    let Some(asked) = asked else { return Ok(None) };
    let seconds = u64::try_from(asked).ok().filter(|seconds| *seconds <= max);
    let wrong = || {
        let reason = format!("Must be >= 0 and <= {max}, if provided.");
        Fault::value("WaitTimeSeconds", &asked.to_string(), &reason)
    };
    seconds.map(Some).ok_or_else(wrong)
}

/// A number of a request, if it is there.
fn in_range(parameter: &str, value: Option<i64>, min: u64, max: u64) -> Result<Option<u64>, Fault> {
    let Some(value) = value else { return Ok(None) };
    match u64::try_from(value) {
        Ok(number) if (min..=max).contains(&number) => Ok(Some(number)),
        Ok(_) | Err(_) => {
            let reason = format!("Must be between {min} and {max}, if provided.");
            Err(Fault::value(parameter, &value.to_string(), &reason))
        }
    }
}
