//! Figures by type and by key: how long jobs and waiters waited, what is pending, what was used today, and that snapshots have them.

use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{Millis, Timestamp, limits};

use super::tests::{MINUTE, START, Shop, name};
use super::*;
use crate::jobs::{JobBody, JobQueueConfig, KindFigures, NewJob, PendingOf, Times, TokenReport};

const DAY_MS: u64 = 24 * 60 * MINUTE;

/// A snapshot as it was written when its head was of version 1: job 0 of key "a" is done and was asked for once more, job 1 of
/// key "b" is pending.
const HEAD_1: &str = "\
    800001010101008000010361706914000022a88c3dffffffffffffffffff0100000303000100056465616c738000010103617069\
    e0a712000180dddb01e0a712e0d4030502e807d00fe0a71200000005001408627573696e657373000466726565140370726f0607\
    737461727465720c000406757267656e744034000000000000066e6f726d616c4049000000000000036c6f774058c00000000000\
    0870726566657463687fefffffffffffff0000c0843d020200010100000000020301bc05bc0501ac02ac0202e807e80701067365\
    617263680100030101ac02ac020101610100030101ac02ac0201";
const CHUNK_1: &str = "\
    800002000002000c067365617263680161027b7dc0843d05ffffffffffffffffff01ffffffffffffffffff010601010202120177\
    04616e6e610370726f06000000c0843d15046c61746504616e6e610370726f06000000a88c3d0200025b5da88c3d0201a8e99802\
    010c067365617263680162027b7dc0843d05ffffffffffffffffff01ffffffffffffffffff01feffffffffffffffff0100000100\
    00c0843d";

fn ask(shop: &mut Shop, kind: &str, key: &str, waiter: Option<&str>) {
    let waiter = waiter.map(|id| Arc::new(shop.waiter(id, "pro", None)));
    let body = Arc::new(JobBody { kind: kind.into(), key: key.into(), payload: Bytes::from_static(b"{}") });
    let job = NewJob { body, cost: 0, deadline: None, background: true };
    shop.give(JobCommand::Ask { queue: name(), job, waiter }).unwrap();
}

fn by_kind<'a>(shop: &'a Shop, kind: &str) -> &'a KindFigures {
    let mut rows = shop.jobs.queue(&name()).unwrap().figures().by_kind();
    rows.find(|(name, _)| &***name == kind).unwrap().1
}

fn by_key<'a>(shop: &'a Shop, key: &str) -> &'a KindFigures {
    let mut rows = shop.jobs.queue(&name()).unwrap().figures().by_key();
    rows.find(|(name, _)| &***name == key).unwrap().1
}

fn pending_of_kind(shop: &Shop, kind: &str) -> (u64, Option<u64>) {
    let PendingOf { jobs, oldest_age } = shop.jobs.queue(&name()).unwrap().pending_of_kind(kind, shop.now);
    (jobs, oldest_age.map(|age| age.0))
}

fn pending_of_key(shop: &Shop, key: &str) -> Option<(u64, Option<u64>)> {
    let of = shop.jobs.queue(&name()).unwrap().pending_of_keys(shop.now)(key);
    of.map(|PendingOf { jobs, oldest_age }| (jobs, oldest_age.map(|age| age.0)))
}

fn times(count: u64, total: u64, max: u64) -> Times {
    Times { count, total: Millis(total), max: Millis(max) }
}

#[test]
fn types_and_keys_say_how_long_jobs_and_waiters_waited() {
    let mut shop = Shop::new();
    ask(&mut shop, "search", "a", Some("first"));
    shop.pass(Millis(100));
    ask(&mut shop, "search", "a", Some("second"));
    ask(&mut shop, "refresh", "b", None);
    shop.pass(Millis(600));
    let receipt = shop.take().unwrap().receipt;
    shop.pass(Millis(300));
    shop.complete(receipt).unwrap();
    ask(&mut shop, "search", "a", Some("late"));
    for row in [by_kind(&shop, "search"), by_key(&shop, "a")] {
        assert_eq!((row.waits, row.runs), (times(1, 700, 700), times(1, 300, 300)));
        assert_eq!(row.responses, times(3, 1900, 1000), "the cache answers at once");
        assert_eq!(row.cache_hits, 1);
    }
    for row in [by_kind(&shop, "refresh"), by_key(&shop, "b")] {
        assert_eq!((row.waits, row.responses), (Times::default(), Times::default()), "it waits");
    }
}

#[test]
fn a_job_waits_for_its_first_hand_out_only() {
    let mut shop = Shop::new();
    ask(&mut shop, "search", "a", None);
    shop.pass(Millis(50));
    let receipt = shop.take().unwrap().receipt;
    shop.give(JobCommand::GiveBack { receipt }).unwrap();
    shop.pass(Millis(1000));
    let receipt = shop.take().unwrap().receipt;
    let (error, report) = ("no".into(), TokenReport::default());
    shop.give(JobCommand::Fail { receipt, error, used: None, report, retry: true }).unwrap();
    shop.pass(Millis(5000));
    shop.take().unwrap();
    assert_eq!(by_kind(&shop, "search").waits, times(1, 50, 50));
    assert_eq!(shop.jobs.queue(&name()).unwrap().figures().waits, times(1, 50, 50));
}

#[test]
fn types_and_keys_say_what_is_pending_and_since_when() {
    let mut shop = Shop::with(JobQueueConfig { window: Millis(10), ..JobQueueConfig::default() });
    ask(&mut shop, "search", "a", None);
    shop.pass(Millis(100));
    ask(&mut shop, "search", "a", None);
    ask(&mut shop, "refresh", "b", None);
    shop.pass(Millis(100));
    assert_eq!(pending_of_kind(&shop, "search"), (2, Some(200)));
    assert_eq!(pending_of_key(&shop, "a"), Some((2, Some(200))));
    assert_eq!(pending_of_kind(&shop, "refresh"), (1, Some(100)));
    assert_eq!(by_key(&shop, "b").done, 0, "it has a row although nothing has happened to it");
    let receipt = shop.take().unwrap().receipt;
    assert_eq!(pending_of_kind(&shop, "search"), (1, Some(100)));
    shop.restore();
    assert_eq!(
        (pending_of_kind(&shop, "search"), pending_of_key(&shop, "a")),
        ((1, Some(100)), Some((1, Some(100))))
    );
    shop.give(JobCommand::GiveBack { receipt }).unwrap();
    assert_eq!(pending_of_key(&shop, "a"), Some((2, Some(200))), "it has waited since it was made");
    assert_eq!((pending_of_kind(&shop, "none"), pending_of_key(&shop, "none")), ((0, None), Some((0, None))));
}

#[test]
fn nobody_looks_at_jobs_of_a_key_without_end() {
    let mut shop = Shop::with(JobQueueConfig { window: Millis(0), ..JobQueueConfig::default() });
    for _ in 0..limits::JOB_KEY_LOOK_MAX {
        ask(&mut shop, "search", "much", None);
    }
    ask(&mut shop, "search", "little", None);
    assert_eq!(pending_of_key(&shop, "much"), Some((limits::JOB_KEY_LOOK_MAX as u64, Some(0))));
    ask(&mut shop, "search", "much", None);
    assert_eq!(pending_of_key(&shop, "much"), None, "counting them takes too long");
    let queue = shop.jobs.queue(&name()).unwrap();
    let mut pending = queue.pending_of_keys(shop.now);
    for _ in 0..3 {
        assert_eq!((pending("much"), pending("little").map(|of| of.jobs)), (None, Some(1)));
    }
    assert_eq!(
        (pending("much"), pending("little")),
        (None, None),
        "for all of them there is a bound as well"
    );
    assert_eq!(pending("none"), Some(PendingOf::default()));
    assert_eq!(pending_of_kind(&shop, "search").0, limits::JOB_KEY_LOOK_MAX as u64 + 2);
}

#[test]
fn tokens_of_today_begin_anew_at_midnight() {
    let mut shop = Shop::new();
    shop.now = Timestamp(20_000 * DAY_MS - 1);
    for (key, used) in [("a", 3), ("b", 4)] {
        ask(&mut shop, "search", key, None);
        let receipt = shop.take().unwrap().receipt;
        shop.complete_with(receipt, Some(used), TokenReport::default()).unwrap();
        shop.restore();
        let figures = shop.jobs.queue(&name()).unwrap().figures();
        let today = |row: &KindFigures| row.tokens_today(shop.now);
        assert_eq!((figures.tokens_today(shop.now), today(by_kind(&shop, "search"))), (used, used));
        assert_eq!(today(by_key(&shop, key)), used);
        shop.pass(Millis(1));
    }
    assert_eq!((by_key(&shop, "a").tokens, by_key(&shop, "a").tokens_today(shop.now)), (3, 0));
    assert_eq!((by_kind(&shop, "search").tokens, by_kind(&shop, "search").tokens_today(shop.now)), (7, 4));
}

#[test]
fn a_snapshot_of_version_1_is_read_and_written_again() {
    let bytes = |hex: &str| -> Vec<u8> {
        let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    };
    let mut shop = Shop::new();
    let (mut head, chunk) = (Bytes::from(bytes(HEAD_1)), bytes(CHUNK_1));
    shop.now = START.plus(Millis(1000));
    for _ in 0..2 {
        shop.jobs = Jobs::restore(&head, [&*chunk].into_iter()).unwrap();
        for row in [by_kind(&shop, "search"), by_key(&shop, "a")] {
            assert_eq!((row.done, row.tokens, row.cache_hits, row.runs), (1, 3, 1, times(1, 300, 300)));
            assert_eq!(
                (row.waits, row.responses),
                (Times::default(), Times::default()),
                "it was not counted"
            );
            assert_eq!(row.tokens_today(shop.now), 0);
        }
        let figures = shop.jobs.queue(&name()).unwrap().figures();
        assert_eq!((figures.waits, figures.responses), (times(1, 700, 700), times(2, 1000, 1000)));
        assert_eq!(pending_of_kind(&shop, "search"), (1, Some(1000)));
        assert_eq!(pending_of_key(&shop, "b"), Some((1, Some(1000))));
        head = shop.jobs.begin_snapshot(std::iter::empty(), &[]);
    }
    while shop.jobs.refresh(shop.now, 7) {}
    shop.take().unwrap();
    assert_eq!(by_key(&shop, "b").waits, times(1, 1000, 1000), "from now on it is");
}
