//! Who asks: a thousand clients, each for one key after the other, with few connections between them. A request that is not
//! answered is repeated as the same waiter, and some clients go in the middle of one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::books::{Filter, JobNumber, Request, Via, WaiterId};
use super::setup::{KEYS, Kind, Reply};
use super::wire::{Gone, Replied};
use crate::clock;
use crate::ledger::What;
use crate::world::{RunPhase, World};

/// How long a client thinks before it asks again, at most.
const THINKS_MS: u64 = 16_000;
/// With less than this the budget would never be short of tokens.
const PACE_MIN: f64 = 0.5;
/// How long a call waits for an answer: others want the connection too.
const WAIT_MS: u64 = 300;
/// Before something is tried again.
const PAUSE_MS: std::ops::Range<u64> = 20..400;
const CLASSES: [&str; 5] = ["", "business", "pro", "starter", "free"];

/// Asks until the run is over.
pub(super) async fn ask_and_wait(world: Arc<World>, number: u64) {
    let mut client = Client { chances: world.chances(number), phase: world.phases(), world: &world };
    // The first requests come spread over time, too.
    while client.pause(0..client.thinks_ms()).await {
        if client.phase() == RunPhase::Load {
            client.ask_once().await;
        }
    }
}

struct Client<'a> {
    world: &'a World,
    chances: fastrand::Rng,
    phase: watch::Receiver<RunPhase>,
}

impl Client<'_> {
    fn phase(&self) -> RunPhase {
        *self.phase.borrow()
    }

    /// How long it thinks at most, in a world of this pace.
    fn thinks_ms(&self) -> u64 {
        (THINKS_MS as f64 / self.world.pace.max(PACE_MIN)) as u64
    }

    /// `false` if the run ended meanwhile.
    async fn pause(&mut self, millis: std::ops::Range<u64>) -> bool {
        let span = Duration::from_millis(self.chances.u64(millis));
        // If the world is gone, so is the run.
        let over = self.phase.wait_for(|phase| *phase == RunPhase::Over);
        timeout(span, over).await.is_err()
    }

    /// Asks for a key, and sees to it that the answer comes.
    async fn ask_once(&mut self) {
        let chances = &mut self.chances;
        let request = Request {
            kind: if chances.bool() { Kind::Share } else { Kind::Next },
            key: chances.u8(..KEYS),
            filter: Filter::any(chances),
            reply: match chances.u8(..4) {
                0 => Some(Reply::A),
                1 => Some(Reply::B),
                _ => None,
            },
        };
        let body = self.body(&request);
        let waiter = self.world.books(|books| books.asks(request, clock::now()));
        let told = request.reply.map(|_| self.world.yard.until_told(waiter));
        let mut body = body;
        body["waiter"]["id"] = json!(waiter.to_string());
        if !self.ask(waiter, request.kind, &body).await {
            return;
        }
        if self.chances.u8(..10) == 0 && !self.ask(waiter, request.kind, &body).await {
            return;
        }
        match told {
            Some(told) => {
                let over = self.phase.wait_for(|phase| *phase == RunPhase::Over);
                tokio::select! {
                    _ = told => {}
                    _ = over => return,
                }
            }
            None => {
                if !self.fetch(waiter, request.kind).await {
                    return;
                }
            }
        }
        // Who asks once more is told the same, also if the answer went to a queue.
        if self.chances.u8(..5) == 0 {
            self.fetch(waiter, request.kind).await;
        }
    }

    fn body(&mut self, request: &Request) -> Value {
        let chances = &mut self.chances;
        let kind = if chances.u8(..6) == 0 { "dear" } else { "cheap" };
        let mut waiter = json!({
            "user": format!("user {}", chances.u8(..20)),
            "class": chances.choice(CLASSES),
            "filter": request.filter.text(),
        });
        if chances.bool() {
            waiter["due_in_ms"] = json!(chances.u64(100..20_000));
        }
        if let Some(reply) = request.reply {
            waiter["reply_to"] = json!(reply.name());
        }
        json!({ "type": kind, "key": request.key(), "payload": { "cost": chances.u8(1..=3) }, "waiter": waiter })
    }

    /// Asks until it is answered. `false` if the run ended first.
    async fn ask(&mut self, waiter: WaiterId, kind: Kind, body: &Value) -> bool {
        let path = format!("/api/jobs/queues/%2F/{}/ask", kind.name());
        loop {
            match self.call("POST", &path, Some(body)).await {
                Ok(replied) if replied.is_ok() => {
                    let job = replied.body["job"].as_str().and_then(|job| job.parse().ok());
                    let state = replied.body["state"].as_str().unwrap_or_default().to_owned();
                    self.world.books(|books| match job {
                        Some(job) => books.asked(waiter, JobNumber(job), &state),
                        None => books.report(What::Broker, format!("{waiter} asked: {}", replied.body)),
                    });
                    self.world.yard.settled.notify_waiters();
                    return true;
                }
                Ok(replied) if !replied.is_for_now() => {
                    let fact = format!("{waiter} was refused: {} {}", replied.status, replied.body);
                    self.world.books(|books| books.report(What::Broker, fact));
                }
                Ok(_) | Err(Gone) => {}
            }
            if !self.pause(PAUSE_MS).await {
                return false;
            }
        }
    }

    /// Asks for the answer until there is one. `false` if the run ended first, or there is no such waiter.
    async fn fetch(&mut self, waiter: WaiterId, kind: Kind) -> bool {
        let path = format!("/api/jobs/queues/%2F/{}/answers/{waiter}?wait_ms={WAIT_MS}", kind.name());
        loop {
            match self.call("GET", &path, None).await {
                Ok(replied) if replied.is_ok() && !replied.body["answer"].is_null() => {
                    check_answer(self.world, waiter, &replied);
                    return true;
                }
                Ok(replied) if replied.status == 404 => {
                    self.world.books(|books| books.not_known(waiter, clock::now()));
                    return false;
                }
                Ok(replied) if !replied.is_ok() && !replied.is_for_now() => {
                    let fact = format!("{waiter} wants its answer: {} {}", replied.status, replied.body);
                    self.world.books(|books| books.report(What::Broker, fact));
                }
                Ok(_) | Err(Gone) => {}
            }
            if !self.pause(PAUSE_MS).await {
                return false;
            }
        }
    }

    /// One request in fifty is cut off in the middle.
    async fn call(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<Replied, Gone> {
        let call = self.world.yard.call(method, path, body);
        if self.chances.u8(..50) > 0 {
            return call.await;
        }
        let patience = Duration::from_micros(self.chances.u64(..20_000));
        tokio::select! {
            replied = call => replied,
            () = sleep(patience) => Err(Gone),
        }
    }
}

/// Tells the books of an answer that was asked for.
pub(super) fn check_answer(world: &World, waiter: WaiterId, replied: &Replied) {
    world.books(|books| {
        let whose = books.answered(&replied.body["answer"], Via::Call);
        if whose.is_some_and(|whose| whose != waiter) {
            books.report(
                What::WrongAnswer,
                format!("{waiter} was told what is for another: {}", replied.body),
            );
        }
    });
}
