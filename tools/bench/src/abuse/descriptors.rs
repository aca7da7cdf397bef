//! Files and connections: what a process can have open is bounded, and the log must not be the one that goes without.

use std::net::TcpStream;
use std::time::Duration;

use nexo_harness::http;

use super::Found;
use super::target::Target;
use crate::process;
use crate::report::thousands;

/// A body of the size at which a disk rather than the count of messages is the limit.
const BODY_BYTES: usize = 16 * 1024;
/// More than a segment of the log, so that it must open another.
const PUBLISHED_BYTES: u64 = 96 << 20;
/// The status of a broker that is well.
pub(super) const WELL: &str = "200";
/// How long the management port may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connections to the management port that say nothing, while the log needs files.
pub(super) fn silent(target: &Target) -> anyhow::Result<Found> {
    let mut found = Found::default();
    target.probed(&mut found, |found| {
        let mut held = Vec::new();
        let mut refused = 0;
        for _ in 0..target.count(1_100) {
            match TcpStream::connect(&target.http) {
                Ok(socket) => held.push(socket),
                Err(_) => refused += 1,
            }
        }
        found.add("connections", format!("{} made, {refused} refused", held.len()));
        let count = target.count(PUBLISHED_BYTES).div_ceil(BODY_BYTES as u64);
        let filled = target.fill("abuse-silent", count, BODY_BYTES)?;
        let bytes = count * BODY_BYTES as u64;
        let (open, health) = (process::open_descriptors(target.pid)?, said(health(&target.http)));
        found
            .add("published meanwhile", format!("{} MiB in {:.1} s", bytes >> 20, filled.as_secs_f64()))
            .add("descriptors meanwhile", open)
            .add("health meanwhile", &health)
            .number("descriptors_meanwhile", open as f64)
            .number("healthy_meanwhile", healthy(&health));
        drop(held);
        Ok(())
    })?;
    let open = process::open_descriptors(target.pid)?;
    found.add("descriptors after", open).number("descriptors_after", open as f64);
    Ok(found)
}

/// A large backlog.
pub(super) fn backlog(target: &Target) -> anyhow::Result<Found> {
    let mut found = Found::default();
    found.add("descriptors before", process::open_descriptors(target.pid)?);
    target.probed(&mut found, |found| {
        let count = target.count(4 << 30).div_ceil(BODY_BYTES as u64);
        let filled = target.fill("abuse-backlog", count, BODY_BYTES)?;
        let bytes = count * BODY_BYTES as u64;
        let rate = bytes as f64 / 1e6 / filled.as_secs_f64();
        let open = process::open_descriptors(target.pid)?;
        found
            .add("waiting", format!("{} MiB, written at {} MB/s", bytes >> 20, thousands(rate)))
            .add("descriptors", open)
            .number("descriptors_after", open as f64);
        Ok(())
    })?;
    Ok(found)
}

/// The status of `GET /health`, with what it says unless all is well.
pub(super) fn health(address: &str) -> anyhow::Result<String> {
    let answer = http::get(address, "/health", PATIENCE)?;
    let status = answer.status.to_string();
    Ok(if status == WELL { status } else { format!("{status} {}", answer.body.trim()) })
}

/// 1 if all is well, 0 if not.
pub(super) fn healthy(said: &str) -> f64 {
    if said == WELL { 1.0 } else { 0.0 }
}

/// The status, or why there is none.
pub(super) fn said(health: anyhow::Result<String>) -> String {
    health.unwrap_or_else(|error| format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_does_not_answer_is_not_well() {
        assert_eq!(healthy(&said(Ok("200".to_owned()))), 1.0);
        assert_eq!(healthy(&said(Ok("503 the disk is full".to_owned()))), 0.0);
        assert_eq!(healthy(&said(Err(anyhow::anyhow!("not reachable")))), 0.0);
    }
}
