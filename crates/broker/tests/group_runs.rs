//! Several messages of one group in one pull, and clearing a queue with all that is in flight: as stories, and with the
//! power cut at every operation.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::*;
use nexo_broker::{
    Broker, BrokerOptions, Delivery, GroupTake, NewMessage, PopRequest, PopTerms, QueueConfig,
};
use nexo_log::disk::{FaultyDisk, MemoryDisk};
use nexo_types::{DedupId, GroupId, Millis, Offset, QueueName};

const HOUR: Millis = Millis::from_secs(3600);
const RUNS: PopTerms = PopTerms { groups: GroupTake::Run, in_flight: None };

fn grouped(body: &str) -> NewMessage {
    NewMessage {
        group: Some(GroupId::new(&body[..1]).unwrap()),
        dedup: Some(DedupId::new(body).unwrap()),
        ..NewMessage::new(body.to_owned())
    }
}

async fn push_all(broker: &Broker, queue: &QueueName, bodies: &[&str]) {
    let messages = bodies.iter().map(|body| grouped(body)).collect();
    for answer in broker.push(queue, messages).await.unwrap() {
        assert!(!answer.unwrap().duplicate);
    }
}

async fn pop_runs(broker: &Broker, queue: &QueueName, max: usize) -> Vec<Delivery> {
    let request = PopRequest { max, wait: Millis::ZERO, visibility: Some(HOUR), bytes_max: None };
    broker.pop_on(queue, request, RUNS).await.unwrap()
}

async fn give_back(broker: &Broker, held: &[Delivery]) {
    for answer in broker.nack(&receipts(held), Some(Millis::ZERO)).await {
        answer.unwrap();
    }
}

#[tokio::test]
async fn a_pull_takes_a_group_in_order_and_locks_the_rest_of_it() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    push_all(&broker, &q, &["a1", "b1", "a2", "a3", "b2", "a4"]).await;
    let held = pop_runs(&broker, &q, 3).await;
    assert_eq!(bodies(&held), ["a1", "a2", "a3"]);
    let others = pop_runs(&broker, &q, 9).await;
    assert_eq!(bodies(&others), ["b1", "b2"], "a4 waits for those before it");
    ack(&broker, &held[1..2]).await;
    assert!(pop_runs(&broker, &q, 9).await.is_empty(), "a1 and a3 are still out");
    ack(&broker, &[held[0].clone(), held[2].clone()]).await;
    assert_eq!(bodies(&pop_runs(&broker, &q, 9).await), ["a4"]);
}

#[tokio::test]
async fn what_comes_back_goes_before_what_never_went() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    push_all(&broker, &q, &["a1", "a2", "a3", "a4"]).await;
    let held = pop_runs(&broker, &q, 3).await;
    give_back(&broker, &held[1..2]).await;
    give_back(&broker, &held[..1]).await;
    assert!(pop_runs(&broker, &q, 9).await.is_empty(), "a3 is still out");
    assert!(broker.queue(&q).unwrap().has_returned(&held[0].receipt()), "it waits in its group");
    broker.shutdown().await;
    let broker = open(&disk);
    assert!(pop_runs(&broker, &q, 9).await.is_empty(), "a3 is still out after a restart");
    give_back(&broker, &held[2..]).await;
    let again = pop_runs(&broker, &q, 9).await;
    assert_eq!(bodies(&again), ["a1", "a2", "a3", "a4"]);
    assert_eq!(again.iter().map(|one| one.attempt).collect::<Vec<_>>(), [2, 2, 2, 1]);
}

#[tokio::test]
async fn whoever_takes_one_at_a_time_gets_the_first_that_is_left() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    push_all(&broker, &q, &["a1", "a2", "a3"]).await;
    let held = pop_runs(&broker, &q, 2).await;
    assert!(pop(&broker, &q, 9).await.is_empty(), "the group is locked for everybody");
    ack(&broker, &held[..1]).await;
    give_back(&broker, &held[1..]).await;
    assert_eq!(bodies(&pop(&broker, &q, 9).await), ["a2"]);
}

#[tokio::test]
async fn two_that_wait_do_not_share_a_group() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    let wait = |broker: Broker, q: QueueName| async move {
        let request =
            PopRequest { max: 10, wait: Millis::from_secs(20), visibility: Some(HOUR), bytes_max: None };
        broker.pop_on(&q, request, RUNS).await.unwrap()
    };
    let first = tokio::spawn(wait(broker.clone(), q.clone()));
    let second = tokio::spawn(wait(broker.clone(), q.clone()));
    eventually("both wait", || broker.queue_stats(&q).unwrap().consumers == 2).await;
    push_all(&broker, &q, &["a1", "a2", "a3", "b1", "b2"]).await;
    let mut got = [bodies(&first.await.unwrap()), bodies(&second.await.unwrap())];
    got.sort();
    assert_eq!(got, [vec!["a1", "a2", "a3"], vec!["b1", "b2"]]);
}

#[tokio::test]
async fn clearing_takes_what_is_in_flight_and_forgets_its_ids() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    push_all(&broker, &q, &["a1", "a2", "a3", "b1"]).await;
    let held = pop_runs(&broker, &q, 2).await;
    assert_eq!(broker.clear(&q).await.unwrap(), 4);
    assert!(broker.ack(&receipts(&held)).await.iter().all(Result::is_err));
    push_all(&broker, &q, &["a2"]).await;
    assert_eq!(bodies(&pop_runs(&broker, &q, 9).await), ["a2"], "the group is free, and the id");
    assert_eq!(broker.clear(&q).await.unwrap(), 1);
    broker.shutdown().await;
    let broker = open(&disk);
    let stats = broker.queue_stats(&q).unwrap();
    assert_eq!((stats.ready, stats.leased, stats.grouped), (0, 0, 0));
    push_all(&broker, &q, &["a1", "b1"]).await;
}

/// What a run was told before the power went.
#[derive(Default)]
struct Told {
    confirmed: BTreeMap<String, Offset>,
    acked: Vec<Offset>,
    /// Whether clearing was asked for, and whether it was answered.
    clear: (bool, bool),
}

async fn script(broker: &Broker, told: &mut Told) -> Result<(), ()> {
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.map_err(|_| ())?;
    for round in 0..3 {
        for group in ["a", "b"] {
            let bodies: Vec<String> = (0..5).map(|n| format!("{group}{round}{n}")).collect();
            let messages = bodies.iter().map(|body| grouped(body)).collect();
            let answers = broker.push(&q, messages).await.map_err(|_| ())?;
            for (body, answer) in bodies.into_iter().zip(answers) {
                told.confirmed.insert(body, answer.map_err(|_| ())?.offset);
            }
        }
        let held = pop_runs(broker, &q, 4).await;
        let (done, failed) = held.split_at(2.min(held.len()));
        told.acked.extend(done.iter().map(|one| one.offset));
        for answer in broker.ack(&receipts(done)).await {
            answer.map_err(|_| ())?;
        }
        for one in failed {
            let given_back = broker.nack(&[one.receipt()], Some(Millis::ZERO)).await;
            given_back.into_iter().collect::<Result<(), _>>().map_err(|_| ())?;
        }
        // The last of a group is left with its consumer.
        let mut rest = pop_runs(broker, &q, 3).await;
        let _held = rest.pop();
        give_back_all(broker, &rest).await?;
    }
    told.clear.0 = true;
    broker.clear(&q).await.map_err(|_| ())?;
    told.clear.1 = true;
    Ok(())
}

async fn give_back_all(broker: &Broker, held: &[Delivery]) -> Result<(), ()> {
    for answer in broker.nack(&receipts(held), Some(Millis::ZERO)).await {
        answer.map_err(|_| ())?;
    }
    Ok(())
}

async fn check(told: &Told, disk: FaultyDisk, what: &str) {
    let broker = Broker::open_on(Arc::new(disk), options()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let q = name("q");
    if let Ok(outline) = broker.outline(&q) {
        let cleared = told.clear.0 && outline.messages.is_empty();
        assert!(cleared || !told.clear.1, "{what}: the queue was cleared and has messages");
        if cleared {
            assert!(outline.dedup.is_empty(), "{what}: ids go with their messages");
        }
        for (body, offset) in told.confirmed.iter().filter(|_| !cleared) {
            let known = outline.messages.contains_key(offset) || told.acked.contains(offset);
            assert!(known, "{what}: lost {body}");
        }
        // What can be had comes in the order of its group.
        let mut last: BTreeMap<String, Offset> = BTreeMap::new();
        loop {
            let got = pop_runs(&broker, &q, 3).await;
            if got.is_empty() {
                break;
            }
            for one in &got {
                let group = bodies(std::slice::from_ref(one))[0][..1].to_owned();
                let before = last.insert(group, one.offset);
                assert!(before.is_none_or(|before| before < one.offset), "{what}: out of order");
            }
            ack(&broker, &got).await;
        }
    }
    broker.shutdown().await;
}

fn options() -> BrokerOptions {
    BrokerOptions { segment_bytes: 16 * 1024, ..BrokerOptions::new("faulty") }
}

async fn run(disk: &FaultyDisk) -> Told {
    let mut told = Told::default();
    let Ok(broker) = Broker::open_on(Arc::new(disk.clone()), options()) else { return told };
    // The script ends where the power goes.
    let _ = script(&broker, &mut told).await;
    broker.shutdown().await;
    told
}

#[test]
fn groups_keep_their_order_wherever_the_power_goes() {
    let expect = |told: &Told| {
        assert!(told.clear.1 && told.acked.len() > 3, "the script does what it should");
    };
    cut_power_everywhere(&run, expect, &check);
}
