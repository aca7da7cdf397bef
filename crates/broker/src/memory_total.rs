//! How much memory there is for this process: what the machine has, or less if a control group says so (version 1 and 2).
//! Containers and systemd's units are control groups.

use std::fs;
use std::path::{Path, PathBuf};

/// What there is, if the system says so.
pub(crate) fn memory_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| machine_bytes(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    machine.into_iter().chain(limit_bytes(&groups, Path::new("/sys/fs/cgroup"))).min()
}

/// From `/proc/meminfo`.
fn machine_bytes(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The least that the process's groups, and those around them, allow. `groups` is `/proc/self/cgroup`, `root` where the
/// control groups are mounted.
fn limit_bytes(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        if controllers.is_empty() {
            return least(root, path, "memory.max");
        }
        let is_memory = controllers.split(',').any(|controller| controller == "memory");
        is_memory.then(|| least(&root.join("memory"), path, "memory.limit_in_bytes"))?
    });
    limits.min()
}

/// The least of what a group and those around it say. In a container the group's own path may not be there; then the root of
/// the mount is the group.
fn least(mount: &Path, path: &str, file: &str) -> Option<u64> {
    // It comes from the kernel, but leads nowhere else than below the mount.
    let below = path.split('/').filter(|part| !part.is_empty() && *part != "..");
    let group: PathBuf = mount.join(below.collect::<PathBuf>());
    let around = group.ancestors().take_while(|folder| folder.starts_with(mount));
    // "max" is no number and no limit.
    around.filter_map(|folder| fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounted(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_machine_says_what_it_has() {
        assert_eq!(machine_bytes("MemTotal:       2048 kB\nMemFree: 1 kB\n"), Some(2 << 20));
        assert_eq!(machine_bytes("garbage"), None);
    }

    #[test]
    fn a_group_of_version_2_and_those_around_it_count() {
        let root = mounted(&[
            ("system.slice/memory.max", "5000\n"),
            ("system.slice/nexo.service/memory.max", "max\n"),
        ]);
        assert_eq!(limit_bytes("0::/system.slice/nexo.service\n", root.path()), Some(5000));
        assert_eq!(limit_bytes("0::/user.slice\n", root.path()), None);
    }

    #[test]
    fn a_group_of_version_1_counts() {
        let root = mounted(&[
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/docker/abc/memory.limit_in_bytes", "7000\n"),
        ]);
        let groups = "9:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/\n";
        assert_eq!(limit_bytes(groups, root.path()), Some(7000));
    }

    #[test]
    fn in_a_container_the_root_of_the_mount_is_the_group() {
        let root = mounted(&[("memory/memory.limit_in_bytes", "7000\n"), ("memory.max", "6000\n")]);
        assert_eq!(limit_bytes("4:memory:/docker/abc\n", root.path()), Some(7000));
        assert_eq!(limit_bytes("0::/../../kubepods/pod\n", root.path()), Some(6000));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_memory() {
        assert!(memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
