//! What the tests of the log share.

#![allow(
    clippy::unwrap_used,
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "each test uses a part of this"
)]

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nexo_log::disk::Disk;
use nexo_log::{
    AppendError, Appended, Claim, EntryKind, EntryRef, Frame, Log, LogOptions, Recovered, Span, Urgency,
};
use nexo_types::{Offset, Position, Priority, QueueId};

pub fn small() -> LogOptions {
    LogOptions {
        segment_bytes: 12 * 1024,
        background_sync: Some(Duration::from_millis(5)),
        lazy_write_delay: Duration::from_millis(1),
        spare_segments_max: 2,
        ..LogOptions::default()
    }
}

pub fn open(disk: impl Disk + 'static) -> (Log, Recovered) {
    Log::open(Arc::new(disk), small()).expect("the log opens")
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Appends one message with the number `n` in lane 0 of queue 1.
pub fn push(log: &Log, n: u64, size: usize, urgency: Urgency) -> Result<Appended, AppendError> {
    push_as(log, n, size, urgency, Claim::Normal)
}

pub fn push_as(
    log: &Log,
    n: u64,
    size: usize,
    urgency: Urgency,
    claim: Claim,
) -> Result<Appended, AppendError> {
    let span = Span { lane: Priority(0), first: Offset(n), last: Offset(n), count: 1 };
    let payload = payload(n, size);
    let entry = EntryRef { queue: QueueId(1), kind: EntryKind::Messages, spans: &[span], payload: &payload };
    log.append(&[entry], urgency, claim)
}

pub fn manifest(log: &Log, text: &[u8]) -> Result<Appended, AppendError> {
    let entry = EntryRef { queue: QueueId(0), kind: EntryKind::Manifest, spans: &[], payload: text };
    log.append(&[entry], Urgency::Synced, Claim::Reserved)
}

pub fn payload(n: u64, size: usize) -> Vec<u8> {
    let mut payload = n.to_le_bytes().to_vec();
    payload.extend((0..size).map(|i| (n as usize * 31 + i) as u8));
    payload
}

pub fn all_frames(log: &Log) -> Vec<Frame> {
    let mut frames = Vec::new();
    let damage = log
        .replay(Position::default(), &mut |frame| {
            frames.push(frame);
            ControlFlow::Continue(())
        })
        .expect("replay");
    assert_eq!(damage, [], "replay met damage");
    frames
}

/// Waits until something becomes true that the log's threads do.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "never happened: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}
