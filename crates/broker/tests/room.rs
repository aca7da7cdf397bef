//! A disk of which some must stay free: nothing is pushed below that, and everything else goes on.

mod common;

use common::*;
use nexo_broker::{BrokerOptions, Durability, Health, NewMessage, QueueConfig, QueueError, Resource};
use nexo_log::disk::MemoryDisk;

#[tokio::test]
async fn below_the_limit_nothing_is_pushed_and_consumers_go_on() {
    let options = BrokerOptions { data_dir: std::env::temp_dir(), ..options() };
    let broker = open_with(&MemoryDisk::new(), options);
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    push(&broker, &q, "before").await;
    assert_eq!(broker.health(), Health::Ok);

    broker.set_disk_free_min(u64::MAX);
    assert!(matches!(broker.health(), Health::DiskFull { .. }), "{:?}", broker.health());
    let error = broker.push(&q, vec![NewMessage::new("more")]).await.unwrap_err();
    assert!(
        matches!(&error, QueueError::Alarm(alarm) if alarm.resource == Resource::Disk && alarm.reason.contains("must stay free")),
        "{error}"
    );
    let transient = NewMessage { durability: Durability::Transient, ..NewMessage::new("more") };
    let handle = broker.queue(&q).unwrap();
    assert!(matches!(handle.push(&transient), Err(QueueError::Alarm(_))));
    let taken = pop(&broker, &q, 10).await;
    assert_eq!(bodies(&taken), ["before"]);
    ack(&broker, &taken).await;

    broker.set_disk_free_min(0);
    assert_eq!(broker.health(), Health::Ok);
    push(&broker, &q, "after").await;
    broker.shutdown().await;
}
