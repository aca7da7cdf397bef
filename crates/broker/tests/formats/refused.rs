//! A directory of an older format that this build refuses stays as it was: the release that wrote it can still open it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use nexo_broker::{Broker, BrokerOptions};
use nexo_log::disk::RealDisk;
use nexo_log::{Claim, EntryKind, EntryRef, Log, LogOptions, Urgency};
use nexo_types::QueueId;

use crate::{fixture, unpack};

const OLDER: &str = "nexo-data 2\n";

fn mark(dir: &Path) -> String {
    fs::read_to_string(dir.join("FORMAT")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_lacks_a_segment_keeps_its_older_mark_until_it_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    unpack(&fixture("format-2"), dir.path());
    let mut segments: Vec<_> =
        fs::read_dir(dir.path().join("segments")).unwrap().map(|file| file.unwrap().path()).collect();
    segments.sort_unstable();
    let aside = dir.path().join("aside");
    fs::rename(&segments[0], &aside).unwrap();
    let error = Broker::open(BrokerOptions::new(dir.path())).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    assert_eq!(mark(dir.path()), OLDER);

    fs::rename(&aside, &segments[0]).unwrap();
    let broker = Broker::open(BrokerOptions::new(dir.path())).unwrap();
    assert_eq!(mark(dir.path()), "nexo-data 9\n");
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_whose_records_make_no_sense_keeps_its_older_mark() {
    let dir = tempfile::tempdir().unwrap();
    unpack(&fixture("format-2"), dir.path());
    {
        let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
        let (log, _) = Log::open(disk, LogOptions::default()).unwrap();
        let entry = EntryRef { queue: QueueId(1), kind: EntryKind::Record, spans: &[], payload: b"\xff?" };
        let appended = log.append(&[entry], Urgency::Synced, Claim::Normal).unwrap();
        log.synced(appended.end).await.unwrap();
    }
    fs::write(dir.path().join("FORMAT"), OLDER).unwrap();
    let error = Broker::open(BrokerOptions::new(dir.path())).unwrap_err();
    assert!(error.to_string().contains("cannot be applied"), "{error}");
    assert_eq!(mark(dir.path()), OLDER);
}
