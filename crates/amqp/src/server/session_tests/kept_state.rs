//! What a session holds and gives back, without frames.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nexo_access::{Identity, Logins, UserName};
use nexo_broker::{
    Alarm, Broker, BrokerOptions, NewMessage, PopRequest, Protocol, QueueConfig, QueueHandle, Resource,
    Settle,
};
use nexo_log::disk::FaultyDisk;
use nexo_types::{Millis, QueueName};

use super::super::arguments::QueueKind;
use super::super::channel::Channel;
use super::super::channel::Mode;
use super::super::leaving::RETURNED_HERE_MAX;
use super::super::operations::outcome;
use super::super::session::{Abilities, ChannelState, Limits, Session};
use super::super::settle::BySource;
use super::super::settle::LaterSettle;
use super::super::shared::ServerState;
use super::super::source::Source;
use super::super::transactions::Transaction;
use super::super::transactions::Unfinished;
use super::super::unacked::Held;
use crate::codec::{AmqpMethod, FrameMax, Frames, Method};

const FRAME_MAX: FrameMax = FrameMax::new(131_072).unwrap();

fn session(broker: &Broker) -> Session {
    let shared = Arc::new(ServerState::new(broker, Logins::new(broker), crate::Options::default()));
    let limits = Limits { frame_max: FRAME_MAX, channel_max: 10, heartbeat: 0 };
    let abilities = Abilities { blocked: true, ..Abilities::default() };
    let guest = Identity::configured(broker.clone(), UserName::new("guest").unwrap());
    Session::new(shared, guest, limits, abilities, Instant::now())
}

impl Session {
    /// Waits for whatever holds it up, as its connection does.
    async fn wait_out(&mut self) {
        loop {
            if self.operation.is_some() {
                let done = outcome(self.operation.as_mut()).await;
                self.has_done(done, Instant::now());
            } else if self.held_up.is_some() {
                let waited = outcome(self.held_up.as_mut()).await;
                self.has_waited(waited, Instant::now());
            } else {
                return;
            }
        }
    }
}

/// What the client has been told since this was asked last.
fn told(session: &mut Session) -> Vec<&'static str> {
    let bytes = std::mem::take(&mut session.out.bytes);
    let frames = Frames::new(&bytes, FRAME_MAX);
    frames.map(|frame| Method::decode(frame.unwrap().payload).unwrap().name()).collect()
}

/// Fills the disk to the last byte, what is kept for acknowledgements included.
async fn fill(broker: &Broker, disk: &FaultyDisk, queue: &QueueName) {
    let empty = QueueName::new("empty").unwrap();
    broker.create_queue(&empty, QueueConfig::default()).await.unwrap();
    disk.set_bytes_max(Some(disk.used_bytes()));
    // Messages that wait: no segment can be given up.
    let mut bytes = 10_000;
    while bytes > 0 {
        if broker.push(queue, vec![NewMessage::new(vec![0; bytes])]).await.is_err() {
            bytes /= 2;
        }
    }
    let mut text = "x".repeat(1000);
    while !text.is_empty() {
        let annotated = |config: &QueueConfig| {
            let mut config = config.clone();
            config.annotations.insert("test".into(), text.clone().into());
            config
        };
        if broker.update_queue(queue, annotated).await.is_err() {
            text.truncate(text.len() / 2);
        }
    }
    // The smallest record that there is.
    while broker.purge(&empty).await.is_ok() {}
}

/// A queue with one message, and that message as a channel holds it.
async fn with_one_held(broker: &Broker) -> (QueueHandle, Held) {
    let name = QueueName::new("q").unwrap();
    broker.create_queue(&name, QueueConfig::default()).await.unwrap();
    broker.push(&name, vec![NewMessage::new("x")]).await.unwrap();
    let request = PopRequest { max: 1, wait: Millis::ZERO, visibility: None, bytes_max: None };
    let one = broker.pop(&name, request).await.unwrap().remove(0);
    let queue = broker.queue(&name).unwrap();
    let source = Arc::new(Source::new(1, 1, queue.clone(), QueueKind::Classic));
    let held = Held::one(1, source, one.offset, one.attempt, Instant::now());
    (queue, held)
}

#[tokio::test]
async fn what_a_transaction_would_settle_is_not_settled_yet() {
    let broker = Broker::open_on(Arc::new(FaultyDisk::new()), BrokerOptions::new("memory")).unwrap();
    let (_, held) = with_one_held(&broker).await;
    let mut transaction = Box::<Transaction>::default();
    for count in [2, 3] {
        transaction.settle(LaterSettle { held: vec![held.clone(); count], what: Settle::Ack });
    }
    let shown = session(&broker).shown.open_channel(1);
    let mut channel = Channel::new(1, broker.traffic().channel(Protocol::Amqp), shown, None);
    channel.unacked.push(held.tag, &held.source, held.offset, held.attempt, held.since);
    assert_eq!(channel.unsettled(), 1);
    channel.mode = Mode::Transaction(transaction);
    assert_eq!(channel.unsettled(), 6);
}

#[test]
fn a_connection_that_leaves_much_keeps_no_thread() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let broker = Broker::open_on(Arc::new(FaultyDisk::new()), BrokerOptions::new("memory")).unwrap();
        let (queue, held) = with_one_held(&broker).await;
        for in_transaction in [false, true] {
            let mut session = session(&broker);
            let many = vec![held.clone(); RETURNED_HERE_MAX + 1];
            if in_transaction {
                let mut transaction = Box::<Transaction>::default();
                transaction.settle(LaterSettle { held: many, what: Settle::Ack });
                session.unfinished = Some(Unfinished::new(1, transaction));
            } else {
                let mut groups = BySource::default();
                many.iter().for_each(|held| groups.add(held));
                session.refused_settles.push((Settle::Undelivered, groups));
            }
            // The only thread for such work is free when the other task has run, and that runs only if the session lets
            // go of this one.
            let (go, wait) = std::sync::mpsc::channel();
            tokio::task::spawn_blocking(move || wait.recv());
            let other = tokio::spawn(async move { go.send(()) });
            session.end();
            session.wait_out().await;
            assert!(other.is_finished());
            assert_eq!(queue.in_flight(), 0);
        }
    });
}

/// A frame with one method of channel 1.
fn frame(method: &impl AmqpMethod) -> Vec<u8> {
    let mut out = Vec::new();
    crate::codec::encode_method(&mut out, 1, method);
    out
}

#[tokio::test]
async fn one_who_settles_very_many_at_once_keeps_no_thread() {
    use crate::codec::method::basic;
    let broker = Broker::open_on(Arc::new(FaultyDisk::new()), BrokerOptions::new("memory")).unwrap();
    let (queue, held) = with_one_held(&broker).await;
    let said = [
        (frame(&basic::Recover { requeue: true }), 0, &["basic.recover-ok"][..]),
        (frame(&basic::Nack { delivery_tag: 0, multiple: true, requeue: true }), 0, &[]),
        (frame(&basic::Ack { delivery_tag: 100_000, multiple: true }), 1, &[]),
    ];
    for (said, left, answers) in said {
        let mut session = session(&broker);
        let shown = session.shown.open_channel(1);
        let mut channel = Channel::new(1, broker.traffic().channel(Protocol::Amqp), shown, None);
        for tag in 1..=100_001 {
            channel.unacked.push(tag, &held.source, held.offset, held.attempt, held.since);
        }
        session.channels.insert(1, ChannelState::Open(Box::new(channel)));
        // It runs only if the session lets go of this thread.
        let other = tokio::spawn(async {});
        session.take_frames(&said, Instant::now());
        assert!(!session.takes_frames() && told(&mut session).is_empty(), "nothing overtakes it");
        session.wait_out().await;
        assert_eq!(told(&mut session), answers);
        session.take_frames(&[], Instant::now());
        assert!(other.is_finished());
        assert_eq!((session.channel(1).unwrap().unacked.len(), session.acks.len()), (left, 0));
    }
    assert_eq!(queue.counts().0, 1, "the first of them gave it back, and the others hold nothing");
}

#[tokio::test]
async fn a_commit_that_finds_no_room_again_blocks_only_once() {
    let disk = FaultyDisk::new();
    let options = BrokerOptions { segment_bytes: 64 * 1024, ..BrokerOptions::new("memory") };
    let broker = Broker::open_on(Arc::new(disk.clone()), options).unwrap();
    let (queue, held) = with_one_held(&broker).await;
    fill(&broker, &disk, queue.name()).await;

    let mut session = session(&broker);
    let mut transaction = Box::<Transaction>::default();
    transaction.settle(LaterSettle { held: vec![held], what: Settle::Ack });
    session.block(&Alarm { resource: Resource::Disk, reason: "no room".to_owned() });
    session.unfinished = Some(Unfinished::new(1, transaction));
    assert_eq!(told(&mut session), ["connection.blocked"]);
    for _ in 0..2 {
        session.go_on();
        session.wait_out().await;
        assert!(session.blocked && session.unfinished.is_some() && queue.in_flight() == 1);
        assert_eq!(told(&mut session), [] as [&str; 0]);
    }
    disk.set_bytes_max(None);
    while session.blocked {
        session.unblock();
        session.wait_out().await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(queue.in_flight(), 0);
    assert_eq!(told(&mut session), ["connection.unblocked"], "there is no such channel any more");
}
