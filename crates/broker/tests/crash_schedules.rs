//! The power is cut at every operation of the disk while schedules are set, fire and are deleted: what was answered is there, and each
//! time of a table has been fired once, to all of its queues.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use nexo_broker::schedule::{
    Action, CatchUp, Schedule, ScheduleChange, ScheduleStatus, ScheduledMessage, TimeTable, as_text,
};
use nexo_broker::topology::{Binding, Destination};
use nexo_broker::{Broker, BrokerOptions, HeaderValue, Health, NewMessage, QueueConfig};
use nexo_log::disk::FaultyDisk;
use nexo_types::{ExchangeName, Millis, QueueName, Timestamp, VhostName};

/// The year 2100: later than whatever the clock says.
const START: Timestamp = Timestamp(4_102_444_800_000);
const MINUTE: Millis = Millis::from_secs(60);

fn options() -> BrokerOptions {
    BrokerOptions { segment_bytes: 16 * 1024, ..BrokerOptions::new("faulty") }
}

fn minute(number: u64) -> Timestamp {
    START.plus(Millis(MINUTE.0 * number))
}

/// A broker whose clock says that so many minutes have passed, and some seconds.
fn open_at(disk: &FaultyDisk, minutes: u64) -> Option<Broker> {
    let time = minute(minutes).plus(Millis::from_secs(20));
    Broker::open_at(Arc::new(disk.clone()), options(), time).ok()
}

fn queues() -> [QueueName; 3] {
    [name("pushed"), name("one"), name("two")]
}

fn fanout() -> ExchangeName {
    ExchangeName::new("amq.fanout").unwrap()
}

/// Every minute, and each of them counts.
fn schedule(text: &str, action: Action) -> Schedule {
    Schedule {
        name: text.into(),
        table: TimeTable::every(MINUTE, Some(START)).unwrap(),
        action,
        catch_up: CatchUp::All { max: 100 },
        until: None,
        runs_max: None,
        description: "".into(),
    }
}

fn pushes(text: &str) -> Schedule {
    let message = ScheduledMessage { body: "p".into(), ..ScheduledMessage::default() };
    schedule(text, Action::Push { queue: name("pushed"), message })
}

fn publishes(text: &str) -> Schedule {
    // Long enough to be stored once for both queues, and to fill segments, so that there are checkpoints in between.
    let message = ScheduledMessage { body: "x".repeat(5_000).into(), ..ScheduledMessage::default() };
    schedule(text, Action::Publish { exchange: fanout(), routing_key: "".into(), message })
}

/// What was answered.
#[derive(Default)]
struct Told {
    set: Vec<&'static str>,
    deleted: bool,
    /// What was seen to be fired, with a sync behind it.
    runs: Vec<(&'static str, u64)>,
    finished: bool,
}

fn status(broker: &Broker, name: &str) -> Option<ScheduleStatus> {
    broker.schedule(&VhostName::DEFAULT, name).map(|info| info.entry.status.clone())
}

/// Waits until all times that have come are fired, unless the power goes.
async fn settled(broker: &Broker, until: Timestamp) -> Result<(), ()> {
    loop {
        if broker.health() != Health::Ok {
            return Err(());
        }
        if broker.schedules().iter().all(|info| info.entry.status.next.is_none_or(|next| next > until)) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn put(broker: &Broker, told: &mut Told, name: &'static str, schedule: Schedule) -> Result<(), ()> {
    let (vhost, schedule) = (VhostName::DEFAULT, Arc::new(schedule));
    let change = ScheduleChange::Put { vhost, schedule, set_by: "ann".into(), is_paused: None };
    broker.change_schedules(&[change]).await.map_err(|_| ())?;
    told.set.push(name);
    Ok(())
}

async fn run(disk: &FaultyDisk) -> Told {
    let mut told = Told::default();
    // The script ends where the power goes.
    let _ = script(disk, &mut told).await;
    told
}

async fn script(disk: &FaultyDisk, told: &mut Told) -> Result<(), ()> {
    let broker = open_at(disk, 0).ok_or(())?;
    let done = set_up(&broker, told).await;
    broker.shutdown().await;
    drop(broker);
    done?;
    for minutes in [3, 4] {
        let broker = open_at(disk, minutes).ok_or(())?;
        let done = go_on(&broker, told, minutes).await;
        broker.shutdown().await;
        drop(broker);
        done?;
    }
    told.finished = true;
    Ok(())
}

async fn set_up(broker: &Broker, told: &mut Told) -> Result<(), ()> {
    for queue in queues() {
        broker.create_queue(&queue, QueueConfig::default()).await.map_err(|_| ())?;
    }
    for queue in [name("one"), name("two")] {
        let binding = Binding::new(fanout(), Destination::Queue(queue), "".into(), vec![]);
        broker.bind(binding).await.map_err(|_| ())?;
    }
    put(broker, told, "push", pushes("push")).await?;
    put(broker, told, "publish", publishes("publish")).await?;
    put(broker, told, "gone", pushes("gone")).await
}

async fn go_on(broker: &Broker, told: &mut Told, minutes: u64) -> Result<(), ()> {
    settled(broker, minute(minutes)).await?;
    let runs: Vec<_> =
        told.set.iter().map(|name| (*name, status(broker, name).map_or(0, |s| s.runs))).collect();
    if minutes == 3 {
        let gone = ScheduleChange::Delete { vhost: VhostName::DEFAULT, name: "gone".into() };
        broker.change_schedules(&[gone]).await.map_err(|_| ())?;
        told.deleted = true;
    }
    // What comes before it in the log is synced with it.
    broker.push(&name("pushed"), vec![NewMessage::new("filler")]).await.map_err(|_| ())?;
    told.runs = runs;
    Ok(())
}

/// The schedule and the time of every message in a queue.
async fn sent(broker: &Broker, queue: &QueueName) -> Vec<(String, String)> {
    let seen = broker.peek(queue, 1_000).await.unwrap_or_default();
    let text = |headers: &[(String, HeaderValue)], wanted: &str| match headers
        .iter()
        .find(|(name, _)| name == wanted)
    {
        Some((_, HeaderValue::Text(text))) => text.clone(),
        _ => String::new(),
    };
    let headers = seen.iter().map(|delivery| delivery.headers().unwrap().0);
    headers.map(|all| (text(&all, "x-schedule"), text(&all, "x-scheduled-at"))).collect()
}

async fn check(told: &Told, disk: FaultyDisk, what: &str) {
    let broker = open_at(&disk, 6).unwrap_or_else(|| panic!("{what}: it does not open"));
    settled(&broker, minute(6)).await.unwrap_or_else(|()| panic!("{what}: it is not well"));
    for name in &told.set {
        let is_there = status(&broker, name).is_some();
        let may_be_gone = *name == "gone" && told.set.len() == 3;
        assert!(is_there || may_be_gone, "{what}: schedule '{name}' was set and is not there");
    }
    assert!(!told.deleted || status(&broker, "gone").is_none(), "{what}: it was deleted");
    for (name, runs) in &told.runs {
        let found = status(&broker, name).map(|status| status.runs);
        assert!(found.is_none_or(|found| found >= *runs), "{what}: {name} ran {runs} times, now {found:?}");
    }
    for (name, to) in [("push", &queues()[..1]), ("publish", &queues()[1..]), ("gone", &queues()[..1])] {
        let status = status(&broker, name);
        for queue in to {
            let mut times = sent(&broker, queue).await;
            times.retain(|(schedule, _)| schedule == name);
            let times: Vec<String> = times.into_iter().map(|(_, at)| at).collect();
            let last = match &status {
                Some(status) => {
                    assert_eq!(status.next, Some(minute(7)), "{what}: {name}");
                    assert_eq!((status.runs, status.missed, status.failures), (6, 0, 0), "{what}: {name}");
                    6
                }
                // One that is gone has fired some of its times, or all until then.
                None => times.len() as u64,
            };
            let expected: Vec<String> = (1..=last).map(|number| as_text(minute(number))).collect();
            assert_eq!(times, expected, "{what}: {name} to {queue}");
        }
    }
    broker.shutdown().await;
}

#[test]
fn each_time_is_fired_once_wherever_the_power_goes() {
    let expect = |told: &Told| {
        assert!(told.finished && told.deleted, "the script does what it should");
        assert_eq!(told.runs, [("push", 4), ("publish", 4), ("gone", 0)]);
    };
    cut_power_everywhere(&run, expect, &check);
}
