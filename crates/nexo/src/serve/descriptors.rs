//! Descriptors: as many as the system allows, and some of them for the log alone.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the log may have open at once, and what else a process has: its standard streams, its ports, the runtime's own,
/// what it opens for a moment, and connections that are leaving or are told that there are too many.
const RESERVED: usize = nexo_broker::LOG_FILES_MAX + 64;
/// Where there are so few that the reserve would take nearly all, connections still get one in four.
const SHARE_MIN: usize = 4;

/// Raises the limit of open files to what the system allows this process, and says how many connections may be open at
/// once, so that the log gets the descriptors that it needs.
pub(crate) fn connections_max() -> usize {
    let before = getrlimit(Resource::Nofile);
    if before.current != before.maximum {
        let raised = Rlimit { current: before.maximum, maximum: before.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit of open files cannot be raised");
        }
    }
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let connections = connections_of(limit);
    tracing::info!(limit, connections, "descriptors");
    if limit < RESERVED * 2 {
        tracing::warn!(
            limit,
            connections,
            "this process may have few files open at once; `ulimit -n` or LimitNOFILE raises the limit"
        );
    }
    connections
}

fn connections_of(limit: usize) -> usize {
    limit.saturating_sub(RESERVED).max(limit / SHARE_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_keeps_its_descriptors_unless_there_are_too_few_for_anything() {
        assert_eq!(connections_of(1024), 1024 - RESERVED);
        assert_eq!(connections_of(64), 16);
        assert_eq!(connections_of(usize::MAX), usize::MAX - RESERVED);
    }
}
