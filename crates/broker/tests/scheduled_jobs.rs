//! Schedules that ask for jobs: workers get them, whoever asks for the same joins, what is refused is told, and wherever the power
//! goes a time has been fired with its job, or neither.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::*;
use nexo_broker::job_rules::{
    AskedState, BudgetConfig, Handed, JobQueueConfig, JobReceipt, Reply, TokenReport,
};
use nexo_broker::schedule::{
    Action, CatchUp, Schedule, ScheduleChange, ScheduleStatus, ScheduledJob, TimeTable,
};
use nexo_broker::{
    Broker, BrokerOptions, Health, JobRequest, NewMessage, QueueConfig, ScheduleChangeError,
    ScheduleRunError, WaiterRequest,
};
use nexo_log::disk::{FaultyDisk, MemoryDisk};
use nexo_types::{BudgetName, JobQueueName, Millis, Timestamp, VhostName};

/// The year 2100: later than whatever the clock says.
const START: Timestamp = Timestamp(4_102_444_800_000);
const MINUTE: Millis = Millis::from_secs(60);

fn deals() -> JobQueueName {
    JobQueueName::new("deals").unwrap()
}

fn api() -> BudgetName {
    BudgetName::new("api").unwrap()
}

fn minute(number: u64) -> Timestamp {
    START.plus(Millis(MINUTE.0 * number))
}

fn search() -> ScheduledJob {
    ScheduledJob {
        kind: "search".into(),
        key: "books".into(),
        payload: Bytes::from_static(br#"{"pages":[1,2,3]}"#),
        cost: None,
        background: true,
    }
}

fn asks(name: &str, table: TimeTable, job: ScheduledJob) -> Schedule {
    Schedule {
        name: name.into(),
        table,
        action: Action::Ask { queue: deals(), job },
        catch_up: CatchUp::All { max: 100 },
        until: None,
        runs_max: None,
        description: "".into(),
    }
}

fn often() -> TimeTable {
    TimeTable::every(Millis(100), None).unwrap()
}

fn yearly() -> TimeTable {
    TimeTable::cron("0 0 1 1 *", "UTC").unwrap()
}

async fn try_put(broker: &Broker, schedule: Schedule) -> Result<(), ScheduleChangeError> {
    let (vhost, schedule) = (VhostName::DEFAULT, Arc::new(schedule));
    let change = ScheduleChange::Put { vhost, schedule, set_by: "ann".into(), is_paused: None };
    broker.change_schedules(&[change]).await
}

async fn run_now(broker: &Broker, name: &str) -> Result<(), ScheduleRunError> {
    broker.run_schedule(&VhostName::DEFAULT, name).await
}

fn status(broker: &Broker, name: &str) -> Option<ScheduleStatus> {
    broker.schedule(&VhostName::DEFAULT, name).map(|info| info.entry.status.clone())
}

fn last_error(broker: &Broker, name: &str) -> String {
    let error = status(broker, name).and_then(|status| status.last_error);
    error.map(|(_, error)| error.to_string()).unwrap_or_default()
}

/// Jobs of the queue that were ever made.
fn created(broker: &Broker) -> u64 {
    broker.look_at_jobs(|jobs, _| jobs.queue(&deals()).map_or(0, |queue| queue.figures().created))
}

/// A queue whose searches cost what they have pages, paid by a budget of ten.
async fn with_deals(options: BrokerOptions) -> Broker {
    let broker = Broker::open_on(Arc::new(MemoryDisk::new()), options).unwrap();
    set_budget(&broker, 10).await;
    let costs = [("search".into(), "size(payload.pages)".into())].into();
    let config = JobQueueConfig { budget: Some(api()), costs, ..JobQueueConfig::default() };
    broker.put_job_queue(&deals(), config).await.unwrap();
    broker
}

async fn set_budget(broker: &Broker, capacity: u64) {
    let config = BudgetConfig { initial: capacity, capacity: Some(capacity), refill: None };
    broker.put_budget(&api(), config).await.unwrap();
}

async fn take(broker: &Broker) -> Vec<Handed> {
    broker.take_jobs(&deals(), "w", None, 10, Duration::from_secs(20)).await.unwrap()
}

async fn complete(broker: &Broker, receipt: JobReceipt) {
    let result = Bytes::from_static(b"[]");
    broker.complete_job(receipt, result, None, TokenReport::default()).await.unwrap();
}

#[tokio::test]
async fn a_worker_that_waits_gets_the_job() {
    let broker = with_deals(options()).await;
    let once = Schedule { runs_max: Some(1), ..asks("warm", often(), search()) };
    try_put(&broker, once).await.unwrap();
    let taken = take(&broker).await;
    let [handed] = &taken[..] else { panic!("{taken:?}") };
    assert_eq!((&*handed.body.kind, &*handed.body.key), ("search", "books"));
    assert_eq!((handed.body.payload.clone(), handed.cost, handed.waiters), (search().payload, 3, 0));
    eventually("its time is fired", || status(&broker, "warm").unwrap().runs == 1).await;
    complete(&broker, handed.receipt).await;
    let cached = broker.cached_result(&deals(), "books").unwrap();
    assert_eq!(cached.unwrap().0, Bytes::from_static(b"[]"), "the result is there for whoever asks");
    // While that is fresh there is nothing to be done.
    run_now(&broker, "warm").await.unwrap();
    assert_eq!((created(&broker), status(&broker, "warm").unwrap().manual_runs), (1, 1));
    broker.shutdown().await;
}

#[tokio::test]
async fn it_is_one_job_with_whoever_asks_for_the_same() {
    let broker = with_deals(options()).await;
    try_put(&broker, asks("warm", yearly(), search())).await.unwrap();
    run_now(&broker, "warm").await.unwrap();
    run_now(&broker, "warm").await.unwrap();
    assert_eq!(created(&broker), 1, "the second finds the first");
    let background = || {
        broker.look_at_jobs(|jobs, _| {
            let (_, job) = jobs.queue(&deals()).unwrap().of_key("books").next().unwrap();
            job.is_background()
        })
    };
    assert!(background());
    let urgent = ScheduledJob { background: false, ..search() };
    try_put(&broker, asks("urgent", yearly(), urgent)).await.unwrap();
    run_now(&broker, "urgent").await.unwrap();
    assert!(!background(), "it does not wait for the others any more");
    let waiter = WaiterRequest {
        id: "ann".into(),
        user: String::new(),
        class: "pro".into(),
        due: None,
        filter: String::new(),
        reply: Reply::Call,
    };
    let request = JobRequest {
        kind: "search".into(),
        key: "books".into(),
        waiter: Some(waiter),
        cost: Some(1),
        ..JobRequest::default()
    };
    assert_eq!(broker.ask_job(&deals(), &request).await.unwrap().state, AskedState::Joined);
    complete(&broker, take(&broker).await[0].receipt).await;
    let answer = broker.job_answer(&deals(), "ann", Duration::from_secs(20)).await.unwrap().unwrap();
    assert_eq!((answer.status, created(&broker)), ("done", 1));
    broker.shutdown().await;
}

#[tokio::test]
async fn what_is_refused_is_told_and_the_schedule_goes_on() {
    let broker = with_deals(options()).await;
    try_put(&broker, asks("warm", often(), search())).await.unwrap();
    let failures = || status(&broker, "warm").unwrap().failures;
    broker.delete_job_queue(&deals()).await.unwrap();
    eventually("it fails", || failures() >= 2).await;
    assert_eq!(last_error(&broker, "warm"), "there is no job queue 'deals'");
    let by_hand = run_now(&broker, "warm").await.unwrap_err();
    assert_eq!(by_hand, ScheduleRunError::Failed { reason: "there is no job queue 'deals'".into() });
    set_budget(&broker, 2).await;
    let config = JobQueueConfig { budget: Some(api()), ..JobQueueConfig::default() };
    broker.put_job_queue(&deals(), config).await.unwrap();
    let runs = || status(&broker, "warm").unwrap().runs;
    let before = runs();
    eventually("it goes on", || runs() > before).await;
    assert_eq!(take(&broker).await[0].cost, 1);
    let dear = ScheduledJob { cost: Some(2), key: "dear".into(), ..search() };
    try_put(&broker, asks("dear", yearly(), dear)).await.unwrap();
    set_budget(&broker, 1).await;
    let refused = run_now(&broker, "dear").await.unwrap_err().to_string();
    assert!(refused.contains("costs 2 tokens, and budget 'api' never holds more than 1"), "{refused}");
    broker.shutdown().await;
}

#[tokio::test]
async fn where_memory_is_short_the_time_fails() {
    let broker = with_deals(BrokerOptions { jobs_bytes_max: 1, ..options() }).await;
    try_put(&broker, asks("warm", often(), search())).await.unwrap();
    eventually("the first is taken", || status(&broker, "warm").unwrap().runs > 0).await;
    eventually("others are refused", || last_error(&broker, "warm").contains("jobs take")).await;
    assert_eq!(created(&broker), 1);
    broker.shutdown().await;
}

#[tokio::test]
async fn what_cannot_be_is_refused_when_it_is_set() {
    let broker = with_deals(options()).await;
    let refused =
        async |job: ScheduledJob| try_put(&broker, asks("s", yearly(), job)).await.unwrap_err().to_string();
    let said = refused(ScheduledJob { cost: Some(11), ..search() }).await;
    assert_eq!(said, "the job costs 11 tokens, and budget 'api' never holds more than 10");
    let said = refused(ScheduledJob { payload: Bytes::from_static(b"{}"), ..search() }).await;
    assert!(said.contains("pages"), "{said}");
    broker.delete_job_queue(&deals()).await.unwrap();
    assert_eq!(refused(search()).await, "there is no job queue 'deals'");
    assert!(broker.schedules().is_empty());
    broker.shutdown().await;
}

fn crash_options() -> BrokerOptions {
    BrokerOptions { segment_bytes: 16 * 1024, ..BrokerOptions::new("faulty") }
}

/// A broker whose clock says that so many minutes have passed, and some seconds.
fn open_at(disk: &FaultyDisk, minutes: u64) -> Option<Broker> {
    let time = minute(minutes).plus(Millis::from_secs(20));
    Broker::open_at(Arc::new(disk.clone()), crash_options(), time).ok()
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

/// What a run was told.
#[derive(Default)]
struct Told {
    is_set: bool,
    /// Times that were seen to be fired, with a sync behind them, and jobs.
    seen: (u64, u64),
    finished: bool,
}

fn fired(broker: &Broker) -> (u64, u64) {
    (status(broker, "warm").map_or(0, |status| status.runs), created(broker))
}

async fn run(disk: &FaultyDisk) -> Told {
    let mut told = Told::default();
    for minutes in [0, 3, 4] {
        let Some(broker) = open_at(disk, minutes) else { return told };
        let done = if minutes == 0 {
            set_up(&broker, &mut told).await
        } else {
            go_on(&broker, &mut told, minutes).await
        };
        broker.shutdown().await;
        drop(broker);
        if done.is_err() {
            // The power is gone.
            return told;
        }
    }
    told.finished = true;
    told
}

async fn set_up(broker: &Broker, told: &mut Told) -> Result<(), ()> {
    broker.create_queue(&name("filler"), QueueConfig::default()).await.map_err(drop)?;
    // Nothing is joined, so that every frame of times is a job of its own.
    let config = JobQueueConfig { window: Millis::ZERO, ..JobQueueConfig::default() };
    broker.put_job_queue(&deals(), config).await.map_err(drop)?;
    let each = TimeTable::every(MINUTE, Some(START)).unwrap();
    let payload = format!("\"{}\"", "x".repeat(5_000)).into();
    try_put(broker, asks("warm", each, ScheduledJob { payload, ..search() })).await.map_err(drop)?;
    told.is_set = true;
    Ok(())
}

async fn go_on(broker: &Broker, told: &mut Told, minutes: u64) -> Result<(), ()> {
    settled(broker, minute(minutes)).await?;
    let seen = fired(broker);
    // What comes before it in the log is synced with it. It is large, so that there are checkpoints in between.
    let filler = NewMessage::new("x".repeat(9_000));
    broker.push(&name("filler"), vec![filler]).await.map_err(drop)?;
    told.seen = seen;
    Ok(())
}

async fn check(told: &Told, disk: FaultyDisk, what: &str) {
    // At this time nothing is due: what is there was there when the power went.
    let broker = open_at(&disk, 0).unwrap_or_else(|| panic!("{what}: it does not open"));
    let before = fired(&broker);
    // The times until minute 3 come at once, and so are one job.
    assert!([(0, 0), (3, 1), (4, 2)].contains(&before), "{what}: {before:?}");
    assert!(before >= told.seen, "{what}: {before:?} after {:?}", told.seen);
    broker.shutdown().await;
    drop(broker);
    let broker = open_at(&disk, 6).unwrap_or_else(|| panic!("{what}: it does not open"));
    settled(&broker, minute(6)).await.unwrap_or_else(|()| panic!("{what}: it is not well"));
    match status(&broker, "warm") {
        None => assert!(!told.is_set, "{what}: it was set and is not there"),
        Some(status) => {
            assert_eq!((status.runs, status.missed, status.failures), (6, 0, 0), "{what}");
            assert_eq!(created(&broker), before.1 + 1, "{what}");
            let pending = broker.look_at_jobs(|jobs, _| jobs.queue(&deals()).unwrap().pending());
            assert_eq!(pending, before.1 + 1, "{what}: each of them is to be done");
        }
    }
    broker.shutdown().await;
}

#[test]
fn a_time_is_fired_with_its_job_or_not_at_all_wherever_the_power_goes() {
    let expect = |told: &Told| {
        assert!(told.finished && told.is_set, "the script does what it should");
        assert_eq!(told.seen, (4, 2));
    };
    cut_power_everywhere(&run, expect, &check);
}
