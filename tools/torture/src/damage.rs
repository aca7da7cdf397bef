//! A disk that does not keep what it was given: bytes of a sealed segment change while the broker is down.
//!
//! Where exactly is left to chance. It may hit messages that wait, which are lost then, and the broker must count them;
//! or a snapshot, and then the checkpoint before it must do; or what nobody needs any more.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Where the seal of a segment lies in its file; see `docs/format.md`.
const SEAL_AT: u64 = 2048;
const SEAL_MAGIC: &[u8] = b"NEXOSEAL";
/// Where in the seal it says how far the frames go.
const FRAMES_END_AT: usize = 20;
/// Where frames begin.
const FRAMES_AT: u32 = 4096;
/// How many bytes change.
const BYTES: usize = 16;

/// A segment that is complete.
#[derive(Debug)]
struct Sealed {
    path: PathBuf,
    frames_end: u32,
}

/// Changes some bytes of a sealed segment, but not of the last `spared`. Says where, or `None` if there is none.
pub(crate) fn strike(data_dir: &Path, chance: u64, spared: usize) -> anyhow::Result<Option<String>> {
    let mut rng = fastrand::Rng::with_seed(chance);
    let mut sealed = sealed_segments(&data_dir.join("segments")).context("cannot look at the segments")?;
    sealed.truncate(sealed.len().saturating_sub(spared));
    if sealed.is_empty() {
        return Ok(None);
    }
    let victim = sealed.swap_remove(rng.usize(..sealed.len()));
    let at = rng.u32(FRAMES_AT..victim.frames_end);
    let change = || -> std::io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(&victim.path)?;
        let mut bytes = [0; BYTES];
        file.read_exact_at(&mut bytes, at.into())?;
        for byte in &mut bytes {
            *byte ^= rng.u8(1..);
        }
        file.write_all_at(&bytes, at.into())
    };
    let mut change = change;
    let name = victim.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    change().with_context(|| format!("cannot damage '{name}'"))?;
    Ok(Some(format!("{name} at {at}")))
}

fn sealed_segments(dir: &Path) -> std::io::Result<Vec<Sealed>> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(dir)? {
        paths.push(entry?.path());
    }
    paths.sort();
    let sealed = |path: PathBuf| {
        let mut seal = [0; FRAMES_END_AT + 4];
        File::open(&path).ok()?.read_exact_at(&mut seal, SEAL_AT).ok()?;
        let frames_end = u32::from_le_bytes(*seal.last_chunk()?);
        let is_sealed = seal.starts_with(SEAL_MAGIC) && frames_end > FRAMES_AT;
        is_sealed.then_some(Sealed { path, frames_end })
    };
    Ok(paths.into_iter().filter_map(sealed).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sealed_segments_are_struck_and_only_their_frames() {
        let home = std::env::temp_dir().join(format!("nexo-torture-damage-{}", std::process::id()));
        let segments = home.join("segments");
        fs::create_dir_all(&segments).unwrap();
        let mut file = vec![0; 20_000];
        fs::write(segments.join("2.seg"), &file).unwrap();
        assert_eq!(strike(&home, 1, 0).unwrap(), None, "nothing is sealed");
        file[2048..2056].copy_from_slice(SEAL_MAGIC);
        file[2068..2072].copy_from_slice(&9_000u32.to_le_bytes());
        fs::write(segments.join("1.seg"), &file).unwrap();
        for chance in 0..50 {
            assert!(strike(&home, chance, 0).unwrap().unwrap().starts_with("1.seg at "));
        }
        assert_eq!(strike(&home, 1, 1).unwrap(), None, "the last is spared");
        let struck = fs::read(segments.join("1.seg")).unwrap();
        let changed: Vec<usize> = (0..file.len()).filter(|at| file[*at] != struck[*at]).collect();
        assert!(changed.len() > 500 && changed[0] >= 4096 && changed[changed.len() - 1] < 9_016);
        fs::remove_dir_all(home).unwrap();
    }
}
