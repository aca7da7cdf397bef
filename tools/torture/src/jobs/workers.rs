//! Who works: takes a few jobs, and completes, fails, gives back or extends them, is too slow, or dies. A worker that dies is
//! silent: its connection stays, and its lease ends by itself.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::books::{Filter, Hold, JobNumber, RunId, Word, items, reason};
use super::setup::Kind;
use super::wire::{Gone, Replied, Wire};
use crate::clock;
use crate::ledger::What;
use crate::world::{RunPhase, World};

const LEASE_MS: std::ops::Range<u64> = 1_000..3_000;
const PAUSE: Duration = Duration::from_millis(50);

/// Works until the run is over.
pub(super) async fn work(world: Arc<World>, number: u32) {
    let chances = world.chances(1_000_000 + u64::from(number));
    let mut worker = Worker { number, world: &world, chances, wire: None };
    while worker.phase() != RunPhase::Over {
        let kind = if worker.chances.bool() { Kind::Share } else { Kind::Next };
        worker.take_and_work(kind).await;
    }
}

/// A job in a worker's hands.
struct Task {
    run: RunId,
    receipt: String,
    cost: u64,
    lease_ms: u64,
}

/// What a worker does with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Complete,
    /// The same, when the lease is over, or almost.
    CompleteLate,
    Extend,
    Fail,
    GiveUp,
    GiveBack,
    Die,
}

struct Worker<'a> {
    number: u32,
    world: &'a World,
    chances: fastrand::Rng,
    wire: Option<Wire>,
}

impl Worker<'_> {
    fn phase(&self) -> RunPhase {
        self.world.phase()
    }

    async fn take_and_work(&mut self, kind: Kind) {
        let lease_ms = self.chances.u64(LEASE_MS);
        // Who holds several for long starves the others; one at a time is what most do.
        let max = if self.chances.u8(..4) == 0 { self.chances.u8(2..=4) } else { 1 };
        let take = json!({
            "worker": format!("worker {}", self.number),
            "max": max,
            "wait_ms": self.chances.u64(..600),
            "lease_ms": lease_ms,
        });
        let path = format!("/api/jobs/queues/%2F/{}/take", kind.name());
        let patience = Duration::from_millis(self.chances.u64(..100));
        let is_cut = self.chances.u8(..40) == 0;
        let replied = tokio::select! {
            replied = self.call("POST", &path, &take) => replied,
            // It goes while it waits, or just when it is served.
            () = sleep(patience), if is_cut => Err(Gone),
        };
        let replied = match replied {
            Ok(replied) if replied.is_ok() => replied,
            Ok(replied) => {
                if !replied.is_for_now() {
                    let fact = format!("worker {} takes: {} {}", self.number, replied.status, replied.body);
                    self.world.books(|books| books.report(What::Broker, fact));
                }
                return sleep(PAUSE).await;
            }
            Err(Gone) => {
                self.wire = None;
                return sleep(PAUSE).await;
            }
        };
        let jobs = replied.body["jobs"].as_array().cloned().unwrap_or_default();
        let now = clock::now();
        let tasks: Vec<Task> = jobs.iter().filter_map(|job| self.begin(kind, job, lease_ms, now)).collect();
        if !tasks.is_empty() {
            self.world.yard.handed_out.notify_waiters();
        }
        for task in tasks {
            let deed = self.choose();
            self.deal_with(&task, deed).await;
        }
    }

    fn begin(&self, kind: Kind, job: &Value, lease_ms: u64, now: clock::Micros) -> Option<Task> {
        let read = || {
            let hold = Hold {
                kind,
                key: job["key"].as_str()?.strip_prefix("key ")?.parse().ok()?,
                job: JobNumber(job["job"].as_str()?.parse().ok()?),
                worker: self.number,
                cost: job["cost"].as_u64()?,
                until: job["lease_until_ms"].as_u64()? * 1_000,
            };
            Some((hold, job["receipt"].as_str()?.to_owned()))
        };
        let Some((hold, receipt)) = read() else {
            let fact = format!("worker {} was handed what it cannot read: {job}", self.number);
            self.world.books(|books| books.report(What::Broker, fact));
            return None;
        };
        let run = self.world.books(|books| books.handed(hold, now));
        Some(Task { run, receipt, cost: hold.cost, lease_ms })
    }

    /// While stock is taken, all is done as it should be.
    fn choose(&mut self) -> Deed {
        if self.phase() != RunPhase::Load {
            return Deed::Complete;
        }
        match self.chances.u8(..100) {
            0..8 => Deed::Die,
            8..16 => Deed::Fail,
            16..19 => Deed::GiveUp,
            19..27 => Deed::GiveBack,
            27..38 => Deed::Extend,
            38..40 => Deed::CompleteLate,
            _ => Deed::Complete,
        }
    }

    async fn deal_with(&mut self, task: &Task, deed: Deed) {
        // While stock is taken nothing is used, so that nobody waits for tokens.
        let used = if self.phase() == RunPhase::Load { self.chances.u64(..=task.cost) } else { 0 };
        let works = Duration::from_millis(self.chances.u64(..40));
        match deed {
            Deed::Die => {
                self.world.books(|books| books.died(task.run));
                // The next is another.
                self.number += super::setup::WORKERS;
            }
            Deed::Fail => self.say(task, Word::Fail { used }).await,
            Deed::GiveUp => self.say(task, Word::GiveUp { used }).await,
            Deed::GiveBack => self.say(task, Word::GiveBack).await,
            Deed::Extend => {
                sleep(works).await;
                if self.extend(task).await {
                    sleep(works).await;
                    self.say(task, Word::Complete { used }).await;
                }
            }
            Deed::CompleteLate => {
                let lease = Duration::from_millis(task.lease_ms);
                sleep(lease.saturating_sub(Duration::from_millis(100)) + works * 5).await;
                self.say(task, Word::Complete { used }).await;
            }
            Deed::Complete => {
                sleep(works).await;
                self.say(task, Word::Complete { used }).await;
            }
        }
    }

    /// Asks for more time. `false` if the job is not its any more.
    async fn extend(&mut self, task: &Task) -> bool {
        let path = format!("/api/jobs/receipt/{}/extend", task.receipt);
        // As long as at first, so the lease never becomes shorter.
        let body = json!({ "lease_ms": task.lease_ms, "progress": { "percent": self.chances.u8(..100) } });
        match self.call("POST", &path, &body).await {
            Ok(replied) if replied.is_ok() => {
                let until = replied.body["lease_until_ms"].as_u64().unwrap_or(0) * 1_000;
                self.world.books(|books| books.extended(task.run, Ok(until), clock::now()));
                true
            }
            Ok(replied) if is_stale(&replied) => {
                self.world.books(|books| books.extended(task.run, Err(()), clock::now()));
                false
            }
            Ok(replied) => {
                self.complain(task, &replied);
                true
            }
            Err(Gone) => {
                self.wire = None;
                true
            }
        }
    }

    /// Ends the hold, and says so until it is answered.
    async fn say(&mut self, task: &Task, word: Word) {
        let run = task.run;
        let (verb, body) = match word {
            Word::Complete { used } => {
                ("complete", json!({ "result": items(run, Filter::All), "used": used }))
            }
            Word::Fail { used } => ("fail", json!({ "error": "not now", "used": used })),
            Word::GiveUp { used } => ("fail", json!({ "error": reason(run), "used": used, "retry": false })),
            Word::GiveBack => ("return", json!({})),
        };
        let path = format!("/api/jobs/receipt/{}/{verb}", task.receipt);
        while self.phase() != RunPhase::Over {
            self.world.books(|books| books.saying(run, word));
            match self.call("POST", &path, &body).await {
                Ok(replied) if replied.is_ok() => {
                    let is_retried = replied.body["retried"].as_bool();
                    self.world.books(|books| {
                        let expected = match word {
                            Word::Complete { .. } | Word::GiveBack => None,
                            Word::Fail { .. } => Some(true),
                            Word::GiveUp { .. } => Some(false),
                        };
                        if is_retried != expected {
                            let fact = format!("{run} said {word:?} and was told {}", replied.body);
                            books.report(What::Broker, fact);
                        }
                        books.settled(run, clock::now());
                    });
                    self.world.yard.settled.notify_waiters();
                    return;
                }
                Ok(replied) if is_stale(&replied) => {
                    self.world.books(|books| books.refused(run, clock::now()));
                    return;
                }
                Ok(replied) => self.complain(task, &replied),
                Err(Gone) => self.wire = None,
            }
            sleep(PAUSE).await;
        }
    }

    fn complain(&self, task: &Task, replied: &Replied) {
        if !replied.is_for_now() {
            let fact = format!("{} was refused: {} {}", task.run, replied.status, replied.body);
            self.world.books(|books| books.report(What::Broker, fact));
        }
    }

    /// On the worker's own connection, which is made again if need be.
    async fn call(&mut self, method: &str, path: &str, body: &Value) -> Result<Replied, Gone> {
        let wire = match &mut self.wire {
            Some(wire) => wire,
            None => self.wire.insert(Wire::connect(self.world.doors.any().http).await?),
        };
        wire.call(method, path, Some(body)).await
    }
}

/// Whether a job is not the worker's any more.
const fn is_stale(replied: &Replied) -> bool {
    matches!(replied.status, 404 | 409)
}
