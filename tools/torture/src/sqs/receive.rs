//! Receivers: long polls with leases, deletes one by one and in batches, messages given back and messages left alone until
//! their lease ends.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::message::{Asked, Received, read, url};
use super::send::{complaint, connect, refusal};
use super::wire::{Gone, Refusal, Wire};
use crate::clock::{self, Micros};
use crate::ledger::{Reception, SLACK, SessionId};
use crate::queues::Place;
use crate::stamp::{Copy, Stamp};
use crate::way::Way;
use crate::workload::{Decision, Workload, check_body};
use crate::world::{Ear, RunPhase, Told, World};

/// How long leases last: longer than most freezes, short enough to wait for what was held when the broker died.
const VISIBILITY: Duration = Duration::from_secs(3);
/// How long those last that are often left to end.
const VISIBILITY_SHORT: Duration = Duration::from_secs(1);
const HOLD: Duration = Duration::from_millis(8);
const PAUSE: Duration = Duration::from_millis(50);

/// One who receives. A lease is not the connection's: what it holds, it holds until its lease ends, also when its connection
/// was cut.
struct Receiver<'a> {
    world: &'a World,
    session: SessionId,
    place: Place,
    wire: Wire,
    /// What it has asked to delete and was not answered for.
    open: Vec<Held>,
    /// Names the latest receive from a FIFO queue that was not answered: asked again, it brings the same messages.
    unanswered: Option<u64>,
}

/// A message that it holds.
#[derive(Clone, Debug)]
struct Held {
    stamp: Stamp,
    copy: Copy,
    until: Micros,
    handle: String,
}

/// Receives until the connection ends, `until` has come or the run is over.
pub(crate) async fn receive(
    world: &World,
    place: Place,
    workload: &mut Workload,
    ear: &mut Ear,
    until: Option<Instant>,
) {
    let session = world.ledger().open_session(Way::Sqs);
    if let Ok(wire) = connect(world, session).await {
        let mut receiver = Receiver { world, session, place, wire, open: Vec::new(), unanswered: None };
        // Whatever ended it, the next connection is made.
        let _ = receiver.serve(workload, ear, until).await;
        receiver.give_up();
    }
    world.ledger().close_session(session);
}

impl Receiver<'_> {
    async fn serve(
        &mut self,
        workload: &mut Workload,
        ear: &mut Ear,
        until: Option<Instant>,
    ) -> Result<(), Gone> {
        let is_over = || until.is_some_and(|until| Instant::now() >= until);
        while ear.phase() != RunPhase::Over && !is_over() && self.world.ledger().is_current(self.session) {
            tokio::select! {
                round = self.round(workload) => round?,
                told = ear.told() => {
                    self.give_up();
                    if let Told::Stall(span) = told {
                        sleep(span).await;
                    }
                    // What an answer that was not read brought is held by nobody for a while, and others pass it.
                    if self.place == Place::ORDERED {
                        return Ok(());
                    }
                    self.wire = connect(self.world, self.session).await?;
                }
            }
        }
        Ok(())
    }

    /// Takes some messages and says something about each.
    async fn round(&mut self, workload: &mut Workload) -> Result<(), Gone> {
        let chances = &mut workload.chances;
        // Who looks at order must not let go of anything unseen.
        let is_short = self.place != Place::ORDERED && chances.u8(..10) == 0;
        let visibility = if is_short { VISIBILITY_SHORT } else { VISIBILITY };
        let max = match self.place {
            // It is the only one there, and each round waits for the disk.
            Place::ORDERED => 10,
            // The books follow groups one message at a time; with more a receive brings a run of a group.
            Place::GROUPS => 1,
            _ => chances.u32(1..=10),
        };
        let wait_s = chances.u32(0..=2);
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        if self.place == Place::GROUPS {
            self.unanswered.get_or_insert_with(|| chances.u64(..));
        }
        let received = self.take(max, wait_s, visibility).await?;
        // The books know of all before anything is done about one.
        let held: Vec<Held> = received.into_iter().filter_map(|received| self.hold(received)).collect();
        for held in held {
            match workload.decide(&held.stamp, self.place) {
                Decision::Ack => done.push(held),
                // It comes back when its lease has ended.
                Decision::Hold if is_short => {}
                Decision::Hold => {
                    sleep(HOLD).await;
                    done.push(held);
                }
                // SQS has no word for giving up.
                Decision::Fail | Decision::Reject => failed.push(held),
            }
        }
        for held in failed {
            let back_after_s = u64::from(workload.chances.u8(..4) == 0);
            self.give_back(&held, Duration::from_secs(back_after_s)).await?;
        }
        // For the same reason: a delete of its own is a wait of its own.
        if self.place == Place::ORDERED || workload.chances.u8(..4) > 0 {
            return self.delete_all(done).await;
        }
        for held in done {
            self.delete(held).await?;
        }
        Ok(())
    }

    /// `None` if nothing that is said about it would count.
    fn hold(&self, received: Received) -> Option<Held> {
        let Received { delivery, body, handle } = received;
        let Reception::Work(copy) = self.world.ledger().delivered(&delivery) else { return None };
        check_body(self.world, self.session, &delivery.stamp, self.place, &body);
        Some(Held { stamp: delivery.stamp, copy, until: delivery.until.unwrap_or(0), handle })
    }

    async fn take(&mut self, max: u32, wait_s: u32, visibility: Duration) -> Result<Vec<Received>, Gone> {
        let (session, place) = (self.session, self.place);
        let mut request = json!({
            "QueueUrl": url(place),
            "MaxNumberOfMessages": max,
            "WaitTimeSeconds": wait_s,
            "VisibilityTimeout": visibility.as_secs(),
            "MessageSystemAttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
        });
        if let Some(attempt) = self.unanswered {
            request["ReceiveRequestAttemptId"] = attempt.to_string().into();
        }
        let asked = Asked { session, place, at: clock::now(), visibility: clock::micros(visibility) };
        let answer = self.wire.call("ReceiveMessage", &request).await?;
        self.unanswered = None;
        match answer {
            Ok(said) => {
                let messages = said["Messages"].as_array().into_iter().flatten();
                Ok(messages.filter_map(|message| read(self.world, asked, message)).collect())
            }
            Err(refusal) => {
                // The broker makes dead-letter queues when it needs them.
                let is_unmade = place.is_dead() && refusal.reason.starts_with("QueueDoesNotExist");
                if !is_unmade {
                    self.complain(&refusal);
                }
                sleep(PAUSE).await;
                Ok(Vec::new())
            }
        }
    }

    /// Gives a message back, to come again at once or after a while.
    async fn give_back(&mut self, held: &Held, after: Duration) -> Result<(), Gone> {
        let said_at = clock::now();
        let deliveries = {
            let mut ledger = self.world.ledger();
            if held.has_ended(said_at) {
                return Ok(());
            }
            ledger.returned(held.copy, self.session, said_at)
        };
        let request = json!({
            "QueueUrl": url(self.place), "ReceiptHandle": held.handle, "VisibilityTimeout": after.as_secs(),
        });
        match self.wire.call("ChangeMessageVisibility", &request).await? {
            Ok(_) => {
                let back_at = said_at + clock::micros(after);
                let mut ledger = self.world.ledger();
                // If the lease may have ended before that was heard, it came back by itself, and perhaps sooner.
                if !held.has_ended(clock::now()) {
                    ledger.return_confirmed(held.copy, deliveries, back_at);
                    ledger.answered_in_time(held.copy);
                }
            }
            // Somebody who held it before may have deleted it only now.
            Err(_) if self.world.ledger().may_be_gone(held.copy) => {}
            Err(refusal) if !held.has_ended(clock::now()) => self.complain(&refusal),
            Err(_) => {}
        }
        Ok(())
    }

    async fn delete(&mut self, held: Held) -> Result<(), Gone> {
        let Some(held) = self.begin_deletes(vec![held]).pop() else { return Ok(()) };
        let request = json!({ "QueueUrl": url(self.place), "ReceiptHandle": held.handle });
        let said = self.wire.call("DeleteMessage", &request).await?;
        self.open.clear();
        self.deleted(&held, said.map(drop));
        Ok(())
    }

    async fn delete_all(&mut self, held: Vec<Held>) -> Result<(), Gone> {
        let held = self.begin_deletes(held);
        if held.is_empty() {
            return Ok(());
        }
        let entry =
            |(at, held): (usize, &Held)| json!({ "Id": at.to_string(), "ReceiptHandle": held.handle });
        let entries: Vec<Value> = held.iter().enumerate().map(entry).collect();
        let request = json!({ "QueueUrl": url(self.place), "Entries": entries });
        let said = self.wire.call("DeleteMessageBatch", &request).await?;
        self.open.clear();
        for (at, held) in held.iter().enumerate() {
            let of = |list: &Value| {
                let mut entries = list.as_array().into_iter().flatten();
                entries.find(|entry| entry["Id"].as_str() == Some(&at.to_string())).cloned()
            };
            let outcome = match &said {
                Ok(said) if of(&said["Successful"]).is_some() => Ok(()),
                Ok(said) => Err(refusal(&of(&said["Failed"]).unwrap_or_default())),
                Err(refusal) => Err(refusal.clone()),
            };
            self.deleted(held, outcome);
        }
        Ok(())
    }

    /// Tells the books which are to be deleted; not those whose lease is over, which others may hold by now.
    fn begin_deletes(&mut self, held: Vec<Held>) -> Vec<Held> {
        let mut ledger = self.world.ledger();
        let now = clock::now();
        let held: Vec<Held> = held.into_iter().filter(|held| !held.has_ended(now)).collect();
        for held in &held {
            ledger.ack_sent(held.copy, self.session, now);
        }
        self.open.clone_from(&held);
        held
    }

    /// The broker has answered. If the lease was over by then, it may have had nothing to delete any more: SQS says that all
    /// is well in that case too.
    fn deleted(&self, held: &Held, outcome: Result<(), Refusal>) {
        let now = clock::now();
        let mut ledger = self.world.ledger();
        match outcome {
            Ok(()) if !held.has_ended(now) => ledger.acked(held.copy, now),
            Ok(()) => ledger.ack_unknown(held.copy, now),
            Err(refusal) => {
                ledger.ack_unknown(held.copy, now);
                if let Some(violation) = complaint(&refusal).filter(|_| !held.has_ended(now)) {
                    ledger.report(violation);
                }
            }
        }
    }

    fn complain(&self, refusal: &Refusal) {
        if let Some(violation) = complaint(refusal) {
            self.world.ledger().report(violation);
        }
    }

    /// Whether what it asked for was done will never be known.
    fn give_up(&mut self) {
        let mut ledger = self.world.ledger();
        self.open.drain(..).for_each(|_| ledger.ack_unsure());
    }
}

impl Held {
    /// Whether its lease may be over.
    const fn has_ended(&self, at: Micros) -> bool {
        at + SLACK >= self.until
    }
}
