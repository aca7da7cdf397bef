//! What the stories share: a broker on a disk in memory, and short words for common acts.
#![allow(dead_code)] // Each test file uses its own part.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

use std::sync::Arc;
use std::time::Duration;

use nexo_broker::{
    Broker, BrokerOptions, Delivery, NewMessage, PopRequest, Pushed, QueueConfig, Receipt, SubscribeRequest,
    Subscription,
};
use nexo_log::disk::{CutMode, Disk, FaultyDisk, MemoryDisk};
use nexo_types::{Millis, QueueName};

pub(crate) fn name(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

pub(crate) fn options() -> BrokerOptions {
    BrokerOptions { segment_bytes: 256 * 1024, ..BrokerOptions::new("memory") }
}

pub(crate) fn open(disk: &MemoryDisk) -> Broker {
    open_with(disk, options())
}

pub(crate) fn open_with(disk: &MemoryDisk, options: BrokerOptions) -> Broker {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    Broker::open_on(disk, options).unwrap()
}

/// A new broker with one queue called `q`.
pub(crate) async fn with_queue(config: QueueConfig) -> (Broker, QueueName) {
    let broker = open(&MemoryDisk::new());
    let queue = name("q");
    broker.create_queue(&queue, config).await.unwrap();
    (broker, queue)
}

pub(crate) async fn push(broker: &Broker, queue: &QueueName, body: &str) -> Pushed {
    push_message(broker, queue, NewMessage::new(body.to_owned())).await
}

pub(crate) async fn push_message(broker: &Broker, queue: &QueueName, message: NewMessage) -> Pushed {
    broker.push(queue, vec![message]).await.unwrap().remove(0).unwrap()
}

/// What is there now.
pub(crate) async fn pop(broker: &Broker, queue: &QueueName, max: usize) -> Vec<Delivery> {
    broker
        .pop(queue, PopRequest { max, wait: Millis::ZERO, visibility: None, bytes_max: None })
        .await
        .unwrap()
}

/// Waits for messages, for long enough on a slow machine.
pub(crate) async fn pop_wait(broker: &Broker, queue: &QueueName) -> Vec<Delivery> {
    broker
        .pop(queue, PopRequest { max: 1, wait: Millis::from_secs(20), visibility: None, bytes_max: None })
        .await
        .unwrap()
}

pub(crate) fn subscribe(broker: &Broker, queue: &QueueName, credit: u32) -> Subscription {
    broker.subscribe(queue, SubscribeRequest { credit, visibility: None, keep_leases: false }).unwrap()
}

/// The next messages of a subscription; a test that waits in vain fails rather than hangs.
pub(crate) async fn next(subscription: &mut Subscription) -> Vec<Delivery> {
    tokio::time::timeout(Duration::from_secs(20), subscription.next()).await.expect("messages come").unwrap()
}

pub(crate) fn bodies(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|d| String::from_utf8(d.message.body.to_vec()).unwrap()).collect()
}

pub(crate) fn receipts(deliveries: &[Delivery]) -> Vec<Receipt> {
    deliveries.iter().map(Delivery::receipt).collect()
}

pub(crate) async fn ack(broker: &Broker, deliveries: &[Delivery]) {
    for answer in broker.ack(&receipts(deliveries)).await {
        answer.unwrap();
    }
}

/// Waits until `done` says so; fails after a while.
pub(crate) async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..4000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what} did not happen");
}

/// Runs a script on a disk that works, of which `expect` sees what came; then again and again, with the power cut at each of
/// its operations. `check` gets what the script was told, and the disk as the next start finds it.
pub(crate) fn cut_power_everywhere<T>(
    run: &impl AsyncFn(&FaultyDisk) -> T,
    expect: impl FnOnce(&T),
    check: &impl AsyncFn(&T, FaultyDisk, &str),
) {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let calm = FaultyDisk::new();
    let told = runtime().block_on(run(&calm));
    expect(&told);
    runtime().block_on(check(&told, calm.restart(CutMode::Drop, 1), "after a clean end"));
    let operations = calm.operations();
    let mut cut = 0;
    // How many there are is not always the same.
    for operation in 1..=operations + 10 {
        let disk = FaultyDisk::new();
        disk.cut_power_at(operation);
        let told = runtime().block_on(run(&disk));
        cut += u64::from(disk.is_cut());
        for mode in [CutMode::Keep, CutMode::Drop, CutMode::Tear, CutMode::Reorder] {
            let what = format!("cut at operation {operation}, {mode:?}");
            runtime().block_on(check(&told, disk.restart(mode, operation), &what));
        }
    }
    assert!(cut > operations / 2, "most runs were cut");
}
