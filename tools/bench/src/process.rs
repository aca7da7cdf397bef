//! A process as the operating system sees it: the processor time it used, the memory it holds.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Processor time that a process has used so far, in user and system mode.
pub(crate) fn processor_time(pid: u32) -> anyhow::Result<Duration> {
    let stat = read(pid, "stat")?;
    // The name in parentheses may hold anything; fields are counted from behind it.
    let after = stat.rsplit_once(')').context("the system tells a name")?.1;
    let fields: Vec<&str> = after.split_whitespace().collect();
    let ticks = |index: usize| -> anyhow::Result<u64> {
        Ok(fields.get(index).context("the system tells processor times")?.parse()?)
    };
    Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 1000 / rustix::param::clock_ticks_per_second()))
}

/// Processor time that this process has used so far.
pub(crate) fn own_processor_time() -> anyhow::Result<Duration> {
    processor_time(std::process::id())
}

/// Memory that a process holds, in bytes.
pub(crate) fn resident_bytes(pid: u32) -> anyhow::Result<u64> {
    kibibytes(&read(pid, "status")?, "VmRSS:")
}

/// The most memory that a process has held since it began, in bytes.
pub(crate) fn peak_resident_bytes(pid: u32) -> anyhow::Result<u64> {
    kibibytes(&read(pid, "status")?, "VmHWM:")
}

/// Has the system forget the most memory that a process has held: it begins with what it holds now.
pub(crate) fn forget_peak(pid: u32) -> anyhow::Result<()> {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").context("the peak of memory cannot be reset")
}

/// Bytes that a process has had written to disks so far.
pub(crate) fn written_bytes(pid: u32) -> anyhow::Result<u64> {
    let io = read(pid, "io")?;
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes:"));
    Ok(line.context("the system tells write_bytes")?.trim().parse()?)
}

/// Files and connections that a process has open.
pub(crate) fn open_descriptors(pid: u32) -> anyhow::Result<usize> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .with_context(|| format!("there is no process {pid} to look at"))?;
    Ok(entries.count())
}

/// A line such as `VmRSS:   1234 kB`, in bytes.
fn kibibytes(status: &str, name: &str) -> anyhow::Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let line = line.with_context(|| format!("the system tells {name}"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024)
}

/// Processor time of the load and of the broker, if its process is known, up to a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    broker_pid: Option<u32>,
    load: Duration,
    broker: Option<Duration>,
}

/// What a run took.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Used {
    /// Processor time of this program while measuring, in seconds.
    pub load_processor_seconds: f64,
    /// Processor time of the broker while measuring, in seconds.
    pub broker_processor_seconds: Option<f64>,
    /// Memory of the broker when measuring ended.
    pub broker_resident_bytes: Option<u64>,
}

impl Usage {
    pub(crate) fn now(broker_pid: Option<u32>) -> anyhow::Result<Self> {
        let broker = broker_pid.map(processor_time).transpose()?;
        Ok(Self { broker_pid, load: own_processor_time()?, broker })
    }

    /// What was used from `before` up to this moment.
    pub(crate) fn since(&self, before: &Self) -> anyhow::Result<Used> {
        let broker = self.broker.zip(before.broker);
        Ok(Used {
            load_processor_seconds: self.load.saturating_sub(before.load).as_secs_f64(),
            broker_processor_seconds: broker.map(|(to, from)| to.saturating_sub(from).as_secs_f64()),
            broker_resident_bytes: self.broker_pid.map(resident_bytes).transpose()?,
        })
    }
}

/// What the files under a folder take on disk, in bytes.
pub(crate) fn disk_bytes(dir: &Path) -> anyhow::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    let entries = std::fs::read_dir(dir).with_context(|| format!("cannot look into '{}'", dir.display()))?;
    for entry in entries {
        let entry = entry?;
        // A broker may remove a file while we count.
        let Ok(metadata) = entry.metadata() else { continue };
        sum += if metadata.is_dir() { disk_bytes(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(sum)
}

/// Lets this process have as many files open as it may: a thousand connections are more than it can by default.
pub(crate) fn allow_many_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If it is not allowed, opening will fail and say so.
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).ok();
}

fn read(pid: u32, what: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(format!("/proc/{pid}/{what}"))
        .with_context(|| format!("there is no process {pid} to look at"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_be_looked_at() {
        assert!(resident_bytes(std::process::id()).unwrap() > 100_000);
        let began = own_processor_time().unwrap();
        let mut sum = 0u64;
        while own_processor_time().unwrap() == began {
            sum = std::hint::black_box(sum + 1);
        }
    }

    #[test]
    fn a_peak_is_no_lower_than_what_is_held_and_descriptors_are_counted() {
        let own = std::process::id();
        // The system counts what is held in parts that it adds up now and then.
        // The kernel counts with some slack on each processor, so the two may differ by megabytes.
        let held = vec![1u8; 64 << 20];
        assert!(std::hint::black_box(&held).iter().all(|byte| *byte == 1));
        assert!(peak_resident_bytes(own).unwrap() >= 48 << 20);
        drop(held);
        assert!(peak_resident_bytes(own).unwrap() >= 48 << 20, "a peak stays");
        assert!(open_descriptors(own).unwrap() >= 3);
        assert_eq!(kibibytes("VmHWM:\t    12 kB\nVmRSS:\t 8 kB\n", "VmRSS:").unwrap(), 8192);
        assert!(kibibytes("", "VmRSS:").is_err());
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        let error = resident_bytes(u32::MAX).unwrap_err();
        assert_eq!(error.to_string(), "there is no process 4294967295 to look at");
    }
}
