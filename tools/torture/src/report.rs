//! What came of a run, to be read by people.

use std::time::Duration;

use crate::jobs;
use crate::ledger::{Ledger, Share};
use crate::way::Way;

/// What was done to the broker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) kills: u32,
    pub(crate) stops: u32,
    pub(crate) freezes: u32,
    /// How often a node and the others did not hear each other.
    pub(crate) partitions: u32,
    /// How often all that a node and the others said was late.
    pub(crate) slow_networks: u32,
    pub(crate) cuts: u32,
    pub(crate) stalls: u32,
    pub(crate) full_disks: u32,
    /// Starts that were refused for want of room.
    pub(crate) refused_starts: u32,
    pub(crate) slow_disks: u32,
    /// Sealed segments of which bytes were changed.
    pub(crate) damages: u32,
    /// Of these, those that hit a message that waited, as far as clients know.
    pub(crate) aimed_damages: u32,
    /// How often everything was accounted for.
    pub(crate) stocks: u32,
    pub(crate) slowest_start: Duration,
    /// What became of jobs.
    pub(crate) jobs: jobs::Totals,
}

/// Prints totals, and PASS or what is wrong.
pub(crate) fn print(ledger: &Ledger, tally: &Tally, seed: u64) {
    let totals = ledger.totals();
    let rows = [
        ("SIGKILL", u64::from(tally.kills)),
        ("SIGTERM, clean", tally.stops.into()),
        ("SIGSTOP", tally.freezes.into()),
        ("partitions", tally.partitions.into()),
        ("slow networks", tally.slow_networks.into()),
        ("connections cut", tally.cuts.into()),
        ("readers stalled", tally.stalls.into()),
        ("disk full", tally.full_disks.into()),
        ("starts refused meanwhile", tally.refused_starts.into()),
        ("disk slow", tally.slow_disks.into()),
        ("segments damaged", tally.damages.into()),
        ("where a message waited", tally.aimed_damages.into()),
        ("stock taken", tally.stocks.into()),
        ("slowest start, ms", u64::try_from(tally.slowest_start.as_millis()).unwrap_or(u64::MAX)),
        ("copies published", totals.published),
        ("confirmed", totals.confirmed),
        ("never answered", totals.uncertain),
        ("refused", totals.refused),
        ("rolled back", totals.withdrawn),
        ("delivered", totals.delivered),
        ("delivered again", totals.redelivered),
        ("delivered as dead letters", totals.dead),
        ("acknowledged for certain", totals.acked),
        ("acknowledged perhaps", totals.unsure_acks),
        ("transient and gone with a restart", totals.vanished),
        ("reported as damaged", totals.reported_damaged),
        ("lost to damage", totals.lost_to_damage),
        ("gaps in an order excused by that", totals.excused),
        ("repetitions recognised", totals.repeated),
        ("strays returned", totals.returned),
    ];
    let jobs = &tally.jobs;
    let job_rows = [
        ("jobs", jobs.jobs),
        ("waiters", jobs.waiters),
        ("answered", jobs.answered),
        ("by a message", jobs.messages),
        ("messages redelivered", jobs.messages_again),
        ("jobs handed out", jobs.handed_out),
        ("workers that died", jobs.deaths),
        ("jobs that failed for now", jobs.failures),
        ("for good", jobs.given_up),
        ("given back", jobs.given_back),
        ("extended", jobs.extended),
        ("completed late, or perhaps", jobs.late),
        ("said too late to count", jobs.stale),
        ("looks at a budget short of tokens", jobs.broke),
    ];
    println!();
    for (name, number) in rows.into_iter().chain(job_rows) {
        println!("{name:>34}  {number}");
    }
    println!("\n{:>34}  {:>9}  {:>9}  {:>9}", "of these", "confirmed", "delivered", "acked");
    for way in Way::ALL {
        let Share { confirmed, delivered, acked } = totals.share(way);
        println!("{:>34}  {confirmed:>9}  {delivered:>9}  {acked:>9}", format!("over {way}"));
    }
    println!();
    if tally.damages > 0 && totals.reported_damaged == 0 {
        println!(
            "NOTE: no damaged place held a message that was still needed: reports of damage are not tested"
        );
    }
    if ledger.counts().is_empty() {
        println!("PASS (seed {seed})");
        return;
    }
    for violation in ledger.violations() {
        println!("{violation}\n");
    }
    for (what, count) in ledger.counts() {
        println!("{what:?}: {count}");
    }
    println!("FAIL (seed {seed})");
}
