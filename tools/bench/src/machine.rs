//! What the figures were measured on.

use std::path::Path;

use crate::disk::sync_nanos;

/// The machine in one line each: processor, memory, kernel, disk.
pub(crate) fn describe(data_dir: &Path) -> Vec<String> {
    let mut lines = describe_processor();
    lines.push(format!(
        "fdatasync of 4 KiB into a written file: median {:.0} µs",
        sync_micros(data_dir).unwrap_or(f64::NAN)
    ));
    lines
}

/// The same without the disk.
pub(crate) fn describe_processor() -> Vec<String> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let find = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
        line.split_once(':').map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = find(&read("/proc/meminfo"), "MemTotal");
    let mib = memory.trim_end_matches(" kB").parse::<u64>().unwrap_or(0) / 1024;
    vec![
        format!("processor: {} ({cores} cores)", find(&read("/proc/cpuinfo"), "model name")),
        format!("memory: {mib} MiB"),
        format!("kernel: {}", read("/proc/sys/kernel/osrelease").trim()),
    ]
}

/// What the disk itself takes for a page, at the median.
fn sync_micros(dir: &Path) -> Option<f64> {
    let nanos = sync_nanos(dir, 4096, 200).ok()?;
    Some(nanos.value_at_quantile(0.5) as f64 / 1000.0)
}
