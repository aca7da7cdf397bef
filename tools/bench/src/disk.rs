//! What the disk itself takes for a small append: the time below which no broker can confirm a message that it syncs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use hdrhistogram::Histogram;

use crate::machine;
use crate::percentiles::{self, Micros, Percentiles};
use crate::report::{Figures, Report};

/// Size of the file, which is gone through again and again.
const FILE_BYTES: u64 = 16 << 20;

/// Options of `disk`.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct DiskOptions {
    /// A folder on the disk in question
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub data_dir: PathBuf,
    /// Bytes in one append
    #[arg(long, value_name = "BYTES", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub size: u32,
    /// How many appends
    #[arg(long, value_name = "N", default_value_t = 3000, value_parser = clap::value_parser!(u32).range(1..))]
    pub count: u32,
}

/// What was found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Disk {
    /// What was asked for.
    pub options: DiskOptions,
    /// What it was measured on, one line each.
    pub machine: Vec<String>,
    /// A write and its `fdatasync`.
    pub sync_time: Option<Percentiles>,
}

/// Measures the disk.
///
/// # Errors
/// If the folder cannot be written to.
pub fn run(options: &DiskOptions) -> anyhow::Result<Disk> {
    let nanos = sync_nanos(&options.data_dir, options.size, options.count)
        .with_context(|| format!("cannot measure the disk of '{}'", options.data_dir.display()))?;
    let machine = machine::describe_processor();
    Ok(Disk { options: options.clone(), machine, sync_time: Percentiles::of_nanos(&nanos) })
}

/// Nanoseconds of `count` appends with a sync each, into a file that has been written before.
pub(crate) fn sync_nanos(dir: &Path, bytes: u32, count: u32) -> anyhow::Result<Histogram<u64>> {
    let file = recycled_file(dir)?;
    let append = vec![0x5A; bytes as usize];
    let room = FILE_BYTES - u64::from(bytes);
    let mut nanos = percentiles::nanos();
    let mut at = 0;
    for _ in 0..count {
        let began = Instant::now();
        file.write_all_at(&append, at)?;
        file.sync_data()?;
        percentiles::note(&mut nanos, began.elapsed(), 1);
        at = if at + u64::from(bytes) > room { 0 } else { at + u64::from(bytes) };
    }
    Ok(nanos)
}

/// A file without a name whose blocks are all there and written, as a log has it that uses its segments again.
fn recycled_file(dir: &Path) -> anyhow::Result<File> {
    let file = tempfile::tempfile_in(dir)?;
    let zeros = vec![0; 1 << 20];
    for at in (0..FILE_BYTES).step_by(zeros.len()) {
        file.write_all_at(&zeros, at)?;
    }
    file.sync_all()?;
    Ok(file)
}

impl Report for Disk {
    fn title(&self) -> String {
        format!("appends of {} bytes to a written file, each with fdatasync", self.options.size)
    }

    fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        figures
            .add_some("time of one", self.sync_time)
            .add_some("mean", self.sync_time.map(|times| Micros(times.mean_us)))
            .add("appends", self.options.count);
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_append_is_measured_even_beyond_the_end_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let nanos = sync_nanos(dir.path(), 1 << 20, 40).unwrap();
        assert_eq!(nanos.len(), 40);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let options = DiskOptions { data_dir: "/nowhere".into(), size: 1, count: 1 };
        assert_eq!(run(&options).unwrap_err().to_string(), "cannot measure the disk of '/nowhere'");
    }
}
