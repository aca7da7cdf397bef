//! Schedules: the broker sends by itself, at the times that it was told, once for each of them; what it cannot send is told.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use common::*;
use nexo_broker::schedule::{
    Action, CatchUp, Schedule, ScheduleChange, ScheduleError, ScheduledMessage, TimeTable, as_text,
};
use nexo_broker::topology::{Binding, Destination, ExchangeKind, ExchangeSpec, Matching, VhostSpec};
use nexo_broker::{
    Broker, BrokerOptions, Delivery, Fate, HeaderValue, Overflow, QueueConfig, ScheduleChangeError,
    ScheduleInfo, ScheduleRunError,
};
use nexo_log::disk::MemoryDisk;
use nexo_types::{ExchangeName, Millis, QueueName, Timestamp, VhostName};

fn message(body: &'static str) -> ScheduledMessage {
    let headers = vec![("kind".into(), "test".into())];
    ScheduledMessage { body: Bytes::from_static(body.as_bytes()), headers, ..ScheduledMessage::default() }
}

fn push_to(queue: &QueueName) -> Action {
    Action::Push { queue: queue.clone(), message: message("tick") }
}

fn every(name: &str, ms: u64, action: Action) -> Schedule {
    Schedule {
        name: name.into(),
        table: TimeTable::every(Millis(ms), None).unwrap(),
        action,
        catch_up: CatchUp::Once,
        until: None,
        runs_max: None,
        description: "".into(),
    }
}

async fn put_at(broker: &Broker, vhost: &VhostName, schedule: Schedule) -> Result<(), ScheduleChangeError> {
    let (vhost, schedule) = (vhost.clone(), Arc::new(schedule));
    let change = ScheduleChange::Put { vhost, schedule, set_by: "ann".into(), is_paused: None };
    broker.change_schedules(&[change]).await
}

async fn put(broker: &Broker, schedule: Schedule) {
    put_at(broker, &VhostName::DEFAULT, schedule).await.unwrap();
}

async fn pause(broker: &Broker, name: &str, is_paused: bool) {
    let change = ScheduleChange::Pause { vhost: VhostName::DEFAULT, name: name.into(), is_paused };
    broker.change_schedules(&[change]).await.unwrap();
}

fn info(broker: &Broker, name: &str) -> ScheduleInfo {
    broker.schedule(&VhostName::DEFAULT, name).unwrap()
}

fn runs(broker: &Broker, name: &str) -> u64 {
    info(broker, name).entry.status.runs
}

fn header(delivery: &Delivery, wanted: &str) -> String {
    let headers = delivery.headers().unwrap();
    match headers.0.into_iter().find(|(name, _)| name == wanted) {
        Some((_, HeaderValue::Text(text))) => text,
        other => panic!("{wanted}: {other:?}"),
    }
}

/// The times of all messages in a queue.
async fn times(broker: &Broker, queue: &QueueName) -> Vec<String> {
    let seen = broker.peek(queue, 1_000).await.unwrap();
    seen.iter().map(|delivery| header(delivery, "x-scheduled-at")).collect()
}

/// An hour from now, on a whole second: later than whatever the clock says while a test runs.
fn soon() -> Timestamp {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Timestamp((now.as_secs() + 3600) * 1000)
}

fn open_at(disk: &MemoryDisk, at: Timestamp) -> Broker {
    Broker::open_at(Arc::new(disk.clone()), options(), at).unwrap()
}

async fn close(broker: Broker) {
    broker.shutdown().await;
}

#[tokio::test]
async fn an_interval_pushes_again_and_again() {
    let (broker, queue) = with_queue(QueueConfig::default()).await;
    put(&broker, every("beat", 100, push_to(&queue))).await;
    eventually("three messages", || runs(&broker, "beat") >= 3).await;
    pause(&broker, "beat", true).await;
    let status = info(&broker, "beat").entry.status.clone();
    let seen = broker.peek(&queue, 1_000).await.unwrap();
    assert_eq!((seen.len() as u64, status.next), (status.runs, None));
    assert_eq!(bodies(&seen[..1]), ["tick"]);
    assert_eq!(
        (header(&seen[0], "x-schedule").as_str(), header(&seen[0], "kind").as_str()),
        ("beat", "test")
    );
    assert_eq!(header(seen.last().unwrap(), "x-scheduled-at"), as_text(status.last_scheduled.unwrap()));
    let stats = broker.stats().schedules;
    assert_eq!((stats.schedules, stats.fired, stats.failed), (1, status.runs, 0));
    pause(&broker, "beat", false).await;
    eventually("it goes on", || runs(&broker, "beat") > status.runs).await;
    close(broker).await;
}

#[tokio::test]
async fn a_cron_line_publishes_to_all_queues_of_an_exchange() {
    let broker = open(&MemoryDisk::new());
    let fanout = ExchangeName::new("amq.fanout").unwrap();
    let queues = [name("one"), name("two")];
    for queue in &queues {
        broker.create_queue(queue, QueueConfig::default()).await.unwrap();
        let to = Destination::Queue(queue.clone());
        broker.bind(Binding::new(fanout.clone(), to, "".into(), vec![])).await.unwrap();
    }
    let action = Action::Publish { exchange: fanout, routing_key: "key".into(), message: message("news") };
    let table = TimeTable::cron("* * * * * *", "Asia/Tokyo").unwrap();
    put(&broker, Schedule { table, runs_max: Some(2), ..every("news", 100, action) }).await;
    eventually("two runs", || runs(&broker, "news") == 2).await;
    assert_eq!(info(&broker, "news").entry.status.next, None, "it has ended");
    let seen = times(&broker, &queues[0]).await;
    assert_eq!((seen.len(), &seen), (2, &times(&broker, &queues[1]).await));
    assert!(seen.iter().all(|at| at.ends_with(":00Z") || !at.contains('.')), "{seen:?}");
    close(broker).await;
}

#[tokio::test]
async fn after_a_downtime_it_catches_up_as_it_was_told() {
    let (disk, start) = (MemoryDisk::new(), soon());
    let broker = open_at(&disk, start);
    let ways = [("skip", CatchUp::Skip), ("once", CatchUp::Once), ("all", CatchUp::All { max: 4 })];
    for (text, catch_up) in ways {
        broker.create_queue(&name(text), QueueConfig::default()).await.unwrap();
        let table = TimeTable::every(Millis::from_secs(60), Some(start)).unwrap();
        put(&broker, Schedule { catch_up, table, ..every(text, 100, push_to(&name(text))) }).await;
    }
    close(broker).await;
    // Six times have come meanwhile, the last one half a minute ago.
    let minute = |number: u64| start.plus(Millis::from_secs(60 * number));
    let broker = open_at(&disk, minute(6).plus(Millis::from_secs(30)));
    let done = |name| info(&broker, name).entry.status.next == Some(minute(7));
    eventually("all have caught up", || ["skip", "once", "all"].into_iter().all(done)).await;
    assert_eq!(times(&broker, &name("skip")).await, [""; 0]);
    assert_eq!(times(&broker, &name("once")).await, [as_text(minute(6))]);
    let expected: Vec<String> = (3..=6).map(|number| as_text(minute(number))).collect();
    assert_eq!(times(&broker, &name("all")).await, expected);
    let missed = |name| info(&broker, name).entry.status.missed;
    assert_eq!([missed("skip"), missed("once"), missed("all")], [6, 5, 2]);
    assert_eq!(broker.stats().schedules.missed, 13);
    close(broker).await;
    // Nothing more until the next time, which is fired as soon as it has come.
    let broker = open_at(&disk, minute(7));
    let done = |name| info(&broker, name).entry.status.last_scheduled == Some(minute(7));
    eventually("the next time is fired", || ["skip", "once", "all"].into_iter().all(done)).await;
    assert_eq!(times(&broker, &name("once")).await.len(), 2);
    close(broker).await;
    let broker = open_at(&disk, minute(7).plus(Millis::from_secs(1)));
    let missed = info(&broker, "all").entry.status.missed;
    assert_eq!(missed, 2, "what was fired is not fired again");
    assert_eq!(times(&broker, &name("all")).await.len(), 5);
    close(broker).await;
}

#[tokio::test]
async fn a_year_of_seconds_is_caught_up_with_in_a_moment() {
    let (disk, start) = (MemoryDisk::new(), soon());
    let broker = open_at(&disk, start);
    broker.create_queue(&name("q"), QueueConfig::default()).await.unwrap();
    let table = TimeTable::cron("* * * * * *", "UTC").unwrap();
    let catch_up = CatchUp::All { max: 700 };
    put(&broker, Schedule { table, catch_up, ..every("each", 100, push_to(&name("q"))) }).await;
    pause(&broker, "each", true).await;
    pause(&broker, "each", false).await;
    let before = runs(&broker, "each");
    close(broker).await;
    let broker = open_at(&disk, start.plus(Millis::from_secs(365 * 24 * 3600)));
    eventually("all of them", || runs(&broker, "each") >= before + 700).await;
    assert!(info(&broker, "each").entry.status.missed >= 10_000);
    pause(&broker, "each", true).await;
    let seen = times(&broker, &name("q")).await;
    let mut unique = seen.clone();
    unique.dedup();
    assert_eq!(seen, unique, "none comes twice");
    close(broker).await;
}

#[tokio::test]
async fn what_is_not_there_is_told_and_others_go_on() {
    let (broker, queue) = with_queue(QueueConfig::default()).await;
    let gone = name("gone");
    broker.create_queue(&gone, QueueConfig::default()).await.unwrap();
    put(&broker, every("lost", 100, push_to(&gone))).await;
    put(&broker, every("fine", 100, push_to(&queue))).await;
    broker.delete_queue(&gone).await.unwrap();
    let failures = |name| info(&broker, name).entry.status.failures;
    let (before, fine) = (failures("lost"), runs(&broker, "fine"));
    eventually("failures", || failures("lost") >= before + 2).await;
    eventually("others go on", || runs(&broker, "fine") >= fine + 2).await;
    let (_, error) = info(&broker, "lost").entry.status.last_error.clone().unwrap();
    assert_eq!(&*error, "queue 'gone' does not exist");
    assert!(broker.stats().schedules.failed >= 2);
    let refused = broker.run_schedule(&VhostName::DEFAULT, "lost").await.unwrap_err();
    assert_eq!(refused, ScheduleRunError::Failed { reason: "queue 'gone' does not exist".into() });
    let sent = runs(&broker, "lost");
    broker.create_queue(&gone, QueueConfig::default()).await.unwrap();
    eventually("it works again", || runs(&broker, "lost") > sent).await;
    close(broker).await;
}

#[tokio::test]
async fn an_exchange_without_a_queue_for_it_is_told() {
    let broker = open(&MemoryDisk::new());
    let direct = ExchangeName::new("amq.direct").unwrap();
    let action = Action::Publish { exchange: direct, routing_key: "k".into(), message: message("x") };
    put(&broker, every("lonely", 100, action)).await;
    eventually("a failure", || info(&broker, "lonely").entry.status.failures > 0).await;
    let (_, error) = info(&broker, "lonely").entry.status.last_error.clone().unwrap();
    assert_eq!(&*error, "exchange 'amq.direct' has no queue for routing key 'k'");
    close(broker).await;
}

#[tokio::test]
async fn a_full_queue_fails_and_its_dead_letters_are_kept() {
    let full = QueueConfig {
        max_messages: Some(1),
        overflow: Overflow::Reject,
        on_refusal: Fate::DeadLetter,
        ..QueueConfig::default()
    };
    let (broker, queue) = with_queue(full.clone()).await;
    put(&broker, every("much", 100, push_to(&queue))).await;
    eventually("failures", || info(&broker, "much").entry.status.failures >= 2).await;
    pause(&broker, "much", true).await;
    let status = info(&broker, "much").entry.status.clone();
    assert_eq!(status.runs, 1);
    assert!(status.last_error.unwrap().1.contains("queue 'q' is full"));
    let letters = full.dead_letter_queue_of(&queue).unwrap().unwrap();
    let moved = || broker.queue_stats(&letters).is_ok_and(|stats| stats.ready == status.failures);
    eventually("what was refused is a dead letter", moved).await;
    close(broker).await;
}

#[tokio::test]
async fn an_alarm_holds_it_up_and_loses_nothing() {
    let (dir, queue) = (tempfile::tempdir().unwrap(), name("q"));
    let broker = Broker::open(BrokerOptions::new(dir.path())).unwrap();
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    let all = Schedule { catch_up: CatchUp::All { max: 1000 }, ..every("all", 100, push_to(&queue)) };
    put(&broker, all).await;
    broker.set_disk_free_min(u64::MAX);
    let waits = || info(&broker, "all").waits_for;
    eventually("it waits", || waits().is_some()).await;
    let late = || broker.stats().schedules.late;
    eventually("it is late", || late() >= Millis(300)).await;
    let held = runs(&broker, "all");
    assert!(waits().unwrap().contains("disk"), "{:?}", waits());
    assert!(matches!(
        broker.run_schedule(&VhostName::DEFAULT, "all").await,
        Err(ScheduleRunError::Queue(nexo_broker::QueueError::Alarm(_)))
    ));
    broker.set_disk_free_min(0);
    eventually("it goes on", || runs(&broker, "all") > held + 3).await;
    pause(&broker, "all", true).await;
    let status = info(&broker, "all").entry.status.clone();
    assert_eq!((status.missed, status.failures), (0, 0));
    assert_eq!(waits(), None);
    let seen = times(&broker, &queue).await;
    assert_eq!(seen.len() as u64, status.runs, "each time once");
    close(broker).await;
}

#[tokio::test]
async fn somebody_can_have_it_run_and_the_table_stays_as_it_is() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    let queue = name("q");
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    let yearly = TimeTable::cron("0 0 1 1 *", "UTC").unwrap();
    put(&broker, Schedule { table: yearly, ..every("yearly", 100, push_to(&queue)) }).await;
    let next = info(&broker, "yearly").entry.status.next;
    broker.run_schedule(&VhostName::DEFAULT, "yearly").await.unwrap();
    pause(&broker, "yearly", true).await;
    broker.run_schedule(&VhostName::DEFAULT, "yearly").await.unwrap();
    pause(&broker, "yearly", false).await;
    close(broker).await;
    let broker = open(&disk);
    let status = info(&broker, "yearly").entry.status.clone();
    assert_eq!((status.runs, status.manual_runs, status.next), (0, 2, next));
    assert_eq!((broker.peek(&queue, 9).await.unwrap().len(), &*status.set_by), (2, "ann"));
    let missing = broker.run_schedule(&VhostName::DEFAULT, "other").await.unwrap_err();
    assert_eq!(missing.to_string(), "there is no schedule 'other' in virtual host '/'");
    close(broker).await;
}

#[tokio::test]
async fn what_it_sends_to_must_be_there_when_it_is_set() {
    let broker = open(&MemoryDisk::new());
    let refused = async |action: Action| {
        let schedule = every("s", 100, action);
        put_at(&broker, &VhostName::DEFAULT, schedule).await.unwrap_err().to_string()
    };
    assert_eq!(refused(push_to(&name("none"))).await, "queue 'none' does not exist");
    let publish = |exchange: &str| Action::Publish {
        exchange: ExchangeName::new(exchange).unwrap(),
        routing_key: "".into(),
        message: message("x"),
    };
    assert_eq!(refused(publish("none")).await, "exchange 'none' does not exist");
    let internal =
        ExchangeSpec { internal: true, ..ExchangeSpec::durable(ExchangeKind::Plain(Matching::Fanout)) };
    broker.declare_exchange(&ExchangeName::new("inner").unwrap(), internal).await.unwrap();
    assert_eq!(refused(publish("inner")).await, "exchange 'inner' is internal: nobody may publish to it");
    let nowhere = VhostName::new("nowhere").unwrap();
    let schedule = every("s", 100, push_to(&QueueName::at(&nowhere, "q").unwrap()));
    let error = put_at(&broker, &nowhere, schedule).await.unwrap_err();
    assert_eq!(error, ScheduleChangeError::Refused(ScheduleError::NoSuchVhost { name: nowhere }));
    assert!(broker.schedules().is_empty());
    close(broker).await;
}

#[tokio::test]
async fn schedules_go_with_their_virtual_host() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    let shop = VhostName::new("shop").unwrap();
    let queue = QueueName::at(&shop, "q").unwrap();
    broker.put_vhost(&shop, VhostSpec::default()).await.unwrap();
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    put_at(&broker, &shop, every("s", 100, push_to(&queue))).await.unwrap();
    broker.delete_vhost(&shop).await.unwrap();
    assert!(broker.schedules().is_empty());
    broker.put_vhost(&shop, VhostSpec::default()).await.unwrap();
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    close(broker).await;
    let broker = open(&disk);
    assert!(broker.schedules().is_empty(), "the next of that name begins anew");
    assert_eq!(broker.queue_stats(&queue).unwrap().pushed, 0);
    close(broker).await;
}

#[tokio::test]
async fn a_transient_queue_gets_its_messages_as_well() {
    let broker = open(&MemoryDisk::new());
    let queue = name("passing");
    let declaration = nexo_broker::Declaration {
        config: QueueConfig::default(),
        durability: nexo_broker::Durability::Transient,
        owner: None,
    };
    broker.declare_queue(&queue, declaration).await.unwrap();
    put(&broker, every("s", 100, push_to(&queue))).await;
    assert_eq!(bodies(&pop_wait(&broker, &queue).await), ["tick"]);
    close(broker).await;
}

#[tokio::test]
async fn many_that_are_due_at_once_are_all_fired() {
    let (disk, start) = (MemoryDisk::new(), soon());
    let broker = open_at(&disk, start);
    let queue = name("q");
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    let table = TimeTable::every(Millis::from_secs(3600), Some(start.plus(Millis::from_secs(1800)))).unwrap();
    let change = |number: usize| ScheduleChange::Put {
        vhost: VhostName::DEFAULT,
        schedule: Arc::new(Schedule {
            table: table.clone(),
            ..every(&number.to_string(), 100, push_to(&queue))
        }),
        set_by: "ann".into(),
        is_paused: None,
    };
    let changes: Vec<ScheduleChange> = (0..300).map(change).collect();
    broker.change_schedules(&changes).await.unwrap();
    close(broker).await;
    let broker = open_at(&disk, start.plus(Millis::from_secs(1801)));
    eventually("all are fired", || broker.stats().schedules.fired == 300).await;
    assert_eq!(broker.queue_stats(&queue).unwrap().ready, 300);
    close(broker).await;
}
