//! Who syncs before confirming. Counted by watching the broker's system calls while one publisher sends one message at a
//! time: whoever syncs first makes at least one such call for each message.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::contender::{Contender, Running};
use super::load::Load;
use crate::run::answers;

/// The calls that bring data to the disk.
const CALLS: &str = "trace=fsync,fdatasync,sync_file_range,msync,io_uring_enter";

/// How many syncs there were for how many messages, in words.
pub(super) fn count(load: &Load, contender: Contender, broker: &Running) -> anyhow::Result<String> {
    ensure!(answers("strace", &["--version"]), "strace is not installed");
    let pid = broker.pid.to_string();
    let mut strace = Command::new("strace")
        .args(["-f", "-c", "-e", CALLS, "-p", &pid])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start strace")?;
    // Nothing tells when it has attached to every thread.
    std::thread::sleep(Duration::from_secs(1));
    let mut args = vec![
        "throughput",
        "--persistent",
        "--confirm",
        "1",
        "--ack",
        "100",
        "--duration",
        "2s",
        "--warmup",
        "0s",
    ];
    if contender == Contender::RabbitQuorum {
        args.extend(["--queue-type", "quorum"]);
    }
    let report = load.bench(&args, broker);
    // It prints its table when it is asked to end.
    let asked = Command::new("kill").args(["-INT", &strace.id().to_string()]).status();
    if !asked.is_ok_and(|status| status.success()) {
        strace.kill().ok();
    }
    let output = strace.wait_with_output().context("strace does not end")?;
    let syncs = calls(&String::from_utf8_lossy(&output.stderr));
    let messages = report?.pointer("/totals/confirmed").and_then(Value::as_u64).unwrap_or(0);
    ensure!(messages > 0, "nothing was confirmed");
    let each = syncs as f64 / messages as f64;
    let judgement = if each >= 0.9 { "syncs before it confirms" } else { "confirms without a sync" };
    Ok(format!("{syncs} syncs for {messages} messages, one at a time: {judgement}"))
}

/// The calls in the table that `strace -c` prints.
fn calls(table: &str) -> u64 {
    let rows = table.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
    rows.filter(|line| !line.trim_end().ends_with("total") && !line.contains("io_uring_enter"))
        .filter_map(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_added_up() {
        let table = "\
strace: Process 1 attached with 3 threads
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 99.00    1.000000         100       120           fdatasync
  1.00    0.010000          10         3         1 fsync
------ ----------- ----------- --------- --------- ----------------
100.00    1.010000          97       123         1 total
";
        assert_eq!(calls(table), 123);
        assert_eq!(calls("strace: Process 1 detached\n"), 0);
    }
}
