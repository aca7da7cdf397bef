//! What has changed since the last snapshot, and what it was like when the present one began, by chunk.
//!
//! A chunk is a block of a queue's jobs, or a block of the token log. While a snapshot is taken, a chunk that is still to be
//! written is encoded just before the first change to it.

use std::collections::BTreeMap;

use bytes::Bytes;
use nexo_types::{JobId, JobQueueId};

use super::table::BLOCK_JOBS;
use super::token_log::BLOCK_USES;
use crate::queue::{ChunkId, ChunkSet};

/// Chunks from this number on are of the token log.
const TOKEN_LOG: u64 = 1 << 63;

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A block of a queue's jobs.
    Jobs(JobQueueId, u64),
    /// A block of the token log.
    TokenLog(u64),
}

/// Which chunks have changed, and the snapshot that is being taken.
#[derive(Debug, Default)]
pub(super) struct Changes {
    changed: ChunkSet,
    snapshot: Option<Ongoing>,
}

#[derive(Debug, Default)]
struct Ongoing {
    pending: ChunkSet,
    /// Pending chunks that have changed since, as they were.
    before: BTreeMap<ChunkId, Bytes>,
}

impl Part {
    pub(super) const fn of_job(job: JobId) -> Self {
        Self::Jobs(job.queue(), job.sequence() / BLOCK_JOBS)
    }

    pub(super) const fn of_use(number: u64) -> Self {
        Self::TokenLog(number / BLOCK_USES)
    }

    pub(super) const fn chunk(self) -> ChunkId {
        match self {
            Self::Jobs(queue, block) => ChunkId(JobId::new(queue, block * BLOCK_JOBS).0 / BLOCK_JOBS),
            Self::TokenLog(block) => ChunkId(TOKEN_LOG | block),
        }
    }

    pub(super) const fn of(chunk: ChunkId) -> Self {
        if chunk.0 & TOKEN_LOG != 0 {
            Self::TokenLog(chunk.0 & !TOKEN_LOG)
        } else {
            Self::of_job(JobId(chunk.0 * BLOCK_JOBS))
        }
    }
}

impl Changes {
    pub(super) fn has(&self, chunk: ChunkId) -> bool {
        let pending = |ongoing: &Ongoing| ongoing.pending.contains(chunk);
        self.changed.contains(chunk) || self.snapshot.as_ref().is_some_and(pending)
    }

    /// Notes that a chunk is about to change. Says whether it must be [kept](Self::keep) as it is now.
    pub(super) fn touch(&mut self, chunk: ChunkId) -> bool {
        self.changed.insert(chunk);
        self.snapshot
            .as_ref()
            .is_some_and(|ongoing| ongoing.pending.contains(chunk) && !ongoing.before.contains_key(&chunk))
    }

    pub(super) fn keep(&mut self, chunk: ChunkId, bytes: Bytes) {
        if let Some(ongoing) = &mut self.snapshot {
            ongoing.before.insert(chunk, bytes);
        }
    }

    pub(super) fn begin(&mut self, stale: &[ChunkId]) {
        self.abandon(&[]);
        let mut pending = std::mem::take(&mut self.changed);
        stale.iter().for_each(|chunk| pending.insert(*chunk));
        self.snapshot = Some(Ongoing { pending, before: BTreeMap::new() });
    }

    /// The next chunk to be written, and what it was if it has changed meanwhile.
    pub(super) fn next(&mut self) -> Option<(ChunkId, Option<Bytes>)> {
        let snapshot = self.snapshot.as_mut()?;
        let chunk = snapshot.pending.pop_first()?;
        Some((chunk, snapshot.before.remove(&chunk)))
    }

    pub(super) const fn is_ongoing(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Ends the snapshot if nothing of it is left; says whether something is.
    pub(super) fn end_if_done(&mut self) -> bool {
        let more = self.snapshot.as_ref().is_some_and(|ongoing| !ongoing.pending.is_empty());
        if !more {
            self.snapshot = None;
        }
        more
    }

    /// The snapshot comes to nothing: its chunks, and those that were taken for it already, have still changed.
    pub(super) fn abandon(&mut self, taken: &[ChunkId]) {
        if let Some(snapshot) = self.snapshot.take() {
            snapshot.pending.iter().for_each(|chunk| self.changed.insert(chunk));
        }
        taken.iter().for_each(|chunk| self.changed.insert(*chunk));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_says_what_it_holds() {
        let job = JobId::new(JobQueueId(7), 130);
        assert_eq!(Part::of_job(job), Part::Jobs(JobQueueId(7), 2));
        for part in [Part::of_job(job), Part::Jobs(JobQueueId(0), 0), Part::of_use(700)] {
            assert_eq!(Part::of(part.chunk()), part);
        }
    }
}
