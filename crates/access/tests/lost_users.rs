//! Users that are lost with a part of the data: guest, whose password everybody knows, does not come in their place.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use nexo_access::{FirstUser, Logins, NewPassword, Tag, UserName};
use nexo_broker::{Broker, BrokerOptions, NewMessage, QueueConfig};
use nexo_log::disk::{Disk, MemoryDisk};
use nexo_types::QueueName;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn open(disk: &MemoryDisk, accept_loss: bool) -> Broker {
    let options = BrokerOptions { accept_loss, segment_bytes: 32 * 1024, ..BrokerOptions::new("memory") };
    Broker::open_on(Arc::new(disk.clone()), options).unwrap()
}

/// A broker whose guest was replaced by ann, with messages in some segments behind that.
async fn used() -> MemoryDisk {
    let disk = MemoryDisk::new();
    let broker = open(&disk, false);
    let logins = Logins::open(&broker, &FirstUser::default()).await.unwrap();
    let ann = UserName::new("ann").unwrap();
    let tags = BTreeSet::from([Tag::new(Tag::ADMINISTRATOR).unwrap()]);
    logins.add_user(&ann, NewPassword::Plain(b"pw".to_vec()), tags).await.unwrap();
    logins.delete_user(&UserName::new("guest").unwrap()).await.unwrap();
    let queue = QueueName::new("q").unwrap();
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    broker.push(&queue, vec![NewMessage::new("x")]).await.unwrap();
    broker.shutdown().await;
    disk
}

fn lose_all_segments(disk: &MemoryDisk) {
    for name in disk.list("segments").unwrap() {
        disk.remove(&format!("segments/{name}")).unwrap();
    }
    disk.sync_dir("segments").unwrap();
}

#[tokio::test]
async fn guest_does_not_come_back_when_users_are_lost() {
    let disk = used().await;
    lose_all_segments(&disk);
    let refused = {
        let options = BrokerOptions { segment_bytes: 32 * 1024, ..BrokerOptions::new("memory") };
        Broker::open_on(Arc::new(disk.clone()), options)
    };
    assert!(refused.is_err(), "the loss must be accepted first");

    let broker = open(&disk, true);
    assert!(broker.has_lost_users());
    let logins = Logins::open(&broker, &FirstUser::default()).await.unwrap();
    assert!(logins.password(b"guest", b"guest", HERE).await.is_err());
    assert!(logins.anonymous(HERE).await.is_err());
    assert_eq!(broker.access().users().len(), 0);
    broker.shutdown().await;

    // Nor at a later start, which finds nothing missing any more.
    for accept_loss in [false, true] {
        let broker = open(&disk, accept_loss);
        let logins = Logins::open(&broker, &FirstUser::default()).await.unwrap();
        assert!(logins.password(b"guest", b"guest", HERE).await.is_err(), "{accept_loss}");
        broker.shutdown().await;
    }

    // Whoever runs the broker gets in.
    let broker = open(&disk, false);
    let first = FirstUser { name: "root".into(), password: "pw".into(), vhost: "/".into() };
    let logins = Logins::open(&broker, &first).await.unwrap();
    assert!(logins.password(b"root", b"pw", HERE).await.unwrap().is(Tag::ADMINISTRATOR));
    broker.shutdown().await;
}

#[tokio::test]
async fn a_configured_user_is_made_at_once_when_users_are_lost() {
    let disk = used().await;
    lose_all_segments(&disk);
    let broker = open(&disk, true);
    let first = FirstUser { name: "root".into(), password: "pw".into(), vhost: "/".into() };
    let logins = Logins::open(&broker, &first).await.unwrap();
    assert!(logins.password(b"root", b"pw", HERE).await.unwrap().is(Tag::ADMINISTRATOR));
    assert!(logins.password(b"guest", b"guest", HERE).await.is_err());
    broker.shutdown().await;
}

#[tokio::test]
async fn users_stay_where_nothing_is_lost_although_that_would_be_accepted() {
    let disk = used().await;
    let broker = open(&disk, true);
    assert!(!broker.has_lost_users());
    let logins = Logins::open(&broker, &FirstUser::default()).await.unwrap();
    assert!(logins.password(b"ann", b"pw", HERE).await.is_ok());
    broker.shutdown().await;
    let fresh = open(&MemoryDisk::new(), true);
    let logins = Logins::open(&fresh, &FirstUser::default()).await.unwrap();
    assert!(logins.password(b"guest", b"guest", HERE).await.is_ok(), "a new broker has lost nothing");
    fresh.shutdown().await;
}
