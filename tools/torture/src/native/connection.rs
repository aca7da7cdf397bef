//! One connection to the native API, and a session of the ledger that lives as long.

use std::time::Duration;

use nexo_grpc::client::{Client, MessageServiceClient, Transport};
use nexo_grpc::proto::push_result::Outcome;
use nexo_grpc::proto::{self, Header, NewMessage, header};
use tokio::time::timeout;
use tonic::Code;

use crate::clock;
use crate::ledger::{Attempt, Cause, Delivery, Reception, SessionId, Violation, What};
use crate::link::Link;
use crate::queues::Place;
use crate::stamp::{Durability, HEADER, Stamp};
use crate::way::Way;
use crate::workload::{Message, check_body};
use crate::world::World;

/// How long a call may take, a frozen broker and a full disk included.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How long leases last: longer than most freezes, short enough to wait for what was held when the broker died.
pub(super) const VISIBILITY_MS: u64 = 2_500;

/// A connection. Its session ends when it is dropped, and only then is it cut.
pub(crate) struct Connection<'a> {
    pub(super) world: &'a World,
    pub(super) session: SessionId,
    client: Client,
    _link: Link,
}

impl<'a> Connection<'a> {
    /// `None` if the broker cannot be reached now.
    pub(crate) async fn open(world: &'a World) -> Option<Self> {
        // The session must be of the life that the connection is of: if the life has ended meanwhile, nobody can say.
        let session = world.ledger().open_session(Way::Native);
        let connected = async {
            let link = Link::to(world.doors.of(session).grpc)
                .await
                .ok()
                .filter(|_| world.ledger().is_current(session))?;
            let client = timeout(PATIENCE, Client::connect(&link.url)).await.ok()?.ok()?;
            Some((client, link))
        };
        match connected.await {
            Some((client, link)) => Some(Self { world, session, client, _link: link }),
            None => {
                world.ledger().close_session(session);
                None
            }
        }
    }

    pub(crate) fn messages(&self) -> MessageServiceClient<Transport> {
        self.client.messages()
    }

    /// Pushes messages of one queue in one call; `None` unless all were taken.
    pub(crate) async fn push_all(&self, messages: &[Message]) -> Option<()> {
        let queue = messages.first()?.queue().to_owned();
        let new = messages.iter().map(|message| new_message(message, String::new())).collect();
        let request = proto::PushRequest { queue, messages: new, ..Default::default() };
        let mut service = self.messages();
        let reply = timeout(PATIENCE, service.push(request)).await.ok()?.ok()?.into_inner();
        let pushed = |result: &proto::PushResult| matches!(result.outcome, Some(Outcome::Pushed(_)));
        if reply.results.len() != messages.len() || !reply.results.iter().all(pushed) {
            return None;
        }
        let mut ledger = self.world.ledger();
        for message in messages {
            ledger.confirmed(&message.stamp, self.session, message.sent_at, clock::now());
        }
        Some(())
    }

    /// Takes what there is, acknowledges it and says what it was, in order; `None` if the connection does not work.
    pub(crate) async fn pop_and_ack(&self, place: Place, max: u32, wait: Duration) -> Option<Vec<Stamp>> {
        let wait_ms = u64::try_from(wait.as_millis()).ok()?;
        let visibility_ms = Some(VISIBILITY_MS);
        let request = proto::PopRequest {
            queue: place.name().to_owned(),
            max,
            wait_ms,
            visibility_ms,
            ..Default::default()
        };
        let mut service = self.messages();
        let popped = timeout(PATIENCE, service.pop(request)).await.ok()?.ok()?.into_inner().messages;
        let mut taken = Vec::new();
        for message in &popped {
            let delivery = self.judge(message, place)?;
            let Reception::Work(copy) = self.world.ledger().delivered(&delivery) else { return None };
            check_body(self.world, self.session, &delivery.stamp, place, &message.body);
            self.world.ledger().ack_sent(copy, self.session, clock::now());
            taken.push((copy, delivery.stamp));
        }
        if taken.is_empty() {
            return Some(Vec::new());
        }
        let receipts = popped.into_iter().map(|message| message.receipt).collect();
        let reply = timeout(PATIENCE, service.ack(proto::AckRequest { receipts })).await.ok()?.ok()?;
        let mut ledger = self.world.ledger();
        for ((copy, _), result) in taken.iter().zip(&reply.get_ref().results) {
            let now = clock::now();
            match result.error.as_ref().map(|error| Code::from(error.code)) {
                None => ledger.acked(*copy, now),
                Some(code) if is_stale(code) => ledger.ack_failed(*copy, self.session, now),
                Some(_) => ledger.ack_unknown(*copy, now),
            }
        }
        Some(taken.into_iter().map(|(_, stamp)| stamp).collect())
    }

    /// What is known of a delivery; `None` if it carries no stamp of ours, which is told.
    pub(super) fn judge(&self, message: &proto::Message, place: Place) -> Option<Delivery> {
        let text = message.headers.iter().find(|header| header.name == HEADER).and_then(text);
        let Some(stamp) = text.and_then(Stamp::parse) else {
            let fact = format!("message {} without a stamp came from '{}'", message.id, place.name());
            self.world.ledger().report(Violation::new(What::Invented, fact));
            return None;
        };
        let cause = message.dead_letter.as_ref().and_then(cause);
        // Dead letters of RabbitMQ's kind say it in a header; this is the one of the native kind.
        if (place == Place::LIMITED_DEAD) != cause.is_some() {
            let copy = stamp.copy_in(place.family());
            let fact = format!("{copy} came from '{}': {:?}", place.name(), message.dead_letter);
            self.world.ledger().tell(What::DeadLetter, fact, copy);
        }
        Some(Delivery {
            session: self.session,
            stamp,
            place,
            attempt: Attempt::exact(message.attempt),
            until: message.lease_until_ms.map(|until| until * 1000),
            cause,
            at: clock::now(),
        })
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.world.ledger().close_session(self.session);
    }
}

/// Whether a receipt does not hold: nothing was done, for certain.
pub(super) fn is_stale(code: Code) -> bool {
    matches!(code, Code::FailedPrecondition | Code::NotFound)
}

/// Why a message died, if it can have died of that here.
fn cause(letter: &proto::DeadLetter) -> Option<Cause> {
    match letter.reason() {
        proto::DeathReason::MaxAttempts => Some(Cause::Failed { attempts: Some(letter.attempts) }),
        proto::DeathReason::Rejected => Some(Cause::Rejected),
        proto::DeathReason::Expired => Some(Cause::Expired),
        proto::DeathReason::Overflow | proto::DeathReason::Unspecified => None,
    }
}

fn text(header: &Header) -> Option<&str> {
    match header.value.as_ref()? {
        header::Value::Text(text) => Some(text),
        header::Value::Bytes(_) => None,
    }
}

/// A message as the native API takes it.
pub(super) fn new_message(message: &Message, dedup_id: String) -> NewMessage {
    let stamp = &message.stamp;
    let value = Some(header::Value::Text(stamp.to_string()));
    NewMessage {
        body: stamp.body().into(),
        priority: stamp.priority.into(),
        delay_ms: message.delay.map_or(0, |delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
        headers: vec![Header { name: HEADER.to_owned(), value, ..Header::default() }],
        dedup_id,
        transient: stamp.durability == Durability::Transient,
        ..NewMessage::default()
    }
}
