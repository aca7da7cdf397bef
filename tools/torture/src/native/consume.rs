//! Consumers over the native API: a subscription with credit, and pulls with leases.

use std::collections::HashMap;
use std::time::Duration;

use nexo_grpc::proto::{self, subscribe_request::Action, subscribe_response::Event};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::connection::{Connection, PATIENCE, VISIBILITY_MS, is_stale};
use crate::clock::{self, Micros};
use crate::ledger::Reception;
use crate::queues::Place;
use crate::stamp::Copy;
use crate::workload::{Decision, Workload, check_body};
use crate::world::{Ear, RunPhase, Told, World};

/// A subscription may hold this many.
const CREDIT: u32 = 50;
const HOLD: Duration = Duration::from_millis(8);

/// Something that was said about a message.
#[derive(Clone, Copy, Debug)]
struct Word {
    copy: Copy,
    said_at: Micros,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Ack,
    /// To be delivered again after this, the message having been delivered so often.
    Nack {
        delay: Duration,
        deliveries: u32,
    },
    Reject,
}

/// Subscribes until the stream ends, `until` has come or the run is over.
pub(crate) async fn subscribe(
    world: &World,
    place: Place,
    workload: &mut Workload,
    ear: &mut Ear,
    until: Option<Instant>,
) {
    let Some(connection) = Connection::open(world).await else { return };
    let (requests, receiver) = mpsc::channel(1024);
    let start = proto::SubscribeStart {
        queue: place.name().to_owned(),
        visibility_ms: Some(VISIBILITY_MS),
        keep_leases: false,
        ..Default::default()
    };
    let start = proto::SubscribeRequest {
        credit: CREDIT,
        sequence: 0,
        action: Some(Action::Start(start)),
        stop: false,
    };
    if requests.send(start).await.is_err() {
        return;
    }
    let mut messages = connection.messages();
    let stream = timeout(PATIENCE, messages.subscribe(ReceiverStream::new(receiver))).await;
    let Ok(Ok(stream)) = stream else { return };
    let mut events = stream.into_inner();
    let mut words: HashMap<u64, Word> = HashMap::new();
    let mut sequence = 0;
    let mut tick = tokio::time::interval(Duration::from_millis(50));
    loop {
        let event = tokio::select! {
            event = events.message() => event,
            _ = tick.tick() => {
                let is_over = until.is_some_and(|until| Instant::now() >= until);
                if ear.phase() == RunPhase::Over || is_over {
                    break;
                }
                continue;
            }
            told = ear.told() => match told {
                Told::Cut => break,
                Told::Stall(span) => { sleep(span).await; continue }
            },
        };
        match event {
            Ok(Some(proto::SubscribeResponse { event: Some(Event::Messages(batch)) })) => {
                for message in &batch.messages {
                    let Some(word) = receive(&connection, place, message, workload).await else { continue };
                    sequence += 1;
                    words.insert(sequence, word);
                    let action = Some(action(&word, message.receipt.clone()));
                    let request = proto::SubscribeRequest { credit: 1, sequence, action, stop: false };
                    if requests.send(request).await.is_err() {
                        break;
                    }
                }
            }
            Ok(Some(proto::SubscribeResponse { event: Some(Event::Settled(reply)) })) => {
                if let Some(word) = words.remove(&reply.sequence) {
                    conclude(&connection, &word, reply.results.first());
                }
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => break,
        }
    }
    give_up(&connection, words.into_values());
}

/// How a puller works.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pull {
    pub(crate) places: &'static [Place],
    pub(crate) max: u32,
}

/// Pops from one queue after the other until the connection ends or the run is over.
pub(crate) async fn pop(world: &World, pull: Pull, workload: &mut Workload, ear: &mut Ear) {
    let Some(connection) = Connection::open(world).await else { return };
    while ear.phase() != RunPhase::Over && world.ledger().is_current(connection.session) {
        for place in pull.places {
            let popped = tokio::select! {
                popped = pop_once(&connection, *place, pull.max, workload) => popped,
                // A call is given up half-way, and with it the session.
                _ = ear.told() => return,
            };
            if popped.is_none() {
                return;
            }
        }
    }
}

/// `None` if the connection does not work any more.
async fn pop_once(
    connection: &Connection<'_>,
    place: Place,
    max: u32,
    workload: &mut Workload,
) -> Option<()> {
    let visibility_ms = Some(VISIBILITY_MS);
    let request = proto::PopRequest {
        queue: place.name().to_owned(),
        max,
        wait_ms: 100,
        visibility_ms,
        ..Default::default()
    };
    let mut service = connection.messages();
    let popped = match timeout(PATIENCE, service.pop(request)).await.ok()? {
        Ok(popped) => popped.into_inner().messages,
        // The broker makes dead-letter queues when it needs them.
        Err(status) if place.is_dead() && status.message().contains("does not exist") => return Some(()),
        Err(_) => return None,
    };
    let mut said = Vec::new();
    for message in &popped {
        if let Some(word) = receive(connection, place, message, workload).await {
            said.push((word, message.receipt.clone()));
        }
    }
    // Those that are done go in one call, the others each in their own.
    let (acks, others): (Vec<_>, Vec<_>) =
        said.into_iter().partition(|(word, _)| matches!(word.kind, Kind::Ack));
    if !acks.is_empty() {
        let receipts = acks.iter().map(|(_, receipt)| receipt.clone()).collect();
        let replied = timeout(PATIENCE, service.ack(proto::AckRequest { receipts })).await.ok();
        let results = replied.map(|replied| replied.map(|reply| reply.into_inner().results));
        settle(connection, &acks, results)?;
    }
    for one in others {
        let Action::Nack(request) = action(&one.0, one.1.clone()) else { continue };
        let replied = timeout(PATIENCE, service.nack(request)).await.ok();
        let results = replied.map(|replied| replied.map(|reply| reply.into_inner().results));
        settle(connection, &[one], results)?;
    }
    Some(())
}

type Replied = Option<Result<Vec<proto::SettleResult>, Status>>;

/// `None` if the connection does not work any more.
fn settle(connection: &Connection<'_>, said: &[(Word, String)], replied: Replied) -> Option<()> {
    match replied {
        Some(Ok(results)) => {
            for (at, (word, _)) in said.iter().enumerate() {
                conclude(connection, word, results.get(at));
            }
            Some(())
        }
        // A call with one receipt fails as a whole if that does not hold.
        Some(Err(status)) if is_stale(status.code()) => {
            let error = Some(proto::Error { code: status.code().into(), ..Default::default() });
            let stale = proto::SettleResult { error, ..Default::default() };
            for (word, _) in said {
                conclude(connection, word, Some(&stale));
            }
            Some(())
        }
        Some(Err(_)) | None => {
            give_up(connection, said.iter().map(|(word, _)| *word));
            None
        }
    }
}

async fn receive(
    connection: &Connection<'_>,
    place: Place,
    message: &proto::Message,
    workload: &mut Workload,
) -> Option<Word> {
    let world = connection.world;
    let delivery = connection.judge(message, place)?;
    let Reception::Work(copy) = world.ledger().delivered(&delivery) else { return None };
    check_body(world, connection.session, &delivery.stamp, place, &message.body);
    let decision = workload.decide(&delivery.stamp, place);
    if decision == Decision::Hold {
        sleep(HOLD).await;
    }
    let said_at = clock::now();
    let mut ledger = world.ledger();
    let kind = match decision {
        Decision::Ack | Decision::Hold => {
            ledger.ack_sent(copy, connection.session, said_at);
            Kind::Ack
        }
        Decision::Fail => {
            let deliveries = ledger.returned(copy, connection.session, said_at);
            Kind::Nack { delay: Duration::from_millis(workload.chances.u64(0..300)), deliveries }
        }
        Decision::Reject => {
            ledger.rejected(copy, connection.session, said_at);
            Kind::Reject
        }
    };
    Some(Word { copy, said_at, kind })
}

fn action(word: &Word, receipt: String) -> Action {
    let receipts = vec![receipt];
    match word.kind {
        Kind::Ack => Action::Ack(proto::AckRequest { receipts }),
        Kind::Nack { delay, .. } => {
            let delay_ms = u64::try_from(delay.as_millis()).ok();
            Action::Nack(proto::NackRequest { receipts, delay_ms, dead_letter: false, unseen: false })
        }
        Kind::Reject => {
            Action::Nack(proto::NackRequest { receipts, delay_ms: None, dead_letter: true, unseen: false })
        }
    }
}

/// The broker has answered: what it says is durable.
fn conclude(connection: &Connection<'_>, word: &Word, result: Option<&proto::SettleResult>) {
    let now = clock::now();
    let Word { copy, said_at, kind } = *word;
    let error = result.and_then(|result| result.error.as_ref()).map(|error| Code::from(error.code));
    let holds = result.is_some() && error.is_none();
    let mut ledger = connection.world.ledger();
    match kind {
        Kind::Ack if holds => ledger.acked(copy, now),
        Kind::Ack if error.is_some_and(is_stale) => ledger.ack_failed(copy, connection.session, now),
        Kind::Ack => ledger.ack_unknown(copy, now),
        Kind::Nack { delay, deliveries } if holds => {
            ledger.return_confirmed(copy, deliveries, said_at + clock::micros(delay));
        }
        Kind::Nack { .. } | Kind::Reject => {}
    }
}

fn give_up(connection: &Connection<'_>, words: impl Iterator<Item = Word>) {
    let unsure = words.filter(|word| matches!(word.kind, Kind::Ack)).count();
    let mut ledger = connection.world.ledger();
    (0..unsure).for_each(|_| ledger.ack_unsure());
}
