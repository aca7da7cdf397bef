//! A thread of the log that panics fails the log by its name: nobody waits for it in vain.

use std::sync::Arc;

use nexo_log::disk::GateDisk;
use nexo_log::{Claim, EntryKind, EntryRef, Log, LogHealth, LogOptions, Urgency};
use nexo_types::QueueId;

#[test]
fn a_thread_that_panics_fails_the_log_by_its_name() {
    for thread in ["nexo-log-writer", "nexo-segments"] {
        let disk = GateDisk::default();
        disk.panic_on_write_by(thread);
        let options = LogOptions { segment_bytes: 64 * 1024, ..LogOptions::default() };
        let (log, _) = Log::open(Arc::new(disk), options).unwrap();
        let payload = [7; 1000];
        let entry = EntryRef { queue: QueueId(1), kind: EntryKind::Record, spans: &[], payload: &payload };
        // More than one segment, so that the segment manager has something to do.
        let failed = (0..200).any(|_| match log.append(&[entry], Urgency::Synced, Claim::Normal) {
            Ok(appended) => log.synced(appended.end).wait_blocking().is_err(),
            Err(_) => true,
        });
        assert!(failed, "an append or a sync tells");
        let LogHealth::Failed { reason } = log.health() else {
            panic!("{thread} panicked, and the log is well")
        };
        assert!(reason.contains(thread), "{reason}");
    }
}
