//! The power goes at every operation of a broker's run, and whatever the disk then holds: nothing that was
//! confirmed is lost, nothing that was acknowledged and confirmed comes back, nothing is invented.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::*;
use nexo_broker::{Broker, BrokerOptions, Delivery, NewMessage, PopRequest, QueueConfig, Redrive};
use nexo_core::queue::{MessageState, Stage};
use nexo_log::disk::{CutMode, FaultyDisk};
use nexo_types::{DedupId, Millis, Offset, Priority, QueueName};

/// What a run was told, to compare with what is found afterwards.
#[derive(Default)]
struct Told {
    /// Every body that was ever pushed.
    pushed: BTreeSet<String>,
    /// Those whose push was confirmed, with the queue and the id they got.
    confirmed: BTreeMap<String, (QueueName, Offset)>,
    /// Those for which an acknowledgement, purge or deletion was asked for.
    maybe_gone: BTreeSet<String>,
    /// Those for which it was confirmed.
    gone: BTreeSet<String>,
    /// Confirmed queues.
    queues: BTreeSet<QueueName>,
    deleted: BTreeSet<QueueName>,
    /// Delivery counts that a later confirmed write must have made durable.
    attempts: BTreeMap<String, u32>,
}

struct Run {
    broker: Broker,
    told: Told,
    next: usize,
}

type Cut = ();

fn options() -> BrokerOptions {
    BrokerOptions { segment_bytes: 16 * 1024, ..BrokerOptions::new("faulty") }
}

impl Run {
    async fn create(&mut self, queue: &str, config: QueueConfig) -> Result<(), Cut> {
        let queue = name(queue);
        self.broker.create_queue(&queue, config).await.map_err(|_| ())?;
        self.told.queues.insert(queue);
        Ok(())
    }

    async fn push(&mut self, queue: &str, count: usize, size: usize) -> Result<(), Cut> {
        let messages: Vec<NewMessage> = (0..count).map(|_| self.message(size)).collect();
        let bodies: Vec<String> =
            messages.iter().map(|m| String::from_utf8(m.body.to_vec()).unwrap()).collect();
        self.told.pushed.extend(bodies.iter().cloned());
        let answers = self.broker.push(&name(queue), messages).await.map_err(|_| ())?;
        for (body, answer) in bodies.into_iter().zip(answers) {
            if let Ok(pushed) = answer {
                self.told.confirmed.insert(body, (name(queue), pushed.offset));
            }
        }
        Ok(())
    }

    fn message(&mut self, size: usize) -> NewMessage {
        self.next += 1;
        let n = self.next;
        let body = format!("{n:06}{}", "x".repeat(size));
        NewMessage {
            priority: Priority((n % 3) as u8),
            delay: if n.is_multiple_of(7) { Millis::from_secs(3600) } else { Millis::ZERO },
            dedup: n.is_multiple_of(5).then(|| DedupId::new(&n.to_string()).unwrap()),
            ..NewMessage::new(body)
        }
    }

    async fn pop(&mut self, queue: &str, max: usize) -> Result<Vec<Delivery>, Cut> {
        let request = PopRequest {
            max,
            wait: Millis::ZERO,
            visibility: Some(Millis::from_secs(3600)),
            bytes_max: None,
        };
        let held = self.broker.pop(&name(queue), request).await.map_err(|_| ())?;
        // A log that has failed hands nothing out any more.
        if held.len() < max && is_unhealthy(&self.broker) {
            return Err(());
        }
        for one in &held {
            let body = bodies(std::slice::from_ref(one)).remove(0);
            assert!(self.told.pushed.contains(&body));
        }
        Ok(held)
    }

    async fn ack(&mut self, held: &[Delivery]) -> Result<(), Cut> {
        self.told.maybe_gone.extend(bodies(held));
        for answer in self.broker.ack(&receipts(held)).await {
            answer.map_err(|_| ())?;
        }
        self.told.gone.extend(bodies(held));
        Ok(())
    }

    /// Gives messages back; once a later push is confirmed, so are their attempts.
    async fn fail(&mut self, queue: &str, held: &[Delivery]) -> Result<(), Cut> {
        for answer in self.broker.nack(&receipts(held), Some(Millis::ZERO)).await {
            answer.map_err(|_| ())?;
        }
        self.push(queue, 1, 10).await?;
        for one in held {
            self.told.attempts.insert(bodies(std::slice::from_ref(one)).remove(0), one.attempt);
        }
        Ok(())
    }

    /// Says that messages are done after they have come back.
    async fn ack_late(&mut self, held: &[Delivery]) -> Result<(), Cut> {
        for answer in self.broker.nack(&receipts(held), Some(Millis::ZERO)).await {
            answer.map_err(|_| ())?;
        }
        self.told.maybe_gone.extend(bodies(held));
        for answer in self.broker.ack_even_late(&receipts(held)).await {
            answer.map_err(|_| ())?;
        }
        self.told.gone.extend(bodies(held));
        Ok(())
    }

    async fn script(&mut self) -> Result<(), Cut> {
        self.create("q", QueueConfig { max_attempts: Some(2), ..QueueConfig::default() }).await?;
        self.create("other", QueueConfig::default()).await?;
        self.create("doomed", QueueConfig::default()).await?;
        self.push("q", 6, 100).await?;
        self.push("other", 3, 50).await?;
        self.push("doomed", 2, 50).await?;
        let held = self.pop("q", 4).await?;
        self.ack(&held[..2]).await?;
        self.fail("q", &held[2..]).await?;
        let late = self.pop("other", 1).await?;
        self.ack_late(&late).await?;
        for _ in 0..6 {
            // Enough to fill segments, so that there are seals, checkpoints and retired segments.
            self.push("q", 4, 700).await?;
            self.push("other", 2, 700).await?;
            let held = self.pop("q", 5).await?;
            let (done, failed) = held.split_at(3.min(held.len()));
            self.ack(done).await?;
            self.fail("q", failed).await?;
        }
        // By now some have used up their attempts and have moved, each in one frame.
        let dead = name("q_dlq");
        eventually("dead letters move", || {
            self.broker.queue_stats(&dead).is_ok() || is_unhealthy(&self.broker)
        })
        .await;
        self.broker
            .redrive(&dead, Redrive { max: Some(2), ..Redrive::default() }, &|_| {})
            .await
            .map_err(|_| ())?;
        self.push("q", 2, 300).await?;
        let doomed: Vec<String> = bodies(&self.broker.peek(&name("doomed"), 9).await.map_err(|_| ())?);
        self.told.maybe_gone.extend(doomed.iter().cloned());
        self.told.deleted.insert(name("doomed"));
        self.broker.delete_queue(&name("doomed")).await.map_err(|_| ())?;
        self.told.gone.extend(doomed);
        let waiting = bodies(&self.broker.peek(&name("other"), 99).await.map_err(|_| ())?);
        self.told.maybe_gone.extend(waiting.iter().cloned());
        // Delayed ones go as well; they are the confirmed ones of that queue that cannot be seen.
        self.broker.purge(&name("other")).await.map_err(|_| ())?;
        self.told.gone.extend(waiting);
        self.push("other", 3, 700).await?;
        Ok(())
    }
}

fn is_unhealthy(broker: &Broker) -> bool {
    broker.health() != nexo_broker::Health::Ok
}

async fn run(disk: &FaultyDisk) -> Told {
    let Ok(broker) = Broker::open_on(Arc::new(disk.clone()), options()) else { return Told::default() };
    let mut run = Run { broker, told: Told::default(), next: 0 };
    // The script ends where the power goes.
    let _ = run.script().await;
    run.broker.shutdown().await;
    run.told
}

/// Everything in all queues, wherever it is, with its attempts.
async fn contents(broker: &Broker) -> BTreeMap<String, Vec<(QueueName, u32)>> {
    let mut found: BTreeMap<String, Vec<(QueueName, u32)>> = BTreeMap::new();
    for queue in broker.list_queues(&nexo_broker::ListRequest { limit: 100, ..Default::default() }) {
        for one in broker.peek(&queue.name, 999).await.unwrap() {
            let body = bodies(std::slice::from_ref(&one)).remove(0);
            found.entry(body).or_default().push((queue.name.clone(), one.attempt));
        }
    }
    found
}

fn has_dying(broker: &Broker) -> bool {
    let queues = broker.list_queues(&nexo_broker::ListRequest { limit: 100, ..Default::default() });
    let outlines = queues.iter().filter_map(|queue| broker.outline(&queue.name).ok());
    let is_dying = |message: &MessageState| {
        matches!(message.stage, Stage::Dying(_) | Stage::Leased { dying: Some(_), .. })
    };
    outlines.into_iter().any(|outline| outline.messages.values().any(is_dying))
}

async fn check(told: &Told, disk: FaultyDisk, what: &str) {
    let broker = Broker::open_on(Arc::new(disk), options()).unwrap_or_else(|error| panic!("{what}: {error}"));
    // What had died before the cut is moved now; somebody who looks meanwhile sees it in neither queue.
    eventually("dead letters move", || !has_dying(&broker)).await;
    let found = contents(&broker).await;
    for queue in told.queues.difference(&told.deleted) {
        assert!(broker.queue_stats(queue).is_ok(), "{what}: queue '{queue}' was lost");
    }
    for (body, (queue, offset)) in told.confirmed.iter().filter(|(body, _)| !told.maybe_gone.contains(*body))
    {
        // What is leased or delayed cannot be peeked at, but the queue knows its id.
        let held = || broker.outline(queue).is_ok_and(|outline| outline.messages.contains_key(offset));
        // Delayed messages of a purged or deleted queue went with it, and the script does not know which.
        let swept =
            ["other", "doomed"].contains(&queue.as_str()) && !told.maybe_gone.is_empty() && is_delayed(body);
        assert!(found.contains_key(body) || held() || swept, "{what}: lost '{}'", &body[..6]);
    }
    for (body, places) in &found {
        assert!(told.pushed.contains(body), "{what}: '{body}' was never pushed");
        assert!(!told.gone.contains(body), "{what}: '{}' was acknowledged and is back", &body[..6]);
        assert_eq!(places.len(), 1, "{what}: '{}' is in several places: {places:?}", &body[..6]);
        let (queue, attempts) = &places[0];
        if let Some(known) = told.attempts.get(body)
            && queue.as_str() == "q"
        {
            let redriven = *attempts == 0;
            assert!(
                attempts >= known || redriven,
                "{what}: '{}' had {known} attempts, now {attempts}",
                &body[..6]
            );
        }
    }
    broker.shutdown().await;
}

/// By how the script makes them.
fn is_delayed(body: &str) -> bool {
    body[..6].parse::<usize>().unwrap().is_multiple_of(7)
}

fn on_runtime<R>(future: impl Future<Output = R>) -> R {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn nothing_confirmed_is_lost_wherever_the_power_goes() {
    let calm = FaultyDisk::new();
    let told = on_runtime(run(&calm));
    assert!(told.gone.len() > 15 && told.attempts.len() > 5, "the script does what it should");
    on_runtime(check(&told, calm.restart(CutMode::Drop, 1), "after a clean end"));
    let operations = calm.operations();
    assert!(operations > 100, "there is something to cut");
    let modes = [CutMode::Keep, CutMode::Drop, CutMode::Tear, CutMode::Reorder];
    let mut cut = 0;
    // Threads make runs differ a little, so a few more than were counted.
    for operation in 1..=operations + 20 {
        let disk = FaultyDisk::new();
        disk.cut_power_at(operation);
        let told = on_runtime(run(&disk));
        if !disk.is_cut() {
            continue;
        }
        cut += 1;
        for mode in modes {
            let found = disk.restart(mode, operation);
            on_runtime(check(&told, found, &format!("cut at operation {operation}, {mode:?}")));
        }
    }
    assert!(cut as u64 > operations / 2, "most runs were cut");
}

#[test]
fn a_full_disk_refuses_pushes_and_recovers_when_space_returns() {
    on_runtime(async {
        let disk = FaultyDisk::new();
        let broker = Broker::open_on(Arc::new(disk.clone()), options()).unwrap();
        let q = name("q");
        broker.create_queue(&q, QueueConfig::default()).await.unwrap();
        push(&broker, &q, "early").await;
        disk.set_bytes_max(Some(disk.used_bytes()));
        let mut confirmed = 1;
        let error = loop {
            match broker.push(&q, vec![NewMessage::new("x".repeat(1000))]).await {
                Ok(_) => confirmed += 1,
                Err(error) => break error,
            }
            assert!(confirmed < 1000, "the disk never fills");
        };
        assert!(error.to_string().contains("full"), "{error}");
        assert!(is_unhealthy(&broker), "health says so too");
        let held = pop(&broker, &q, 5).await;
        assert_eq!(held.len(), 5, "what is there can still be worked on");
        ack(&broker, &held).await;
        disk.set_bytes_max(None);
        eventually("the disk recovers", || !is_unhealthy(&broker)).await;
        push(&broker, &q, "late").await;
        assert_eq!(broker.queue_stats(&q).unwrap().ready, confirmed - 5 + 1);
        broker.shutdown().await;
        let broker = Broker::open_on(Arc::new(disk), options()).unwrap();
        assert_eq!(broker.queue_stats(&q).unwrap().ready, confirmed - 5 + 1);
        broker.shutdown().await;
    });
}

#[test]
fn a_failed_sync_is_never_taken_for_a_good_one() {
    on_runtime(async {
        let disk = FaultyDisk::new();
        let broker = Broker::open_on(Arc::new(disk.clone()), options()).unwrap();
        let q = name("q");
        broker.create_queue(&q, QueueConfig::default()).await.unwrap();
        disk.fail_next_sync();
        assert!(broker.push(&q, vec![NewMessage::new("x")]).await.is_err());
        assert!(is_unhealthy(&broker));
        let error = broker.push(&q, vec![NewMessage::new("y")]).await.unwrap_err();
        assert!(error.to_string().contains("failed"), "{error}");
        broker.shutdown().await;
    });
}
