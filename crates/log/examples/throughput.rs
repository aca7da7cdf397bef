//! How fast the log takes and syncs frames on a real disk.
//!
//! `cargo run --release -p nexo-log --example throughput [DIR]`

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nexo_log::disk::RealDisk;
use nexo_log::{Claim, EntryKind, EntryRef, Log, LogOptions, Span, Urgency};
use nexo_types::{Offset, Position, Priority, QueueId};

const RUN_FOR: Duration = Duration::from_secs(2);
const BODY: [u8; 100] = [7; 100];

fn main() {
    let parent = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let dir = tempfile::tempdir_in(parent).expect("a directory to work in");
    let disk = || Arc::new(RealDisk::open(dir.path()).expect("the directory opens"));
    let started = Instant::now();
    let (log, _) = Log::open(disk(), LogOptions::default()).expect("the log opens");
    println!("open, new directory                  {:>10.1} ms", millis(started));

    println!("frames of one 100-byte message, each awaited by its thread until synced:");
    for threads in [1, 8, 64] {
        let (frames, syncs) = closed_loop(&log, threads);
        println!("  {threads:>3} threads                        {frames:>10.0} /s {syncs:>8.0} syncs/s");
    }
    println!("frames appended without waiting, one thread, synced at the end:");
    for batch in [1usize, 100] {
        let rate = open_loop(&log, batch);
        println!("  {batch:>3} messages a frame                {rate:>10.0} messages/s");
    }

    println!("frames of one 128 MiB message, one after the other, each awaited until synced:");
    let (rate, longest) = large_frames(&log);
    println!("  alone with small ones              {rate:>10.0} MB/s");
    println!("  longest append of a small frame    {:>10.1} ms", longest.as_secs_f64() * 1000.0);

    let segments = log.segments().len();
    log.close();
    drop(log);
    let started = Instant::now();
    let (log, recovered) = Log::open(disk(), LogOptions::default()).expect("the log opens");
    println!("open, {segments:>3} segments                   {:>10.1} ms", millis(started));
    assert_eq!(recovered.scanned_segments, 0);
    let started = Instant::now();
    let mut frames = 0u64;
    log.replay(Position::default(), &mut |_| {
        frames += 1;
        ControlFlow::Continue(())
    })
    .expect("replay");
    println!(
        "replay                               {:>10.0} frames/s",
        frames as f64 / started.elapsed().as_secs_f64()
    );
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

fn push(log: &Log, queue: u64, first: u64, count: usize, payload: &[u8], urgency: Urgency) -> Position {
    let last = Offset(first + count as u64 - 1);
    let span = Span { lane: Priority(0), first: Offset(first), last, count: count as u32 };
    let entry = EntryRef { queue: QueueId(queue), kind: EntryKind::Messages, spans: &[span], payload };
    log.append(&[entry], urgency, Claim::Normal).expect("append").end
}

fn closed_loop(log: &Log, threads: u64) -> (f64, f64) {
    let before = log.stats();
    let started = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
                let mut offset = 0;
                while started.elapsed() < RUN_FOR {
                    let end = push(log, thread, offset, 1, &BODY, Urgency::Synced);
                    runtime.block_on(log.synced(end)).expect("sync");
                    offset += 1;
                }
            });
        }
    });
    let (after, seconds) = (log.stats(), started.elapsed().as_secs_f64());
    ((after.frames - before.frames) as f64 / seconds, (after.syncs - before.syncs) as f64 / seconds)
}

/// Bytes per second, in millions, and the longest that another thread took to append one small frame.
fn large_frames(log: &Log) -> (f64, Duration) {
    let payload = vec![7; 128 * 1024 * 1024];
    let started = Instant::now();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let small = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            for offset in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let before = Instant::now();
                push(log, 1, offset, 1, &BODY, Urgency::Lazy);
                longest = longest.max(before.elapsed());
                std::thread::sleep(Duration::from_micros(100));
            }
            longest
        });
        let mut bytes = 0;
        for offset in 0.. {
            if started.elapsed() >= 2 * RUN_FOR {
                break;
            }
            let end = push(log, 2, offset, 1, &payload, Urgency::Synced);
            log.synced(end).wait_blocking().expect("sync");
            bytes += payload.len();
        }
        let rate = bytes as f64 / 1e6 / started.elapsed().as_secs_f64();
        is_over.store(true, Ordering::Relaxed);
        (rate, small.join().expect("the thread ends"))
    })
}

fn open_loop(log: &Log, batch: usize) -> f64 {
    let payload = BODY.repeat(batch);
    let started = Instant::now();
    let mut offset = 0;
    while started.elapsed() < RUN_FOR {
        for _ in 0..100 {
            push(log, 1, offset, batch, &payload, Urgency::Lazy);
            offset += batch as u64;
        }
    }
    log.sync_blocking().expect("sync");
    offset as f64 / started.elapsed().as_secs_f64()
}
