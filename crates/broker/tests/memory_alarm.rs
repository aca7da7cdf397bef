//! A process that takes more memory than it may: nothing is pushed, and everything else goes on.

mod common;

use common::*;
use nexo_broker::{
    BrokerOptions, Durability, Health, MemoryHigh, NewMessage, QueueConfig, QueueError, Resource, Telling,
};
use nexo_log::disk::MemoryDisk;
use nexo_types::limits;

const NOTHING: MemoryHigh = MemoryHigh::Bytes(0);
const PLENTY: MemoryHigh = MemoryHigh::Bytes(1 << 40);

#[tokio::test]
async fn past_the_watermark_nothing_is_pushed_and_consumers_go_on() {
    let options = BrokerOptions { owns_process: true, memory_high: PLENTY, ..options() };
    let broker = open_with(&MemoryDisk::new(), options);
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    push(&broker, &q, "before").await;
    assert_eq!((broker.health(), broker.alarms()), (Health::Ok, vec![]));

    broker.set_memory_high(NOTHING);
    let error = broker.push(&q, vec![NewMessage::new("more")]).await.unwrap_err();
    let is_memory =
        |error: &QueueError| matches!(error, QueueError::Alarm(alarm) if alarm.resource == Resource::Memory);
    assert!(is_memory(&error) && error.to_string().contains("(memory_high)"), "{error}");
    let transient = NewMessage { durability: Durability::Transient, ..NewMessage::new("more") };
    assert!(is_memory(&broker.queue(&q).unwrap().push(&transient).unwrap_err()));
    assert!(matches!(broker.health(), Health::MemoryHigh { .. }), "{:?}", broker.health());
    assert!(broker.health().can_serve(), "consumers are served");
    let state = broker.memory_state();
    assert!(state.is_alarm && state.used_bytes > 0 && state.limit_bytes == 0, "{state:?}");
    let taken = pop(&broker, &q, 10).await;
    assert_eq!(bodies(&taken), ["before"]);
    ack(&broker, &taken).await;
    broker.create_queue(&name("another"), QueueConfig::default()).await.unwrap();

    broker.set_memory_high(PLENTY);
    assert_eq!(broker.health(), Health::Ok);
    push(&broker, &q, "after").await;
    broker.shutdown().await;
}

#[tokio::test]
async fn events_pass_an_alarm_within_bounds_and_copies_do_not() {
    let options = BrokerOptions { owns_process: true, memory_high: NOTHING, ..options() };
    let broker = open_with(&MemoryDisk::new(), options);
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    let dropped = || (broker.stats().events_dropped, broker.stats().traces_dropped);

    broker.tell(Telling::Event, &q, vec![NewMessage::new("alarm.set")]).await;
    broker.tell(Telling::Trace, &q, vec![NewMessage::new("copy")]).await;
    assert_eq!((bodies(&broker.peek(&q, 9).await.unwrap()), dropped()), (vec!["alarm.set".into()], (0, 1)));

    let large = "x".repeat(limits::EVENTS_IN_ALARM_BYTES_MAX);
    broker.tell(Telling::Event, &q, vec![NewMessage::new(large.clone())]).await;
    assert_eq!(
        (broker.queue_stats(&q).unwrap().ready, dropped()),
        (1, (1, 1)),
        "more than one alarm may bring"
    );
    broker.tell(Telling::Event, &name("gone"), vec![NewMessage::new("alarm.set")]).await;
    assert_eq!(dropped(), (1, 1), "a queue that is not there misses nothing");

    broker.set_memory_high(PLENTY);
    broker.tell(Telling::Event, &q, vec![NewMessage::new(large)]).await;
    assert_eq!((broker.queue_stats(&q).unwrap().ready, dropped()), (2, (1, 1)));
    broker.shutdown().await;
    broker.tell(Telling::Event, &q, vec![NewMessage::new("too late")]).await;
    assert_eq!(dropped(), (2, 1));
}

#[tokio::test]
async fn both_alarms_are_told_and_the_disk_is_the_graver_one() {
    let options = BrokerOptions { owns_process: true, data_dir: std::env::temp_dir(), ..options() };
    let broker = open_with(&MemoryDisk::new(), options);
    broker.set_memory_high(NOTHING);
    broker.set_disk_free_min(u64::MAX);
    let resources: Vec<Resource> = broker.alarms().iter().map(|alarm| alarm.resource).collect();
    assert_eq!(resources, [Resource::Memory, Resource::Disk]);
    assert!(matches!(broker.health(), Health::DiskFull { .. }), "{:?}", broker.health());
    broker.set_disk_free_min(0);
    assert!(matches!(broker.health(), Health::MemoryHigh { .. }), "{:?}", broker.health());
    broker.shutdown().await;
}

#[tokio::test]
async fn a_broker_in_a_process_of_others_looks_at_no_memory() {
    let broker = open_with(&MemoryDisk::new(), BrokerOptions { memory_high: NOTHING, ..options() });
    broker.set_memory_high(NOTHING);
    assert_eq!(broker.alarms(), vec![]);
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    push(&broker, &q, "taken").await;
    broker.shutdown().await;
}

#[tokio::test]
async fn there_are_no_more_queues_than_may_be() {
    let broker = open_with(&MemoryDisk::new(), BrokerOptions { queues_max: 2, ..options() });
    for queue in ["a", "b"] {
        broker.create_queue(&name(queue), QueueConfig::default()).await.unwrap();
    }
    let error = broker.create_queue(&name("c"), QueueConfig::default()).await.unwrap_err();
    assert_eq!(error.to_string(), "there are 2 queues, and no more are allowed");
    broker.delete_queue(&name("a")).await.unwrap();
    broker.create_queue(&name("c"), QueueConfig::default()).await.unwrap();
    broker.shutdown().await;
}

#[tokio::test]
async fn what_comes_in_is_counted_and_bounded_however_low_the_watermark_is() {
    for high in [0, 1, 4_000] {
        let options = BrokerOptions { owns_process: true, memory_high: MemoryHigh::Bytes(high), ..options() };
        let broker = open_with(&MemoryDisk::new(), options);
        let intake = broker.intake();
        assert_eq!(intake.bytes_max(), limits::INTAKE_BYTES_MIN, "{high}");
        let _all = intake.try_hold(usize::MAX).unwrap();
        assert!(intake.try_hold(1).is_none(), "{high}");
        broker.shutdown().await;
    }
}

#[tokio::test]
async fn a_watermark_that_is_set_later_counts_for_what_comes_in() {
    let options =
        BrokerOptions { owns_process: true, memory_high: PLENTY, memory_bytes_max: 400 << 20, ..options() };
    let broker = open_with(&MemoryDisk::new(), options);
    assert_eq!(broker.intake().bytes_max(), 100 << 20);
    broker.set_memory_high(MemoryHigh::Bytes(50 << 20));
    assert_eq!(broker.intake().bytes_max(), 10 << 20);
    broker.set_memory_high(PLENTY);
    assert_eq!(broker.intake().bytes_max(), 100 << 20);
    broker.shutdown().await;
}
