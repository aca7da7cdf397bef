//! The jobs of one queue by their number. Numbers count up, so they lie side by side in blocks, and a block without any is not
//! kept. A block is also what a snapshot writes at a time (`changes.rs`).

use std::collections::BTreeMap;

use super::job::Job;

/// Jobs of one block. Part of the format on disk: a block is known by its number.
pub(super) const BLOCK_JOBS: u64 = 64;

/// Jobs by number.
#[derive(Debug, Default)]
pub(super) struct JobTable {
    blocks: BTreeMap<u64, Block>,
    len: usize,
}

#[derive(Debug)]
struct Block {
    jobs: Box<[Option<Box<Job>>; BLOCK_JOBS as usize]>,
    len: u32,
}

impl Default for Block {
    fn default() -> Self {
        Self { jobs: Box::new([const { None }; BLOCK_JOBS as usize]), len: 0 }
    }
}

const fn split(number: u64) -> (u64, usize) {
    (number / BLOCK_JOBS, (number % BLOCK_JOBS) as usize)
}

impl JobTable {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, number: u64) -> Option<&Job> {
        let (block, at) = split(number);
        self.blocks.get(&block)?.jobs[at].as_deref()
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Job> {
        let (block, at) = split(number);
        self.blocks.get_mut(&block)?.jobs[at].as_deref_mut()
    }

    pub(super) fn insert(&mut self, number: u64, job: Box<Job>) {
        let (block, at) = split(number);
        let block = self.blocks.entry(block).or_default();
        if block.jobs[at].replace(job).is_none() {
            block.len += 1;
            self.len += 1;
        }
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Box<Job>> {
        let (number, at) = split(number);
        let block = self.blocks.get_mut(&number)?;
        let job = block.jobs[at].take()?;
        block.len -= 1;
        self.len -= 1;
        if block.len == 0 {
            self.blocks.remove(&number);
        }
        Some(job)
    }

    /// The jobs from a number on, in order.
    pub(super) fn from(&self, first: u64) -> impl Iterator<Item = (u64, &Job)> {
        self.blocks
            .range(first / BLOCK_JOBS..)
            .flat_map(|(number, block)| {
                let first = number * BLOCK_JOBS;
                block.jobs.iter().zip(first..).filter_map(|(job, number)| Some((number, job.as_deref()?)))
            })
            .skip_while(move |(number, _)| *number < first)
    }

    /// The jobs of one block, in order.
    pub(super) fn block(&self, block: u64) -> impl Iterator<Item = (u64, &Job)> {
        self.from(block * BLOCK_JOBS).take_while(move |(number, _)| number / BLOCK_JOBS == block)
    }

    /// The numbers of all blocks.
    pub(super) fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::job::JobBody;
    use nexo_types::Timestamp;

    fn job(key: &str) -> Job {
        let body = JobBody { kind: "t".into(), key: key.into(), payload: bytes::Bytes::new() };
        Job::new(&body, 1, false, Timestamp::MAX, Timestamp(0))
    }

    #[test]
    fn jobs_are_found_by_number_and_listed_in_order() {
        let mut table = JobTable::default();
        for number in [3, 64, 65, 1000, 0] {
            table.insert(number, Box::new(job(&number.to_string())));
        }
        assert_eq!(table.get(64).unwrap().key(), "64");
        assert_eq!(table.from(4).map(|(number, _)| number).collect::<Vec<_>>(), [64, 65, 1000]);
        assert_eq!(table.block(1).map(|(number, _)| number).collect::<Vec<_>>(), [64, 65]);
        assert!(table.remove(64).is_some() && table.remove(64).is_none());
        assert!(table.remove(65).is_some());
        assert_eq!(table.blocks().collect::<Vec<_>>(), [0, 15], "an empty block is not kept");
        assert_eq!(table.len(), 3);
    }
}
