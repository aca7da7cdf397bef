//! A sender to the FIFO queue. What is not answered for is sent again with the same deduplication id, on this connection or
//! the next, before anything else is: each message must be there once, and each group in order.

use std::time::Duration;

use tokio::time::sleep;

use super::send::{Sent, complaint, connect, send_batch};
use super::wire::Gone;
use crate::clock;
use crate::ledger::{SessionId, Violation, What};
use crate::way::Way;
use crate::workload::{Message, Workload};
use crate::world::{Ear, RunPhase, Told, World};

const BATCH_MAX: usize = 10;

/// Connects and sends until the connection ends or nothing more is to be sent. What is not answered for stays in `owed`.
pub(crate) async fn send_until_answered(
    world: &World,
    workload: &mut Workload,
    ear: &mut Ear,
    owed: &mut Vec<Message>,
) {
    workload.begin_session();
    let session = world.ledger().open_session(Way::Sqs);
    // Whatever ended it, the next connection is made.
    let _ = serve(world, session, workload, ear, owed).await;
    world.ledger().close_session(session);
    for message in owed {
        // A repetition may write nothing: its answer proves nothing about any moment.
        message.sent_at = 0;
    }
}

async fn serve(
    world: &World,
    session: SessionId,
    workload: &mut Workload,
    ear: &mut Ear,
    owed: &mut Vec<Message>,
) -> Result<(), Gone> {
    let mut wire = connect(world, session).await?;
    while ear.phase() == RunPhase::Load || !owed.is_empty() {
        if owed.is_empty() && !world.is_behind() {
            let count = workload.chances.usize(1..=BATCH_MAX);
            owed.extend((0..count).map(|_| workload.grouped()));
        }
        let repeats = workload.chances.u8(..8) == 0;
        let sent = async {
            let first = send_batch(&mut wire, owed).await?;
            let second = if repeats { Some(send_batch(&mut wire, owed).await?) } else { None };
            Ok((first, second))
        };
        tokio::select! {
            sent = sent => {
                let (first, second) = sent?;
                if let Some(second) = second {
                    compare(world, owed, &first, &second);
                }
                settle(world, session, owed, &first);
            }
            told = ear.told() => {
                if let Told::Stall(span) = told {
                    sleep(span).await;
                }
                return Ok(());
            }
        }
        sleep(Duration::from_millis(workload.chances.u64(10..80))).await;
    }
    Ok(())
}

/// Only when all are taken is anything else sent: an entry that failed would be behind those after it.
fn settle(world: &World, session: SessionId, owed: &mut Vec<Message>, sent: &[Sent]) {
    let mut ledger = world.ledger();
    if sent.iter().all(Result::is_ok) {
        for Message { stamp, sent_at, .. } in owed.drain(..) {
            ledger.confirmed(&stamp, session, sent_at, clock::now());
        }
        return;
    }
    let refusals = sent.iter().filter_map(|sent| sent.as_ref().err());
    for violation in refusals.filter_map(complaint) {
        ledger.report(violation);
    }
    for message in owed {
        message.sent_at = 0;
    }
}

/// The second time the broker must say what it said the first time.
fn compare(world: &World, messages: &[Message], first: &[Sent], second: &[Sent]) {
    let mut ledger = world.ledger();
    for (message, (first, second)) in messages.iter().zip(first.iter().zip(second)) {
        let (Ok(first), Ok(second)) = (first, second) else { continue };
        if first == second {
            ledger.repeated();
        } else {
            let fact = format!("{:?} was taken as {first} and then as {second}", message.stamp);
            ledger.report(Violation::new(What::NotRecognised, fact));
        }
    }
}
