//! What the figures were measured on.

use std::path::Path;
use std::time::Instant;

/// The machine in one line each: processor, memory, kernel, disk.
pub(crate) fn describe(data_dir: &Path) -> Vec<String> {
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
        format!(
            "fdatasync of 4 KiB into a written file: median {:.0} µs",
            sync_micros(data_dir).unwrap_or(f64::NAN)
        ),
    ]
}

/// What the disk itself takes: the median of a hundred small writes, each synced.
fn sync_micros(dir: &Path) -> anyhow::Result<f64> {
    use std::os::unix::fs::FileExt;
    let file = tempfile::tempfile_in(dir)?;
    file.write_all_at(&vec![0; 1 << 20], 0)?;
    file.sync_data()?;
    let mut times = Vec::new();
    for n in 0..100u64 {
        let started = Instant::now();
        file.write_all_at(&[n as u8; 4096], n * 4096)?;
        file.sync_data()?;
        times.push(started.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
