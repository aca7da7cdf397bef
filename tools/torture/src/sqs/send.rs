//! Senders to all kinds of queues: single messages and batches, one request after the other.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use super::message::{entry, url_of};
use super::wire::{Gone, Refusal, Wire};
use crate::clock;
use crate::ledger::{SessionId, Violation, What};
use crate::way::Way;
use crate::workload::{Message, Workload};
use crate::world::{Ear, RunPhase, Told, World};

const BATCH_MAX: usize = 10;
const BEHIND_MAX: Duration = Duration::from_millis(200);

/// Connects and sends until the connection ends or nothing more is to be sent. `rate` is messages a second.
pub(crate) async fn send(world: &World, workload: &mut Workload, ear: &mut Ear, rate: u32) {
    workload.begin_session();
    let session = world.ledger().open_session(Way::Sqs);
    // What was sent and not answered when the connection ended.
    let mut open = Vec::new();
    // Whatever ended it, the next connection is made.
    let _ = serve(world, session, workload, ear, rate, &mut open).await;
    let mut ledger = world.ledger();
    for message in open {
        ledger.uncertain(&message.stamp, clock::now());
    }
    ledger.close_session(session);
}

async fn serve(
    world: &World,
    session: SessionId,
    workload: &mut Workload,
    ear: &mut Ear,
    rate: u32,
    open: &mut Vec<Message>,
) -> Result<(), Gone> {
    let mut wire = connect(world, session).await?;
    let mut next = Instant::now();
    while ear.phase() == RunPhase::Load {
        if world.is_behind() {
            sleep(Duration::from_millis(20)).await;
            continue;
        }
        *open = batch(workload);
        next += Duration::from_secs(1).mul_f64(open.len() as f64 / (f64::from(rate) * world.pace));
        tokio::select! {
            sent = send_batch(&mut wire, open) => {
                settle(world, session, open, &sent?);
                open.clear();
            }
            told = ear.told() => {
                if let Told::Stall(span) = told {
                    sleep(span).await;
                }
                return Ok(());
            }
        }
        // Who was held up does not make up for it.
        next = next.max(Instant::now() - BEHIND_MAX);
        sleep_until(next).await;
    }
    Ok(())
}

/// Connects to the broker of the life that the session is of.
pub(super) async fn connect(world: &World, session: SessionId) -> Result<Wire, Gone> {
    let wire = Wire::connect(world.doors.of(session).sqs).await?;
    if world.ledger().is_current(session) { Ok(wire) } else { Err(Gone) }
}

/// A few messages to one queue.
fn batch(workload: &mut Workload) -> Vec<Message> {
    let mut batch = vec![workload.durable(Way::Sqs)];
    let count = if workload.chances.bool() { 1 } else { workload.chances.usize(1..=BATCH_MAX) };
    for _ in 1..count {
        let like = workload.like(&batch[0]);
        batch.push(like);
    }
    batch
}

/// What became of a message: the id that it got.
pub(super) type Sent = Result<String, Refusal>;

/// Sends messages to one queue in one request, and says what became of each.
pub(super) async fn send_batch(wire: &mut Wire, messages: &[Message]) -> Result<Vec<Sent>, Gone> {
    let Some(first) = messages.first() else { return Ok(Vec::new()) };
    let id = |said: &Value| said["MessageId"].as_str().map(str::to_owned).ok_or(Gone);
    if let [message] = messages {
        let mut request = entry(message);
        request["QueueUrl"] = url_of(message).into();
        return match wire.call("SendMessage", &request).await? {
            Ok(said) => Ok(vec![Ok(id(&said)?)]),
            Err(refusal) => Ok(vec![Err(refusal)]),
        };
    }
    let entries: Vec<Value> = messages.iter().map(entry).collect();
    let request = json!({ "QueueUrl": url_of(first), "Entries": entries });
    let said = match wire.call("SendMessageBatch", &request).await? {
        Ok(said) => said,
        Err(refusal) => return Ok(vec![Err(refusal); messages.len()]),
    };
    let of = |list: &str, message: &Message| {
        let entries = said[list].as_array().into_iter().flatten();
        let seq = message.stamp.seq.to_string();
        entries.into_iter().find(|entry| entry["Id"].as_str() == Some(&seq)).cloned()
    };
    let outcome = |message: &Message| match (of("Successful", message), of("Failed", message)) {
        (Some(sent), None) => Ok(Ok(id(&sent)?)),
        (_, Some(failed)) => Ok(Err(refusal(&failed))),
        (None, None) => Err(Gone),
    };
    messages.iter().map(outcome).collect()
}

/// Why an entry of a batch failed.
pub(super) fn refusal(entry: &Value) -> Refusal {
    let is_senders = entry["SenderFault"].as_bool().unwrap_or(true);
    Refusal {
        status: if is_senders { 400 } else { 503 },
        reason: format!("{}: {}", entry["Code"], entry["Message"]),
    }
}

fn settle(world: &World, session: SessionId, messages: &[Message], sent: &[Sent]) {
    let now = clock::now();
    let mut ledger = world.ledger();
    for (message, sent) in messages.iter().zip(sent) {
        match sent {
            Ok(_) => ledger.confirmed(&message.stamp, session, message.sent_at, now),
            Err(refusal) => {
                ledger.refused(&message.stamp, now);
                if let Some(violation) = complaint(refusal) {
                    ledger.report(violation);
                }
            }
        }
    }
}

/// What to tell of a refusal: what is right may be refused only while the broker can take nothing.
pub(super) fn complaint(refusal: &Refusal) -> Option<Violation> {
    if refusal.is_for_now() {
        return None;
    }
    let fact = format!("SQS refused what is right with {}: {}", refusal.status, refusal.reason);
    Some(Violation::new(What::Broker, fact))
}
