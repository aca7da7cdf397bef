//! The power is cut at every operation of the disk while jobs are asked for, worked on and answered: what was answered is there,
//! every waiter gets exactly one answer, and tokens that were spent are spent.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::*;
use nexo_broker::job_rules::{BudgetConfig, JobQueueConfig, JobReceipt, JobState, Reply, TokenReport};
use nexo_broker::{Broker, BrokerOptions, JobRequest, NewMessage, PopRequest, QueueConfig, WaiterRequest};
use nexo_log::disk::FaultyDisk;
use nexo_types::{BudgetName, JobQueueName, Millis};
use serde_json::Value;

const TOKENS: u64 = 100;
const COST: u64 = 3;

fn options() -> BrokerOptions {
    BrokerOptions { segment_bytes: 16 * 1024, ..BrokerOptions::new("faulty") }
}

fn deals() -> JobQueueName {
    JobQueueName::new("deals").unwrap()
}

fn api() -> BudgetName {
    BudgetName::new("api").unwrap()
}

/// What a run was told.
#[derive(Default)]
struct Told {
    /// Waiters that were taken, and whether they were to be answered in a queue.
    waiters: BTreeMap<String, bool>,
    /// Asked for, and not answered.
    asked: Option<String>,
    /// Jobs that were completed.
    completed: BTreeSet<JobReceipt>,
    /// Jobs that were handed out and not completed.
    held: BTreeSet<JobReceipt>,
    handed: u64,
    done: bool,
}

async fn run(disk: &FaultyDisk) -> Told {
    let mut told = Told::default();
    let Ok(broker) = Broker::open_on(Arc::new(disk.clone()), options()) else { return told };
    // The script ends where the power goes.
    told.done = script(&broker, &mut told).await.is_ok();
    broker.shutdown().await;
    told
}

async fn ask(broker: &Broker, told: &mut Told, key: &str, id: &str, in_queue: bool) -> Result<(), ()> {
    told.asked = Some(id.to_owned());
    let reply = if in_queue { Reply::Queue(name("answers")) } else { Reply::Call };
    let waiter = WaiterRequest {
        id: id.into(),
        user: String::new(),
        class: "pro".into(),
        due: None,
        filter: "item > 1".into(),
        reply,
    };
    let request = JobRequest {
        kind: "search".into(),
        key: key.into(),
        payload: Bytes::from(format!("\"{}\"", "p".repeat(500))),
        cost: Some(COST),
        deadline: None,
        waiter: Some(waiter),
    };
    broker.ask_job(&deals(), &request).await.map_err(drop)?;
    told.waiters.insert(id.into(), in_queue);
    told.asked = None;
    Ok(())
}

async fn take(broker: &Broker, told: &mut Told) -> Result<Option<JobReceipt>, ()> {
    let lease = Some(Millis::from_secs(3600));
    let taken = broker.take_jobs(&deals(), "w", lease, 1, Duration::ZERO).await.map_err(drop)?;
    let receipt = taken.first().map(|handed| handed.receipt);
    told.held.extend(receipt);
    told.handed += taken.len() as u64;
    Ok(receipt)
}

async fn complete(broker: &Broker, told: &mut Told, receipt: JobReceipt) -> Result<(), ()> {
    let result = Bytes::from_static(b"[1, 2, 3]");
    broker.complete_job(receipt, result, None, TokenReport::default()).await.map_err(drop)?;
    told.held.remove(&receipt);
    told.completed.insert(receipt);
    Ok(())
}

async fn script(broker: &Broker, told: &mut Told) -> Result<(), ()> {
    broker.create_queue(&name("answers"), QueueConfig::default()).await.map_err(drop)?;
    broker.create_queue(&name("filler"), QueueConfig::default()).await.map_err(drop)?;
    let budget = BudgetConfig { initial: TOKENS, capacity: Some(TOKENS), refill: None };
    broker.put_budget(&api(), budget).await.map_err(drop)?;
    let config = JobQueueConfig { budget: Some(api()), ..JobQueueConfig::default() };
    broker.put_job_queue(&deals(), config).await.map_err(drop)?;
    for round in 0..3 {
        for number in 0..4 {
            let key = format!("key {}", (round + number) % 3);
            ask(broker, told, &key, &format!("{round}-{number}"), number % 2 == 0).await?;
        }
        if let Some(receipt) = take(broker, told).await? {
            complete(broker, told, receipt).await?;
        }
        if let Some(receipt) = take(broker, told).await? {
            if round == 1 {
                broker.give_back_job(receipt).await.map_err(drop)?;
                told.held.remove(&receipt);
                told.handed -= 1;
            } else {
                broker.extend_job(receipt, Some(Millis::from_secs(7200)), None).await.map_err(drop)?;
            }
        }
        // Enough to fill segments, so that there are checkpoints in between.
        let message = NewMessage::new("x".repeat(6000));
        broker.push(&name("filler"), vec![message]).await.map_err(drop)?;
    }
    Ok(())
}

/// Everything that is in the queue for answers, by waiter.
async fn answers(broker: &Broker) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    let request = PopRequest { max: 100, wait: Millis::ZERO, visibility: None, bytes_max: None };
    for delivery in broker.pop(&name("answers"), request).await.unwrap_or_default() {
        let answer: Value = serde_json::from_slice(&delivery.message.body).unwrap();
        *found.entry(answer["waiter"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    found
}

async fn check(told: &Told, disk: FaultyDisk, what: &str) {
    let broker = Broker::open_on(Arc::new(disk), options()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let is_there = broker.look_at_jobs(|jobs, _| jobs.queue(&deals()).is_some());
    if !is_there {
        assert!(told.waiters.is_empty(), "{what}: the queue is gone");
        broker.shutdown().await;
        return;
    }
    broker.look_at_jobs(|jobs, now| {
        let queue = jobs.queue(&deals()).unwrap();
        for waiter in told.waiters.keys() {
            assert!(queue.waiter(waiter).is_some(), "{what}: waiter {waiter} is forgotten");
        }
        for receipt in &told.completed {
            let (_, job) = jobs.job(receipt.job).unwrap_or_else(|| panic!("{what}: a job is lost"));
            assert!(
                matches!(job.state(), JobState::Finished(_)),
                "{what}: a completed job is {:?}",
                job.state()
            );
        }
        for receipt in &told.held {
            let (_, job) = jobs.job(receipt.job).unwrap_or_else(|| panic!("{what}: a job is lost"));
            let is_known = job.holds() >= receipt.hold;
            assert!(is_known, "{what}: nobody knows that {receipt} was handed out");
        }
        let budget = jobs.budget(&api()).unwrap();
        let spent = TOKENS as i64 - budget.level(now);
        let at_least = (told.handed * COST) as i64;
        assert!(spent >= at_least, "{what}: {spent} tokens are spent, and {at_least} were handed out");
    });
    // The rest is done, and then everybody has one answer.
    for _ in 0..20 {
        let lease = Some(Millis::from_secs(3600));
        let taken = broker.take_jobs(&deals(), "w", lease, 1, Duration::ZERO).await.unwrap();
        let held = told.held.iter().copied().filter(|receipt| {
            broker.look_at_jobs(|jobs, _| {
                jobs.job(receipt.job).is_some_and(|(_, job)| matches!(job.state(), JobState::Running(_)))
            })
        });
        let receipts: Vec<JobReceipt> = taken.iter().map(|handed| handed.receipt).chain(held).collect();
        if receipts.is_empty() {
            break;
        }
        for receipt in receipts {
            let result = Bytes::from_static(b"[1, 2, 3]");
            // A worker whose hand-out nobody was told of may have it.
            let _ = broker.complete_job(receipt, result, None, TokenReport::default()).await;
        }
    }
    let running: u64 = broker.look_at_jobs(|jobs, _| jobs.queue(&deals()).unwrap().running());
    if running == 0 {
        for waiter in told.waiters.keys() {
            let answer = broker.job_answer(&deals(), waiter, Duration::from_secs(20)).await.unwrap().unwrap();
            assert_eq!(answer.result, "[2,3]", "{what}");
        }
        let unanswered = || broker.look_at_jobs(|jobs, _| jobs.to_answer(1).next().is_some());
        while unanswered() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let found = answers(&broker).await;
        for (waiter, in_queue) in &told.waiters {
            let count = found.get(waiter).copied().unwrap_or(0);
            assert_eq!(count, usize::from(*in_queue), "{what}: answers to {waiter} in the queue");
        }
        for (waiter, count) in &found {
            let is_known = told.waiters.contains_key(waiter) || told.asked.as_ref() == Some(waiter);
            assert!(is_known && *count == 1, "{what}: {count} answers to {waiter}");
        }
    }
    broker.shutdown().await;
}

#[test]
fn every_waiter_gets_one_answer_wherever_the_power_goes() {
    let expect = |told: &Told| {
        assert!(told.done, "the script does what it should");
        assert!(told.waiters.len() == 12 && told.completed.len() >= 2, "{:?}", told.completed);
    };
    cut_power_everywhere(&run, expect, &check);
}
