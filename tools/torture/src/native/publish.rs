//! Publishers over the native API: many pushes on one stream, and single calls with deduplication ids.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use nexo_grpc::proto::{self, push_result::Outcome};
use tokio::sync::mpsc;
use tokio::time::{interval, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;

use super::connection::{Connection, PATIENCE, new_message};
use crate::clock;
use crate::ledger::{Violation, What};
use crate::way::Way;
use crate::workload::{Message, Workload};
use crate::world::{Ear, RunPhase, Told, World};

/// Requests of one stream that may wait for their confirms.
const WINDOW: usize = 60;
const TICK: Duration = Duration::from_millis(20);

/// Pushes on one stream until it ends or nothing more is to be published. `rate` is messages a second.
pub(crate) async fn push_stream(world: &World, workload: &mut Workload, ear: &mut Ear, rate: u32) {
    workload.begin_session();
    let Some(connection) = Connection::open(world).await else { return };
    let mut open: BTreeMap<u64, Vec<Message>> = BTreeMap::new();
    serve_stream(&connection, workload, ear, rate, &mut open).await;
    let mut ledger = world.ledger();
    for message in open.into_values().flatten() {
        ledger.uncertain(&message.stamp, clock::now());
    }
}

async fn serve_stream(
    connection: &Connection<'_>,
    workload: &mut Workload,
    ear: &mut Ear,
    rate: u32,
    open: &mut BTreeMap<u64, Vec<Message>>,
) {
    let world = connection.world;
    let (requests, receiver) = mpsc::channel(WINDOW);
    let mut messages = connection.messages();
    let stream = timeout(PATIENCE, messages.push_stream(ReceiverStream::new(receiver))).await;
    let Ok(Ok(stream)) = stream else { return };
    let mut replies = stream.into_inner();
    let mut tick = interval(TICK);
    let (mut sequence, mut credit) = (0, 0.0);
    loop {
        tokio::select! {
            reply = replies.message() => match reply {
                Ok(Some(reply)) => {
                    for confirm in reply.confirms {
                        let sent = open.remove(&confirm.sequence).unwrap_or_default();
                        settle(connection, &sent, &confirm.results);
                    }
                }
                Ok(None) | Err(_) => return,
            },
            _ = tick.tick() => {
                if ear.phase() != RunPhase::Load {
                    if open.is_empty() {
                        return;
                    }
                    continue;
                }
                credit = (credit + f64::from(rate) * world.pace * TICK.as_secs_f64()).min(100.0);
                while credit >= 1.0 && open.len() < WINDOW && !world.is_behind() {
                    let batch = batch(workload, &mut credit);
                    sequence += 1;
                    let queue = batch.first().map_or("", Message::queue).to_owned();
                    let messages = batch.iter().map(|message| new_message(message, String::new())).collect();
                    open.insert(sequence, batch);
                    // There is room: the window is as large as the channel. A stream that has ended says so above.
                    let _ = requests.try_send(proto::PushStreamRequest { sequence, queue, messages, ..Default::default() });
                }
            }
            told = ear.told() => match told {
                Told::Cut => return,
                Told::Stall(span) => sleep(span).await,
            },
        }
    }
}

/// A few messages to one queue.
fn batch(workload: &mut Workload, credit: &mut f64) -> Vec<Message> {
    let first = workload.any(Way::Native);
    let count = workload.chances.usize(1..8);
    let mut batch = vec![first];
    for _ in 1..count {
        let like = workload.like(&batch[0]);
        batch.push(like);
    }
    *credit -= batch.len() as f64;
    batch
}

fn settle(connection: &Connection<'_>, sent: &[Message], results: &[proto::PushResult]) {
    let now = clock::now();
    let mut ledger = connection.world.ledger();
    for (at, message) in sent.iter().enumerate() {
        match results.get(at).and_then(|result| result.outcome.as_ref()) {
            Some(Outcome::Pushed(_)) => {
                ledger.confirmed(&message.stamp, connection.session, message.sent_at, now);
            }
            // The whole request was refused, or this message of it.
            Some(Outcome::Error(_)) | None => ledger.refused(&message.stamp, now),
        }
    }
}

/// Pushes one message a call, each with an id, until the connection ends or nothing more is to be published. What is
/// not answered stays in `owed` and is pushed again on the next connection: it must be there once.
pub(crate) async fn push(
    world: &World,
    workload: &mut Workload,
    ear: &mut Ear,
    owed: &mut VecDeque<Message>,
) {
    workload.begin_session();
    let Some(connection) = Connection::open(world).await else { return };
    while ear.phase() == RunPhase::Load || !owed.is_empty() {
        if owed.is_empty() {
            if world.is_behind() {
                sleep(TICK).await;
                continue;
            }
            owed.push_back(workload.durable(Way::Native));
        }
        let Some(message) = owed.front().cloned() else { continue };
        let pushed = async {
            let first = push_once(&connection, &message).await?;
            if workload.chances.u8(..8) == 0 {
                repeat(&connection, &message, first).await?;
            }
            Some(())
        };
        tokio::select! {
            pushed = pushed => match pushed {
                Some(()) => owed.pop_front(),
                None => return,
            },
            told = ear.told() => match told {
                Told::Cut => return,
                Told::Stall(span) => { sleep(span).await; continue }
            },
        };
    }
}

/// Gives back the message's id in its queue; `None` if the broker did not take it.
async fn push_once(connection: &Connection<'_>, message: &Message) -> Option<proto::Pushed> {
    let sent_at = clock::now();
    let new = new_message(message, message.stamp.to_string());
    let request =
        proto::PushRequest { queue: message.queue().to_owned(), messages: vec![new], ..Default::default() };
    let mut messages = connection.messages();
    let reply = timeout(PATIENCE, messages.push(request)).await.ok()?.ok()?.into_inner();
    let Some(Outcome::Pushed(pushed)) = reply.results.into_iter().next()?.outcome else { return None };
    let mut ledger = connection.world.ledger();
    // A repetition writes nothing: it is as safe as what it repeats, and proves nothing about this moment.
    let proven_at = if pushed.duplicate { 0 } else { sent_at };
    ledger.confirmed(&message.stamp, connection.session, proven_at, clock::now());
    if pushed.duplicate {
        ledger.repeated();
    }
    Some(pushed)
}

/// Pushes a message again that was taken just before.
async fn repeat(connection: &Connection<'_>, message: &Message, first: proto::Pushed) -> Option<()> {
    let second = push_once(connection, message).await?;
    if !second.duplicate || second.id != first.id {
        let fact = format!("{:?} was taken as {first:?} and then as {second:?}", message.stamp);
        connection.world.ledger().report(Violation::new(What::NotRecognised, fact));
    }
    Some(())
}
