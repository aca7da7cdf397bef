//! Waiting until the disk has come to rest: data of the line before was deleted, and a file system that tells its disk about
//! every block that is free now (`discard`) does so seconds later, and syncs of others wait for it.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;

/// How long the disk must have been at rest: longer than the file system's records wait to be written, which is five
/// seconds.
const REST: Duration = Duration::from_secs(7);
/// A small write with its sync takes less than this, at rest.
const SYNC_MAX: Duration = Duration::from_millis(20);
/// A disk that never comes to rest is measured as it is.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is asked.
const EVERY: Duration = Duration::from_millis(20);

/// Waits. Says in how much time the slowest sync of the last seconds was done.
pub(super) fn wait(dir: &Path) -> anyhow::Result<Duration> {
    let path = dir.join("rest");
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(&path);
    let file = file.with_context(|| format!("cannot make '{}'", path.display()))?;
    let slowest = until_rest(REST, SYNC_MAX, PATIENCE, || {
        std::thread::sleep(EVERY);
        let started = Instant::now();
        file.write_all_at(b"rest", 0)?;
        file.sync_data()?;
        Ok(started.elapsed())
    })?;
    fs::remove_file(&path)?;
    Ok(slowest)
}

/// Syncs again and again, until all of some time were short or patience ends; gives back the slowest since the last that was
/// too long, or that one.
fn until_rest(
    rest: Duration,
    sync_max: Duration,
    patience: Duration,
    mut sync: impl FnMut() -> anyhow::Result<Duration>,
) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let (mut since, mut slowest) = (began, Duration::ZERO);
    while since.elapsed() < rest && began.elapsed() < patience {
        let took = sync()?;
        if took > sync_max {
            (since, slowest) = (Instant::now(), Duration::ZERO);
            if began.elapsed() >= patience {
                return Ok(took);
            }
        } else {
            slowest = slowest.max(took);
        }
    }
    Ok(slowest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_sync_begins_the_wait_anew() {
        let (rest, patience) = (Duration::from_millis(20), Duration::from_secs(60));
        let mut times = vec![5, 500, 7, 3].into_iter();
        let mut asked = 0;
        let slowest = until_rest(rest, SYNC_MAX, patience, || {
            std::thread::sleep(Duration::from_millis(1));
            asked += 1;
            Ok(Duration::from_millis(times.next().unwrap_or(1)))
        });
        assert_eq!(slowest.unwrap(), Duration::from_millis(7));
        assert!(asked > 4);
        let never = until_rest(rest, SYNC_MAX, Duration::from_millis(5), || {
            std::thread::sleep(Duration::from_millis(1));
            Ok(Duration::from_secs(1))
        });
        assert_eq!(never.unwrap(), Duration::from_secs(1), "patience ends");
    }
}
