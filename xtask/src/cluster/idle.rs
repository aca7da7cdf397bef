//! What three nodes cost that have nothing to do: ten thousand queues, and nobody who uses them.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Context;

use super::nodes::NexoNodes;
use crate::load::Bench;
use crate::page::put_machine;

/// What is measured: less of it to see that it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) queues: u32,
    pub(super) span: Duration,
}

impl Size {
    pub(super) const FULL: Self = Self { queues: 10_000, span: Duration::from_secs(60) };
    pub(super) const QUICK: Self = Self { queues: 500, span: Duration::from_secs(3) };
}

/// How long all nodes may take to have the queues.
const PATIENCE: Duration = Duration::from_secs(120);
/// What was begun by the declarations is done after that.
const SETTLING: Duration = Duration::from_secs(10);
/// The system counts processor time in steps of 10 ms.
const STEP_MS: u64 = 10;

/// Measures, and gives back what was found as Markdown.
pub(super) fn measure(bench: &Bench, size: Size) -> anyhow::Result<String> {
    let nodes = NexoNodes::start(bench.nexo(), 3)?;
    nodes.declare_queues(size.queues)?;
    nodes.wait_until_in_step(PATIENCE)?;
    std::thread::sleep(SETTLING);
    let pids: Vec<u32> = nodes.nodes()?.iter().map(|node| node.pid).collect();
    let before: Vec<u64> = pids.iter().copied().map(processor_ms).collect::<anyhow::Result<_>>()?;
    std::thread::sleep(size.span);
    let mut out = String::new();
    put_machine(&mut out, &bench.machine());
    let _ = writeln!(
        out,
        "- three nodes on one machine, {} durable queues, nothing published for {} s\n\n| node | of a core | goal |\n|---|---|---|",
        size.queues,
        size.span.as_secs()
    );
    for (at, (pid, before)) in pids.iter().zip(before).enumerate() {
        let used = processor_ms(*pid)?.saturating_sub(before) as f64 / size.span.as_millis() as f64;
        let role = if at == 0 { "the leader" } else { "a follower" };
        let _ = writeln!(out, "| {role} | {:.2} % | under 3 % |", used * 100.0);
    }
    Ok(out)
}

/// Processor time of a process so far, in milliseconds.
fn processor_ms(pid: u32) -> anyhow::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("a node has ended")?;
    steps_in(&stat)
        .map(|steps| steps * STEP_MS)
        .with_context(|| format!("nothing is told of time in {stat:?}"))
}

/// Time in user mode and in the kernel, the 14th and 15th field. The second one is a name, which may have anything in it.
fn steps_in(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_found_behind_any_name() {
        let stat = "77 (a) b (c) S 1 77 77 0 -1 4194560 100 0 0 0 31 11 0 0 20 0 9 0 5 1000 200";
        assert_eq!(steps_in(stat), Some(42));
        assert_eq!(steps_in("77 (a) S 1"), None);
    }
}
